"""Errors in the words and numbers of a process group."""

from __future__ import annotations

import re
from collections.abc import Sequence

import oxccl


def like(error: oxccl.Error, text: str) -> oxccl.Error:
    other = type(error)(text)
    other.ranks, other.fatal = error.ranks, error.fatal
    return other


def in_torchs_words(error: oxccl.Error, rank: int) -> oxccl.Error:
    """The same, with the words by which programs know a time-out."""
    if "timed out" in str(error):
        return like(error, f"[rank {rank}] Timed out ({error})")
    return error


def with_ranks(error: oxccl.Error, ranks: Sequence[int]) -> oxccl.Error:
    """An error of a communicator of these ranks, with their numbers in the group."""

    def number(found: re.Match[str]) -> str:
        place = int(found[2])
        return f"{found[1]} {ranks[place] if place < len(ranks) else place}"

    other = type(error)(re.sub(r"\b(ranks?|to|and) (\d+)\b", number, str(error)))
    named = getattr(error, "ranks", [])
    other.ranks = [ranks[rank] if rank < len(ranks) else rank for rank in named]
    other.fatal = getattr(error, "fatal", True)
    return other
