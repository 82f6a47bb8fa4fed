"""Collective communication whose collectives are data.

Ranks are threads or processes of one machine or several; arrays are numpy's, torch's, cupy's or of
any library with one of the array protocols.

    import numpy, oxccl

    with oxccl.Communicator.from_env() as comm:      # under torchrun, mpirun, srun or `oxccl run`
        gradient = numpy.full(1000, comm.rank + 1.0, dtype="float32")
        comm.all_reduce(gradient)                    # in place, op="sum"

PyTorch's backend is `oxccl.torch`. Schedules are written with `oxccl.schedule`.
"""

from ._oxccl import (
    Allocator,
    Buffer,
    Communicator,
    Error,
    Group,
    Registration,
    Schedule,
    Starting,
    Stream,
    UniqueId,
    UsageError,
    Work,
    __version__,
)

__all__ = [
    "Allocator",
    "Buffer",
    "Communicator",
    "Error",
    "Group",
    "Registration",
    "Schedule",
    "Starting",
    "Stream",
    "UniqueId",
    "UsageError",
    "Work",
    "__version__",
]
