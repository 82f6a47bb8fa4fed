//! One rank's buffers, and calls on them.

use std::ops::{Deref, DerefMut};

use oxccl::{Call, Collective, Communicator, Device, DeviceBuffer, Element, Error, Kind};

use super::case::{Case, Placement, Shape};
use super::check::Inputs;
use super::sample::Sample;
use oxccl_transports::cuda::{DeviceMemory, copy_in, copy_out};

/// Memory of either kind.
pub(super) enum Memory<T: Element> {
    /// From comm.alloc: other ranks reach it in place.
    Shared(DeviceBuffer<T>),
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

    /// Elements of it, as calls without types take them.
    fn part(&self, start: usize, count: usize) -> oxccl::Memory {
        let first = match self {
            Memory::Gpu { buffer, .. } | Memory::Shared(buffer) => buffer.as_ptr(),
            Memory::Private(buffer) => buffer.as_ptr().cast_mut(),
            Memory::Foreign { memory, .. } => memory.as_ptr().cast(),
        };
        oxccl::Memory { address: first.wrapping_add(start).cast(), count }
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
                (false, None) => Memory::Shared(comm.alloc::<T>(count)?),
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
        match placement {
            _ if comm.device() != Device::Host => self.call_on_gpu(comm, case, shape, placement),
            Placement::OutOfPlace => self.call_out_of_place(comm, case, shape),
            Placement::InPlace => self.call_in_place(comm, case, shape),
        }
    }

    fn call_on_gpu(
        &mut self,
        comm: &Communicator,
        case: &Case,
        shape: Shape,
        placement: Placement,
    ) -> Result<(), Error> {
        let (rank, ranks) = (comm.rank(), comm.world_size());
        let (input, output) = match placement {
            Placement::OutOfPlace => {
                (self.input.part(0, shape.input), self.output.part(0, shape.output))
            }
            Placement::InPlace => {
                let whole = if shape.input > shape.output { &self.input } else { &self.output };
                let own = rank * shape.count;
                match case.kind {
                    Kind::AllGather => (whole.part(own, shape.input), whole.part(0, shape.output)),
                    Kind::ReduceScatter => {
                        (whole.part(0, shape.input), whole.part(own, shape.output))
                    }
                    _ => (whole.part(0, shape.input), whole.part(0, shape.output)),
                }
            }
        };
        let run = |collective| {
            let call = Call::new(collective, rank, input, output, T::reduce_op(case.op))?;
            // SAFETY: the buffers are this object's, borrowed exclusively until the call is done, and hold the shape.
            unsafe { comm.run(&call) }
        };
        if case.kind != Kind::SendRecv {
            return run(Collective::rooted(case.kind, ranks, case.root));
        }
        let send = Collective::send_recv(ranks, rank, (rank + 1) % ranks);
        let recv = Collective::send_recv(ranks, (rank + ranks - 1) % ranks, rank);
        let [first, second] = if rank % 2 == 0 { [send, recv] } else { [recv, send] };
        run(first).and_then(|()| run(second))
    }

    fn call_out_of_place(
        &mut self,
        comm: &Communicator,
        case: &Case,
        shape: Shape,
    ) -> Result<(), Error> {
        let (input, output) = (&self.input[..shape.input], &mut self.output[..shape.output]);
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

    fn call_in_place(
        &mut self,
        comm: &Communicator,
        case: &Case,
        shape: Shape,
    ) -> Result<(), Error> {
        let op = T::reduce_op(case.op);
        let buffer = self.in_place(shape);
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

    /// The buffer for calls in place: the larger one.
    fn in_place(&mut self, shape: Shape) -> &mut [T] {
        if shape.input > shape.output {
            &mut self.input[..shape.input]
        } else {
            &mut self.output[..shape.output]
        }
    }
}
