"""Schedules, written chunk by chunk, proven, predicted and run.

The verbs are those of MSCCLang (Cowan et al. 2023): a program names chunks of ranks' buffers,
copies them, and reduces them. It says what happens, in an order in which it could happen one by
one; who waits for whom follows from that.

    import oxccl
    from oxccl.schedule import Program

    ring = Program("all_gather", ranks=4, in_place=True, name="ring")
    for rank in range(4):
        chunk = ring.chunk(rank, "input")
        for step in range(1, 4):
            chunk = chunk.copy((rank + step) % 4, "output", rank)
    schedule = ring.schedule()                      # proven, or an error that tells why not
    seconds = schedule.simulate("dgx-h100", [1 << 20])  # predicted
    ranks = oxccl.Communicator.local(4, schedule=schedule)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import quoteattr

from ._oxccl import Schedule, UsageError

__all__ = ["Chunk", "Program", "Schedule", "plot"]

_LETTERS = {"input": "i", "output": "o", "scratch": "s"}

# A rank's place: which of its buffers, and which chunk of that.
_Cell = tuple[str, int]


@dataclass
class _Step:
    op: str
    source: _Cell
    target: _Cell
    count: int
    depends: tuple[int, int] | None = None
    tells: bool = False


@dataclass
class _Block:
    """A thread block: its steps are done in their order."""

    send: int = -1
    recv: int = -1
    steps: list[_Step] = field(default_factory=list)


@dataclass(frozen=True)
class Chunk:
    """What a rank has at a place: so many chunks of a buffer, from `index` on."""

    program: Program
    rank: int
    buffer: str
    index: int
    count: int
    _versions: tuple[int, ...] = field(repr=False)

    def copy(self, rank: int, buffer: str = "output", index: int | None = None) -> Chunk:
        """Copies it to a rank's buffer, at the same place unless another is named."""
        return self.program._copy(self, rank, buffer, self.index if index is None else index)

    def reduce(self, other: Chunk) -> Chunk:
        """Reduces another rank's, or another of this rank's, into it."""
        return self.program._reduce(self, other)


class Program:
    """A schedule while it is written."""

    def __init__(
        self,
        collective: str,
        ranks: int,
        *,
        chunks: int = 1,
        root: int = 0,
        in_place: bool = False,
        protocol: str = "Simple",
        name: str | None = None,
    ) -> None:
        """`chunks` is how many a rank's part has, or the whole where ranks have no parts.
        `in_place`: input and output are one buffer, so that writing the one changes the other.
        `protocol` is Simple, LL or LL128."""
        if ranks < 1 or chunks < 1 or not 0 <= root < ranks:
            raise UsageError(f"{ranks} ranks, {chunks} chunks and root {root} make no program")
        self.collective, self.ranks, self.chunks = collective, ranks, chunks
        self.root, self.in_place, self.protocol = root, in_place, protocol
        self.name = name or collective
        self._blocks: list[list[_Block]] = [[] for _ in range(ranks)]
        self._scratch = [0] * ranks
        # Of each rank's places: how often it has been written, the step that wrote it, and those
        # that have read it since.
        self._versions: list[dict[_Cell, int]] = [defaultdict(int) for _ in range(ranks)]
        self._writer: list[dict[_Cell, tuple[int, int]]] = [{} for _ in range(ranks)]
        self._readers: list[dict[_Cell, list[tuple[int, int]]]] = [
            defaultdict(list) for _ in range(ranks)
        ]

    def chunk(self, rank: int, buffer: str = "input", index: int = 0, count: int = 1) -> Chunk:
        """What is there now."""
        self._check(rank, buffer, index, count)
        cells = self._cells(rank, buffer, index, count)
        versions = tuple(self._versions[rank][cell] for cell in cells)
        return Chunk(self, rank, buffer, index, count, versions)

    def schedule(self) -> Schedule:
        """The program as a schedule, proven. The error tells, step by step, why it is wrong."""
        return Schedule(self.xml(), self.name)

    def xml(self) -> str:
        """The program as MSCCL has it."""
        has_parts = self._plain() not in ("allreduce", "broadcast", "reduce")
        total = self.chunks * (self.ranks if has_parts else 1)
        lines = [
            f'<algo name={quoteattr(self.name)} proto="{self.protocol}" coll="{self._plain()}"'
            f' ngpus="{self.ranks}" nchunksperloop="{total}" nchannels="1" root="{self.root}"'
            f' inplace="{int(self.in_place)}">'
        ]
        for rank, blocks in enumerate(self._blocks):
            inputs, outputs = self._len("input"), self._len("output")
            lines.append(
                f'  <gpu id="{rank}" i_chunks="{inputs}" o_chunks="{outputs}"'
                f' s_chunks="{self._scratch[rank]}">'
            )
            for number, block in enumerate(blocks):
                lines.append(
                    f'    <tb id="{number}" send="{block.send}" recv="{block.recv}" chan="0">'
                )
                lines += [f"      {_step(at, one)}" for at, one in enumerate(block.steps)]
                lines.append("    </tb>")
            lines.append("  </gpu>")
        return "\n".join([*lines, "</algo>", ""])

    # What chunks do.

    def _copy(self, chunk: Chunk, rank: int, buffer: str, index: int) -> Chunk:
        self._check(rank, buffer, index, chunk.count)
        self._check_fresh(chunk)
        source, target = (chunk.buffer, chunk.index), (buffer, index)
        if rank == chunk.rank:
            self._add(rank, _Block(), "cpy", source, target, chunk.count, [source], [target])
        else:
            self._send(chunk, rank)
            received = _Block(recv=chunk.rank)
            self._add(rank, received, "r", target, target, chunk.count, [], [target])
        return self.chunk(rank, buffer, index, chunk.count)

    def _reduce(self, chunk: Chunk, other: Chunk) -> Chunk:
        self._check_fresh(chunk)
        self._check_fresh(other)
        if chunk.count != other.count:
            raise UsageError(f"{other.count} chunks cannot be reduced into {chunk.count}")
        own, rank = (chunk.buffer, chunk.index), chunk.rank
        if other.rank == rank:
            source = (other.buffer, other.index)
            self._add(rank, _Block(), "re", source, own, chunk.count, [source, own], [own])
        else:
            self._send(other, rank)
            received = _Block(recv=other.rank)
            self._add(rank, received, "rrc", own, own, chunk.count, [own], [own])
        return self.chunk(rank, chunk.buffer, chunk.index, chunk.count)

    def _send(self, chunk: Chunk, rank: int) -> None:
        source = (chunk.buffer, chunk.index)
        sent = _Block(send=rank)
        self._add(chunk.rank, sent, "s", source, source, chunk.count, [source], [])

    def _add(
        self,
        rank: int,
        like: _Block,
        op: str,
        source: _Cell,
        target: _Cell,
        count: int,
        reads: Sequence[_Cell],
        writes: Sequence[_Cell],
    ) -> None:
        """Adds a step to the thread block that has this connection."""
        blocks = self._blocks[rank]
        ends = (like.send, like.recv)
        number = next((n for n, b in enumerate(blocks) if (b.send, b.recv) == ends), len(blocks))
        if number == len(blocks):
            blocks.append(like)
        writer, readers = self._writer[rank], self._readers[rank]
        read = [cell for place in reads for cell in self._cells(rank, *place, count)]
        written = [cell for place in writes for cell in self._cells(rank, *place, count)]
        # By thread block, the last step that must be done before.
        before: dict[int, int] = {}
        for block, step in [
            *(writer[cell] for cell in [*read, *written] if cell in writer),
            *(reader for cell in written for reader in readers[cell]),
        ]:
            if block != number:
                before[block] = max(before.get(block, -1), step)
        depends = sorted(before.items())
        steps = blocks[number].steps
        for one in depends[:-1]:
            steps.append(_Step("nop", source, target, 0, one))
        steps.append(_Step(op, source, target, count, depends[-1] if depends else None))
        for block, step in depends:
            blocks[block].steps[step].tells = True
        done = (number, len(steps) - 1)
        for cell in read:
            readers[cell].append(done)
        for cell in written:
            writer[cell] = done
            readers[cell].clear()
            self._versions[rank][cell] += 1

    # Places.

    def _plain(self) -> str:
        return self.collective.lower().replace("_", "").replace("-", "")

    def _len(self, buffer: str) -> int:
        """Chunks of an input or output."""
        whole = {"allgather": "output", "gather": "output"}
        whole |= {"reducescatter": "input", "scatter": "input"}
        has_all = self._plain() == "alltoall" or whole.get(self._plain()) == buffer
        return self.chunks * (self.ranks if has_all else 1)

    def _check(self, rank: int, buffer: str, index: int, count: int) -> None:
        if not 0 <= rank < self.ranks:
            raise UsageError(f"rank {rank} is not in 0 to {self.ranks - 1}")
        if buffer not in _LETTERS:
            raise UsageError(f"{buffer!r} is no buffer; there are {', '.join(_LETTERS)}")
        if index < 0 or count < 1:
            raise UsageError(f"{count} chunks from {index} on are none")
        if buffer == "scratch":
            self._scratch[rank] = max(self._scratch[rank], index + count)
        elif index + count > self._len(buffer):
            text = f"chunk {index + count - 1} of {buffer}: a rank has {self._len(buffer)}"
            raise UsageError(text)

    def _check_fresh(self, chunk: Chunk) -> None:
        if chunk.program is not self:
            raise UsageError("a chunk of another program")
        cells = self._cells(chunk.rank, chunk.buffer, chunk.index, chunk.count)
        if chunk._versions != tuple(self._versions[chunk.rank][cell] for cell in cells):
            place = f"{chunk.buffer}[{chunk.index}] of rank {chunk.rank}"
            raise UsageError(f"{place} has been written since: name it again by chunk()")

    def _cells(self, rank: int, buffer: str, index: int, count: int) -> list[_Cell]:
        return [self._cell(rank, buffer, at) for at in range(index, index + count)]

    def _cell(self, rank: int, buffer: str, index: int) -> _Cell:
        """In place, chunks of the input are chunks of the output."""
        if buffer != "input" or not self.in_place:
            return buffer, index
        plain = self._plain()
        if plain in ("allgather", "gather"):
            return "output", rank * self.chunks + index
        if plain in ("reducescatter", "scatter"):
            part, at = divmod(index, self.chunks)
            return ("output", at) if part == rank else (buffer, index)
        return "output", index


def _step(at: int, step: _Step) -> str:
    (source, source_at), (target, target_at) = step.source, step.target
    block, before = step.depends or (-1, -1)
    return (
        f'<step s="{at}" type="{step.op}" srcbuf="{_LETTERS[source]}" srcoff="{source_at}"'
        f' dstbuf="{_LETTERS[target]}" dstoff="{target_at}" cnt="{step.count}"'
        f' depid="{block}" deps="{before}" hasdep="{int(step.tells)}"/>'
    )


def plot(
    schedules: Sequence[Schedule], topology: str, sizes: Sequence[int], **options: Any
) -> Any:
    """Predicted times over sizes, as a figure of matplotlib, which must be installed."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots()
    for schedule in schedules:
        seconds = schedule.simulate(topology, list(sizes), **options)
        axes.plot(sizes, [second * 1e6 for second in seconds], marker=".", label=schedule.name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes")
    axes.set_ylabel("predicted µs")
    axes.set_title(topology)
    axes.legend()
    return figure
