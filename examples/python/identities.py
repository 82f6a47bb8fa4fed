"""All-reduce is reduce and broadcast, and is reduce-scatter and all-gather.

The three have the same result. Their times differ: reduce and broadcast pass everything through one
rank, while reduce-scatter and all-gather are the two halves of a bandwidth-optimal all-reduce.

    python identities.py --ranks 2
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor

import ranks


def all_reduce(tensor: Tensor) -> None:
    dist.all_reduce(tensor)


def reduce_and_broadcast(tensor: Tensor) -> None:
    dist.reduce(tensor, 0)
    dist.broadcast(tensor, 0)


def reduce_scatter_and_all_gather(tensor: Tensor) -> None:
    shard = tensor.new_empty(tensor.numel() // dist.get_world_size())
    dist.reduce_scatter_tensor(shard, tensor)
    dist.all_gather_into_tensor(tensor, shard)


def main(options: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    ways = {
        "all-reduce": all_reduce,
        "reduce + broadcast": reduce_and_broadcast,
        "reduce-scatter + all-gather": reduce_scatter_and_all_gather,
    }
    rows, compute = [], ranks.product(options)
    for length in (256, 4096) if options.quick else (256, 16384, 1 << 20):
        count = length * world
        # Small integers, so that every order of addition gives the same bits.
        own = torch.arange(count, device=options.device) % 1000 + rank
        expected = (own - rank) * world + world * (world - 1) // 2
        for way in ways.values():
            tensor = own.float()
            way(tensor)
            assert torch.equal(tensor, expected.float())

        # Zeros, because the calls are in place and their sums would grow.
        buffer = torch.zeros(count, device=options.device)
        calls = {name: lambda way=way: way(buffer) for name, way in ways.items()}
        repeats = 5 if options.quick else 20
        times = ranks.compare(calls, repeats)
        exposed = ranks.exposed(compute, calls, repeats)
        for name, took in times.items():
            relative = took / times["all-reduce"]
            cells = (1e6 * took, relative, 1e6 * exposed[name])
            rows.append((name, 4 * count, *cells, "equal"))
    ranks.table(["call", "bytes", "us", "of all-reduce", "exposed us", "result"], rows)
    ranks.picture(options, ranks.steps(compute, calls))


if __name__ == "__main__":
    ranks.start(main, ranks.parser(__doc__).parse_args())
