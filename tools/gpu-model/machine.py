"""Runs a block of threads of a kernel, and says when each would be done.

A thread issues an instruction a cycle at most, in order, once its operands are there: an in-order
scoreboard. What the model leaves out: the wire, the launch, misses of the instruction cache,
threads of a warp that diverge and take turns, and warps that want the same unit at once.
"""

from decode import COUNT, MASK, Unknown, Writer, as_bits, as_float, number, signed, sources

EXIT, BARRIER, VOTE = "exit", "barrier", "vote"
SHARED_WINDOW = 0x7D00  # upper half of a generic address of shared memory
WARP = 32
MOST_INSTRUCTIONS = 400_000


class Memory:
    """Global memory: a region for each upper half of an address that is used."""

    def __init__(self):
        self.regions = {}

    def add(self, base, len_bytes):
        self.regions[base >> 32] = bytearray((base & MASK) + len_bytes)

    def read(self, at, size):
        region = self.regions.get(at >> 32)
        offset = at & MASK
        if region is None or offset + size > len(region):
            raise IndexError(f"{size} bytes at {at:#x} are no memory of the call")
        return int.from_bytes(region[offset : offset + size], "little")

    def write(self, at, size, value):
        self.read(at, size)
        offset = at & MASK
        self.regions[at >> 32][offset : offset + size] = value.to_bytes(size, "little")


class Thread:
    def __init__(self, block, number):
        self.block, self.number = block, number
        self.v, self.r = [0] * COUNT, [0.0] * COUNT
        self.pc, self.t, self.issued = 0, 0.0, 0
        self.stopped = None
        self.said = False
        self.notes = {}

    def note(self, what):
        self.notes[what] = self.notes.get(what, 0) + 1


class Block:
    """A block on its way through a kernel."""

    def __init__(self, kernel, parameter, memory, constants, threads, trace=None):
        self.kernel, self.memory, self.constants = kernel, memory, constants
        self.parameter = parameter  # bank 0 of the constants, from 0x210 on, and where it lies
        self.shared = bytearray(256 << 10)
        self.threads = [Thread(self, number) for number in threads]
        self.l1 = {}  # sectors, and when they are there
        self.answer = False
        self.barriers = 0
        self.fences = 0  # for the system, in series
        self.phases = []
        self.trace = trace
        self.code = [None] * len(kernel.instructions)
        self.writer = Writer(kernel)
        self.names = self._names()

    def run(self):
        """To the end; cycles."""
        while True:
            before = [thread.notes.get("fence system", 0) for thread in self.threads]
            for warp in self._warps():
                self._run_warp(warp)
            fences = max(t.notes.get("fence system", 0) - b for t, b in zip(self.threads, before))
            self.fences += fences
            live = [thread for thread in self.threads if thread.stopped != EXIT]
            slowest = max(live or self.threads, key=lambda thread: thread.t)
            self.phases.append((slowest.number, slowest.t, self.threads[0].issued, fences))
            if not live:
                return max(thread.t for thread in self.threads)
            self.barriers += 1
            self.answer = any(thread.said for thread in live)
            for thread in live:
                thread.t = slowest.t + self.constants.barrier
                thread.stopped = None

    def ran(self):
        """The places of instructions that threads came to."""
        return {place for place, code in enumerate(self.code) if code is not None}

    def _warps(self):
        warps = {}
        for thread in self.threads:
            warps.setdefault(thread.number // WARP, []).append(thread)
        return warps.values()

    def _run_warp(self, warp):
        while True:
            for thread in warp:
                if thread.stopped is None:
                    thread.stopped = self._run_thread(thread)
            voting = [thread for thread in warp if thread.stopped == VOTE]
            if not voting:
                return
            if len({thread.pc for thread in voting}) > 1:
                raise SystemExit("threads of a warp vote at different places: the model cannot part them")
            answer, end = any(thread.vote for thread in voting), max(thread.t for thread in voting)
            for thread in voting:
                thread.stopped, thread.t = None, end
                if thread.vote_to is not None:
                    thread.v[thread.vote_to] = answer
                    thread.r[thread.vote_to] = end + self.constants.vote

    def _run_thread(self, thread):
        v, r, code = thread.v, thread.r, self.code
        traced = self.trace is not None and thread.number == self.trace
        while True:
            place = thread.pc
            one = code[place]
            if one is None:
                one = code[place] = self._compiled(place)
            run, waits, guard, wanted = one
            t = thread.t + 1
            for register in waits:
                if r[register] > t:
                    t = r[register]
            thread.t = t
            thread.issued += 1
            if thread.issued > MOST_INSTRUCTIONS:
                raise RuntimeError(f"no end at {self.kernel.instructions[place]}")
            on = guard is None or v[guard] == wanted
            if traced:
                print(f"{t:8.0f} {'   ' if on else 'off'} {self.kernel.instructions[place]}")
            thread.pc = place + 1
            if not on:
                continue
            then = run(thread, v, r, t)
            if then is None:
                continue
            if isinstance(then, int):
                thread.pc = then
            else:
                return then

    def _compiled(self, place):
        instruction = self.kernel.instructions[place]
        try:
            source = self.writer.source(instruction)
        except (Unknown, KeyError, IndexError, AttributeError, TypeError) as error:
            raise SystemExit(f"the model does not know {instruction} ({error!r}): see decode.py")
        names = dict(self.names)
        exec(source, names)  # of decode.py
        guard, wanted = None, True
        if instruction.guard:
            guard, wanted = number(instruction.guard.lstrip("!")), not instruction.guard.startswith("!")
        return names["run"], sources(instruction), guard, wanted

    def _names(self):
        constants, memory, shared, l1 = self.constants, self.memory, self.shared, self.l1

        def constant(offset):
            if offset in (0x198, 0x19C):  # where the parameter is, as an address
                return self.parameter[0] >> (32 if offset == 0x19C else 0) & MASK
            if offset >= 0x210 and offset + 4 <= 0x210 + len(self.parameter[1]):
                return int.from_bytes(self.parameter[1][offset - 0x210 : offset - 0x20C], "little")
            return 0

        def special(name, thread):
            known = {"SR_TID.X": thread.number, "SR_LANEID": thread.number % WARP, "SR_SWINHI": SHARED_WINDOW}
            if name in ("SR_CTAID.X", "SR_CgaCtaId", "SRZ"):
                return 0
            return known[name]

        def shared_load(thread, at, size, strong, t):
            return int.from_bytes(shared[at : at + size], "little"), t + constants.shared

        def loaded(thread, at, size, strong, t):
            if at >> 32 == SHARED_WINDOW:
                at &= MASK
                return int.from_bytes(shared[at : at + size], "little"), t + constants.shared + constants.generic
            value = memory.read(at, size)
            if strong:
                thread.note("strong loads")
                return value, t + constants.strong
            ready = t
            for sector in range(at >> 5, (at + size - 1 >> 5) + 1):
                if sector not in l1:
                    thread.note("loads from L2")
                    l1[sector] = t + constants.l2
                ready = max(ready, l1[sector], t + constants.l1)
            return value, ready

        def store_shared(thread, at, size, value, t):
            shared[at : at + size] = value.to_bytes(size, "little")

        def store(thread, at, size, value, t):
            if at >> 32 == SHARED_WINDOW:
                return store_shared(thread, at & MASK, size, value, t)
            memory.write(at, size, value)

        def changed(at, change):
            old = int.from_bytes(shared[at : at + 4], "little")
            shared[at : at + 4] = change(old).to_bytes(4, "little")
            return old

        def permuted(low, selector, high):
            words = low.to_bytes(4, "little") + high.to_bytes(4, "little")
            value = 0
            for byte in range(4):
                choice = selector >> 4 * byte & 15
                one = words[choice & 7]
                if choice & 8:
                    one = 0xFF if one & 0x80 else 0
                value |= one << 8 * byte
            return value

        places = {one.address: place for place, one in enumerate(self.kernel.instructions)}
        return {
            "C": constants, "EXIT": EXIT, "BARRIER": BARRIER, "VOTE": VOTE, "MASK": MASK,
            "as_bits": as_bits, "as_float": as_float, "signed": signed, "constant": constant,
            "special": special, "shared": shared_load, "loaded": loaded, "store": store,
            "store_shared": store_shared, "changed": changed, "permuted": permuted,
            "is_shared": lambda at: at >> 32 == SHARED_WINDOW, "returned": lambda at: places[at],
        }
