#!/usr/bin/env python3
"""Runs the same sweeps for oxccl, Open MPI, MPICH, Intel MPI and Gloo, in turn, and writes one set of tables.

tools/bench-peers installs the peers and calls this. Everybody runs the loop described at the head
of mpi_bench.c. The contestants alternate: for each collective and rank count, each of them runs
its whole sweep, and that is repeated for each round, in another order.
"""
import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import table

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = ROOT / ".peers"
CORES = len(os.sched_getaffinity(0))
LIMIT_S = 600  # for one sweep
# first:last:factor. The middle, where protocols change, is looked at more closely.
SIZES = "8:2K:4,8K:2M:2,8M:64M:2"


def openmpi(ranks):
    """No one setting is best at all sizes: the table takes the best of these at each size."""
    shared = ["mpirun.openmpi", "-n", str(ranks), "--mca", "pml", "ob1", "--mca", "btl", "self,vader"]
    copy_mode = ["--mca", "btl_vader_single_copy_mechanism"]
    if ranks > CORES:
        shared += ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        return {"cma": shared + copy_mode + ["cma"], "copy": shared + copy_mode + ["none"]}
    shared += ["--bind-to", "core"]
    return {
        "cma": shared + copy_mode + ["cma"],
        "copy": shared + copy_mode + ["none"],
        "coll-sm": shared + copy_mode + ["none", "--mca", "coll_sm_priority", "90"],
    }


def mpich(ranks):
    shim = str(PEERS / "bin/libyield.so")
    libraries = subprocess.run(["ldd", str(PEERS / "bin/mpi_bench.mpich")], capture_output=True,
                               text=True, check=True).stdout
    if "libpmix" in libraries:
        # Ubuntu 24.04 builds MPICH for PMIx, which MPICH's own launcher does not speak: each
        # process would think that it is alone. Open MPI's launcher does.
        command = ["mpirun.openmpi", "-n", str(ranks)]
        oversubscribed = ["--oversubscribe", "--bind-to", "none", "-x", f"LD_PRELOAD={shim}"]
        bound = ["--bind-to", "core"]
    else:
        command = ["mpirun.mpich", "-n", str(ranks)]
        oversubscribed = ["-bind-to", "none", "-genv", "LD_PRELOAD", shim]
        bound = ["-bind-to", "core"]
    if ranks > CORES:
        return {"yield": command + oversubscribed}
    return {"default": command + bound}


def openmpi5(ranks):
    command = [str(PEERS / "openmpi5/bin/mpirun"), "-n", str(ranks)]
    if ranks > CORES:
        command += ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    else:
        command += ["--bind-to", "core"]
    shared = ["--mca", "pml", "ob1", "--mca", "btl", "self,sm"]
    return {"default": command, "cma": command + shared + ["--mca", "smsc", "cma"]}


def mpich5(ranks):
    command = [str(PEERS / "mpich5/bin/mpirun"), "-n", str(ranks)]
    if ranks > CORES:
        shim = str(PEERS / "bin/libyield.so")
        return {"yield": command + ["-bind-to", "none", "-genv", "LD_PRELOAD", shim]}
    return {"default": command + ["-bind-to", "core"]}


def impi(ranks):
    environment = ["env", f"I_MPI_ROOT={PEERS}/impi", "I_MPI_FABRICS=shm"]
    if ranks > CORES:
        environment += ["I_MPI_PIN=0", "I_MPI_THREAD_YIELD=2"]
    return {"shm": environment + [str(PEERS / "impi/bin/mpiexec.hydra"), "-ppn", str(ranks), "-n", str(ranks)]}


def mpi_commands(launchers, program, op, ranks, sizes, options):
    tail = [str(PEERS / "bin" / program), op, ",".join(map(str, sizes)), str(options.repeats),
            str(options.repeat_ms), str(options.rotate)]
    return {variant: [launcher + tail] for variant, launcher in launchers(ranks).items()}


def gloo_commands(op, ranks, sizes, options):
    stand_ins = PEERS / "stand-ins"
    return {"tcp": [[
        "env", f"LD_PRELOAD={stand_ins}/libcuda_stand_in.so", f"LD_LIBRARY_PATH={stand_ins}",
        f"PYTHONPATH={PEERS}/gloo", "GLOO_SOCKET_IFNAME=lo", sys.executable, "-W", "ignore",
        str(ROOT / "benches/peers/gloo_bench.py"), op, ",".join(map(str, sizes)),
        str(options.repeats), str(options.repeat_ms), str(ranks), str(options.rotate),
    ]]}


def oxccl_commands(op, ranks, sizes, options, *flags):
    """oxccl takes ranges, as nccl-tests does: consecutive sizes of one factor make a run."""
    commands = []
    for first, last, factor in to_ranges(sizes):
        commands.append([options.oxccl, "bench", op, "--ranks", str(ranks), "-b", str(first), "-e",
                         str(last), "-f", str(factor), "--repeats", str(options.repeats),
                         "--repeat-ms", str(options.repeat_ms), "--rotate", str(options.rotate), "--no-probe",
                         "--json", *flags])
    return {"": commands}


CONTESTANTS = {
    "oxccl": oxccl_commands,
    "oxccl-registered": lambda *case: oxccl_commands(*case, "--registered"),
    "oxccl-private": lambda *case: oxccl_commands(*case, "--private"),
    "openmpi": lambda *case: mpi_commands(openmpi, "mpi_bench.openmpi", *case),
    "openmpi5": lambda *case: mpi_commands(openmpi5, "mpi_bench.openmpi5", *case),
    "mpich": lambda *case: mpi_commands(mpich, "mpi_bench.mpich", *case),
    "mpich5": lambda *case: mpi_commands(mpich5, "mpi_bench.mpich5", *case),
    "impi": lambda *case: mpi_commands(impi, "mpi_bench.impi", *case),
    "gloo": gloo_commands,
}


def parse_size(text):
    match = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 8, 64K or 2M")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


def parse_sizes(text):
    sizes = []
    for part in text.split(","):
        first, last, factor = (part.split(":") + [part, "2"])[:3] if ":" in part else (part, part, "2")
        size, last, factor = parse_size(first), parse_size(last), int(factor)
        if factor < 2:
            raise argparse.ArgumentTypeError(f"the factor in {part!r} must be 2 or more")
        while size <= last:
            sizes.append(size)
            size *= factor
    return sorted(set(sizes))


def to_ranges(sizes):
    """Consecutive (first, last, factor) that together give exactly these sizes."""
    ranges, index = [], 0
    while index < len(sizes):
        end = index
        factor = sizes[index + 1] // sizes[index] if index + 1 < len(sizes) else 2
        while end + 1 < len(sizes) and sizes[end + 1] == sizes[end] * factor:
            end += 1
        ranges.append((sizes[index], sizes[end], max(factor, 2)))
        index = end + 1
    return ranges


def run(command):
    """The lines of standard output. A command that fails or takes too long ends with its group."""
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
    try:
        output, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        sys.exit(f"compare: no end after {LIMIT_S} s: {' '.join(command)}")
    if process.returncode != 0:
        sys.exit(f"compare: status {process.returncode}: {' '.join(command)}\n{errors}{output}")
    return output.splitlines()


def sweep(contestant, op, ranks, options, round_number):
    # Every rank has at least one element of its own.
    sizes = [size for size in options.sizes if op in ("all_reduce", "broadcast") or size >= 4 * ranks]
    rows = []
    for variant, commands in CONTESTANTS[contestant](op, ranks, sizes, options).items():
        found = [json.loads(line) for command in commands for line in run(command)
                 if line.startswith("{")]
        if contestant in table.OURS:
            # MPI and Gloo broadcast in place only; the other collectives are compared out of place.
            found = [row for row in found if row["in_place"] == (op == "broadcast")]
        measured = [row["bytes"] for row in found]
        if measured != sizes or any(row["ranks"] != ranks for row in found):
            sys.exit(f"compare: {op} on {ranks} ranks, {sizes} bytes: {contestant} gave {found}")
        rows += [dict(row, contestant=contestant, variant=variant, round=round_number)
                 for row in found]
    return rows


def measure_machine():
    return json.loads(run([str(PEERS / "bin/machine")])[0])


def describe_machine():
    cpu = subprocess.run(["lscpu"], capture_output=True, text=True, check=True,
                         env=dict(os.environ, LC_ALL="C")).stdout
    name = re.search(r"Model name:\s*(.*)", cpu)
    name = name[1].strip() if name else "unknown CPU"
    return {"name": name, "cores": CORES, **measure_machine()}


def describe_commit():
    git = ["git", "-C", str(ROOT)]
    if not shutil.which("git"):
        return "no commit"
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if commit.returncode != 0:
        return "no commit"
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True)
    return commit.stdout.strip() + (" with changes" if changed.stdout else "")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--oxccl", default="target/release/oxccl", help="the command to measure")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS)
    parser.add_argument("--ops", nargs="+", choices=table.COLLECTIVES, default=list(table.COLLECTIVES))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--sizes", type=parse_sizes, default=parse_sizes(SIZES),
                        help=f"first:last:factor,... (default {SIZES})")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7, help="timed repeats a size and round")
    parser.add_argument("--repeat-ms", type=int, default=10, help="wanted length of a repeat")
    parser.add_argument("--rotate", type=int, default=16,
                        help="buffers over which timed calls rotate; 1 repeats one call")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "benches/results")
    parser.add_argument("--add", action="store_true",
                        help="keep what this machine's results of the day have of other tables")
    options = parser.parse_args()
    options.contestants = options.contestants or installed()
    return options


def installed():
    """All contestants, but for Intel MPI where tools/setup-peers has left it out."""
    left_out = [] if (PEERS / "bin/mpi_bench.impi").exists() else ["impi"]
    return [name for name in CONTESTANTS if name not in left_out]


def earlier(path, op_ranks):
    """The states and rows of other tables in a file of results, if there is one."""
    if not path.exists():
        return [], []
    results = json.loads(path.read_text())
    others = lambda items: [item for item in items if (item["op"], item["ranks"]) not in op_ranks]
    return others(results["states"]), others(results["rows"])


def measure(op, ranks, options, results):
    """One table: the machine's state before and after it, and everybody's sweeps in between."""
    before = measure_machine()
    for number in range(options.rounds):
        turn = number % len(options.contestants)
        for contestant in options.contestants[turn:] + options.contestants[:turn]:
            print(f"{op}, {ranks} ranks, round {number + 1}: {contestant}", file=sys.stderr)
            results["rows"] += sweep(contestant, op, ranks, options, number)
    results["states"].append(dict(before, op=op, ranks=ranks, after=measure_machine()))


def main():
    options = parse_options()
    machine = describe_machine()
    print(", ".join(f"{key} {value}" for key, value in machine.items()), file=sys.stderr)
    slug = re.sub(r"[^a-z0-9]+", "-", machine["name"].lower()).strip("-")
    options.output.mkdir(parents=True, exist_ok=True)
    stem = options.output / f"peers-{slug}-{datetime.date.today()}"
    tables = [(op, ranks) for op in options.ops for ranks in options.ranks]
    states, rows = earlier(stem.with_name(stem.name + ".json"), tables) if options.add else ([], [])
    results = {"machine": machine, "commit": describe_commit(), "rounds": options.rounds,
               "repeats": options.repeats, "rotate": options.rotate, "date": str(datetime.date.today()), "states": states,
               "rows": rows}
    for op, ranks in tables:
        measure(op, ranks, options, results)
    head = {key: value for key, value in results.items() if key != "rows"}
    rows = ",\n".join(json.dumps(row) for row in results["rows"])
    stem.with_name(stem.name + ".json").write_text(
        json.dumps(head)[:-1] + ', "rows": [\n' + rows + "\n]}\n")
    text = table.render(results)
    stem.with_name(stem.name + ".md").write_text(text)
    print(text)
    wrong = sum(row["wrong"] for row in results["rows"])
    if wrong:
        sys.exit(f"compare: {wrong} wrong elements")


if __name__ == "__main__":
    main()
