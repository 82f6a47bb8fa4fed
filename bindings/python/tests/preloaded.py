"""A process that has imported torch, and forks ranks that need it: an import takes longer than most
tests. Each rank ends as any other process does.

It reads requests from its standard input, a line of JSON each: the program, and for each rank its
variables and the files for its output and its errors. It answers with the ranks' process numbers,
and once they have ended with their statuses.
"""

import json
import os
import sys
import threading

import torch
import torch._inductor  # what torch's profiler imports, in seconds
import torch.distributed as dist

# Threads would not be in the forked processes, but what they hold would be.
torch.set_num_threads(1)
assert dist.is_available()


def requested() -> str:
    """In a rank, when its program is asked for."""
    for line in sys.stdin:
        request = json.loads(line)
        ranks = []
        for variables, out, err in request["ranks"]:
            rank = os.fork()
            if rank == 0:
                os.environ.clear()
                os.environ.update(variables)
                for path, own in ((out, 1), (err, 2)):
                    opened = os.open(path, os.O_WRONLY | os.O_CREAT)
                    os.dup2(opened, own)
                    os.close(opened)
                nothing = os.open(os.devnull, os.O_RDONLY)
                os.dup2(nothing, 0)
                return str(request["program"])
            ranks.append(rank)
        print(json.dumps(ranks), flush=True)
        ended = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
        print(json.dumps(ended), flush=True)
    sys.exit()


def fail(arguments: threading.ExceptHookArgs) -> None:
    """What a thread raises is a failure of its rank, not a line among its errors."""
    sys.__excepthook__(arguments.exc_type, arguments.exc_value or SystemExit(1), None)
    os._exit(1)


threading.excepthook = fail
exec(compile(requested(), "<rank>", "exec"), {"__name__": "__main__"})
