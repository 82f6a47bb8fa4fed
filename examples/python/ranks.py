"""What the examples share: ranks, devices, clocks, tables and traces.

A program that no launcher has started starts its own ranks, `--ranks` processes of it; under
torchrun, or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, it is one rank.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import functools
import importlib
import json
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

BACKENDS = ("oxccl", "gloo", "nccl")
# When a rank has failed, the others have so many seconds to end by themselves.
GRACE_SECONDS = 30
# Linux's number of the setting that ends a process with the one that started it.
_PR_SET_PDEATHSIG = 1

Main = Callable[[argparse.Namespace], None]


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all examples have."""
    own = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    own.add_argument("--ranks", type=int, default=2, help="processes, where no launcher has any")
    own.add_argument("--backend", choices=BACKENDS, default="oxccl")
    own.add_argument("--quick", action="store_true", help="tiny sizes, few repeats")
    own.add_argument("--trace", metavar="FILE", help="write a trace for ui.perfetto.dev")
    own.add_argument("--until-killed", action="store_true", help="go on and on, for tests")
    return own


def start(main: Main, options: argparse.Namespace) -> None:
    """Runs `main` on this rank, or on ranks that it starts; ends the process unless all is well."""
    if "RANK" in os.environ:
        _run(main, options)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if options.trace:
        # torch's profiler needs it, and its import takes seconds: once for all ranks.
        importlib.import_module("torch._inductor")
    # No thread runs yet and no GPU is in use, so a fork is safe, and spares the import of torch.
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=_be, args=(main, options, rank, port), name=f"rank {rank}")
        for rank in range(options.ranks)
    ]
    for rank in ranks:
        rank.start()
    try:
        deadline: float | None = None
        while running := [rank.sentinel for rank in ranks if rank.is_alive()]:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            wait(running, left)
            if deadline is None and any(rank.exitcode for rank in ranks):
                deadline = time.monotonic() + GRACE_SECONDS
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    failed = [f"{rank.name} ended with {rank.exitcode}" for rank in ranks if rank.exitcode]
    if failed:
        sys.exit("; ".join(failed))


def _be(main: Main, options: argparse.Namespace, rank: int, port: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(options.ranks),
        LOCAL_WORLD_SIZE=str(options.ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    _run(main, options)


def _run(main: Main, options: argparse.Namespace) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    options.device = device(options.backend)
    if options.backend == "oxccl":
        importlib.import_module("oxccl.torch")  # torch 2.14 and newer would do so
    dist.init_process_group(options.backend, timeout=datetime.timedelta(seconds=60))
    while True:
        torch.manual_seed(0)
        main(options)
        if not options.until_killed:
            break
        say("again")
    dist.destroy_process_group()


def device(backend: str) -> torch.device:
    """Where a backend's tensors are; an error where it has none on this machine."""
    if backend != "nccl":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        sys.exit("the backend nccl needs a GPU for each rank, and torch finds none")
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(own)
    return own


def communicator() -> Any:
    """The communicator below the default group, where the backend is oxccl, otherwise None."""
    return getattr(dist.group.WORLD, "communicator", None)


def is_refused(error: Exception) -> bool:
    """Whether a backend cannot do a call, as opposed to a rank that has failed in it."""
    return not getattr(error, "fatal", False)


def launches(call: Callable[[], Any]) -> int | None:
    """How many programs oxccl launches for a call; None for other backends, which do not tell."""
    comm = communicator()
    before = comm.launches if comm else 0
    call()
    return comm.launches - before if comm else None


def seconds(call: Callable[[], Any]) -> float:
    """One call's time, the ranks having started together."""
    dist.barrier()
    _finish_kernels()
    began = time.perf_counter()
    call()
    _finish_kernels()
    return time.perf_counter() - began


def compare(calls: dict[str, Callable[[], Any]], repeats: int, warm: int = 2) -> dict[str, float]:
    """Median seconds of each call on the slowest rank. The calls take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warm + repeats):
        for name, call in calls.items():
            took = seconds(call)
            if turn >= warm:
                times[name].append(took)
    return {name: slowest(statistics.median(own)) for name, own in times.items()}


def product(options: argparse.Namespace) -> Callable[[], Tensor]:
    """Compute that stands for a program's own: a matrix product."""
    side = 64 if options.quick else 384
    weights = torch.randn(side, side, device=options.device)
    return lambda: weights @ weights


def steps(
    compute: Callable[[], Any], calls: dict[str, Callable[[], Any]]
) -> dict[str, Callable[[], Any]]:
    """Steps that compute, and then make a call each."""

    def step(call: Callable[[], Any]) -> None:
        compute()
        call()

    return {name: functools.partial(step, call) for name, call in calls.items()}


def exposed(
    compute: Callable[[], Any], calls: dict[str, Callable[[], Any]], repeats: int
) -> dict[str, float]:
    """Seconds by which each call makes a step longer than its compute alone."""
    times = compare({"": compute, **steps(compute, calls)}, repeats)
    return {name: times[name] - times[""] for name in calls}


def slowest(value: float) -> float:
    """The largest of all ranks' values."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return float(max(values))


def _finish_kernels() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def say(*words: Any) -> None:
    """Prints on rank 0."""
    if dist.get_rank() == 0:
        print(*words, flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints a table on rank 0: the first column to the left, the others to the right."""
    lines = [list(head), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        say("  ".join(cells).rstrip())


def _text(cell: Any) -> str:
    if cell is None:
        return "-"
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def picture(options: argparse.Namespace, ways: dict[str, Callable[[], Any]]) -> None:
    """Writes a trace of each way, once, where one is asked for."""
    with traced(options.trace):
        for name, way in ways.items():
            with torch.profiler.record_function(name):
                way()


@contextlib.contextmanager
def traced(path: str | None) -> Iterator[None]:
    """Profiles its block on all ranks; rank 0 writes one trace of them all, if there is a path.
    What backends do is of the category `communication`."""
    if path is None:
        yield
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        yield
    with tempfile.TemporaryDirectory() as folder:
        own = os.path.join(folder, "own.json")
        profile.export_chrome_trace(own)
        with open(own, encoding="utf-8") as file:
            trace = json.load(file)
    for event in trace["traceEvents"]:
        if event.get("name", "").startswith(tuple(f"{backend}:" for backend in BACKENDS)):
            event["cat"] = "communication"
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, trace["traceEvents"])
    if dist.get_rank() == 0:
        trace["traceEvents"] = [event for part in parts for event in part]
        with open(path, "w", encoding="utf-8") as file:
            json.dump(trace, file)
        print(f"trace of {len(parts)} ranks: {path}", flush=True)
