#!/usr/bin/env python3
"""Turns what ncu has counted (--csv) into a row: each counter of each kernel, in the order of launches.

Usage: counters.py TYPE SIZE RANKS FILE     fails if no kernel was counted
"""
import csv
import json
import sys

UNITS = {"K": 1 << 10, "M": 1 << 20}


def size(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def main():
    data_type, text, ranks, path = sys.argv[1:]
    # Messages of the tool stand above the table.
    table = [line for line in open(path) if line.startswith('"')]
    counters = {}
    for row in csv.DictReader(table):
        value = row["Metric Value"].replace(",", "")
        try:
            number = float(value)
        except ValueError:
            continue
        name = f'{row["Metric Name"]} ({row["Metric Unit"]})' if row.get("Metric Unit") else row["Metric Name"]
        counters.setdefault(name, []).append(number)
    if not counters:
        sys.exit(f"{path}: no kernel was counted")
    print(json.dumps({"op": "counters", "ranks": int(ranks), "bytes": size(text), "type": data_type, "counters": counters}))


if __name__ == "__main__":
    main()
