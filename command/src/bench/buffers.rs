//! One rank's buffers, and calls on them.

use std::ops::{Deref, DerefMut};

use oxccl::memory::{Borrowed, Input, Output};
use oxccl::{
    Collectives, Communicator, Device, DeviceBuffer, DeviceSlice, Element, Error, HostBuffer, Kind,
};

use super::case::{Case, Placement, Shape};
use super::check::Inputs;
use super::sample::Sample;
use oxccl_transports::cuda::{DeviceMemory, copy_in, copy_out};

/// Memory of either kind.
pub(super) enum Memory<T: Element> {
    /// From comm.alloc: other ranks reach it in place.
    Shared(HostBuffer<T>),
    /// The rank's own.
    Private(Vec<T>),
    /// From comm.alloc on a GPU, and what the host looks at in its place.
    Gpu {
        /// Copied there and back around calls that are checked.
        mirror: Vec<T>,
        /// What calls use.
        buffer: DeviceBuffer<T>,
    },
    /// A GPU's memory that is not from comm.alloc, which other processes do not reach.
    Foreign {
        /// As above.
        mirror: Vec<T>,
        /// What calls use.
        memory: DeviceMemory,
    },
}

impl<T: Element> Memory<T> {
    /// Brings what the host has written to the GPU, if there is one.
    fn push_to_device(&mut self) -> Result<(), Error> {
        match self {
            Memory::Gpu { mirror, buffer } => buffer.write(mirror),
            // SAFETY: as long as the mirror, of plain data; no call is under way.
            Memory::Foreign { mirror, memory } => Ok(unsafe {
                let bytes =
                    std::slice::from_raw_parts(mirror.as_ptr().cast(), size_of_val(&**mirror));
                copy_in(memory.context(), memory.as_ptr(), bytes)
            }
            .map_err(oxccl_transports::Error::from)?),
            _ => Ok(()),
        }
    }

    /// Brings what calls have written to where the host looks.
    fn pull_to_host(&mut self) -> Result<(), Error> {
        match self {
            Memory::Gpu { mirror, buffer } => buffer.read(mirror),
            // SAFETY: as above; any bits are a value.
            Memory::Foreign { mirror, memory } => Ok(unsafe {
                let (at, len_bytes) = (mirror.as_mut_ptr().cast(), size_of_val(&**mirror));
                copy_out(
                    memory.context(),
                    std::slice::from_raw_parts_mut(at, len_bytes),
                    memory.as_ptr(),
                )
            }
            .map_err(oxccl_transports::Error::from)?),
            _ => Ok(()),
        }
    }

    /// So many elements from one on, as calls on a GPU take them.
    ///
    /// # Safety
    ///
    /// There are so many, and nobody else uses them as long as the slice.
    unsafe fn slice(&self, first: usize, count: usize) -> DeviceSlice<T> {
        let memory = match self {
            Memory::Gpu { buffer, .. } => buffer.as_ptr(),
            Memory::Foreign { memory, .. } => memory.as_ptr().cast(),
            Memory::Shared(_) | Memory::Private(_) => unreachable!("memory of the host"),
        };
        // SAFETY: by this function's contract.
        unsafe { DeviceSlice::from_raw_parts(memory.add(first), count) }
    }
}

impl<T: Element> Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Memory::Shared(buffer) => buffer,
            Memory::Private(buffer) => buffer,
            Memory::Gpu { mirror, .. } | Memory::Foreign { mirror, .. } => mirror,
        }
    }
}

impl<T: Element> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Memory::Shared(buffer) => buffer,
            Memory::Private(buffer) => buffer,
            Memory::Gpu { mirror, .. } | Memory::Foreign { mirror, .. } => mirror,
        }
    }
}

/// Places of buffers that follow each other begin at multiples of this.
const LINE_BYTES: usize = 128;
/// Buffers to rotate over take no more than this together, unless one is larger: then caches have
/// lost it before it is used again.
const ROTATED_BYTES: usize = 64 << 20;

/// Elements from the beginning of a buffer of this length to that of the next.
fn stride<T>(count: usize) -> usize {
    let line = LINE_BYTES / size_of::<T>();
    count.max(1).next_multiple_of(line)
}

/// Bytes of as many buffers as calls rotate over, the longest of which has so many.
pub(super) fn rotated_bytes(longest: usize, rotate: usize) -> usize {
    longest.max(longest.next_multiple_of(LINE_BYTES).saturating_mul(rotate).min(ROTATED_BYTES))
}

/// One rank's buffers for all sizes of a case.
pub(super) struct Buffers<T: Element> {
    input: Memory<T>,
    output: Memory<T>,
    rotate: usize,
    /// How many places there are for the lengths at hand, and the one that is used.
    places: usize,
    place: usize,
}

impl<T: Sample> Buffers<T> {
    /// Buffers that hold this shape and all smaller ones, so often, if they are not too long.
    pub(super) fn allocate(
        comm: &Communicator,
        largest: Shape,
        private: bool,
        rotate: usize,
    ) -> Result<Buffers<T>, Error> {
        let context = comm.context();
        let memory = |count: usize| {
            let bytes = rotated_bytes(count.max(1) * size_of::<T>(), rotate);
            let count = bytes.div_ceil(size_of::<T>());
            let zeros = || vec![T::ZERO; count];
            let mut memory = Ok::<_, Error>(match (private, &context) {
                (true, None) => Memory::Private(zeros()),
                (false, None) => Memory::Shared(comm.alloc_host::<T>(count)?),
                (false, Some(_)) => {
                    Memory::Gpu { mirror: zeros(), buffer: comm.alloc::<T>(count)? }
                }
                (true, Some(context)) => {
                    let memory = DeviceMemory::allocate(context, count * size_of::<T>());
                    let memory = memory.map_err(oxccl_transports::Error::from)?;
                    Memory::Foreign { mirror: zeros(), memory }
                }
            })?;
            // Else what nobody has written would be one page of the system's.
            memory.fill(T::ZERO);
            Ok::<_, Error>(memory)
        };
        let (input, output) = (memory(largest.input)?, memory(largest.output)?);
        Ok(Buffers { input, output, rotate, places: 1, place: 0 })
    }

    /// From here on calls have these lengths.
    pub(super) fn begin(&mut self, shape: Shape) {
        let fit = |memory: &[T], count: usize| (memory.len() / stride::<T>(count)).max(1);
        let fit = fit(&self.input, shape.input).min(fit(&self.output, shape.output));
        (self.places, self.place) = (fit.min(self.rotate), 0);
    }

    /// How many buffers calls rotate over.
    pub(super) fn places(&self) -> usize {
        self.places
    }

    /// The next call uses the next buffers.
    pub(super) fn turn(&mut self) {
        self.place = if self.place + 1 < self.places { self.place + 1 } else { 0 };
    }

    /// Fills in this rank's input, and poison everywhere else.
    ///
    /// # Errors
    /// A GPU's.
    pub(super) fn fill(
        &mut self,
        inputs: &Inputs,
        rank: usize,
        placement: Placement,
    ) -> Result<(), Error> {
        let (case, shape) = (&inputs.case, inputs.shape);
        let (offset, input) = match placement {
            Placement::OutOfPlace => {
                let (first, output) = self.out_of_place(shape);
                output.fill(T::POISON);
                (0, first)
            }
            Placement::InPlace => {
                let offset = if case.kind == Kind::AllGather { rank * shape.count } else { 0 };
                (offset, self.in_place(shape))
            }
        };
        input.fill(T::POISON);
        if case.has_input(rank) {
            for (index, element) in input[offset..][..shape.input].iter_mut().enumerate() {
                *element = inputs.value(rank, index);
            }
        }
        self.push_to_device()
    }

    fn push_to_device(&mut self) -> Result<(), Error> {
        self.input.push_to_device()?;
        self.output.push_to_device()
    }

    /// Makes the buffers zeros, which repeated calls in place leave as they are.
    ///
    /// # Errors
    /// A GPU's.
    pub(super) fn clear_in_place(&mut self, shape: Shape) -> Result<(), Error> {
        let longest = shape.input.max(shape.output);
        let memory = if shape.input > shape.output { &mut self.input } else { &mut self.output };
        memory[..(self.places - 1) * stride::<T>(longest) + longest].fill(T::ZERO);
        self.push_to_device()
    }

    /// How many elements of this rank are wrong after a call.
    ///
    /// # Errors
    /// A GPU's.
    pub(super) fn wrong(
        &mut self,
        inputs: &Inputs,
        rank: usize,
        placement: Placement,
    ) -> Result<u64, Error> {
        self.input.pull_to_host()?;
        self.output.pull_to_host()?;
        let shape = inputs.shape;
        Ok(match placement {
            Placement::OutOfPlace => {
                let (input, output) = self.out_of_place(shape);
                inputs.wrong(rank, output) + inputs.changed(rank, input)
            }
            Placement::InPlace => {
                let scattered = inputs.case.kind == Kind::ReduceScatter;
                let offset = if scattered { rank * shape.count } else { 0 };
                inputs.wrong(rank, &self.in_place(shape)[offset..][..shape.output])
            }
        })
    }

    /// Calls the collective once, on the buffers whose turn it is.
    ///
    /// Send/recv sends to the next rank and receives from the one before; ranks with an even number
    /// send first.
    pub(super) fn call(
        &mut self,
        comm: &Communicator,
        case: &Case,
        shape: Shape,
        placement: Placement,
    ) -> Result<(), Error> {
        let on_host = comm.device() == Device::Host;
        match placement {
            Placement::OutOfPlace if on_host => {
                let (input, output) = self.out_of_place(shape);
                out_of_place(comm, case, &*input, output)
            }
            Placement::InPlace if on_host => in_place(comm, case, self.in_place(shape)),
            // SAFETY: the buffers are this object's, borrowed exclusively until the call is done.
            Placement::OutOfPlace => unsafe {
                let input = self.input.slice(self.first(shape.input), shape.input);
                let mut output = self.output.slice(self.first(shape.output), shape.output);
                out_of_place(comm, case, &input, &mut output)
            },
            // SAFETY: as above.
            Placement::InPlace => unsafe {
                let larger = if shape.input > shape.output { &self.input } else { &self.output };
                let longest = shape.input.max(shape.output);
                in_place(comm, case, &mut larger.slice(self.first(longest), longest))
            },
        }
    }

    /// Where a buffer of this length begins.
    fn first(&self, count: usize) -> usize {
        self.place * stride::<T>(count)
    }

    /// The buffers for calls out of place.
    fn out_of_place(&mut self, shape: Shape) -> (&mut [T], &mut [T]) {
        let (input, output) = (self.first(shape.input), self.first(shape.output));
        (&mut self.input[input..][..shape.input], &mut self.output[output..][..shape.output])
    }

    /// The buffer for calls in place: the larger one.
    fn in_place(&mut self, shape: Shape) -> &mut [T] {
        let longest = shape.input.max(shape.output);
        let first = self.first(longest);
        let memory = if shape.input > shape.output { &mut self.input } else { &mut self.output };
        &mut memory[first..][..longest]
    }
}

fn out_of_place<T: Sample>(
    comm: &Communicator,
    case: &Case,
    input: &(impl Input<T, Borrowed> + ?Sized),
    output: &mut (impl Output<T, Borrowed> + ?Sized),
) -> Result<(), Error> {
    let op = T::reduce_op(case.op);
    match case.kind {
        Kind::AllReduce => comm.all_reduce(input, output, op),
        Kind::ReduceScatter => comm.reduce_scatter(input, output, op),
        Kind::AllGather => comm.all_gather(input, output),
        Kind::AllToAll => comm.all_to_all(input, output),
        Kind::Broadcast => comm.broadcast(input, output, case.root),
        Kind::Reduce => comm.reduce(input, output, op, case.root),
        Kind::Gather => comm.gather(input, output, case.root),
        Kind::Scatter => comm.scatter(input, output, case.root),
        Kind::SendRecv => {
            let (rank, ranks) = (comm.rank(), comm.world_size());
            let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
            if rank % 2 == 0 {
                comm.send(input, next)?;
                comm.recv(output, previous)
            } else {
                comm.recv(output, previous)?;
                comm.send(input, next)
            }
        }
        Kind::Barrier => comm.barrier(),
    }
}

fn in_place<T: Sample>(
    comm: &Communicator,
    case: &Case,
    buffer: &mut (impl Output<T, Borrowed> + ?Sized),
) -> Result<(), Error> {
    let op = T::reduce_op(case.op);
    match case.kind {
        Kind::AllReduce => comm.all_reduce_in_place(buffer, op),
        Kind::ReduceScatter => comm.reduce_scatter_in_place(buffer, op),
        Kind::AllGather => comm.all_gather_in_place(buffer),
        Kind::AllToAll => comm.all_to_all_in_place(buffer),
        Kind::Broadcast => comm.broadcast_in_place(buffer, case.root),
        Kind::Reduce => comm.reduce_in_place(buffer, op, case.root),
        Kind::Gather | Kind::Scatter | Kind::SendRecv | Kind::Barrier => {
            unreachable!("not offered in place")
        }
    }
}
