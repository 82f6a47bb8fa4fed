#!/usr/bin/env python3
"""One sweep of one collective over Gloo (PyTorch, CPU), f32, in the loop of mpi_bench.c.

Usage: gloo_bench.py OP SIZE[,SIZE...] REPEATS REPEAT_MS RANKS [ROTATE]

Starts its own ranks, unless GLOO_BENCH_RANK says which rank this process is; then all meet at
GLOO_BENCH_MEETING, an address and port of rank 0. Gloo's all_reduce and broadcast work in place only; the others are out of
place. The call goes through torch.distributed, as users reach Gloo. Ranks are not bound to cores:
Gloo has a thread of its own for sockets, and is faster where that thread may move.
"""
import itertools
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist

# What calls rotate over: no more elements than this together.
ROTATED, LINE = (64 << 20) // 4, 32
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]


def pattern(rank, first, count):
    """Small integers: every sum is exact, whatever the order."""
    index = torch.arange(first, first + count, dtype=torch.int64)
    return ((index * 7 + rank * 13) % 64).to(torch.float32)


def summed(ranks, first, count):
    return sum(pattern(rank, first, count) for rank in range(ranks))


class Case:
    """The buffers of one collective at one size, the calls, and what must come out."""

    def __init__(self, op, count, rank, ranks, rotate):
        share = count // ranks
        self.in_place = op in ("all_reduce", "broadcast")
        reduces = op in ("all_reduce", "reduce_scatter")
        self.source = pattern(rank, 0, share if op == "all_gather" else count)
        self.output = torch.zeros(share if op == "reduce_scatter" else count)
        self.buffers = max(1, min(rotate, ROTATED // max(count, LINE)))
        self.ops = OPS if rotate > 1 and reduces else OPS[:1]
        pairs = [(self.source, self.output)]
        pairs += [(self.source.clone(), self.output.clone()) for _ in range(1, self.buffers)]
        calls = math.lcm(self.buffers, len(self.ops))
        self.calls = [self.bound(op, *pairs[turn % self.buffers], self.ops[turn % len(self.ops)])
                      for turn in range(calls)]
        self.call = self.calls[0]
        if op == "all_reduce":
            self.expected = summed(ranks, 0, count)
        elif op == "broadcast":
            self.expected = pattern(0, 0, count)
        elif op == "reduce_scatter":
            self.expected = summed(ranks, rank * share, share)
        elif op == "all_gather":
            self.expected = torch.cat([pattern(r, 0, share) for r in range(ranks)])
        else:
            self.expected = torch.cat([pattern(r, rank * share, share) for r in range(ranks)])
        self.prepare = op == "all_reduce" or (op == "broadcast" and rank == 0)

    @staticmethod
    def bound(op, source, output, reduction):
        """One call on these buffers."""
        if op == "all_reduce":
            return lambda: dist.all_reduce(output, reduction)
        if op == "broadcast":
            return lambda: dist.broadcast(output, 0)
        if op == "reduce_scatter":
            return lambda: dist.reduce_scatter_tensor(output, source, reduction)
        if op == "all_gather":
            return lambda: dist.all_gather_into_tensor(output, source)
        if op == "all_to_all":
            return lambda: dist.all_to_all_single(output, source)
        sys.exit(f"gloo_bench: unknown collective {op}")

    def check(self):
        """One call into a poisoned output: the number of wrong elements on all ranks."""
        self.output.copy_(self.source) if self.prepare else self.output.fill_(-1)
        self.call()
        wrong = (self.output != self.expected).sum().reshape(1)
        dist.all_reduce(wrong)
        return int(wrong)


def repeat(turns, calls):
    """Mean microseconds a call over `calls` calls, the slowest rank's."""
    dist.barrier()
    start = time.perf_counter()
    for call in itertools.islice(itertools.cycle(turns), calls):
        call()
    mean = torch.tensor([(time.perf_counter() - start) * 1e6 / calls], dtype=torch.float64)
    dist.all_reduce(mean, dist.ReduceOp.MAX)
    return float(mean)


def calibrate(turns, want_us):
    """Doubles the number of calls until a repeat takes at least half of the wanted time.

    The faster of two repeats counts, so that one hiccup does not end it.
    """
    calls = 1
    while calls < 1 << 20:
        if min(repeat(turns, calls), repeat(turns, calls)) * calls >= want_us / 2:
            break
        calls *= 2
    return calls


def measure(op, size_bytes, repeats, repeat_ms, rotate, rank, ranks):
    case = Case(op, size_bytes // 4, rank, ranks, rotate)
    wrong = case.check()
    calls = calibrate(case.calls, repeat_ms * 1000)
    times = [repeat(case.calls, calls) for _ in range(repeats)]
    wrong += case.check()
    median = statistics.median(times)
    algbw = size_bytes / median / 1e3
    factor = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1}.get(op, (ranks - 1) / ranks)
    return {
        "op": op, "type": "f32", "redop": "sum", "ranks": ranks, "nodes": 1, "bytes": size_bytes,
        "count": size_bytes // 4, "in_place": case.in_place, "time_us": round(median, 4),
        "min_us": round(min(times), 4), "algbw_gbps": round(algbw, 4),
        "busbw_gbps": round(algbw * factor, 4), "wrong": wrong, "calls": calls,
        "buffers": case.buffers, "ops": len(case.ops),
    }


def run_rank(rank, ranks, meeting, op, sizes, repeats, repeat_ms, rotate):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks,
                            timeout=timedelta(seconds=60))
    for size in sizes:
        row = measure(op, size, repeats, repeat_ms, rotate, rank, ranks)
        if rank == 0:
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def main(op, sizes, repeats, repeat_ms, ranks, rotate="1"):
    sizes, ranks = [int(size) for size in sizes.split(",")], int(ranks)
    rest = (op, sizes, int(repeats), float(repeat_ms), int(rotate))
    if "GLOO_BENCH_RANK" in os.environ:
        meeting = f"tcp://{os.environ['GLOO_BENCH_MEETING']}"
        return run_rank(int(os.environ["GLOO_BENCH_RANK"]), ranks, meeting, *rest)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, f"file://{os.path.join(folder, 'store')}", *rest)
        processes = [context.Process(target=run_rank, args=(rank, *arguments), daemon=True)
                     for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    if any(process.exitcode != 0 for process in processes):
        sys.exit("gloo_bench: a rank failed")


if __name__ == "__main__":
    if len(sys.argv) not in (6, 7):
        sys.exit(__doc__)
    main(*sys.argv[1:])
