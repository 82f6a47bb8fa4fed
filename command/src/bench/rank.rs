//! What each rank does.

use std::sync::Arc;

use oxccl::{Collectives, Communicator, Error, Order, ReduceOp};
use oxccl_transports::Server;
use oxccl_transports::cuda::Context;

use super::args::BenchOptions;
use super::buffers::{Buffers, Whose};
use super::case::{Case, Placement, Shape};
use super::check::Inputs;
use super::group;
use super::measure::{Effort, Timing, measure, settle};
use super::output::Output;
use super::report::{Row, rounded};
use super::sample::Sample;
use super::watchdog::Watchdog;
use crate::failure::Failure;
use crate::for_type;
use crate::options::Target;

/// A rank's two communicators.
pub(crate) struct Comms {
    /// For what ranks tell each other; nothing is pinned on it.
    pub(super) control: Communicator,
    /// The one that is measured.
    pub(super) measured: Communicator,
    /// Ends the process when nothing goes on any more.
    pub(super) watchdog: Option<Arc<Watchdog>>,
    /// Serves the measured one's ranks; dropped after it.
    pub(super) _server: Option<Server>,
}

impl Comms {
    /// This rank.
    pub(crate) fn rank(&self) -> usize {
        self.control.rank()
    }

    /// Number of ranks.
    pub(crate) fn world(&self) -> usize {
        self.control.world_size()
    }

    /// Whether the system reads private memory for the ranks that are measured.
    pub(crate) fn reads_private_memory(&self) -> bool {
        self.measured.reads_private_memory()
    }

    /// The next step begins.
    pub(super) fn step(&self, doing: impl FnOnce() -> String) {
        if let Some(watchdog) = &self.watchdog {
            watchdog.step(doing());
        }
    }

    /// The GPU's context, where ranks compute on GPUs.
    pub(crate) fn context(&self) -> Option<Context> {
        self.measured.context()
    }
}

/// A rank at work.
struct Bench<'a> {
    options: &'a BenchOptions,
    comms: &'a Comms,
    output: &'a mut Output,
    effort: Effort,
    order: Order,
    seed: u64,
    wrong: u64,
}

/// Measures everything that the options ask for. Rank 0 prints.
///
/// # Errors
/// [`Failure::Wrong`] on every rank if any rank had a wrong element.
pub(super) fn run(
    options: &BenchOptions,
    comms: &Comms,
    output: &mut Output,
) -> Result<(), Failure> {
    let cases = options.cases(comms.control.world_size())?;
    let sizes = options.sweep.sizes()?;
    let effort = Effort {
        warmup: options.warmup_iters,
        iterations: options.iters,
        aggregated: options.agg_iters,
        repeats: options.sweep.repeats,
        wanted: options.sweep.repeat_time(),
    };
    output.start(options.target());
    settle(&comms.control)?;
    if options.target() == Target::Group {
        return group::run(options, comms, output, &effort);
    }
    let order = options.config()?.order;
    output.begin(cases.iter().map(|case| sizes_of(case, &sizes).len()).sum());
    let mut bench = Bench { options, comms, output, effort, order, seed: 0, wrong: 0 };
    for case in &cases {
        bench.case_of_type(case, sizes_of(case, &sizes))?;
    }
    let wrong = bench.wrong;
    output.end(wrong);
    if wrong > 0 { Err(Failure::Wrong { count: wrong }) } else { Ok(()) }
}

/// A barrier has no size.
fn sizes_of<'a>(case: &Case, sizes: &'a [usize]) -> &'a [usize] {
    if case.kind == oxccl::Kind::Barrier { &[0] } else { sizes }
}

impl Bench<'_> {
    fn case_of_type(&mut self, case: &Case, sizes: &[usize]) -> Result<(), Error> {
        for_type!(case.data_type, T => self.case::<T>(case, sizes))
    }

    fn case<T: Sample>(&mut self, case: &Case, sizes: &[usize]) -> Result<(), Error> {
        let ranks = self.comms.measured.world_size();
        let Some(largest) = sizes.last() else { return Ok(()) };
        let largest = case.shape(ranks, *largest);
        let options = self.options;
        let mut buffers = Buffers::<T>::allocate(
            &self.comms.measured,
            largest,
            Whose::of(options),
            options.rotate,
        )?;
        self.output.case(case);
        for &bytes in sizes {
            let shape = case.shape(ranks, bytes);
            let apart = self.row(case, shape, Placement::OutOfPlace, &mut buffers)?;
            let in_place = match case.has_in_place() {
                true => self.row(case, shape, Placement::InPlace, &mut buffers)?,
                false => None,
            };
            if let Some(apart) = apart {
                self.output.rows(&apart, in_place.as_ref());
            }
        }
        Ok(())
    }

    /// Checks and times one size; nothing where what is pinned cannot be done in place.
    fn row<T: Sample>(
        &mut self,
        case: &Case,
        shape: Shape,
        placement: Placement,
        buffers: &mut Buffers<T>,
    ) -> Result<Option<Row>, Error> {
        let (measured, windows) = (&self.comms.measured, Whose::of(self.options).is_reached());
        let in_place = placement == Placement::InPlace;
        let plan =
            measured.plan::<T>(case.kind, case.op, shape.count, case.root, in_place, windows);
        let plan = match plan {
            Err(Error::NoAlgorithm { .. }) if in_place => return Ok(None),
            other => other?,
        };
        let step = |what: &str| {
            let bytes = shape.bytes(case.data_type);
            self.comms.step(|| format!("{} of {bytes} bytes is {what}", case.kind));
        };
        step("checked");
        let before = self.check(case, shape, placement, buffers)?;
        if in_place {
            buffers.clear_in_place(shape)?;
        }
        step("timed");
        let (launches, missed) = (measured.launches(), measured.missed_wakes());
        let ops = self.options.operations(case);
        let mut turns = buffers.turns(measured, case, (shape, placement), &ops);
        let mut calls = 0u64;
        let timing = measure(&self.comms.control, &self.effort, || {
            calls += 1;
            turns.call()
        })?;
        let launches = measured.launches() - launches;
        let mut missed = [measured.missed_wakes() - missed];
        self.comms.control.all_reduce_in_place(&mut missed, ReduceOp::Sum)?;
        step("checked again");
        let after = self.check(case, shape, placement, buffers)?;
        let wrong = before.zip(after).map(|(before, after)| before + after);
        self.wrong += wrong.unwrap_or(0);
        let launches = launches / calls.max(1);
        let row = self.finished(
            case,
            shape,
            placement,
            &plan,
            &timing,
            (wrong, launches, missed[0]),
            (buffers.places(shape), ops.len()),
        );
        Ok(Some(self.output.held(row, case, &plan)))
    }

    #[allow(clippy::too_many_arguments)]
    fn finished(
        &self,
        case: &Case,
        shape: Shape,
        placement: Placement,
        plan: &oxccl::plans::tune::Plan,
        timing: &Timing,
        (wrong, launches, missed_wakes): (Option<u64>, u64, u64),
        (buffers, ops): (usize, usize),
    ) -> Row {
        let ranks = self.comms.measured.world_size();
        let (algbw_gbps, busbw_gbps) = Row::bandwidths(case, shape, ranks, timing);
        Row {
            op: case.kind.name(),
            data_type: case.data_type.name(),
            redop: case.op_name(),
            root: case.root_number(),
            ranks,
            nodes: self.comms.measured.nodes(),
            bytes: shape.bytes(case.data_type),
            count: shape.count,
            algorithm: plan.algorithm,
            encoding: plan.encoding,
            channels: plan.channels,
            in_place: placement == Placement::InPlace,
            time_us: rounded(timing.median_us),
            min_us: rounded(timing.min_us),
            algbw_gbps,
            busbw_gbps,
            wrong,
            launches,
            calls: timing.calls,
            missed_wakes,
            cma: plan.cma,
            copies: plan.copies,
            buffers,
            ops,
            against_us: None,
            predicted_us: None,
        }
    }

    /// One call with fresh inputs: the number of wrong elements on all ranks.
    fn check<T: Sample>(
        &mut self,
        case: &Case,
        shape: Shape,
        placement: Placement,
        buffers: &mut Buffers<T>,
    ) -> Result<Option<u64>, Error> {
        if self.options.sweep.check == 0 {
            return Ok(None);
        }
        self.seed = self.seed.wrapping_add(0x632b_e59b_d9b4_e019);
        let Comms { control, measured, .. } = self.comms;
        let (rank, ranks) = (measured.rank(), measured.world_size());
        let inputs = Inputs { case: *case, shape, ranks, order: self.order, seed: self.seed };
        buffers.fill(&inputs, rank, placement)?;
        buffers.call(measured, case, shape, placement)?;
        let mut wrong = [buffers.wrong(&inputs, rank, placement)?];
        control.all_reduce_in_place(&mut wrong, ReduceOp::Sum)?;
        Ok(Some(wrong[0]))
    }
}
