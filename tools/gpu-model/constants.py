"""What an instruction costs on an H100, in cycles, until its result can be used.

The first two sets are a range that published microbenchmarks leave open. The third has what the
bundle's probes measured of an H200 (docs/gpu-first-hour.md): its clock and its fences.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Constants:
    """A set of assumptions. Times are of one thread of a block whose other warps do the same."""

    name: str
    clock_ghz: float  # of a multiprocessor under load
    alu: float  # integer and floating-point arithmetic, moves
    predicate: float  # a comparison, until a branch can use it
    special_register: float  # a thread's or block's number
    uniform_special_register: float
    constant: float  # a load from the kernel's parameter
    shared: float  # a load from shared memory
    generic: float  # what a load through a generic address takes on top
    l1: float
    l2: float
    strong: float  # a load that L1 cannot serve
    atomic: float  # in shared memory
    vote: float
    branch: float  # taken
    reconverge: float
    barrier: float  # from the last thread's arrival
    fence_block: float
    fence_gpu: float
    fence_system: float


OPTIMISTIC = Constants(
    name="optimistic", clock_ghz=1.755, alu=4, predicate=4.5, special_register=15,
    uniform_special_register=20, constant=8, shared=23, generic=8, l1=33, l2=220, strong=230,
    atomic=40, vote=8, branch=8, reconverge=2, barrier=20, fence_block=5, fence_gpu=300,
    fence_system=500,
)

MIDDLE = Constants(
    name="middle", clock_ghz=1.755, alu=4.5, predicate=5.5, special_register=20,
    uniform_special_register=25, constant=8, shared=29, generic=8, l1=37, l2=265, strong=275,
    atomic=60, vote=12, branch=11, reconverge=5, barrier=28, fence_block=10, fence_gpu=500,
    fence_system=750,
)

# fence.acq_rel.sys: 546 ns. One way of a flag takes 282 ns relaxed, and 569 released and acquired
# at the GPU's scope: 287 more.
H200 = dataclasses.replace(MIDDLE, name="H200", clock_ghz=1.98, fence_gpu=568, fence_system=1081)
