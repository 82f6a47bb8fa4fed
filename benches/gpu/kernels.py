#!/usr/bin/env python3
"""Counts the kernels of a call in two profiles (profile.c) of the same calls, of which the second has CALLS more on each of RANKS ranks:
what starts, checks and warms up is in both, and drops out.

Usage: kernels.py WHAT RANKS CALLS BEFORE AFTER     prints a row for rows.jsonl; profiles are the files BEFORE.* and AFTER.*
"""
import collections
import glob
import json
import statistics
import sys


def profile(prefix):
    """The kernels of all processes, which must have lost none."""
    listed = [json.loads(line) for path in glob.glob(glob.escape(prefix) + ".*") for line in open(path)]
    lost = [one["lost"] for one in listed if "lost" in one]
    if not lost or any(lost):
        sys.exit(f"{prefix}: " + ("no profile was ended" if not lost else f"{sum(lost)} kernels were lost"))
    return [one for one in listed if "name" in one]


def main():
    what, ranks, calls, *prefixes = sys.argv[1:]
    ranks, more = int(ranks), int(ranks) * int(calls)
    before, after = map(profile, prefixes)
    names = collections.Counter(one["name"] for one in after)
    names.subtract(one["name"] for one in before)
    kernels = {name: count for name, count in sorted(names.items()) if count}
    of_calls = [one for one in after if one["name"] in kernels]
    print(json.dumps({
        "op": "profile", "what": what, "ranks": ranks, "calls": int(calls), "kernels": kernels,
        "kernels_per_call": sum(kernels.values()) / more,
        "blocks": max((one["blocks"] for one in of_calls), default=None),
        "kernel_us": statistics.median([(one["end_ns"] - one["start_ns"]) / 1e3 for one in of_calls]) if of_calls else None,
    }))


if __name__ == "__main__":
    main()
