"""Ranks for tests: as threads of this process, or as processes that run a program's text."""

import atexit
import functools
import importlib.metadata
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import oxccl

# What ends a hang of a test, not what anything takes.
DEADLINE = 120.0


# Of torch: what programs begin with so that it knows the backend differs by it. From 2.14 on, the
# backend's name suffices.
TORCH = tuple(int(part) for part in importlib.metadata.version("torch").split(".")[:2])
IMPORT = "" if TORCH >= (2, 14) else "import oxccl.torch\n"


def threads(world: int, run: Callable[[oxccl.Communicator], Any], **settings: Any) -> list[Any]:
    """What `run` returns on each rank; raises what the first of them raises."""
    results: list[Any] = [None] * world
    raised: list[BaseException] = []

    def one(comm: oxccl.Communicator) -> None:
        try:
            results[comm.rank] = run(comm)
        except BaseException as error:
            raised.append(error)

    ranks = oxccl.Communicator.local(world, **{"timeout": 20, **settings})
    running = [threading.Thread(target=one, args=(comm,)) for comm in ranks]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(DEADLINE)
        assert not thread.is_alive(), "a rank hangs"
    if raised:
        raise raised[0]
    return results


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _hear_ctrl_c() -> None:
    """Whoever runs the tests in the background has them ignore it, and what they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _environment(world: int, variables: dict[str, str]) -> dict[str, str]:
    """What a launcher's ranks have in common."""
    return {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
        **variables,
    }


def start(
    world: int, program: str, started: int | None = None, **variables: str
) -> list[subprocess.Popen[str]]:
    """Processes that run the program, with the environment of a launcher: of so many ranks, all of
    them or the first few."""
    shared = _environment(world, variables)
    program = textwrap.dedent(program)
    return [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", program],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_hear_ctrl_c,
        )
        for rank in range(world if started is None else started)
    ]


def finish(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Status, output and errors of each."""
    ended = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=DEADLINE)
            ended.append((process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
    return ended


def run(world: int, program: str, **variables: str) -> list[str]:
    """What each rank has printed; all must end well. Programs with torch get it imported."""
    if "torch" in program and not any(name.startswith("LD_") for name in variables):
        ended = forked(world, program, **variables)
    else:
        ended = finish(start(world, program, **variables))
    for rank, (status, _, err) in enumerate(ended):
        assert status == 0, f"rank {rank} ended with {status}:\n{err[-3000:]}"
    return [out for _, out, _ in ended]


@functools.cache
def _preloaded() -> subprocess.Popen[str]:
    """The process that forks ranks, as long as the tests run."""
    program = pathlib.Path(__file__).with_name("preloaded.py")
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(program)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.kill)
    return process


def forked(world: int, program: str, **variables: str) -> list[tuple[int, str, str]]:
    """As `start` and `finish`, with torch imported and no input."""
    process = _preloaded()
    assert process.stdin is not None and process.stdout is not None
    shared = _environment(world, variables)
    with tempfile.TemporaryDirectory() as folder:
        files = [(f"{folder}/{rank}.out", f"{folder}/{rank}.err") for rank in range(world)]
        ranks = [
            ({**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, *files[rank])
            for rank in range(world)
        ]
        request = {"program": textwrap.dedent(program), "ranks": ranks}
        print(json.dumps(request), file=process.stdin, flush=True)
        numbers = json.loads(process.stdout.readline())

        def end() -> None:
            for number in numbers:
                os.kill(number, signal.SIGKILL)

        late = threading.Timer(DEADLINE, end)
        late.start()
        statuses = json.loads(process.stdout.readline())
        late.cancel()
        texts = [[pathlib.Path(file).read_text() for file in pair] for pair in files]
    return [(status, *text) for status, text in zip(statuses, texts, strict=True)]
