"""The examples run, say what they promise, write their traces, and end when a rank is killed."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples" / "python"
# Those a rank of which is killed: all but what they share. Gloo does not name it.
PROGRAMS = sorted({path.name for path in EXAMPLES.glob("*.py")} - {"ranks.py"})
ARGUMENTS = {"compare_backends.py": "--backends oxccl"}
DEADLINE = 120.0
# Behind each start of a group torch waits for all ranks in its store, till its time-out: a rank
# that is killed just then is named by nobody. Such programs are tried so often.
ATTEMPTS = {"communicators.py": 4, "compare_backends.py": 4}
IN_TORCHS_BARRIER = "_store_based_barrier"
# What torch calls matrix products.
PRODUCTS = ("aten::addmm", "aten::mm", "aten::bmm")

# Arguments, and what their tables say.
SOME = [
    ("coalesced.py", ["launches", "exposed us", "reduce-scatter, coalesced", "under the product"]),
]
MORE = [
    ("data_parallel.py", ["exposed ms", "one by one", "coalesced", "DDP, overlapped"]),
    ("data_parallel.py --backend gloo", ["exposed ms", "DDP, overlapped"]),
    ("distributed_optimizer.py", ["bytes sent", "all-gather, fp8", "exposed us", "last loss"]),
    ("distributed_optimizer.py --backend gloo", ["gloo has no all-gather of torch.float8_e4m3fn"]),
    ("tensor_parallel.py", ["exposed ms", "ring of chunks"]),
    ("pipeline.py", ["exposed ms", "batched", "separate"]),
    ("pipeline.py --ranks 3", ["exposed ms", "batched", "separate"]),
    ("context_parallel.py", ["exposed ms", "ring attention"]),
    ("stragglers.py", ["late, in ms", "exposed ms", "rank 1"]),
    ("communicators.py", ["made once", "made in each iteration", "exposed us"]),
    ("memory_monitor.py", ["largest free", "no free range of that size", "exposed us"]),
    ("compare_backends.py", ["oxccl", "gloo", "all_to_all", "bfloat16", "exposed us"]),
    ("identities.py", ["reduce + broadcast", "reduce-scatter + all-gather", "exposed us"]),
    ("pairs.py", ["links, one direction", "GB/s", "from rank 1", "exposed us"]),
]


def wanted() -> list[tuple[str, list[str]]]:
    if os.environ.get("OXCCL_TEST_ALL") == "1":
        return SOME + MORE
    print("left to make test-all: more of the Python examples", file=sys.__stderr__)
    return SOME


def environment() -> dict[str, str]:
    """Without a launcher's variables, so that an example starts its ranks itself."""
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {**own, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def command(arguments: str) -> list[str]:
    program, *others = arguments.split()
    return [sys.executable, str(EXAMPLES / program), *others]


@pytest.mark.parametrize(("arguments", "said"), wanted())
def test_an_example_runs(arguments: str, said: list[str], tmp_path: pathlib.Path) -> None:
    trace = tmp_path / "trace.json"
    ended = subprocess.run(
        [*command(arguments), "--quick", "--trace", str(trace)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    for text in said:
        assert text in ended.stdout, ended.stdout
    world = 3 if "--ranks 3" in arguments else 2
    events = json.loads(trace.read_text())["traceEvents"]
    communication = [event for event in events if event.get("cat") == "communication"]
    compute = [event for event in events if event.get("name") in PRODUCTS]
    for what in (communication, compute):
        assert len({event["pid"] for event in what}) == world, arguments
    backend = "gloo" if "gloo" in arguments else "oxccl"
    assert {event["name"].split(":")[0] for event in communication} >= {backend}


def children(parent: int) -> list[int]:
    listed = pathlib.Path(f"/proc/{parent}/task/{parent}/children")
    return [int(child) for child in listed.read_text().split()]


@pytest.mark.skipif(os.environ.get("OXCCL_TEST_ALL") != "1", reason="OXCCL_TEST_ALL=1 runs it")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_killed_rank_ends_the_others(program: str, tmp_path: pathlib.Path) -> None:
    arguments = f"{program} {ARGUMENTS.get(program, '')} --quick --until-killed"
    for _ in range(ATTEMPTS.get(program, 1)):
        said = kill_one(arguments, tmp_path)
        if IN_TORCHS_BARRIER not in said:
            break
    assert "Error: rank 1 died" in said, said
    assert "rank 0 ended with 1; rank 1 ended with -9" in said, said


def kill_one(arguments: str, folder: pathlib.Path) -> str:
    """Kills rank 1 of two; what the processes say. None of them is left."""
    errors, output = folder / "errors", folder / "output"
    with errors.open("w") as err, output.open("w") as out:
        launcher = subprocess.Popen(
            command(arguments),
            env={**environment(), "PYTHONFAULTHANDLER": "1"},
            stdout=out,
            stderr=err,
        )
    try:
        # Rank 0 says when all has been done once, and is being done again.
        deadline = time.monotonic() + DEADLINE
        while "again" not in output.read_text():
            assert launcher.poll() is None, errors.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        ranks = children(launcher.pid)
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        try:
            # The launcher would end the rank itself later than this.
            launcher.wait(20)
        except subprocess.TimeoutExpired:
            # It tells where it is.
            os.kill(ranks[0], signal.SIGABRT)
            launcher.wait(20)
    finally:
        launcher.kill()
        launcher.wait()
    assert launcher.returncode != 0
    for rank in ranks:
        assert not pathlib.Path(f"/proc/{rank}").exists()
    return errors.read_text()
