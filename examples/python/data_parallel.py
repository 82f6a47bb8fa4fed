"""Data-parallel training: three ways to average gradients, and what each leaves exposed.

One by one: after the backward pass, an all-reduce for each parameter. Coalesced: one call for all.
Overlapped: DistributedDataParallel sends a bucket as soon as the backward pass has filled it. The
three end with the same loss; exposed is what a step takes longer than its compute alone.

    python data_parallel.py --ranks 2 --trace trace.json
    python data_parallel.py --backend gloo
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ranks


def one_by_one(gradients: list[Tensor]) -> None:
    for gradient in gradients:
        dist.all_reduce(gradient)


def coalesced(gradients: list[Tensor]) -> None:
    with dist._coalescing_manager():  # torch's own layers use it, too
        for gradient in gradients:
            dist.all_reduce(gradient)


def nothing(_gradients: list[Tensor]) -> None:
    """DDP has averaged them already, or the step is timed without communication."""


class Trainer:
    """A model of its own, and how its gradients are averaged."""

    def __init__(self, model: nn.Module, reduce: Callable[[list[Tensor]], None]) -> None:
        self.model, self.reduce = model, reduce
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        self.loss = torch.zeros(())
        self.seconds: list[float] = []
        self.launches: int | None = None

    def step(self, inputs: Tensor, wanted: Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss = nn.functional.mse_loss(self.model(inputs), wanted)
        self.loss.backward()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.reduce(gradients)
        if self.reduce is not nothing:
            for gradient in gradients:
                gradient /= dist.get_world_size()
        self.optimizer.step()


def main(options: argparse.Namespace) -> None:
    layers, width, rows = (3, 32, 8) if options.quick else (8, 384, 64)
    steps = options.steps or (5 if options.quick else 30)
    sizes = [nn.Linear(width, width) for _ in range(layers)]
    model = nn.Sequential(*(part for linear in sizes for part in (linear, nn.ReLU())))
    model.to(options.device)
    ddp = DistributedDataParallel(copy.deepcopy(model), bucket_cap_mb=width * width * 4 / 2**20)
    trainers = {
        "compute alone": Trainer(copy.deepcopy(model), nothing),
        "one by one": Trainer(copy.deepcopy(model), one_by_one),
        "coalesced": Trainer(copy.deepcopy(model), coalesced),
        "DDP, overlapped": Trainer(ddp, nothing),
    }

    # Every rank draws its own rows; all trainers of a rank see the same.
    torch.manual_seed(1 + dist.get_rank())

    def batch() -> tuple[Tensor, Tensor]:
        inputs = torch.randn(rows, width, device=options.device)
        return inputs, inputs.sin()

    ranks.say(f"training for {steps} steps, {dist.get_world_size()} ranks, {options.backend}")
    for _ in range(steps):
        inputs, wanted = batch()
        for trainer in trainers.values():
            trainer.seconds.append(ranks.seconds(lambda: trainer.step(inputs, wanted)))
    with ranks.traced(options.trace):
        inputs, wanted = batch()
        for name, trainer in trainers.items():
            with torch.profiler.record_function(name):
                trainer.launches = ranks.launches(lambda: trainer.step(inputs, wanted))

    medians = {name: ranks.slowest(statistics.median(t.seconds)) for name, t in trainers.items()}
    losses = {}
    for name, trainer in trainers.items():
        loss = trainer.loss.detach().clone()
        dist.all_reduce(loss)
        losses[name] = loss.item() / dist.get_world_size()
    alone = medians["compute alone"]
    ranks.table(
        ["gradients", "ms/step", "exposed ms", "launches", "last loss"],
        [
            (name, 1e3 * took, 1e3 * (took - alone), trainers[name].launches, f"{losses[name]:.7f}")
            for name, took in medians.items()
        ],
    )
    together = [loss for name, loss in losses.items() if name != "compute alone"]
    torch.testing.assert_close(together, [together[0]] * 3, rtol=1e-5, atol=1e-7)
    if ranks.communicator():
        assert trainers["coalesced"].launches == 1


if __name__ == "__main__":
    parser = ranks.parser(__doc__)
    parser.add_argument("--steps", type=int, help="training steps of each way")
    ranks.start(main, parser.parse_args())
