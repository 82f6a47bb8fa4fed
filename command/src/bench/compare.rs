//! Times several entries of the catalogue over the same buffers, by turns: what the machine does
//! meanwhile hits all of them alike.

use std::time::Duration;

use oxccl::plans::algorithms::Entry;
use oxccl::{Collectives, DataType, Kind, OpKind, Order, Pin, ReduceOp};

use super::buffers::{Buffers, Whose};
use super::case::{Case, Placement};
use super::check::Inputs;
use super::measure::{calibrate, median, repeat};
use super::rank::Comms;
use crate::failure::Failure;

/// The element type and operation that are timed.
pub(crate) const DATA_TYPE: DataType = DataType::F32;
/// The operation of what reduces.
pub(crate) const OP: OpKind = OpKind::Sum;

/// Results are checked up to this size: beyond, drawing the inputs would take longer than all
/// calls.
const CHECKED_BYTES: usize = 128 << 10;
/// Calls after another entry has had its turn, before time is taken.
const WARM_CALLS: usize = 2;

/// How long and how often to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    /// Turns of each entry, at least 1.
    pub(crate) rounds: usize,
    /// About how long a turn takes.
    pub(crate) wanted: Duration,
}

/// Microseconds a call with one entry, one number a turn, in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct Taken(Vec<f64>);

impl Taken {
    /// The fastest turn.
    pub(crate) fn fastest_us(&self) -> f64 {
        self.0[0]
    }

    /// The middle.
    pub(crate) fn median_us(&self) -> f64 {
        median(&self.0)
    }
}

/// What each entry has taken in each round: a row a round.
#[derive(Debug, Default)]
pub(crate) struct Rounds(Vec<Vec<f64>>);

impl Rounds {
    /// Adds rounds of the same entries.
    pub(crate) fn append(&mut self, mut more: Rounds) {
        self.0.append(&mut more.0);
    }

    /// What each entry has taken, all rounds together.
    pub(crate) fn taken(&self) -> Vec<Taken> {
        paired(&self.0)
    }
}

/// What each entry has taken, out of one row a round, with what the rounds differ by taken out of
/// it: on virtual machines all entries are several times slower while the cores lie far apart, and
/// that changes within a second. So in each round a time is taken as a multiple of the round's
/// median, and that of a good round gives the unit.
fn paired(rounds: &[Vec<f64>]) -> Vec<Taken> {
    let entries = rounds.first().map_or(0, Vec::len);
    if entries == 0 {
        return Vec::new();
    }
    let sorted = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times
    };
    let medians: Vec<f64> = rounds.iter().map(|times| median(&sorted(times.clone()))).collect();
    let unit = sorted(medians.clone())[medians.len() / 4];
    let of_entry = |entry: usize| {
        rounds.iter().zip(&medians).map(|(times, median)| times[entry] / median * unit).collect()
    };
    (0..entries).map(|entry| Taken(sorted(of_entry(entry)))).collect()
}

/// One rank's part in a comparison of one kind's entries.
pub(crate) struct Comparison<'a> {
    comms: &'a mut Comms,
    case: Case,
    buffers: Buffers<f32>,
    order: Order,
}

impl<'a> Comparison<'a> {
    /// With buffers for calls of up to so many bytes, filled once, so that no page is first touched
    /// while time is taken. All ranks do so together.
    ///
    /// # Errors
    /// Too little memory.
    pub(crate) fn new(
        comms: &'a mut Comms,
        (kind, root): (Kind, usize),
        largest_bytes: usize,
        private: bool,
        order: Order,
    ) -> Result<Comparison<'a>, Failure> {
        let case = Case { kind, data_type: DATA_TYPE, op: OP, root };
        let (rank, ranks) = (comms.measured.rank(), comms.measured.world_size());
        let shape = case.shape(ranks, largest_bytes);
        let whose = if private { Whose::Private } else { Whose::Heap };
        let mut buffers = Buffers::allocate(&comms.measured, shape, whose, 1)?;
        let inputs = Inputs { case, shape, ranks, order, seed: 1 };
        buffers.fill(&inputs, rank, Placement::OutOfPlace)?;
        comms.measured.set_order(order)?;
        Ok(Comparison { comms, case, buffers, order })
    }

    /// The time of a call of this size with each entry. All ranks get the same.
    ///
    /// # Errors
    /// [`Failure::Wrong`] if a result was; whatever a call fails with.
    pub(crate) fn times(
        &mut self,
        bytes: usize,
        entries: &[&Entry],
        turns: &Turns,
    ) -> Result<Vec<Taken>, Failure> {
        Ok(self.rounds(bytes, entries, turns)?.taken())
    }

    /// The same, round by round, so that rounds of another time can be added.
    ///
    /// # Errors
    /// As [`times`](Comparison::times).
    pub(crate) fn rounds(
        &mut self,
        bytes: usize,
        entries: &[&Entry],
        turns: &Turns,
    ) -> Result<Rounds, Failure> {
        let mut calls = Vec::with_capacity(entries.len());
        for entry in entries {
            self.pin(entry)?;
            if bytes <= CHECKED_BYTES {
                self.check(bytes)?;
            }
            calls.push(self.turn(bytes, |comms, call| {
                calibrate(&comms.control, turns.wanted, &mut || call(&comms.measured))
            })?);
        }
        let mut rounds = vec![Vec::with_capacity(entries.len()); turns.rounds];
        for round in &mut rounds {
            for (entry, &calls) in entries.iter().zip(&calls) {
                self.pin(entry)?;
                round.push(self.turn(bytes, |comms, call| {
                    repeat(&comms.control, calls, &mut || call(&comms.measured))
                })?);
            }
        }
        Ok(Rounds(rounds))
    }

    fn pin(&mut self, entry: &Entry) -> Result<(), oxccl::Error> {
        let (algorithm, encoding) = (Some(entry.algorithm), Some(entry.encoding));
        self.comms.measured.set_pin(Pin { algorithm, encoding, channels: None })
    }

    /// A few calls, and then what `timed` does with more of them.
    fn turn<R>(
        &mut self,
        bytes: usize,
        timed: impl FnOnce(
            &Comms,
            &mut dyn FnMut(&oxccl::Communicator) -> Result<(), oxccl::Error>,
        ) -> Result<R, oxccl::Error>,
    ) -> Result<R, oxccl::Error> {
        let Comparison { comms, case, buffers, .. } = self;
        let shape = case.shape(comms.measured.world_size(), bytes);
        let mut call =
            |comm: &oxccl::Communicator| buffers.call(comm, case, shape, Placement::OutOfPlace);
        for _ in 0..WARM_CALLS {
            call(&comms.measured)?;
        }
        timed(comms, &mut call)
    }

    fn check(&mut self, bytes: usize) -> Result<(), Failure> {
        let Comparison { comms, case, buffers, order } = self;
        let (rank, ranks) = (comms.measured.rank(), comms.measured.world_size());
        let shape = case.shape(ranks, bytes);
        let inputs = Inputs { case: *case, shape, ranks, order: *order, seed: bytes as u64 };
        buffers.fill(&inputs, rank, Placement::OutOfPlace)?;
        buffers.call(&comms.measured, case, shape, Placement::OutOfPlace)?;
        let mut wrong = [buffers.wrong(&inputs, rank, Placement::OutOfPlace)?];
        comms.control.all_reduce_in_place(&mut wrong, ReduceOp::Sum)?;
        if wrong[0] > 0 { Err(Failure::Wrong { count: wrong[0] }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_rounds_hit_all_entries_alike() {
        let rounds = [
            vec![1.0, 2.0, 3.0],
            vec![4.0, 8.0, 12.0],
            vec![4.0, 8.0, 12.0],
            vec![1.0, 2.0, 12.0],
            vec![1.0, 2.0, 3.0],
        ];
        let taken = paired(&rounds);
        let medians: Vec<f64> = taken.iter().map(Taken::median_us).collect();
        assert_eq!(medians, [1.0, 2.0, 3.0]);
        assert_eq!(taken[2].fastest_us(), 3.0);
        assert!(paired(&[vec![], vec![]]).is_empty());
    }
}
