#!/usr/bin/env python3
"""Stand-ins for the CUDA libraries, so that PyTorch's wheel imports on a machine without them.

PyTorch's Linux wheel links against about 2 GB of CUDA libraries even where only its CPU side (and
Gloo, which is what the benchmark wants) is used. This writes two tiny libraries instead:

- libcuda_stand_in.so defines every CUDA function that the wheel refers to; each one returns 100,
  which is cudaErrorNoDevice. It must be preloaded (LD_PRELOAD).
- libempty.so, under each missing library's file name, satisfies the loader.

Usage: cuda_stand_ins.py TORCH_LIB_FOLDER OUTPUT_FOLDER
"""
import pathlib
import subprocess
import sys

PREFIXES = ("cu", "nv", "nccl", "__cuda", "_ZN10cuda")


def run(*arguments):
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout


def symbols(library, which):
    lines = run("nm", "-D", which, "--format=posix", str(library)).splitlines()
    return {line.split()[0].split("@")[0] for line in lines}


def needed(library):
    lines = run("readelf", "-d", str(library)).splitlines()
    return {line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line}


def compile_library(source, target):
    command = ["cc", "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(target)]
    subprocess.run(command, check=True, input=source, text=True)


def main(torch_lib, out):
    libraries = [path for path in torch_lib.glob("*.so*") if path.is_file()]
    defined = set().union(*(symbols(path, "--defined-only") for path in libraries))
    undefined = set().union(*(symbols(path, "--undefined-only") for path in libraries))
    missing = sorted(name for name in undefined - defined if name.startswith(PREFIXES))
    sonames = set().union(*(needed(path) for path in libraries)) - {p.name for p in libraries}
    out.mkdir(parents=True, exist_ok=True)
    functions = "".join(f"int {name}(void) {{ return 100; }}\n" for name in missing)
    compile_library(functions, out / "libcuda_stand_in.so")
    compile_library("", out / "libempty.so")
    for soname in sonames:
        if soname.startswith(("libcu", "libnv", "libnccl")):
            link = out / soname
            link.unlink(missing_ok=True)
            link.symlink_to("libempty.so")
    print(f"stand-ins for {len(missing)} CUDA functions in {out}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
