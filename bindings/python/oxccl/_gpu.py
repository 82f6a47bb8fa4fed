"""What a process group has on a GPU: calls in torch's streams, as torch's users know them of NCCL.

A call that blocks goes into the current stream. Any other goes into a stream of the group's, which
follows the current one; its work's `wait` makes the then current stream follow the call, and no
thread waits. Messages between two ranks go over a communicator of theirs, made at the first one.
"""

from __future__ import annotations

import contextlib
import datetime
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import oxccl
from oxccl._works import in_torchs_words

_NAME = "oxccl"

# What a call needs of the group: its communicator, and the stream.
Call = Callable[[oxccl.Communicator, Any], Any]


class GpuWork(dist.Work):
    """A call, a group or messages in a stream of a GPU."""

    def __init__(
        self, rank: int, part: oxccl.Work | None, tensors: list[Tensor], stream: torch.cuda.Stream
    ) -> None:
        super().__init__()
        self._rank, self._part, self._tensors, self._stream = rank, part, tensors, stream
        self.end = stream.record_event()
        self._future: torch.futures.Future | None = None

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """The current stream goes on behind the call. With a time-out, this thread waits."""
        if timeout is not None and timeout.total_seconds() > 0:
            self.wait_here(timeout.total_seconds())
        current = torch.cuda.current_stream(self._stream.device)
        if current != self._stream:
            current.wait_event(self.end)
        error = self.exception()
        if error is not None:
            raise error
        return True

    def wait_here(self, seconds: float | None = None) -> None:
        """Waits in this thread, at most so many seconds."""
        with _in_torchs_words(self._rank):
            if self._part is not None and not self._part.wait(seconds):
                raise oxccl.Error(f"Timed out: the call has not ended within {seconds} s")
        # What comes behind the call in its stream.
        self.end.synchronize()

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.end.query()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Why it has failed, as far as that is known by now."""
        if torch.cuda.is_current_stream_capturing():
            return None
        try:
            if self._part is not None and self._part.is_done():
                with _in_torchs_words(self._rank):
                    self._part.wait(0.0)
        except oxccl.Error as error:
            return error
        return None

    def result(self) -> list[Tensor]:
        return self._tensors

    def get_future(self) -> torch.futures.Future:
        if self._future is None:
            self._future = torch.futures.Future(devices=[self._stream.device])
            # It records where the stream is now, for those that use the value elsewhere.
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(self.end)
                self._future.set_result(self._tensors)
        return self._future


@contextlib.contextmanager
def _in_torchs_words(rank: int) -> Iterator[None]:
    try:
        yield
    except oxccl.Error as error:
        raise in_torchs_words(error, rank) from None


class Gpu:
    """One GPU's part in a process group."""

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        device: torch.device,
        timeout: float,
        make_id: Callable[[], oxccl.UniqueId],
    ) -> None:
        self.device = device
        self._store, self._rank, self._size = store, rank, size
        self._timeout, self._make_id = timeout, make_id
        self._kept: deque[tuple[torch.cuda.Event | None, Any]] = deque()
        self._pairs: dict[int, _Pair] = {}
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream(device)
            self.comm = self._connect("cuda", rank, size)

    def _connect(self, key: str, rank: int, size: int) -> oxccl.Communicator:
        """All `size` ranks come to it; rank 0 says in the store where."""
        unique_id: oxccl.UniqueId | str
        if rank == 0:
            unique_id = self._make_id()
            self._store.set(key, str(unique_id))
        else:
            try:
                self._store.wait([key], datetime.timedelta(seconds=self._timeout))
            except dist.DistStoreError:
                text = (
                    f"[rank {self._rank}] Timed out: the first of the ranks has not come to the"
                    f" start of communication among GPUs ({key}) within {self._timeout} s"
                )
                raise oxccl.Error(text) from None
            unique_id = self._store.get(key).decode()
        return oxccl.Communicator(
            unique_id, rank, size, timeout=self._timeout, device=f"cuda:{self.device.index}"
        )

    # Calls.

    def run(
        self,
        name: str,
        tensors: list[Tensor],
        call: Call,
        finish: Callable[[], None] | None,
        inputs: Sequence[Tensor],
        is_blocking: bool,
    ) -> GpuWork:
        current = torch.cuda.current_stream(self.device)
        stream = current if is_blocking else self._stream
        return self._launch(name, self.comm, stream, tensors, inputs, call, finish)

    def _launch(
        self,
        name: str,
        comm: oxccl.Communicator,
        stream: torch.cuda.Stream,
        tensors: list[Tensor],
        inputs: Sequence[Tensor],
        call: Call,
        finish: Callable[[], None] | None = None,
    ) -> GpuWork:
        current = torch.cuda.current_stream(self.device)
        if stream != current:
            stream.wait_stream(current)
        with torch.cuda.stream(stream), _profiled(name), _in_torchs_words(self._rank):
            part = call(comm, stream)
            if finish is not None:
                finish()
            work = GpuWork(self._rank, part, tensors, stream)
        if stream != current:
            self._keep(work, tensors, inputs, finish)
        return work

    def _keep(self, work: GpuWork, *kept: Any) -> None:
        """Keeps memory that belongs to other streams until the call has ended: torch's allocator
        gives it away again in their order, not in this one's."""
        if torch.cuda.is_current_stream_capturing():
            # Until the capture has ended: a graph's memory is its own.
            self._kept.append((None, kept))
            return
        while self._kept and (self._kept[0][0] is None or self._kept[0][0].query()):
            self._kept.popleft()
        self._kept.append((work.end, kept))

    # Messages.

    def message(self, way: str, tensor: Tensor, peer: int) -> GpuWork:
        pair = self._pairs.get(peer)
        if pair is None:
            pair = self._pairs[peer] = self._meet(peer)
        is_first = self._rank < peer
        comm, stream = pair.forth if (way == "send") == is_first else pair.back

        def call(comm: oxccl.Communicator, stream: Any) -> Any:
            return getattr(comm, way)(tensor, 1 if is_first else 0, stream=stream)

        return self._launch(way, comm, stream, [tensor], [], call)

    def _meet(self, peer: int) -> _Pair:
        low, high = sorted((self._rank, peer))
        with torch.cuda.device(self.device):
            rank = 0 if self._rank == low else 1
            forth = self._connect(f"cuda/{low}/{high}", rank, 2)
            back = forth.split(0, rank)
            assert back is not None
            streams = [torch.cuda.Stream(self.device) for _ in range(2)]
        return _Pair((forth, streams[0]), (back, streams[1]))

    def batch(self, calls: Sequence[Any], tensors: list[Tensor]) -> GpuWork:
        """All calls as one launch; messages to oneself are copies."""

        def to_itself(way: str) -> list[Tensor]:
            own = (way, self._rank)
            return [call.tensors[0] for call in calls if call.message and call.message[:2] == own]

        sent, received = to_itself("send"), to_itself("recv")
        if len(sent) != len(received):
            text = "a message to oneself is not received in the batch that sends it"
            raise oxccl.UsageError(text)
        others = [call for call in calls if not call.message or call.message[1] != self._rank]

        def launch(comm: oxccl.Communicator, stream: Any) -> Any:
            for source, target in zip(sent, received, strict=True):
                target.copy_(source)
            if not others:
                return None
            with comm.group(stream=stream) as group:
                for call in others:
                    call.call(comm, None)
            return group.work

        def finish() -> None:
            for call in others:
                if call.finish is not None:
                    call.finish()

        inputs = [tensor for call in calls for tensor in call.inputs]
        return self._launch("batch", self.comm, self._stream, tensors, inputs, launch, finish)

    # Its life.

    def _comms(self) -> list[oxccl.Communicator]:
        pairs = self._pairs.values()
        return [self.comm, *(comm for pair in pairs for comm in (pair.forth[0], pair.back[0]))]

    def barrier(self) -> GpuWork:
        """Ends once the current streams of all ranks have come to it; this thread waits, too."""

        def call(comm: oxccl.Communicator, stream: Any) -> Any:
            return comm.barrier(stream=stream)

        work = self.run("barrier", [], call, None, [], is_blocking=True)
        work.wait_here()
        return work

    def set_timeout(self, seconds: float) -> None:
        self._timeout = seconds
        for comm in self._comms():
            comm.set_timeout(seconds)

    def error(self) -> Any:
        errors = (comm.error() for comm in self._comms())
        return next((error for error in errors if error is not None), None)

    def abort(self, reason: str) -> None:
        for comm in self._comms():
            comm.abort(reason)

    def leave(self) -> None:
        """What is in the streams ends first, well or not."""
        torch.cuda.synchronize(self.device)
        for comm in self._comms():
            comm.leave()
        self._kept.clear()
        self._pairs.clear()


class _Pair:
    """Connections to one other rank, for each direction its own: from the lower rank to the higher,
    and back."""

    def __init__(
        self,
        forth: tuple[oxccl.Communicator, torch.cuda.Stream],
        back: tuple[oxccl.Communicator, torch.cuda.Stream],
    ) -> None:
        self.forth, self.back = forth, back


def _profiled(name: str) -> contextlib.AbstractContextManager[Any]:
    if torch.autograd._profiler_enabled():
        return torch.autograd.profiler.record_function(f"{_NAME}:{name}")
    return contextlib.nullcontext()
