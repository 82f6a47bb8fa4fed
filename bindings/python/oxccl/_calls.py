"""How a process group's calls are made: here or on a stream, of the host or of a GPU, and in
batches."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import oxccl
from oxccl._errors import in_torchs_words
from oxccl._gpu import Gpu
from oxccl._meeting import Meeting
from oxccl._messages import Message, Messages
from oxccl._works import Completions, ProfilerEvent, Work, done

# What torch has calls return: one that has blocked has no work.
Result = dist.Work | None
_NO_TIME = datetime.timedelta()
_is_profiled = torch.autograd._profiler_enabled


class Calls(dist.ProcessGroup):
    """A communicator, that of a GPU once there is one, and what is under way."""

    def __init__(
        self,
        store: dist.Store,
        comm: oxccl.Communicator,
        timeout: datetime.timedelta,
    ) -> None:
        super().__init__(comm.rank, comm.world_size)
        self._store, self._rank, self._size = store, comm.rank, comm.world_size
        self._timeout = timeout.total_seconds()
        self._comm: oxccl.Communicator | None = comm
        self._meeting = Meeting(store, comm.rank, self._lost)
        self._stream = oxccl.Stream()
        self._gpu: Gpu | None = None
        self._messages = Messages(self._meeting, self._rank, self._timeout)
        # The calls of a batch that is being made, and what is to be completed, in order.
        self._batch: list[Deferred] | None = None
        self._completions: Completions | None = None
        self._sequence = 0

    def _lost(self, ranks: Sequence[int]) -> oxccl.Error | None:
        """Why one of these is lost, as far as the group knows."""
        error = None if self._comm is None else self._comm.error()
        return error if error is not None and set(ranks).intersection(error.ranks) else None

    @property
    def communicator(self) -> oxccl.Communicator:
        """The communicator below."""
        if self._comm is None:
            raise oxccl.UsageError("the process group has been destroyed")
        return self._comm

    @property
    def gpu_communicator(self) -> oxccl.Communicator | None:
        """The communicator of this rank's GPU, once one of its tensors has been communicated."""
        return None if self._gpu is None else self._gpu.comm

    # Where its calls run.

    def _gpu_on(self, device: torch.device) -> Gpu:
        """This rank's GPU. All ranks come to the first call."""
        if self._gpu is None:
            self.communicator  # noqa: B018: fails where there is none
            index = torch.cuda.current_device() if device.index is None else device.index
            device_of_rank = torch.device("cuda", index)
            self._gpu = Gpu(self._meeting, self._rank, self._size, device_of_rank, self._timeout)
        if device.index not in (None, self._gpu.device.index):
            raise oxccl.UsageError(
                f"a tensor is on {device}, and this process group's GPU is {self._gpu.device}: a"
                " rank has one GPU"
            )
        return self._gpu

    def _gpu_of(self, tensors: Sequence[Tensor]) -> Gpu | None:
        """The GPU of these tensors, if they are not the host's."""
        if tensors and not tensors[0].is_cpu:
            device = tensors[0].device
            if device.type != "cuda":
                raise oxccl.UsageError(f"the backend oxccl has no tensors on {device}")
            return self._gpu_on(device)
        return None

    # Works.

    def _message_timeout(
        self, parts: Sequence[oxccl.Work | Message], seconds: float | None
    ) -> float | None:
        if seconds is None and any(isinstance(part, Message) for part in parts):
            return self._timeout
        return seconds

    def _complete_later(self, work: Work, future: torch.futures.Future | None) -> None:
        if self._completions is None:
            self._completions = Completions()
        self._completions.put(work, future)

    def _is_plain(self, opts: Any, tensor: Tensor) -> bool:
        """Whether a call is one of the host's that blocks, and has nothing else to be done."""
        return (
            opts is not None
            and not opts.asyncOp
            and tensor.is_cpu
            and self._batch is None
            and opts.timeout <= _NO_TIME
            and not _is_profiled()
        )

    def _run(
        self,
        name: str,
        opts: Any,
        tensors: list[Tensor],
        call: Callable[[oxccl.Communicator, oxccl.Stream | None], Any],
        finish: Callable[[], None] | None = None,
        inputs: Sequence[Tensor] | None = None,
    ) -> Result:
        """Makes a call, or a group, which `call` begins: blocking where that is asked for."""
        comm = self.communicator
        if self._batch is not None:
            self._batch.append(Deferred(call, tensors, inputs, finish))
            return done(tensors)
        self._sequence += 1
        limit = limit_of(opts)
        is_blocking = opts is not None and not getattr(opts, "asyncOp", True)
        inputs = tensors if inputs is None else inputs
        gpu = self._gpu_of(inputs)
        if gpu is not None:
            refuse_limit(limit)
            return gpu.run(name, tensors, call, finish, inputs, is_blocking)
        event = None
        if _is_profiled():
            event = ProfilerEvent(name, inputs)
        elif limit is None and is_blocking:
            try:
                call(comm, None)
            except oxccl.Error as error:
                raise in_torchs_words(error, self._rank) from None
            if finish is not None:
                finish()
            return None
        work = Work((call(comm, self._stream),), tensors, self, finish, event)
        work._limit = limit
        return work

    # Messages.

    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> dist.Work:
        return self._message("send", tensors, dst, tag)

    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> dist.Work:
        return self._message("recv", tensors, src, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> dist.Work:
        return self._message("recv", tensors, None, tag)

    def _message(self, way: str, tensors: list[Tensor], peer: int | None, tag: int) -> dist.Work:
        (tensor,) = tensors
        if self._batch is not None:

            def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
                return getattr(comm, way)(tensor, peer, stream=stream)

            self._batch.append(Deferred(call, tensors, message=(way, peer, tag)))
            return done(tensors)
        gpu = self._gpu_of(tensors)
        if gpu is not None:
            return gpu.message(way, tensor, _known(peer, tag))
        event = None
        if torch.autograd._profiler_enabled():
            event = ProfilerEvent("recvAnySource" if peer is None else way, [tensor])
        return Work((self._post(way, tensor, peer, tag),), [tensor], self, event=event)

    def _post(self, way: str, tensor: Tensor, peer: int | None, tag: int) -> Message:
        self.communicator  # noqa: B018: fails where there is none
        self._sequence += 1
        if way == "send":
            assert peer is not None
            return self._messages.send(tensor, peer, tag)
        return self._messages.recv(tensor, peer, tag, self._size)

    def _start_coalescing(self, _device: torch.device) -> None:
        if self._batch is not None:
            raise RuntimeError("a batch is being made already")
        self._batch = []

    start_coalescing = _start_coalescing

    def _end_coalescing(self, _device: torch.device) -> dist.Work:
        batch, self._batch = self._batch or [], None
        tensors = [tensor for call in batch for tensor in call.tensors]
        gpu = self._gpu_of([*tensors, *(tensor for call in batch for tensor in call.inputs)])
        if gpu is not None:
            self._sequence += 1
            for call in batch:
                call.check_gpu()
            return gpu.batch(batch, tensors)
        # Tags, any source and messages to oneself are what groups do not have.
        has_unlike = any(call.is_unlike_groups(self._rank) for call in batch)
        posted = [call for call in batch if has_unlike and call.message is not None]
        parts: list[oxccl.Work | Message] = []
        for call in posted:
            way, peer, tag = call.message
            parts.append(self._post(way, call.tensors[0], peer, tag))
        grouped = [call for call in batch if call not in posted]
        event = None
        if grouped:
            comm = self.communicator
            self._sequence += 1
            event = ProfilerEvent("batch", tensors) if torch.autograd._profiler_enabled() else None
            with comm.group(stream=self._stream) as group:
                for call in grouped:
                    call.call(comm, None)
            assert group.work is not None
            parts.append(group.work)
        return Work(parts, tensors, self, _all_of(grouped), event)

    end_coalescing = _end_coalescing


class Deferred:
    """A call of a batch, which is made at its end."""

    def __init__(
        self,
        call: Callable[[oxccl.Communicator, Any], Any],
        tensors: list[Tensor],
        inputs: Sequence[Tensor] | None = None,
        finish: Callable[[], None] | None = None,
        message: Any = None,
    ) -> None:
        """`message`: whether it sends or receives, the other rank and the tag."""
        self.call, self.tensors, self.finish, self.message = call, tensors, finish, message
        self.inputs = tensors if inputs is None else inputs

    def is_unlike_groups(self, rank: int) -> bool:
        if self.message is None:
            return False
        _, peer, tag = self.message
        return tag != 0 or peer in (None, rank)

    def check_gpu(self) -> None:
        if self.message is not None:
            _known(*self.message[1:])


def _all_of(batch: Sequence[Deferred]) -> Callable[[], None] | None:
    """What comes behind all of these calls, if anything."""
    finishes = [call.finish for call in batch if call.finish is not None]

    def finish() -> None:
        for one in finishes:
            one()

    return finish if finishes else None


def limit_of(opts: Any) -> float | None:
    """Seconds of a call's own time-out. Without one, the group's is that of its communicator."""
    timeout = getattr(opts, "timeout", None)
    return None if timeout is None or timeout <= _NO_TIME else timeout.total_seconds()


def refuse_limit(limit: float | None) -> None:
    if limit is not None:
        raise oxccl.UsageError(
            "calls with tensors of GPUs have the process group's time-out, and none of their own"
        )


def _known(peer: int | None, tag: int) -> int:
    """The other rank of a message between GPUs, which match in their order."""
    if tag != 0:
        raise oxccl.UsageError("messages between GPUs have no tags: they match in their order")
    if peer is None:
        raise oxccl.UsageError("a message to a GPU is received from a rank that is named")
    return peer
