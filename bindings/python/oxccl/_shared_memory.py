"""torch's tensors in memory that all ranks of the machine reach in place."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch

import oxccl

_SOURCE = Path(__file__).with_name("_shared_memory.cpp")

# Once a process: torch keeps its allocator.
_allocator: oxccl.Allocator | None = None


def use(comm: oxccl.Communicator, min_bytes: int) -> oxccl.Allocator:
    """Has torch take memory of the CPU from this communicator's heap."""
    global _allocator
    if min_bytes < 1:
        raise oxccl.UsageError(f"min_bytes is {min_bytes}, and must be above 0")
    if _allocator is not None:
        raise oxccl.UsageError("torch takes memory from a communicator already")
    library = ctypes.CDLL(str(_built()))
    allocator = comm.allocator()
    take, give, heap = map(ctypes.c_void_p, allocator.hooks)
    library.oxccl_use_shared_memory(take, give, heap, ctypes.c_size_t(min_bytes))
    _allocator = allocator
    return allocator


def _built() -> Path:
    """The library that stands between torch and oxccl, compiled unless it has been."""
    root = Path(torch.__file__).parent
    compiler = os.environ.get("CXX", "c++")
    recipe = f"{torch.__version__} {root} {_SOURCE.read_text()}"
    name = f"torch-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.so"
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "oxccl"
    built = cache / name
    if built.exists():
        return built
    cache.mkdir(parents=True, exist_ok=True)
    # The standard library's strings are laid out as torch has them.
    layout = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    with tempfile.NamedTemporaryFile(dir=cache, suffix=".so", delete=False) as partial:
        pass
    command = [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", layout, f"-I{root}/include"]
    command += [str(_SOURCE), f"-L{root}/lib", "-lc10", "-o", partial.name]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        os.unlink(partial.name)
        text = f"use_shared_memory compiles a file of C++, and there is no {compiler} (CXX)"
        raise oxccl.UsageError(text) from None
    except subprocess.CalledProcessError as error:
        os.unlink(partial.name)
        text = f"use_shared_memory does not compile against torch {torch.__version__}: "
        raise oxccl.UsageError(text + error.stderr[-2000:]) from None
    # Other ranks may do the same at the same time.
    os.replace(partial.name, built)
    return built
