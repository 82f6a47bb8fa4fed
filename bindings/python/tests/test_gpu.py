"""PyTorch's backend with tensors of GPUs: on stand-ins of the CUDA driver and runtime."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ranks

ROOT = Path(__file__).parents[3]
HEADERS = ROOT / ".cuda/nvidia/cu13/include"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
# What the stand-in driver takes for the kernels' image: compute capabilities times ten.
IMAGE = "oxccl stand-in image for 80 90 100 120"

pytestmark = pytest.mark.skipif(
    not HEADERS.exists(), reason="there are no CUDA headers (tools/setup)"
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a process that finds the stand-ins in the place of CUDA's libraries."""
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "libcuda.so.1").symlink_to(TARGET / "debug/liboxccl_cuda_stand_in.so")
    (folder / "image").write_text(IMAGE)
    runtime = folder / "libcudart_stand_in.so"
    source = ROOT / "tests/cuda_runtime_stand_in/cudart.c"
    compile_it = ["cc", "-shared", "-fPIC", "-O1", "-I", HEADERS, "-o", runtime, source]
    subprocess.run(compile_it, check=True)
    names = ROOT / ".python/stand-ins"
    preloaded = [runtime, folder / "libcuda.so.1", names / "libcuda_stand_in.so"]
    return {
        "LD_PRELOAD": ":".join(map(str, preloaded)),
        "LD_LIBRARY_PATH": f"{folder}:{names}",
        "OXCCL_IMAGE": str(folder / "image"),
        "OXCCL_STAND_IN_DEVICES": "2",
        "OXCCL_STAND_IN_MEMORY": str(1 << 30),
    }


def run(
    environment: dict[str, str], parts: str, *arguments: str
) -> list[tuple[int, str, str]]:
    program = Path(__file__).with_name("gpu_rank.py").read_text()
    program = f"import sys; sys.argv = {['gpu_rank.py', 'oxccl', parts, *arguments]!r}\n" + program
    return ranks.finish(ranks.start(2, program, **environment))


def done(environment: dict[str, str], parts: str, *arguments: str) -> None:
    for rank, (status, out, err) in enumerate(run(environment, parts, *arguments)):
        assert status == 0 and out.endswith("done\n"), f"rank {rank}: {status}\n{out}{err[-3000:]}"


def test_collectives(environment: dict[str, str]) -> None:
    done(environment, "collectives,launches")


def test_works_messages_and_groups(environment: dict[str, str]) -> None:
    done(environment, "works,messages,groups", "device_id")


def test_graphs(environment: dict[str, str]) -> None:
    done(environment, "graphs")


def test_what_is_refused(environment: dict[str, str]) -> None:
    done(environment, "refused")


def test_a_dead_rank_is_named(environment: dict[str, str]) -> None:
    survivor, dead = run(environment, "death")
    assert dead[0] == 7
    assert survivor[0] == 0 and "rank 1 died" in survivor[1], survivor
