"""The examples run, and say what they promise."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples" / "python"
DEADLINE = 120.0

# Arguments, and what their tables say.
SOME = [
    ("coalesced.py", ["launches", "reduce-scatter, coalesced", "all-gather, coalesced"]),
]
MORE = [
    ("data_parallel.py", ["exposed ms", "one by one", "coalesced", "DDP, overlapped"]),
    ("data_parallel.py --backend gloo", ["exposed ms", "DDP, overlapped"]),
    ("distributed_optimizer.py", ["bytes sent", "all-gather, fp8", "last loss"]),
    ("distributed_optimizer.py --backend gloo", ["gloo has no all-gather of torch.float8_e4m3fn"]),
    ("tensor_parallel.py", ["exposed ms", "ring of chunks"]),
    ("pipeline.py", ["exposed ms", "batched", "separate"]),
    ("pipeline.py --ranks 3", ["exposed ms", "batched", "separate"]),
    ("context_parallel.py", ["exposed ms", "ring attention"]),
    ("stragglers.py", ["late, in ms", "rank 1"]),
    ("communicators.py", ["made once", "made in each iteration"]),
    ("memory_monitor.py", ["largest free", "no free range of that size"]),
    ("compare_backends.py", ["oxccl", "gloo", "all_to_all", "bfloat16"]),
    ("identities.py", ["reduce + broadcast", "reduce-scatter + all-gather"]),
    ("pairs.py", ["GB/s", "from rank 1"]),
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
    is_traced = arguments == "data_parallel.py"
    more = ["--quick", *(["--trace", str(trace)] if is_traced else [])]
    ended = subprocess.run(
        command(arguments) + more,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    for text in said:
        assert text in ended.stdout, ended.stdout
    if is_traced:
        events = json.loads(trace.read_text())["traceEvents"]
        for name in ("oxccl:all_reduce", "oxccl:all_reduce_coalesced", "aten::addmm"):
            processes = {event["pid"] for event in events if event.get("name") == name}
            assert len(processes) == 2, name


def children(parent: int) -> list[int]:
    listed = pathlib.Path(f"/proc/{parent}/task/{parent}/children")
    return [int(child) for child in listed.read_text().split()]


@pytest.mark.skipif(os.environ.get("OXCCL_TEST_ALL") != "1", reason="OXCCL_TEST_ALL=1 runs it")
def test_a_killed_rank_ends_the_others(tmp_path: pathlib.Path) -> None:
    errors = tmp_path / "errors"
    with errors.open("w") as file:
        launcher = subprocess.Popen(
            command("data_parallel.py --quick --steps 100000"),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    try:
        assert launcher.stdout is not None
        # Rank 0 says when training has begun.
        assert launcher.stdout.readline().startswith("training")
        ranks = children(launcher.pid)
        assert len(ranks) == 2
        time.sleep(0.5)
        assert launcher.poll() is None
        os.kill(ranks[1], signal.SIGKILL)
        began = time.monotonic()
        launcher.communicate(timeout=60)
        # The launcher would end the rank itself later than this.
        assert time.monotonic() - began < 20
    finally:
        launcher.kill()
    said = errors.read_text()
    assert launcher.returncode != 0
    assert "Error: rank 1 died" in said, said
    assert "rank 0 ended with 1; rank 1 ended with -9" in said, said
    for rank in ranks:
        assert not pathlib.Path(f"/proc/{rank}").exists()
