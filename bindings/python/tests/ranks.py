"""Ranks for tests: as threads of this process, or as processes that run a program's text."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import oxccl

# What ends a hang of a test, not what anything takes.
DEADLINE = 120.0


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


def start(
    world: int, program: str, started: int | None = None, **variables: str
) -> list[subprocess.Popen[str]]:
    """Processes that run the program, with the environment of a launcher: of so many ranks, all of
    them or the first few."""
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
        **variables,
    }
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
    """What each rank has printed; all must end well."""
    ended = finish(start(world, program, **variables))
    for rank, (status, _, err) in enumerate(ended):
        assert status == 0, f"rank {rank} ended with {status}:\n{err[-3000:]}"
    return [out for _, out, _ in ended]
