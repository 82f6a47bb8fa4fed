"""PyTorch's backend: `torch.distributed.init_process_group("oxccl")`.

From torch 2.14 on this name suffices; for older ones `import oxccl.torch` comes first. Tensors of
the CPU are communicated, and of one GPU a rank; contiguous ones of every type that oxccl has, and
of others where nothing is reduced.

    import torch, torch.distributed as dist

    dist.init_process_group("oxccl")
    dist.all_reduce(torch.ones(1000))
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

import oxccl
from oxccl import _calls, _collectives, _errors, _gpu, _lists, _meeting, _messages
from oxccl import _shared_memory, _threads, _works
from oxccl._collectives import Collectives
from oxccl._compile import leave_as_they_are
from oxccl._errors import like
from oxccl._meeting import Meeting
from oxccl._works import Work

__all__ = ["ProcessGroup", "Work", "register", "use_shared_memory"]

_NAME = "oxccl"


def register() -> None:
    """Makes the backend known by its name."""
    if not hasattr(dist.Backend, _NAME.upper()):
        dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def use_shared_memory(
    group: dist.ProcessGroup | None = None, min_bytes: int = 64 << 10
) -> oxccl.Allocator:
    """From here on torch's tensors of the CPU lie in memory that all ranks of the machine reach in
    place, those of at least `min_bytes`: gradients, buckets, parameters. Calls then copy nothing.

    It is called once a process, on all ranks, before the model is made. It compiles a file of C++
    against this torch, unless it has before. Where the heap has no more memory
    (`OXCCL_HEAP_BYTES`), tensors lie where they usually do. A forked process writes to its
    parent's tensors, not to copies of them."""
    found = dist.group.WORLD if group is None else group
    if not isinstance(found, ProcessGroup):
        raise oxccl.UsageError("use_shared_memory needs a process group of the backend oxccl")
    return _shared_memory.use(found.communicator, min_bytes)


def _create(options: Any, _backend_options: Any = None) -> ProcessGroup:
    ranks = list(getattr(options, "global_ranks_in_group", None) or range(options.group_size))
    world = dist.group.WORLD

    def lost(members: Sequence[int]) -> oxccl.Error | None:
        """What the world knows of them, from which the new group is made."""
        comm = world._comm if isinstance(world, ProcessGroup) else None
        error = None if comm is None else comm.error()
        concerned = {ranks[member] for member in members}
        return error if error is not None and concerned.intersection(error.ranks) else None

    store, rank, size = options.store, options.group_rank, options.group_size
    timeout = options.timeout.total_seconds()
    comm = Meeting(store, rank, lost).connect(
        "unique_id", range(size), timeout, patience=timeout
    )
    return ProcessGroup(store, comm, options.timeout)


class ProcessGroup(Collectives):
    """A process group over a communicator of oxccl."""

    supports_splitting = True
    supports_coalescing = True
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    supports_abort_hooks = False
    supports_time_estimate = False

    def __init__(
        self,
        store: dist.Store,
        comm: oxccl.Communicator,
        timeout: datetime.timedelta,
    ) -> None:
        super().__init__(store, comm, timeout)
        self._name, self._desc = "", "undefined"
        self._splits = 0

    # What it is.

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getRank(self) -> int:
        return self._rank

    def getSize(self) -> int:
        return self._size

    def getBackendName(self) -> str:
        return _NAME

    def name(self) -> str:
        return _NAME

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    def getGroupName(self) -> str:
        return self._name

    group_name = property(getGroupName)

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    _set_group_desc = setGroupDesc

    def getGroupDesc(self) -> str:
        return self._desc

    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        # torch leaves groups in peace that have no devices when it looks for a place for its flight
        # recorder: that is a C++ backend, which this has not. All others are told the truth.
        if sys._getframe(1).f_code.co_name == "_maybe_attach_flight_recorder":
            return []
        has_gpu = torch.cuda.is_available()
        return [torch.device("cpu")] + [torch.device("cuda")] * has_gpu

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if torch.device(device).type not in ("cpu", "cuda"):
            raise RuntimeError(f"the backend oxccl has no tensors on {device}")
        return self

    get_backend = _get_backend

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        pass

    def _get_backend_name(self) -> str:
        return _NAME

    def _set_default_backend(self, _backend: Any) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        pass

    @property
    def options(self) -> Any:
        return dist.distributed_c10d.Backend.Options(_NAME, self._duration())

    def __repr__(self) -> str:
        return f"oxccl.torch.ProcessGroup(rank={self._rank}, size={self._size})"

    # Its life.

    def _duration(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self._timeout)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout.total_seconds()
        self.communicator.set_timeout(self._timeout)
        if self._gpu is not None:
            self._gpu.set_timeout(self._timeout)

    _set_default_timeout = set_timeout

    def get_error(self) -> Any:
        error = self._comm.error() if self._comm is not None else None
        if error is None and self._gpu is not None:
            error = self._gpu.error()
        kinds = torch._C._distributed_c10d.ErrorType
        if error is None:
            return kinds.SUCCESS
        return kinds.TIMEOUT if "timed out" in str(error) else kinds.COMM_ERROR

    def abort(self) -> None:
        if self._comm is not None:
            self._comm.abort("the process group has been aborted")
        if self._gpu is not None:
            self._gpu.abort("the process group has been aborted")
        self._messages.close()

    def shutdown(self) -> None:
        self._messages.close()
        completions, self._completions = self._completions, None
        if completions is not None:
            completions.close()
        gpu, self._gpu = self._gpu, None
        if gpu is not None:
            gpu.leave()
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.leave()
        self._messages.join()
        if completions is not None:
            completions.join()

    def splitGroup(
        self,
        ranks: list[int],
        timeout: datetime.timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        **_: Any,
    ) -> ProcessGroup | None:
        """All ranks of the group call it; those of `ranks` are together in the new one."""
        self._splits += 1
        is_member = self._rank in ranks
        color = ranks[0] if is_member else None
        part = self.communicator.split(color, ranks.index(self._rank) if is_member else 0)
        if part is None:
            return None
        name = group_name or f"{self._name}:split:{self._splits}:{color}"
        group = ProcessGroup(
            dist.PrefixStore(f"{name}/", self._store), part, timeout or self._duration()
        )
        group.setGroupName(name)
        group.setGroupDesc(group_desc or f"{self._desc}:split:{self._splits}")
        part.set_timeout(group._timeout)
        return group

    split_group = splitGroup

    def perform_nocolor_split(self, _device: torch.device) -> None:
        self.communicator.split(None)

    def eager_connect_single_device(self, device: torch.device | None = None) -> None:
        if device is not None and torch.device(device).type == "cuda":
            self._gpu_on(torch.device(device))

    def monitored_barrier(
        self, timeout: datetime.timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Waits for all ranks; on rank 0 the error names the first that has not come in time, or
        all of them."""
        seconds = self._timeout if timeout is None else timeout.total_seconds()
        if seconds <= 0:
            raise oxccl.UsageError(f"Rank {self._rank} timed out in monitoredBarrier")
        try:
            self.communicator.monitored_barrier(seconds)
        except oxccl.Error as error:
            late = [rank for rank in error.ranks if rank != self._rank]
            if not late:
                raise
            if self._rank != 0:
                text = (
                    f"Rank {self._rank} successfully reached monitoredBarrier, but received errors"
                    f" while waiting for send/recv from rank 0: {error}"
                )
            elif wait_all_ranks and len(late) > 1:
                names = ", ".join(map(str, sorted(late)))
                text = f"Ranks {names} failed to pass monitoredBarrier: {error}"
            else:
                text = f"Rank {min(late)} failed to pass monitoredBarrier: {error}"
            raise like(error, text) from None


leave_as_they_are(sys.modules[__name__], _calls, _collectives, _errors, _gpu, _lists)
leave_as_they_are(_meeting, _messages, _threads, _works)
register()
