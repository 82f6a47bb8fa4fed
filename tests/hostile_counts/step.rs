//! One call of all ranks.

use super::Bytes;
use super::guarded::{Fenced, Guarded};
use oxccl::bucket::{GradientBuckets, ShardedBuckets};
use oxccl::plans::schedule::{Layout, Parts};
use oxccl::{
    Call, CallOptions, Collectives, Communicator, Element, Error, Kind, Memory, OpKind, Pin,
    ReduceOp, Stream, Work,
};

/// Buffers have no more elements than this.
const SMALL: usize = 2000;

/// By which functions the call is made.
#[derive(Clone, Copy, Debug)]
enum Surface {
    Blocking,
    Group,
    Stream,
    StreamGroup,
    /// Functions that take counts and no buffers.
    Bare,
}

/// One call, equal on all ranks.
#[derive(Debug)]
pub struct Step {
    surface: Surface,
    what: usize,
    element: usize,
    counts: Vec<usize>,
    /// What the ranks' buffers have more than they should.
    skew: usize,
    root: usize,
}

/// Whether this rank alone can see why a call is refused.
pub fn is_own(error: &Error) -> bool {
    matches!(
        error,
        Error::Length { .. }
            | Error::NotDivisible { .. }
            | Error::Rank { .. }
            | Error::Op { .. }
            | Error::OutOfMemory { .. }
            | Error::CountsDiffer { .. }
            | Error::NoAlgorithm { .. }
            | Error::Config { .. }
            | Error::Unsupported { .. }
            | Error::Unaligned { .. }
            | Error::Overlap { .. }
    )
}

/// What a call gives back, waited for.
trait Ended {
    fn end(self) -> Result<(), Error>;
}

impl Ended for () {
    fn end(self) -> Result<(), Error> {
        Ok(())
    }
}

impl Ended for usize {
    fn end(self) -> Result<(), Error> {
        Ok(())
    }
}

impl Ended for Work {
    fn end(self) -> Result<(), Error> {
        self.wait()
    }
}

/// A call by number, on whatever has the calls.
macro_rules! call {
    ($on:expr, $call:expr, $from:expr, $to:expr) => {{
        let Made { kind, v, in_place, counts, recv_counts, root, rank } = $call;
        let (op, ranks) = (ReduceOp::Sum, counts.len());
        match (kind, v, in_place) {
            (Kind::AllReduce, _, false) => $on.all_reduce($from, $to, op).and_then(Ended::end),
            (Kind::AllReduce, _, true) => $on.all_reduce_in_place($to, op).and_then(Ended::end),
            (Kind::ReduceScatter, false, false) => {
                $on.reduce_scatter($from, $to, op).and_then(Ended::end)
            }
            (Kind::ReduceScatter, false, true) => {
                $on.reduce_scatter_in_place($to, op).and_then(Ended::end)
            }
            (Kind::ReduceScatter, true, false) => {
                $on.reduce_scatter_v($from, $to, counts, op).and_then(Ended::end)
            }
            (Kind::ReduceScatter, true, true) => {
                $on.reduce_scatter_v_in_place($to, counts, op).and_then(Ended::end)
            }
            (Kind::AllGather, false, false) => $on.all_gather($from, $to).and_then(Ended::end),
            (Kind::AllGather, false, true) => $on.all_gather_in_place($to).and_then(Ended::end),
            (Kind::AllGather, true, false) => {
                $on.all_gather_v($from, $to, counts).and_then(Ended::end)
            }
            (Kind::AllGather, true, true) => {
                $on.all_gather_v_in_place($to, counts).and_then(Ended::end)
            }
            (Kind::AllToAll, false, false) => $on.all_to_all($from, $to).and_then(Ended::end),
            (Kind::AllToAll, false, true) => $on.all_to_all_in_place($to).and_then(Ended::end),
            (Kind::AllToAll, true, _) => {
                $on.all_to_all_v($from, counts, $to, recv_counts).and_then(Ended::end)
            }
            (Kind::Broadcast, _, false) => $on.broadcast($from, $to, root).and_then(Ended::end),
            (Kind::Broadcast, _, true) => $on.broadcast_in_place($to, root).and_then(Ended::end),
            (Kind::Reduce, _, false) => $on.reduce($from, $to, op, root).and_then(Ended::end),
            (Kind::Reduce, _, true) => $on.reduce_in_place($to, op, root).and_then(Ended::end),
            (Kind::Gather, _, false) => $on.gather($from, $to, root).and_then(Ended::end),
            (Kind::Gather, _, true) => $on.gather_in_place($to, root).and_then(Ended::end),
            (Kind::Scatter, _, false) => $on.scatter($from, $to, root).and_then(Ended::end),
            (Kind::Scatter, _, true) => $on.scatter_in_place($to, root).and_then(Ended::end),
            // From rank 0 to rank 1; a hostile root is a hostile peer of both.
            (Kind::SendRecv, ..) if rank == 0 => {
                let peer = if root < ranks { 1 } else { root };
                $on.send($from, peer).and_then(Ended::end)
            }
            (Kind::SendRecv, ..) if rank == 1 => {
                let peer = if root < ranks { 0 } else { root };
                $on.recv($to, peer).and_then(Ended::end)
            }
            (Kind::SendRecv, ..) => Ok(()),
            (Kind::Barrier, ..) => $on.barrier().and_then(Ended::end),
        }
    }};
}

/// A rank's part of a step.
#[derive(Clone, Copy)]
struct Made<'a> {
    kind: Kind,
    v: bool,
    in_place: bool,
    counts: &'a [usize],
    /// What each rank sends to this one, of an all-to-all with counts.
    recv_counts: &'a [usize],
    root: usize,
    rank: usize,
}

impl Step {
    pub fn read(bytes: &mut Bytes<'_>, ranks: usize) -> Step {
        use Surface::*;
        let surface = [Blocking, Group, Stream, StreamGroup, Bare][bytes.below(5)];
        let (what, element) = (bytes.next() as usize, bytes.below(3));
        let size = [1, 4, 8][element];
        let counts = (0..ranks).map(|_| hostile(bytes, size)).collect::<Vec<_>>();
        let counts = wrapped(bytes, counts);
        let skew = if bytes.below(8) == 0 { 1 } else { 0 };
        let root = if bytes.below(16) == 0 { hostile(bytes, size) } else { bytes.below(ranks) };
        Step { surface, what, element, counts, skew, root }
    }

    pub fn run(&self, comm: &mut Communicator) -> Result<(), Error> {
        match self.element {
            0 => self.typed::<u8>(comm),
            1 => self.typed::<f32>(comm),
            _ => self.typed::<f64>(comm),
        }
    }

    fn typed<T: Element + Default>(&self, comm: &mut Communicator) -> Result<(), Error> {
        if let Surface::Bare = self.surface {
            return self.bare::<T>(comm);
        }
        let (rank, ranks) = (comm.rank(), comm.world_size());
        let kind = Kind::ALL[self.what % Kind::ALL.len()];
        let (v, in_place) = (self.what & 32 != 0, self.what & 64 != 0);
        // From rank s to rank r: every rank's counts, turned by its number.
        let sent = |from: usize, to: usize| self.counts[(from + to) % ranks];
        let send_counts: Vec<usize> = (0..ranks).map(|to| sent(rank, to)).collect();
        let recv_counts: Vec<usize> = (0..ranks).map(|from| sent(from, rank)).collect();
        let counts = if kind == Kind::AllToAll { &send_counts } else { &self.counts };
        let (recv_counts, root) = (&recv_counts[..], self.root);
        let made = Made { kind, v, in_place, counts, recv_counts, root, rank };
        let (input, output) = self.lengths(&made, ranks);
        let result = self.on_surface::<T>(comm, made, input, output);
        if result.is_ok()
            && v
            && matches!(kind, Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll)
        {
            let total: u128 = counts.iter().map(|count| *count as u128).sum();
            assert!(total <= 4 * SMALL as u128, "{self:?} has been carried out");
        }
        result
    }

    /// The lengths that a sum which wraps would ask for, where they are small, or something small.
    fn lengths(&self, made: &Made<'_>, ranks: usize) -> (usize, usize) {
        let sum =
            |counts: &[usize]| counts.iter().fold(0, |sum: usize, count| sum.wrapping_add(*count));
        let first = self.counts[0] % SMALL / ranks * ranks;
        let (own, all) = (made.counts[made.rank], sum(made.counts));
        let (input, output) = match (made.kind, made.v) {
            (Kind::AllGather, true) if made.in_place => (all, all),
            (Kind::AllGather, true) => (own, all),
            (Kind::ReduceScatter, true) if made.in_place => (all, all),
            (Kind::ReduceScatter, true) => (all, own),
            (Kind::AllToAll, true) => (all, sum(made.recv_counts)),
            (Kind::AllGather | Kind::Gather, _) if made.in_place => match made.kind {
                Kind::Gather if made.rank != self.root => (first, first / ranks),
                _ => (first, first),
            },
            (Kind::Scatter, _) if made.in_place && made.rank != self.root => (first, first / ranks),
            (Kind::AllGather | Kind::Gather, _) => (first / ranks, first),
            (Kind::ReduceScatter | Kind::Scatter, _) if !made.in_place => (first, first / ranks),
            _ => (first, first),
        };
        let small = |length: usize| if length <= SMALL { length } else { length % SMALL };
        // Where ranks have buffers of different kinds, only the root would see that its are too
        // long.
        let apart = matches!(made.kind, Kind::Gather | Kind::Scatter);
        let skew = if apart { 0 } else { self.skew };
        (small(input) + skew, small(output) + skew)
    }

    fn on_surface<T: Element + Default>(
        &self,
        comm: &Communicator,
        made: Made<'_>,
        input: usize,
        output: usize,
    ) -> Result<(), Error> {
        if let Surface::Blocking | Surface::Group = self.surface {
            let (from, mut to) = (Guarded::<T>::new(input), Guarded::<T>::new(output));
            let result = match self.surface {
                Surface::Blocking => call!(comm, made, &*from, &mut *to),
                _ => comm.group(|group| call!(group, made, &*from, &mut *to)),
            };
            from.check();
            to.check();
            return result;
        }
        let stream = Stream::new()?;
        let mut memory = Fenced::<T>::new(comm, input, output);
        let (from, to) = (&memory.from, &mut memory.to);
        let on = comm.on(&stream);
        let result = match self.surface {
            Surface::Stream => call!(on, made, from, to),
            _ => on
                .group(|group| call!(group, made, from, to))
                .and_then(|(work, ()): (Work, ())| work.wait()),
        };
        memory.check();
        result
    }

    /// Functions that take counts and make buffers, plans or descriptions of them.
    fn bare<T: Element + Default>(&self, comm: &mut Communicator) -> Result<(), Error> {
        let count = self.counts[0];
        let bytes = count as u128 * size_of::<T>() as u128;
        match self.what % 8 {
            0 | 1 => {
                let mut fenced = Fenced::<T>::new(comm, 1, 1);
                let mut buffer = comm.alloc_host::<T>(count)?;
                assert!(bytes <= 8 << 20, "{self:?} gave memory that there is not");
                if let Some(last) = buffer.last_mut() {
                    *last = T::default();
                }
                fenced.to[0] = T::default();
                fenced.check();
                Ok(())
            }
            2 => {
                let buckets =
                    GradientBuckets::<T>::with_capacity(comm, &self.counts, self.counts[1])?;
                (0..self.counts.len()).try_for_each(|parameter| {
                    assert_eq!(buckets.gradient(parameter)?.len(), self.counts[parameter]);
                    Ok(())
                })
            }
            3 => {
                let counts = &self.counts;
                let buckets = ShardedBuckets::<f32, f32>::with_capacity(comm, counts, counts[1])?;
                (0..counts.len()).try_for_each(|parameter| {
                    assert_eq!(buckets.parameter(parameter)?.len(), counts[parameter]);
                    Ok(())
                })
            }
            4 => {
                let kind = Kind::ALL[self.what / 8 % Kind::ALL.len()];
                comm.plan::<T>(kind, OpKind::Sum, count, self.root, false, false).map(drop)
            }
            5 => {
                // Only described: no memory is touched.
                let kind = Kind::ALL[self.what / 8 % Kind::ALL.len()];
                let address = count.wrapping_mul(size_of::<T>()) as *mut u8;
                let memory = |count| Memory { address, count };
                let (input, output) = (memory(count), memory(self.counts[1]));
                let call = Call::of(kind, T::DATA_TYPE, input, output);
                let call = if kind.is_rooted() { call.root(self.root) } else { call };
                call.check(comm.rank(), self.counts[1])
            }
            6 => {
                let too_long = |_| Error::Overflow { call: "layout", argument: "counts" };
                let rows = vec![self.counts.clone(); self.counts.len()];
                Layout::all_gather_v(&self.counts, Parts::WHOLE).map_err(too_long)?;
                Layout::reduce_scatter_v(&self.counts, Parts::WHOLE).map_err(too_long)?;
                Layout::all_to_all_v(&rows, Parts::WHOLE).map(drop).map_err(too_long)
            }
            _ => {
                comm.set_pin(Pin { channels: Some(count), ..Pin::default() })?;
                comm.set_pin(Pin { channels: Some(1), ..Pin::default() })?;
                let stream = Stream::new()?;
                let options = CallOptions { channels: Some(count), ..CallOptions::default() };
                comm.on(&stream).with_options(options).map(drop)
            }
        }
    }
}

/// A count that is small, or near something at which numbers wrap.
fn hostile(bytes: &mut Bytes<'_>, size: usize) -> usize {
    let near = [
        0,
        usize::MAX,
        usize::MAX / 2,
        usize::MAX / size,
        isize::MAX as usize / size,
        usize::MAX / size / 2,
        1 << 32,
        1 << 47,
    ];
    match bytes.below(3) {
        0 | 1 => bytes.next() as usize * if bytes.below(4) == 0 { 7 } else { 1 },
        _ => near[bytes.below(near.len())].wrapping_add(bytes.below(16)).wrapping_sub(8),
    }
}

/// Often makes the sum of all counts a small one, by the last of them.
fn wrapped(bytes: &mut Bytes<'_>, mut counts: Vec<usize>) -> Vec<usize> {
    if bytes.below(2) == 0 {
        return counts;
    }
    let wanted = bytes.next() as usize;
    let last = counts.len() - 1;
    let others = counts[..last].iter().fold(0, |sum: usize, count| sum.wrapping_add(*count));
    counts[last] = wanted.wrapping_sub(others);
    counts
}
