#!/usr/bin/env python3
"""Puts what benches/gpu/run.sh has written into one file, with every target: wanted, measured, met.

Usage: summarize.py FOLDER     reads rows.jsonl, stages.jsonl, machine.json and bundle.json there, and leaves results.json
"""
import json
import pathlib
import sys

MIB = 1 << 20
RANKS = (2, 4, 8)


def lines(path):
    """The objects of a file with one a line; what a stage that was stopped has not written to its end is left out."""
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


class Rows:
    """The rows of all benches."""

    def __init__(self, rows):
        self.rows = rows

    def of(self, op, ranks, **wanted):
        """Rows with these values, and `at_least` or `at_most` so many bytes."""
        at_least, at_most = wanted.pop("at_least", 0), wanted.pop("at_most", 1 << 60)
        return [row for row in self.rows
                if row.get("op") == op and row.get("ranks") == ranks
                and all(row.get(key) == value for key, value in wanted.items())
                and at_least <= row.get("bytes", 0) <= at_most]

    def sizes(self, op, ranks, **wanted):
        return sorted({row["bytes"] for row in self.of(op, ranks, **wanted)})

    def best(self, op, ranks, **wanted):
        """The least time."""
        return min((row["time_us"] for row in self.of(op, ranks, **wanted)), default=None)

    def one(self, op, ranks, key, **wanted):
        return min((row[key] for row in self.of(op, ranks, **wanted) if row.get(key) is not None), default=None)


def target(name, ranks, wanted, unit, measured, largest=True, at=None):
    """`largest`: what is wanted is an upper bound, otherwise a lower one."""
    met = None if measured is None else (measured <= wanted if largest else measured >= wanted)
    return {"target": name, "ranks": ranks, "wanted": ("<= " if largest else ">= ") + format(wanted, "g"), "unit": unit,
            "measured": None if measured is None else round(measured, 4), "met": met, "at": at}


def worst(pairs, largest=True):
    """Of (size, value) the value that is farthest from its target, with its size."""
    pairs = [(value, size) for size, value in pairs if value is not None]
    return (max(pairs) if largest else min(pairs)) if pairs else (None, None)


def over(numerator, denominator):
    return None if numerator is None or not denominator else numerator / denominator


def small(rows, ranks):
    """All-reduces of up to 16 KiB, replayed from graphs."""
    machine = rows.of("machine", ranks)
    empty_us = min((row["empty_node_us"] for row in machine), default=None)
    graphs = dict(mode="graph", at_most=16 << 10)
    sizes = rows.sizes("all_reduce", ranks, **graphs)

    def ours(size):
        return rows.best("all_reduce", ranks, mode="graph", contestant="oxccl", bytes=size)

    def above(size):
        return None if ours(size) is None or empty_us is None else ours(size) - empty_us

    value, at = worst([(size, above(size)) for size in sizes])
    yield target("all_reduce of 8 B to 16 KiB in graphs, over an empty kernel", ranks, 3, "us", value, at=at)
    ratios = [(size, over(ours(size), rows.best("all_reduce", ranks, mode="graph", contestant="nccl", bytes=size)))
              for size in sizes]
    value, at = worst(ratios)
    yield target("all_reduce of 8 B to 16 KiB in graphs, over NCCL", ranks, 0.6, "times", value, at=at)


def large(rows, ranks):
    """Calls of 64 MiB and more, one by one."""
    large = dict(mode="eager", at_least=64 * MIB)

    def fractions(op, **wanted):
        pairs = []
        for size in rows.sizes(op, ranks, **large):
            at_size = dict(mode="eager", contestant="oxccl", bytes=size)
            found = [row for row in rows.of(op, ranks, **at_size) if row["blocks"] <= wanted.get("blocks", 1 << 30)]
            pairs.append((size, max((row["floor_us"] / row["time_us"] for row in found), default=None)))
        return worst(pairs, largest=False)

    for op in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
        value, at = fractions(op)
        yield target(f"{op} from 64 MiB, of its bound", ranks, 0.85, "of the bound", value, False, at)
    value, at = fractions("all_reduce", blocks=64)
    yield target("all_reduce from 64 MiB with at most 64 blocks, of its bound", ranks, 0.8, "of the bound", value, False, at)
    for family, wanted in (("default", 1.8), ("symmetric", 1.05)):
        pairs = [(size, over(rows.best("all_reduce", ranks, mode="eager", contestant="nccl", family=family, bytes=size),
                             rows.best("all_reduce", ranks, mode="eager", contestant="oxccl", bytes=size)))
                 for size in rows.sizes("all_reduce", ranks, **large)]
        value, at = worst(pairs, largest=False)
        yield target(f"all_reduce from 64 MiB, times as fast as NCCL {family}", ranks, wanted, "times", value, False, at)


def costs(rows, ranks):
    host = rows.one("all_reduce", ranks, "host_us", contestant="oxccl", mode="eager", at_most=16 << 10)
    yield target("host time of a call made before", ranks, 3, "us", host)
    if ranks == max(RANKS):
        started = dict(contestant="oxccl")
        yield target("start", ranks, 100, "ms", rows.one("start", ranks, "time_ms", **started))
        memory = rows.one("start", ranks, "device_bytes", **started)
        yield target("device memory of a rank's communicator", ranks, 64, "MiB", over(memory, MIB))
    yield target("abort of a stuck kernel", ranks, 50, "ms", rows.one("abort", ranks, "time_ms", contestant="oxccl"))


def groups(rows, ranks):
    """Buckets in one launch."""
    kinds = [("20 x 64 KiB", dict(buckets=20, bytes=20 * 64 << 10), 0.5, "ideal", 1.15),
             ("20 x 2 KiB", dict(buckets=20, bytes=20 * 2 << 10), 0.4, None, None)]
    lists = sorted({row["source"] for row in rows.rows if row.get("op") == "group" and row.get("source")})
    kinds += [(source, dict(source=source), 0.6, "flatten", 0.7)
              for source in lists or ["gpt2-small.toml", "resnet-50.toml"]]
    for name, wanted, nccl, other, bound in kinds:
        fused = rows.best("group", ranks, contestant="oxccl", form="fused", **wanted)
        theirs = rows.best("group", ranks, contestant="nccl", form="fused", **wanted)
        yield target(f"group {name}, over a NCCL group", ranks, nccl, "times", over(fused, theirs))
        if other:
            beside = rows.best("group", ranks, contestant="oxccl", form=other, **wanted)
            yield target(f"group {name}, over {other}", ranks, bound, "times", over(fused, beside))
    host = rows.one("group", ranks, "host_us", contestant="oxccl", form="fused", mode="eager", buckets=20)
    yield target("host time of a group of 20 made before", ranks, 5, "us", host)


def targets(rows):
    rows = Rows(rows)
    return [found for ranks in RANKS for part in (small, large, costs, groups) for found in part(rows, ranks)]


def main():
    folder = pathlib.Path(sys.argv[1])
    rows = lines(folder / "rows.jsonl")
    wrong = sum(row.get("wrong") or 0 for row in rows)
    summary = {
        "bundle": json.loads((folder / "bundle.json").read_text()),
        "machine": json.loads((folder / "machine.json").read_text()),
        "stages": lines(folder / "stages.jsonl"),
        "wrong": wrong,
        "targets": targets(rows),
        "rows": rows,
    }
    (folder / "results.json").write_text(json.dumps(summary, indent=1) + "\n")
    for name in ("rows.jsonl", "stages.jsonl", "machine.json", "bundle.json"):
        (folder / name).unlink()
    for one in summary["targets"]:
        if one["met"] is not None:
            print(f'{"met   " if one["met"] else "MISSED"} {one["ranks"]} ranks: {one["target"]}: {one["measured"]:g} {one["unit"]}'
                  f' ({one["wanted"]} wanted)' + (f', at {one["at"]} B' if one["at"] else ""))
    unmeasured = sum(one["met"] is None for one in summary["targets"])
    print(f"{unmeasured} of {len(summary['targets'])} targets not measured; {wrong} elements wrong; {folder / 'results.json'}")


if __name__ == "__main__":
    main()
