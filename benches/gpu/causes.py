"""Why a target was missed, as far as the figures of the same run tell: each cause names the figures that it is read from."""
from rows import KIB, over

OURS = dict(contestant="oxccl")


def us(value):
    return f"{value:.3g} us"


def small(rows, ranks, row):
    """Of a short call in a graph: what is there whatever its size, and what comes with the size."""
    empty_us = rows.machine(ranks).get("empty_node_us")
    first = rows.fastest("all_reduce", ranks, mode="graph", bytes=min(rows.sizes("all_reduce", ranks, mode="graph")), **OURS)
    fixed = first["time_us"] - empty_us
    grown = row["time_us"] - first["time_us"]
    which = "the launch of a block's machine and the way of its flags" if fixed >= grown else "moving the data through flags"
    return (f'mostly {which}: over the empty kernel ({us(empty_us)}) {us(fixed)} are there at {first["bytes"]} B already, '
            f'{us(grown)} more at {row["bytes"]} B')


def large(rows, op, ranks, row):
    """Of a long call: a fixed part, too few blocks, or the memory itself."""
    parts = [f'{row["over_floor"]:.3g} times its floor at {row["busbw_gbps"]:.3g} GB/s']
    fixed = fixed_us(rows, op, ranks, row)
    if fixed is not None and fixed > 0.05 * row["time_us"]:
        parts.append(f'{us(fixed)} do not grow with the size (launches, barriers, the first and last tile)')
    parts.append(blocks(rows, op, ranks, row))
    return "; ".join(part for part in parts if part)


def fixed_us(rows, op, ranks, row):
    """What is left of a call's time at no bytes, by the line through this row and the next larger or smaller size of its setting."""
    alike = [other for other in rows.of(op, ranks, mode=row["mode"], setting=row["setting"], **OURS) if other["bytes"] != row["bytes"]]
    other = max(alike, key=lambda other: other["bytes"], default=None)
    if other is None:
        return None
    slope = (other["time_us"] - row["time_us"]) / (other["bytes"] - row["bytes"])
    return max(0.0, row["time_us"] - slope * row["bytes"])


def blocks(rows, op, ranks, row):
    """Whether more blocks move more, by the rows of other settings in the same family at this size."""
    if not row.get("blocks"):
        return None
    alike = rows.of(op, ranks, mode=row["mode"], bytes=row["bytes"], family=row.get("family"), **OURS)
    more = [other for other in alike if (other.get("blocks") or 0) > row["blocks"]]
    each = f'{row["busbw_per_block_gbps"]:.3g} GB/s a block with {row["blocks"]}'
    if not more:
        return f"{each}, and nothing was measured with more"
    best = min(more, key=lambda other: other["time_us"])
    gain = row["time_us"] / best["time_us"]
    then = f'{best["busbw_per_block_gbps"]:.3g} with {best["blocks"]}'
    if gain > 1.05:
        return f"too few blocks: {each}, {then}, which is {gain:.3g} times as fast"
    return f"the memory, not the blocks: {each}, {then}, which is not faster"


def beside(row, other, own):
    """Beside another contestant or form: who is how far from the floor."""
    if row is None or other is None:
        return own
    return (f'{row["setting"]} takes {us(row["time_us"])}, {row["over_floor"]:.3g} times the floor; {other["setting"]} '
            f'takes {us(other["time_us"])}, {other["over_floor"]:.3g} times' + (f"; {own}" if own else ""))


def group(rows, ranks, fused, wanted):
    """Of a group: its other forms in the same mode."""
    if fused is None:
        return None
    wanted = dict(wanted, mode=fused["mode"])
    times = [(form, rows.best("group", ranks, form=form, **OURS, **wanted)) for form in ("ideal", "one_by_one", "flatten")]
    return "; ".join([f'{fused["over_floor"]:.3g} times the floor']
                     + [f'{form} takes {us(time)}' for form, time in times if time is not None])


def host(rows, ranks, row):
    """Of the host's time: the driver's part, as an empty launch has it."""
    launch_us = rows.machine(ranks).get("empty_launch_us")
    share = over(launch_us, row["host_us"])
    return launch_us and f'an empty kernel launched by itself takes {us(launch_us)}, {share:.0%} of it; the rest is what oxccl does around the launch'


def start(rows, ranks):
    nccl = rows.one("start", ranks, "time_ms", contestant="nccl")
    return nccl and f"NCCL's start took {nccl:.3g} ms in the same run; the parts of a start are not timed"


def memory(rows, ranks):
    nccl = rows.one("start", ranks, "device_bytes", contestant="nccl")
    return nccl and f"NCCL took {nccl / (KIB * KIB):.3g} MiB; slots, heap and tables are sized by OXCCL_MAX_CHANNELS, OXCCL_SLOT_BYTES and OXCCL_HEAP_BYTES"


def left(rows, ranks):
    other = [(n, rows.one("left", n, "time_ms", **OURS)) for n in (2, 4, 8) if n != ranks]
    beside = ", ".join(f"{time:.3g} ms with {n} ranks" for n, time in other if time is not None)
    return beside and f"{beside}: time that grows with ranks is the others' hearing of it, what does not is the polling of the abort word"
