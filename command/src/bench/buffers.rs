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

    /// Its first elements, as calls on a GPU take them.
    ///
    /// # Safety
    ///
    /// There are so many, and nobody else uses them as long as the slice.
    unsafe fn slice(&self, count: usize) -> DeviceSlice<T> {
        let first = match self {
            Memory::Gpu { buffer, .. } => buffer.as_ptr(),
            Memory::Foreign { memory, .. } => memory.as_ptr().cast(),
            Memory::Shared(_) | Memory::Private(_) => unreachable!("memory of the host"),
        };
        // SAFETY: by this function's contract.
        unsafe { DeviceSlice::from_raw_parts(first, count) }
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

/// One rank's buffers for all sizes of a case.
pub(super) struct Buffers<T: Element> {
    input: Memory<T>,
    output: Memory<T>,
}

impl<T: Sample> Buffers<T> {
    /// Buffers that hold this shape and all smaller ones.
    pub(super) fn allocate(
        comm: &Communicator,
        largest: Shape,
        private: bool,
    ) -> Result<Buffers<T>, Error> {
        let context = comm.context();
        let memory = |count: usize| {
            let count = count.max(1);
            let zeros = || vec![T::ZERO; count];
            Ok::<_, Error>(match (private, &context) {
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
            })
        };
        Ok(Buffers { input: memory(largest.input)?, output: memory(largest.output)? })
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
                self.output[..shape.output].fill(T::POISON);
                (0, &mut self.input[..shape.input])
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

    /// Makes the one buffer zeros, which repeated calls in place leave as they are.
    ///
    /// # Errors
    /// A GPU's.
    pub(super) fn clear_in_place(&mut self, shape: Shape) -> Result<(), Error> {
        self.in_place(shape).fill(T::ZERO);
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
                inputs.wrong(rank, &self.output[..shape.output])
                    + inputs.changed(rank, &self.input[..shape.input])
            }
            Placement::InPlace => {
                let scattered = inputs.case.kind == Kind::ReduceScatter;
                let offset = if scattered { rank * shape.count } else { 0 };
                inputs.wrong(rank, &self.in_place(shape)[offset..][..shape.output])
            }
        })
    }

    /// Calls the collective once.
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
                let (input, output) =
                    (&self.input[..shape.input], &mut self.output[..shape.output]);
                out_of_place(comm, case, input, output)
            }
            Placement::InPlace if on_host => in_place(comm, case, self.in_place(shape)),
            // SAFETY: the buffers are this object's, borrowed exclusively until the call is done.
            Placement::OutOfPlace => unsafe {
                let (input, mut output) =
                    (self.input.slice(shape.input), self.output.slice(shape.output));
                out_of_place(comm, case, &input, &mut output)
            },
            // SAFETY: as above.
            Placement::InPlace => unsafe {
                let larger = if shape.input > shape.output { &self.input } else { &self.output };
                in_place(comm, case, &mut larger.slice(shape.input.max(shape.output)))
            },
        }
    }

    /// The buffer for calls in place: the larger one.
    fn in_place(&mut self, shape: Shape) -> &mut [T] {
        if shape.input > shape.output {
            &mut self.input[..shape.input]
        } else {
            &mut self.output[..shape.output]
        }
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
