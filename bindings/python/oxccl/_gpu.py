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
from oxccl._errors import in_torchs_words, with_ranks
from oxccl._meeting import Meeting

_NAME = "oxccl"

# What a call needs of the group: its communicator, and the stream.
Call = Callable[[oxccl.Communicator, Any], Any]
# An error of a communicator in the numbers and words of the group.
Naming = Callable[[oxccl.Error], oxccl.Error]


class GpuWork(dist.Work):
    """A call, a group or messages in a stream of a GPU."""

    def __init__(
        self,
        naming: Naming,
        part: oxccl.Work | None,
        tensors: list[Tensor],
        stream: torch.cuda.Stream,
    ) -> None:
        super().__init__()
        self._naming, self._part, self._tensors, self._stream = naming, part, tensors, stream
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
        with _named(self._naming):
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
                with _named(self._naming):
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
def _named(naming: Naming) -> Iterator[None]:
    try:
        yield
    except oxccl.Error as error:
        raise naming(error) from None


class Gpu:
    """One GPU's part in a process group."""

    def __init__(
        self,
        meeting: Meeting,
        rank: int,
        size: int,
        device: torch.device,
        timeout: float,
    ) -> None:
        self.device = device
        self._meeting, self._rank, self._timeout = meeting, rank, timeout
        self._kept: deque[tuple[torch.cuda.Event | None, Any]] = deque()
        self._pairs: dict[int, _Pair] = {}
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream(device)
            self.comm = self._connect("cuda", range(size))

    def _connect(self, key: str, ranks: Sequence[int]) -> oxccl.Communicator:
        """All these ranks come to it."""
        device = f"cuda:{self.device.index}"
        return self._meeting.connect(key, ranks, self._timeout, device, patience=self._timeout)

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
        ranks: Sequence[int] | None = None,
    ) -> GpuWork:
        """`ranks`: the group's numbers of the communicator's ranks, where they differ."""

        def naming(error: oxccl.Error) -> oxccl.Error:
            return in_torchs_words(with_ranks(error, ranks) if ranks else error, self._rank)

        current = torch.cuda.current_stream(self.device)
        if stream != current:
            stream.wait_stream(current)
        with torch.cuda.stream(stream), _profiled(name), _named(naming):
            part = call(comm, stream)
            if finish is not None:
                finish()
            work = GpuWork(naming, part, tensors, stream)
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

        return self._launch(way, comm, stream, [tensor], [], call, ranks=pair.ranks)

    def _meet(self, peer: int) -> _Pair:
        low, high = sorted((self._rank, peer))
        with torch.cuda.device(self.device):
            forth = self._connect(f"cuda/{low}/{high}", [low, high])
            back = forth.split(0, forth.rank)
            assert back is not None
            streams = [torch.cuda.Stream(self.device) for _ in range(2)]
        return _Pair((low, high), (forth, streams[0]), (back, streams[1]))

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
        return [self.comm, *(comm for pair in self._pairs.values() for comm in pair.comms())]

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

    def error(self) -> oxccl.Error | None:
        """Why one of its communicators has ended otherwise than by being closed."""
        error = self.comm.error()
        for pair in self._pairs.values():
            for comm in pair.comms():
                if error is None and (of_pair := comm.error()) is not None:
                    error = with_ranks(of_pair, pair.ranks)
        return error

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
        ranks: tuple[int, int],
        forth: tuple[oxccl.Communicator, torch.cuda.Stream],
        back: tuple[oxccl.Communicator, torch.cuda.Stream],
    ) -> None:
        self.ranks, self.forth, self.back = ranks, forth, back

    def comms(self) -> list[oxccl.Communicator]:
        return [self.forth[0], self.back[0]]


def _profiled(name: str) -> contextlib.AbstractContextManager[Any]:
    if torch.autograd._profiler_enabled():
        return torch.autograd.profiler.record_function(f"{_NAME}:{name}")
    return contextlib.nullcontext()
