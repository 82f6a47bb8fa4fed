"""Ray's collectives by two actors, on arrays of numpy and torch."""

import numpy as np
import ray
import torch
from ray.util import collective

import oxccl.ray  # noqa: F401: it makes the backend known

WORLD = 2


@ray.remote(num_cpus=0)
class Rank:
    def __init__(self, rank: int) -> None:
        import oxccl.ray  # noqa: F401

        self.rank = rank
        collective.init_collective_group(WORLD, rank, backend="OXCCL", group_name="mine")

    def run(self) -> bool:
        rank = self.rank
        own = np.full(1000, rank + 1.0, "float32")
        collective.allreduce(own, "mine")
        assert (own == 3).all()
        tensor = torch.full((10,), rank + 1)
        collective.allreduce(tensor, "mine", collective.types.ReduceOp.MAX)
        assert (tensor == WORLD).all()
        outputs = [np.empty((3, 2)) for _ in range(WORLD)]
        collective.allgather(outputs, np.full((3, 2), float(rank)), "mine")
        assert all((output == peer).all() for peer, output in enumerate(outputs))
        root = np.full(5, float(rank))
        collective.broadcast(root, 1, "mine")
        assert (root == 1).all()
        part = np.empty(4, "float32")
        inputs = [np.full(4, peer + 1.0, "float32") for peer in range(WORLD)]
        collective.reducescatter(part, inputs, "mine")
        assert (part == WORLD * (rank + 1)).all()
        message = np.full(7, 9.0 - rank)
        if rank == 0:
            collective.send(message, 1, "mine")
        else:
            collective.recv(message, 0, "mine")
        assert (message == 9).all()
        total = np.ones(3)
        collective.reduce(total, 0, "mine")
        assert rank != 0 or (total == WORLD).all()
        collective.barrier("mine")
        collective.destroy_collective_group("mine")
        return True


ray.init(num_cpus=2, include_dashboard=False)
ranks = [Rank.remote(rank) for rank in range(WORLD)]
assert all(ray.get([rank.run.remote() for rank in ranks]))
ray.shutdown()
print("ray done")
