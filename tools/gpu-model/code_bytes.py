"""Which bytes of a hot kernel a call runs, and what the others are.

Hot are the lines of 128 bytes that an instruction was fetched from, by any thread of the block; the
rest is cold. What waits is there already, so loops that wait are cold here. Of kernels that were
compiled with line numbers a part is a function of the source by the step that it is inlined into;
of others, a function out of line.
"""

import collections
import functools
import pathlib
import re
from typing import NamedTuple

from sass import INSTRUCTION_BYTES

LINE_BYTES = 128
MOST_HOT_BYTES = 16 << 10  # that a kernel should have

# A call of each: bytes of all ranks' parts, and channels; of a group of buckets the same.
RANKS, BUCKETS = 8, 20
SIZES = {"ll": (8 << 10, 2), "ll128": (64 << 10, 16), "windows": (64 << 10, 1)}
GROUPS = {"ll": (40 << 10, 10), "windows": (512_000, 8)}
WHOLE = ("all_reduce", "broadcast")  # whose BYTES are of the whole buffer
KINDS = (*WHOLE, "reduce_scatter", "all_gather", "all_to_all")

# The functions that lead to a step's own: they say nothing.
LEADING = ("run_hot", "run_steps", "hot_move")
_FUNCTION = re.compile(r"^\s*(?:template\s*<.*>\s*)?OXCCL_(?:INLINE|COLD|NOINLINE|APART)\b[^(=]*?(\w+)\s*\(")


def call_of(kernel):
    """A call that the hot kernel of this name carries out; none of types that the model cannot add."""
    kind = next(kind for kind in KINDS if kernel.startswith(kind))
    rest = kernel[len(kind) + 1 :]
    rest = rest.removesuffix("_f32_sum")
    if rest.endswith("_sum"):
        return None
    in_buckets, rest = rest.endswith("_in_buckets"), rest.removesuffix("_in_buckets")
    rank, rest = int(rest.endswith("_leaf")), rest.removesuffix("_leaf").removesuffix("_root")
    algorithm, _, encoding = rest.rpartition("_")
    size, channels = (GROUPS if in_buckets else SIZES)[encoding]
    size = size if kind in WHOLE else size // RANKS
    buckets = f"/{BUCKETS}" if in_buckets else ""
    return f"{kind}/{algorithm}/{encoding}/{RANKS}/{size}/{channels}{buckets}@{rank}"


@functools.cache
def functions(path):
    """The function that each line of a source is in."""
    found, name = [], ""
    for line in pathlib.Path(path).read_text().splitlines():
        if start := _FUNCTION.match(line):
            name = start[1]
        found.append(name)
    return found


def part(instruction):
    """What it is a part of."""
    if instruction.function or not instruction.frames:
        return instruction.function or "in line"
    names = [functions(path)[line - 1] for path, line in instruction.frames]
    step = names.count("run_steps")
    names = [name for name in names if name and name not in LEADING]
    # The innermost are numerous and short: they count as their callers'.
    return (f"step {step - 1} " if step else "") + ("/".join(names[:2]) or "run_hot")


class Share(NamedTuple):
    """Bytes of a part, or of all of a kernel."""

    code: int
    run: int  # of the instructions themselves
    hot: int

    @property
    def cold(self):
        return self.code - self.hot


def parts(kernel, ran):
    """The kernel's parts by name, where instructions at these places ran."""
    lines = {kernel.instructions[place].address // LINE_BYTES for place in ran}
    found = collections.defaultdict(lambda: Share(0, 0, 0))
    for place, instruction in enumerate(kernel.instructions):
        is_hot = instruction.address // LINE_BYTES in lines
        added = (INSTRUCTION_BYTES * one for one in (1, place in ran, is_hot))
        found[part(instruction)] = Share(*map(sum, zip(found[part(instruction)], added)))
    return found
