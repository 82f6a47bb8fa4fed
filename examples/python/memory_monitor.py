"""A communicator's memory while buffers come and go, and what fragmentation is.

Buffers of `communicator.empty` lie in a heap that all ranks reach in place. Once it is full and
every second buffer is freed, half of it is free; yet a larger buffer finds no range that holds it.

    python memory_monitor.py --ranks 2
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

import ranks

# The heap holds so many buffers; by default it would be larger.
COUNT, SIZE = 16, 1 << 18


def main(options: argparse.Namespace) -> None:
    import oxccl

    comm = ranks.communicator()
    if comm is None:
        sys.exit(f"{options.backend} does not tell how its memory is used; oxccl does")
    rows: list[tuple[Any, ...]] = []

    def note(moment: str) -> dict[str, int]:
        memory = comm.memory()
        free = memory["heap_bytes"] - memory["allocated_bytes"]
        largest = memory["largest_free_bytes"]
        scattered = f"{100 * (1 - largest / free):.0f}%" if free else "-"
        used = memory["heap_bytes"], memory["allocated_bytes"], free, largest
        rows.append((moment, *used, scattered, memory["staging_bytes"]))
        return memory

    begin = note("nothing allocated")
    buffers = [comm.empty(SIZE, dtype="uint8") for _ in range(begin["heap_bytes"] // SIZE)]
    full = note(f"{len(buffers)} buffers of {SIZE}")

    # They are memory as any other, and calls on them need no copies.
    tensor = buffers[0].torch()
    tensor.fill_(1)
    dist.all_reduce(tensor)
    assert (tensor == dist.get_world_size()).all()
    del tensor

    buffers = buffers[1::2]
    holes = note("every second one freed")
    try:
        comm.empty(2 * SIZE, dtype="uint8")
    except oxccl.Error as error:
        refusal = str(error)
    else:
        raise AssertionError("a buffer lies where no range is large enough")
    buffers.clear()
    end = note("all freed")
    large = comm.empty(2 * SIZE, dtype="uint8")
    note(f"one of {large.nbytes}")

    head = ["moment", "heap", "allocated", "free", "largest free", "scattered", "staging"]
    ranks.table(head, rows)
    ranks.say(f"{2 * SIZE} bytes, when every second one was free: {refusal}")
    assert full["largest_free_bytes"] < SIZE
    assert holes["largest_free_bytes"] < 2 * SIZE
    assert holes["heap_bytes"] - holes["allocated_bytes"] >= 2 * SIZE
    assert end == begin

    # What is reached in place, and what is copied through slots.
    del large
    shared, private = comm.empty(SIZE // 4).torch(), torch.zeros(SIZE // 4)
    calls = {
        "in the heap": lambda: dist.all_reduce(shared),
        "private": lambda: dist.all_reduce(private),
    }
    compute, repeats = ranks.product(options), 5 if options.quick else 30
    times = ranks.compare(calls, repeats)
    exposed = ranks.exposed(compute, calls, repeats)
    ranks.table(
        [f"all-reduce of {SIZE} bytes", "us", "exposed us"],
        [(where, 1e6 * took, 1e6 * exposed[where]) for where, took in times.items()],
    )
    ranks.picture(options, ranks.steps(compute, calls))


if __name__ == "__main__":
    os.environ.setdefault("OXCCL_HEAP_BYTES", str(COUNT * SIZE))
    ranks.start(main, ranks.parser(__doc__).parse_args())
