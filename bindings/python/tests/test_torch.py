"""PyTorch's backend, as programs use it: found by its name, without an import."""

import os
import signal
import time
from pathlib import Path

import pytest

import ranks

ALL = os.environ.get("OXCCL_TEST_ALL") == "1"

BEGIN = ranks.IMPORT + """
import datetime, os, sys, torch, torch.distributed as dist
dist.init_process_group("oxccl", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1000 + rank)
"""
END = """
dist.destroy_process_group()
"""


def run(world: int, program: str, **variables: str) -> list[str]:
    return ranks.run(world, BEGIN + ranks.textwrap.dedent(program) + END, **variables)


def test_collectives_agree_with_gloo() -> None:
    run(
        3,
        """
        assert dist.get_backend() == "oxccl"
        gloo = dist.new_group(backend="gloo")
        assert dist.get_backend(gloo) == "gloo"

        def same(call, *shapes, dtype=torch.float32):
            "Calls with both groups, over the same input, and compares all tensors."
            ours = [torch.randint(-9, 9, shape).to(dtype) for shape in shapes]
            theirs = [tensor.clone() for tensor in ours]
            call(ours, None)
            call(theirs, gloo)
            for one, other in zip(ours, theirs):
                assert torch.equal(one, other), (one, other)

        for dtype in (torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8):
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
                same(lambda t, g: dist.all_reduce(t[0], op, group=g), (37,), dtype=dtype)
                same(lambda t, g: dist.reduce(t[0], 0, op, group=g) if rank == 0 else
                     dist.reduce(t[0].clone(), 0, op, group=g), (37,), dtype=dtype)
        same(lambda t, g: dist.broadcast(t[0], 2, group=g), (3, 4))
        same(lambda t, g: dist.all_gather(t[:3], t[3], group=g), (3, 4), (3, 4), (3, 4), (3, 4))
        same(lambda t, g: dist.all_gather(list(t[0].chunk(3)), t[1], group=g), (6, 4), (2, 4))
        same(lambda t, g: dist.all_gather_into_tensor(t[0], t[1], group=g), (9, 4), (3, 4))
        same(lambda t, g: dist.gather(t[3], t[:3] if rank == 1 else None, 1, group=g), *[(5,)] * 4)
        same(lambda t, g: dist.scatter(t[3], t[:3] if rank == 1 else None, 1, group=g), *[(5,)] * 4)
        same(lambda t, g: dist.reduce_scatter_tensor(t[0], t[1], group=g), (3, 4), (9, 4))
        same(lambda t, g: dist.all_to_all_single(t[0], t[1], group=g), (6, 2), (6, 2))
        send, recv = [rank + 1] * 3, [1, 2, 3]
        same(lambda t, g: dist.all_to_all_single(t[0], t[1], recv, send, group=g),
             (6, 2), (3 * (rank + 1), 2))
        same(lambda t, g: dist.all_reduce(t[0], group=g), (4, 2), dtype=torch.complex64)

        # What Gloo has not, or has otherwise.
        outputs = [torch.empty(2) for _ in range(3)]
        dist.all_to_all(outputs, [torch.full((2,), 10.0 * rank + peer) for peer in range(3)])
        assert [t[0].item() for t in outputs] == [10.0 * peer + rank for peer in range(3)]
        average = torch.tensor([float(rank)])
        dist.all_reduce(average, dist.ReduceOp.AVG)
        assert average.item() == 1
        brain = torch.ones(8, dtype=torch.bfloat16)
        dist.all_reduce(brain)
        assert brain.tolist() == [3.0] * 8
        parts = [torch.ones(size) for size in (1, 0, 4)]
        output = torch.empty(len(parts[rank]))
        dist.reduce_scatter(output, parts)
        assert output.tolist() == [3.0] * len(parts[rank])
        uneven = [torch.empty(size) for size in (1, 2, 3)]
        dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
        assert [t.tolist() for t in uneven] == [[0.0], [1.0] * 2, [2.0] * 3]

        objects = [None] * world
        dist.all_gather_object(objects, {"rank": rank, "text": "x" * 1000 * rank})
        assert [o["rank"] for o in objects] == [0, 1, 2] and len(objects[2]["text"]) == 2000
        listed = [rank]
        dist.broadcast_object_list(listed, 1)
        assert listed == [1]
        dist.barrier()
        dist.monitored_barrier()
        """,
    )


def test_asynchronous_works_do_not_block() -> None:
    run(
        2,
        """
        store = dist.distributed_c10d._get_default_store()
        tensor = torch.ones(1000)
        if rank == 1:
            store.wait(["looked"])
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 0:
            assert not work.is_completed()
            store.set("looked", "")
        future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        then = future.then(lambda done: done.value()[0].sum().item())
        assert work.wait() and work.is_completed() and work.is_success()
        assert tensor.sum().item() == 2000
        assert then.wait() == 6
        """,
    )


def test_lists_are_one_launch() -> None:
    run(
        2,
        """
        group = dist.group.WORLD
        comm = group.communicator

        def launches(call):
            before = comm.launches
            call()
            return comm.launches - before

        def coalesced():
            with dist._coalescing_manager():
                for output, whole in zip(outputs, wholes):
                    dist.reduce_scatter_tensor(output, whole)

        wholes = [torch.full((2 * size,), float(size)) for size in range(1, 21)]
        outputs = [torch.empty(size) for size in range(1, 21)]
        assert launches(coalesced) == 1
        assert all((o == 2.0 * size).all() for size, o in enumerate(outputs, 1))

        def gathered():
            with dist._coalescing_manager(async_ops=True) as works:
                for output, whole in zip(outputs, wholes):
                    dist.all_gather_into_tensor(whole, output)
            works.wait()

        assert launches(gathered) == 1
        assert all((whole == 2.0 * size).all() for size, whole in enumerate(wholes, 1))
        assert launches(lambda: dist.all_reduce_coalesced(outputs)) == 1

        # Of several kinds, where the device is named.
        def mixed():
            with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as works:
                dist.broadcast(root, 1)
                dist.all_gather(parts, root + 1)
                dist.all_to_all_single(swapped, wholes[1])
            works.wait()

        root, swapped = torch.full((3,), float(rank)), torch.empty(4)
        parts = [torch.empty(3), torch.empty(3)]
        assert launches(mixed) == 1
        assert (root == 1).all() and (swapped == wholes[1]).all()
        assert parts[0].tolist() == [1.0] * 3 and parts[1].tolist() == [2.0] * 3

        peer = 1 - rank
        got = [torch.zeros(5), torch.zeros(6)]
        batch = [dist.P2POp(dist.isend, torch.full((5,), float(rank)), peer),
                 dist.P2POp(dist.irecv, got[0], peer),
                 dist.P2POp(dist.irecv, got[1], peer),
                 dist.P2POp(dist.isend, torch.full((6,), float(rank)), peer)]

        def batched():
            for work in dist.batch_isend_irecv(batch):
                work.wait()

        assert launches(batched) == 1
        assert (got[0] == peer).all() and (got[1] == peer).all()
        """,
    )


def test_messages_match_by_sender_and_tag() -> None:
    run(
        3,
        """
        # All send before any receives.
        works = [dist.isend(torch.full((2,), 10.0 * rank + tag), peer, tag=tag)
                 for peer in range(world) for tag in (1, 2)]
        for tag in (2, 1):
            for peer in reversed(range(world)):
                got = torch.empty(2)
                if peer == rank:
                    dist.irecv(got, peer, tag=tag).wait()
                else:
                    assert dist.recv(got, peer, tag=tag) == peer
                assert got[0] == 10.0 * peer + tag
        for work in works:
            work.wait()
        # From whoever comes.
        if rank == 0:
            senders = set()
            for _ in range(world - 1):
                got = torch.empty(100_000)
                sender = dist.recv(got)
                assert (got == sender).all()
                senders.add(sender)
            assert senders == {1, 2}
        else:
            dist.send(torch.full((100_000,), float(rank)), 0)
        # Of another length.
        if rank == 1:
            dist.isend(torch.zeros(3), 2, tag=9)
        if rank == 2:
            try:
                dist.recv(torch.zeros(4), 1, tag=9)
                raise AssertionError("a message of another length was taken")
            except RuntimeError as error:
                assert "12 bytes, and 16" in str(error), error
        dist.barrier()
        """,
    )


def test_a_process_may_end_at_any_time() -> None:
    for _ in range(5 if ALL else 1):
        ranks.run(
            2,
            BEGIN
            + """
for _ in range(20):
    dist.all_reduce(torch.ones(9), async_op=True).get_future().then(lambda done: torch.ones(9))
dist.isend(torch.ones(3), 1 - rank)
dist.recv(torch.empty(3), 1 - rank)
dist.all_reduce(torch.ones(9), async_op=True).get_future().wait()
""",
        )


def test_parts_of_a_world() -> None:
    run(
        4,
        """
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        own = torch.tensor([float(rank)])
        dist.all_reduce(own, group=mesh.get_group("columns"))
        assert own.item() == (1 if rank < 2 else 5), own
        part = dist.split_group(split_ranks=[[3, 0], [1, 2]])
        assert dist.get_world_size(part) == 2
        own = torch.tensor([float(rank)])
        dist.all_reduce(own, group=part)
        assert own.item() == 3, own
        few = dist.new_group([1, 3])
        if rank in (1, 3):
            got = [torch.empty(1) for _ in range(2)]
            dist.all_gather(got, torch.tensor([float(rank)]), group=few)
            assert [t.item() for t in got] == [1, 3]
        """,
    )


@pytest.mark.parametrize("wrapped", ["ddp", "fsdp"] if ALL else ["ddp"])
def test_training_is_that_of_one_process(wrapped: str) -> None:
    run(
        2,
        f"""
        from torch import nn
        import copy
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(),
                              nn.Linear(40, 3))
        alone = copy.deepcopy(model)
        data, wanted = torch.randn(16, 12), torch.randn(16, 3)
        if "{wrapped}" == "ddp":
            model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)
        else:
            from torch.distributed.fsdp import fully_shard
            from torch.distributed.device_mesh import init_device_mesh
            mesh = init_device_mesh("cpu", (2,))
            for layer in model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)

        def train(model, rows):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(5):
                optimizer.zero_grad()
                nn.functional.mse_loss(model(data[rows]), wanted[rows]).backward()
                optimizer.step()

        train(alone, slice(None))
        train(model, slice(rank * 8, rank * 8 + 8))
        for ours, theirs in zip(model.parameters(), alone.parameters()):
            whole = ours.full_tensor() if hasattr(ours, "full_tensor") else ours
            torch.testing.assert_close(whole, theirs)
        """,
    )


def test_a_rank_that_dies_is_named_in_the_exception() -> None:
    program = (
        BEGIN
        + """
dist.barrier()
if rank == 1:
    os.kill(os.getpid(), 9)
try:
    dist.all_reduce(torch.ones(1000))
except RuntimeError as error:
    print(error)
    sys.exit(3)
"""
    )
    ended = ranks.finish(ranks.start(3, program))
    assert ended[1][0] == -signal.SIGKILL
    for status, out, err in (ended[0], ended[2]):
        assert status == 3 and "rank 1" in out, (out, err)


def test_a_sender_that_dies_is_named_by_its_number_in_the_group() -> None:
    program = (
        BEGIN
        + """
got = torch.empty(3)
if rank == 2:
    dist.send(torch.ones(3), 1)
    dist.barrier()
    os.kill(os.getpid(), 9)
if rank == 1:
    dist.recv(got, 2)
dist.barrier()
if rank == 1:
    try:
        dist.recv(got, 2)
    except RuntimeError as error:
        print(error.ranks, error)
        sys.exit(3)
"""
    )
    ended = ranks.finish(ranks.start(3, program))
    status, out, err = ended[1]
    assert status == 3 and "[2] rank 2 died" in out and "from rank 2 to 1" in out, (out, err)


def test_a_group_that_a_dead_rank_belongs_to_does_not_start() -> None:
    program = (
        BEGIN
        + """
dist.barrier()
if rank == 2:
    os.kill(os.getpid(), 9)
def part(*ranks):
    return dist.new_group(ranks, use_local_synchronization=True)
# The first rank of a group tells the others where they meet.
for ranks in ([0, 1, 2], [1, 2, 0], [2, 0, 1]):
    try:
        part(*ranks)
        sys.exit(4)
    except RuntimeError as error:
        print(error.ranks, error)
# Of the others, one starts.
group = part(0, 1)
if group is not None:
    one = torch.ones(1)
    dist.all_reduce(one, group=group)
    sys.exit(3 if one.item() == 2 else 5)
"""
    )
    began = time.monotonic()
    ended = ranks.finish(ranks.start(3, program))
    # Much less than the time-out.
    assert time.monotonic() - began < 40
    for status, out, err in ended[:2]:
        assert status == 3 and out.count("[2] rank 2 died") == 3, (status, out, err)


def test_what_cannot_be_done_says_so() -> None:
    run(
        2,
        """
        def fails(call, text):
            try:
                call()
            except (RuntimeError, ValueError) as error:
                assert text in str(error), error
            else:
                raise AssertionError(f"no error that says {text!r}")

        fails(lambda: dist.all_reduce(torch.ones(4, 4)[:, 0]), "contiguous")
        fails(lambda: dist.all_reduce(torch.ones(4, dtype=torch.int16)), "int16 cannot be reduced")
        fails(lambda: dist.all_reduce(torch.ones(4, device="meta")), "meta")
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            opts = dist.BarrierOptions()
            opts.timeout, opts.asyncOp = datetime.timedelta(seconds=0.2), False
            fails(lambda: dist.group.WORLD.barrier(opts).wait(), "Timed out")
            store.set("late", "")
        else:
            store.wait(["late"])
            dist.barrier()
        fails(lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), [1, 1], [1, 2]),
              "do not fit")
        dist.barrier()
        """,
    )


def test_the_profiler_shows_calls() -> None:
    run(
        2,
        """
        import time
        with torch.profiler.profile(record_shapes=True) as profile:
            dist.all_reduce(torch.ones(5))
            dist.broadcast(torch.ones(2, 3), 0, async_op=True).wait()
            peer, got = 1 - rank, torch.empty(7)
            ends = [(dist.isend, torch.ones(7)), (dist.irecv, got)]
            for work in dist.batch_isend_irecv([dist.P2POp(*end, peer) for end in ends]):
                work.wait()
            time.sleep(0.5)
        events = {event.name: event for event in profile.events()}
        shapes = {name: event.input_shapes for name, event in events.items()}
        assert shapes["oxccl:all_reduce"] == [[5]] and shapes["oxccl:broadcast"] == [[2, 3]]
        assert shapes["oxccl:batch"] == [[7], [7]]
        # What comes behind a call is not of it.
        assert events["oxccl:batch"].time_range.elapsed_us() < 400_000
        """,
    )




def test_tensors_lie_in_shared_memory(tmp_path: Path) -> None:
    run(
        2,
        """
        import copy
        from torch import nn
        from oxccl.torch import use_shared_memory
        try:
            use_shared_memory(min_bytes=0)
            raise AssertionError("0 bytes were taken")
        except RuntimeError as error:
            assert "min_bytes" in str(error), error
        before = torch.ones(1 << 16)
        heap = use_shared_memory(min_bytes=4096)
        own = torch.randn(1 << 16)
        assert heap.used_bytes >= own.nbytes
        for tensor in (before, own):
            mine = tensor.clone()
            dist.all_reduce(mine)
            both = [torch.full_like(tensor, float("nan")) for _ in range(world)]
            dist.all_gather(both, tensor)
            torch.testing.assert_close(mine, both[0] + both[1])
        used = heap.used_bytes
        del own, mine, both, tensor
        assert heap.used_bytes < used and heap.kept_bytes > 0
        heap.trim()
        assert heap.kept_bytes == 0

        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 64))
        alone = copy.deepcopy(model)
        data, wanted = torch.randn(16, 64), torch.randn(16, 64)
        ddp = nn.parallel.DistributedDataParallel(model)
        half = slice(8 * rank, 8 * rank + 8)
        for network, x, y in ((ddp, data[half], wanted[half]), (alone, data, wanted)):
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                (network(x) - y).square().mean().backward()
                optimizer.step()
        for ours, theirs in zip(model.parameters(), alone.parameters()):
            torch.testing.assert_close(ours, theirs)

        # A forked process takes memory of its own, and gives nothing of its parent's back.
        kept, used = torch.zeros(1 << 16), heap.used_bytes
        child = os.fork()
        if child == 0:
            del kept
            one = torch.full((1 << 16,), 5.0)
            os._exit(0 if one.sum() == 5.0 * (1 << 16) and heap.used_bytes == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0 and heap.used_bytes == used
        assert (torch.empty(1 << 16).fill_(3) == 3).all() and (kept == 0).all()
        try:
            use_shared_memory()
            raise AssertionError("twice")
        except RuntimeError as error:
            assert "already" in str(error), error
        # What outlives the group goes on.
        dist.destroy_process_group()
        assert (kept == 0).all() and torch.ones(1 << 16).sum() == 1 << 16
        dist.init_process_group("oxccl", rank=rank, world_size=world,
                                init_method=f"file://{os.environ['MEET']}")
        again = torch.ones(1 << 16)
        dist.all_reduce(again)
        assert (again == world).all()
        """,
        MEET=str(tmp_path / "meet"),
    )


def test_tensors_are_registered(tmp_path: Path) -> None:
    run(
        2,
        """
        comm = dist.group.WORLD.communicator
        tensors = [torch.full((count,), rank + 1.0) for count in (5, 3000, 200_000)]
        registrations = [comm.register(tensor) for tensor in tensors]
        assert comm.memory()["registrations"] == len(tensors)
        for tensor in tensors:
            dist.all_reduce(tensor)
            assert (tensor == 3).all()
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        [work.wait() for work in works]
        assert all((tensor == 6).all() for tensor in tensors)
        with dist._coalescing_manager():
            [dist.all_reduce(tensor) for tensor in tensors]
        assert all((tensor == 12).all() for tensor in tensors)
        # Registered on one rank and private on the other is no call that they can make together.
        if rank == 0:
            registrations[2].close()
        try:
            dist.all_reduce(tensors[2])
            raise AssertionError("they are not alike")
        except RuntimeError as error:
            assert "memory" in str(error) or "differ" in str(error), error
        del registrations
        assert tensors[0].sum() == 5 * 12
        """,
        MEET=str(tmp_path / "meet"),
    )


def test_shared_memory_needs_a_compiler(tmp_path: Path) -> None:
    run(
        1,
        """
        from oxccl.torch import use_shared_memory
        for compiler, text in (("no-compiler", "there is no no-compiler"), ("false", "does not")):
            os.environ["CXX"] = compiler
            try:
                use_shared_memory()
                raise AssertionError("it was compiled by nothing")
            except RuntimeError as error:
                assert text in str(error), error
        assert os.listdir(os.path.join(os.environ["XDG_CACHE_HOME"], "oxccl")) == []
        """,
        XDG_CACHE_HOME=str(tmp_path),
    )
