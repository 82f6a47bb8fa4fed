#!/usr/bin/env python3
"""Puts what benches/gpu/run.sh has written into one file, with every target: wanted, measured, met, and why not.

Usage: summarize.py FOLDER     reads rows.jsonl, stages.jsonl, machine.json and bundle.json there, and leaves results.json
"""
import json
import pathlib
import sys

from rows import ended, lines, sizes
from targets import targets

VERDICTS = {True: "met   ", False: "MISSED", None: "part  "}


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
        if one["measured"] is not None:
            print(f'{VERDICTS[one["met"]]} {one["ranks"]} ranks: {one["target"]}: {one["measured"]:g} {one["unit"]}'
                  f' ({one["wanted"]} wanted)' + (f', at {one["at"]} B' if one["at"] else "")
                  + (f'; not measured: {sizes(one["missing"])}' if one["missing"] else ""))
        if one["cause"]:
            print(f'       {one["cause"]}')
    unmeasured = sum(one["met"] is None for one in summary["targets"])
    print(f"{unmeasured} of {len(summary['targets'])} targets not measured; {wrong} elements wrong; {folder / 'results.json'}")
    for one in ended(rows):
        print("tests:", one)


if __name__ == "__main__":
    main()
