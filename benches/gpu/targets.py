"""Every target on a GPU: wanted, measured, met, the figures of the row that decides, and of a missed one the cause as far as figures tell.

One that holds for several sizes is met if all of them were measured, and missed if one is missed.
"""
import causes
from rows import KIB, MIB, RANKS, Rows, over

# Of the row that decides.
FIGURES = ("bytes", "setting", "time_us", "floor_us", "over_floor", "busbw_gbps", "blocks", "busbw_per_block_gbps", "host_us")
# What is measured at which sizes, at least.
GRAPHS = dict(mode="graph", at_most=16 * KIB)
SMALL_SIZES = [8 << step for step in range(12)]
LARGE = dict(mode="eager", at_least=64 * MIB)
LARGE_SIZES = {"all_reduce": [64 * MIB, 128 * MIB, 256 * MIB]}
LISTS = {"gpt2_small.toml", "resnet_50.toml"}
OURS, NCCL = dict(contestant="oxccl"), dict(contestant="nccl")


def target(name, ranks, wanted, unit, measured, largest=True, row=None, cause=None, missing=()):
    """`largest`: what is wanted is an upper bound, otherwise a lower one. `cause` is asked if it is missed. `missing`: sizes that were
    not measured."""
    met = None if measured is None else (measured <= wanted if largest else measured >= wanted)
    if met and missing:
        met = None
    return {"target": name, "ranks": ranks, "wanted": ("<= " if largest else ">= ") + format(wanted, "g"), "unit": unit,
            "measured": None if measured is None else round(measured, 4), "met": met, "at": row and row.get("bytes"), "missing": list(missing),
            "figures": {key: row[key] for key in FIGURES if row.get(key) is not None} if row else None,
            "cause": (cause and cause()) or "the figures do not tell" if met is False else None}


def worst(values, largest=True):
    """Of (row, value) by size the pair whose value is farthest from its target, and the sizes without."""
    missing = [size for size, pair in values.items() if pair is None]
    pairs = [pair for pair in values.values() if pair is not None]
    return *(max if largest else min)(pairs, key=lambda pair: pair[1], default=(None, None)), missing


def by_size(rows, op, ranks, which, expected, value, **wanted):
    """For each size oxccl's fastest row, with a value made of it; None where there is no such row or value."""
    found = {}
    for size in sorted({*expected, *rows.sizes(op, ranks, **which)}):
        row = rows.fastest(op, ranks, mode=which["mode"], bytes=size, **OURS, **wanted)
        made = row and value(row)
        found[size] = None if made is None else (row, made)
    return found


def against(rows, op, ranks, row, **family):
    """NCCL's fastest row at the same size."""
    return rows.fastest(op, ranks, mode=row["mode"], bytes=row["bytes"], **NCCL, **family)


def small(rows, ranks):
    """All-reduces of up to 16 KiB, replayed from graphs."""
    empty_us = rows.machine(ranks).get("empty_node_us")
    row, value, missing = worst(by_size(rows, "all_reduce", ranks, GRAPHS, SMALL_SIZES, lambda row: empty_us and row["time_us"] - empty_us))
    yield target("all_reduce of 8 B to 16 KiB in graphs, over an empty kernel", ranks, 3, "us", value, row=row, missing=missing,
                 cause=lambda: causes.small(rows, ranks, row))
    row, value, missing = worst(by_size(rows, "all_reduce", ranks, GRAPHS, SMALL_SIZES, lambda row: over(
        row["time_us"], (against(rows, "all_reduce", ranks, row) or {}).get("time_us"))))
    yield target("all_reduce of 8 B to 16 KiB in graphs, over NCCL", ranks, 0.6, "times", value, row=row, missing=missing,
                 cause=lambda: causes.beside(row, against(rows, "all_reduce", ranks, row), causes.small(rows, ranks, row)))


def large(rows, ranks):
    """Calls of 64 MiB and more, one by one."""
    def fraction(row):
        return over(row["floor_us"], row["time_us"])

    for op in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
        row, value, missing = worst(by_size(rows, op, ranks, LARGE, LARGE_SIZES.get(op, [64 * MIB]), fraction), largest=False)
        yield target(f"{op} from 64 MiB, of its bound", ranks, 0.85, "of the bound", value, False, row,
                     lambda op=op, row=row: causes.large(rows, op, ranks, row), missing)
    expected = LARGE_SIZES["all_reduce"]
    row, value, missing = worst(by_size(rows, "all_reduce", ranks, LARGE, expected, fraction, blocks=64), largest=False)
    yield target("all_reduce from 64 MiB with at most 64 blocks, of its bound", ranks, 0.8, "of the bound", value, False, row,
                 lambda row=row: causes.large(rows, "all_reduce", ranks, row), missing)
    for family, wanted in (("default", 1.8), ("symmetric", 1.05)):
        def times(row, family=family):
            return over((against(rows, "all_reduce", ranks, row, family=family) or {}).get("time_us"), row["time_us"])

        row, value, missing = worst(by_size(rows, "all_reduce", ranks, LARGE, expected, times), largest=False)
        yield target(f"all_reduce from 64 MiB, times as fast as NCCL {family}", ranks, wanted, "times", value, False, row,
                     lambda row=row, family=family: causes.beside(
                         row, against(rows, "all_reduce", ranks, row, family=family), causes.large(rows, "all_reduce", ranks, row)), missing)


def costs(rows, ranks):
    """What a call, a communicator and its end cost."""
    row = min((row for row in rows.of("all_reduce", ranks, mode="eager", at_most=16 * KIB, **OURS) if row.get("host_us") is not None),
              key=lambda row: row["host_us"], default=None)
    yield target("host time of a call made before", ranks, 3, "us", row and row["host_us"], row=row,
                 cause=lambda: causes.host(rows, ranks, row))
    if ranks == max(RANKS):
        yield target("start", ranks, 100, "ms", rows.one("start", ranks, "time_ms", **OURS), cause=lambda: causes.start(rows, ranks))
        memory = rows.one("start", ranks, "device_bytes", **OURS)
        yield target("device memory of a rank's communicator", ranks, 64, "MiB", over(memory, MIB), cause=lambda: causes.memory(rows, ranks))
    yield target("a rank leaves a stuck kernel", ranks, 50, "ms", rows.one("left", ranks, "time_ms", **OURS), cause=lambda: causes.left(rows, ranks))


def groups(rows, ranks):
    """Buckets in one launch."""
    kinds = [("20 x 64 KiB", dict(buckets=20, bytes=20 * 64 * KIB), 0.5, "ideal", 1.15),
             ("20 x 2 KiB", dict(buckets=20, bytes=20 * 2 * KIB), 0.4, None, None)]
    lists = LISTS | {row["source"] for row in rows.rows if row.get("op") == "group" and row.get("source")}
    kinds += [(source, dict(source=source), 0.6, "flatten", 0.7) for source in sorted(lists)]
    for name, wanted, nccl, other, bound in kinds:
        fused = rows.fastest("group", ranks, form="fused", **OURS, **wanted)
        theirs = rows.fastest("group", ranks, form="fused", **NCCL, **wanted)

        def cause(beside, fused=fused, wanted=wanted):
            return causes.beside(fused, beside, causes.group(rows, ranks, fused, wanted))

        time = fused and fused["time_us"]
        yield target(f"group {name}, over a NCCL group", ranks, nccl, "times", over(time, theirs and theirs["time_us"]), row=fused,
                     cause=lambda theirs=theirs, cause=cause: cause(theirs))
        if other:
            beside = rows.fastest("group", ranks, form=other, **OURS, **wanted)
            yield target(f"group {name}, over {other}", ranks, bound, "times", over(time, beside and beside["time_us"]), row=fused,
                         cause=lambda beside=beside, cause=cause: cause(beside))
    row = min((row for row in rows.of("group", ranks, form="fused", mode="eager", buckets=20, **OURS) if row.get("host_us") is not None),
              key=lambda row: row["host_us"], default=None)
    yield target("host time of a group of 20 made before", ranks, 5, "us", row and row["host_us"], row=row,
                 cause=lambda: causes.host(rows, ranks, row))


def clean(rows, ranks):
    """What compute-sanitizer finds, by the statuses that it ends with."""
    for check in ("memcheck", "racecheck"):
        status = max((row["status"] for row in rows.of("sanitizer", ranks, check=check)), default=None)
        yield target(f"{check} of small calls", ranks, 0, "status", status, cause=lambda check=check: f"see the log of the stage: == {check}")


def profiled(rows, ranks):
    """Kernels that a GPU executes for a call, as its profiler counts them."""
    for what, name in (("ideal", "a call"), ("fused", "a group of 20")):
        row = next((row for row in rows.of("profile", ranks) if row["what"] == what), None)
        yield target(f"kernels of {name} in a profile", ranks, 1, "kernels", row and row["kernels_per_call"],
                     cause=lambda row=row: ", ".join(f"{count} of {kernel}" for kernel, count in row["kernels"].items()))


def targets(rows):
    """All targets."""
    rows = Rows(rows)
    found = [one for ranks in RANKS for part in (small, large, costs, groups) for one in part(rows, ranks)]
    return found + list(clean(rows, 2)) + list(profiled(rows, 2))
