"""A communicator made once against one made in every iteration: what its start costs.

A process group of all ranks is a communicator. To make one, ranks meet and connect, which takes
many times as long as a small all-reduce; so programs make it once and keep it.

    python communicators.py --ranks 2
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist

import ranks


def main(options: argparse.Namespace) -> None:
    world = dist.get_world_size()
    tensor = torch.ones(1000, device=options.device)
    kept = dist.new_group()
    calls = 0

    def call(group: dist.ProcessGroup) -> None:
        nonlocal calls
        tensor.fill_(1)
        dist.all_reduce(tensor, group=group)
        assert (tensor == world).all()
        calls += 1

    def call_once_more() -> None:
        call(kept)

    def call_a_new_one() -> None:
        group = dist.new_group()
        call(group)
        dist.destroy_process_group(group)

    repeats = 3 if options.quick else 20
    ways = {"made once": call_once_more, "made in each iteration": call_a_new_one}
    times = ranks.compare(ways, repeats)
    assert calls == 2 * (repeats + 2)
    once, compute = times["made once"], ranks.product(options)
    exposed = ranks.exposed(compute, ways, repeats)
    ranks.table(
        ["communicator", "us an iteration", "times as long", "exposed us"],
        [(way, 1e6 * took, took / once, 1e6 * exposed[way]) for way, took in times.items()],
    )
    ranks.picture(options, ranks.steps(compute, ways))
    assert times["made in each iteration"] > once


if __name__ == "__main__":
    ranks.start(main, ranks.parser(__doc__).parse_args())
