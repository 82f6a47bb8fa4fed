"""Messages between two ranks as Gloo has them: matched by sender and tag, in any order.

The calls of a communicator run one after the other, so a message that nobody receives yet would
keep all others back. Each direction between two ranks therefore has a communicator of two ranks,
and a thread at either end, made at the first message. What arrives before it is asked for is kept.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

import oxccl
from oxccl._errors import with_ranks
from oxccl._meeting import Meeting
from oxccl._threads import end_threads


class Message:
    """A message on its way."""

    def __init__(self, tensor: torch.Tensor, peer: int | None, tag: int) -> None:
        self.tensor, self.peer, self.tag = tensor, peer, tag
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def end(self, error: BaseException | None = None) -> None:
        self._error = error
        self._ended.set()

    def is_done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        if not self._ended.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return True


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_contiguous():
        raise oxccl.UsageError("a tensor must be contiguous: call contiguous() first")
    return tensor.detach().reshape(-1).view(torch.uint8)


def _named(
    error: BaseException, comm: oxccl.Communicator | None, ranks: list[int]
) -> BaseException:
    """An error of this communicator's, if any, with the ranks' numbers in the group."""
    if comm is not None and isinstance(error, oxccl.Error):
        return with_ranks(error, ranks)
    return error


class Messages:
    """All messages of one rank of a group."""

    def __init__(self, meeting: Meeting, rank: int, timeout: float) -> None:
        """`timeout` is how many seconds the receiver of a first message has to come."""
        self._meeting, self._rank, self._timeout = meeting, rank, timeout
        self._lock = threading.Condition()
        self._senders: dict[int, deque[Message]] = {}
        self._receivers: set[int] = set()
        self._failed: dict[int, BaseException] = {}
        # What is to be received, oldest first; and what has come before that, by sender.
        self._posted: list[Message] = []
        self._early: dict[int, deque[tuple[int, torch.Tensor]]] = {}
        self._comms: list[oxccl.Communicator] = []
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        _alive.add(self)

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Message:
        message = Message(_bytes_of(tensor), peer, tag)
        with self._lock:
            if peer == self._rank:
                # To oneself: a copy, so that it ends at once.
                self._arrived(peer, tag, message.tensor.clone())
                message.end()
                return message
            queue = self._senders.get(peer)
            if queue is None:
                queue = self._senders[peer] = deque()
                self._start(self._run_sender, peer, queue)
            queue.append(message)
            self._lock.notify_all()
        return message

    def recv(self, tensor: torch.Tensor, peer: int | None, tag: int, size: int) -> Message:
        message = Message(_bytes_of(tensor), peer, tag)
        with self._lock:
            peers = range(size) if peer is None else [peer]
            for sender in peers:
                for place, (found, early) in enumerate(self._early.get(sender, ())):
                    if found == tag:
                        del self._early[sender][place]
                        self._deliver(message, sender, early)
                        return message
            failed = [self._failed[sender] for sender in peers if sender in self._failed]
            if failed:
                message.end(failed[0])
                return message
            self._posted.append(message)
            for sender in peers:
                if sender != self._rank and sender not in self._receivers:
                    self._receivers.add(sender)
                    self._start(self._run_receiver, sender)
            self._lock.notify_all()
        return message

    def close(self) -> None:
        """Ends all that is on its way."""
        with self._lock:
            self._is_closed = True
            comms, self._comms = self._comms, []
            error = oxccl.Error("the process group has been destroyed")
            for message in self._posted + [m for queue in self._senders.values() for m in queue]:
                message.end(error)
            self._posted.clear()
            self._lock.notify_all()
        for comm in comms:
            comm.abort("the process group is being destroyed")

    def _start(self, run: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True, name="oxccl-messages")
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Behind `close`."""
        end_threads(self._threads)

    def _connect(self, sender: int, receiver: int) -> oxccl.Communicator:
        comm = self._meeting.connect(
            f"messages/{sender}/{receiver}",
            [sender, receiver],
            self._timeout,
            is_wanted=lambda: not self._is_closed,
        )
        # What waits for a message has its own time-out.
        comm.set_timeout(None)
        with self._lock:
            if self._is_closed:
                raise oxccl.UsageError("the process group has been destroyed")
            self._comms.append(comm)
        return comm

    def _run_sender(self, peer: int, queue: deque[Message]) -> None:
        comm: oxccl.Communicator | None = None
        try:
            comm = self._connect(self._rank, peer)
            while True:
                with self._lock:
                    while not queue and not self._is_closed:
                        self._lock.wait()
                    if self._is_closed:
                        return
                    message = queue[0]
                payload = message.tensor
                comm.send(torch.tensor([message.tag, payload.numel()]), 1)
                if payload.numel():
                    comm.send(payload, 1)
                with self._lock:
                    queue.popleft()
                message.end()
        except BaseException as raised:  # It ends all messages, and is raised by their waits.
            error = _named(raised, comm, [self._rank, peer])
            with self._lock:
                for message in queue:
                    message.end(error)
                queue.clear()
                # The next message makes another attempt, which tells the same.
                self._senders.pop(peer, None)

    def _run_receiver(self, sender: int) -> None:
        comm: oxccl.Communicator | None = None
        try:
            comm = self._connect(sender, self._rank)
            while True:
                with self._lock:
                    while not self._is_closed and not any(
                        message.peer in (None, sender) for message in self._posted
                    ):
                        self._lock.wait()
                    if self._is_closed:
                        return
                header = torch.empty(2, dtype=torch.int64)
                comm.recv(header, 0)
                tag, length = header.tolist()
                with self._lock:
                    message = self._take_posted(sender, tag)
                if message is not None and message.tensor.numel() == length:
                    if length:
                        comm.recv(message.tensor, 0)
                    message.peer = sender
                    message.end()
                    continue
                payload = torch.empty(length, dtype=torch.uint8)
                if length:
                    comm.recv(payload, 0)
                with self._lock:
                    if message is not None:
                        self._deliver(message, sender, payload)
                    else:
                        self._arrived(sender, tag, payload)
        except BaseException as raised:  # Raised by the waits of all that it concerns.
            error = _named(raised, comm, [sender, self._rank])
            with self._lock:
                self._failed[sender] = error
                concerned = [m for m in self._posted if m.peer in (None, sender)]
                self._posted = [m for m in self._posted if m.peer not in (None, sender)]
            for message in concerned:
                message.end(error)

    def _take_posted(self, sender: int, tag: int) -> Message | None:
        for place, message in enumerate(self._posted):
            if message.peer in (None, sender) and message.tag == tag:
                return self._posted.pop(place)
        return None

    def _arrived(self, sender: int, tag: int, payload: torch.Tensor) -> None:
        message = self._take_posted(sender, tag)
        if message is None:
            self._early.setdefault(sender, deque()).append((tag, payload))
        else:
            self._deliver(message, sender, payload)

    def _deliver(self, message: Message, sender: int, payload: torch.Tensor) -> None:
        expected = message.tensor.numel()
        message.peer = sender
        if payload.numel() != expected:
            text = f"rank {sender} has sent {payload.numel()} bytes, and {expected} are received"
            message.end(oxccl.Error(text))
            return
        message.tensor.copy_(payload)
        message.end()


_alive: weakref.WeakSet[Messages] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Of groups that nobody has destroyed."""
    for messages in list(_alive):
        messages.close()
        messages.join()
