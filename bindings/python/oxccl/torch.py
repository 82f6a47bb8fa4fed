"""PyTorch's backend: `torch.distributed.init_process_group("oxccl")`.

From torch 2.14 on this name suffices; for older ones `import oxccl.torch` comes first. Tensors of
the CPU are communicated; contiguous ones of every type that oxccl has, and of others where nothing
is reduced.

    import torch, torch.distributed as dist

    dist.init_process_group("oxccl")
    dist.all_reduce(torch.ones(1000))
"""

from __future__ import annotations

import datetime
import fcntl
import ipaddress
import os
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

import oxccl
from oxccl._messages import Message, Messages

__all__ = ["ProcessGroup", "Work", "register"]

_NAME = "oxccl"

# What asks the kernel for an interface's address.
_SIOCGIFADDR = 0x8915

_OPS = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "avg",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}


def register() -> None:
    """Makes the backend known by its name."""
    if not hasattr(dist.Backend, _NAME.upper()):
        dist.Backend.register_backend(_NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _backend_options: Any = None) -> ProcessGroup:
    return ProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout
    )


class Work(dist.Work):
    """A call, a group or messages under way."""

    def __init__(
        self,
        parts: Sequence[oxccl.Work | Message],
        tensors: list[Tensor],
        group: ProcessGroup,
        finish: Callable[[], None] | None = None,
        event: _Event | None = None,
    ) -> None:
        super().__init__()
        self._parts, self._tensors, self._group = parts, tensors, group
        self._finish = finish
        self._lock = threading.Lock()
        self._ended = False
        self._error: BaseException | None = None
        self._future: torch.futures.Future | None = None
        # Seconds that a wait takes at most, where the call was given a time-out of its own.
        self._limit: float | None = None
        self._event = event
        if event is not None:
            group._complete_later(self, None)

    def _end(self, timeout: float | None) -> bool:
        """Waits, and does once what comes behind the call."""
        if self._ended:
            return True
        try:
            for part in self._parts:
                if not part.wait(timeout):
                    return False
            error: BaseException | None = None
        except oxccl.Error as raised:
            error = _in_torchs_words(raised, self._group._rank)
        with self._lock:
            if not self._ended:
                if error is None and self._finish is not None:
                    self._finish()
                self._error, self._finish, self._ended = error, None, True
        return True

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        self._wait(timeout)
        if self._event is not None:
            self._event.ended.wait()
        return True

    def _wait(self, timeout: datetime.timedelta | None = None) -> None:
        seconds = timeout.total_seconds() if timeout else self._limit
        # The group's own time-out is that of its calls, which end by it; messages wait by theirs.
        if not self._end(self._group._message_timeout(self._parts, seconds)):
            raise oxccl.Error(self._late(seconds))
        if self._error is not None:
            raise self._error

    def _late(self, seconds: float | None) -> str:
        for part in self._parts:
            if isinstance(part, Message) and not part.is_done():
                peer = "any rank" if part.peer is None else f"rank {part.peer}"
                return f"Timed out: a message from or to {peer} with tag {part.tag} has not come"
        return f"Timed out: the work has not ended within {seconds} s"

    def is_completed(self) -> bool:
        if not self._ended and all(part.is_done() for part in self._parts):
            self._end(None)
        return self._ended

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        return self._tensors

    def source_rank(self) -> int:
        peer = getattr(self._parts[0], "peer", None) if self._parts else None
        if peer is None:
            raise oxccl.UsageError("only a message that has been received has a source")
        return peer

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is None:
                # Only what a callback raises is an error to torch's C++ code; `set_exception` is
                # one in Python alone, and DDP would read the exception as tensors.
                source: torch.futures.Future = torch.futures.Future()
                self._future = source.then(_value)
                if self._ended and self._error is None:
                    source.set_result(self._tensors)
                else:
                    self._group._complete_later(self, source)
            return self._future


def _value(done: torch.futures.Future) -> Any:
    return done.wait()


class _Event:
    """A call as torch's profiler shows it: from when it was made until it had ended, which another
    thread tells."""

    def __init__(self, name: str, tensors: Sequence[Tensor]) -> None:
        real = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
        record = torch.autograd._record_function_with_args_enter(f"{_NAME}:{name}", *real)
        # The profiler's state belongs to this thread; a future takes it to the one that ends it.
        self._future: torch.futures.Future = torch.futures.Future()
        torch.ops.profiler._call_end_callbacks_on_jit_fut(record, self._future)
        self.ended = threading.Event()

    def end(self) -> None:
        self._future.set_result(None)
        self.ended.set()


class ProcessGroup(dist.ProcessGroup):
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
        rank: int,
        size: int,
        timeout: datetime.timedelta,
        comm: oxccl.Communicator | None = None,
    ) -> None:
        super().__init__(store, rank, size)
        self._store, self._rank, self._size = store, rank, size
        self._timeout = timeout.total_seconds()
        self._name, self._desc = "", "undefined"
        if comm is None:
            comm = self._connect()
        self._comm: oxccl.Communicator | None = comm
        self._stream = oxccl.Stream()
        self._messages = Messages(store, rank, self._make_id, self._timeout)
        # The messages of a batch that is being made, and what is to be completed, in order.
        self._batch: list[tuple[str, Tensor, int | None, int]] | None = None
        self._completions: queue.SimpleQueue[Any] | None = None
        self._splits = 0
        self._sequence = 0

    def _make_id(self) -> oxccl.UniqueId:
        return oxccl.UniqueId(f"{_own_address(self._store)}:0")

    def _connect(self) -> oxccl.Communicator:
        unique_id: oxccl.UniqueId | str
        if self._rank == 0:
            unique_id = self._make_id()
            self._store.set("unique_id", str(unique_id))
        else:
            unique_id = self._store.get("unique_id").decode()
        return oxccl.Communicator(
            unique_id, self._rank, self._size, timeout=self._timeout, device="host"
        )

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
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"the backend oxccl has no tensors on {device} yet")
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

    @property
    def communicator(self) -> oxccl.Communicator:
        """The communicator below."""
        if self._comm is None:
            raise oxccl.UsageError("the process group has been destroyed")
        return self._comm

    def __repr__(self) -> str:
        return f"oxccl.torch.ProcessGroup(rank={self._rank}, size={self._size})"

    # Its life.

    def _duration(self) -> datetime.timedelta:
        return datetime.timedelta(seconds=self._timeout)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._timeout = timeout.total_seconds()
        self.communicator.set_timeout(self._timeout)

    _set_default_timeout = set_timeout

    def get_error(self) -> Any:
        error = self._comm.error() if self._comm is not None else None
        kinds = torch._C._distributed_c10d.ErrorType
        if error is None:
            return kinds.SUCCESS
        return kinds.TIMEOUT if "timed out" in str(error) else kinds.COMM_ERROR

    def abort(self) -> None:
        if self._comm is not None:
            self._comm.abort("the process group has been aborted")
        self._messages.close()

    def shutdown(self) -> None:
        self._messages.close()
        if self._completions is not None:
            self._completions.put(None)
            self._completions = None
        comm, self._comm = self._comm, None
        if comm is not None:
            comm.leave()

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
            dist.PrefixStore(f"{name}/", self._store),
            part.rank,
            part.world_size,
            timeout or self._duration(),
            part,
        )
        group.setGroupName(name)
        group.setGroupDesc(group_desc or f"{self._desc}:split:{self._splits}")
        part.set_timeout(group._timeout)
        return group

    split_group = splitGroup

    def perform_nocolor_split(self, _device: torch.device) -> None:
        self.communicator.split(None)

    def eager_connect_single_device(self, _device: torch.device | None = None) -> None:
        pass

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
            raise _like(error, text) from None

    # Works.

    def _message_timeout(
        self, parts: Sequence[oxccl.Work | Message], seconds: float | None
    ) -> float | None:
        if seconds is None and any(isinstance(part, Message) for part in parts):
            return self._timeout
        return seconds

    def _complete_later(self, work: Work, future: torch.futures.Future | None) -> None:
        if self._completions is None:
            self._completions = queue.SimpleQueue()
            run = threading.Thread(
                target=_complete, args=(self._completions,), daemon=True, name="oxccl-futures"
            )
            run.start()
        self._completions.put((work, future))

    def _run(
        self,
        name: str,
        opts: Any,
        tensors: list[Tensor],
        call: Callable[[oxccl.Communicator, oxccl.Stream | None], Any],
        finish: Callable[[], None] | None = None,
        inputs: Sequence[Tensor] | None = None,
    ) -> Work:
        """Makes a call, or a group, which `call` begins: blocking where that is asked for."""
        comm = self.communicator
        self._sequence += 1
        event = None
        if torch.autograd._profiler_enabled():
            event = _Event(name, tensors if inputs is None else inputs)
        limit = _limit(opts)
        is_blocking = opts is not None and not getattr(opts, "asyncOp", True)
        if event is None and limit is None and is_blocking:
            try:
                call(comm, None)
            except oxccl.Error as error:
                raise _in_torchs_words(error, self._rank) from None
            if finish is not None:
                finish()
            return Work((), tensors, self)
        work = Work((call(comm, self._stream),), tensors, self, finish, event)
        work._limit = limit
        return work

    # Collectives.

    def allreduce(self, tensors: Any, opts: Any = None) -> Work:
        if isinstance(tensors, Tensor):
            tensors = [tensors]
        if tensors[0].is_sparse:
            return self._reduce_sparse(tensors, opts)
        if isinstance(opts, (ReduceOp, ReduceOp.RedOpType)):
            op, opts = opts, None
        else:
            op = opts.reduceOp if opts is not None else ReduceOp.SUM
        if len(tensors) != 1:
            return self._reduce_all(tensors, op, opts)
        (tensor,) = tensors
        name, factor = _op(op)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.all_reduce(tensor, op=name, factor=factor, stream=stream)

        return self._run("all_reduce", opts, list(tensors), call)

    def _reduce_sparse(self, tensors: list[Tensor], opts: Any) -> Work:
        """Sums sparse tensors: all ranks get all indices and values, and add them up. It blocks."""
        (tensor,) = tensors
        if opts is not None and _op(opts.reduceOp) != ("sum", None):
            raise RuntimeError("sparse tensors are summed, and nothing else")
        comm = self.communicator
        own = tensor.coalesce()
        counts = torch.empty(self._size, dtype=torch.int64)
        comm.all_gather(torch.tensor([own._nnz()]), counts)
        entries: list[int] = counts.tolist()
        indices, values = own.indices().t().contiguous(), own.values().contiguous()

        def all_of(part: Tensor) -> Tensor:
            row = part[0].numel() if part.size(0) else part.shape[1:].numel()
            whole = torch.empty(sum(entries), *part.shape[1:], dtype=part.dtype)
            comm.all_gather(part, whole, counts=[entry * row for entry in entries])
            return whole

        result = torch.sparse_coo_tensor(all_of(indices).t(), all_of(values), tensor.shape)
        tensor.copy_(result.coalesce())
        return Work((), tensors, self)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        op = opts.reduceOp if opts is not None else ReduceOp.SUM
        return self._reduce_all(tensors, op, opts)

    def _reduce_all(self, tensors: list[Tensor], op: Any, opts: Any) -> Work:
        name, factor = _op(op)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            with comm.group(stream=stream) as group:
                for tensor in tensors:
                    comm.all_reduce(tensor, op=name, factor=factor)
            return group.work

        return self._run("all_reduce_coalesced", opts, list(tensors), call)

    def broadcast(self, tensors: Any, opts: Any = None, **_: Any) -> Work:
        if isinstance(tensors, Tensor):
            tensors = [tensors]
        root = opts if isinstance(opts, int) else opts.rootRank

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            if len(tensors) == 1:
                return comm.broadcast(tensors[0], root=root, stream=stream)
            with comm.group(stream=stream) as group:
                for tensor in tensors:
                    comm.broadcast(tensor, root=root)
            return group.work

        return self._run("broadcast", None if isinstance(opts, int) else opts, list(tensors), call)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        name, factor = _op(opts.reduceOp)
        (tensor,) = tensors

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.reduce(tensor, op=name, root=opts.rootRank, factor=factor, stream=stream)

        return self._run("reduce", opts, list(tensors), call)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        ((output,), (tensor,)) = (outputs, inputs)
        if len(output) != self._size:
            raise ValueError(f"all_gather needs {self._size} outputs, not {len(output)}")
        _check_types(tensor, output)
        flat, counts, finish = _scattered(output)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.all_gather(tensor.contiguous(), flat, counts=counts, stream=stream)

        return self._run("all_gather", opts, list(output), call, finish, inputs=[tensor])

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Work:
        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.all_gather(tensor, output, stream=stream)

        return self._run("all_gather_into_tensor", opts, [output], call, inputs=[tensor])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            with comm.group(stream=stream) as group:
                for output, tensor in zip(outputs, inputs, strict=True):
                    comm.all_gather(tensor, output)
            return group.work

        name = "all_gather_into_tensor_coalesced"
        return self._run(name, opts, list(outputs), call, inputs=inputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """`outputs[r][i]` is what rank r has as `inputs[i]`."""
        flats = [_scattered([output[i] for output in outputs]) for i in range(len(inputs))]

        def finish() -> None:
            for _, _, one in flats:
                if one is not None:
                    one()

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            with comm.group(stream=stream) as group:
                for (flat, counts, _), tensor in zip(flats, inputs, strict=True):
                    comm.all_gather(tensor.contiguous(), flat, counts=counts)
            return group.work

        tensors = [tensor for output in outputs for tensor in output]
        return self._run("all_gather_coalesced", opts, tensors, call, finish, inputs)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        (tensor,) = inputs
        if self._rank != opts.rootRank:

            def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
                return comm.gather(tensor.contiguous(), root=opts.rootRank, stream=stream)

            return self._run("gather", opts, [], call, inputs=[tensor])
        (output,) = outputs
        _check_types(tensor, output)
        flat, counts, finish = _scattered(output)
        if counts is not None:
            raise ValueError("gather needs outputs that are alike")

        def call_root(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.gather(tensor.contiguous(), flat, root=opts.rootRank, stream=stream)

        return self._run("gather", opts, list(output), call_root, finish, inputs=[tensor])

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        (output,) = outputs
        flat = None
        if self._rank == opts.rootRank:
            _check_types(output, inputs[0])
            flat = _gathered(inputs[0])

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.scatter(flat, output, root=opts.rootRank, stream=stream)

        return self._run("scatter", opts, [output], call, inputs=[output])

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> Work:
        ((output,), (tensors,)) = (outputs, inputs)
        _check_types(output, tensors)
        name, factor = _op(opts.reduceOp if opts is not None else ReduceOp.SUM)
        flat, counts = _gathered(tensors), _counts(tensors)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.reduce_scatter(
                flat, output, name, factor=factor, counts=counts, stream=stream
            )

        return self._run("reduce_scatter", opts, [output], call, inputs=tensors)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Work:
        name, factor = _op(opts.reduceOp if opts is not None else ReduceOp.SUM)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.reduce_scatter(tensor, output, name, factor=factor, stream=stream)

        return self._run("reduce_scatter_tensor", opts, [output], call, inputs=[tensor])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        name, factor = _op(opts.reduceOp if opts is not None else ReduceOp.SUM)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            with comm.group(stream=stream) as group:
                for output, tensor in zip(outputs, inputs, strict=True):
                    comm.reduce_scatter(tensor, output, name, factor=factor)
            return group.work

        title = "reduce_scatter_tensor_coalesced"
        return self._run(title, opts, list(outputs), call, inputs=inputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self,
        output: Tensor,
        tensor: Tensor,
        output_splits: list[int] | None,
        input_splits: list[int] | None,
        opts: Any = None,
    ) -> Work:
        send = recv = None
        if output_splits or input_splits:
            send = _split_counts(tensor, input_splits, self._size)
            recv = _split_counts(output, output_splits, self._size)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.all_to_all(
                tensor, output, send_counts=send, recv_counts=recv, stream=stream
            )

        return self._run("all_to_all", opts, [output], call, inputs=[tensor])

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        _check_types(inputs[0], [*inputs, *outputs])
        flat = _gathered(inputs)
        into, _, finish = _scattered(outputs)
        send = [tensor.numel() for tensor in inputs]
        recv = [tensor.numel() for tensor in outputs]

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.all_to_all(flat, into, send_counts=send, recv_counts=recv, stream=stream)

        return self._run("all_to_all", opts, list(outputs), call, finish, inputs=inputs)

    def barrier(self, opts: Any = None, **_: Any) -> Work:
        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.barrier(stream=stream)

        return self._run("barrier", opts, [], call)

    # Messages.

    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> Work | None:
        return self._message("send", tensors, dst, tag)

    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> Work | None:
        return self._message("recv", tensors, src, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work | None:
        return self._message("recv", tensors, None, tag)

    def _message(self, way: str, tensors: list[Tensor], peer: int | None, tag: int) -> Work | None:
        (tensor,) = tensors
        if self._batch is not None:
            self._batch.append((way, tensor, peer, tag))
            return Work((), [tensor], self)
        event = None
        if torch.autograd._profiler_enabled():
            event = _Event("recvAnySource" if peer is None else way, [tensor])
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

    def _end_coalescing(self, _device: torch.device) -> Work:
        batch, self._batch = self._batch or [], None
        tensors = [tensor for _, tensor, _, _ in batch]
        # Tags, any source and messages to oneself are what groups do not have.
        if any(tag != 0 or peer in (None, self._rank) for _, _, peer, tag in batch):
            return Work([self._post(*message) for message in batch], tensors, self)
        comm = self.communicator
        self._sequence += 1
        event = _Event("batch", tensors) if torch.autograd._profiler_enabled() else None
        with comm.group(stream=self._stream) as group:
            for way, tensor, peer, _ in batch:
                getattr(comm, way)(tensor, peer)
        return Work((group.work,), tensors, self, event=event)

    end_coalescing = _end_coalescing


def _complete(completions: queue.SimpleQueue[Any]) -> None:
    """Sets the results of futures, in the order in which their works end."""
    while True:
        entry = completions.get()
        if entry is None:
            return
        work, future = entry
        error = None
        try:
            work._wait()
        except Exception as raised:
            error = raised
        if future is None:
            work._event.end()
        elif error is None:
            future.set_result(work.result())
        else:
            future.set_exception(error)


def _limit(opts: Any) -> float | None:
    """Seconds of a call's own time-out. Without one, the group's is that of its communicator."""
    timeout = getattr(opts, "timeout", None)
    return timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else None


def _like(error: oxccl.Error, text: str) -> oxccl.Error:
    other = type(error)(text)
    other.ranks, other.fatal = error.ranks, error.fatal
    return other


def _in_torchs_words(error: oxccl.Error, rank: int) -> oxccl.Error:
    """The same, with the words by which programs know a time-out."""
    if "timed out" in str(error):
        return _like(error, f"[rank {rank}] Timed out ({error})")
    return error


def _op(op: Any) -> tuple[str, float | None]:
    kind = getattr(op, "op", op)
    if kind == ReduceOp.PREMUL_SUM:
        factor = op.factor
        return "mulsum", float(factor.item() if isinstance(factor, Tensor) else factor)
    name = _OPS.get(kind)
    if name is None:
        raise RuntimeError(f"the backend oxccl has no {op}")
    return name, None


def _check_types(tensor: Tensor, others: Sequence[Tensor]) -> None:
    for other in others:
        if other.dtype != tensor.dtype:
            raise ValueError(f"tensors of {tensor.dtype} and {other.dtype} in one call")


def _counts(tensors: Sequence[Tensor]) -> list[int] | None:
    """How many elements each has, where that differs."""
    counts = [tensor.numel() for tensor in tensors]
    return None if len(set(counts)) == 1 else counts


def _is_in_one_piece(tensors: Sequence[Tensor]) -> bool:
    address = tensors[0].data_ptr()
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.data_ptr() != address:
            return False
        address += tensor.numel() * tensor.element_size()
    storage = tensors[0].untyped_storage().data_ptr()
    return all(tensor.untyped_storage().data_ptr() == storage for tensor in tensors)


def _one_piece(tensors: Sequence[Tensor]) -> Tensor:
    count = sum(tensor.numel() for tensor in tensors)
    return tensors[0].detach().as_strided((count,), (1,))


def _gathered(tensors: Sequence[Tensor]) -> Tensor:
    """All tensors behind one another, copied only where they do not lie so."""
    if _is_in_one_piece(tensors):
        return _one_piece(tensors)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _scattered(
    tensors: Sequence[Tensor],
) -> tuple[Tensor, list[int] | None, Callable[[], None] | None]:
    """Memory for all tensors behind one another; how many elements each has, where that differs;
    and what copies them to where they belong, where they do not lie so."""
    if _is_in_one_piece(tensors):
        return _one_piece(tensors), _counts(tensors), None
    counts = [tensor.numel() for tensor in tensors]
    flat = torch.empty(sum(counts), dtype=tensors[0].dtype)

    def finish() -> None:
        for tensor, part in zip(tensors, flat.split(counts), strict=True):
            tensor.detach().copy_(part.view(tensor.shape))

    return flat, _counts(tensors), finish


def _split_counts(tensor: Tensor, splits: list[int] | None, size: int) -> list[int]:
    rows = tensor.size(0)
    if not splits:
        if rows % size:
            raise ValueError(f"{rows} rows cannot be split evenly among {size} ranks")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ValueError(f"splits {splits} do not fit {rows} rows and {size} ranks")
    row = tensor.numel() // rows if rows else 0
    return [split * row for split in splits]


def _own_address(store: Any) -> str:
    """The address under which the ranks that know this store reach this machine: that of
    OXCCL_INTERFACE, or the one from which this machine reaches the store's."""
    interface = os.environ.get("OXCCL_INTERFACE", "")
    if interface:
        return _address_of(interface)
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None) or os.environ.get("MASTER_ADDR", "127.0.0.1")
    family, kind, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return _bracketed(probe.getsockname()[0])


def _address_of(interface: str) -> str:
    """An address as it is, or that of an interface by its name."""
    try:
        return _bracketed(str(ipaddress.ip_address(interface)))
    except ValueError:
        pass
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
        except OSError as error:
            text = f"OXCCL_INTERFACE: {interface!r} is no interface with an address: {error}"
            raise oxccl.UsageError(text) from None
    return socket.inet_ntoa(answer[20:24])


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


register()
