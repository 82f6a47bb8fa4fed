"""Every target on a GPU: wanted, measured, met, the figures of the row that decides, and of a missed one the cause as far as figures tell."""
import causes
from rows import KIB, MIB, RANKS, Rows, over

# Of the row that decides.
FIGURES = ("bytes", "setting", "time_us", "floor_us", "over_floor", "busbw_gbps", "blocks", "busbw_per_block_gbps", "host_us")
GRAPHS = dict(mode="graph", at_most=16 * KIB)
LARGE = dict(mode="eager", at_least=64 * MIB)
OURS, NCCL = dict(contestant="oxccl"), dict(contestant="nccl")


def target(name, ranks, wanted, unit, measured, largest=True, row=None, cause=None):
    """`largest`: what is wanted is an upper bound, otherwise a lower one. `cause` is asked if it is missed."""
    met = None if measured is None else (measured <= wanted if largest else measured >= wanted)
    return {"target": name, "ranks": ranks, "wanted": ("<= " if largest else ">= ") + format(wanted, "g"), "unit": unit,
            "measured": None if measured is None else round(measured, 4), "met": met, "at": row and row.get("bytes"),
            "figures": {key: row[key] for key in FIGURES if row.get(key) is not None} if row else None,
            "cause": (cause and cause()) or "the figures do not tell" if met is False else None}


def worst(pairs, largest=True):
    """Of (row, value) the pair whose value is farthest from its target."""
    pairs = [(row, value) for row, value in pairs if row is not None and value is not None]
    return (max if largest else min)(pairs, key=lambda pair: pair[1], default=(None, None))


def by_size(rows, op, ranks, which, value):
    """For each size of these rows oxccl's fastest row, with a value made of it."""
    at_sizes = [rows.fastest(op, ranks, mode=which["mode"], bytes=size, **OURS) for size in rows.sizes(op, ranks, **which)]
    return [(row, value(row)) for row in at_sizes if row]


def against(rows, op, ranks, row, **family):
    """NCCL's fastest row at the same size."""
    return rows.fastest(op, ranks, mode=row["mode"], bytes=row["bytes"], **NCCL, **family)


def small(rows, ranks):
    """All-reduces of up to 16 KiB, replayed from graphs."""
    empty_us = rows.machine(ranks).get("empty_node_us")
    row, value = worst(by_size(rows, "all_reduce", ranks, GRAPHS, lambda row: empty_us and row["time_us"] - empty_us))
    yield target("all_reduce of 8 B to 16 KiB in graphs, over an empty kernel", ranks, 3, "us", value, row=row,
                 cause=lambda: causes.small(rows, ranks, row))
    row, value = worst(by_size(rows, "all_reduce", ranks, GRAPHS, lambda row: over(
        row["time_us"], (against(rows, "all_reduce", ranks, row) or {}).get("time_us"))))
    yield target("all_reduce of 8 B to 16 KiB in graphs, over NCCL", ranks, 0.6, "times", value, row=row,
                 cause=lambda: causes.beside(row, against(rows, "all_reduce", ranks, row), causes.small(rows, ranks, row)))


def large(rows, ranks):
    """Calls of 64 MiB and more, one by one."""
    def fraction(row):
        return over(row["floor_us"], row["time_us"])

    for op in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
        row, value = worst(by_size(rows, op, ranks, LARGE, fraction), largest=False)
        yield target(f"{op} from 64 MiB, of its bound", ranks, 0.85, "of the bound", value, False, row,
                     lambda op=op, row=row: causes.large(rows, op, ranks, row))
    few = [rows.fastest("all_reduce", ranks, mode="eager", bytes=size, blocks=64, **OURS)
           for size in rows.sizes("all_reduce", ranks, **LARGE)]
    row, value = worst([(row, fraction(row)) for row in few if row], largest=False)
    yield target("all_reduce from 64 MiB with at most 64 blocks, of its bound", ranks, 0.8, "of the bound", value, False, row,
                 lambda row=row: causes.large(rows, "all_reduce", ranks, row))
    for family, wanted in (("default", 1.8), ("symmetric", 1.05)):
        def times(row, family=family):
            return over((against(rows, "all_reduce", ranks, row, family=family) or {}).get("time_us"), row["time_us"])

        row, value = worst(by_size(rows, "all_reduce", ranks, LARGE, times), largest=False)
        yield target(f"all_reduce from 64 MiB, times as fast as NCCL {family}", ranks, wanted, "times", value, False, row,
                     lambda row=row, family=family: causes.beside(
                         row, against(rows, "all_reduce", ranks, row, family=family), causes.large(rows, "all_reduce", ranks, row)))


def costs(rows, ranks):
    """What a call, a communicator and an abort cost."""
    row = min((row for row in rows.of("all_reduce", ranks, mode="eager", at_most=16 * KIB, **OURS) if row.get("host_us") is not None),
              key=lambda row: row["host_us"], default=None)
    yield target("host time of a call made before", ranks, 3, "us", row and row["host_us"], row=row,
                 cause=lambda: causes.host(rows, ranks, row))
    if ranks == max(RANKS):
        yield target("start", ranks, 100, "ms", rows.one("start", ranks, "time_ms", **OURS), cause=lambda: causes.start(rows, ranks))
        memory = rows.one("start", ranks, "device_bytes", **OURS)
        yield target("device memory of a rank's communicator", ranks, 64, "MiB", over(memory, MIB), cause=lambda: causes.memory(rows, ranks))
    yield target("abort of a stuck kernel", ranks, 50, "ms", rows.one("abort", ranks, "time_ms", **OURS), cause=lambda: causes.abort(rows, ranks))


def groups(rows, ranks):
    """Buckets in one launch."""
    kinds = [("20 x 64 KiB", dict(buckets=20, bytes=20 * 64 * KIB), 0.5, "ideal", 1.15),
             ("20 x 2 KiB", dict(buckets=20, bytes=20 * 2 * KIB), 0.4, None, None)]
    lists = sorted({row["source"] for row in rows.rows if row.get("op") == "group" and row.get("source")})
    kinds += [(source, dict(source=source), 0.6, "flatten", 0.7) for source in lists or ["gpt2_small.toml", "resnet_50.toml"]]
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
    """What compute-sanitizer finds, by the status that it ends with."""
    for check in ("memcheck", "racecheck"):
        status = rows.one("sanitizer", ranks, "status", check=check)
        yield target(f"{check} of small calls", ranks, 0, "status", status, cause=lambda check=check: f"see the log of the stage: == {check}")


def targets(rows):
    """All targets."""
    rows = Rows(rows)
    found = [one for ranks in RANKS for part in (small, large, costs, groups) for one in part(rows, ranks)]
    return found + list(clean(rows, 2))
