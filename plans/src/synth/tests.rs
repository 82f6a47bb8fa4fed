//! Every recipe gives a schedule that is proven; the search keeps its promises.

use super::recipe::Larder;
use super::*;
use crate::collective::Order;
use crate::custom::CustomSchedule;
use crate::schedule::{Layout, ScheduleFile};
use crate::simulate::{Options, Subject, simulate};
use crate::topology::{Network, preset};

fn network(name: &str, ranks: usize, per_node: Option<usize>) -> Network {
    let topology = preset(name).unwrap();
    let devices = per_node.unwrap_or(topology.devices_per_node());
    Network::new(&topology.with_nodes(ranks.div_ceil(devices)), ranks, per_node).unwrap()
}

fn goal(kind: Kind, network: &Network, bytes: usize) -> Goal<'_> {
    Goal { kind, network, bytes, ll128: true, channels: 8, seed: 1, candidates: Some(60) }
}

/// Times with so many channels, or as many as lists need, and counts.
struct Simulator<'a> {
    goal: Goal<'a>,
    most: usize,
    channels: usize,
}

impl Judge for Simulator<'_> {
    fn time_ns(&mut self, schedule: &CustomSchedule) -> Option<f64> {
        let channels = self.channels.max(schedule.needed_channels());
        let schedule = schedule.schedule();
        let (elements, ranks) = (self.goal.bytes / 4, self.goal.network.ranks());
        let count = if self.goal.kind == Kind::AllReduce { elements } else { elements / ranks };
        let (input, output) = (schedule.input, schedule.output);
        let layout = Layout::even(&schedule.collective, input, output, count, 16).unwrap();
        let options = Options { channels, tile_bytes: 512 << 10, ..Options::default() };
        let subject = Subject::schedule(schedule).unwrap();
        Some(simulate(&subject, &layout, self.goal.network, &options).unwrap().time_ns)
    }

    fn goes_on(&mut self, tried: usize, _: Option<f64>) -> bool {
        tried < self.most
    }
}

fn simulator(goal: Goal<'_>, most: usize) -> Simulator<'_> {
    Simulator { goal, most, channels: 8 }
}

fn found(goal: Goal<'_>) -> Outcome {
    synthesize(&goal, &mut simulator(goal, usize::MAX)).unwrap()
}

#[test]
fn every_first_recipe_is_proven() {
    for (name, ranks, per_node) in [
        ("dgx-h100", 2, None),
        ("dgx-h100", 5, None),
        ("dgx-h100", 8, Some(4)),
        ("dgx-h100", 7, Some(3)),
        ("pcie-box", 8, None),
        ("ethernet-pair", 3, None),
    ] {
        let network = network(name, ranks, per_node);
        for kind in KINDS {
            let larder = Larder::new(&goal(kind, &network, 1 << 20));
            for recipe in larder.firsts() {
                let about = format!("{kind} over {ranks} ranks of {name}: {recipe}");
                let schedule = larder.schedule(&recipe).unwrap_or_else(|| panic!("{about}"));
                let file = ScheduleFile::new(schedule, Order::Any, true);
                let proven = CustomSchedule::prove("it", file);
                proven.unwrap_or_else(|violation| panic!("{about}: {violation}"));
            }
        }
    }
}

#[test]
fn equal_seeds_give_equal_schedules() {
    let network = network("dgx-h100", 8, Some(4));
    for kind in KINDS {
        let [one, other] = [(); 2].map(|()| found(goal(kind, &network, 8 << 20)));
        assert_eq!((one.tried(), one.refused), (60, 0), "{kind}: {one:?}");
        let (one, other) = (one.best.unwrap(), other.best.unwrap());
        assert_eq!((one.time_ns, &one.file), (other.time_ns, &other.file));
    }
}

/// What one block does one after the other, several do side by side.
#[test]
fn short_calls_between_nodes_are_faster_by_several_lists() {
    let network = network("dgx-h100", 8, Some(4));
    let [one, several] = [1, 8].map(|channels| {
        let goal = Goal { channels, ..goal(Kind::AllReduce, &network, 32 << 10) };
        let mut judge = Simulator { channels: 1, ..simulator(goal, usize::MAX) };
        synthesize(&goal, &mut judge).unwrap().best.unwrap()
    });
    let lists = [&one, &several].map(|found| found.file.schedule.lists_per_rank);
    assert!(lists[0] == 1 && lists[1] > 1, "{lists:?}");
    assert!(several.time_ns < 0.9 * one.time_ns, "{} {}", several.time_ns, one.time_ns);
}

#[test]
fn the_judge_ends_it_and_the_best_is_kept() {
    let network = network("dgx-h100", 4, None);
    let goal = goal(Kind::AllGather, &network, 1 << 20);
    let outcome = synthesize(&goal, &mut simulator(goal, 3)).unwrap();
    assert_eq!((outcome.tried(), outcome.best.is_some()), (3, true));
    let none = synthesize(&goal, &mut simulator(goal, 0)).unwrap();
    assert!(none.best.is_none());
}

#[test]
fn what_is_not_searched_for_is_refused() {
    let refused = |kind, ranks, bytes| {
        let network = network("dgx-h100", ranks, None);
        let goal = goal(kind, &network, bytes);
        synthesize(&goal, &mut simulator(goal, 1)).unwrap_err()
    };
    let kind = Kind::Broadcast;
    assert_eq!(refused(kind, 8, 64), SynthError::Kind { kind });
    assert_eq!(refused(Kind::AllReduce, 1, 64), SynthError::OneRank);
    assert_eq!(refused(Kind::AllReduce, 129, 1024), SynthError::TooManyRanks { ranks: 129 });
    let short = SynthError::TooShort { bytes: 7, ranks: 8 };
    assert_eq!(refused(Kind::AllGather, 8, 7), short);
}

/// What crosses to another node crosses while the node is told, so that links inside of nodes are
/// all that counts.
#[test]
fn an_all_gather_of_two_nodes_is_near_its_bound() {
    let network = network("dgx-h100", 16, None);
    let goal = Goal { candidates: Some(150), ..goal(Kind::AllGather, &network, 256 << 20) };
    let best = found(goal).best.unwrap();
    let bound = 14.0 / 16.0 * goal.bytes as f64 / 360.0;
    assert!(best.time_ns < 1.1 * bound, "{} of {bound}: {}", best.time_ns, best.recipe);
}
