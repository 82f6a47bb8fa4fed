"""Which rank keeps the others waiting: lateness at a barrier, as a table, the latest first.

The last rank is slowed by 20 ms a step. oxccl's monitored barrier tells every rank how much later
than the first each has come. For other backends each rank measures how long it waits in a barrier:
who waits least came last.

    python stragglers.py --ranks 3
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

import ranks

SLOW_SECONDS = 0.02


def lateness() -> list[float]:
    """Seconds by which each rank comes later than the first."""
    comm = ranks.communicator()
    if comm:
        return comm.monitored_barrier(30.0)
    began = time.perf_counter()
    dist.barrier()
    waited: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(waited, time.perf_counter() - began)
    return [max(waited) - own for own in waited]


def main(options: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    if world < 2:
        sys.exit("with one rank there is none to wait for: take --ranks 2 or more")
    slow = world - 1
    gradient = torch.empty(1000, device=options.device)
    weights = torch.randn(128, 128, device=options.device)
    lateness()
    steps: list[list[float]] = []
    computed, took = [], []

    def step() -> None:
        began = time.perf_counter()
        (weights @ weights).sum().item()
        if rank == slow:
            time.sleep(SLOW_SECONDS)
        computed.append(time.perf_counter() - began)
        # The barrier is where the step waits; the all-reduce behind it finds all ranks there.
        steps.append(lateness())
        dist.all_reduce(gradient.fill_(1))
        took.append(time.perf_counter() - began)
        assert (gradient == world).all()

    for _ in range(10 if options.quick else 50):
        step()
    own: list[Any] = [None] * world
    dist.all_gather_object(own, (statistics.median(computed), statistics.median(took)))
    ranks.table(
        ["step", "compute ms", "ms", "exposed ms"],
        [
            (f"rank {each}", 1e3 * compute, 1e3 * whole, 1e3 * (whole - compute))
            for each, (compute, whole) in enumerate(own)
        ],
    )

    rows = []
    for each in range(world):
        late = [1e3 * lates[each] for lates in steps]
        last = sum(lates[each] == max(lates) for lates in steps)
        rows.append((f"rank {each}", statistics.median(late), min(late), max(late), last))
    rows.sort(key=lambda row: -row[1])
    ranks.table(["late, in ms", "median", "least", "most", "times last"], rows)
    assert rows[0][0] == f"rank {slow}", rows
    assert rows[0][1] > 0.5e3 * SLOW_SECONDS, rows
    ranks.picture(options, {"a step": step})


if __name__ == "__main__":
    ranks.start(main, ranks.parser(__doc__).parse_args())
