"""Ray's collectives over oxccl: `ray.util.collective` with `backend="OXCCL"`.

Import it in the driver and in each actor, before groups are made:

    import oxccl.ray
    from ray.util import collective

    collective.init_collective_group(world_size, rank, backend="OXCCL", group_name="default")
    collective.allreduce(array)

Arrays are numpy's, or torch's of the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
import ray.util
from ray.experimental import internal_kv
from ray.util.collective.backend_registry import register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import (
    AllGatherOptions,
    AllReduceOptions,
    BarrierOptions,
    BroadcastOptions,
    RecvOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    SendOptions,
)

import oxccl

__all__ = ["Group", "register"]

_NAME = "OXCCL"

_OPS = {
    ReduceOp.SUM: "sum",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
}

# Seconds that the ranks of a group have to come together, and between two looks for the first.
_TIMEOUT, _LOOK = 60.0, 0.01


class Group(BaseGroup):
    """A group over a communicator of oxccl."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        key = f"oxccl_{group_name}"
        unique_id: oxccl.UniqueId | str
        if rank == 0:
            unique_id = oxccl.UniqueId(f"{ray.util.get_node_ip_address()}:0")
            internal_kv._internal_kv_put(key, str(unique_id), overwrite=True)
        else:
            unique_id = self._found(key)
        self._comm: oxccl.Communicator | None = oxccl.Communicator(
            unique_id, rank, world_size, timeout=_TIMEOUT, device="host"
        )
        if rank == 0:
            internal_kv._internal_kv_del(key)

    def _found(self, key: str) -> str:
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            found = internal_kv._internal_kv_get(key)
            if found is not None:
                return str(found.decode())
            time.sleep(_LOOK)
        text = f"rank 0 of the group {self.group_name} has not come within {_TIMEOUT} s"
        raise oxccl.Error(text)

    @property
    def communicator(self) -> oxccl.Communicator:
        """The communicator below."""
        if self._comm is None:
            raise oxccl.UsageError("the group has been destroyed")
        return self._comm

    @classmethod
    def backend(cls) -> str:
        return _NAME

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True

    def destroy_group(self) -> None:
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.leave()

    def allreduce(self, tensor: Any, allreduce_options: Any = AllReduceOptions()) -> None:
        self.communicator.all_reduce(_one(tensor), op=_op(allreduce_options))

    def barrier(self, barrier_options: Any = BarrierOptions()) -> None:
        self.communicator.barrier()

    def reduce(self, tensor: Any, reduce_options: Any = ReduceOptions()) -> None:
        root = reduce_options.root_rank
        self.communicator.reduce(_one(tensor), op=_op(reduce_options), root=root)

    def allgather(
        self, tensor_list: Any, tensor: Any, allgather_options: Any = AllGatherOptions()
    ) -> None:
        outputs, own = _one(tensor_list), _one(tensor)
        flat = _flat(outputs)
        self.communicator.all_gather(own, flat)
        for output, part in zip(outputs, _parts(flat, outputs), strict=True):
            output[...] = part

    def broadcast(self, tensor: Any, broadcast_options: Any = BroadcastOptions()) -> None:
        self.communicator.broadcast(_one(tensor), root=broadcast_options.root_rank)

    def reducescatter(
        self,
        tensor: Any,
        tensor_list: Any,
        reducescatter_options: Any = ReduceScatterOptions(),
    ) -> None:
        inputs = _one(tensor_list)
        flat = _flat(inputs)
        for given, part in zip(inputs, _parts(flat, inputs), strict=True):
            part[...] = given
        self.communicator.reduce_scatter(flat, _one(tensor), _op(reducescatter_options))

    def send(self, tensor: Any, send_options: SendOptions) -> None:
        self.communicator.send(_one(tensor), send_options.dst_rank)

    def recv(self, tensor: Any, recv_options: RecvOptions) -> None:
        self.communicator.recv(_one(tensor), recv_options.src_rank)


def _one(listed: Any) -> Any:
    """Ray gives a list with an array for each device, of which there is one."""
    if len(listed) != 1:
        raise oxccl.UsageError(f"{len(listed)} arrays for one device")
    return listed[0]


def _op(options: Any) -> str:
    return _OPS[options.reduceOp]


def _flat(arrays: Sequence[Any]) -> Any:
    """Memory for all of these behind one another, of their own library."""
    first = arrays[0]
    if any(one.shape != first.shape or one.dtype != first.dtype for one in arrays):
        raise oxccl.UsageError("the arrays of a list must have one shape and type")
    shape = (len(arrays), *first.shape)
    if hasattr(first, "data_ptr"):
        return first.new_empty(shape)
    import numpy

    return numpy.empty(shape, first.dtype)


def _parts(flat: Any, arrays: Sequence[Any]) -> list[Any]:
    return [flat[place] for place in range(len(arrays))]


def register() -> None:
    """Makes the backend known by its name."""
    from ray.util.collective.backend_registry import _global_registry

    if not _global_registry.is_registered(_NAME):
        register_collective_backend(_NAME, Group)


register()
