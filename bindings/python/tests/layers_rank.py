"""One rank of programs that use what PyTorch builds on its backends: layers_rank.py PARTS. Each
part trains or computes what one process alone does, and compares."""

import datetime
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

STEPS = 3

dist.init_process_group("oxccl", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()


def model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(16, 16), torch.randn(16, 4)


def own() -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's part of the data."""
    x, y = data()
    return x.chunk(world)[rank], y.chunk(world)[rank]


def train(module, x, y) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (module(x) - y).square().mean().backward()
        optimizer.step()


def whole(parameter):
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def as_one_process(module) -> None:
    alone = model()
    train(alone, *data())
    for found, expected in zip(module.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(whole(found), expected, rtol=1e-4, atol=1e-5)


def hsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    module = model()
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    train(module, *own())
    as_one_process(module)


def tensor_parallel() -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    module = model()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(module, init_device_mesh("cpu", (world,)), plan)
    train(module, *data())
    as_one_process(module)


def dtensor() -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(3)
    a, b = torch.randn(12, 8), torch.randn(8, 20)
    rows, columns = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Shard(1)])
    product = rows.redistribute(mesh, [Replicate()]) @ columns
    torch.testing.assert_close(product.full_tensor(), a @ b)
    torch.testing.assert_close(product.redistribute(mesh, [Shard(0)]).full_tensor(), a @ b)
    torch.testing.assert_close(rows.sum().full_tensor(), a.sum())


def pipeline() -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    layers = model()
    parts = [nn.Sequential(layers[0]), nn.Sequential(*layers[1:3]), nn.Sequential(layers[3]),
             nn.Sequential(layers[4])]
    stage = PipelineStage(parts[rank], rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 8, loss_fn=lambda out, wanted: (out - wanted).square().mean())
    x, y = data()
    if rank == world - 1:
        torch.testing.assert_close(schedule.step(target=y, losses=[]), model()(x))
    else:
        schedule.step(*[x] * (rank == 0))
    alone = model()
    (alone(x) - y).square().mean().backward()
    expected = dict(alone.named_parameters())
    mine = {id(parameter) for parameter in parts[rank].parameters()}
    for name, parameter in layers.named_parameters():
        if id(parameter) in mine:
            grad = expected[name].grad
            torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-5)


def checkpoint() -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    module, other = model(), model()
    fully_shard(module)
    fully_shard(other)
    train(module, *own())
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save({"model": get_model_state_dict(module)}, checkpoint_id=folder[0])
    state = {"model": get_model_state_dict(other)}
    dcp.load(state, checkpoint_id=folder[0])
    set_model_state_dict(other, state["model"])
    for found, expected in zip(other.parameters(), module.parameters(), strict=True):
        assert torch.equal(whole(found), whole(expected))
    again = {"model": get_model_state_dict(module)}
    dcp.async_save(again, checkpoint_id=f"{folder[0]}/again").result()


def hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    # Its callbacks make calls of their own, and wait for them.
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    for hook, state in [
        (default_hooks.allreduce_hook, None),
        (default_hooks.fp16_compress_hook, None),
        (default_hooks.bf16_compress_hook, None),
        (powerSGD_hook.powerSGD_hook, state),
    ]:
        module = nn.parallel.DistributedDataParallel(model())
        module.register_comm_hook(state, hook)
        train(module, *own())
        if hook is default_hooks.allreduce_hook:
            as_one_process(module.module)
        for parameter in module.parameters():
            alike = [torch.empty_like(parameter) for _ in range(world)]
            dist.all_gather(alike, parameter.detach())
            assert all(torch.equal(one, parameter) for one in alike)


def zero() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    module = nn.parallel.DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.SGD, lr=0.1)
    x, y = own()
    for _ in range(STEPS):
        optimizer.zero_grad()
        (module(x) - y).square().mean().backward()
        optimizer.step()
    as_one_process(module.module)


def join() -> None:
    module = nn.parallel.DistributedDataParallel(model())
    with module.join():
        for _ in range(rank + 1):
            module(torch.randn(4, 16)).sum().backward()


def functional() -> None:
    import torch.distributed._functional_collectives as collectives

    def work(x):
        every = dist.group.WORLD
        total = collectives.all_reduce(x * 2, "sum", every)
        gathered = collectives.all_gather_tensor(total, 0, every)
        return collectives.reduce_scatter_tensor(gathered, "sum", 0, every) + 1

    x = torch.full((8,), rank + 1.0)
    expected = torch.full((8,), 2.0 * sum(range(1, world + 1)) * world + 1)
    assert torch.equal(work(x), expected)
    compiled = torch.compile(work, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), expected)


def compiled() -> None:
    module = nn.parallel.DistributedDataParallel(model())
    train(torch.compile(module, backend="aot_eager"), *own())
    as_one_process(module.module)


for part in sys.argv[1].split(","):
    globals()[part]()
    print(part, "done", flush=True)
dist.destroy_process_group()
print("done")
