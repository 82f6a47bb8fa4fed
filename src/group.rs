//! Groups: any number of calls in one launch.

use crate::call::{Call, Memory};
use crate::collective::{Collective, Kind};
use crate::communicator::{Communicator, input, output};
use crate::element::{Element, ReduceOp};
use crate::error::Error;
use std::marker::PhantomData;

/// The calls of a group, while it is made: see [`Communicator::group`]. Buffers are borrowed for `'a`, which lasts until the group is done.
///
/// Each call returns its place in the group. Shapes and rules are those of the communicator's calls of the same names; buffers of different
/// calls must not overlap.
#[derive(Debug)]
pub struct Group<'a> {
    rank: usize,
    world: usize,
    calls: Vec<Call>,
    buffers: PhantomData<&'a mut ()>,
}

impl Communicator {
    /// Carries out any number of calls in one launch.
    ///
    /// Calls of one kind, type and op are handled as if their buffers lay behind one another, without copying anything: a hundred small
    /// buckets cost about what one call of their total size costs. Sizes and alignments are free; calls of different kinds may be mixed. All
    /// ranks make the same calls in the same order. Nothing is called if `fill` returns an error.
    ///
    /// ```
    /// # use oxccl::{Communicator, ReduceOp};
    /// # let ranks = Communicator::local(2)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let mut gradients = vec![vec![1.0f32; 1000], vec![2.0; 17], vec![3.0; 5]];
    /// comm.group(|group| {
    ///     for gradient in &mut gradients {
    ///         group.all_reduce_in_place(gradient, ReduceOp::Sum)?;
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(gradients[1], [4.0; 17]);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// What `fill` returns; then as the calls: [`Error::Mismatch`] names the first bucket in which ranks differ.
    pub fn group<'a, R>(
        &self,
        fill: impl FnOnce(&mut Group<'a>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut group = Group {
            rank: self.rank(),
            world: self.world(),
            calls: self.take_calls(),
            buffers: PhantomData,
        };
        let result = fill(&mut group).and_then(|result| {
            // SAFETY: `Group`'s calls were made from buffers that are borrowed until this returns, outputs exclusively.
            unsafe { self.run_group(&group.calls) }.map(|()| result)
        });
        self.give_calls(group.calls);
        result
    }
}

impl<'a> Group<'a> {
    /// [`Communicator::all_reduce`].
    ///
    /// # Errors
    /// Those that this rank can see; the rest come when the group runs.
    pub fn all_reduce<T: Element>(
        &mut self,
        from: &'a [T],
        to: &'a mut [T],
        op: ReduceOp<T>,
    ) -> Result<usize, Error> {
        self.push(self.collective(Kind::AllReduce), input(from), output(to), op)
    }

    /// [`Communicator::all_reduce_in_place`].
    ///
    /// # Errors
    /// See above.
    pub fn all_reduce_in_place<T: Element>(
        &mut self,
        buffer: &'a mut [T],
        op: ReduceOp<T>,
    ) -> Result<usize, Error> {
        let memory = output(buffer);
        self.push(self.collective(Kind::AllReduce), memory, memory, op)
    }

    /// [`Communicator::reduce_scatter`].
    ///
    /// # Errors
    /// See above.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        from: &'a [T],
        to: &'a mut [T],
        op: ReduceOp<T>,
    ) -> Result<usize, Error> {
        self.push(self.collective(Kind::ReduceScatter), input(from), output(to), op)
    }

    /// [`Communicator::all_gather`].
    ///
    /// # Errors
    /// See above.
    pub fn all_gather<T: Element>(
        &mut self,
        from: &'a [T],
        to: &'a mut [T],
    ) -> Result<usize, Error> {
        self.push(self.collective(Kind::AllGather), input(from), output(to), ReduceOp::<T>::Sum)
    }

    /// [`Communicator::all_to_all`].
    ///
    /// # Errors
    /// See above.
    pub fn all_to_all<T: Element>(
        &mut self,
        from: &'a [T],
        to: &'a mut [T],
    ) -> Result<usize, Error> {
        self.push(self.collective(Kind::AllToAll), input(from), output(to), ReduceOp::<T>::Sum)
    }

    /// [`Communicator::broadcast_in_place`].
    ///
    /// # Errors
    /// See above.
    pub fn broadcast_in_place<T: Element>(
        &mut self,
        buffer: &'a mut [T],
        root: usize,
    ) -> Result<usize, Error> {
        let memory = output(buffer);
        self.push(self.rooted(Kind::Broadcast, root), memory, memory, ReduceOp::<T>::Sum)
    }

    /// [`Communicator::reduce_in_place`].
    ///
    /// # Errors
    /// See above.
    pub fn reduce_in_place<T: Element>(
        &mut self,
        buffer: &'a mut [T],
        op: ReduceOp<T>,
        root: usize,
    ) -> Result<usize, Error> {
        let memory = output(buffer);
        self.push(self.rooted(Kind::Reduce, root), memory, memory, op)
    }

    /// [`Communicator::barrier`].
    ///
    /// # Errors
    /// See above.
    pub fn barrier(&mut self) -> Result<usize, Error> {
        let none = Memory::NONE;
        self.push(self.collective(Kind::Barrier), none, none, ReduceOp::<u8>::Sum)
    }

    fn collective(&self, kind: Kind) -> Collective {
        Collective::new(kind, self.world)
    }

    fn rooted(&self, kind: Kind, root: usize) -> Collective {
        Collective::rooted(kind, self.world, root)
    }

    fn push<T: Element>(
        &mut self,
        collective: Collective,
        input: Memory,
        output: Memory,
        op: ReduceOp<T>,
    ) -> Result<usize, Error> {
        self.calls.push(Call::new(collective, self.rank, input, output, op)?);
        Ok(self.calls.len() - 1)
    }
}
