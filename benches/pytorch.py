#!/usr/bin/env python3
"""PyTorch's calls over oxccl beside Gloo, and beside a backend that does nothing.

Usage: tools/python benches/pytorch.py [--ranks 2] [--parts small,ddp,fsdp] [--shared-memory]

All backends run in the same processes and take turns. `small` is `dist.all_reduce` of 8 bytes.
`ddp` is a step of DistributedDataParallel over parameters of the shapes of ResNet-50 and of GPT-2
small, with hardly any compute. `fsdp` is all-gather and reduce-scatter of units that FSDP would
make of the two. Times are those of the slowest rank.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import pathlib
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import oxccl.torch

sys.path.insert(0, str(pathlib.Path(__file__).parent / "data"))
from gradients import MODELS  # noqa: E402

BACKENDS = ("oxccl", "gloo")
# What FSDP gathers at once: parameters whose names start so.
UNITS = {
    "ResNet-50, layer 3": ("resnet_50", ("layer3.",)),
    "GPT-2 small, a block": ("gpt2_small", ("h.0.",)),
    "GPT-2 small, the embeddings": ("gpt2_small", ("wte.", "wpe.")),
}
TITLES = {"resnet_50": "ResNet-50", "gpt2_small": "GPT-2 small"}


class Ended(dist.Work):
    def wait(self, timeout: Any = None) -> bool:
        return True


class Nothing(dist.ProcessGroup):
    """A group that torch reaches as it reaches oxccl's, and that does nothing."""

    def __init__(self, options: Any, _backend_options: Any = None) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._ended, self._name = Ended(), ""

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        return self._ended

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    def setGroupDesc(self, _desc: str) -> None:
        pass

    _set_group_desc = setGroupDesc
    group_name = property(lambda self: self._name)
    _device_types: Any = property(lambda self: [])

    def shutdown(self) -> None:
        pass


def turns(calls: dict[str, Callable[[], Any]], rounds: int, repeats: int) -> dict[str, list[float]]:
    """Seconds a call in each round, of the slowest rank; rounds of each by turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            dist.barrier()
            began = time.perf_counter()
            for _ in range(repeats):
                call()
            if number > 0:
                times[name].append((time.perf_counter() - began) / repeats)
    for name, own in times.items():
        all_of: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(all_of, own)
        times[name] = [max(values) for values in zip(*all_of, strict=True)]
    return times


def say(*cells: Any) -> None:
    if dist.get_rank() == 0:
        shown = [f"{cell:,.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
        print("| " + " | ".join(shown) + " |", flush=True)


def head(*cells: str) -> None:
    say()
    say(*cells)
    say("---", *["---:"] * (len(cells) - 1))


def small(groups: dict[str, Any], options: argparse.Namespace) -> None:
    nothing = dist.new_group(backend="nothing")
    tensor = torch.zeros(2)
    calls = {
        name: lambda group=group: dist.all_reduce(tensor, group=group)
        for name, group in {"nothing": nothing, **groups}.items()
    }
    calls.pop("gloo")
    # Short rounds: on a machine that does other things some of them are undisturbed.
    times = turns(calls, 20 * options.rounds, 200)
    times |= turns({"gloo": lambda: dist.all_reduce(tensor, group=groups["gloo"])}, 20, 20)
    head("all-reduce of 8 B", "least us", "median us", "above nothing, least", "median")
    least, median = min(times["nothing"]), statistics.median(times["nothing"])
    for name, own in times.items():
        own_least, own_median = min(own), statistics.median(own)
        cells = (own_least, own_median, own_least - least, own_median - median)
        say(name, *(1e6 * cell for cell in cells))


class Parameters(nn.Module):
    """Parameters of these shapes. The gradient of each is its factor."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.all = nn.ParameterList(torch.zeros(shape) for shape in shapes)

    def forward(self, factor: Tensor) -> Tensor:
        return sum(parameter.sum() * factor for parameter in self.all)


def ddp(groups: dict[str, Any], options: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    factor = torch.tensor(float(rank))
    head("DDP step", "ranks", *(f"{name} ms" for name in groups), "without communication", "times")
    for model in ("resnet_50", "gpt2_small"):
        shapes = [shape for _, shape in MODELS[model][0]()]
        times: dict[str, list[float]] = {name: [] for name in [*groups, "alone"]}
        # One model at a time, because of their memory.
        for name in [*groups, *groups]:
            module = nn.parallel.DistributedDataParallel(
                Parameters(shapes), process_group=groups[name], gradient_as_bucket_view=True
            )

            def step() -> None:
                module.zero_grad(set_to_none=False)
                module(factor).backward()

            def alone() -> None:
                with module.no_sync():
                    step()

            step()
            mean = (world - 1) / 2
            assert all((p.grad == mean).all() for p in module.parameters()), name
            for what, took in turns({name: step, "alone": alone}, options.rounds, 1).items():
                times[what] += took
            del module
        medians = {name: 1e3 * statistics.median(own) for name, own in times.items()}
        say(TITLES[model], world, *medians.values(), medians["gloo"] / medians["oxccl"])


def fsdp(groups: dict[str, Any], options: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    head("unit of FSDP", "MB", "call", *(f"{name} ms" for name in groups), "times")
    for title, (model, prefixes) in UNITS.items():
        shapes = [shape for name, shape in MODELS[model][0]() if name.startswith(prefixes)]
        shard = torch.full((-(-sum(map(torch.Size.numel, map(torch.Size, shapes))) // world),), 1.0)
        whole = torch.ones(world * shard.numel())
        for call in ("all-gather", "reduce-scatter"):

            def make(group: Any, call: str = call) -> Callable[[], Any]:
                if call == "all-gather":
                    return lambda: dist.all_gather_into_tensor(whole, shard, group)
                return lambda: dist.reduce_scatter_tensor(shard, whole, group=group)

            times = turns({name: make(group) for name, group in groups.items()}, options.rounds, 1)
            medians = {name: 1e3 * statistics.median(own) for name, own in times.items()}
            megabytes = f"{whole.nbytes / 1e6:.0f}"
            say(title, megabytes, call, *medians.values(), medians["gloo"] / medians["oxccl"])


def be(rank: int, port: int, options: argparse.Namespace) -> None:
    own = {"RANK": rank, "WORLD_SIZE": options.ranks, "LOCAL_RANK": rank, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in own.items()})
    os.environ.update(LOCAL_WORLD_SIZE=str(options.ranks), MASTER_ADDR="127.0.0.1")
    dist.Backend.register_backend("nothing", Nothing, extended_api=True, devices=["cpu"])
    dist.init_process_group("oxccl", timeout=datetime.timedelta(seconds=300))
    if options.shared_memory:
        oxccl.torch.use_shared_memory()
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    for part in options.parts.split(","):
        {"small": small, "ddp": ddp, "fsdp": fsdp}[part](groups, options)
    dist.destroy_process_group()


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--parts", default="small,ddp,fsdp")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shared-memory", action="store_true", help="tensors in oxccl's heap")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    starts = [(rank, port, options) for rank in range(options.ranks)]
    ranks = [context.Process(target=be, args=start) for start in starts]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(max(abs(rank.exitcode or 0) for rank in ranks))


if __name__ == "__main__":
    main()
