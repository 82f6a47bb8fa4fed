"""Starts of communicators whose ranks meet in a store of torch's.

A rank that dies never comes. What these ranks are a part of knows it, and is asked meanwhile, so
that nobody waits for its time-out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import oxccl
from oxccl._address import own_address
from oxccl._errors import in_torchs_words, with_ranks

# Who waits for an entry of the store looks so often, in seconds; at first, and at most.
_FIRST_LOOK, _LONGEST_LOOK = 0.0005, 0.02
# Who waits for the others asks so often, in seconds, whether one of them is lost.
_ASK = 0.1
# Where a start fails, why is told within so many seconds, if somebody knows more.
_LEARN = 1.0

# Why one of these ranks is lost, as far as that is known.
Lost = Callable[[Sequence[int]], oxccl.Error | None]


class Meeting:
    """Where ranks of a group meet."""

    def __init__(self, store: Any, rank: int, lost: Lost) -> None:
        self._store, self._rank, self._lost = store, rank, lost

    def connect(
        self,
        key: str,
        ranks: Sequence[int],
        timeout: float,
        device: str = "host",
        patience: float | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> oxccl.Communicator:
        """The communicator of these ranks, which this key of the store is for. The first of them
        says there where they meet, and the others wait for that at most `patience` seconds."""
        place = ranks.index(self._rank)
        unique_id: oxccl.UniqueId | str
        try:
            if place == 0:
                unique_id = oxccl.UniqueId(f"{own_address(self._store)}:0")
                self._store.set(key, str(unique_id))
            else:
                unique_id = self._find(key, ranks, patience, is_wanted)
            starting = oxccl.Communicator.starting(
                unique_id, place, len(ranks), timeout=timeout, device=device
            )
            while (comm := starting.wait(_ASK)) is None:
                lost = self._lost(ranks)
                if lost is not None:
                    starting.abort(str(lost))
                    raise lost
                _check(is_wanted)
        except oxccl.UsageError:
            raise
        except RuntimeError as error:
            # The end of a rank ends its store's connections, and has others give up.
            lost = self._learn(ranks)
            if lost is not None:
                raise lost from None
            if not isinstance(error, oxccl.Error):
                raise
            raise in_torchs_words(with_ranks(error, ranks), self._rank) from None
        return comm

    def _find(
        self,
        key: str,
        ranks: Sequence[int],
        patience: float | None,
        is_wanted: Callable[[], bool],
    ) -> str:
        began, pause = time.monotonic(), _FIRST_LOOK
        while not self._store.check([key]):
            _check(is_wanted)
            lost = self._lost(ranks)
            if lost is not None:
                raise lost
            if patience is not None and time.monotonic() - began > patience:
                text = f"timed out: rank 0 has not come to the start of {key} within {patience} s"
                raise oxccl.Error(text)
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_LOOK)
        return str(self._store.get(key).decode())

    def _learn(self, ranks: Sequence[int]) -> oxccl.Error | None:
        deadline = time.monotonic() + _LEARN
        while (lost := self._lost(ranks)) is None and time.monotonic() < deadline:
            time.sleep(_LONGEST_LOOK)
        return lost


def _check(is_wanted: Callable[[], bool]) -> None:
    if not is_wanted():
        raise oxccl.UsageError("the process group has been destroyed")
