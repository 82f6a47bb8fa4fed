"""What an instruction does, as Python: each becomes a function of a thread's registers.

A function gets the thread and the time at which its operands are there, and returns where to go on:
None for the next instruction, a place, or a reason to stop (machine.py). Registers are in one list,
numbered as here.
"""

import re
import struct

MASK = 0xFFFFFFFF
MASK64 = 0xFFFFFFFFFFFFFFFF

REGISTERS = 256
UNIFORM = REGISTERS
PREDICATES = UNIFORM + 64
UNIFORM_PREDICATES = PREDICATES + 8
BARRIERS = UNIFORM_PREDICATES + 8
COUNT = BARRIERS + 16

# Nothing that the machine's time or result depends on: convergence is not modelled.
IGNORED = {
    "NOP", "BSSY", "YIELD", "WARPSYNC", "ENDCOLLECTIVE", "ERRBAR", "CGAERRBAR", "BREAK", "BMOV",
    "FENCE", "DEPBAR", "UTMACMDFLUSH", "ELECT", "CCTLL", "UP2UR", "UR2UP",
}


def number(name):
    """A register's place in the list; None for what always reads as zero or true."""
    if name in ("RZ", "URZ", "SRZ", "PT", "UPT"):
        return None
    base = {"R": 0, "UR": UNIFORM, "P": PREDICATES, "UP": UNIFORM_PREDICATES, "B": BARRIERS}
    prefix, digits = re.fullmatch(r"(UR|UP|R|P|B)(\d+)", name).groups()
    return base[prefix] + int(digits)


class Unknown(Exception):
    """An instruction that is not here yet."""


def signed(value):
    return value - (1 << 32) if value & 0x80000000 else value


def as_float(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def as_bits(value):
    try:
        return struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


class Operand:
    """One operand of an instruction, as an expression over the registers `v`."""

    def __init__(self, text):
        text = text.replace(".reuse", "")
        self.negative = text.startswith("-") and text[1:2] in ("R", "U", "c", "|")
        self.inverted = text.startswith(("~", "!"))
        self.text = text.lstrip("~!") if not self.negative else text[1:].lstrip("~")
        self.wide = self.text.endswith(".64")
        self.name = self.text.split(".")[0] if not self.text.startswith(("0x", "-", "c")) else ""

    def word(self, at=0):
        """Its 32 bits, or those of the register `at` places behind."""
        text = self.text
        if text.startswith("c["):
            register, offset = re.search(r"\[(?:(R\d+)\+)?(0x[0-9a-f]+)\]$", text).groups()
            base = f"v[{number(register)}] + " if register else ""
            value = f"constant({base}{int(offset, 16) + 4 * at})"
        elif re.match(r"-?(0x[0-9a-f]+|\d+)$", text):
            value = str(int(text, 0) & MASK if at == 0 else (MASK if int(text, 0) < 0 else 0))
        elif number(self.name) is None:
            value = "0"
        else:
            value = f"v[{number(self.name) + at}]"
        if self.negative:
            return f"(-{value} & {MASK})"
        return f"(~{value} & {MASK})" if self.inverted else value

    def real(self):
        """As an f32."""
        text = self.text
        if re.match(r"-?[0-9.]+(e[-+]?\d+)?$", text):
            return f"({float(text)!r})"
        inner = Operand(text.strip("|")).word() if text.startswith("|") else self.word()
        if self.negative and not text.startswith("|"):
            inner = f"{Operand(text).word()} ^ 0x80000000"
        return f"abs(as_float({inner}))" if text.startswith("|") else f"as_float({inner})"

    def pair(self):
        if re.match(r"-?(0x[0-9a-f]+|\d+)$", self.text):
            return str(int(self.text, 0) & MASK64)
        if number(self.name) is None:
            return "0"
        return f"(v[{number(self.name)}] | v[{number(self.name) + 1}] << 32)"

    def truth(self):
        index = number(self.name)
        value = "True" if index is None else f"v[{index}]"
        return f"(not {value})" if self.inverted else f"{value}"


def address(text):
    """Of a memory operand; the last brackets have it."""
    parts = re.findall(r"[+-]?[^+\-\[\]]+", re.findall(r"\[([^\[\]]*)\]", text)[-1])
    terms, wide = [], False
    for part in parts:
        name = part.lstrip("+")
        if name.startswith(("R", "UR")):
            scale = re.search(r"\.X(\d+)$", name)
            if name.endswith(".64"):
                wide = True
                terms.append(Operand(name).pair())
            else:
                word = Operand(name.split(".")[0]).word()
                terms.append(f"{word} * {scale[1]}" if scale else word)
        else:
            terms.append(str(int(name, 0)))
    return f"({' + '.join(terms) or '0'}) & {MASK64 if wide else MASK}"


def sources(instruction):
    """The registers that it waits for."""
    found = []
    name, operands = instruction.name, list(instruction.operands)
    if instruction.guard:
        found.append(number(instruction.guard.lstrip("!")))
    base = name.split(".")[0]
    stores = base in ("ST", "STG", "STS", "ATOM", "ATOMS", "RED")
    wide = {"64": 2, "128": 4}.get(next((m for m in name.split(".") if m in ("64", "128")), ""), 1)
    for at, operand in enumerate(operands):
        is_result = at == 0 and not stores and base not in ("EXIT", "BRA", "BAR", "R2UR")
        for register in re.findall(r"(?<![A-Z_0-9a-z])(U?[RP]\d+)(\.64)?", operand):
            index = number(register[0])
            if is_result and "[" not in operand:
                continue
            found.append(index)
            count = 2 if register[1] else 1
            if stores and at == len(operands) - 1 and "[" not in operand:
                count = max(count, wide)
            if base == "IMAD" and ("WIDE" in name or "HI" in name) and at == 3:
                count = 2
            found.extend(index + more for more in range(1, count))
    return tuple(sorted({index for index in found if index is not None}))


class Writer:
    """Writes the function of one instruction."""

    def __init__(self, kernel):
        self.kernel = kernel

    def source(self, instruction):
        self.lines = []
        parts = instruction.name.split(".")
        method = getattr(self, "do_" + parts[0].lower(), None)
        if parts[0] in IGNORED:
            self.lines.append("pass")
        elif method is None:
            raise Unknown(str(instruction))
        else:
            method(parts, [Operand(text) for text in instruction.operands], instruction)
        body = "\n    ".join(self.lines)
        return f"def run(th, v, r, t):\n    {body}\n"

    def add(self, line):
        self.lines.append(line)

    def put(self, operand, expression, latency="C.alu"):
        index = number(operand.name)
        if index is not None:
            self.add(f"v[{index}] = {expression}; r[{index}] = t + {latency}")

    def put_pair(self, operand, expression, latency="C.alu"):
        index = number(operand.name)
        if index is not None:
            self.add(f"x = {expression}")
            self.add(f"v[{index}] = x & {MASK}; v[{index + 1}] = x >> 32 & {MASK}")
            self.add(f"r[{index}] = r[{index + 1}] = t + {latency}")

    # Moves and special registers.

    def do_mov(self, parts, o, _):
        self.put(o[0], o[1].word())

    do_umov = do_mov

    def do_r2ur(self, parts, o, _):
        first = 1 if o[0].name.startswith(("P", "UP")) else 0
        self.put(o[first], o[-1].word(), "12")

    def do_cs2r(self, parts, o, _):
        self.put_pair(o[0], "0") if "32" not in parts else self.put(o[0], "0")

    def do_s2r(self, parts, o, instruction, latency="C.special_register"):
        self.put(o[0], f"special({instruction.operands[1]!r}, th)", latency)

    def do_s2ur(self, parts, o, instruction):
        self.do_s2r(parts, o, instruction, "C.uniform_special_register")

    def do_ldc(self, parts, o, _):
        if "64" in parts:
            self.put_pair(o[0], f"({o[1].word()} | {o[1].word(1)} << 32)", "C.constant")
        else:
            self.put(o[0], o[1].word(), "C.constant")

    do_uldc = do_ldc

    def do_p2r(self, parts, o, _):
        bits = " | ".join(f"v[{PREDICATES + p}] << {p}" for p in range(7))
        self.put(o[0], f"({o[2].word()} & ~{o[3].word()} | ({bits}) & {o[3].word()})")

    def do_r2p(self, parts, o, _):
        for p in range(7):
            self.add(f"if {o[2].word()} >> {p} & 1: v[{PREDICATES + p}] = bool({o[1].word()} >> {p} & 1)")
            self.add(f"r[{PREDICATES + p}] = t + C.predicate")

    # Integer arithmetic.

    def do_imad(self, parts, o, _):
        over = o.pop(1) if o[1].name.startswith(("P", "UP")) else None
        carry = f" + {o[4].truth()}" if "X" in parts and len(o) > 4 else ""
        a, b = o[1].word(), o[2].word()
        if "WIDE" in parts:
            product = f"{a} * {b}" if "U32" in parts else f"signed({a}) * signed({b})"
            self.add(f"y = {product} + {o[3].pair()}{carry}")
            if over is not None:
                self.put_truth(over, "y >> 64 != 0")
            self.put_pair(o[0], f"y & {MASK64}")
        elif "HI" in parts:
            product = f"{a} * {b}" if "U32" in parts else f"signed({a}) * signed({b})"
            self.put(o[0], f"({product} + {o[3].pair()}) >> 32 & {MASK}")
        else:
            self.put(o[0], f"({a} * {b} + {o[3].word()}{carry}) & {MASK}")

    do_uimad = do_imad

    def do_iadd3(self, parts, o, _):
        carries = []
        while re.match(r"U?P", o[1 + len(carries)].name):
            carries.append(o[1 + len(carries)])
        rest = o[1 + len(carries):]
        # A carry of a difference is that of adding the two's complement, which does not wrap.
        terms = [f"{MASK + 1} - {term.word()[2:].split(' & ')[0]}" if term.negative else term.word() for term in rest[:3]]
        if "X" in parts:
            # Here what is taken away is inverted, and the carry in is the other half of it.
            terms += [term.truth() for term in rest[3:]]
        self.add(f"y = {' + '.join(terms)}")
        for place, carry in enumerate(carries):
            index = number(carry.name)
            if index is not None:
                self.add(f"v[{index}] = (y >> 32) > {place}; r[{index}] = t + C.predicate")
        self.put(o[0], f"y & {MASK}")

    do_uiadd3 = do_iadd3

    def do_viadd(self, parts, o, _):
        self.put(o[0], f"({o[1].word()} + {o[2].word()}) & {MASK}")

    do_uiadd = do_viadd

    def do_lea(self, parts, o, _):
        carry = o.pop(1) if o[1].name.startswith(("P", "UP")) else None
        if "HI" in parts:
            more = f" + {o[5].truth()}" if "X" in parts else ""
            whole = f"({o[3].word()} << 32 | {o[1].word()}) << {o[4].word()}"
            self.add(f"y = (({whole}) >> 32 & {MASK}) + {o[2].word()}{more}")
        else:
            self.add(f"y = ({o[1].word()} << {o[3].word()} & {MASK}) + {o[2].word()}")
        if carry is not None and number(carry.name) is not None:
            index = number(carry.name)
            self.add(f"v[{index}] = y >> 32 != 0; r[{index}] = t + C.predicate")
        self.put(o[0], f"y & {MASK}")

    do_ulea = do_lea

    def do_lop3(self, parts, o, _):
        predicate = o.pop(0) if o[0].name.startswith(("P", "UP")) else None
        table = int(o[4].text, 0)
        words = [o[1].word(), o[2].word(), o[3].word()]
        terms = []
        for row in range(8):
            if table >> row & 1:
                chosen = [word if row >> (2 - at) & 1 else f"~{word}" for at, word in enumerate(words)]
                terms.append("(" + " & ".join(chosen) + ")")
        self.add(f"y = ({' | '.join(terms) or '0'}) & {MASK}")
        if predicate is not None and number(predicate.name) is not None:
            index = number(predicate.name)
            self.add(f"v[{index}] = y != 0; r[{index}] = t + C.predicate")
        self.put(o[0], "y")

    do_ulop3 = do_lop3

    def do_shf(self, parts, o, _):
        low, shift, high = o[1].word(), o[2].word(), o[3].word()
        self.add(f"s = min({shift}, {63 if 'U64' in parts or 'S64' in parts else 32})")
        whole = f"({high} << 32 | {low})"
        if "L" in parts:
            shifted = f"({whole} << s >> 32)" if "HI" in parts else f"({low} << s)"
        elif "HI" in parts:
            shifted = f"(signed({high}) >> s)" if "S32" in parts else f"({high} >> s)"
        else:
            shifted = f"({whole} >> s)"
        self.put(o[0], f"{shifted} & {MASK}")

    do_ushf = do_shf

    def do_prmt(self, parts, o, _):
        self.put(o[0], f"permuted({o[1].word()}, {o[2].word()}, {o[3].word()})")

    do_uprmt = do_prmt

    def do_sel(self, parts, o, _):
        self.put(o[0], f"{o[1].word()} if {o[3].truth()} else {o[2].word()}")

    do_usel = do_sel

    def do_vimnmx(self, parts, o, _):
        a, b = o[1].word(), o[2].word()
        if "U32" not in parts:
            a, b = f"signed({a})", f"signed({b})"
        self.put(o[0], f"(min({a}, {b}) if {o[3].truth()} else max({a}, {b})) & {MASK}")

    def do_vimnmx3(self, parts, o, _):
        words = [operand.word() for operand in o[1:4]]
        if "U32" not in parts:
            words = [f"signed({word})" for word in words]
        joined = ", ".join(words)
        self.put(o[0], f"(min({joined}) if {o[4].truth()} else max({joined})) & {MASK}")

    def do_viaddmnmx(self, parts, o, _):
        a, b = f"({o[1].word()} + {o[2].word()} & {MASK})", o[3].word()
        if "U32" not in parts:
            a, b = f"signed({a})", f"signed({b})"
        self.put(o[0], f"(min({a}, {b}) if {o[4].truth()} else max({a}, {b})) & {MASK}")

    def do_flo(self, parts, o, _):
        found = f"{o[1].word()}.bit_length()"
        place = f"(32 - {found})" if "SH" in parts else f"({found} - 1)"
        self.put(o[0], f"{place} & {MASK} if {o[1].word()} else {MASK}", "20")

    do_uflo = do_flo

    def do_brev(self, parts, o, _):
        self.put(o[0], f"int(format({o[1].word()}, '032b')[::-1], 2)", "20")

    def do_popc(self, parts, o, _):
        self.put(o[0], f"{o[1].word()}.bit_count()", "20")

    # Comparisons and predicates.

    def put_truth(self, operand, expression):
        index = number(operand.name)
        if index is not None:
            self.add(f"v[{index}] = {expression}; r[{index}] = t + C.predicate")

    def do_isetp(self, parts, o, _):
        comparison = {"LT": "<", "LE": "<=", "GT": ">", "GE": ">=", "EQ": "==", "NE": "!="}[parts[1]]
        a, b = o[2].word(), o[3].word()
        if "U32" not in parts:
            a, b = f"signed({a})", f"signed({b})"
        if "EX" in parts:  # the upper halves; the lower halves' result comes with it
            strict = comparison.rstrip("=") if comparison[0] in "<>" else comparison
            lower = o[5].truth()
            if comparison == "!=":
                compared = f"({a} != {b} or {lower})"
            elif comparison == "==":
                compared = f"({a} == {b} and {lower})"
            else:
                compared = f"({a} {strict} {b} or {a} == {b} and {lower})"
        else:
            compared = f"({a} {comparison} {b})"
        joined = "or" if "OR" in parts else "and"
        self.add(f"y = bool({compared}); z = {o[4].truth()}")
        self.put_truth(o[0], f"y {joined} z")
        self.put_truth(o[1], f"(not y) {joined} z")

    do_uisetp = do_isetp

    def do_plop3(self, parts, o, _):
        self.add(f"y = {o[2].truth()} << 2 | {o[3].truth()} << 1 | {o[4].truth()}")
        self.put_truth(o[0], f"bool({int(o[5].text, 0)} >> y & 1)")
        self.put_truth(o[1], f"bool({int(o[6].text, 0)} >> y & 1)")

    do_uplop3 = do_plop3

    def do_vote(self, parts, o, _):
        if "ANY" not in parts or len(o) != 2:
            raise Unknown("a vote for more than whether any says so")
        index = number(o[0].name)
        self.add(f"th.vote = {o[1].truth()}; th.vote_to = {index}; return VOTE")

    # Arithmetic of f32: the model's kernels are sums of it.

    def do_fadd(self, parts, o, _):
        self.put(o[0], f"as_bits({o[1].real()} + {o[2].real()})")

    def do_fmul(self, parts, o, _):
        self.put(o[0], f"as_bits({o[1].real()} * {o[2].real()})")

    def do_fsel(self, parts, o, _):
        self.put(o[0], f"as_bits({o[1].real()} if {o[3].truth()} else {o[2].real()})")

    def do_fsetp(self, parts, o, instruction):
        comparison = {"GEU": "not ({} < {})", "GT": "{} > {}", "LT": "{} < {}", "NEU": "{} != {}"}[parts[1]]
        self.add(f"y = {comparison.format(o[2].real(), o[3].real())}; z = {o[4].truth()}")
        self.put_truth(o[0], "y and z")

    # What compilers make of constants and of divisions of integers.

    def do_hfma2(self, parts, o, instruction):
        if [one.name for one in o[1:3]] != ["RZ", "RZ"]:
            raise Unknown(str(instruction))
        high, low = (struct.unpack("<H", struct.pack("<e", float(one.text))) for one in o[3:5])
        self.put(o[0], str(high[0] << 16 | low[0]))

    def do_i2f(self, parts, o, _):
        value = f"{o[1].word()} & 0xffff" if "U16" in parts else o[1].word()
        self.put(o[0], f"as_bits(float({value}))", "20")

    do_i2fp = do_i2f

    def do_ffma(self, parts, o, _):
        self.put(o[0], f"as_bits({o[1].real()} * {o[2].real()} + {o[3].real()})")

    def do_mufu(self, parts, o, instruction):
        if parts[1] != "RCP":
            raise Unknown(str(instruction))
        self.put(o[0], f"as_bits(1 / as_float({o[1].word()}))", "20")

    def do_f2i(self, parts, o, _):
        self.put(o[0], f"int(as_float({o[1].word()})) & {MASK}", "20")

    # Memory.

    def width(self, parts):
        return next((n for m, n in (("U8", 1), ("U16", 2), ("64", 8), ("128", 16)) if m in parts), 4)

    def do_ld(self, parts, o, instruction):
        size = self.width(parts)
        strong = "STRONG" in parts and ("SYS" in parts or "GPU" in parts)
        self.add(f"at = {address(instruction.operands[1])}")
        method = "shared" if parts[0] == "LDS" else "loaded"
        self.add(f"x, ready = {method}(th, at, {size}, {strong}, t)")
        index = number(o[0].name)
        if index is None:
            return
        for word in range(max(1, size // 4)):
            self.add(f"v[{index + word}] = x >> {32 * word} & {MASK}; r[{index + word}] = ready")

    do_lds = do_ld
    do_ldg = do_ld

    def do_st(self, parts, o, instruction):
        size = self.width(parts)
        self.add(f"at = {address(instruction.operands[0])}")
        words = [f"{o[1].word(at) if number(o[1].name) is not None else 0} << {32 * at}" for at in range(max(1, size // 4))]
        method = "store_shared" if parts[0] == "STS" else "store"
        self.add(f"{method}(th, at, {size}, ({' | '.join(words)}) & {(1 << 8 * size) - 1}, t)")

    do_sts = do_st
    do_stg = do_st

    def do_atoms(self, parts, o, instruction):
        at = address(instruction.operands[1])
        if "CAS" in parts:
            change = f"lambda old: {o[3].word()} if old == {o[2].word()} else old"
        elif "ADD" in parts:
            change = f"lambda old: old + {o[2].word()} & {MASK}"
        elif "OR" in parts:
            change = f"lambda old: old | {o[2].word()}"
        else:
            raise Unknown(str(instruction))
        self.add(f"old = changed({at}, {change})")
        self.put(o[0], "old", "C.atomic")

    def do_atom(self, parts, o, instruction):
        if "INC" in parts:
            new = f"0 if old >= {o[3].word()} else old + 1"
        elif "EXCH" in parts:
            new = o[3].word()
        else:
            raise Unknown(str(instruction))
        self.add(f"at = {address(instruction.operands[2])}; old, ready = loaded(th, at, 4, True, t)")
        self.add(f"store(th, at, 4, {new}, t)")
        self.put(o[1], "old", "C.strong")

    def do_qspc(self, parts, o, instruction):
        self.put_truth(o[0], f"not is_shared({self.pair_of(instruction.operands[2])})")

    @staticmethod
    def pair_of(text):
        return Operand(text.strip("[]").split(".")[0]).pair()

    def do_cctl(self, parts, o, _):
        self.add("th.block.l1.clear()")

    def do_membar(self, parts, o, _):
        scope = {"SYS": "system", "GPU": "gpu", "CTA": "block"}[parts[-1]]
        self.add(f"th.t += C.fence_{scope}; th.note('fence {scope}')")

    # Control.

    def target(self, instruction):
        label = re.search(r"`\((\.L_x_\d+|\$[\w$]+|\w+)\)", instruction.operands[-1])
        return self.kernel.labels[label[1]]

    def do_bra(self, parts, o, instruction):
        if "DIV" in parts or "ANY" in parts:  # for warps that have diverged
            return self.add("pass")
        if len(o) > 1:
            self.add(f"if not ({o[0].truth()}): return None")
        self.add(f"th.t += C.branch; return {self.target(instruction)}")

    def do_call(self, parts, o, instruction):
        self.add(f"th.t += C.branch; return {self.target(instruction)}")

    def do_ret(self, parts, o, instruction):
        pair = self.pair_of(instruction.operands[0].split()[0])  # a label may follow
        self.add(f"th.t += C.branch; return returned({pair})")

    def do_bsync(self, parts, o, _):
        self.add("th.t += C.reconverge")

    def do_exit(self, parts, o, _):
        self.add("return EXIT")

    def do_bar(self, parts, o, instruction):
        said = o[-1].truth() if "RED" in parts else "False"
        self.add(f"th.said = {said}; return BARRIER")

    def do_b2r(self, parts, o, _):
        self.put_truth(o[-1], "th.block.answer")
        if o[-1] is not o[0] and number(o[0].name) is not None:
            self.put(o[0], "int(th.block.answer)")
