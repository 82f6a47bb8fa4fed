"""What is under way on the host, as torch's works, futures and profiler see it."""

from __future__ import annotations

import atexit
import datetime
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

import oxccl
from oxccl._errors import in_torchs_words
from oxccl._messages import Message
from oxccl._threads import end_threads

if TYPE_CHECKING:
    from oxccl._calls import Calls

_NAME = "oxccl"


class Work(dist.Work):
    """A call, a group or messages under way."""

    def __init__(
        self,
        parts: Sequence[oxccl.Work | Message],
        tensors: list[Tensor],
        group: Calls,
        finish: Callable[[], None] | None = None,
        event: ProfilerEvent | None = None,
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
            error = in_torchs_words(raised, self._group._rank)
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


class _Done(Work):
    """A call that had ended well when its work was made."""

    # What `Work` has for what is under way. To set it takes longer than a small all-reduce.
    _parts, _finish, _limit, _event, _future = (), None, None, None, None
    _ended, _error = True, None
    _lock = threading.Lock()
    __init__ = dist.Work.__init__

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        return True


def done(tensors: list[Tensor]) -> Work:
    """The work of a call that has ended, or that is a part of a batch."""
    work = _Done()
    work._tensors = tensors
    return work


def _value(source: torch.futures.Future) -> Any:
    return source.wait()


class ProfilerEvent:
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


class Completions:
    """Sets the results of futures, as their works end. What is called back then may wait for other
    futures: another thread goes on meanwhile."""

    def __init__(self) -> None:
        self._entries: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Held by the thread that waits for the next work to end.
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._spare = 0
        self._is_started = False
        self._threads: list[threading.Thread] = []
        _alive.add(self)

    def put(self, work: Work, future: torch.futures.Future | None) -> None:
        self._entries.put((work, future))
        with self._lock:
            is_first, self._is_started = not self._is_started, True
        if is_first:
            self._start()

    def close(self) -> None:
        """The threads end behind what has been put."""
        self._entries.put(None)

    def join(self) -> None:
        """Behind `close`, once all works have ended."""
        end_threads(self._threads)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, daemon=True, name="oxccl-futures")
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._spare += 1
            with self._turn:
                with self._lock:
                    self._spare -= 1
                entry = self._entries.get()
                if entry is None:
                    self._entries.put(None)
                    return
                work, future = entry
                error = None
                try:
                    work._wait()
                except Exception as raised:
                    error = raised
            if future is None:
                work._event.end()
                continue
            with self._lock:
                is_last = self._spare == 0
            if is_last:
                self._start()
            if error is None:
                future.set_result(work.result())
            else:
                future.set_exception(error)


_alive: weakref.WeakSet[Completions] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Of groups that nobody has destroyed."""
    for completions in list(_alive):
        completions.close()
        completions.join()
