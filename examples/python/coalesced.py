"""Many buckets in one call: how a distributed optimizer moves gradients and parameters.

It reduces and scatters the gradients of each bucket, and gathers the parameters again. One by one
that is a call for each bucket; coalesced it is one for all, which oxccl carries out as one launch.
Exposed is what a step takes beyond a matrix product; the last way waits behind the product.

    python coalesced.py --ranks 2
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

import ranks

BUCKETS = 20


def reduce_scatter(shards: list[Tensor], wholes: list[Tensor]) -> None:
    for shard, whole in zip(shards, wholes, strict=True):
        dist.reduce_scatter_tensor(shard, whole)


def reduce_scatter_coalesced(shards: list[Tensor], wholes: list[Tensor]) -> None:
    with dist._coalescing_manager():  # torch's own layers use it, too
        reduce_scatter(shards, wholes)


def all_gather(shards: list[Tensor], wholes: list[Tensor]) -> None:
    for shard, whole in zip(shards, wholes, strict=True):
        dist.all_gather_into_tensor(whole, shard)


def all_gather_coalesced(shards: list[Tensor], wholes: list[Tensor]) -> None:
    with dist._coalescing_manager():
        all_gather(shards, wholes)


def overlapped(
    shards: list[Tensor], wholes: list[Tensor], compute: Callable[[], Tensor]
) -> None:
    with dist._coalescing_manager(async_ops=True) as works:
        reduce_scatter(shards, wholes)
    compute()
    works.wait()


def main(options: argparse.Namespace) -> None:
    rank, world, device = dist.get_rank(), dist.get_world_size(), options.device
    scale = 10 if options.quick else 1000
    # Buckets differ in size, as layers do. Integers, so that sums are exact.
    lengths = [scale * (1 + bucket % 5) for bucket in range(BUCKETS)]
    gradients = [
        torch.arange(world * length, dtype=torch.float32, device=device) % 100 + rank
        for length in lengths
    ]
    shards = [torch.empty(length, device=device) for length in lengths]
    wholes = [torch.empty(world * length, device=device) for length in lengths]

    def check() -> None:
        """Each shard is the sum of all ranks' gradients, and the wholes are all shards."""
        ranks_sum = world * (world - 1) / 2
        for gradient, shard, whole in zip(gradients, shards, wholes, strict=True):
            total = (gradient - rank) * world + ranks_sum
            assert torch.equal(shard, total.chunk(world)[rank])
            assert torch.equal(whole, total)

    calls = {
        "reduce-scatter, one by one": lambda: reduce_scatter(shards, gradients),
        "reduce-scatter, coalesced": lambda: reduce_scatter_coalesced(shards, gradients),
        "all-gather, one by one": lambda: all_gather(shards, wholes),
        "all-gather, coalesced": lambda: all_gather_coalesced(shards, wholes),
    }
    counts = {}
    for way in ("one by one", "coalesced"):
        for tensor in shards + wholes:
            tensor.zero_()
        for name in (f"reduce-scatter, {way}", f"all-gather, {way}"):
            counts[name] = ranks.launches(calls[name])
        check()
    times = ranks.compare(calls, repeats=5 if options.quick else 30)
    check()

    compute = ranks.product(options)
    steps = {
        **ranks.steps(compute, calls),
        "reduce-scatter, under the product": lambda: overlapped(shards, gradients, compute),
    }
    took = ranks.compare({"": compute, **steps}, repeats=5 if options.quick else 30)
    rows = []
    for name in steps:
        call = times.get(name)
        once = times.get(name.replace("coalesced", "one by one"), 0.0)
        cells = (counts.get(name), 1e6 * call, once / call) if call else (None, None, None)
        rows.append((name, BUCKETS, *cells, 1e6 * (took[name] - took[""])))
    ranks.table(["call", "buckets", "launches", "us", "times as fast", "exposed us"], rows)
    ranks.picture(options, steps)
    if ranks.communicator():
        assert counts["reduce-scatter, coalesced"] == counts["all-gather, coalesced"] == 1
        assert counts["reduce-scatter, one by one"] == counts["all-gather, one by one"] == BUCKETS
    else:
        ranks.say(f"{options.backend} does not tell how many launches it makes")


if __name__ == "__main__":
    ranks.start(main, ranks.parser(__doc__).parse_args())
