#!/usr/bin/env python3
"""Turns the newest results of a GPU into the part of docs/results.md between its markers.

Usage: report.py                   rewrites that part
       report.py --check           fails unless that part is what the newest results give, and samples give what they should
       report.py --show ARCHIVE... prints that part as these archives of benches/gpu/run.sh give it together
       report.py --add ARCHIVE...  keeps what they have together as one file of benches/results/ with the GPU and date, then rewrites

Results are benches/results/gpu-*.json. Without any, docs/results.md says so.
"""
import json
import pathlib
import re
import sys

from results import merged
from rows import RANKS, Rows, ended, human_bytes, number, sizes
from sections import sections
from targets import SMALL_SIZES, targets

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benches/results"
BEGIN, END = "<!-- gpu:begin -->\n", "<!-- gpu:end -->\n"
NOTHING = "Nothing here was run on hardware yet: `benches/results/` has no file of a GPU, and so there are no numbers.\n"
SHOWN = (8, 1 << 10, 16 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)


def machine_row(results):
    first = next((row for row in results["rows"] if row["op"] == "machine"), {})
    return Rows(results["rows"]).machine(first.get("ranks"))


def figures(one):
    """Of the row that decides: time over floor, bus bandwidth, and that a block (each has a multiprocessor to itself)."""
    row = one.get("figures") or {}
    texts = [("x floor", row.get("over_floor"), ""), ("", row.get("busbw_gbps"), " GB/s bus"),
             ("", row.get("busbw_per_block_gbps"), f' GB/s a block of {row.get("blocks")}')]
    return ", ".join(f"{front} {number(value)}{unit}".strip() for front, value, unit in texts if value is not None)


def target_table(results):
    text = ["| target | ranks | wanted | measured | | figures |", "| --- | ---: | ---: | ---: | --- | --- |"]
    for one in results["targets"]:
        measured = "" if one["measured"] is None else f'{number(one["measured"])} {one["unit"]}'
        if measured and one["at"]:
            measured += f' at {human_bytes(one["at"])}'
        verdict = {True: "met", False: "**missed**", None: "not measured"}[one["met"]]
        if measured and one["missing"]:
            verdict += (": " if one["met"] is None else "; not measured: ") + sizes(one["missing"])
        text.append(f'| {one["target"]} | {one["ranks"]} | {one["wanted"]} {one["unit"]} | {measured} | {verdict} | {figures(one)} |')
    return "\n".join(text)


def missed(results):
    """The causes of what was missed."""
    return "\n".join(f'| {one["target"]} | {one["ranks"]} | {one["cause"]} |' for one in results["targets"] if one["met"] is False)


def time_table(results, ranks):
    rows = Rows(results["rows"])
    text = []
    for size in (size for size in rows.sizes("all_reduce", ranks) if size in SHOWN):
        mode = "graph" if size <= 16 << 10 else "eager"
        at_size = dict(mode=mode, bytes=size)
        ours = min(rows.of("all_reduce", ranks, contestant="oxccl", **at_size), key=lambda row: row["time_us"], default=None)
        if ours is None:
            continue
        cells = [human_bytes(size), mode, number(ours["floor_us"]), number(ours["time_us"]), number(ours["over_floor"]), ours["setting"],
                 number(ours["busbw_gbps"]), number(ours["busbw_per_block_gbps"])]
        for family in ("default", "symmetric"):
            best = rows.best("all_reduce", ranks, contestant="nccl", family=family, **at_size)
            cells.append("" if best is None else number(best))
        text.append("| " + " | ".join(cells) + " |")
    heading = ["| size | mode | floor µs | oxccl µs | × floor | by | bus GB/s | a block | NCCL µs | NCCL, windows µs |",
               "| ---: | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |"]
    return "\n".join(heading + text) if text else ""


def section(name, results):
    gpu, where = machine_row(results), results["machine"]
    newest = results["bundle"]["commit"]
    text = [f'`benches/results/{name}`: {gpu.get("gpu", "unknown GPU")}, CUDA {gpu.get("cuda_driver", "unknown")}, '
            f'NCCL {gpu.get("nccl") or "not there"}, {where["date"][:10]}. {results["wrong"]} wrong elements. '
            f'All ranks share the one GPU, so these are numbers of its memory, not of links. '
            f'A copy moves {number(gpu.get("copy_gbps", 0))} GB/s, read and written; an empty kernel takes {number(gpu.get("empty_node_us", 0))} µs '
            f'as a node of a graph.', "", "| stage | commit | ended | what failed in it |", "| --- | --- | --- | --- |"]
    text += [f'| {stage["stage"]} | {stage.get("commit", newest)[:10]} | {stage["status"]} | {stage.get("reason", "")} |' for stage in results["stages"]]
    text += ["", target_table(results)]
    tests = list(ended(results["rows"]))
    if tests:
        text += ["", "| tests of the CUDA path | |", "| --- | --- |", *(f"| {status} | {names} |" for status, names in tests)]
    causes = missed(results)
    if causes:
        text += ["", "What was missed, and why, as far as the figures tell:", "", "| target | ranks | why |", "| --- | ---: | --- |", causes]
    for part in sections(results["rows"]):
        text += ["", part]
    for ranks in RANKS:
        table = time_table(results, ranks)
        if table:
            text += ["", f"AllReduce over {ranks} ranks, f32:", "", table]
    return "\n".join(text) + "\n"


def newest():
    found = sorted(RESULTS.glob("gpu-*.json"), key=lambda path: json.loads(path.read_text())["machine"]["date"])
    return found[-1] if found else None


def rewritten(page):
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise SystemExit("docs/results.md has lost its markers for the GPU's results")
    before, rest = page.split(BEGIN)
    path = newest()
    shown = section(path.name, json.loads(path.read_text())) if path else NOTHING
    return before + BEGIN + shown + END + rest.split(END)[1]


def archives(names):
    return [pathlib.Path(name) for name in names]


def written(results):
    """As JSON, with a line for each row, target and stage."""
    lists = {key: [json.dumps(one) for one in results[key]] for key in ("stages", "targets", "rows")}
    rest = {key: value for key, value in results.items() if key not in lists}
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in rest.items()]
    parts += [f"{json.dumps(key)}: [\n" + ",\n".join(ones) + "\n]" for key, ones in lists.items()]
    return "{" + ",\n".join(parts) + "}\n"


def add(names):
    results = merged(archives(names))
    if results["machine"]["quick"]:
        raise SystemExit("these results are of a quick run: their numbers mean nothing")
    name = re.sub(r"[^a-z0-9]+", "-", machine_row(results).get("gpu", "unknown").lower()).strip("-")
    if "stand-in" in name:
        raise SystemExit("these results are of the stand-in, which is no hardware")
    (RESULTS / f'gpu-{name}-{results["machine"]["date"][:10]}.json').write_text(written(results))


def sample_rows():
    """Rows of a run that meets some targets and misses others."""
    rows = []
    for ranks in RANKS:
        rows.append(dict(op="machine", ranks=ranks, empty_node_us=2.0, empty_launch_us=1.0))
        rows.append(dict(op="start", ranks=ranks, contestant="oxccl", time_ms=90.0, device_bytes=32 << 20))
        rows.append(dict(op="left", ranks=ranks, contestant="oxccl", time_ms=60.0))
        # What is measured at other sizes but one, of which NCCL's time is missing, decides nothing.
        times = [(size, 4.0, 10.0, 9.0) for size in SMALL_SIZES[:-1]] + [(16 << 10, 5.0, 6.0, 11.0)]
        times += [(64 << 20, 100.0, 200.0, 104.0), (128 << 20, 95.0, 400.0, None)]
        for size, ours, default, symmetric in times:
            for mode in ("eager", "graph"):
                def row(contestant, family, setting, time_us, blocks):
                    return dict(op="all_reduce", type="float", ranks=ranks, bytes=size, mode=mode, contestant=contestant, family=family, setting=setting,
                                time_us=time_us, floor_us=90.0, over_floor=time_us / 90.0, busbw_gbps=size / time_us / 1e3, blocks=blocks,
                                busbw_per_block_gbps=blocks and size / time_us / 1e3 / blocks, host_us=2.0 if mode == "eager" else None)

                rows += [row("oxccl", "windows", "direct x16", ours, 128), row("oxccl", "windows", "direct x8", 2 * ours, 64),
                         row("nccl", "default", "any ctas", default, None)]
                if symmetric:
                    rows.append(row("nccl", "symmetric", "any ctas, windows", symmetric, None))
    rows.append(dict(op="sanitizer", ranks=2, check="memcheck", status=9))
    # Rows of another type decide no target.
    rows += [dict(row, type="bfloat16", time_us=0.1) for row in rows if row["op"] == "all_reduce" and row["contestant"] == "oxccl"]
    rows.append(dict(op="probe", probe="lines", what="torn lines", value=3, unit="", hazard=True, says="lines tear"))
    rows.append(dict(op="first", ranks=8, bytes="64K", joined=0, status="timed out", says="rank 3 waits in step 5"))
    rows.append(dict(op="counters", ranks=8, bytes=8, type="float", counters={"cycles": [30.0, 10.0, 20.0]}))
    return rows


def check_sections():
    """What is no target is shown, too."""
    text = "\n".join(sections(sample_rows()))
    for expected in ("- lines tear", "8 ranks, launches of their own, 64K: timed out: rank 3 waits in step 5", "| bfloat16 | 64 MiB | 0.1 |",
                     "| 8 B | float | cycles | 20 |", "| 8 | 2 |  |", "| direct x8 | 64 MiB |"):
        assert expected in text, f"{expected} is not in:\n{text}"


def check_targets():
    """Each target is found in rows that are made for it, is met or missed as they say, and has its cause."""
    found = {(one["target"], one["ranks"]): one for one in targets(sample_rows())}

    def expect(name, measured, met, cause=None, ranks=8, missing=()):
        one = found[name, ranks]
        assert (one["measured"], one["met"], one["missing"]) == (measured, met, list(missing)), one
        assert (one["cause"] is None) == (cause is None) and (cause or "") in (one["cause"] or ""), one

    expect("all_reduce of 8 B to 16 KiB in graphs, over an empty kernel", 3.0, True)
    expect("all_reduce of 8 B to 16 KiB in graphs, over NCCL", round(5 / 6, 4), False, "2 us are there at 8 B already, 1 us more at 16384 B")
    long = [128 << 20, 256 << 20]
    expect("all_reduce from 64 MiB, of its bound", 0.9, None, missing=long[1:])
    expect("all_reduce from 64 MiB with at most 64 blocks, of its bound", 0.45, False, "too few blocks", missing=long[1:])
    expect("all_reduce from 64 MiB, times as fast as NCCL default", 2.0, None, missing=long[1:])
    expect("all_reduce from 64 MiB, times as fast as NCCL symmetric", 1.04, False, "nothing was measured with more", missing=long)
    expect("all_gather from 64 MiB, of its bound", None, None, missing=[64 << 20])
    expect("host time of a call made before", 2.0, True)
    expect("device memory of a rank's communicator", 32.0, True)
    expect("a rank leaves a stuck kernel", 60.0, False, "60 ms with 2 ranks")
    expect("group gpt2_small.toml, over flatten", None, None)
    expect("memcheck of small calls", 9, False, "see the log", 2)
    expect("racecheck of small calls", None, None, ranks=2)
    results = {"rows": sample_rows(), "targets": list(found.values())}
    assert "**missed**; not measured: sizes 256 MiB" in target_table(results) and "not measured: sizes 256 MiB" in target_table(results)
    whole = [dict(row, bytes=256 << 20) if row.get("bytes") == 128 << 20 else row for row in sample_rows()]
    whole = {(one["target"], one["ranks"]): one for one in targets(whole + sample_rows())}
    assert whole["all_reduce from 64 MiB, of its bound", 8]["met"] is True
    assert "too few blocks" in missed(results)


def main():
    page = ROOT / "docs/results.md"
    if sys.argv[1:2] == ["--check"]:
        check_targets()
        check_sections()
        if rewritten(page.read_text()) != page.read_text():
            raise SystemExit("docs/results.md does not say what the newest results of a GPU give: run make gpu-report")
        return
    if sys.argv[1:2] == ["--show"]:
        print(section(pathlib.Path(sys.argv[2]).name, merged(archives(sys.argv[2:]))), end="")
        return
    if sys.argv[1:2] == ["--add"]:
        add(sys.argv[2:])
    page.write_text(rewritten(page.read_text()))


if __name__ == "__main__":
    main()
