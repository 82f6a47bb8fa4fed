"""Machine code as nvdisasm prints it."""

import re
from typing import NamedTuple


class Instruction(NamedTuple):
    address: int
    guard: str  # "", "P0" or "!P0": whether it is carried out
    name: str  # with its modifiers
    operands: tuple
    function: str = ""  # out of line, that it is of
    frames: tuple = ()  # files and lines of the calls that were inlined, the outermost first

    def __str__(self):
        guard = f"@{self.guard} " if self.guard else ""
        return f"{self.address:6x} {guard}{self.name} {', '.join(self.operands)}"


class Kernel(NamedTuple):
    instructions: list
    labels: dict  # to places in the list

    @property
    def code_bytes(self):
        return INSTRUCTION_BYTES * len(self.instructions)


INSTRUCTION_BYTES = 16
_SECTION = re.compile(r"^\.text\.([\w$]+):$", re.M)
_LABEL = re.compile(r"^(\.L_x_\d+|\$?[\w$]+):")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@(!?U?P\w+)\s+)?(\S+)\s*(.*?)\s*;")
_OPERAND = re.compile(r",\s*(?![^\[]*\])")
_FRAME = re.compile(r'^\s*//## File "([^"]+)", line (\d+)')


def image(assembly):
    """What is said of each kernel, by its name."""
    _, *parts = _SECTION.split(assembly)
    return dict(zip(parts[::2], parts[1::2]))


def kernel(text):
    """One of an image."""
    instructions, labels, function, frames, told = [], {}, "", [], False
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
            if label[1].startswith("$"):
                function, frames = plain(label[1]), []
        elif frame := _FRAME.match(line):  # the innermost first; they hold until others are told
            frames = [] if told else frames
            frames.insert(0, (frame[1], int(frame[2])))
            told = False
        elif found := _INSTRUCTION.match(line):
            address, guard, opcode, rest = found.groups()
            operands = tuple(_OPERAND.split(rest)) if rest else ()
            at = (int(address, 16), guard or "", opcode, operands, function, tuple(frames))
            instructions.append(Instruction(*at))
            told = True
    return Kernel(instructions, labels)


def plain(label):
    """`$kernel$_ZN5oxccl6device10load_apartEPKhj` as `load_apart`."""
    name = label.split("$")[-1].rsplit("_ZN", 1)[-1]
    words = []
    while found := re.match(r"(\d+)", name):
        end = found.end() + int(found[1])
        words.append(name[found.end() : end])
        name = name[end:]
    return words[-1] if words else label.strip("$").split("$")[-1]
