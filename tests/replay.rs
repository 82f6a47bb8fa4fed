//! The order of steps that the simulator predicts is one that the host executor takes: traces of
//! both are replayed by the same rules.
//!
//! A replay goes through all ranks' steps by time. A wait, or the end of a step that receives a
//! message which announces itself, must find its counter or message there: raised by a signal, or
//! sent by a step, that began before. Steps of a channel come in the program's order.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use oxccl::plans::algorithms::{Algorithm, Encoding, find};
use oxccl::plans::schedule::{Flag, Instruction, Lane, Layout, Operand, Schedule};
use oxccl::plans::simulate::{Options, Subject, simulate};
use oxccl::plans::topology::{Network, Placement, preset};
use oxccl::plans::tune::Limits;
use oxccl::{Collective, Collectives, Communicator, Config, Kind, Order, Pin, ReduceOp};

/// A step of either trace.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    rank: usize,
    channel: usize,
    round: u64,
    step: usize,
    start_ns: f64,
    end_ns: f64,
}

/// One direction of a connection.
type Route = (usize, usize, Lane, usize);

/// What has happened so far, counted from the call's start.
#[derive(Default)]
struct Replay {
    tails: HashMap<Route, i64>,
    heads: HashMap<Route, i64>,
    messages: HashMap<Route, i64>,
}

/// Messages of a round that a rank sends and receives over a link.
fn per_round(schedule: &Schedule, from: usize, to: usize, lane: Lane) -> i64 {
    let count = |instruction: &Instruction| {
        match instruction {
        Instruction::ReduceCopy { destinations, .. } => destinations
            .iter()
            .filter(|operand| {
                matches!(operand, Operand::PeerSlot { link, segment: 0, .. } if link.peer == to && link.lane == lane)
            })
            .count() as i64,
        Instruction::Signal { flag: Flag::Tail(link), .. } => {
            i64::from(link.peer == to && link.lane == lane && lane == Lane::Sync)
        }
        _ => 0,
    }
    };
    schedule.lists[from].iter().map(count).sum()
}

impl Replay {
    /// What begins with a step.
    fn begin(&mut self, schedule: &Schedule, step: &Step) {
        let base = |from, to, lane| step.round as i64 * per_round(schedule, from, to, lane);
        match &schedule.lists[step.rank][step.step] {
            Instruction::Signal { flag: Flag::Tail(link), value } => {
                let (from, to) = (step.rank, link.peer);
                let value = base(from, to, link.lane) + value;
                self.tails.insert((from, to, link.lane, step.channel), value);
            }
            Instruction::Signal { flag: Flag::Head(link), value } => {
                let (from, to) = (link.peer, step.rank);
                let value = base(from, to, link.lane) + value;
                self.heads.insert((from, to, link.lane, step.channel), value);
            }
            Instruction::ReduceCopy { destinations, .. } => {
                for operand in destinations {
                    if let Operand::PeerSlot { link, message, .. } = operand {
                        let (from, to) = (step.rank, link.peer);
                        let number = base(from, to, link.lane) + i64::from(*message) + 1;
                        self.messages.insert((from, to, link.lane, step.channel), number);
                    }
                }
            }
            Instruction::Wait { .. } => {}
        }
    }

    /// What must have happened when a step ends.
    fn end(&self, schedule: &Schedule, step: &Step) -> Result<(), String> {
        let base = |from, to, lane| step.round as i64 * per_round(schedule, from, to, lane);
        let reached = |counters: &HashMap<Route, i64>, from, to, lane, value: i64| {
            let wanted = base(from, to, lane) + value;
            let found = counters.get(&(from, to, lane, step.channel)).copied().unwrap_or(0);
            if found >= wanted { Ok(()) } else { Err(format!("{step:?}: {found}, not {wanted}")) }
        };
        match &schedule.lists[step.rank][step.step] {
            Instruction::Wait { flag: Flag::Tail(link), value } => {
                reached(&self.tails, link.peer, step.rank, link.lane, *value)
            }
            Instruction::Wait { flag: Flag::Head(link), value } => {
                reached(&self.heads, step.rank, link.peer, link.lane, *value)
            }
            Instruction::ReduceCopy { sources, .. } => sources.iter().try_for_each(|source| {
                let Operand::Slot { link, message, .. } = source.operand else { return Ok(()) };
                let value = i64::from(message) + 1;
                reached(&self.messages, link.peer, step.rank, link.lane, value)
            }),
            Instruction::Signal { .. } => Ok(()),
        }
    }
}

/// Goes through a trace by time.
fn replay(schedule: &Schedule, trace: &[Step]) -> Result<(), String> {
    // What begins at an instant comes before what ends then.
    let mut moments: Vec<(f64, bool, &Step)> = trace
        .iter()
        .flat_map(|step| [(step.start_ns, false, step), (step.end_ns, true, step)])
        .collect();
    moments.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut state = Replay::default();
    for (_, ends, step) in moments {
        if ends {
            state.end(schedule, step)?;
        } else {
            state.begin(schedule, step);
        }
    }
    Ok(())
}

/// Each channel's steps in the order in which they were taken.
fn orders(trace: &[Step]) -> HashMap<(usize, usize), Vec<(u64, usize)>> {
    let mut sorted = trace.to_vec();
    // Short steps may begin at one instant.
    sorted.sort_by(|a, b| {
        a.start_ns.total_cmp(&b.start_ns).then((a.round, a.step).cmp(&(b.round, b.step)))
    });
    let mut orders: HashMap<_, Vec<_>> = HashMap::new();
    for step in sorted {
        orders.entry((step.rank, step.channel)).or_default().push((step.round, step.step));
    }
    orders
}

/// A case that both run.
struct Case {
    ranks: usize,
    count: usize,
    channels: usize,
    algorithm: Algorithm,
    encoding: Encoding,
}

impl Case {
    fn schedule(&self) -> Schedule {
        let collective = Collective::new(Kind::AllReduce, self.ranks);
        let entry = find(Kind::AllReduce, self.algorithm, self.encoding).unwrap();
        entry
            .schedule(collective, Placement::one_node(self.ranks), Order::Any, Limits::HOST.slots)
            .unwrap()
    }

    /// What the host executor does.
    fn executed(&self) -> Vec<Step> {
        let pin = Pin {
            algorithm: Some(self.algorithm),
            encoding: Some(self.encoding),
            channels: Some(self.channels),
        };
        let comms =
            Communicator::local_with(self.ranks, &Config { pin, ..Config::default() }).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = comms
                .into_iter()
                .map(|mut comm| {
                    scope.spawn(move || {
                        let input = vec![comm.rank() as f32; self.count];
                        let mut output = vec![0f32; self.count];
                        comm.all_reduce(&input, &mut output, ReduceOp::Sum).unwrap();
                        comm.barrier().unwrap();
                        comm.set_trace(true).unwrap();
                        comm.all_reduce(&input, &mut output, ReduceOp::Sum).unwrap();
                        let expected = (0..comm.world_size()).sum::<usize>() as f32;
                        assert!(output.iter().all(|value| *value == expected));
                        let steps = comm.take_trace().unwrap().steps;
                        comm.set_trace(false).unwrap();
                        comm.barrier().unwrap();
                        assert_eq!(comm.take_trace().unwrap().steps, [], "tracing has ended");
                        (comm.rank(), steps)
                    })
                })
                .collect();
            let ranks = threads.into_iter().map(|thread| thread.join().unwrap());
            ranks
                .flat_map(|(rank, steps)| {
                    steps.into_iter().map(move |step| Step {
                        rank,
                        channel: step.channel as usize,
                        round: step.round,
                        step: step.step as usize,
                        start_ns: step.start_ns as f64,
                        end_ns: step.end_ns as f64,
                    })
                })
                .collect()
        })
    }

    /// What the simulator predicts, with the communicator's slots.
    fn predicted(&self) -> Vec<Step> {
        let schedule = self.schedule();
        let config = Config::default();
        let slot = match self.encoding {
            Encoding::Ll | Encoding::Ll128 => config.advanced.ll_slot_bytes,
            _ => config.limits().plain_slot_bytes(1, self.ranks),
        };
        let options = Options {
            channels: self.channels,
            tile_bytes: slot,
            bundles: Some(usize::MAX),
            trace: true,
            ..Options::default()
        };
        let network = Network::new(&preset("host").unwrap(), self.ranks, None).unwrap();
        let layout =
            Layout::even(&schedule.collective, schedule.input, schedule.output, self.count, 16)
                .unwrap();
        let subject = Subject::schedule(&schedule).unwrap();
        let prediction = simulate(&subject, &layout, &network, &options).unwrap();
        let events = prediction.trace.unwrap().events;
        events
            .iter()
            .map(|event| Step {
                rank: event.rank,
                channel: event.channel,
                round: event.round,
                step: event.step,
                start_ns: event.start_ns,
                end_ns: event.end_ns,
            })
            .collect()
    }
}

const CASES: [Case; 7] = [
    case(2, 1 << 18, 1, Algorithm::Ring, Encoding::Slots),
    case(3, 300_000, 2, Algorithm::Ring, Encoding::Slots),
    case(4, 5000, 1, Algorithm::Ring, Encoding::Ll),
    case(3, 40_000, 1, Algorithm::OneShot, Encoding::Ll),
    case(2, 100_000, 2, Algorithm::TwoShot, Encoding::Slots),
    case(4, 100_000, 1, Algorithm::TwoShot, Encoding::Windows),
    case(2, 1 << 16, 1, Algorithm::TwoShotPush, Encoding::Windows),
];

const fn case(
    ranks: usize,
    count: usize,
    channels: usize,
    algorithm: Algorithm,
    encoding: Encoding,
) -> Case {
    Case { ranks, count, channels, algorithm, encoding }
}

#[test]
fn predicted_orders_are_those_that_the_executor_takes() {
    for case in CASES {
        let (schedule, executed, predicted) = (case.schedule(), case.executed(), case.predicted());
        let what = format!("{} {} on {} ranks", case.algorithm, case.encoding, case.ranks);
        assert_eq!(
            orders(&executed),
            orders(&predicted),
            "{what}: the same steps in the same order"
        );
        replay(&schedule, &executed).unwrap_or_else(|why| panic!("{what}, executed: {why}"));
        replay(&schedule, &predicted).unwrap_or_else(|why| panic!("{what}, predicted: {why}"));
    }
}

#[test]
fn an_order_that_cannot_be_is_found() {
    let case = &CASES[0];
    let (schedule, mut predicted) = (case.schedule(), case.predicted());
    // Rank 0 is told to have gone before everybody else.
    let end = predicted.iter().map(|step| step.end_ns).fold(0.0, f64::max);
    for step in predicted.iter_mut().filter(|step| step.rank == 0) {
        step.start_ns -= end;
        step.end_ns -= end;
    }
    let why = replay(&schedule, &predicted).unwrap_err();
    assert!(why.contains("rank: 0"), "{why}");
}
