"""Machine code as nvdisasm prints it."""

import re
from typing import NamedTuple


class Instruction(NamedTuple):
    address: int
    guard: str  # "", "P0" or "!P0": whether it is carried out
    name: str  # with its modifiers
    operands: tuple

    def __str__(self):
        guard = f"@{self.guard} " if self.guard else ""
        return f"{self.address:6x} {guard}{self.name} {', '.join(self.operands)}"


class Kernel(NamedTuple):
    instructions: list
    labels: dict  # to places in the list

    @property
    def code_bytes(self):
        return 16 * len(self.instructions)


_LABEL = re.compile(r"^(\.L_x_\d+|\$?[\w$]+):")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@(!?U?P\w+)\s+)?(\S+)\s*(.*?)\s*;")
_OPERAND = re.compile(r",\s*(?![^\[]*\])")


def kernel(assembly, name):
    """The kernel of this name."""
    instructions, labels, inside = [], {}, False
    for line in assembly.splitlines():
        if line.startswith(".text."):
            inside = line == f".text.{name}:"
        elif inside and (label := _LABEL.match(line)):
            labels[label[1]] = len(instructions)
        elif inside and (found := _INSTRUCTION.match(line)):
            address, guard, opcode, rest = found.groups()
            operands = tuple(_OPERAND.split(rest)) if rest else ()
            instructions.append(Instruction(int(address, 16), guard or "", opcode, operands))
    if not instructions:
        raise SystemExit(f"the image has no kernel {name}")
    return Kernel(instructions, labels)
