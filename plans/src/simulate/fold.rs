//! Large worlds: as few ranks as stand for all.

use super::compile::{Compiler, LIMIT, VERY_MANY};
use super::program::{Access, Programs, Step};
use super::subject::Subject;
use super::turns::Turns;
use super::{Fold, Options, RANK_BY_RANK, SimulationError, Statement};
use crate::schedule::Turning;
use crate::topology::{LinkId, Network, Turn};

/// Only as many ranks as stand for all; why not, if they do not; nothing if that is not wanted.
pub(super) fn folded<'a>(
    subject: &'a Subject<'a>,
    network: &'a Network,
    options: &Options,
    new: &impl Fn(Turns, Option<Vec<LinkId>>) -> Compiler<'a>,
) -> Option<Result<(Statement, Compiler<'a>, Programs), String>> {
    let ranks = subject.collective.ranks;
    let wanted = match options.fold {
        Fold::Never => false,
        Fold::Always | Fold::Inside => true,
        Fold::Auto => ranks > RANK_BY_RANK,
    };
    if !wanted {
        return None;
    }
    let ways = match Alike::of(subject, network) {
        Ok(ways) => ways,
        Err(why) => return Some(Err(why)),
    };
    let new = |turns: Turns| new(turns, ways.turn.as_ref().map(|turn| turn.links.clone()));
    let found = || ways.found(options.fold == Fold::Inside, &new);
    let shape = ways.shape(options.fold);
    let (found_for, known) = subject.alike.get_or_init(|| (shape, found()));
    let found = if *found_for == shape { known.clone() } else { found() };
    Some(found.and_then(|(turns, why)| {
        let mut compiler = new(turns);
        let programs = compiler.lists(0..turns.simulated()).map_err(|error| error.to_string())?;
        Ok((Statement::Folded { ranks: turns.simulated(), why }, compiler, programs))
    }))
}

/// What decides who is alike besides the programs: ranks of a pod, and of a node, places that stand
/// for the others, and what is asked for.
pub(super) type Shape = (usize, usize, usize, Fold);

/// Turns under which ranks are alike, and how that is known; or why there are none.
pub(super) type Found = Result<(Turns, String), String>;

/// How the ranks of a call may be alike on a network.
pub(super) struct Alike<'a> {
    subject: &'a Subject<'a>,
    network: &'a Network,
    per_pod: usize,
    /// How places turn into each other.
    turn: Option<Turn>,
}

impl<'a> Alike<'a> {
    /// Why they cannot be, where that is known at once.
    pub(super) fn of(subject: &'a Subject<'a>, network: &'a Network) -> Result<Self, String> {
        let ranks = subject.collective.ranks;
        let per_pod = network.per_node() * network.nodes_per_pod();
        if subject.lists_per_rank > 1 {
            return Err("ranks with several lists are not compared".to_owned());
        }
        let one = Alike { subject, network, per_pod, turn: network.turn() };
        if !one.has_pods() && one.turn.is_none() {
            let what = one.pods();
            return Err(format!("{ranks} ranks are not several full {what} of {per_pod}"));
        }
        Ok(one)
    }

    /// The group of turns that is known without comparing programs, and taken.
    pub(super) fn known(&self) -> Result<Turns, SimulationError> {
        let none = self.none();
        let nodes = self.nodes();
        self.and_inside(nodes.map_or(none, |(firsts, turning)| none.of_nodes(firsts, turning)))
    }

    /// The same with turns inside of nodes, where it would be too coarse or too much without.
    fn and_inside(&self, turns: Turns) -> Result<Turns, SimulationError> {
        let Some(places) = self.places() else { return Ok(turns) };
        let is_coarse = turns.simulated() > VERY_MANY || self.subject.instructions(turns)? > LIMIT;
        Ok(if is_coarse { turns.of_places(places) } else { turns })
    }

    /// The largest group of turns under which ranks are found to be alike.
    fn found(&self, inside: bool, new: &impl Fn(Turns) -> Compiler<'a>) -> Found {
        let mut why_not = None;
        for turns in self.candidates(inside) {
            let compared = self.compared(turns);
            match compare(compared, turns, new(turns)) {
                Ok(()) if inside => return Ok((turns, self.why(turns, compared))),
                Ok(()) => {
                    let turns = self.and_inside(turns).map_err(|error| error.to_string())?;
                    return Ok((turns, self.why(turns, compared)));
                }
                Err(why) => why_not = why_not.or(Some(why)),
            }
        }
        let turns = self.and_inside(self.none()).map_err(|error| error.to_string())?;
        if turns.is_none() {
            return Err(why_not.unwrap_or_else(|| "places of a node are not alike".to_owned()));
        }
        Ok((turns, self.why(turns, 0)))
    }

    /// Groups of turns under which ranks may be alike, the largest first.
    fn candidates(&self, inside: bool) -> Vec<Turns> {
        let none = self.none();
        let by = |turning| none.of_nodes(self.per_pod, turning);
        let of_two = none.ranks.is_power_of_two() && self.per_pod.is_power_of_two();
        let of_nodes = match self.nodes() {
            Some((firsts, turning)) => vec![none.of_nodes(firsts, turning)],
            None if !self.has_pods() => vec![none],
            None if of_two => vec![by(Turning::Add), by(Turning::Xor), none],
            None => vec![by(Turning::Add), none],
        };
        let turn = self.turn.as_ref().filter(|_| inside);
        let both = of_nodes.into_iter().flat_map(|turns| {
            turn.map(|turn| turns.of_places(turn.places)).into_iter().chain([turns])
        });
        both.filter(|turns| !turns.is_none()).collect()
    }

    /// Of how many first ranks the programs must be compared: of none where it is known how all are
    /// made, and of those that stand for other nodes where it is of nodes alone.
    fn compared(&self, turns: Turns) -> usize {
        if turns.turns_nodes() && self.nodes().is_none() {
            turns.ranks
        } else if turns.turns_places() && self.places().is_none() {
            turns.firsts
        } else {
            0
        }
    }

    fn why(&self, turns: Turns, compared: usize) -> String {
        let Alike { subject, network, per_pod, .. } = self;
        if compared == subject.collective.ranks {
            return format!("the programs of all {compared} ranks were compared");
        }
        let mut why = Vec::new();
        if turns.turns_nodes() {
            let period = subject.period.or(subject.cube).unwrap_or(turns.firsts);
            let how = match turns.turning {
                Turning::Add => "turn by",
                Turning::Xor => "be a hypercube of",
            };
            why.push(format!(
                "the algorithm is made to {how} {period} rank(s), and equal {} turn by {per_pod}",
                self.pods()
            ));
        }
        if turns.turns_places() {
            let (all, by) = (network.per_node(), turns.places);
            why.push(match compared {
                0 => format!("the {all} ranks of a node are made to turn by {by} inside of it"),
                _ => format!("the programs of {compared} ranks were compared"),
            });
        }
        why.join(", and ")
    }

    fn none(&self) -> Turns {
        Turns::none(self.subject.collective.ranks, self.network.per_node())
    }

    /// How pods turn by how the algorithm is made, where that tells.
    fn nodes(&self) -> Option<(usize, Turning)> {
        self.subject.firsts(self.per_pod).filter(|_| self.has_pods())
    }

    /// The same of places.
    fn places(&self) -> Option<usize> {
        let is_made_so = self.subject.inside == Some(self.network.per_node());
        self.turn.as_ref().filter(|_| is_made_so).map(|turn| turn.places)
    }

    /// Whether there are several, all of them full.
    fn has_pods(&self) -> bool {
        let (ranks, per_pod) = (self.subject.collective.ranks, self.per_pod);
        ranks.is_multiple_of(per_pod) && ranks > per_pod
    }

    fn pods(&self) -> &'static str {
        if self.network.nodes_per_pod() == 1 { "nodes" } else { "pods" }
    }

    fn shape(&self, fold: Fold) -> Shape {
        let places = self.turn.as_ref().map_or(0, |turn| turn.places);
        (self.per_pod, self.network.per_node(), places, fold)
    }
}

/// Whether each of so many ranks has the program of the one that stands for it, relative to its own
/// rank.
fn compare(ranks: usize, turns: Turns, mut compiler: Compiler<'_>) -> Result<(), String> {
    if ranks == 0 {
        return Ok(());
    }
    let mut program = |rank: usize| match compiler.list(rank, false) {
        Ok(program) => Ok(in_any_order(program, turns.turns_places())),
        Err(error) => Err(error.to_string()),
    };
    let all = program(0)?.0.len() as u64 * ranks as u64;
    if all > LIMIT {
        return Err(format!(
            "about {all} instructions would have to be compared, more than {LIMIT}"
        ));
    }
    let mut firsts = vec![None; turns.simulated()];
    // Most that are unlike are so at an end.
    for rank in [ranks - 1].into_iter().chain(0..ranks - 1) {
        let first = turns.home(rank);
        if first == rank {
            continue;
        }
        let expected = match &mut firsts[turns.number(rank)] {
            Some(known) => known,
            unknown => unknown.insert(program(first)?),
        };
        if program(rank)? != *expected {
            return Err(format!("rank {rank} does not do what rank {first} does, turned"));
        }
    }
    match compiler.rails.all.iter().all(|rail| turns.turns(rail.rail)) {
        true => Ok(()),
        false => Err("switches between nodes reduce what is not of one rail".to_owned()),
    }
}

/// It takes as long whichever source is named first, or whichever of those that a switch reaches.
/// Places of a node also wait for each other, and signal, in different orders: that is worth an
/// instruction.
fn in_any_order(
    (mut steps, mut accesses): (Vec<Step>, Vec<Access>),
    inside: bool,
) -> (Vec<Step>, Vec<Access>) {
    let key = |one: &Access| (one.kind, one.way, one.counter, one.message);
    for step in &steps {
        if let Step::Move { first, sources, destinations, .. } = *step {
            let of_step = &mut accesses[first as usize..][..usize::from(sources + destinations)];
            let (sources, destinations) = of_step.split_at_mut(usize::from(sources));
            sources.sort_unstable_by_key(key);
            if destinations.iter().all(|one| one.switched) {
                destinations.sort_unstable_by_key(key);
            }
        }
    }
    let kind = std::mem::discriminant::<Step>;
    for run in steps.chunk_by_mut(|a, b| inside && kind(a) == kind(b)) {
        run.sort_by_key(|step| match *step {
            Step::Wait { counter, value } | Step::Signal { counter, value } => (counter, value),
            Step::Move { .. } => (0, 0),
        });
    }
    (steps, accesses)
}

/// How many first ranks stand for all whose instructions are made to turn by `period` ranks.
pub(super) fn simulated(ranks: usize, per_pod: usize, period: usize) -> Option<usize> {
    let simulated = per_pod * period / greatest_common_divisor(per_pod, period);
    (ranks.is_multiple_of(simulated) && simulated < ranks).then_some(simulated)
}

pub(super) fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
