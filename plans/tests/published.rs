//! Predictions beside published measurements, class by class (`published/figures.toml`).
#![allow(clippy::unwrap_used)]

#[path = "published/kernels.rs"]
mod kernels;

use kernels::Library;
use oxccl_plans::collective::{Collective, Kind};
use oxccl_plans::simulate::{
    BANDS, Band, Class, Fold, MOST_RANKS, NcclAlgorithm, NcclCall, NcclWay, Protocol, Whose, nccl,
};
use oxccl_plans::topology::{NcclCosts, Network, Topology, preset};
use serde::Deserialize;
use std::collections::BTreeMap;

const FIGURES: &str = include_str!("published/figures.toml");

#[derive(Deserialize)]
struct Figures {
    run: Vec<Run>,
}

/// Measurements of one call at several sizes.
#[derive(Clone, Debug, Deserialize)]
struct Run {
    role: Role,
    like: Like,
    machine: String,
    nodes: usize,
    ranks: usize,
    op: String,
    /// The algorithm that was asked of NCCL.
    way: Option<String>,
    library: String,
    source: String,
    /// Bytes and microseconds.
    rows: Vec<(u64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
enum Role {
    #[serde(rename = "fitted")]
    Fitted,
    #[serde(rename = "held out")]
    HeldOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Like {
    Nccl,
    /// Kernels over peers' memory.
    #[serde(untagged)]
    Kernels(Library),
}

/// One row beside what is predicted.
struct Point {
    bytes: u64,
    measured_us: f64,
    predicted_us: f64,
    how: String,
}

impl Point {
    /// Above 1: slower than predicted.
    fn ratio(&self) -> f64 {
        self.measured_us / self.predicted_us
    }
}

fn runs() -> Vec<Run> {
    let figures: Figures = toml::from_str(FIGURES).unwrap();
    figures.run
}

/// What was fitted on, of one machine.
fn fitted(machine: &str) -> Vec<Run> {
    let mut runs = runs();
    runs.retain(|run| run.role == Role::Fitted && run.machine == machine);
    runs
}

fn network(run: &Run, topology: &Topology) -> Network {
    let mut topology = topology.clone();
    topology.nodes = run.nodes;
    Network::new(&topology, run.ranks, Some(run.ranks.div_ceil(run.nodes))).unwrap()
}

fn collective(run: &Run) -> Collective {
    let kind: Kind = run.op.parse().unwrap();
    match kind {
        Kind::SendRecv => Collective::send_recv(run.ranks, 0, 1),
        kind if kind.is_rooted() => Collective::rooted(kind, run.ranks, 0),
        kind => Collective::new(kind, run.ranks),
    }
}

/// Elements of a rank's part, or of all.
fn count(collective: &Collective, bytes: u64) -> usize {
    let whole = matches!(
        collective.kind,
        Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::SendRecv
    );
    let parts = if whole { 1 } else { collective.ranks };
    (bytes as usize / 4 / parts).max(1)
}

fn call(collective: Collective, count: usize) -> NcclCall {
    NcclCall { collective, count, element_bytes: 4, fold: Fold::Always, noise: None }
}

fn predict(run: &Run, network: &Network) -> Vec<Point> {
    let collective = collective(run);
    let predicted = |&(bytes, measured_us): &(u64, f64)| {
        let (predicted_us, how) = match run.like {
            Like::Nccl => {
                let call = call(collective, count(&collective, bytes));
                let wanted = |name: &str| run.way.as_deref().is_none_or(|way| way == name);
                let found = nccl(&call, network, |way| wanted(way.algorithm.name())).unwrap();
                let (way, prediction) = found.unwrap_or_else(|| panic!("{run:?}"));
                (prediction.time_ns / 1e3, way.to_string())
            }
            Like::Kernels(library) => {
                assert_eq!(collective, Collective::new(Kind::AllReduce, run.ranks), "{run:?}");
                kernels::predict(library, run.ranks, bytes, &preset(&run.machine).unwrap())
            }
        };
        Point { bytes, measured_us, predicted_us, how }
    };
    run.rows.iter().map(predicted).collect()
}

/// Of each class the band in which four fifths of its rows are, as [`Band`] says it.
fn bands(points: &[(Class, f64)]) -> Vec<Band> {
    let band = |band: Band| {
        let of_class = points.iter().filter(|(class, _)| *class == band.class);
        let mut off: Vec<f64> = of_class.map(|(_, ratio)| ratio.max(1.0 / ratio) - 1.0).collect();
        off.sort_by(f64::total_cmp);
        let within = off.get((off.len() * 4).div_ceil(5).saturating_sub(1));
        let percent = within.map_or(0, |off| (off * 100.0).ceil() as u32);
        Band { percent, rows: off.len(), ..band }
    };
    BANDS.into_iter().map(band).collect()
}

fn class(run: &Run, network: &Network, bytes: u64) -> Option<Class> {
    let whose = match run.like {
        Like::Nccl => Whose::Nccl,
        Like::Kernels(_) => Whose::Own,
    };
    Class::of(whose, network, bytes)
}

/// Rows of one role, by class. Of what has none nothing is said.
fn points(role: Role) -> Vec<(Class, f64)> {
    let mut all = Vec::new();
    for run in runs().iter().filter(|run| run.role == role) {
        let network = network(run, &preset(&run.machine).unwrap());
        for point in predict(run, &network) {
            let class = class(run, &network, point.bytes);
            all.extend(class.map(|class| (class, point.ratio())));
        }
    }
    all
}

/// What is said of each class is what the rows come to that nothing was fitted on.
#[test]
fn bands_are_those_of_measurements_that_nothing_was_fitted_on() {
    let found = bands(&points(Role::HeldOut));
    assert_eq!(found, BANDS, "as they are now");
}

/// Where each GPU has a link to each other, no kernels over peers' memory were measured, and of
/// calls over several nodes the long ones.
#[test]
fn meshes_have_classes_of_what_was_measured_on_them() {
    let network = |name: &str, per_node: usize| {
        let topology = preset(name).unwrap();
        Network::new(&topology, topology.nodes * per_node, Some(per_node)).unwrap()
    };
    let (short, middle, long) = (1 << 10, 1 << 20, 1 << 30);
    let one = network("mi300x", 8);
    assert!(one.is_meshed());
    assert_eq!(Class::of(Whose::Own, &one, short), None);
    assert_eq!(Class::of(Whose::Nccl, &one, short), Some(Class::Short));
    assert_eq!(Class::of(Whose::Own, &one, middle), Some(Class::Middle));
    let two = network("mi300x x 2", 8);
    assert_eq!([short, middle].map(|bytes| Class::of(Whose::Nccl, &two, bytes)), [None; 2]);
    assert_eq!(Class::of(Whose::Nccl, &two, long), Some(Class::LongAcross));
    for per_node in [1, 2, 8] {
        let switched = network("dgx-h100 x 2", per_node);
        assert!(!switched.is_meshed());
        assert_eq!(Class::of(Whose::Nccl, &switched, short), Some(Class::ShortAcross));
    }
}

/// Beyond the largest world nothing is said.
#[test]
fn bands_are_of_worlds_that_were_measured() {
    let largest = runs().iter().map(|run| run.ranks).max();
    assert_eq!(largest, Some(MOST_RANKS));
}

/// No series is on both sides. What was asked for one algorithm is another series.
#[test]
fn what_is_held_out_was_not_fitted_on() {
    let runs = runs();
    let of = |role: Role| runs.iter().filter(move |run| run.role == role);
    for run in of(Role::HeldOut) {
        let same = |other: &&Run| {
            let of = |run: &Run| {
                let Run { machine, nodes, ranks, op, way, library, source, .. } = run.clone();
                (machine, nodes, ranks, op, way, library, source)
            };
            of(other) == of(run)
        };
        assert!(of(Role::Fitted).find(same).is_none(), "{run:?}");
    }
}

/// A launch is all that is fitted of kernels over peers' memory: one figure a generation of GPUs.
/// A step of 100 ns more or less is no better.
#[test]
fn launches_are_those_that_fit() {
    for machine in ["dgx-a100", "dgx-h100", "dgx-b200"] {
        let topology = preset(machine).unwrap();
        let mut runs = fitted(machine);
        runs.retain(|run| run.like != Like::Nccl);
        let points = |run: &Run| predict(run, &network(run, &topology));
        let points: Vec<Point> = runs.iter().flat_map(points).collect();
        assert_eq!(points.len(), 10, "{machine}");
        let error = |later_us: f64| -> f64 {
            let off = |point: &Point| (point.measured_us / (point.predicted_us + later_us)).ln();
            points.iter().map(|point| off(point).abs()).sum()
        };
        let steps = (-8..=8).map(|step| f64::from(step) * 0.1);
        let best = steps.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap();
        assert_eq!(best, 0.0, "{machine}: us that launches take besides");
    }
}

/// All rows beside what is predicted of them, and what they come to: the tables of
/// docs/simulator.md. `MACHINE` asks for one machine's, `NODES` for worlds of so many nodes or
/// more.
#[test]
#[ignore = "prints tables for people"]
fn tables() {
    let mut off: BTreeMap<(Role, Class, String), Vec<f64>> = BTreeMap::new();
    let only = std::env::var("MACHINE").ok();
    let least = std::env::var("NODES").map_or(1, |nodes| nodes.parse().unwrap());
    let wanted =
        |run: &Run| run.nodes >= least && only.as_ref().is_none_or(|only| *only == run.machine);
    for run in runs().into_iter().filter(wanted) {
        println!(
            "{:?} {} x {}, {} ranks, {} {} {}",
            run.role,
            run.machine,
            run.nodes,
            run.ranks,
            run.op,
            run.way.as_deref().unwrap_or(""),
            run.source
        );
        let network = network(&run, &preset(&run.machine).unwrap());
        let begin = std::time::Instant::now();
        let points = predict(&run, &network);
        println!("  in {:.2} s", begin.elapsed().as_secs_f64());
        for point in points {
            let (bytes, ratio) = (point.bytes, point.ratio());
            println!(
                "  {bytes:>11} {:>10.1} {:>10.1} {ratio:>6.2} {}",
                point.measured_us, point.predicted_us, point.how
            );
            let Some(class) = class(&run, &network, bytes) else { continue };
            for machine in ["all", &run.machine] {
                off.entry((run.role, class, machine.to_owned())).or_default().push(ratio);
            }
        }
    }
    for ((role, class, machine), mut ratios) in off {
        ratios.sort_by(f64::total_cmp);
        let all: Vec<_> = ratios.iter().map(|ratio| (class, *ratio)).collect();
        let band = bands(&all).into_iter().find(|band| band.class == class).unwrap();
        let within = |part: f64| {
            let within = |ratio: &&f64| ratio.max(1.0 / **ratio) <= 1.0 + part;
            ratios.iter().filter(within).count() * 100 / ratios.len()
        };
        println!(
            "| {role:?} | {class:?} | {machine} | {} | {:.2} | {} % | {} % | {} % |",
            band.rows,
            ratios[ratios.len() / 2],
            band.percent,
            within(0.1),
            within(0.25),
        );
    }
}

/// Fits what NCCL's kernels take on a machine's devices: one cost after the other, as long as the
/// errors become less. With `ACROSS` those of several nodes alone, and of these none of rings of
/// Simple, of which one node tells.
#[test]
#[ignore = "takes minutes, and prints what belongs into topology/preset.rs"]
fn fit() {
    let machine = std::env::var("MACHINE").unwrap();
    let mut fit = Fit::new(&machine);
    let mut costs = fit.topology.devices["gpu"].nccl.unwrap();
    (0..GROUPS).for_each(|group| fit.again(costs, group, false));
    let mut least = fit.error();
    let mut step = 0.4;
    while step > 0.06 {
        let before = least;
        let across = std::env::var("ACROSS").is_ok();
        let wanted = |at: &usize| {
            !across || ([2, 4, 5].contains(&(at % COSTS)) && ![2, 4].contains(&(at / COSTS)))
        };
        for at in (0..COSTS * GROUPS).filter(wanted) {
            for factor in [1.0 + step, 1.0 / (1.0 + step)] {
                loop {
                    let (mut other, kept) = (costs, fit.times.clone());
                    let across = if at / COSTS == 0 { MOST_LL_GBPS } else { 68.0 };
                    let most = [25e3, 10e3, 25e3, 64e6, across, 10e3][at % COSTS];
                    let Some(cost) = cost(&mut other, at) else { break };
                    *cost = (*cost * factor).min(most);
                    fit.again(other, at / COSTS, [2, 4, 5].contains(&(at % COSTS)));
                    let error = fit.error();
                    if error >= least - 1e-5 {
                        fit.times = kept;
                        break;
                    }
                    (costs, least) = (other, error);
                }
            }
        }
        println!("{least:.4} {step:.3} {costs:?}");
        if before - least < 0.002 {
            step /= 2.0;
        }
    }
}

/// Ways of NCCL that have costs of their own.
const GROUPS: usize = 5;

fn group(way: NcclWay) -> usize {
    match (way.algorithm, way.protocol) {
        (NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree, _) => 3,
        (NcclAlgorithm::P2p, Protocol::Simple) => 4,
        (_, Protocol::Ll) => 0,
        (_, Protocol::Ll128) => 1,
        (_, Protocol::Simple) => 2,
    }
}

/// A channel of LL reads and writes no more over several nodes: by NCCL's tuning model all channels
/// carry 20 to 45 GB/s together, since their messages go through the host's memory.
const MOST_LL_GBPS: f64 = 15.0;

/// What each of them has.
const COSTS: usize = 6;

fn cost(costs: &mut NcclCosts, at: usize) -> Option<&mut f64> {
    let NcclCosts { ll, ll128, simple, nvls, p2p, .. } = costs;
    let of = [ll, ll128, simple, nvls, p2p].into_iter().nth(at / COSTS).unwrap();
    match at % COSTS {
        0 => Some(&mut of.launch_ns),
        1 => Some(&mut of.step_ns),
        2 => Some(&mut of.message_ns),
        3 => Some(&mut of.fill_bytes),
        4 => of.across_gbps.as_mut(),
        _ => of.across_step_ns.as_mut(),
    }
}

struct Fit {
    topology: Topology,
    runs: Vec<Run>,
    /// By run and row: what the fastest way of each group takes.
    times: Vec<Vec<[f64; GROUPS]>>,
}

impl Fit {
    fn new(machine: &str) -> Fit {
        let mut runs = fitted(machine);
        runs.retain(|run| run.like == Like::Nccl);
        let times = runs.iter().map(|run| vec![[f64::INFINITY; GROUPS]; run.rows.len()]).collect();
        Fit { topology: preset(machine).unwrap(), runs, times }
    }

    /// What one group takes with these costs, perhaps of several nodes alone.
    fn again(&mut self, costs: NcclCosts, of: usize, across: bool) {
        self.topology.devices.get_mut("gpu").unwrap().nccl = Some(costs);
        let topology = &self.topology;
        let runs = self.runs.iter().zip(&mut self.times);
        for (run, times) in runs.filter(|(run, _)| run.nodes > 1 || !across) {
            let (network, collective) = (network(run, topology), collective(run));
            for (row, times) in run.rows.iter().zip(times) {
                let count = count(&collective, row.0);
                let call = call(collective, count);
                let found = nccl(&call, &network, |way| group(way) == of).unwrap();
                times[of] = found.map_or(f64::INFINITY, |(_, found)| found.time_ns / 1e3);
            }
        }
    }

    /// The mean over runs of their rows' mean error. A row that is far off counts as 2.
    fn error(&self) -> f64 {
        let of_run = |(run, times): (&Run, &Vec<[f64; GROUPS]>)| {
            let error = |(row, times): (&(u64, f64), &[f64; GROUPS])| {
                let predicted = times.iter().copied().fold(f64::INFINITY, f64::min);
                (row.1 / predicted).ln().abs().min(0.7)
            };
            run.rows.iter().zip(times).map(error).sum::<f64>() / run.rows.len() as f64
        };
        self.runs.iter().zip(&self.times).map(of_run).sum::<f64>() / self.runs.len() as f64
    }
}
