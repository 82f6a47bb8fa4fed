"""The extension module: see the package."""

import os
from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, final

import numpy
import torch

# An array of any library: a tensor of torch, a Buffer, or an object with `__array_interface__`,
# `__cuda_array_interface__` or `__dlpack__`. It is contiguous (C order).
_Array = Any
# A Stream, a GPU's stream as an object with `cuda_stream`, or its number.
_Stream = Any
# Text, a number, a flag, None for none, or a timedelta.
_Setting = str | int | float | bool | timedelta | Schedule | None

__all__ = [
    "__version__",
    "Error",
    "UsageError",
    "Allocator",
    "Buffer",
    "Communicator",
    "Group",
    "Registration",
    "Schedule",
    "Starting",
    "Stream",
    "Work",
    "UniqueId",
]

__version__: str

class Error(RuntimeError):
    """Why a call did not do what was asked."""

    ranks: list[int]
    """The ranks it names, first the one that is most likely at fault."""
    fatal: bool
    """Whether the communicator has ended."""

class UsageError(Error):
    """The caller is mistaken, as this rank alone can see. Nothing has been called."""

@final
class UniqueId:
    """Where ranks meet, and the secret to enter: made by one rank, handed to the others as text.

    The process that makes it serves the meeting, as long as this object or a communicator that was
    made from it lives.
    """

    def __new__(cls, address: str | None = None) -> Self:
        """On the loopback address, or on `host:port` (port 0: any), the host being the one under
        which the other ranks reach this machine."""
    def __str__(self) -> str:
        """The text that the other ranks take: who has it can join."""

@final
class Buffer:
    """Zeroed elements of memory that all ranks reach in place: see `Communicator.empty`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions, in elements."""
    @property
    def dtype(self) -> str:
        """Its type, as `Communicator.empty` takes it."""
    @property
    def nbytes(self) -> int:
        """Its length in bytes."""
    @property
    def device(self) -> str:
        """`host`, or `cuda:` and the GPU's number."""
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(self, **_options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def numpy(self) -> numpy.ndarray:
        """A numpy array over this memory."""
    def torch(self) -> torch.Tensor:
        """A torch tensor over this memory."""

@final
class Stream:
    """An ordered queue of calls, with a thread that carries them out."""

    def __new__(cls) -> Self: ...

@final
class Work:
    """A call, a group or a bucket of a group that a stream carries out."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the end, at most so many seconds. False: it is still under way. It raises what
        the call would have raised."""
    def is_done(self) -> bool:
        """Whether it has ended, well or not."""
    def bucket(self, bucket: int) -> Work | None:
        """One bucket of a group, by its place there."""

@final
class Group:
    """Calls that are made in its block are launched at its end, as one."""

    def __enter__(self) -> Group: ...
    def __exit__(
        self,
        raised: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
    @property
    def work(self) -> Work | None:
        """What is under way, of a group on a stream, once its block has ended."""

@final
class Starting:
    """A communicator that starts: see `Communicator.starting`. Any thread may ask after it and give
    it up; when it goes, the start is given up, too."""

    @property
    def rank(self) -> int:
        """This rank's number."""
    def is_done(self) -> bool:
        """Whether the start has ended, well or not."""
    def wait(self, timeout: float | None = None) -> Communicator | None:
        """Waits for the communicator, at most so many seconds; None: it has not started yet. It
        raises what `Communicator(...)` would have raised."""
    def abort(self, reason: str = "its start was given up") -> None:
        """Gives the start up, from any thread. All ranks that have met get an error that names this
        one and the reason. A communicator that has started is aborted."""

@final
class Allocator:
    """Memory of a communicator's heap for allocators of other libraries; it lasts as long as the
    process."""

    @property
    def hooks(self) -> tuple[int, int, int]:
        """The addresses of `void *take(void *heap, size_t bytes)`, null where there is none, and of
        `bool give(void *heap, void *at)`, false for memory of somebody else; and `heap`."""
    @property
    def used_bytes(self) -> int:
        """Bytes that are used by somebody."""
    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept for the next that need as much."""
    def trim(self) -> None:
        """Gives the machine what is kept."""

@final
class Registration:
    """An array that peers reach in place until this is closed, or gone: see
    `Communicator.register`."""

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
    def close(self) -> None:
        """Ends it: the array is as any other again. No call may be using it."""
    def __enter__(self) -> Registration: ...
    def __exit__(
        self,
        raised: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

@final
class Schedule:
    """What each rank does in one collective, proven. `Communicator.local(n, schedule=schedule)` has
    its collective carried out so."""

    def __new__(
        cls, text: str, name: str = "schedule", *, blocks: Literal["merged", "lists"] = "merged"
    ) -> Self:
        """Of JSON, or of MSCCL's XML, whose thread blocks are merged to one list of each rank, or are
        lists of their own, on channels of their own. The error tells, step by step, why it is
        wrong."""
    @staticmethod
    def read(
        path: str | os.PathLike[str], *, blocks: Literal["merged", "lists"] = "merged"
    ) -> Schedule:
        """Of a file."""
    @property
    def name(self) -> str:
        """Its own name, or that of what it was read from."""
    @property
    def collective(self) -> str:
        """The collective that it carries out."""
    @property
    def world_size(self) -> int:
        """The number of ranks that it is for."""
    @property
    def in_place(self) -> bool:
        """Whether it works with input and output in one buffer."""
    def json(self) -> str:
        """The text of a file, for `oxccl verify`, `sim`, `explain` and `bench`."""
    def steps(self, rank: int) -> list[str]:
        """What a rank does, step by step. A rank that it has not is an error."""
    def simulate(
        self, topology: str, sizes: list[int], *, dtype: str = "float32", channels: int = 1
    ) -> list[float]:
        """Predicted seconds of calls of these sizes in bytes, the larger of a rank's input and
        output. The topology is one of `oxccl topo`'s, or a file; one that is unknown or wrong is an
        error."""

@final
class Communicator:
    """One rank of a set of ranks that carry out collectives together.

    All ranks make the same calls in the same order. A call blocks until this rank's part is done;
    with `stream` it returns a `Work` at once; in a `group` it returns its place there. It releases
    the interpreter while it waits.

    `input` and `output` are arrays of one type. Lengths are in elements, `n` is the number of
    ranks. `op` is one of sum, prod, min, max, avg, mulsum (with `factor`), band, bor,
    bxor.

    A call raises `UsageError` where this rank alone can see that it is wrong: an array that is not
    contiguous or of a type that oxccl has not, lengths that do not fit, an `op` that its type has
    not, a rank that does not exist. The communicator goes on. It raises `Error` where a rank has
    died, timed out, aborted or called something else. The error names the rank in `ranks`, and
    with `fatal` the communicator has ended.

    Every setting of docs/configuration.md is a keyword of the ways to start: `timeout=60` is what
    OXCCL_TIMEOUT=60 says, and counts before it.
    """

    def __new__(
        cls, unique_id: UniqueId | str, rank: int, world_size: int, **settings: _Setting
    ) -> Self:
        """One rank of a set whose ranks all have the same id, each in a process of its own."""
    @staticmethod
    def starting(
        unique_id: UniqueId | str, rank: int, world_size: int, **settings: _Setting
    ) -> Starting:
        """As `Communicator(...)`, but returns at once: the start goes on in a thread of its own."""
    @staticmethod
    def from_env(**settings: _Setting) -> Communicator:
        """This process's rank, as torchrun, mpirun, srun or `oxccl run` tells it."""
    @staticmethod
    def local(world_size: int, **settings: _Setting) -> list[Communicator]:
        """All ranks in this process, in rank order: give each to a thread."""
    @property
    def rank(self) -> int:
        """This rank's number, from 0 on."""
    @property
    def world_size(self) -> int:
        """The number of ranks."""
    @property
    def device(self) -> str:
        """`host`, or `cuda:` and the GPU's number."""
    @property
    def nodes(self) -> int:
        """Number of nodes that the ranks are on."""
    @property
    def launches(self) -> int:
        """Programs launched so far: one for a call or a group."""
    @property
    def plans(self) -> int:
        """Launches planned so far."""
    def empty(self, *shape: int | Sequence[int], dtype: str = "float32") -> Buffer:
        """Zeroed memory of the communicator's device, which every rank reaches in place. Not
        collective. It outlives the communicator. A type or shape that cannot be, and a heap
        without so long a range, are errors."""
    def register(self, array: _Array) -> Registration:
        """Has peers reach an array of another library on the host in place, as memory of `empty`,
        until what this returns is closed. Not collective; but all ranks register what they use in a
        call, or none does. Nobody may use the array in another thread meanwhile, nor when it is
        closed."""
    def all_reduce(
        self,
        input: _Array,
        output: _Array | None = None,
        op: str = "sum",
        *,
        factor: float | None = None,
        stream: _Stream | None = None,
    ) -> Any:
        """Every rank's output, of as many elements as its input, is the reduction of all inputs;
        without `output`, in place. All ranks have equal lengths."""
    def reduce_scatter(
        self,
        input: _Array,
        output: _Array | None = None,
        op: str = "sum",
        *,
        factor: float | None = None,
        counts: Sequence[int] | None = None,
        stream: _Stream | None = None,
    ) -> Any:
        """Rank r's output, of `count` elements, is the reduction of chunk r of all inputs, of
        `n * count`; or of `counts[r]` elements, the same counts on all ranks. Without `output` it
        is this rank's chunk of the input. A length that n does not divide is an error without
        counts."""
    def all_gather(
        self,
        input: _Array,
        output: _Array | None = None,
        *,
        counts: Sequence[int] | None = None,
        stream: _Stream | None = None,
    ) -> Any:
        """Chunk r of every rank's output, of `n * count` elements, is rank r's input, of `count`,
        or of `counts[r]`. Without `output`, `input` is it, and has this rank's chunk. Counts
        that do not fit the arrays are an error."""
    def all_to_all(
        self,
        input: _Array,
        output: _Array | None = None,
        *,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        stream: _Stream | None = None,
    ) -> Any:
        """Chunk r of the input goes to rank r, and is chunk `rank` of its output. With counts,
        `send_counts[r]` elements go to rank r, and `recv_counts[r]` come from it. Without
        them both arrays have `n * count` elements. One of the two lists alone is an error."""
    def broadcast(
        self,
        input: _Array,
        output: _Array | None = None,
        root: int = 0,
        *,
        stream: _Stream | None = None,
    ) -> Any:
        """Every rank's output, of as many elements, is the root's input; without `output`, in
        place. A root that is no rank is an error."""
    def reduce(
        self,
        input: _Array,
        output: _Array | None = None,
        op: str = "sum",
        root: int = 0,
        *,
        factor: float | None = None,
        stream: _Stream | None = None,
    ) -> Any:
        """The root's output, of as many elements, is the reduction of all inputs; without `output`,
        its input. The others need no output. A root that is no rank is an error."""
    def gather(
        self,
        input: _Array,
        output: _Array | None = None,
        root: int = 0,
        *,
        stream: _Stream | None = None,
    ) -> Any:
        """Chunk r of the root's output, of `n * count` elements, is rank r's input, of `count`.
        Without `output` the root gives it as `input`, with its own chunk."""
    def scatter(
        self,
        input: _Array | None,
        output: _Array | None = None,
        root: int = 0,
        *,
        stream: _Stream | None = None,
    ) -> Any:
        """Rank r's output, of `count` elements, is chunk r of the root's input, of `n * count`.
        Without `output` the root keeps its chunk, and the others give the output as `input`."""
    def send(self, input: _Array, peer: int, *, stream: _Stream | None = None) -> Any:
        """Sends all elements to another rank; it ends when the message has been received. To send
        to oneself, or another length than the receiver expects, is an error."""
    def recv(self, output: _Array, peer: int, *, stream: _Stream | None = None) -> Any:
        """Receives the next message of another rank, which has as many elements; another length is
        an error on both sides."""
    def barrier(self, *, stream: _Stream | None = None) -> Any:
        """Ends when every rank has called it. The error names a rank that has died or not come."""
    def group(self, *, stream: _Stream | None = None) -> Group:
        """`with comm.group():` makes one launch of all calls of this thread in its block. Sends
        and receives may be in any order there. A group within a group is a part of that one."""
    def monitored_barrier(self, timeout: float) -> list[float]:
        """Waits for all ranks, at most so many seconds: how much later than the first each came.
        The error names all that have not come, and ends the communicator."""
    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Communicators of parts of the ranks: those of one color are together, in the order of
        their keys. All ranks call it; one without a color gets none. Those of one color have
        their ranks in it from 0 on."""
    def shrink(self, exclude: Sequence[int]) -> Communicator:
        """A communicator of all ranks but these, also after a failure. All others call it."""
    def invite(self) -> str:
        """The text by which other ranks join: one rank makes it and hands it to them, before
        `grow`."""
    def grow(self, world_size: int, unique_id: UniqueId | str | None = None) -> Communicator:
        """A communicator of these ranks, which keep their numbers and their memory, and of those
        that join by `Communicator(unique_id, rank, world_size)`. All ranks call it; one or more
        give what `invite` has made."""
    def memory(self) -> dict[str, int]:
        """How its memory is used: heap_bytes, allocated_bytes, largest_free_bytes, staging_bytes,
        registrations."""
    def allocator(self) -> Allocator:
        """An allocator over this rank's heap, on the host. It is not a call of all ranks."""
    def set_order(self, order: str) -> None:
        """The promised order of reduction: any, rank or tree. All ranks, between the same calls."""
    def set_pin(
        self,
        algorithm: str | None = None,
        encoding: str | None = None,
        channels: int | None = None,
    ) -> None:
        """What the tuner must choose. All ranks, between the same calls."""
    def set_timeout(self, timeout: float | None) -> None:
        """Seconds that calls may wait without progress; None: without end."""
    def abort(self, reason: str = "abort") -> None:
        """Ends the communicator on all ranks, whatever they wait for; from any thread."""
    def error(self) -> Error | None:
        """Why the communicator has ended, if it has otherwise than by being closed; from any
        thread."""
    def close(self) -> None:
        """Ends the communicator on all ranks, which compare what they have called."""
    def leave(self) -> None:
        """Ends this rank's part without waiting for the others."""
    def __enter__(self) -> Communicator: ...
    def __exit__(
        self,
        raised: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...
