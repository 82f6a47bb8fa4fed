//! One rank's buffers, and calls on them.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use oxccl::memory::{Borrowed, Input, Output};
use oxccl::{
    Collectives, Communicator, Device, DeviceBuffer, DeviceSlice, Element, Error, HostBuffer,
    HostRegistration, Kind, OpKind, ReduceOp,
};

use super::args::BenchOptions;
use super::case::{Case, Placement, Shape};
use super::check::Inputs;
use super::sample::Sample;
use oxccl_transports::cuda::{DeviceMemory, copy_in, copy_out};

/// Whose memory buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// From comm.alloc.
    Heap,
    /// The rank's own.
    Private,
    /// The rank's own, which is registered.
    Registered,
}

impl Whose {
    pub(super) fn of(options: &BenchOptions) -> Whose {
        match (options.private, options.registered) {
            (true, _) => Whose::Private,
            (false, true) => Whose::Registered,
            (false, false) => Whose::Heap,
        }
    }

    /// Whether other ranks reach it in place.
    pub(super) fn is_reached(self) -> bool {
        self != Whose::Private
    }
}

/// Memory of one of these kinds.
pub(super) enum Memory<T: Element> {
    /// From comm.alloc: other ranks reach it in place.
    Shared(HostBuffer<T>),
    /// The rank's own.
    Private(Vec<T>),
    /// The rank's own, which other ranks reach in place.
    Registered {
        /// What calls use.
        slice: HostRegistration<'static, T>,
        /// What that is of, and goes after it.
        _memory: Vec<T>,
    },
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

    /// The first element, as calls take it.
    fn address(&mut self) -> *mut T {
        match self {
            Memory::Shared(buffer) => buffer.as_mut_ptr(),
            Memory::Private(buffer) => buffer.as_mut_ptr(),
            Memory::Registered { slice: buffer, .. } => buffer.as_mut_ptr(),
            Memory::Gpu { buffer, .. } => buffer.as_ptr(),
            Memory::Foreign { memory, .. } => memory.as_ptr().cast(),
        }
    }
}

impl<T: Element> Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Memory::Shared(buffer) => buffer,
            Memory::Private(buffer) => buffer,
            Memory::Registered { slice: buffer, .. } => buffer,
            Memory::Gpu { mirror, .. } | Memory::Foreign { mirror, .. } => mirror,
        }
    }
}

impl<T: Element> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Memory::Shared(buffer) => buffer,
            Memory::Private(buffer) => buffer,
            Memory::Registered { slice: buffer, .. } => buffer,
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
}

/// Calls of one kind and length, ready to be made: each on the next buffers, with the next
/// operation.
pub(super) struct Turns<'b, T: Element> {
    comm: &'b Communicator,
    case: Case,
    placement: Placement,
    shape: Shape,
    turns: Vec<Turn<T>>,
    next: usize,
    /// As long as this, the buffers are its own.
    _buffers: PhantomData<&'b mut Buffers<T>>,
}

/// One of them. In place, input and output are one.
struct Turn<T: Element> {
    input: *mut T,
    output: *mut T,
    op: ReduceOp<T>,
}

impl<T: Sample> Turns<'_, T> {
    /// Makes the next call.
    #[inline]
    pub(super) fn call(&mut self) -> Result<(), Error> {
        let Turn { input, output, op } = self.turns[self.next];
        self.next = if self.next + 1 < self.turns.len() { self.next + 1 } else { 0 };
        let (comm, case, shape) = (self.comm, &self.case, self.shape);
        let on_host = comm.device() == Device::Host;
        // SAFETY: the buffers hold places of these lengths, and are borrowed exclusively; those of
        // a call out of place are two.
        unsafe {
            match self.placement {
                Placement::OutOfPlace if on_host => {
                    let input = std::slice::from_raw_parts(input, shape.input);
                    let output = std::slice::from_raw_parts_mut(output, shape.output);
                    out_of_place(comm, case, input, output, op)
                }
                Placement::InPlace if on_host => {
                    let both = std::slice::from_raw_parts_mut(output, shape.both());
                    in_place(comm, case, both, op)
                }
                Placement::OutOfPlace => {
                    let input = DeviceSlice::from_raw_parts(input, shape.input);
                    let mut output = DeviceSlice::from_raw_parts(output, shape.output);
                    out_of_place(comm, case, &input, &mut output, op)
                }
                Placement::InPlace => {
                    in_place(comm, case, &mut DeviceSlice::from_raw_parts(output, shape.both()), op)
                }
            }
        }
    }
}

impl<T: Sample> Buffers<T> {
    /// Buffers that hold this shape and all smaller ones, so often, if they are not too long.
    pub(super) fn allocate(
        comm: &Communicator,
        largest: Shape,
        whose: Whose,
        rotate: usize,
    ) -> Result<Buffers<T>, Error> {
        let context = comm.context();
        let memory = |count: usize| {
            let bytes = rotated_bytes(count.max(1) * size_of::<T>(), rotate);
            let count = bytes.div_ceil(size_of::<T>());
            let zeros = || vec![T::ZERO; count];
            let mut memory = Ok::<_, Error>(match (whose, &context) {
                (Whose::Private, None) => Memory::Private(zeros()),
                (Whose::Registered, _) => {
                    let mut memory = zeros();
                    // SAFETY: it is not used otherwise, and goes behind what is made of it.
                    let slice =
                        unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr(), count) };
                    Memory::Registered { slice: comm.register_host(slice)?, _memory: memory }
                }
                (Whose::Heap, None) => Memory::Shared(comm.alloc_host::<T>(count)?),
                (Whose::Heap, Some(_)) => {
                    Memory::Gpu { mirror: zeros(), buffer: comm.alloc::<T>(count)? }
                }
                (Whose::Private, Some(context)) => {
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
        Ok(Buffers { input, output, rotate })
    }

    /// How many buffers of these lengths calls rotate over.
    pub(super) fn places(&self, shape: Shape) -> usize {
        let fit = |memory: &[T], count: usize| memory.len() / stride::<T>(count);
        let fit = fit(&self.input, shape.input).min(fit(&self.output, shape.output));
        fit.clamp(1, self.rotate)
    }

    /// Calls that rotate over the buffers and these operations. Send/recv sends to the next rank
    /// and receives from the one before; ranks with an even number send first.
    pub(super) fn turns<'b>(
        &'b mut self,
        comm: &'b Communicator,
        case: &Case,
        (shape, placement): (Shape, Placement),
        ops: &[OpKind],
    ) -> Turns<'b, T> {
        let places = self.places(shape);
        let [input, output] = [&mut self.input, &mut self.output].map(Memory::address);
        let both = if shape.input > shape.output { input } else { output };
        let at = |first: *mut T, count: usize, place: usize| {
            first.wrapping_add(place * stride::<T>(count))
        };
        // As many as it takes until the first one comes again.
        let turns = (1..).map(|times| times * places).find(|turns| turns % ops.len() == 0);
        let turn = |number: usize| {
            let (place, op) = (number % places, T::reduce_op(ops[number % ops.len()]));
            match placement {
                Placement::OutOfPlace => Turn {
                    input: at(input, shape.input, place),
                    output: at(output, shape.output, place),
                    op,
                },
                Placement::InPlace => {
                    let both = at(both, shape.both(), place);
                    Turn { input: both, output: both, op }
                }
            }
        };
        Turns {
            comm,
            case: *case,
            placement,
            shape,
            turns: (0..turns.unwrap_or(1)).map(turn).collect(),
            next: 0,
            _buffers: PhantomData,
        }
    }

    /// Makes one call.
    pub(super) fn call(
        &mut self,
        comm: &Communicator,
        case: &Case,
        shape: Shape,
        placement: Placement,
    ) -> Result<(), Error> {
        self.turns(comm, case, (shape, placement), &[case.op]).call()
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
        let both = shape.both();
        let end = (self.places(shape) - 1) * stride::<T>(both) + both;
        self.larger(shape)[..end].fill(T::ZERO);
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

    /// The first buffers for calls out of place.
    fn out_of_place(&mut self, shape: Shape) -> (&mut [T], &mut [T]) {
        (&mut self.input[..shape.input], &mut self.output[..shape.output])
    }

    /// The first buffer for calls in place.
    fn in_place(&mut self, shape: Shape) -> &mut [T] {
        &mut self.larger(shape)[..shape.both()]
    }

    /// Where calls in place are made.
    fn larger(&mut self, shape: Shape) -> &mut [T] {
        if shape.input > shape.output { &mut self.input } else { &mut self.output }
    }
}

fn out_of_place<T: Sample>(
    comm: &Communicator,
    case: &Case,
    input: &(impl Input<T, Borrowed> + ?Sized),
    output: &mut (impl Output<T, Borrowed> + ?Sized),
    op: ReduceOp<T>,
) -> Result<(), Error> {
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
    op: ReduceOp<T>,
) -> Result<(), Error> {
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
