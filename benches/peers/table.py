#!/usr/bin/env python3
"""Turns the rows of a comparison into markdown tables, one for each collective and rank count.

Usage: table.py RESULTS.json            print the tables
       table.py --pairs RESULTS.json    print those of docs/results.md: two columns for each collective
       table.py --check                 fail unless sample.json still gives sample.md

A row is one line of `oxccl bench --json`, with `contestant`, `variant` and `round` added. A
contestant's time at a size is the median over rounds of its best variant's `time_us`, the variant
being chosen afresh for every size: peers are seen at their best.
"""
import collections
import json
import pathlib
import statistics
import sys

OURS = ("oxccl", "oxccl-registered", "oxccl-private")
TITLES = {
    "oxccl": "oxccl", "oxccl-registered": "oxccl, registered", "oxccl-private": "oxccl, private",
    "openmpi": "Open MPI", "openmpi5": "Open MPI 5", "mpich": "MPICH", "mpich5": "MPICH 5",
    "impi": "Intel MPI", "gloo": "Gloo",
}
COLLECTIVES = {
    "all_reduce": "AllReduce", "reduce_scatter": "ReduceScatter", "all_gather": "AllGather",
    "all_to_all": "All-to-All", "broadcast": "Broadcast",
}

# Of these a rank reads and writes as many bytes as a copy of the size does, whoever's buffers they
# are in, if nothing is moved twice.
COPIES = ("all_reduce", "all_gather", "all_to_all")
# From so many bytes the buffers of two ranks are larger than caches.
COPIES_FROM = 16 << 20

Time = collections.namedtuple("Time", "median_us min_us wrong")


def summarise(rows):
    """(op, ranks) -> bytes -> contestant -> Time."""
    samples = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in rows:
        case = (row["op"], row["ranks"], row["bytes"], row["contestant"])
        samples[case][row["variant"]].append(row)
    summary = collections.defaultdict(lambda: collections.defaultdict(dict))
    for (op, ranks, size, contestant), variants in samples.items():
        times = [Time(statistics.median(row["time_us"] for row in rows),
                      min(row["min_us"] for row in rows),
                      sum(row["wrong"] for row in rows)) for rows in variants.values()]
        best = Time(*(min(values) for values in zip(*times)))
        wrong = sum(time.wrong for time in times)
        summary[op, ranks][size][contestant] = best._replace(wrong=wrong)
    return summary


def human_bytes(size):
    for unit in ("B", "KiB", "MiB"):
        if size < 1024 or unit == "MiB":
            return f"{size:g} {unit}"
        size /= 1024


def human_us(time_us):
    return f"{time_us:.2f}" if time_us < 10 else f"{time_us:.1f}" if time_us < 100 else f"{time_us:,.0f}"


def cell(time):
    if time is None:
        return ""
    return human_us(time.median_us) + (f" **{time.wrong} wrong**" if time.wrong else "")


def ratio(times, ours, field):
    peers = [getattr(time, field) for name, time in times.items() if name not in OURS]
    if ours not in times or not peers:
        return ""
    return f"{min(peers) / getattr(times[ours], field):.2f}"


def copy_gbps(state):
    """How fast two cores copied, before the table and, if it is known, after it."""
    return [at["copy_64MiB_two_cores_gbps"] for at in (state, state.get("after")) if at]


def share_of_copy(op, ranks, size, times, state):
    """Which part of the time is a copy of all ranks' bytes by two cores."""
    if op not in COPIES or size < COPIES_FROM or "oxccl" not in times:
        return ""
    copied_us = ranks * size / statistics.mean(copy_gbps(state)) / 1e3
    return f"{100 * copied_us / times['oxccl'].median_us:.0f} %"


def describe_state(state):
    copied = " before and ".join(f"{gbps} GB/s" for gbps in copy_gbps(state))
    behind = " after" if "after" in state else ""
    return f"Cache line {state['cache_line_one_way_ns']} ns, two cores copy {copied}{behind}."


def render_case(op, ranks, sizes, state):
    contestants = [name for name in TITLES if any(name in times for times in sizes.values())]
    ours = [name for name in OURS if name in contestants]
    head = ["size"] + [TITLES[name] for name in contestants]
    for name in ours:
        head += [f"{TITLES[name]} ×", "× of minima"]
    head.append("copy")
    lines = [f"### {COLLECTIVES[op]}, {ranks} ranks", "", describe_state(state), "",
             "| " + " | ".join(head) + " |", "|" + " ---: |" * len(head)]
    for size in sorted(sizes):
        times = sizes[size]
        cells = [human_bytes(size)] + [cell(times.get(name)) for name in contestants]
        for name in ours:
            cells += [ratio(times, name, "median_us"), ratio(times, name, "min_us")]
        cells.append(share_of_copy(op, ranks, size, times, state))
        lines.append("| " + " | ".join(cells) + " |")
    return lines + [""]


def render_pairs(results):
    """For each number of ranks and kind of memory a table: microseconds of oxccl, and × of the best peer."""
    summary = summarise(results["rows"])
    lines = []
    memories = {"oxccl": "memory of `comm.alloc`", "oxccl-registered": "registered memory",
                "oxccl-private": "private memory"}
    known = {row["contestant"] for row in results["rows"]}
    measured = [ours for ours in OURS if ours in known]
    for ranks, ours in ((ranks, ours) for ranks in sorted({ranks for _, ranks in summary}) for ours in measured):
        ops = [op for op in COLLECTIVES if (op, ranks) in summary]
        lines += [f"{ranks} ranks, {memories[ours]}:", "",
                  "| size | " + " | ".join(f"{COLLECTIVES[op]} µs | ×" for op in ops) + " |",
                  "|" + " ---: |" * (1 + 2 * len(ops))]
        for size in sorted({size for op in ops for size in summary[op, ranks]}):
            cells = [human_bytes(size)]
            for op in ops:
                times = summary[op, ranks].get(size, {})
                cells += [cell(times.get(ours)), ratio(times, ours, "median_us")]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def describe_rotation(buffers):
    if buffers == 1:
        return "Calls are on the same buffers."
    return (f"Calls rotate over {buffers} buffers, or as many as have 64 MiB together, and reductions over sum, prod, "
            "min and max.")


def render(results):
    machine = results["machine"]
    lines = [
        f"## {machine['name']}, {machine['cores']} cores, {results['date']}, {results['commit']}", "",
        f"Cache line from core to core {machine['cache_line_one_way_ns']} ns one way; one core copies "
        f"{machine['copy_256KiB_gbps']} GB/s (256 KiB) and {machine['copy_64MiB_gbps']} GB/s (64 MiB), "
        f"two cores {machine['copy_64MiB_two_cores_gbps']} GB/s (64 MiB).", "",
        "Microseconds a call, f32: each repeat is a barrier and a loop of calls, its time the "
        f"slowest rank's mean; the median of {results['repeats']} repeats, the median of "
        f"{results['rounds']} alternating rounds. {describe_rotation(results.get('rotate', 1))} × is the best peer's time over ours (above 1: oxccl "
        "is faster). Out of place, except that broadcast is in place, and Gloo's AllReduce too. "
        "oxccl's buffers come from `comm.alloc`, or are memory of the caller, private or registered. All results "
        "are checked. Virtual cores move: the state is measured again before each table, and tables "
        "are comparable only where it is the same. In the last column, which part of oxccl's time it takes two "
        "cores to copy as many bytes as the ranks' buffers have: of an AllReduce, an AllGather and an All-to-All "
        "a rank has to read and to write as many as its buffer has.", "",
    ]
    summary = summarise(results["rows"])
    states = {(state["op"], state["ranks"]): state for state in results["states"]}
    for op in COLLECTIVES:
        for ranks in sorted(ranks for name, ranks in summary if name == op):
            lines += render_case(op, ranks, summary[op, ranks], states[op, ranks])
    return "\n".join(lines)


def check():
    folder = pathlib.Path(__file__).parent
    text = render(json.loads((folder / "sample.json").read_text()))
    if text != (folder / "sample.md").read_text():
        sys.exit(f"table.py: sample.json no longer gives sample.md:\n{text}")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--pairs":
        print(render_pairs(json.loads(pathlib.Path(sys.argv[2]).read_text())))
    elif len(sys.argv) != 2:
        sys.exit(__doc__)
    elif sys.argv[1] == "--check":
        check()
    else:
        print(render(json.loads(pathlib.Path(sys.argv[1]).read_text())))
