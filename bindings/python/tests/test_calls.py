"""The package's calls against numpy, with fresh random input and poisoned output."""

import ast
import concurrent.futures
import inspect
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

import oxccl
from ranks import finish, run, start, threads

RANDOM = np.random.default_rng()
WORLD = 3


def inputs(count: int, dtype: str = "float32") -> list[np.ndarray]:
    """Small integers, so that sums are exact in any order."""
    return [RANDOM.integers(-8, 8, count).astype(dtype) for _ in range(WORLD)]


def poisoned(count: int, dtype: str = "float32") -> np.ndarray:
    return np.full(count, 77, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int32", "uint64"])
def test_all_reduce(dtype: str) -> None:
    given = [np.abs(one) for one in inputs(1001, dtype)]

    def run(comm: oxccl.Communicator) -> None:
        for op, expected in [("sum", sum(given)), ("max", np.maximum.reduce(given))]:
            output = poisoned(1001, dtype)
            comm.all_reduce(given[comm.rank], output, op)
            np.testing.assert_array_equal(output, expected)
            own = given[comm.rank].copy()
            comm.all_reduce(own, op=op)
            np.testing.assert_array_equal(own, expected)

    threads(WORLD, run)


def test_every_other_collective() -> None:
    given, rows, counts = inputs(60), inputs(20), [5, 0, 15]

    def run(comm: oxccl.Communicator) -> None:
        rank = comm.rank
        output = poisoned(20)
        comm.reduce_scatter(given[rank], output)
        np.testing.assert_array_equal(output, sum(given)[rank * 20 : rank * 20 + 20])

        whole = given[rank].copy()
        comm.reduce_scatter(whole)
        np.testing.assert_array_equal(whole[rank * 20 : rank * 20 + 20], output)

        output = poisoned(counts[rank])
        comm.reduce_scatter(rows[rank], output, counts=counts)
        before = sum(counts[:rank])
        np.testing.assert_array_equal(output, sum(rows)[before : before + counts[rank]])

        output = poisoned(60)
        comm.all_gather(rows[rank], output)
        np.testing.assert_array_equal(output, np.concatenate(rows))
        output = poisoned(60)
        output[rank * 20 : rank * 20 + 20] = rows[rank]
        comm.all_gather(output)
        np.testing.assert_array_equal(output, np.concatenate(rows))

        output = poisoned(20)
        comm.all_gather(rows[rank][: counts[rank]].copy(), output, counts=counts)
        parts = [row[:count] for row, count in zip(rows, counts, strict=True)]
        np.testing.assert_array_equal(output, np.concatenate(parts))

        expected = np.concatenate([one[rank * 20 : rank * 20 + 20] for one in given])
        output = poisoned(60)
        comm.all_to_all(given[rank], output)
        np.testing.assert_array_equal(output, expected)
        own = given[rank].copy()
        comm.all_to_all(own)
        np.testing.assert_array_equal(own, expected)

        # Rank r sends r + 1 elements to each.
        output = poisoned(6)
        own = given[rank][: 3 * (rank + 1)].copy()
        comm.all_to_all(own, output, send_counts=[rank + 1] * 3, recv_counts=[1, 2, 3])
        parts = [one[rank * (r + 1) : (rank + 1) * (r + 1)] for r, one in enumerate(given)]
        np.testing.assert_array_equal(output, np.concatenate(parts))

        for root in range(WORLD):
            own = given[rank].copy()
            comm.broadcast(own, root=root)
            np.testing.assert_array_equal(own, given[root])

            output = poisoned(60)
            comm.reduce(given[rank], output, "max", root)
            expected = np.maximum.reduce(given) if rank == root else poisoned(60)
            np.testing.assert_array_equal(output, expected)

            output = poisoned(60)
            comm.gather(rows[rank], output, root)
            expected = np.concatenate(rows) if rank == root else poisoned(60)
            np.testing.assert_array_equal(output, expected)

            output = poisoned(20)
            comm.scatter(given[root] if rank == root else None, output, root)
            np.testing.assert_array_equal(output, given[root][rank * 20 : rank * 20 + 20])

        if rank == 0:
            comm.send(given[0], 1)
        elif rank == 1:
            output = poisoned(60)
            comm.recv(output, 0)
            np.testing.assert_array_equal(output, given[0])
        comm.barrier()
        comm.close()

    threads(WORLD, run)


def test_a_factor_and_a_promised_order() -> None:
    given = inputs(100)

    def run(comm: oxccl.Communicator) -> None:
        comm.set_order("rank")
        own = given[comm.rank].copy()
        comm.all_reduce(own, factor=0.5)
        np.testing.assert_array_equal(own, sum(given) * np.float32(0.5))

    threads(WORLD, run)


def test_arrays_of_every_kind() -> None:
    def run(comm: oxccl.Communicator) -> None:
        expected = [0.0 + 1.0 + 2.0] * 5
        buffer = comm.empty(5, dtype="float32")
        assert buffer.shape == (5,) and buffer.dtype == "float32" and buffer.nbytes == 20
        buffer.numpy()[:] = comm.rank
        comm.all_reduce(buffer)
        assert buffer.torch().tolist() == expected
        assert np.asarray(buffer).tolist() == expected

        tensor = torch.full((5,), float(comm.rank), dtype=torch.bfloat16)
        comm.all_reduce(tensor)
        assert tensor.tolist() == expected
        shared = comm.empty(5, dtype="bfloat16").torch()
        shared.fill_(comm.rank)
        comm.all_reduce(shared)
        assert shared.tolist() == expected

        class Capsule:
            def __init__(self, tensor: torch.Tensor) -> None:
                self.tensor = tensor

            def __dlpack__(self) -> object:
                return self.tensor.__dlpack__()

        tensor = torch.full((5,), float(comm.rank))
        comm.all_reduce(Capsule(tensor))
        assert tensor.tolist() == expected

        flags = np.zeros(3, dtype=bool)
        flags[comm.rank] = True
        comm.all_reduce(flags)
        assert flags.all()
        numbers = np.full(2, 1 + 2j)
        comm.all_reduce(numbers)
        assert (numbers == 3 + 6j).all()
        moved = np.zeros(6, dtype="int16")
        comm.all_gather(np.full(2, comm.rank, dtype="int16"), moved)
        assert moved.tolist() == [0, 0, 1, 1, 2, 2]

    threads(WORLD, run)


def test_a_buffer_outlives_its_communicator() -> None:
    def run(comm: oxccl.Communicator) -> torch.Tensor:
        tensor = comm.empty(1000).torch()
        tensor.fill_(comm.rank)
        comm.close()
        return tensor

    assert [tensor[999].item() for tensor in threads(2, run)] == [0, 1]


def test_mistakes_are_named() -> None:
    def run(comm: oxccl.Communicator) -> None:
        mistakes = [
            (lambda: comm.all_reduce(np.zeros((4, 4))[:, 1]), "contiguous"),
            (lambda: comm.all_reduce(torch.zeros(4, 4)[:, 1]), "contiguous"),
            (lambda: comm.all_reduce(np.zeros(4, dtype="int16")), "int16 cannot be reduced"),
            (lambda: comm.all_reduce(np.zeros(4, dtype=">f4")), ">f4"),
            (lambda: comm.all_reduce(np.zeros(4), np.zeros(4, "f4")), "float64.*float32"),
            (lambda: comm.all_reduce(np.zeros(4), np.zeros(5)), "needs 5"),
            (lambda: comm.all_reduce(np.zeros(4), op="median"), "median"),
            (lambda: comm.all_reduce(np.zeros(4, "i4"), factor=0.5, stream=7.5), "stream"),
            (lambda: comm.all_gather(np.zeros(4), np.zeros(9)), "elements"),
            (lambda: comm.reduce_scatter(np.zeros(4)), "cannot be shared evenly"),
            (lambda: comm.broadcast(np.zeros(4), root=9), "rank 9"),
            (lambda: comm.send(np.zeros(4), comm.rank), "another than this one"),
            (lambda: comm.all_to_all(np.zeros(3), send_counts=[1, 1, 1]), "go together"),
        ]
        for mistake, text in mistakes:
            with pytest.raises(oxccl.UsageError, match=text) as raised:
                mistake()
            assert not raised.value.fatal
        with pytest.raises(TypeError, match="no array"):
            comm.all_reduce([1.0, 2.0])
        read_only = np.zeros(4)
        read_only.flags.writeable = False
        with pytest.raises(oxccl.UsageError, match="cannot be written"):
            comm.all_reduce(read_only)
        # None of it has been called.
        comm.barrier()
        comm.close()
        with pytest.raises(oxccl.UsageError, match="closed"):
            comm.barrier()

    threads(WORLD, run)
    with pytest.raises(oxccl.UsageError, match="timeot"):
        oxccl.Communicator.local(2, timeot=3)
    with pytest.raises(oxccl.UsageError, match="OXCCL_TIMEOUT"):
        oxccl.Communicator.local(2, timeout="soon")


def test_ranks_that_differ_are_named() -> None:
    def run(comm: oxccl.Communicator) -> oxccl.Error:
        with pytest.raises(oxccl.Error, match="count") as raised:
            comm.all_reduce(np.zeros(5 if comm.rank == 2 else 4))
        assert raised.value.fatal and comm.error() is not None
        return raised.value

    assert all(2 in error.ranks for error in threads(WORLD, run))


def test_groups_are_one_launch() -> None:
    given = inputs(1000)

    def run(comm: oxccl.Communicator) -> None:
        for stream in (None, oxccl.Stream()):
            own = [given[comm.rank][:length].copy() for length in (1, 10, 1000)]
            before = comm.launches
            with comm.group(stream=stream) as group:
                for place, one in enumerate(own):
                    assert comm.all_reduce(one) == place
            if stream is not None:
                assert group.work is not None
                assert group.work.bucket(1).wait()
                assert group.work.wait() and group.work.is_done()
            assert comm.launches == before + 1
            for one in own:
                np.testing.assert_array_equal(one, sum(given)[: len(one)])
        # Messages in any order, and a group whose block fails.
        own, other = given[comm.rank].copy(), poisoned(1000)
        with comm.group():
            comm.send(own, (comm.rank + 1) % WORLD)
            comm.recv(other, (comm.rank - 1) % WORLD)
        np.testing.assert_array_equal(other, given[comm.rank - 1])
        with pytest.raises(KeyError), comm.group():
            comm.all_reduce(own)
            raise KeyError
        np.testing.assert_array_equal(own, given[comm.rank])
        # A group within a group is a part of it; where its block fails, the outer goes on.
        first, second, third = (given[comm.rank].copy() for _ in range(3))
        before = comm.launches
        with comm.group():
            comm.all_reduce(first)
            with comm.group() as inner:
                comm.all_reduce(second)
            try:
                with comm.group():
                    comm.all_reduce(third)
                    raise KeyError
            except KeyError:
                pass
            with pytest.raises(oxccl.UsageError), comm.group(stream=oxccl.Stream()):
                pass
        assert comm.launches == before + 1 and inner.work is None
        np.testing.assert_array_equal(first, sum(given))
        np.testing.assert_array_equal(second, sum(given))
        np.testing.assert_array_equal(third, given[comm.rank])
        comm.close()

    threads(WORLD, run)


def test_streams_keep_arrays_and_do_not_block() -> None:
    looked = threading.Event()

    def run(comm: oxccl.Communicator) -> None:
        stream = oxccl.Stream()
        if comm.rank == 0:
            work = comm.all_reduce(np.ones(100_000), stream=stream)
            try:
                assert not work.wait(0.05) and not work.is_done()
            finally:
                looked.set()
        else:
            looked.wait()
            work = comm.all_reduce(np.ones(100_000), stream=stream)
        works = [work, *(comm.all_reduce(np.ones(100_000), stream=stream) for _ in range(20))]
        assert all(work.wait() for work in works)
        comm.close()

    threads(2, run)


def test_parts_and_survivors() -> None:
    def run(comm: oxccl.Communicator) -> None:
        part = comm.split(0 if comm.rank < 2 else None)
        assert (part is None) == (comm.rank == 2)
        if part is not None:
            own = np.full(4, comm.rank + 1.0)
            part.all_reduce(own)
            assert (own == 3).all()
            part.close()
        assert len(comm.monitored_barrier(5)) == WORLD
        if comm.rank == 2:
            comm.abort("for a test")
            return
        with pytest.raises(oxccl.Error, match="for a test"):
            comm.all_reduce(np.zeros(4))
        rest = comm.shrink([2])
        assert rest.world_size == 2
        rest.barrier()

    threads(WORLD, run)


def test_a_rank_joins_later() -> None:
    invited: queue.Queue[str] = queue.Queue()

    def run(comm: oxccl.Communicator) -> None:
        buffer = comm.empty(1000)
        np.asarray(buffer)[:] = comm.rank
        text = comm.invite() if comm.rank == 0 else None
        if text is not None:
            invited.put(text)
        grown = comm.grow(3, text)
        assert (grown.rank, grown.world_size) == (comm.rank, 3)
        grown.all_reduce(buffer)
        assert (np.asarray(buffer) == 3).all()
        comm.close()
        grown.close()

    def join() -> None:
        grown = oxccl.Communicator(invited.get(timeout=60), 2, 3, timeout=20)
        buffer = grown.empty(1000)
        np.asarray(buffer)[:] = 2
        grown.all_reduce(buffer)
        assert (np.asarray(buffer) == 3).all()
        grown.close()

    with concurrent.futures.ThreadPoolExecutor() as pool:
        joined = pool.submit(join)
        threads(2, run)
        joined.result(timeout=60)


def test_arrays_are_registered() -> None:
    program = """
        import numpy as np, oxccl
        with oxccl.Communicator.from_env(timeout=60) as comm:
            arrays = [np.full(count, comm.rank + 1, "float32") for count in (3, 1000, 300_000)]
            shared = comm.empty(300_000)
            for array in arrays:
                with comm.register(array) as registration:
                    assert not registration.closed
                    comm.all_reduce(array)
                    with comm.group():
                        comm.all_reduce(array[1:])
                        comm.broadcast(array[:1], root=0)
                assert registration.closed and array[0] == 3 and (array[1:] == 6).all()
                registration.close()
            array = arrays[2]
            registration = comm.register(array)
            try:
                comm.register(array)
            except oxccl.UsageError as error:
                assert "cannot be registered" in str(error), error
            else:
                raise AssertionError("it is registered already")
            # With a buffer of the communicator on another rank: it is reached alike.
            np.asarray(shared)[:] = array
            comm.all_reduce(array if comm.rank == 0 else shared)
            del registration
            comm.all_reduce(array)
            frozen = np.zeros(10)
            frozen.flags.writeable = False
            try:
                comm.register(frozen)
            except oxccl.UsageError as error:
                print(error)
    """
    assert run(2, program) == ["an array that cannot be written cannot be registered\n"] * 2


def test_memory_is_told() -> None:
    def run(comm: oxccl.Communicator) -> None:
        before = comm.memory()["allocated_bytes"]
        buffer = comm.empty(1 << 20)
        assert comm.memory()["allocated_bytes"] >= before + (4 << 20)
        del buffer
        assert comm.memory()["allocated_bytes"] == before

    threads(1, run)


def test_ctrl_c_ends_a_call() -> None:
    program = """
        import numpy, oxccl, sys
        comm = oxccl.Communicator.from_env(timeout=60)
        if comm.rank == 0:
            try:
                print("ready", flush=True)
                comm.all_reduce(numpy.zeros(4))
            except KeyboardInterrupt:
                sys.exit(3)
        else:
            try:
                print("ready", flush=True)
                # It comes when rank 0 has been interrupted.
                sys.stdin.read()
                for _ in range(1000):
                    comm.all_reduce(numpy.zeros(4))
            except oxccl.Error as error:
                sys.exit(4 if "rank 0" in str(error) and "interrupted" in str(error) else 5)
    """
    ranks = start(2, program)
    for rank in ranks:
        assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
    time.sleep(0.5)
    began = time.monotonic()
    ranks[0].send_signal(signal.SIGINT)
    ranks[0].wait(60)
    ended = finish(ranks)
    assert [status for status, _, _ in ended] == [3, 4], ended
    assert time.monotonic() - began < 30


def test_ctrl_c_ends_a_start() -> None:
    program = """
        import oxccl, sys
        try:
            print("ready", flush=True)
            oxccl.Communicator.from_env(timeout=60)
        except KeyboardInterrupt:
            sys.exit(3)
    """
    ranks = start(2, program, started=1)
    assert ranks[0].stdout is not None and ranks[0].stdout.readline() == "ready\n"
    time.sleep(0.3)
    ranks[0].send_signal(signal.SIGINT)
    assert finish(ranks)[0][0] == 3


def test_a_start_does_not_block_and_is_given_up() -> None:
    unique_id = oxccl.UniqueId()
    starts = [oxccl.Communicator.starting(unique_id, rank, 2, timeout=20) for rank in range(2)]
    comms = [start.wait(20) for start in starts]
    for rank, (start, comm) in enumerate(zip(starts, comms, strict=True)):
        assert start.is_done() and start.wait() is comm
        assert comm is not None and (start.rank, comm.rank) == (rank, rank)
    starts[0].abort("late")
    for comm in comms:
        deadline = time.monotonic() + 20
        while (error := comm.error()) is None:
            assert time.monotonic() < deadline
        assert error.ranks == [0] and "late" in str(error)

    unique_id = oxccl.UniqueId()
    first, second = (oxccl.Communicator.starting(unique_id, rank, 3) for rank in range(2))
    assert first.wait(0.2) is None and not first.is_done()
    first.abort("not needed")
    for start in (first, second):
        for _ in range(2):
            with pytest.raises(oxccl.Error, match="rank 0 aborted: not needed") as raised:
                start.wait(20)
            assert raised.value.ranks == [0]
    with pytest.raises(oxccl.UsageError):
        oxccl.Communicator.starting(unique_id, 0, 3, max_channels=0)


def test_a_rank_that_dies_is_named() -> None:
    program = """
        import numpy, os, oxccl, signal, sys
        comm = oxccl.Communicator.from_env(timeout=60)
        comm.barrier()
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.all_reduce(numpy.zeros(1000))
        except oxccl.Error as error:
            print(error.ranks, error)
    """
    ended = finish(start(3, program))
    assert ended[1][0] == -signal.SIGKILL
    for status, out, err in (ended[0], ended[2]):
        assert status == 0 and "rank 1" in out, (out, err)


def test_the_nccl_library_is_found_or_missed(tmp_path: pathlib.Path) -> None:
    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
        environment.pop("LD_PRELOAD", None)
        arguments = [sys.executable, "-m", "oxccl.nccl_path"]
        return subprocess.run(arguments, env=environment, capture_output=True, text=True)

    missing = run()
    assert missing.returncode == 1 and "cargo build" in missing.stderr
    (tmp_path / "oxccl").write_text("#!/bin/sh\n")
    (tmp_path / "oxccl").chmod(0o755)
    (tmp_path / "libnccl.so").touch()
    assert run().stdout.strip() == str(tmp_path / "libnccl.so")
    (tmp_path / "other.so").touch()
    other = run(OXCCL_NCCL_LIBRARY=str(tmp_path / "other.so"))
    assert other.stdout.strip() == str(tmp_path / "other.so")


def test_documentation_is_that_of_the_stub() -> None:
    stub = ast.parse(pathlib.Path(oxccl._oxccl.__file__).with_name("_oxccl.pyi").read_text())
    seen = 0
    for node in stub.body:
        if not isinstance(node, ast.ClassDef):
            continue
        kind = getattr(oxccl, node.name)
        members = [member for member in node.body if isinstance(member, ast.FunctionDef)]
        public = [member for member in members if not member.name.startswith("__")]
        for name, member in [("", node), *((member.name, member) for member in public)]:
            written = ast.get_docstring(member)
            own = inspect.getdoc(getattr(kind, name) if name else kind)
            assert written and own, (node.name, name)
            if not issubclass(kind, Exception):
                assert own.split() == written.split(), (node.name, name)
            seen += 1
    assert seen > 60
