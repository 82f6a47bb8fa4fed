"""Of a GPU's results what is no target: hazards, first calls, other types, numbers of channels, the host's time, counters. Markdown."""
import statistics

from rows import MIB, Rows, hazards, human_bytes, number

OURS, NCCL = dict(contestant="oxccl"), dict(contestant="nccl")
# At least so many bytes in the tables of types and channels.
LONG = MIB


def table(title, heading, lines):
    """A table with its title; nothing without lines."""
    if not lines:
        return None
    rule = "| " + " | ".join("---:" for _ in heading) + " |"
    shown = ["| " + " | ".join(map(str, line)) + " |" for line in [heading, *lines]]
    return "\n".join([title, "", shown[0], rule, *shown[1:]])


def cell(value):
    return "" if value is None else number(value)


def probed(rows):
    found = [row for row in rows if row.get("op") == "probe"]
    if not found:
        return None
    real = hazards(rows)
    if not real:
        return f"Of {len(found)} facts that the probes asked for none breaks an assumption."
    return f"Of {len(found)} facts that the probes asked for these break an assumption:\n\n" + "\n".join(f"- {says}" for says in real)


def first_calls(rows):
    bad = [row for row in rows if row.get("op") == "first" and row["status"] != "ok"]
    lines = [f'- {row["ranks"]} ranks, {"one launch" if row["joined"] else "launches of their own"}, {row["bytes"]}: {row["status"]}'
             + (f': {row["says"]}' if row["says"] else "") for row in bad]
    return "Of the smallest calls these did not end well:\n\n" + "\n".join(lines) if lines else None


def keys(rows, *names):
    """The values of these keys in measurements of all-reduces, each once."""
    return sorted({tuple(row[name] for name in names) for row in rows if row.get("op") == "all_reduce" and "contestant" in row})


def types(rows):
    measured = Rows(rows)
    lines = []
    for data_type, ranks, size in keys(rows, "type", "ranks", "bytes"):
        if data_type == "float":
            continue
        of = dict(type=data_type, bytes=size)
        ours = measured.fastest("all_reduce", ranks, **OURS, **of)
        if ours:
            lines.append((ranks, data_type, human_bytes(size), number(ours["time_us"]), number(ours["over_floor"]), ours["setting"],
                          cell(measured.best("all_reduce", ranks, **NCCL, **of))))
    return table("AllReduces of other types:", ("ranks", "type", "size", "oxccl µs", "× floor", "by", "NCCL µs"), lines)


def channels(rows):
    """The fastest of each setting, that is of each number of channels, one by one."""
    measured = Rows(rows)
    lines = []
    for ranks, size, setting in keys([row for row in rows if row.get("contestant") == "oxccl"], "ranks", "bytes", "setting"):
        row = measured.fastest("all_reduce", ranks, mode="eager", bytes=size, setting=setting, **OURS) if size >= LONG else None
        if row:
            lines.append((ranks, setting, human_bytes(size), number(row["time_us"]), number(row["busbw_gbps"])))
    return table("Settings of long AllReduces, among them numbers of channels (×):", ("ranks", "by", "size", "µs", "bus GB/s"), lines)


def host_times(rows):
    measured = Rows(rows)
    lines = []
    for ranks, in keys(rows, "ranks"):
        of = [row for row in measured.of("all_reduce", ranks, mode="eager", **OURS) if row.get("host_us") is not None]
        # What does not say is of ranks that share launches.
        times = [min((row["host_us"] for row in of if row.get("single_launch", 1) == joined), default=None) for joined in (1, 0)]
        if of:
            lines.append((ranks, *map(cell, times)))
    return table("Host time of a call, least of all sizes:", ("ranks", "µs", "ranks with launches of their own, µs"), lines)


def cold(rows):
    measured = Rows(rows)
    lines = []
    for ranks, size in keys([row for row in rows if row.get("mode") == "cold"], "ranks", "bytes"):
        of = dict(mode="cold", bytes=size)
        ours = measured.fastest("all_reduce", ranks, **OURS, **of)
        if ours:
            lines.append((ranks, human_bytes(size), number(ours["time_us"]), ours["setting"],
                          cell(measured.best("all_reduce", ranks, mode="eager", bytes=size, **OURS)),
                          cell(measured.best("all_reduce", ranks, **NCCL, **of))))
    return table("AllReduces with cold caches, each behind a fill of the GPU's memory:",
                 ("ranks", "size", "oxccl µs", "by", "oxccl, one by one µs", "NCCL µs"), lines)


def hot_kernels(rows):
    measured = Rows(rows)
    alone = [row for row in rows if row.get("single_launch") == 0 and row.get("hot_kernels") == 0]
    lines = []
    for ranks, size, mode, setting in keys(alone, "ranks", "bytes", "mode", "setting"):
        of = dict(bytes=size, mode=mode, setting=setting, single_launch=0)
        by_kernel, interpreted = (measured.best("all_reduce", ranks, hot_kernels=hot, **OURS, **of) for hot in (1, 0))
        if by_kernel and interpreted:
            lines.append((ranks, human_bytes(size), mode, setting, number(by_kernel), number(interpreted)))
    return table("AllReduces of ranks with launches of their own, by kernels of their schedules where there are any, and interpreted:",
                 ("ranks", "size", "calls", "by", "µs", "interpreted, µs"), lines)


def traces(rows):
    lines = [(row["ranks"], row["bytes"], row["status"], number(row["steps"]), row["file"]) for row in rows if row.get("op") == "trace"]
    return table("Traces of steps:", ("ranks", "bytes", "status", "steps", "file in the archive"), lines)


def counted(rows):
    lines = [(row["ranks"], human_bytes(row["bytes"]), row["type"], name, number(statistics.median(values)))
             for row in rows if row.get("op") == "counters" for name, values in row["counters"].items()]
    return table("Hardware counters of a call whose ranks share a launch, the median of some:", ("ranks", "size", "type", "counter", "value"), lines)


def sections(rows):
    """Each part that there are rows for."""
    made = (part(rows) for part in (probed, first_calls, types, channels, host_times, cold, hot_kernels, traces, counted))
    return [text for text in made if text]
