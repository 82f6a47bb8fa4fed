//! The timing loop on a GPU. Every contestant has its turns, one after the other, again and again,
//! so that what the machine does meanwhile hits all alike.
//!
//! ```text
//! calls one by one: barrier of the hosts; k calls into the stream; wait for the stream;
//!                   elapsed / k, maximum over ranks
//! graph:            the same, with k / m launches of a graph that holds m calls;
//!                   of one graph for all ranks, by one of them
//! cold:             k times a flush and a call; less what k flushes take
//! host time:        fewer calls than may be under way, so that none waits for another's end;
//!                   elapsed before the stream is waited for
//! ```

use std::sync::Barrier;
use std::time::{Duration, Instant};

use oxccl::cuda::{CaptureMode, Event, Graph, Stream, copy};
use oxccl::{Collectives, Communicator, Error, ReduceOp};
use oxccl_command::shared::{Failure, median};
use oxccl_transports::CudaError;
use oxccl_transports::cuda::Context;
use serde::Serialize;

use crate::contestant::{Contestant, Copies, Task};
use crate::flush::Flush;

/// More launches than that may not fit into the driver's queue, and then launching waits.
const MOST_LAUNCHES: usize = 512;
/// Launches whose host time is taken: oxccl lets 64 calls be under way.
const UNDER_WAY: usize = 48;
/// How often host time is taken; the least counts.
const HOST_TURNS: usize = 5;
/// Calls of a turn with cold caches.
const COLD_LAUNCHES: usize = 20;
/// What a cold call takes at least: less is the noise of two times of which one is taken from the
/// other.
const LEAST_COLD_US: f64 = 0.01;
/// Calls, or graph launches, after another contestant's turn, before time is taken.
const WARM: usize = 2;

/// How calls come to the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// One launch after the other.
    Eager,
    /// As nodes of a graph that is launched again and again.
    Graph,
    /// One launch after the other, each behind a flush of the caches.
    Cold,
}

/// One contestant's way of making calls, and how long they took.
pub(crate) struct Entrant {
    pub(crate) contestant: usize,
    pub(crate) setting: usize,
    pub(crate) mode: Mode,
    /// Calls of a graph; and that, on a rank that launches it.
    graph: Option<(Option<Graph>, usize)>,
    launches: usize,
    /// Microseconds a call, one number a turn.
    times_us: Vec<f64>,
    /// The least host time of a call, where calls are launched one by one and it was taken.
    host_us: Option<f64>,
}

/// What takes part in a turn besides the entrant.
pub(crate) struct Course<'a> {
    pub(crate) control: &'a Communicator,
    pub(crate) stream: &'a Stream,
    pub(crate) task: &'a Task,
    pub(crate) meeting: &'a Meeting,
    /// What comes before each call with cold caches.
    pub(crate) flush: Option<&'a Flush>,
    /// About how long a turn takes.
    pub(crate) wanted: Duration,
}

/// Where ranks meet that capture their streams as one graph.
pub(crate) struct Meeting {
    ranks: Barrier,
    /// Where the others' streams begin in rank 0's capture, and where each of them ends.
    fork: Event,
    joins: Vec<Event>,
}

impl Meeting {
    /// Of so many ranks.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn new(context: &Context, ranks: usize) -> Result<Meeting, CudaError> {
        let joins = (1..ranks).map(|_| Event::new(context)).collect::<Result<_, _>>()?;
        Ok(Meeting { ranks: Barrier::new(ranks), fork: Event::new(context)?, joins })
    }

    /// Captures what all ranks record into their streams: rank 0 gets it. Where one fails, the
    /// process is about to end.
    fn capture(
        &self,
        Course { control, stream, .. }: &Course,
        record: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Option<Graph>, Failure> {
        let captured = match control.rank() {
            0 => Graph::capture(stream, CaptureMode::Relaxed, || {
                self.fork.record(stream)?;
                self.ranks.wait();
                record()?;
                self.ranks.wait();
                Ok::<(), Failure>(self.joins.iter().try_for_each(|join| join.hold(stream))?)
            })
            .map(Some),
            rank => {
                self.ranks.wait();
                self.fork.hold(stream)?;
                record()?;
                self.joins[rank - 1].record(stream)?;
                self.ranks.wait();
                Ok(None)
            }
        }?;
        // Until here the streams are part of the capture.
        self.ranks.wait();
        Ok(captured)
    }
}

impl Entrant {
    /// Calls one by one.
    pub(crate) fn eager(contestant: usize, setting: usize) -> Entrant {
        let (times_us, host_us) = (Vec::new(), None);
        let mode = Mode::Eager;
        Entrant { contestant, setting, mode, graph: None, launches: 1, times_us, host_us }
    }

    /// Calls one by one, each behind a flush.
    pub(crate) fn cold(contestant: usize, setting: usize) -> Entrant {
        let eager = Entrant::eager(contestant, setting);
        Entrant { mode: Mode::Cold, launches: COLD_LAUNCHES, ..eager }
    }

    /// So many calls as a graph, which is captured now. All ranks do so together.
    pub(crate) fn graph(
        contestant: usize,
        setting: usize,
        calls: usize,
        on: &mut dyn Contestant,
        course: &Course,
    ) -> Result<Entrant, Failure> {
        let together = on.captures_together();
        let record = || (0..calls).try_for_each(|_| put(on, setting, course));
        let graph = match together {
            true => course.meeting.capture(course, record)?,
            // Other ranks are threads of this process, and do what they like meanwhile.
            false => Some(Graph::capture(course.stream, CaptureMode::ThreadLocal, record)?),
        };
        // Making one may wait for all kernels of the process, and these for each other.
        course.stream.synchronize()?;
        course.control.barrier()?;
        let entrant = Entrant::eager(contestant, setting);
        Ok(Entrant { mode: Mode::Graph, graph: Some((graph, calls)), ..entrant })
    }

    /// Calls of a launch.
    pub(crate) fn calls_a_launch(&self) -> usize {
        self.graph.as_ref().map_or(1, |(_, calls)| *calls)
    }

    /// Finds out how many launches take about as long as wanted. All ranks find the same.
    pub(crate) fn calibrate(
        &mut self,
        on: &mut dyn Contestant,
        course: &Course,
    ) -> Result<f64, Failure> {
        let enough_us = course.wanted.as_secs_f64() * 1e6 / 2.0;
        self.launches = 1;
        loop {
            let call_us = self.turn(on, course)?;
            let turn_us = call_us * (self.launches * self.calls_a_launch()) as f64;
            if turn_us >= enough_us || 2 * self.launches > MOST_LAUNCHES {
                self.times_us.clear();
                return Ok(call_us);
            }
            self.launches *= 2;
        }
    }

    /// Takes the time of one turn, that of the slowest rank, and keeps it.
    pub(crate) fn turn(
        &mut self,
        on: &mut dyn Contestant,
        course: &Course,
    ) -> Result<f64, Failure> {
        let [_, mut elapsed_us] = self.timed(self.launches, on, course)?;
        if self.mode == Mode::Cold {
            let flush_us = self.time_flushes(course)?;
            elapsed_us = (elapsed_us - flush_us).max(LEAST_COLD_US * self.launches as f64);
        }
        let call_us = elapsed_us / (self.launches * self.calls_a_launch()) as f64;
        self.times_us.push(call_us);
        Ok(call_us)
    }

    /// Takes the host's time, where calls are launched one by one.
    pub(crate) fn time_host(
        &mut self,
        on: &mut dyn Contestant,
        course: &Course,
    ) -> Result<(), Failure> {
        if self.mode != Mode::Eager {
            return Ok(());
        }
        // Of long calls no more than a turn has.
        let launches = (UNDER_WAY / course.task.calls.len()).clamp(1, self.launches);
        for _ in 0..HOST_TURNS {
            let [launched_us, _] = self.timed(launches, on, course)?;
            let call_us = launched_us / launches as f64;
            self.host_us = Some(self.host_us.map_or(call_us, |least| least.min(call_us)));
        }
        Ok(())
    }

    /// Launches so often, on a warm way: microseconds until all were launched, and until all have
    /// ended, of the slowest rank.
    fn timed(
        &self,
        count: usize,
        on: &mut dyn Contestant,
        course: &Course,
    ) -> Result<[f64; 2], Failure> {
        (0..WARM).try_for_each(|_| self.launch(on, course))?;
        course.stream.synchronize()?;
        course.control.barrier()?;
        let start = Instant::now();
        (0..count).try_for_each(|_| {
            self.flush(course)?;
            self.launch(on, course)
        })?;
        let launched = start.elapsed();
        course.stream.synchronize()?;
        let elapsed = start.elapsed();
        on.ended()?;
        Ok(slowest(course.control, [launched, elapsed].map(|time| time.as_secs_f64() * 1e6))?)
    }

    /// What a turn's flushes take without the calls, on the slowest rank.
    fn time_flushes(&self, course: &Course) -> Result<f64, Failure> {
        self.flush(course)?;
        course.stream.synchronize()?;
        course.control.barrier()?;
        let start = Instant::now();
        (0..self.launches).try_for_each(|_| self.flush(course))?;
        course.stream.synchronize()?;
        let [elapsed_us] = slowest(course.control, [start.elapsed().as_secs_f64() * 1e6])?;
        Ok(elapsed_us)
    }

    /// Puts a flush into the stream, where calls are to be cold.
    fn flush(&self, course: &Course) -> Result<(), Failure> {
        match course.flush.filter(|_| self.mode == Mode::Cold) {
            Some(flush) => Ok(flush.put(course.stream)?),
            None => Ok(()),
        }
    }

    /// Makes calls without taking time: as many as one launch has.
    pub(crate) fn launch(&self, on: &mut dyn Contestant, course: &Course) -> Result<(), Failure> {
        match &self.graph {
            // SAFETY: the buffers that it was captured with outlive it.
            Some((Some(graph), _)) => Ok(unsafe { graph.launch(course.stream) }?),
            // Rank 0 launches it for all, between two meetings of the hosts.
            Some((None, _)) => Ok(()),
            None => put(on, self.setting, course),
        }
    }

    /// The median of its turns.
    pub(crate) fn median_us(&self) -> f64 {
        median(&self.sorted())
    }

    /// The fastest of its turns.
    pub(crate) fn min_us(&self) -> f64 {
        self.sorted()[0]
    }

    /// Host time of a call; none where the host launches graphs.
    pub(crate) fn host_us(&self) -> Option<f64> {
        self.host_us
    }

    fn sorted(&self) -> Vec<f64> {
        let mut times = self.times_us.clone();
        times.sort_by(f64::total_cmp);
        times
    }
}

/// Puts a task into the stream, with the copies that belong to it.
fn put(on: &mut dyn Contestant, setting: usize, course: &Course) -> Result<(), Failure> {
    let Course { task, stream, .. } = course;
    let Some(Copies { before, behind }) = &task.copies else {
        return on.put(setting, task, stream);
    };
    let all = |copies: &[(*const u8, *mut u8, usize)]| {
        // SAFETY: parts of the rank's buffers, which outlive the measurement.
        copies.iter().try_for_each(|(from, to, len)| unsafe { copy(stream, *to, *from, *len) })
    };
    all(before)?;
    on.put(setting, task, stream)?;
    Ok(all(behind)?)
}

/// The largest of each number over all ranks, which all of them get.
pub(crate) fn slowest<const N: usize>(
    control: &Communicator,
    mut numbers: [f64; N],
) -> Result<[f64; N], Error> {
    control.all_reduce_in_place(&mut numbers, ReduceOp::Max)?;
    Ok(numbers)
}
