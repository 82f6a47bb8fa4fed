"""The collectives that torch calls, as calls and groups of a communicator."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import AllreduceOptions, ReduceOp

import oxccl
from oxccl._calls import Calls, Result, limit_of, refuse_limit
from oxccl._errors import in_torchs_words
from oxccl._lists import check_types, counts_of, gathered, scattered, split_counts
from oxccl._works import done

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


class Collectives(Calls):
    """Each is a call; in a batch, a part of it."""

    def allreduce(self, tensors: Any, opts: Any = None) -> Result:
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

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Result:
        op = opts.reduceOp if opts is not None else ReduceOp.SUM
        return self._reduce_all(tensors, op, opts)

    def _reduce_all(self, tensors: list[Tensor], op: Any, opts: Any) -> Result:
        name, factor = _op(op)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            with comm.group(stream=stream) as group:
                for tensor in tensors:
                    comm.all_reduce(tensor, op=name, factor=factor)
            return group.work

        return self._run("all_reduce_coalesced", opts, list(tensors), call)

    def broadcast(self, tensors: Any, opts: Any = None, **_: Any) -> Result:
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

    def reduce(self, tensors: list[Tensor], opts: Any) -> Result:
        name, factor = _op(opts.reduceOp)
        (tensor,) = tensors

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.reduce(tensor, op=name, root=opts.rootRank, factor=factor, stream=stream)

        return self._run("reduce", opts, list(tensors), call)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Result:
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

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Result:
        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.all_gather(tensor, output, stream=stream)

        return self._run("all_gather_into_tensor", opts, [output], call, inputs=[tensor])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Result:
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
    ) -> Result:
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

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Result:
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

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Result:
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
    ) -> Result:
        ((output,), (tensors,)) = (outputs, inputs)
        check_types(output, tensors)
        name, factor = _op(opts.reduceOp if opts is not None else ReduceOp.SUM)
        flat, counts = gathered(tensors), counts_of(tensors)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.reduce_scatter(
                flat, output, name, factor=factor, counts=counts, stream=stream
            )

        return self._run("reduce_scatter", opts, [output], call, inputs=tensors)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> Result:
        name, factor = _op(opts.reduceOp if opts is not None else ReduceOp.SUM)

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.reduce_scatter(tensor, output, name, factor=factor, stream=stream)

        return self._run("reduce_scatter_tensor", opts, [output], call, inputs=[tensor])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Result:
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
    ) -> Result:
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

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Result:
        check_types(inputs[0], [*inputs, *outputs])
        flat = gathered(inputs)
        into, _, finish = scattered(outputs)
        send = [tensor.numel() for tensor in inputs]
        recv = [tensor.numel() for tensor in outputs]

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.all_to_all(flat, into, send_counts=send, recv_counts=recv, stream=stream)

        return self._run("all_to_all", opts, list(outputs), call, finish, inputs=inputs)

    def barrier(self, opts: Any = None, **_: Any) -> Result:
        device = getattr(opts, "device", None)
        if device is not None and device.type == "cuda":
            refuse_limit(limit_of(opts))
            return self._gpu_on(device).barrier()

        def call(comm: oxccl.Communicator, stream: oxccl.Stream | None) -> Any:
            return comm.barrier(stream=stream)

        return self._run("barrier", opts, [], call)


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
