#!/usr/bin/env python3
"""Two nodes on this machine, joined by a shaped link: oxccl's choice, its flat ring and Gloo by turns.

Usage: nodes.py [--oxccl PROGRAM] [--peers FOLDER] [--rate 10gbit] [--size 67108864] [--per-node 2] [--rounds 5]
                [--congestion reno]

The nodes are network namespaces joined by a pair of virtual interfaces, whose rate tc's tbf limits
each way; the kernel's own TCP runs over it for all three, with the same congestion control: nothing is
lost on this link, so that any that does not pace fills it, and pacing (bbr) costs processor time. Prints the median time of each, what the
link's rate alone would take, and the ratios. Needs unshare, ip, tc, and a system that gives users
namespaces (or root). FOLDER is where tools/setup-peers has put PyTorch.
"""
import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
NODES = 2
ADDRESS = "10.78.0.{}"
INSIDE = "OXCCL_NODES_INSIDE"
# One behind the other, about as many as Gloo makes in its half second: a connection that has rested
# starts slowly.
CALLS = 5
# Against hanging.
TIMEOUT_S = 120


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--oxccl", default=os.path.join(ROOT, "target/release/oxccl"))
    parser.add_argument("--peers", default=os.path.join(ROOT, ".peers"))
    parser.add_argument("--rate", default="10gbit")
    parser.add_argument("--size", type=int, default=64 << 20)
    parser.add_argument("--per-node", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--congestion", default="reno",
                        help="one that net.ipv4.tcp_allowed_congestion_control has")
    return parser.parse_args()


def run(*command):
    subprocess.run(command, check=True)


class Node:
    """A network namespace, which lives as long as a process in it."""

    def __init__(self, number):
        self.address = ADDRESS.format(number + 1)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.holder = subprocess.Popen(["unshare", "-n", "sleep", "3600"], **quiet)
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self.holder.pid}/ns/net") == own:
            time.sleep(0.01)

    def inside(self, *command):
        return ["nsenter", "-t", str(self.holder.pid), "-n", *command]

    def up(self, rate, congestion):
        run(*self.inside("ip", "addr", "add", f"{self.address}/24", "dev", "net"))
        run(*self.inside("ip", "link", "set", "net", "up"))
        run(*self.inside("ip", "link", "set", "lo", "up"))
        run(*self.inside("tc", "qdisc", "add", "dev", "net", "root", "tbf", "rate", rate,
                         "burst", "1mb", "latency", "20ms"))
        run(*self.inside("sh", "-c", 'echo "$0" > /proc/sys/net/ipv4/tcp_congestion_control', congestion))


def network(rate, congestion):
    nodes = [Node(number) for number in range(NODES)]
    first, second = (str(node.holder.pid) for node in nodes)
    run("ip", "link", "add", "net", "netns", first, "type", "veth", "peer", "name", "net", "netns", second)
    for node in nodes:
        node.up(rate, congestion)
    return nodes


def together(commands):
    """Runs commands at once, and returns what the first prints."""
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
                 for command, environment in commands]
    said = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    if any(process.returncode != 0 for process in processes):
        sys.exit("nodes.py: a rank failed")
    return said[0]


def result(said):
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    # Gloo reduces in place.
    row = next(row for row in rows if row["in_place"])
    if row["wrong"]:
        sys.exit(f"nodes.py: {row['wrong']} wrong elements")
    return row


def oxccl(nodes, options, extra):
    environment = {**os.environ, "OXCCL_SECRET": secrets.token_hex(16), "OXCCL_FABRIC": "tcp"}
    size, ranks = str(options.size), str(options.per_node)
    bench = [options.oxccl, "bench", "all_reduce", "-b", size, "-e", size, "-n", str(CALLS), "-w", "1", "--json",
             "--no-probe", *extra]
    start = lambda number: [options.oxccl, "run", "--ranks", ranks, "--nnodes", str(NODES), "--node-rank",
                            str(number), "--rendezvous", f"{nodes[0].address}:20000", "--", *bench]
    return result(together([(node.inside(*start(number)), environment)
                            for number, node in enumerate(nodes)]))


def gloo(nodes, options):
    world = NODES * options.per_node
    program = os.path.join(HERE, "gloo_bench.py")
    command = [sys.executable, program, "all_reduce", str(options.size), "5", "500", str(world)]

    def rank(number):
        stand_ins = os.path.join(options.peers, "stand-ins")
        environment = {**os.environ, "PYTHONPATH": os.path.join(options.peers, "gloo"),
                       "LD_PRELOAD": f"{stand_ins}/libcuda_stand_in.so", "LD_LIBRARY_PATH": stand_ins,
                       "GLOO_SOCKET_IFNAME": "net",
                       "GLOO_BENCH_RANK": str(number), "GLOO_BENCH_MEETING": f"{nodes[0].address}:20100"}
        return nodes[number // options.per_node].inside(*command), environment

    return result(together([rank(number) for number in range(world)]))


def bytes_per_s(rate):
    units = {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}
    return next(float(rate[:-4]) * scale / 8 for unit, scale in units.items() if rate.endswith(unit))


def main():
    options = arguments()
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "-Urn", "--kill-child", "--fork", sys.executable, *sys.argv])
    nodes = network(options.rate, options.congestion)
    try:
        compare(nodes, options)
    finally:
        for node in nodes:
            node.holder.kill()


def compare(nodes, options):
    contestants = {
        "oxccl": lambda: oxccl(nodes, options, []),
        "oxccl, flat ring": lambda: oxccl(nodes, options, ["--algorithm", "ring", "--encoding", "slots"]),
    }
    if os.path.isdir(os.path.join(options.peers, "gloo")):
        contestants["Gloo"] = lambda: gloo(nodes, options)
    else:
        print(f"skipped: Gloo: it is not in {options.peers} (tools/setup-peers)", file=sys.stderr)
    times = {name: [] for name in contestants}
    chosen = {}
    for _ in range(options.rounds):
        for name, measure in contestants.items():
            row = measure()
            times[name].append(row["time_us"] / 1e3)
            chosen[name] = " ".join(str(row[key]) for key in ("algorithm", "encoding", "channels") if key in row)
    # Each node sends a buffer and takes one in, however many ranks it has.
    least = 2 * (NODES - 1) / NODES * options.size / bytes_per_s(options.rate) * 1e3
    medians = {name: statistics.median(measured) for name, measured in times.items()}
    print(f"all_reduce of {options.size} bytes, {NODES} nodes of {options.per_node} ranks, {options.rate}, "
          f"{options.congestion}: the link alone {least:.1f} ms")
    for name, median in medians.items():
        print(f"{name:18} {median:8.1f} ms  {least / median:5.0%} of the link  "
              f"{median / medians['oxccl']:.2f} times oxccl's  {chosen[name]}")


if __name__ == "__main__":
    main()
