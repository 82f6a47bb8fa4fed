"""Bandwidth from every rank to every other, by send and receive, as a matrix.

One pair at a time: the sender sends some messages, and the receiver answers when it has all of
them. A slow link, or a rank on a distant socket, shows as a row and a column. Then all ranks send
around a ring, with a matrix product behind the messages and under them. Where the command `oxccl`
is on the path, its `oxccl topo` tells what joins the devices of rank 0's machine.

    python pairs.py --ranks 3
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import time
from typing import Any

import torch
import torch.distributed as dist

import ranks


def topology() -> str:
    """What joins the devices of this machine."""
    command = shutil.which("oxccl")
    if command is None:
        return "no topology: the command oxccl is not on the path"
    told = subprocess.run([command, "topo"], capture_output=True, text=True, check=False)
    return (told.stdout if told.returncode == 0 else f"oxccl topo: {told.stderr}").rstrip()


def main(options: argparse.Namespace) -> None:
    rank, world, device = dist.get_rank(), dist.get_world_size(), options.device
    count, messages, repeats = (1 << 10, 2, 3) if options.quick else (1 << 20, 4, 7)
    payload = torch.full((count,), float(rank), device=device)
    got, answer = torch.empty(count, device=device), torch.zeros(1, device=device)

    def transfer(sender: int, receiver: int) -> float:
        began = time.perf_counter()
        if rank == sender:
            for _ in range(messages):
                dist.send(payload, receiver)
            dist.recv(answer, receiver)
            answer.item()
        else:
            for _ in range(messages):
                dist.recv(got, sender)
            assert (got == sender).all()
            dist.send(answer, sender)
        return time.perf_counter() - began

    own = torch.zeros(world, device=device)
    pairs = [(one, other) for one in range(world) for other in range(world) if one != other]
    size_bytes = messages * count * 4
    for pair in pairs:
        # The others wait here while a pair has the machine to itself.
        dist.barrier()
        if rank in pair:
            took = [transfer(*pair) for _ in range(2 + repeats)]
            if rank == pair[0]:
                own[pair[1]] = size_bytes / statistics.median(took[2:]) / 1e9
    dist.barrier()

    matrix = torch.empty(world * world, device=device)
    dist.all_gather_into_tensor(matrix, own)
    rows: list[list[Any]] = []
    for sender, row in enumerate(matrix.view(world, world).tolist()):
        rows.append([f"from rank {sender}", *row])
        rows[-1][1 + sender] = None
        assert all(row[receiver] > 0 for receiver in range(world) if receiver != sender)
    if rank == 0:
        print(topology(), flush=True)
    ranks.table(["GB/s", *(f"to rank {receiver}" for receiver in range(world))], rows)

    compute = ranks.product(options)

    def ring(is_overlapped: bool) -> None:
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, payload, (rank + 1) % world),
                dist.P2POp(dist.irecv, got, (rank - 1) % world),
            ]
        )
        if is_overlapped:
            compute()
        for work in works:
            work.wait()
        if not is_overlapped:
            compute()

    ways = {
        "product behind the messages": lambda: ring(False),
        "product under the messages": lambda: ring(True),
    }
    times = ranks.compare({"": compute, **ways}, repeats)
    ranks.table(
        ["ring", "us", "exposed us"],
        [(way, 1e6 * times[way], 1e6 * (times[way] - times[""])) for way in ways],
    )
    ranks.picture(options, ways)


if __name__ == "__main__":
    ranks.start(main, ranks.parser(__doc__).parse_args())
