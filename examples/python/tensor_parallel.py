"""Tensor parallelism: communication in chunks around a ring, under the matrix products.

A layer's input rows are gathered, multiplied by the rank's columns, then by its rows of the second
layer, and the partial results reduced and scattered. Either the whole collective comes before or
behind its product, or one chunk travels around the ring while the chunk before is multiplied.

    python tensor_parallel.py --ranks 2 --trace trace.json
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import ranks


def pass_on(send: Tensor, recv: Tensor) -> list[Any]:
    """Begins to send to the next rank of the ring and to receive from the one before."""
    rank, world = dist.get_rank(), dist.get_world_size()
    return dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, send, (rank + 1) % world),
            dist.P2POp(dist.irecv, recv, (rank - 1) % world),
        ]
    )


def collectives(own: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """All-gather, both products, reduce-scatter."""
    rows = own.new_empty(own.size(0) * dist.get_world_size(), own.size(1))
    dist.all_gather_into_tensor(rows, own)
    partial = rows @ first @ second
    result = torch.empty_like(own)
    dist.reduce_scatter_tensor(result, partial)
    return result


def ring(own: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """The same by chunks: each step multiplies one while the next one travels."""
    rank, world = dist.get_rank(), dist.get_world_size()
    hidden: list[Tensor] = [own] * world
    chunk = own
    for step in range(world):
        place, works = (rank - step) % world, []
        if step < world - 1:
            following = torch.empty_like(own)
            works = pass_on(chunk, following)
        hidden[place] = chunk @ first
        for work in works:
            work.wait()
        if works:
            chunk = following

    # The sum for chunk p begins at rank p + 1, and each rank that it passes adds its own part.
    works, total = [], torch.empty_like(own)
    for step in range(world):
        part = hidden[(rank - 1 - step) % world] @ second
        for work in works:
            work.wait()
        total = part if step == 0 else part.add_(total)
        if step < world - 1:
            following = torch.empty_like(own)
            works = pass_on(total, following)
            sent, total = total, following  # `sent` lives until it has been sent.
    return total


def main(options: argparse.Namespace) -> None:
    rank, world, device = dist.get_rank(), dist.get_world_size(), options.device
    rows, width, inner = (8, 32, 64) if options.quick else (256, 512, 1024)
    # All ranks make the same weights, and each keeps its columns of one and rows of the other.
    first = torch.randn(width, inner * world, device=device) / width**0.5
    second = torch.randn(inner * world, width, device=device) / (inner * world) ** 0.5
    inputs = torch.randn(rows * world, width, device=device)
    own, columns = inputs.chunk(world)[rank].clone(), first.chunk(world, 1)[rank].contiguous()
    own_rows = second.chunk(world)[rank].contiguous()

    def compute() -> Tensor:
        return inputs @ columns @ own_rows

    expected = (inputs @ first @ second).chunk(world)[rank]
    torch.testing.assert_close(collectives(own, columns, own_rows), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ring(own, columns, own_rows), expected, rtol=1e-4, atol=1e-4)

    ways = {
        "products alone": compute,
        "collectives and products": lambda: collectives(own, columns, own_rows),
        "ring of chunks": lambda: ring(own, columns, own_rows),
    }
    times = ranks.compare(ways, repeats=5 if options.quick else 20)
    alone = times["products alone"]
    ranks.table(
        ["layer", "ms", "exposed ms"],
        [(way, 1e3 * took, 1e3 * (took - alone)) for way, took in times.items()],
    )
    ranks.picture(options, ways)


if __name__ == "__main__":
    ranks.start(main, ranks.parser(__doc__).parse_args())
