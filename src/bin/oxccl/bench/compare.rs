//! Times several entries of the catalogue over the same buffers, by turns: what the machine does meanwhile hits all of them alike.

use std::time::Duration;

use oxccl::algorithms::Entry;
use oxccl::{DataType, Kind, OpKind, Order, Pin, ReduceOp};

use super::buffers::Buffers;
use super::case::{Case, Placement};
use super::check::Inputs;
use super::measure::{calibrate, median, repeat};
use super::rank::Comms;
use crate::failure::Failure;

/// The element type and operation that are timed.
pub(crate) const DATA_TYPE: DataType = DataType::F32;
/// The operation of what reduces.
pub(crate) const OP: OpKind = OpKind::Sum;

/// Results are checked up to this size: beyond, drawing the inputs would take longer than all calls.
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

/// Microseconds a call, one number a turn, in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct Taken(Vec<f64>);

impl Taken {
    fn new(mut times_us: Vec<f64>) -> Taken {
        times_us.sort_by(f64::total_cmp);
        Taken(times_us)
    }

    /// The fastest turn.
    pub(crate) fn fastest_us(&self) -> f64 {
        self.0[0]
    }

    /// Faster than three quarters of the turns: what other programs do meanwhile only ever adds time.
    pub(crate) fn lower_quartile_us(&self) -> f64 {
        self.0[self.0.len() / 4]
    }

    /// The middle.
    pub(crate) fn median_us(&self) -> f64 {
        median(&self.0)
    }
}

/// One rank's part in a comparison of one kind's entries.
pub(crate) struct Comparison<'a> {
    comms: &'a mut Comms,
    case: Case,
    buffers: Buffers<f32>,
    order: Order,
}

impl<'a> Comparison<'a> {
    /// With buffers for calls of up to so many bytes, filled once, so that no page is first touched while time is taken. All ranks do so
    /// together.
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
        let (rank, ranks) = (comms.measured.rank(), comms.measured.world());
        let shape = case.shape(ranks, largest_bytes);
        let mut buffers = Buffers::allocate(&comms.measured, shape, private)?;
        let inputs = Inputs { case, shape, ranks, order, seed: 1 };
        buffers.fill(&inputs, rank, Placement::OutOfPlace);
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
        let mut times = vec![Vec::with_capacity(turns.rounds); entries.len()];
        for _ in 0..turns.rounds {
            for (place, entry) in entries.iter().enumerate() {
                self.pin(entry)?;
                times[place].push(self.turn(bytes, |comms, call| {
                    repeat(&comms.control, calls[place], &mut || call(&comms.measured))
                })?);
            }
        }
        Ok(times.into_iter().map(Taken::new).collect())
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
        let shape = case.shape(comms.measured.world(), bytes);
        let mut call =
            |comm: &oxccl::Communicator| buffers.call(comm, case, shape, Placement::OutOfPlace);
        for _ in 0..WARM_CALLS {
            call(&comms.measured)?;
        }
        timed(comms, &mut call)
    }

    fn check(&mut self, bytes: usize) -> Result<(), Failure> {
        let Comparison { comms, case, buffers, order } = self;
        let (rank, ranks) = (comms.measured.rank(), comms.measured.world());
        let shape = case.shape(ranks, bytes);
        let inputs = Inputs { case: *case, shape, ranks, order: *order, seed: bytes as u64 };
        buffers.fill(&inputs, rank, Placement::OutOfPlace);
        buffers.call(&comms.measured, case, shape, Placement::OutOfPlace)?;
        let mut wrong = [buffers.wrong(&inputs, rank, Placement::OutOfPlace)];
        comms.control.all_reduce_in_place(&mut wrong, ReduceOp::Sum)?;
        if wrong[0] > 0 { Err(Failure::Wrong { count: wrong[0] }) } else { Ok(()) }
    }
}
