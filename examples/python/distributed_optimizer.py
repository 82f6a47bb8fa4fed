"""A distributed optimizer: each rank keeps and updates a shard of the parameters.

A step reduces and scatters bf16 gradients, updates the rank's own fp32 shard by Adam, and gathers
all parameters as fp8 with one scale a shard. The other way is an all-reduce of fp32 gradients and
an update of everything on each rank. Both train the same model, and their losses are compared.

    python distributed_optimizer.py --ranks 2
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import ranks

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max


def gather(shard: Tensor, whole: Tensor, name: str, said: set[str]) -> None:
    """All-gather; where the backend cannot do it in this type, as bytes, and it is said once."""
    if name not in said:
        try:
            dist.all_gather_into_tensor(whole, shard)
            return
        except (RuntimeError, ValueError) as error:
            if not ranks.is_refused(error):
                raise
            ranks.say(f"{name} has no all-gather of {shard.dtype} ({str(error).splitlines()[0]}):")
            ranks.say("its bytes are gathered")
            said.add(name)
    dist.all_gather_into_tensor(whole.view(torch.uint8), shard.view(torch.uint8))


class Clock:
    """Times of a step's parts."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def __call__(self, part: str, call: Callable[[], Any]) -> None:
        began = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.setdefault(part, []).append(time.perf_counter() - began)


def main(options: argparse.Namespace) -> None:
    rank, world, device = dist.get_rank(), dist.get_world_size(), options.device
    width, steps = (32, 20) if options.quick else (512, 40)
    width = -(-width // world) * world
    count = width * width
    # A linear model is fitted to another one: parameters, shards and gradients are flat.
    begin = torch.randn(count, device=device) / width**0.5
    wanted = torch.randn(width, width, device=device) / width**0.5
    full = begin.clone().requires_grad_()
    model = begin.clone().requires_grad_()
    shard = begin.chunk(world)[rank].clone().requires_grad_()
    adam = torch.optim.Adam([shard], lr=0.01, fused=device.type == "cuda")
    full_adam = torch.optim.Adam([full], lr=0.01, fused=device.type == "cuda")
    shard.grad = torch.empty_like(shard)

    received = torch.empty(count // world, dtype=torch.bfloat16, device=device)
    gathered = torch.empty(count, dtype=FP8, device=device)
    scales = torch.empty(world, device=device)
    said: set[str] = set()
    clock = Clock()

    def backward(parameters: Tensor, inputs: Tensor) -> float:
        parameters.grad = None
        outputs = inputs @ parameters.view(width, width)
        loss = (outputs - inputs @ wanted).square().mean()
        loss.backward()
        return loss.item()

    def sharded_step() -> None:
        assert model.grad is not None
        gradient = model.grad.bfloat16() / world
        clock("reduce-scatter, bf16", lambda: dist.reduce_scatter_tensor(received, gradient))
        shard.grad.copy_(received)
        clock("update of a shard", adam.step)
        scale = shard.detach().abs().max() / FP8_MAX
        small = (shard.detach() / scale).to(FP8)
        clock("all-gather, fp8", lambda: gather(small, gathered, options.backend, said))
        dist.all_gather_into_tensor(scales, scale.view(1))
        parts = gathered.float().view(world, -1) * scales.view(world, 1)
        model.data.copy_(parts.view(-1))

    def full_step() -> None:
        assert full.grad is not None
        clock("all-reduce, fp32", lambda: dist.all_reduce(full.grad))
        full.grad /= world
        clock("update of all", full_adam.step)

    losses = []
    torch.manual_seed(1 + rank)
    for step in range(steps):
        inputs = torch.randn(64, width, device=device)
        losses.append((backward(full, inputs), backward(model, inputs)))
        for way in (sharded_step, full_step) if step % 2 else (full_step, sharded_step):
            dist.barrier()
            way()
    part = count * (world - 1) // world
    rows = [
        ("on every rank", "all-reduce, fp32", 2 * 4 * part),
        ("on every rank", "update of all", None),
        ("distributed", "reduce-scatter, bf16", 2 * part),
        ("distributed", "update of a shard", None),
        ("distributed", "all-gather, fp8", part),
    ]
    medians = {part: statistics.median(took[2:]) for part, took in clock.seconds.items()}
    ranks.table(
        ["optimizer", "part of a step", "us", "bytes sent"],
        [(way, part, 1e6 * ranks.slowest(medians[part]), sent) for way, part, sent in rows],
    )
    # Its calls block, so nothing hides them.
    exposed = {way: 0.0 for way, _, _ in rows}
    for way, name, sent in rows:
        exposed[way] += medians[name] if sent is not None else 0.0
    ranks.table(
        ["optimizer", "exposed us/step"],
        [(way, 1e6 * ranks.slowest(seconds)) for way, seconds in exposed.items()],
    )
    (first, _), (last, last_sharded) = losses[0], losses[-1]
    ranks.table(
        ["optimizer", "first loss", "last loss"],
        [("on every rank", first, last), ("distributed", first, last_sharded)],
    )

    inputs = torch.randn(64, width, device=device)

    def picture_of(parameters: Tensor, step: Callable[[], None]) -> Callable[[], None]:
        def whole() -> None:
            backward(parameters, inputs)
            step()

        return whole

    ways = {
        "on every rank": picture_of(full, full_step),
        "distributed": picture_of(model, sharded_step),
    }
    ranks.picture(options, ways)

    # The ranks have the same model: fp8 of the shards, which keeps 4 bits of each number.
    assert last < first / 2 and last_sharded < first / 2, losses
    copies = torch.empty(world * count, device=device)
    dist.all_gather_into_tensor(copies, model.detach())
    assert all(torch.equal(copy, model.detach()) for copy in copies.chunk(world))
    exact = torch.empty(count, device=device)
    dist.all_gather_into_tensor(exact, shard.detach())
    floor = exact.abs().max().item() / FP8_MAX / 512
    torch.testing.assert_close(model.detach(), exact, rtol=2**-4, atol=floor)


if __name__ == "__main__":
    ranks.start(main, ranks.parser(__doc__).parse_args())
