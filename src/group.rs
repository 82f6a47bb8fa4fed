//! Groups: any number of calls in one launch, here blocking; on streams in `src/group/stream.rs`.

mod calls;
mod stream;
mod unready;

pub use stream::{StreamGroup, UnreadyCalls};
pub use unready::Unready;

use crate::call::{CallList, Memory};
use crate::communicator::Communicator;
use crate::engine::Request;
use crate::error::Error;
use calls::group_calls;
use oxccl_plans::collective::Kind;
use oxccl_plans::element::{Element, ReduceOp};
use std::marker::PhantomData;

/// The calls of a group, while it is made: see [`Communicator::group`]. Buffers are borrowed for `'a`, which lasts until the group is done.
///
/// Each call returns its place in the group. Shapes and rules are those of the communicator's calls of the same names; buffers of different
/// calls must not overlap.
#[derive(Debug)]
pub struct Group<'a> {
    list: CallList,
    buffers: PhantomData<&'a mut ()>,
}

group_calls!(Group, [T]);

impl Communicator {
    /// Carries out any number of calls in one launch.
    ///
    /// Calls of one kind, type and op are handled as if their buffers lay behind one another, without copying anything: a hundred small
    /// buckets cost about what one call of their total size costs. Sizes and alignments are free; calls of different kinds may be mixed. All
    /// ranks make the same collectives in the same order. Nothing is called if `fill` returns an error.
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
    /// # Messages
    ///
    /// Sends and receives may be made in any order and number, to and from any ranks, without deadlock: all pairs advance together. What two
    /// ranks have for each other in a group of one, they have in one group of the other, in the same order in each direction. A group of
    /// messages alone concerns the ranks that have them; others need not call it. A group is done when its messages have been received.
    ///
    /// ```
    /// # use oxccl::Communicator;
    /// # let ranks = Communicator::local(3)?;
    /// # std::thread::scope(|scope| for comm in ranks { scope.spawn(move || {
    /// let (rank, world) = (comm.rank(), comm.world_size());
    /// let (own, mut other) = ([rank as u32; 100], [0; 100]);
    /// comm.group(|group| {
    ///     group.send(&own, (rank + 1) % world)?;
    ///     group.recv(&mut other, (rank + world - 1) % world)
    /// })?;
    /// assert_eq!(other, [((rank + world - 1) % world) as u32; 100]);
    /// # Ok::<(), oxccl::Error>(()) }); });
    /// # Ok::<(), oxccl::Error>(())
    /// ```
    ///
    /// # Errors
    /// What `fill` returns; then as the calls: [`Error::Mismatch`] names the first bucket in which ranks differ. [`Error::TimedOut`] names a
    /// message that its receiver does not receive.
    pub fn group<'a, R>(
        &self,
        fill: impl FnOnce(&mut Group<'a>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut group = Group { list: self.take_calls(0), buffers: PhantomData };
        let result = fill(&mut group).and_then(|result| {
            group.list.finish();
            let (calls, mut placed) = (group.list.calls(), group.list.placed);
            let request = Request { grouped: true, ..Request::default() };
            // SAFETY: `Group`'s calls were made from buffers that are borrowed until this returns, outputs exclusively.
            let launched = unsafe { self.launch(calls, &mut placed, &request) };
            group.list.placed = placed;
            launched.map(|()| result)
        });
        self.give_calls(group.list);
        result
    }
}

impl<'a> Group<'a> {
    #[expect(clippy::unused_self, reason = "groups of other buffers keep them alive here")]
    fn read<T: Element>(&self, input: &'a [T]) -> Memory {
        Memory::of(input)
    }

    #[expect(clippy::unused_self, reason = "groups of other buffers keep them alive here")]
    fn write<T: Element>(&self, output: &'a mut [T]) -> Memory {
        Memory::of_mut(output)
    }
}
