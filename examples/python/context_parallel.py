"""Context parallelism: attention over a sequence that is spread over the ranks.

Each rank has the queries, keys and values of its part of the sequence. In ring attention the blocks
of keys and values travel around the ring, and each rank merges the block that it has while the next
one comes. The other way gathers all keys and values first. Both equal attention on one process.

    python context_parallel.py --ranks 2 --trace trace.json
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import ranks


class Softmax:
    """Attention whose blocks of keys come one after the other."""

    def __init__(self, queries: Tensor) -> None:
        self.queries = queries * queries.size(-1) ** -0.5
        self.largest = queries.new_full((*queries.shape[:-1], 1), -torch.inf)
        self.total = torch.zeros_like(self.largest)
        self.sum = torch.zeros_like(queries)

    def add(self, keys: Tensor, values: Tensor) -> None:
        scores = self.queries @ keys.transpose(-1, -2)
        largest = torch.maximum(self.largest, scores.amax(-1, keepdim=True))
        # What has been added so far was relative to a smaller maximum.
        shrink, weights = (self.largest - largest).exp(), (scores - largest).exp()
        self.total = self.total * shrink + weights.sum(-1, keepdim=True)
        self.sum = self.sum * shrink + weights @ values
        self.largest = largest

    def result(self) -> Tensor:
        return self.sum / self.total


def ring(queries: Tensor, block: Tensor) -> Tensor:
    """`block` is this rank's keys and values."""
    rank, world = dist.get_rank(), dist.get_world_size()
    attention = Softmax(queries)
    for step in range(world):
        works, following = [], torch.empty_like(block)
        if step < world - 1:
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, block, (rank + 1) % world),
                    dist.P2POp(dist.irecv, following, (rank - 1) % world),
                ]
            )
        attention.add(*block)
        for work in works:
            work.wait()
        block = following
    return attention.result()


def gathered(queries: Tensor, block: Tensor) -> Tensor:
    world = dist.get_world_size()
    blocks = block.new_empty((world * 2, *block.shape[1:]))
    dist.all_gather_into_tensor(blocks, block)
    return computed(queries, blocks.view(world, *block.shape))


def computed(queries: Tensor, blocks: Tensor) -> Tensor:
    """The same merges with all blocks here."""
    attention = Softmax(queries)
    for block in blocks:
        attention.add(*block)
    return attention.result()


def main(options: argparse.Namespace) -> None:
    rank, world, device = dist.get_rank(), dist.get_world_size(), options.device
    heads, length, width = (2, 16, 8) if options.quick else (8, 512, 64)
    # All ranks make the whole sequence, so that each can compare its part.
    whole = torch.randn(3, heads, world * length, width, device=device)
    queries, keys, values = (part.chunk(world, 1)[rank] for part in whole)
    block = torch.stack((keys, values))
    blocks = torch.stack([part.contiguous() for part in whole[1:].chunk(world, 2)])

    expected = scaled_dot_product_attention(*whole).chunk(world, 1)[rank]
    ways = {
        "compute alone": lambda: computed(queries, blocks),
        "all-gather, then attention": lambda: gathered(queries, block),
        "ring attention": lambda: ring(queries, block),
    }
    for way in ways.values():
        torch.testing.assert_close(way(), expected, rtol=1e-4, atol=1e-5)

    times = ranks.compare(ways, repeats=3 if options.quick else 15)
    alone = times["compute alone"]
    size = block.numel() * block.element_size()
    held = {"ring attention": 2 * size, "all-gather, then attention": world * size}
    ranks.table(
        ["attention", "ms", "exposed ms", "bytes of keys and values"],
        [(way, 1e3 * took, 1e3 * (took - alone), held.get(way)) for way, took in times.items()],
    )
    ranks.picture(options, ways)


if __name__ == "__main__":
    ranks.start(main, ranks.parser(__doc__).parse_args())
