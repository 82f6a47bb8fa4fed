"""Backends side by side: operations, types and sizes, as a table and, with matplotlib, a plot.

All backends run in the same processes and take turns, so that they meet the same machine. What one
cannot do is told in its column.

    python compare_backends.py --ranks 2 --backends oxccl,gloo --plot times.png
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import ranks

Call = Callable[[Tensor, Tensor, Any], Any]
# The tensors of a call: of all ranks' parts, and of one part.
OPERATIONS: dict[str, Call] = {
    "all_reduce": lambda whole, part, group: dist.all_reduce(whole, group=group),
    "broadcast": lambda whole, part, group: dist.broadcast(whole, 0, group=group),
    "all_gather": lambda whole, part, group: dist.all_gather_into_tensor(whole, part, group),
    "reduce_scatter": lambda whole, part, group: dist.reduce_scatter_tensor(
        part, whole, group=group
    ),
    "all_to_all": lambda whole, part, group: dist.all_to_all_single(
        torch.empty_like(whole), whole, group=group
    ),
}
TYPES = (torch.float32, torch.bfloat16, torch.int32)


def plot(path: str, rows: list[tuple[str, str, int, dict[str, float]]]) -> None:
    try:
        from matplotlib import pyplot
    except ImportError:
        ranks.say("no plot: matplotlib is not installed")
        return
    if dist.get_rank() != 0:
        return
    figure, axes = pyplot.subplots(1, len(OPERATIONS), figsize=(4 * len(OPERATIONS), 4))
    for axis, operation in zip(axes, OPERATIONS, strict=True):
        mine = [row for row in rows if row[:2] == (operation, "float32")]
        for backend in mine[0][3] if mine else ():
            points = [(size, took[backend]) for _, _, size, took in mine if backend in took]
            axis.loglog(*zip(*points, strict=True), marker="o", label=backend)
        axis.set(title=operation, xlabel="bytes", ylabel="us")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path)
    print(f"plot: {path}", flush=True)


def main(options: argparse.Namespace) -> None:
    world = dist.get_world_size()
    names = options.backends.split(",")
    devices = {name: ranks.device(name) for name in names}
    groups = {name: dist.new_group(backend=name) for name in names}
    sizes = (1 << 10, 1 << 14) if options.quick else (1 << 10, 1 << 14, 1 << 18, 1 << 22)
    repeats = 3 if options.quick else 15
    rows: list[tuple[str, str, int, dict[str, float]]] = []
    cells = []
    for operation, call in OPERATIONS.items():
        for kind in TYPES:
            for size in sizes:
                count = max(1, size // kind.itemsize // world) * world
                times: dict[str, list[float]] = {}
                results, refused = [], {}
                for name in names:
                    # Small integers, whose sums every type holds exactly.
                    whole = torch.arange(count, device=devices[name]) % 5 + dist.get_rank()
                    part = torch.zeros(count // world, device=devices[name], dtype=kind)
                    whole = whole.to(kind)
                    try:
                        call(whole, part, groups[name])
                        results.append((whole.cpu(), part.cpu()))
                        times[name] = []
                    except (RuntimeError, ValueError) as error:
                        if not ranks.is_refused(error):
                            raise
                        refused[name] = str(error).splitlines()[0][:30]
                for whole, part in results[1:]:
                    assert torch.equal(whole, results[0][0]) and torch.equal(part, results[0][1])
                for _ in range(repeats):
                    for name, took in times.items():
                        whole = torch.zeros(count, device=devices[name], dtype=kind)
                        part = torch.zeros(count // world, device=devices[name], dtype=kind)
                        took.append(ranks.seconds(lambda: call(whole, part, groups[name])))
                medians = {n: 1e6 * ranks.slowest(statistics.median(t)) for n, t in times.items()}
                rows.append((operation, str(kind)[6:], size, medians))
                shown = [medians.get(name, refused.get(name)) for name in names]
                cells.append((operation, str(kind)[6:], size, *shown))
    ranks.table(["us", "type", "bytes", *names], cells)
    assert any(medians for _, _, _, medians in rows)

    compute = ranks.product(options)
    whole = torch.zeros(sizes[-1] // 4, device=options.device)
    # Of backends whose tensors are where the default one's are.
    calls = {
        name: lambda group=group: dist.all_reduce(whole, group=group)
        for name, group in groups.items()
        if devices[name] == options.device
    }
    exposed = ranks.exposed(compute, calls, repeats)
    ranks.table(
        [f"all_reduce of {whole.nbytes} bytes behind a product", "exposed us"],
        [(name, 1e6 * seconds) for name, seconds in exposed.items()],
    )
    ranks.picture(options, ranks.steps(compute, calls))
    if options.plot:
        plot(options.plot, rows)


if __name__ == "__main__":
    parser = ranks.parser(__doc__)
    parser.add_argument("--backends", default="oxccl,gloo", help="separated by commas")
    parser.add_argument("--plot", metavar="FILE", help="write a picture, where matplotlib is")
    ranks.start(main, parser.parse_args())
