"""DeepSpeed on CPUs, all stages of ZeRO. It compiles its own shared memory at the first run."""

import deepspeed
import torch
import torch.distributed as dist

deepspeed.init_distributed(dist_backend="oxccl")
assert dist.get_backend() == "oxccl"
losses = []
for stage in range(4):
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2)
    model = torch.nn.Sequential(*layers)
    config = {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": 8,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    parameters = model.parameters()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=config)
    for _ in range(4):
        x, y = torch.randn(8, 8), torch.randn(8, 2)
        loss = (engine(x) - y).square().mean()
        engine.backward(loss)
        engine.step()
    losses.append(loss.item())
assert max(losses) - min(losses) < 1e-4, losses
dist.destroy_process_group()
print("deepspeed done")
