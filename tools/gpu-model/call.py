"""A call of one rank, as the kernel finds it: program, connections and windows in memory, and the
peers' messages there already.

The program is the one that the runtime would launch (plans/examples/programs.rs). How everything is
laid out is read from `format.h` beside it, which the compiler checks against both sides.
"""

import re
import struct

from machine import Memory

# Each in a region of its own.
PROGRAM, CONNECTIONS, WINDOWS, PROGRESS, STATUSES, DOORBELLS, ABORT, COUNTERS = (
    (0x100 + at) << 32 for at in range(8)
)
INPUT, OUTPUT, STAGING, PEERS_STAGING, HEAPS, PARAMETER, ENDED, SEGMENTS = ((0x200 + at) << 32 for at in range(8))
PEER_BYTES = 2 << 20  # of staging; a heap has as many
TABLE_AT = PEER_BYTES // 2  # of a heap: a peer's table of a group's buckets
SIGNATURE = 0x12345678
WIDTHS = {"uint8_t": 1, "uint16_t": 2, "uint32_t": 4, "int32_t": 4, "uint64_t": 8, "int64_t": 8}
SLOTS = {"LL": 16, "SLOTS": 4, "SYNC": 1, "LL128": 8}
LL_PAYLOAD = 4096
SLOT_PAYLOAD = 64 << 10
EXTENTS = ("total_bytes", "chunk_bytes", "part_bytes", "shorter_part_bytes")


class Format:
    """The structs and numbers of the machine's format."""

    def __init__(self, text):
        self.offsets = {
            (name, field): int(offset)
            for name, field, offset in re.findall(r"offsetof\((\w+), (\w+)\) == (\d+)", text)
        }
        self.sizes = {name: int(size) for name, size in re.findall(r"sizeof\((\w+)\) == (\d+)", text)}
        self.widths = {}
        for name, body in re.findall(r"struct (?:alignas\(\d+\) )?(\w+) \{\n(.*?)\n\};", text, re.S):
            for type_name, field in re.findall(r"^  (\w+)(?: \w+)? (\w+);", body, re.M):
                self.widths[name, field] = WIDTHS.get(type_name, self.sizes.get(type_name))
        numbers = re.findall(r"^\s+([A-Z0-9_]+) = (\d+),", text, re.M)
        numbers += re.findall(r"constexpr \w+ (\w+) = (\d+);", text)
        self.numbers = {name: int(value) for name, value in numbers}

    def __getitem__(self, name):
        return self.numbers[name]

    def get(self, memory, name, at, field):
        """A field of a struct in memory."""
        return memory.read(at + self.offsets[name, field], self.width(name, field))

    def set(self, memory, name, at, **fields):
        for field, value in fields.items():
            memory.write(at + self.offsets[name, field], self.width(name, field), value)

    def width(self, name, field):
        return self.widths.get((name, field)) or 8  # pointers


class Call:
    """Memory and parameter of one call, and what must come out of it."""

    def __init__(self, form, program, ranks, rank, extents=None, buckets=None, kind=None):
        """`buckets`: those of a group of this kind, by where they begin and end in its buffer, or
        in a rank's part of it."""
        self.form, self.ranks, self.memory, self.buckets = form, ranks, Memory(), buckets
        self.rank, self.peers = rank, [peer for peer in range(ranks) if peer != rank]
        parts_of = lambda kinds: ranks if kind in kinds else 1
        self.input_parts = parts_of(("reduce_scatter", "all_to_all"))
        self.output_parts = parts_of(("all_gather", "all_to_all"))
        memory = self.memory
        memory.add(PROGRAM, len(program))
        memory.regions[PROGRAM >> 32][:] = program
        header = {f: self.field("Header", PROGRAM, f) for f in (
            "channels", "channels_offset", "instructions_offset", "operands_offset", "advances_offset")}
        self.header = header
        channels = header["channels"]
        for base, size in (
            (CONNECTIONS, channels * ranks * 4 * form.sizes["Connection"]),
            (WINDOWS, channels * ranks * form.sizes["Window"]),
            (PROGRESS, 64 * channels), (STATUSES, 16 * channels), (DOORBELLS, 64 * channels),
            (ABORT, 64), (COUNTERS, 2 * 64 * 4 * ranks), (INPUT, 1 << 20), (OUTPUT, 1 << 20), (ENDED, 256),
            (STAGING, ranks * PEER_BYTES), (PEERS_STAGING, ranks * PEER_BYTES), (HEAPS, ranks * PEER_BYTES),
            (PARAMETER, form.sizes["Launch"]),
        ):
            memory.add(base, size)
        for peer in self.peers:
            self._connect(peer)
        self._fill()
        self._receive()
        form.set(
            memory, "Launch", PARAMETER, program=PROGRAM, connections=CONNECTIONS, windows=WINDOWS,
            progress=PROGRESS, statuses=STATUSES, doorbells=DOORBELLS, abort=ABORT, input=INPUT, output=OUTPUT,
            call=1, signature=SIGNATURE, rank=rank, ranks=ranks, ended=ENDED, arrived=ENDED + 64, launched=1,
        )
        if extents:
            at = PARAMETER + form.offsets["Launch", "extents"]
            form.set(memory, "Extents", at, **dict(zip(EXTENTS, extents)))
        if buckets:
            self._set_buckets()
        self.expected = self._expected()

    @property
    def parameter(self):
        return PARAMETER, bytes(self.memory.regions[PARAMETER >> 32])

    def field(self, name, at, field):
        return self.form.get(self.memory, name, at, field)

    def _connect(self, peer):
        form, memory = self.form, self.memory
        at = peer * PEER_BYTES
        for lane in ("LL128", "LL", "SLOTS", "SYNC"):
            number = form["LANE_" + lane]
            stride = {
                "LL": (16 + 2 * LL_PAYLOAD + 63) // 64 * 64 | 64,
                "LL128": (1 + -(-LL_PAYLOAD // 120)) * 128, "SLOTS": 64 + SLOT_PAYLOAD, "SYNC": 64,
            }[lane]
            counter = COUNTERS + (peer * 4 + number) * 64
            form.set(
                memory, "Connection", CONNECTIONS + (peer * 4 + number) * form.sizes["Connection"],
                send_slots=PEERS_STAGING + at, recv_slots=STAGING + at, send_head=counter,
                recv_head=counter + 64 * 4 * self.ranks, doorbell=DOORBELLS, slot_stride_bytes=stride, slots=SLOTS[lane],
                peer=peer, lane=number,
            )
            at += -(-stride * SLOTS[lane] // 128) * 128
        assert at <= (peer + 1) * PEER_BYTES
        form.set(memory, "Window", WINDOWS + peer * form.sizes["Window"], base=HEAPS + peer * PEER_BYTES)

    def _set_buckets(self):
        """Each lies where it does in the group's buffer, for this rank and for its peers."""
        form, memory = self.form, self.memory
        count = len(self.buckets)
        memory.add(SEGMENTS, count * form.sizes["Segment"])
        for number, (start, end) in enumerate(self.buckets):
            form.set(
                memory, "Segment", SEGMENTS + number * form.sizes["Segment"], start=start, len_bytes=end - start,
                input=INPUT + self.input_parts * start, output=OUTPUT + self.output_parts * start, bucket=number,
            )
            for peer in self.peers:
                table = HEAPS + peer * PEER_BYTES + TABLE_AT
                at = table + number * form.sizes["SegmentTokens"]
                form.set(
                    memory, "SegmentTokens", at, input=self.input_parts * start, output=self.output_parts * start
                )
        form.set(memory, "Launch", PARAMETER, segments=SEGMENTS, segments_count=count, done_stride=64)

    def _words(self, operand, len_bytes, parts):
        """The words of a buffer that an operand is. A bucket's parts lie one behind the other."""
        offsets = range(operand["offset_bytes"], operand["offset_bytes"] + len_bytes, 4)
        if not self.buckets or parts == 1:
            return [offset // 4 for offset in offsets]
        inside = [next(bucket for bucket in self.buckets if offset < bucket[1]) for offset in offsets]
        return [
            (parts * start + operand["message"] * (end - start) + offset - start) // 4
            for offset, (start, end) in zip(offsets, inside)
        ]

    def _fill(self):
        """Other values in each buffer: small integers, whose sums are exact in any order."""
        for rank in range(self.ranks):
            base = INPUT if rank == self.rank else HEAPS + rank * PEER_BYTES
            region, start = self.memory.regions[base >> 32], base & 0xFFFFFFFF
            values = [float((3 * rank + 5 * at) % 17) for at in range(1 << 16)]
            region[start : start + (1 << 18)] = struct.pack("<65536f", *values)

    def steps(self):
        """The instructions of channel 0, with their operands."""
        size = self.form.sizes["Instruction"]
        names = ("opcode", "flags", "sources", "destinations", "run", "index", "step", "value", "len_bytes")
        entry = PROGRAM + self.header["channels_offset"]
        if self.field("ChannelEntry", entry, "rounds") != 1:
            raise SystemExit("the model knows calls of one round: ask for fewer bytes or more channels")
        for at in range(self.field("ChannelEntry", entry, "instructions")):
            place = PROGRAM + self.header["instructions_offset"] + at * size
            one = {name: self.field("Instruction", place, name) for name in names}
            first = PROGRAM + self.header["operands_offset"] + one["index"] * self.form.sizes["Operand"]
            count = one["sources"] + one["destinations"]
            one["operands"] = [
                {name: self.field("Operand", first + o * self.form.sizes["Operand"], name)
                 for name in ("space", "lane", "index", "message", "offset_bytes")}
                for o in range(count if one["opcode"] == self.form["OPCODE_REDUCE_COPY"] else 0)
            ]
            yield one

    def _receive(self):
        """Everything that is waited for."""
        form, memory = self.form, self.memory
        tokens = any(operand["space"] == form["SPACE_PEER_TOKENS"] for one in self.steps() for operand in one["operands"])
        for counter in range(0, 64 * 4 * self.ranks, 64):
            memory.write(COUNTERS + counter, 8, 1 << 40)  # all that was sent is consumed
        for one in self.steps():
            if one["opcode"] == form["OPCODE_WAIT"] and not one["flags"] & form["INSTRUCTION_HEAD"]:
                connection = CONNECTIONS + one["index"] * form.sizes["Connection"]
                get = lambda field: self.field("Connection", connection, field)
                for slot in range(get("slots")):
                    memory.write(get("recv_slots") + slot * get("slot_stride_bytes"), 8, 1 << 20)
            for operand in one["operands"][: one["sources"]]:
                if operand["space"] == form["SPACE_SLOT"]:
                    is_token = tokens and operand["lane"] == form["LANE_LL"] and operand["message"] == 0
                    self._message(operand, one["len_bytes"], 0 if is_token else 1)

    def _message(self, operand, len_bytes, scale):
        form, memory = self.form, self.memory
        connection = CONNECTIONS + operand["index"] * form.sizes["Connection"]
        get = lambda field: self.field("Connection", connection, field)
        at = get("recv_slots") + operand["message"] * get("slot_stride_bytes") + operand["offset_bytes"]
        epoch, header = operand["message"] + 1, SIGNATURE | len_bytes << 32
        values = [as_word(scale * float((get("peer") + word) % 13)) for word in range((len_bytes + 7) // 8 * 2)]
        if self.buckets and scale == 0:
            values = [TABLE_AT, 0, 0, 0]  # tokens
        if operand["lane"] == form["LANE_LL"]:
            lines = [(header & 0xFFFFFFFF, header >> 32)] + list(zip(values[::2], values[1::2]))
            for line, (low, high) in enumerate(lines):
                memory.write(at + 16 * line, 8, low | epoch << 32)
                memory.write(at + 16 * line + 8, 8, high | epoch << 32)
        elif operand["lane"] == form["LANE_LL128"]:
            memory.write(at + 112, 8, header)
            memory.write(at + 120, 8, epoch)
            for line in range(-(-len_bytes // 120)):
                start = at + 128 * (line + 1)
                memory.write(start + 120, 8, epoch)
                for word, value in enumerate(values[30 * line : 30 * line + 30]):
                    memory.write(start + 4 * word, 4, value)
        else:
            memory.write(at + 8, 4, SIGNATURE)
            memory.write(at + 12, 4, len_bytes)
            start = at + (16 if len_bytes <= 48 else 64)
            for word, value in enumerate(values[: len_bytes // 4]):
                memory.write(start + 4 * word, 4, value)

    def _source(self, operand, len_bytes, output):
        """The values of a source, by the format alone."""
        form, memory = self.form, self.memory
        count = len_bytes // 4
        space = operand["space"]
        if space == form["SPACE_OUTPUT"]:
            return [output.get(word, 0.0) for word in self._words(operand, len_bytes, self.output_parts)]
        if space == form["SPACE_SLOT"]:
            connection = CONNECTIONS + operand["index"] * form.sizes["Connection"]
            peer = self.field("Connection", connection, "peer")
            return [float((peer + word) % 13) for word in range(count)]
        base = INPUT if space == form["SPACE_INPUT"] else HEAPS + operand["index"] * PEER_BYTES
        region = memory.regions[base >> 32]
        parts = self.output_parts if space == form["SPACE_WINDOW_OUTPUT"] else self.input_parts
        words = self._words(operand, len_bytes, parts)
        return [struct.unpack_from("<f", region, (base & 0xFFFFFFFF) + 4 * word)[0] for word in words]

    def _expected(self):
        """What this rank's output must be, word by word."""
        form, output = self.form, {}
        memory_spaces = {form["SPACE_" + name] for name in ("INPUT", "OUTPUT", "SLOT", "WINDOW_INPUT", "WINDOW_OUTPUT")}
        for one in self.steps():
            sources, destinations = one["operands"][: one["sources"]], one["operands"][one["sources"] :]
            written = [d for d in destinations if d["space"] == form["SPACE_OUTPUT"]]
            if not written or any(source["space"] not in memory_spaces for source in sources):
                continue
            values = [self._source(source, one["len_bytes"], output) for source in sources]
            for destination in written:
                words = self._words(destination, one["len_bytes"], self.output_parts)
                output.update(zip(words, map(sum, zip(*values))))
        return output

    def wrong(self, words=None):
        """The first words of the output, of those asked for, that are not what they must be."""
        found = self.memory.regions[OUTPUT >> 32]
        return [
            (at, struct.unpack_from("<f", found, 4 * at)[0], value)
            for at, value in sorted(self.expected.items())
            if (words is None or at in words) and struct.unpack_from("<f", found, 4 * at)[0] != value
        ][:4]


def as_word(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]
