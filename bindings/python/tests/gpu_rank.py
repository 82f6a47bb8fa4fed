"""One rank of a PyTorch program with tensors of GPUs: gpu_rank.py BACKEND PARTS [device_id]. The
backends are "oxccl", and PyTorch's own "nccl" and "nccl-legacy" over libnccl.so.2. PyTorch's
kernels cannot run on the stand-in driver, so tensors are made on the host and copied."""

import datetime
import os
import sys

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def of(rank: int, count: int = 1003) -> torch.Tensor:
    """What a rank has: whole numbers, whose sums are exact."""
    return torch.randint(0, 64, (count,), generator=torch.Generator().manual_seed(rank)).float()


ALL = [of(rank) for rank in range(WORLD)]
SUM = torch.stack(ALL).sum(0)


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(found.cpu(), expected), (found.cpu(), expected)


def poison(count: int) -> torch.Tensor:
    return torch.full((count,), float("nan")).cuda()


def collectives() -> None:
    x = ALL[RANK].cuda()
    dist.all_reduce(x)
    same(x, SUM)
    x = ALL[RANK].cuda()
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    same(x, torch.stack(ALL).amax(0))
    x = ALL[RANK].cuda()
    dist.broadcast(x, 1)
    same(x, ALL[1])
    x = ALL[RANK].cuda()
    dist.reduce(x, 0)
    if RANK == 0:
        same(x, SUM)
    out = poison(1003 * WORLD)
    dist.all_gather_into_tensor(out, ALL[RANK].cuda())
    same(out, torch.cat(ALL))
    out = [poison(1003) for _ in range(WORLD)]
    dist.all_gather(out, ALL[RANK].cuda())
    for found, expected in zip(out, ALL):
        same(found, expected)
    out = poison(1003)
    dist.reduce_scatter_tensor(out, torch.cat([ALL[RANK] + to for to in range(WORLD)]).cuda())
    same(out, SUM + RANK * WORLD)
    out = poison(1003 * WORLD)
    dist.all_to_all_single(out, torch.cat([ALL[RANK] + to for to in range(WORLD)]).cuda())
    same(out, torch.cat([each + RANK for each in ALL]))
    # Uneven parts are messages in a group, also to oneself.
    counts = [3 + to for to in range(WORLD)]
    out = poison(counts[RANK] * WORLD)
    dist.all_to_all_single(
        out, ALL[RANK][: sum(counts)].cuda(), [counts[RANK]] * WORLD, counts
    )
    start = sum(counts[:RANK])
    same(out, torch.cat([each[start : start + counts[RANK]] for each in ALL]))
    out = [poison(1003) for _ in range(WORLD)] if RANK == 0 else None
    dist.gather(ALL[RANK].cuda(), out, dst=0)
    for found, expected in zip(out or [], ALL):
        same(found, expected)
    out = poison(1003)
    dist.scatter(out, [each.cuda() for each in ALL] if RANK == 1 else None, src=1)
    same(out, ALL[RANK])
    dist.barrier()
    for dtype in [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8]:
        x = torch.arange(60).to(dtype).cuda()
        dist.all_reduce(x)
        same(x, (torch.arange(60) * WORLD).to(dtype))


def works_and_messages() -> None:
    xs = [each.clone().cuda() for each in [ALL[RANK]] * 3]
    for work in [dist.all_reduce(x, async_op=True) for x in xs]:
        work.wait()
    for x in xs:
        same(x, SUM)
    right, left = (RANK + 1) % WORLD, (RANK - 1) % WORLD
    out = poison(1003)
    batch = [dist.P2POp(dist.isend, ALL[RANK].cuda(), right), dist.P2POp(dist.irecv, out, left)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    same(out, ALL[left])
    if RANK == 0:
        dist.send(ALL[0].cuda(), 1)
    elif RANK == 1:
        out = poison(1003)
        dist.recv(out, 0)
        same(out, ALL[0])
    xs = [each.clone().cuda() for each in [ALL[RANK]] * 5]
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    for x in xs:
        same(x, SUM)


def groups() -> None:
    pair = dist.new_group([0, 1])
    x = ALL[RANK].cuda()
    dist.all_reduce(x, group=pair)
    same(x, SUM)
    alone = [dist.new_group([rank]) for rank in range(WORLD)]
    x = ALL[RANK].cuda()
    dist.all_reduce(x, group=alone[RANK])
    same(x, ALL[RANK])
    part = dist.split_group(split_ranks=[list(range(WORLD))])
    x = ALL[RANK].cuda()
    dist.all_reduce(x, group=part)
    same(x, SUM)


def graphs() -> None:
    x, stream = ALL[RANK].cuda(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        dist.all_reduce(x)
    torch.cuda.synchronize()
    x.copy_(ALL[RANK])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        dist.all_reduce(x)
    for _ in range(3):
        x.copy_(ALL[RANK])
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        same(x, SUM)


def messages() -> None:
    """What oxccl has and NCCL has not: both directions at once, and messages to oneself."""
    peer = 1 - RANK
    out = [poison(1003), poison(1003)]
    works = [dist.isend(ALL[RANK].cuda(), peer), dist.isend((ALL[RANK] + 1).cuda(), peer)]
    works += [dist.irecv(each, peer) for each in out]
    for work in works:
        work.wait()
    same(out[0], ALL[peer])
    same(out[1], ALL[peer] + 1)
    own = poison(1003)
    batch = [dist.P2POp(dist.isend, ALL[RANK].cuda(), RANK), dist.P2POp(dist.irecv, own, RANK)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    same(own, ALL[RANK])
    dist.barrier(device_ids=[RANK])
    dist.monitored_barrier()
    # Tensors of both kinds in one group.
    host = ALL[RANK].clone()
    dist.all_reduce(host)
    assert torch.equal(host, SUM)
    objects: list = [None] * WORLD
    dist.all_gather_object(objects, RANK)
    assert objects == list(range(WORLD))


def launches() -> None:
    dist.all_reduce(ALL[RANK].cuda())
    comm = dist.group.WORLD.gpu_communicator
    wholes = [torch.arange(2.0 * size).cuda() for size in range(1, 21)]
    outputs = [poison(size) for size in range(1, 21)]
    before = comm.launches
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as manager:
        for output, whole in zip(outputs, wholes):
            dist.reduce_scatter_tensor(output, whole)
    manager.wait()
    assert comm.launches == before + 1
    for size, output in enumerate(outputs, 1):
        same(output, torch.arange(2.0 * size).chunk(WORLD)[RANK] * WORLD)
    # Calls of several kinds, too.
    x, y, z = ALL[RANK].cuda(), ALL[RANK].cuda(), poison(1003 * WORLD)
    before = comm.launches
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as manager:
        dist.broadcast(y, 1)
        dist.all_to_all_single(z[: 2 * 501], x[: 2 * 501])
    manager.wait()
    assert comm.launches == before + 1
    same(y, ALL[1])
    same(z[: 2 * 501], torch.cat([each[501 * RANK : 501 * (RANK + 1)] for each in ALL]))
    # A future's value may be used on any stream.
    x = ALL[RANK].cuda()
    future = dist.all_reduce(x, async_op=True).get_future()
    same(future.wait()[0], SUM)
    work = dist.all_reduce(x, async_op=True)
    work.wait(datetime.timedelta(seconds=60))
    assert work.is_completed() and work.is_success()


def refused() -> None:
    x = ALL[RANK].cuda()

    def fails(text: str, call, *arguments, **named) -> None:
        try:
            call(*arguments, **named)
        except Exception as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"nothing about {text}")

    dist.all_reduce(x)
    fails("a rank has one GPU", dist.all_reduce, x.to(torch.device("cuda", 1 - RANK)))
    fails("have no tags", dist.send, x, 1 - RANK, tag=3)
    fails("from a rank that is named", dist.recv, x)
    fails("in the batch", dist.batch_isend_irecv, [dist.P2POp(dist.isend, x, RANK)])
    fails("one array is a GPU's", dist.all_gather_into_tensor, torch.empty(2006), x)
    same(x, SUM)


def death() -> None:
    x = ALL[RANK].cuda()
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if RANK == 1:
        os._exit(7)
    try:
        for _ in range(1000):
            dist.all_reduce(x)
            torch.cuda.synchronize()
    except Exception as error:
        print("told:", error)
        sys.stdout.flush()
        os._exit(0)
    raise AssertionError("nobody noticed")


torch.cuda.set_device(RANK % torch.cuda.device_count())
arguments = {"device_id": torch.device("cuda", RANK)} if "device_id" in sys.argv else {}
dist.init_process_group(sys.argv[1], timeout=datetime.timedelta(seconds=60), **arguments)
for part in sys.argv[2].split(","):
    {
        "collectives": collectives,
        "works": works_and_messages,
        "groups": groups,
        "launches": launches,
        "messages": messages,
        "refused": refused,
        "graphs": graphs,
        "death": death,
    }[part]()
    print(part, "done")
dist.destroy_process_group()
print("done")
