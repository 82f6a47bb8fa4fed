"""The rows that benches/gpu/run.sh collects: one object a measurement, as `oxccl bench --json` prints them."""
KIB, MIB = 1 << 10, 1 << 20
RANKS = (2, 4, 8)


def human_bytes(size):
    for unit in ("B", "KiB", "MiB"):
        if size < 1024 or unit == "MiB":
            return f"{size:g} {unit}"
        size /= 1024


def number(value):
    return format(value, ",.3g") if abs(value) < 1000 else format(value, ",.0f")


def sizes(found):
    return "sizes " + ", ".join(map(human_bytes, found))


def ended(rows):
    """How the tests have ended: for each way its name and how many, or which if that says something."""
    tests = [row for row in rows if row.get("op") == "test"]
    for status in sorted({row["status"] for row in tests}):
        names = [row["name"] for row in tests if row["status"] == status]
        yield status, str(len(names)) if status in ("ok", "skipped") else f'{len(names)}: {", ".join(names)}'


def hazards(rows):
    """What the probes have found that breaks an assumption, in words."""
    return [row["says"] for row in rows if row.get("op") == "probe" and row["hazard"]]


def over(numerator, denominator):
    return None if numerator is None or not denominator else numerator / denominator


def bounded(row, machine):
    """A measurement with its floor by what the machine can do at best, which was perhaps found later."""
    if row.get("floor_bytes") is None or not machine.get("copy_gbps"):
        return row
    floor_us = max(row["floor_bytes"] / machine["copy_gbps"] / 1e3, machine["empty_node_us"])
    return dict(row, floor_us=floor_us, over_floor=row["time_us"] / floor_us)


class Rows:
    """The rows of all benches."""

    def __init__(self, rows):
        self.rows = rows
        machines = {ranks: self.machine(ranks) for ranks in {row.get("ranks") for row in rows}}
        self.rows = [bounded(row, machines[row.get("ranks")]) for row in rows]

    def of(self, op, ranks, **wanted):
        """Rows with these values, with `at_least` or `at_most` so many bytes, and on at most so many `blocks`; of floats, unless a
        `type` is named."""
        at_least, at_most = wanted.pop("at_least", 0), wanted.pop("at_most", 1 << 60)
        blocks, data_type = wanted.pop("blocks", None), wanted.pop("type", "float")
        return [row for row in self.rows
                if row.get("op") == op and row.get("ranks") == ranks and row.get("type", data_type) == data_type
                and all(row.get(key) == value for key, value in wanted.items())
                and at_least <= row.get("bytes", 0) <= at_most
                and (blocks is None or (row.get("blocks") or 1 << 30) <= blocks)]

    def sizes(self, op, ranks, **wanted):
        return sorted({row["bytes"] for row in self.of(op, ranks, **wanted)})

    def fastest(self, op, ranks, **wanted):
        """The row with the least time; None without rows."""
        return min(self.of(op, ranks, **wanted), key=lambda row: row["time_us"], default=None)

    def best(self, op, ranks, **wanted):
        """The least time."""
        row = self.fastest(op, ranks, **wanted)
        return row and row["time_us"]

    def one(self, op, ranks, key, **wanted):
        """The least value of one key."""
        return min((row[key] for row in self.of(op, ranks, **wanted) if row.get(key) is not None), default=None)

    def machine(self, ranks):
        """What the machine can do at best, as measured before and after the benches of so many ranks."""
        rows = self.of("machine", ranks)
        best = dict(rows[0]) if rows else {}
        for key, of in (("copy_gbps", max), ("empty_node_us", min), ("empty_launch_us", min)):
            values = [row[key] for row in rows if row.get(key) is not None]
            if values:
                best[key] = of(values)
        return best
