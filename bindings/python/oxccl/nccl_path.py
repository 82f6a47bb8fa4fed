"""Prints where oxccl's libnccl.so.2 is: ``LD_PRELOAD=$(python -m oxccl.nccl_path) program``."""

import os
import pathlib
import shutil
import sys


def nccl_path() -> str:
    """The library: what ``OXCCL_NCCL_LIBRARY`` names, or beside the ``oxccl`` command."""
    places = [pathlib.Path(os.environ.get("OXCCL_NCCL_LIBRARY", ""))]
    command = shutil.which("oxccl")
    if command:
        beside = pathlib.Path(command).resolve().parent
        names = ["libnccl.so.2", "libnccl.so", "../lib/libnccl.so.2"]
        places += [beside / name for name in names]
    for place in places:
        if place.is_file():
            return str(place.resolve())
    raise FileNotFoundError(
        "there is no libnccl.so.2 of oxccl: build it with `cargo build --release -p oxccl-nccl`, "
        "and put target/release in PATH, or name the file in OXCCL_NCCL_LIBRARY"
    )


if __name__ == "__main__":
    try:
        print(nccl_path())
    except FileNotFoundError as error:
        sys.exit(f"oxccl: {error}")
