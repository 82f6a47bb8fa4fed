#!/usr/bin/env python3
"""Says what archives of benches/gpu/run.sh have, with every target: wanted, measured, met, and why not.

Usage: summarize.py [--json] ARCHIVE...     --json: all of it, as one object
"""
import json
import pathlib
import sys

from results import merged
from rows import ended, hazards, sizes

VERDICTS = {True: "met   ", False: "MISSED", None: "part  "}


def main():
    arguments = sys.argv[1:]
    as_json = arguments[:1] == ["--json"]
    results = merged([pathlib.Path(path) for path in arguments[as_json:]])
    if as_json:
        print(json.dumps(results, indent=1))
        return
    for says in hazards(results["rows"]):
        print("hazard:", says)
    for one in results["targets"]:
        if one["measured"] is not None:
            print(f'{VERDICTS[one["met"]]} {one["ranks"]} ranks: {one["target"]}: {one["measured"]:g} {one["unit"]}'
                  f' ({one["wanted"]} wanted)' + (f', at {one["at"]} B' if one["at"] else "")
                  + (f'; not measured: {sizes(one["missing"])}' if one["missing"] else ""))
        if one["cause"]:
            print(f'       {one["cause"]}')
    unmeasured = sum(one["met"] is None for one in results["targets"])
    print(f"{unmeasured} of {len(results['targets'])} targets not measured; {results['wrong']} elements wrong")
    for status, names in ended(results["rows"]):
        print(f"tests: {status} {names}")


if __name__ == "__main__":
    main()
