"""A rank of torchrun's that calls NCCL, on the host's memory, by the names that its process maps."""

import ctypes
import os
from datetime import timedelta

from torch.distributed import TCPStore

UNIQUE_ID_BYTES, FLOAT32, SUM = 128, 7, 0


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * UNIQUE_ID_BYTES)]


nccl = ctypes.CDLL(None)
nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
nccl.ncclAllReduce.argtypes = [
    *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int),
    *(ctypes.c_void_p, ctypes.c_void_p),
]
nccl.ncclCommDestroy.argtypes = [ctypes.c_void_p]


def check(code: int) -> None:
    assert code == 0, (code, ctypes.c_char_p(nccl.ncclGetLastError(None)))


rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = TCPStore(address, port, world, is_master=False, timeout=timedelta(seconds=60))
unique_id = UniqueId()
if rank == 0:
    check(nccl.ncclGetUniqueId(ctypes.byref(unique_id)))
    store.set("id", bytes(unique_id))
else:
    unique_id = UniqueId.from_buffer_copy(store.get("id"))
comm = ctypes.c_void_p()
check(nccl.ncclCommInitRank(ctypes.byref(comm), world, unique_id, rank))
values = (ctypes.c_float * 1000)(*[rank + 1.0] * 1000)
check(nccl.ncclAllReduce(values, values, 1000, FLOAT32, SUM, comm, None))
assert set(values) == {world * (world + 1) / 2}
check(nccl.ncclCommDestroy(comm))
print(f"rank {rank} of {world}: done")
