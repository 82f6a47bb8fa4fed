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
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import AllreduceOptions, ReduceOp

import oxccl
from oxccl import _gpu, _lists, _messages, _shared_memory, _threads, _works
from oxccl._address import own_address
from oxccl._compile import leave_as_they_are
from oxccl._gpu import Gpu
from oxccl._lists import check_types, counts_of, gathered, scattered, split_counts
from oxccl._messages import Message, Messages
from oxccl._works import Completions, ProfilerEvent, Work, done, in_torchs_words, like

__all__ = ["ProcessGroup", "Work", "register", "use_shared_memory"]

_NAME = "oxccl"
# What torch has calls return: one that has blocked has no work.
_Result = dist.Work | None
_NO_TIME = datetime.timedelta()
_is_profiled = torch.autograd._profiler_enabled

_SUM = ReduceOp.SUM
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
    return ProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout
    )


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
        super().__init__(rank, size)
        self._store, self._rank, self._size = store, rank, size
        self._timeout = timeout.total_seconds()
        self._name, self._desc = "", "undefined"
        if comm is None:
            comm = self._connect()
        self._comm: oxccl.Communicator | None = comm
        self._stream = oxccl.Stream()
        self._gpu: Gpu | None = None
        self._messages = Messages(store, rank, self._make_id, self._timeout)
        # The calls of a batch that is being made, and what is to be completed, in order.
        self._batch: list[_Deferred] | None = None
        self._completions: Completions | None = None
        self._splits = 0
        self._sequence = 0

    def _make_id(self) -> oxccl.UniqueId:
        return oxccl.UniqueId(f"{own_address(self._store)}:0")

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

    # Where its calls run.

    def _gpu_on(self, device: torch.device) -> Gpu:
        """This rank's GPU. All ranks come to the first call."""
        if self._gpu is None:
            self.communicator  # noqa: B018: fails where there is none
            index = torch.cuda.current_device() if device.index is None else device.index
            self._gpu = Gpu(
                self._store,
                self._rank,
                self._size,
                torch.device("cuda", index),
                self._timeout,
                self._make_id,
            )
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
    ) -> _Result:
        """Makes a call, or a group, which `call` begins: blocking where that is asked for."""
        comm = self.communicator
        if self._batch is not None:
            self._batch.append(_Deferred(call, tensors, inputs, finish))
            return done(tensors)
        self._sequence += 1
        limit = _limit(opts)
        is_blocking = opts is not None and not getattr(opts, "asyncOp", True)
        inputs = tensors if inputs is None else inputs
        gpu = self._gpu_of(inputs)
        if gpu is not None:
            _refuse_limit(limit)
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

    # Collectives.

    def allreduce(self, tensors: Any, opts: Any = None) -> _Result:
        if type(tensors) is not list:
            tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        tensor = tensors[0]
        if tensor.is_sparse:
            return self._reduce_sparse(tensors, opts)
        if type(opts) is AllreduceOptions:
            op = opts.reduceOp
        elif isinstance(opts, (ReduceOp, ReduceOp.RedOpType)):
            op, opts = opts, None
        else:
            op = opts.reduceOp if opts is not None else ReduceOp.SUM
        if len(tensors) != 1:
            return self._reduce_all(tensors, op, opts)
        name, factor = _op(op)
        comm = self._comm
        if factor is None and comm is not None and self._is_plain(opts, tensor):
            # As `_run` would, in half of its time: this is what programs call most.
            self._sequence += 1
            try:
                comm.all_reduce(tensor, None, name)
            except oxccl.Error as error:
                raise in_torchs_words(error, self._rank) from None
            return None

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.all_reduce(tensor, op=name, factor=factor, stream=stream)

        return self._run("all_reduce", opts, tensors, call)

    def _reduce_sparse(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        """Sums sparse tensors: all ranks get all indices and values, and add them up. It blocks."""
        (tensor,) = tensors
        if not tensor.is_cpu:
            raise oxccl.UsageError(f"sparse tensors on {tensor.device} are not summed: to_dense()")
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
        return done(tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> _Result:
        op = opts.reduceOp if opts is not None else ReduceOp.SUM
        return self._reduce_all(tensors, op, opts)

    def _reduce_all(self, tensors: list[Tensor], op: Any, opts: Any) -> _Result:
        name, factor = _op(op)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            with comm.group(stream=stream) as group:
                for tensor in tensors:
                    comm.all_reduce(tensor, op=name, factor=factor)
            return group.work

        return self._run("all_reduce_coalesced", opts, list(tensors), call)

    def broadcast(self, tensors: Any, opts: Any = None, **_: Any) -> _Result:
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

    def reduce(self, tensors: list[Tensor], opts: Any) -> _Result:
        name, factor = _op(opts.reduceOp)
        (tensor,) = tensors

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.reduce(tensor, op=name, root=opts.rootRank, factor=factor, stream=stream)

        return self._run("reduce", opts, list(tensors), call)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> _Result:
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        ((output,), (tensor,)) = (outputs, inputs)
        if len(output) != self._size:
            raise ValueError(f"all_gather needs {self._size} outputs, not {len(output)}")
        check_types(tensor, output)
        flat, counts, finish = scattered(output)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.all_gather(tensor.contiguous(), flat, counts=counts, stream=stream)

        return self._run("all_gather", opts, list(output), call, finish, inputs=[tensor])

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> _Result:
        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.all_gather(tensor, output, stream=stream)

        return self._run("all_gather_into_tensor", opts, [output], call, inputs=[tensor])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> _Result:
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
    ) -> _Result:
        """`outputs[r][i]` is what rank r has as `inputs[i]`."""
        flats = [scattered([output[i] for output in outputs]) for i in range(len(inputs))]

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

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> _Result:
        (tensor,) = inputs
        if self._rank != opts.rootRank:

            def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
                return comm.gather(tensor.contiguous(), root=opts.rootRank, stream=stream)

            return self._run("gather", opts, [], call, inputs=[tensor])
        (output,) = outputs
        check_types(tensor, output)
        flat, counts, finish = scattered(output)
        if counts is not None:
            raise ValueError("gather needs outputs that are alike")

        def call_root(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.gather(tensor.contiguous(), flat, root=opts.rootRank, stream=stream)

        return self._run("gather", opts, list(output), call_root, finish, inputs=[tensor])

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> _Result:
        (output,) = outputs
        flat = None
        if self._rank == opts.rootRank:
            check_types(output, inputs[0])
            flat = gathered(inputs[0])

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.scatter(flat, output, root=opts.rootRank, stream=stream)

        return self._run("scatter", opts, [output], call, inputs=[output])

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> _Result:
        ((output,), (tensors,)) = (outputs, inputs)
        check_types(output, tensors)
        name, factor = _op(opts.reduceOp if opts is not None else ReduceOp.SUM)
        flat, counts = gathered(tensors), counts_of(tensors)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.reduce_scatter(
                flat, output, name, factor=factor, counts=counts, stream=stream
            )

        return self._run("reduce_scatter", opts, [output], call, inputs=tensors)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> _Result:
        name, factor = _op(opts.reduceOp if opts is not None else ReduceOp.SUM)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.reduce_scatter(tensor, output, name, factor=factor, stream=stream)

        return self._run("reduce_scatter_tensor", opts, [output], call, inputs=[tensor])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> _Result:
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
    ) -> _Result:
        send = recv = None
        if output_splits or input_splits:
            send = split_counts(tensor, input_splits, self._size)
            recv = split_counts(output, output_splits, self._size)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.all_to_all(
                tensor, output, send_counts=send, recv_counts=recv, stream=stream
            )

        return self._run("all_to_all", opts, [output], call, inputs=[tensor])

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> _Result:
        check_types(inputs[0], [*inputs, *outputs])
        flat = gathered(inputs)
        into, _, finish = scattered(outputs)
        send = [tensor.numel() for tensor in inputs]
        recv = [tensor.numel() for tensor in outputs]

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.all_to_all(flat, into, send_counts=send, recv_counts=recv, stream=stream)

        return self._run("all_to_all", opts, list(outputs), call, finish, inputs=inputs)

    def barrier(self, opts: Any = None, **_: Any) -> _Result:
        device = getattr(opts, "device", None)
        if device is not None and device.type == "cuda":
            _refuse_limit(_limit(opts))
            return self._gpu_on(device).barrier()

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.barrier(stream=stream)

        return self._run("barrier", opts, [], call)

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

            self._batch.append(_Deferred(call, tensors, message=(way, peer, tag)))
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


class _Deferred:
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


def _all_of(batch: Sequence[_Deferred]) -> Callable[[], None] | None:
    """What comes behind all of these calls, if anything."""
    finishes = [call.finish for call in batch if call.finish is not None]

    def finish() -> None:
        for one in finishes:
            one()

    return finish if finishes else None


def _limit(opts: Any) -> float | None:
    """Seconds of a call's own time-out. Without one, the group's is that of its communicator."""
    timeout = getattr(opts, "timeout", None)
    return None if timeout is None or timeout <= _NO_TIME else timeout.total_seconds()


def _refuse_limit(limit: float | None) -> None:
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


def _op(op: Any) -> tuple[str, float | None]:
    # The most frequent one first: what follows takes longer than a small all-reduce.
    if op == _SUM:
        return "sum", None
    kind = getattr(op, "op", op)
    if kind == ReduceOp.PREMUL_SUM:
        factor = op.factor
        return "mulsum", float(factor.item() if isinstance(factor, Tensor) else factor)
    name = _OPS.get(kind)
    if name is None:
        raise RuntimeError(f"the backend oxccl has no {op}")
    return name, None


leave_as_they_are(sys.modules[__name__], _gpu, _lists, _messages, _threads, _works)
register()
