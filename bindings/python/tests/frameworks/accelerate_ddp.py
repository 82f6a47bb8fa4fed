"""Accelerate: a group that is there already is taken, whatever its backend."""

import torch
import torch.distributed as dist
from accelerate import Accelerator

dist.init_process_group("oxccl")
accelerator = Accelerator(cpu=True)
assert accelerator.num_processes == dist.get_world_size() and dist.get_backend() == "oxccl"
torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 2))
batches = torch.utils.data.DataLoader(data, batch_size=8)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
for x, y in batches:
    optimizer.zero_grad()
    accelerator.backward((model(x) - y).square().mean())
    optimizer.step()
weight = accelerator.unwrap_model(model).weight.detach().flatten()
both = accelerator.gather(weight).reshape(accelerator.num_processes, -1)
assert torch.equal(both[0], both[-1])
accelerator.end_training()
print("accelerate done")
