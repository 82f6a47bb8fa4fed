"""Schedules written in Python: proven, predicted and run."""

import pathlib

import numpy as np
import pytest

import oxccl
from oxccl.schedule import Chunk, Program
from ranks import threads

ROOT = pathlib.Path(__file__).parents[3]


def ring_all_gather(ranks: int, chunks: int = 1, **options: object) -> Program:
    program = Program("all_gather", ranks, chunks=chunks, name="ring", **options)
    for rank in range(ranks):
        for part in range(chunks):
            place = rank * chunks + part
            chunk = program.chunk(rank, "input", part)
            if not program.in_place:
                chunk = chunk.copy(rank, "output", place)
            for step in range(1, ranks):
                chunk = chunk.copy((rank + step) % ranks, "output", place)
    return program


def ring_all_reduce(ranks: int, **options: object) -> Program:
    """In place: each chunk goes round twice, reduced the first time."""
    program = Program("all_reduce", ranks, chunks=ranks, in_place=True, **options)
    for at in range(ranks):
        chunk = program.chunk(at, "input", at)
        for step in range(1, ranks):
            chunk = program.chunk((at + step) % ranks, "input", at).reduce(chunk)
        for step in range(ranks, 2 * ranks - 1):
            chunk = chunk.copy((at + step) % ranks, "input", at)
    return program


def direct_all_to_all(ranks: int) -> Program:
    program = Program("alltoall", ranks)
    for rank in range(ranks):
        for to in range(ranks):
            program.chunk(rank, "input", to).copy(to, "output", rank)
    return program


def gathered_reduce(ranks: int) -> Program:
    """All send to rank 0's scratch, which reduces and sends the result back."""
    program = Program("all_reduce", ranks)
    total: Chunk = program.chunk(0, "input").copy(0, "output")
    for rank in range(1, ranks):
        part = program.chunk(rank, "input").copy(0, "scratch", rank - 1)
        total = total.reduce(part)
    for rank in range(1, ranks):
        total.copy(rank, "output")
    return program


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_programs_are_proven(ranks: int) -> None:
    for chunks in (1, 3):
        for in_place in (False, True):
            ring_all_gather(ranks, chunks, in_place=in_place).schedule()
    ring_all_reduce(ranks).schedule()
    direct_all_to_all(ranks).schedule()
    gathered_reduce(ranks).schedule()


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_programs_run(protocol: str) -> None:
    count = 1003 * 4
    rng = np.random.default_rng(5)
    given = [rng.integers(-99, 99, count).astype("float32") for _ in range(4)]

    def reduce(comm: oxccl.Communicator) -> None:
        own = given[comm.rank].copy()
        comm.all_reduce(own)
        np.testing.assert_array_equal(own, sum(given))

    def gather(comm: oxccl.Communicator) -> None:
        output = np.full(4 * count, np.nan, "float32")
        comm.all_gather(given[comm.rank], output)
        np.testing.assert_array_equal(output, np.concatenate(given))

    def exchange(comm: oxccl.Communicator) -> None:
        output = np.full(count, np.nan, "float32")
        comm.all_to_all(given[comm.rank], output)
        part = slice(comm.rank * 1003, comm.rank * 1003 + 1003)
        np.testing.assert_array_equal(output, np.concatenate([one[part] for one in given]))

    for program, run in [
        (ring_all_reduce(4, protocol=protocol), reduce),
        (ring_all_gather(4, 2, in_place=True, protocol=protocol), gather),
    ]:
        threads(4, run, schedule=program.schedule())
    if protocol == "Simple":
        threads(4, exchange, schedule=direct_all_to_all(4).schedule())


def test_what_is_wrong_is_told() -> None:
    program = Program("all_gather", 2)
    program.chunk(0).copy(1, "output", 0)
    with pytest.raises(oxccl.UsageError, match="rank 0"):
        program.schedule()
    program = Program("all_reduce", 2)
    first = program.chunk(0)
    stale = program.chunk(1, "output")
    first.copy(1, "output")
    with pytest.raises(oxccl.UsageError, match="has been written since"):
        stale.copy(0)
    for wrong, text in [
        (lambda: program.chunk(2), "rank 2 is not in 0 to 1"),
        (lambda: program.chunk(0, "inbox"), "no buffer"),
        (lambda: program.chunk(0, "input", 1), "chunk 1 of input"),
        (lambda: Program("all_reduce", 0), "0 ranks"),
        (lambda: program.chunk(0).reduce(Program("all_reduce", 2).chunk(1)), "another program"),
        (lambda: oxccl.Schedule("{}"), "missing field"),
        (lambda: oxccl.Schedule("<algo/>", "mine"), "mine: line 1"),
        (lambda: oxccl.Schedule.read("/no/file"), "/no/file"),
        (lambda: Program("custom", 2).schedule(), "does not say what its result"),
    ]:
        with pytest.raises(oxccl.UsageError, match=text):
            wrong()
    with pytest.raises(oxccl.UsageError, match="is no schedule"):
        oxccl.Communicator.local(1, pin=ring_all_gather(1).schedule())
    schedule = ring_all_gather(2).schedule()
    with pytest.raises(oxccl.UsageError, match="there is no rank 2"):
        schedule.steps(2)
    with pytest.raises(oxccl.UsageError):
        schedule.simulate("abacus", [8])


def test_schedules_are_predicted_and_written(tmp_path: pathlib.Path) -> None:
    schedule = ring_all_reduce(8).schedule()
    small, large = schedule.simulate("dgx-h100", [1 << 20, 1 << 30], channels=8)
    assert 0 < small < large < 1
    assert len(schedule.steps(0)) > 20 and "wait" in schedule.steps(0)[0]
    file = tmp_path / "ring.json"
    file.write_text(schedule.json())
    again = oxccl.Schedule.read(file)
    assert again.steps(3) == schedule.steps(3) and again.world_size == 8 and again.in_place
    assert again.collective == "all_reduce" and "proven" in repr(again)
    example = oxccl.Schedule.read(ROOT / "examples/custom_schedule.json")
    assert example.world_size == 4
