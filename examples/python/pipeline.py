"""Pipeline parallelism: the 1F1B schedule, with batched sends and receives and with separate ones.

Each rank has one stage. After a warm-up it does a forward and a backward pass by turns, so what it
sends in one direction goes with what it receives from the other: one batch, or two messages that
are made one by one. Exposed is what a step takes beyond the stage's own compute: messages, and the
pipeline's start and end, when stages have nothing to do.

    python pipeline.py --ranks 2 --trace trace.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks

# Sends and receives (a tensor and a peer each), and returns when all that is received has come.
Message = tuple[Tensor, int]
Exchange = Callable[[list[Message], list[Message]], None]


def batched(sends: list[Message], recvs: list[Message]) -> None:
    parts = [dist.P2POp(dist.isend, tensor, peer) for tensor, peer in sends]
    parts += [dist.P2POp(dist.irecv, tensor, peer) for tensor, peer in recvs]
    for work in dist.batch_isend_irecv(parts) if parts else []:
        work.wait()


class Separate:
    """Messages one by one. A send need not have ended when the next pass begins."""

    def __init__(self) -> None:
        self.under_way: list[tuple[Any, Tensor]] = []

    def __call__(self, sends: list[Message], recvs: list[Message]) -> None:
        self.under_way += [(dist.isend(tensor, peer), tensor) for tensor, peer in sends]
        for work in [dist.irecv(tensor, peer) for tensor, peer in recvs]:
            work.wait()

    def finish(self) -> None:
        for work, _ in self.under_way:
            work.wait()
        self.under_way.clear()


class Stage:
    def __init__(self, model: nn.Module, inputs: list[Tensor], wanted: list[Tensor]) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model, self.inputs, self.wanted = model, inputs, wanted
        self.is_first, self.is_last = self.rank == 0, self.rank == self.world - 1

    def forward(self, micro: int, received: Tensor) -> tuple[Tensor, Tensor]:
        source = self.inputs[micro] if self.is_first else received.requires_grad_()
        output = self.model(source)
        if self.is_last:
            output = nn.functional.mse_loss(output, self.wanted[micro]) / len(self.inputs)
        return source, output

    def step(self, exchange: Exchange) -> None:
        """One batch: forward and backward passes of all microbatches."""
        self.model.zero_grad()
        count = len(self.inputs)
        ahead = min(self.world - 1 - self.rank, count)
        open_passes: list[tuple[Tensor, Tensor]] = []

        def trade(output: Tensor | None, gradient: Tensor | None, *, more: bool, back: bool) -> Any:
            """Sends what there is, and receives the next input (`more`) or gradient (`back`)."""
            sends, recvs = [], []
            got, got_back = (torch.empty_like(self.inputs[0]) for _ in range(2))
            if output is not None and not self.is_last:
                sends.append((output.detach(), self.rank + 1))
            if gradient is not None and not self.is_first:
                sends.append((gradient, self.rank - 1))
            if more and not self.is_first:
                recvs.append((got, self.rank - 1))
            if back and not self.is_last:
                recvs.append((got_back, self.rank + 1))
            exchange(sends, recvs)
            return got_back if back else got

        def backward(gradient: Tensor) -> Tensor | None:
            source, output = open_passes.pop(0)
            output.backward(None if self.is_last else gradient)
            return source.grad

        for micro in range(ahead):
            received = trade(None, None, more=True, back=False)
            open_passes.append(self.forward(micro, received))
            trade(open_passes[-1][1], None, more=False, back=False)
        if ahead < count:
            received = trade(None, None, more=True, back=False)
        for micro in range(ahead, count):
            open_passes.append(self.forward(micro, received))
            gradient = trade(open_passes[-1][1], None, more=False, back=True)
            own = backward(gradient)
            received = trade(None, own, more=micro + 1 < count, back=False)
        for _ in range(ahead):
            gradient = trade(None, None, more=False, back=True)
            trade(None, backward(gradient), more=False, back=False)

    def compute(self) -> None:
        """The same passes with nothing sent or received."""
        for micro in range(len(self.inputs)):
            source, output = self.forward(micro, torch.ones_like(self.inputs[0]))
            output.backward(None if self.is_last else torch.ones_like(output))


def main(options: argparse.Namespace) -> None:
    world, device = dist.get_world_size(), options.device
    width, rows, count = (16, 4, 4) if options.quick else (512, 64, 8)
    whole = nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(world))
    ).to(device)
    inputs = [torch.randn(rows, width, device=device) for _ in range(count)]
    wanted = [tensor.cos() for tensor in inputs]
    for source, goal in zip(inputs, wanted, strict=True):
        (nn.functional.mse_loss(whole(source), goal) / count).backward()
    expected = [p.grad.clone() for p in whole[dist.get_rank()].parameters()]
    stage = Stage(whole[dist.get_rank()], inputs, wanted)
    separate = Separate()

    def separately() -> None:
        stage.step(separate)
        separate.finish()

    ways = {"batched": lambda: stage.step(batched), "separate": separately}
    for step in ways.values():
        step()
        for parameter, gradient in zip(stage.model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
    times = ranks.compare({"compute": stage.compute, **ways}, repeats=3 if options.quick else 15)
    ranks.table(
        ["1F1B", "stages", "microbatches", "ms/step", "exposed ms"],
        [
            (way, world, count, 1e3 * times[way], 1e3 * (times[way] - times["compute"]))
            for way in ways
        ],
    )
    ranks.picture(options, ways)


if __name__ == "__main__":
    ranks.start(main, ranks.parser(__doc__).parse_args())
