//! Groups: any number of calls in one launch, here blocking; on streams in `src/group/stream.rs`.

mod stream;
mod unready;

pub use stream::StreamGroup;
pub use unready::Unready;

use crate::call::{Call, CallList, Terms};
use crate::collectives::Submit;
use crate::communicator::Communicator;
use crate::engine::Request;
use crate::error::Error;
use crate::memory::{Borrowed, Where};
use crate::target::Device;
use std::marker::PhantomData;

/// The calls of a group, while it is made: see [`Communicator::group`]. Buffers are borrowed for
/// `'a`, which lasts until the group is done.
///
/// Its calls are the [`Collectives`](crate::Collectives); each returns its place in the group.
#[derive(Debug)]
pub struct Group<'a> {
    list: Box<CallList>,
    device: Device,
    buffers: PhantomData<&'a mut ()>,
}

impl Communicator {
    /// Carries out any number of calls in one launch.
    ///
    /// Calls of one kind, type and op are handled as if their buffers were concatenated,
    /// without copying anything: a hundred small buckets cost about what one call of their total
    /// size costs. Sizes and alignments are free; calls of different kinds may be mixed. All ranks
    /// make the same collectives in the same order. Nothing is called if `fill` returns an error.
    ///
    /// ```
    /// # use oxccl::{Collectives, Communicator, ReduceOp};
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
    /// Sends and receives may be made in any order and number, to and from any ranks, without
    /// deadlock: all pairs advance together. What two ranks have for each other in a group of one,
    /// they have in one group of the other, in the same order in each direction. A group of
    /// messages alone concerns the ranks that have them; others need not call it. A group is done
    /// when its messages have been received.
    ///
    /// ```
    /// # use oxccl::{Collectives, Communicator};
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
    /// What `fill` returns; then as the calls: [`Error::Mismatch`] names the first bucket in which
    /// ranks differ. [`Error::TimedOut`] names a message that its receiver does not receive.
    pub fn group<'a, R>(
        &self,
        fill: impl FnOnce(&mut Group<'a>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let Terms { options, timeout } = self.terms();
        let (list, device) = (self.take_calls(options), self.device());
        let mut group = Group { list, device, buffers: PhantomData };
        let result = fill(&mut group).and_then(|result| {
            let (calls, placed) = group.list.finish();
            let request = Request { grouped: true, timeout, ..Request::default() };
            // SAFETY: `Group`'s calls were made from buffers that are borrowed until this returns,
            // outputs exclusively.
            unsafe { self.launch(calls, placed, &request) }?;
            Ok(result)
        });
        self.give_calls(group.list);
        result
    }
}

impl<'a> Submit<'a> for &mut Group<'a> {
    type Done = usize;
    type Access = Borrowed;

    fn rank(&self) -> usize {
        self.list.rank()
    }

    fn world_size(&self) -> usize {
        self.list.world_size()
    }

    #[inline]
    unsafe fn submit(self, call: Call<'_>, places: [Where; 2]) -> Result<usize, Error> {
        Where::check(places, self.device)?;
        self.list.push(&call)
    }
}
