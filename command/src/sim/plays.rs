//! What the page plays: every candidate at every size, on few ranks and one channel, step by step.
//!
//! A page has hundreds of such calls, so they are written small. Steps are numbers of texts, each
//! of which is there once. Every list takes its steps in order, round by round, so that of an event
//! only its times are told: how long after the event before it began, and how long it took. These
//! lines, too, are there once, since many lists and links have the same. Times are in parts of the
//! call's ([`PARTS`]), and all numbers are in digits of 5 bits ([`Digits`]). Of a call of many
//! rounds as many are played as show what goes on: with the same tiles, of a call that is so much
//! shorter.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use oxccl::plans::algorithms::Encoding;
use oxccl::plans::schedule::Schedule;
use oxccl::plans::simulate::Trace;
use oxccl::plans::topology::Network;
use serde::Serialize;

use super::args::Study;
use super::candidate::Candidate;
use super::small;
use super::sweep::layout;
use crate::bench::Case;
use crate::failure::Failure;

/// Ranks of the calls that are played, at most.
const RANKS: usize = 8;
/// Rounds.
const ROUNDS: usize = 3;
/// Sizes.
const SIZES: usize = 16;
/// Events of a call that is played, at most.
const EVENTS: usize = 12_000;
/// Times are whole parts of the call's time, of which there are so many.
pub(super) const PARTS: f64 = 4096.0;

/// All that is played.
#[derive(Default, Serialize)]
pub(super) struct Played {
    sizes: Vec<usize>,
    /// What steps are called, with `%` for the lane that carries data, and links.
    texts: Texts,
    /// When a list's steps are taken, or a link carries something: distances from the end of the
    /// one before, and lengths. Many lists and links have the same.
    lines: Texts,
    schedules: Vec<PlayedSchedule>,
    calls: Vec<Call>,
}

/// A candidate on few ranks.
#[derive(Serialize)]
struct PlayedSchedule {
    name: String,
    per_node: usize,
    devices: Vec<String>,
    /// Lists of a rank, which it carries out side by side.
    lists: usize,
    /// The lane in its steps.
    lane: &'static str,
    /// Of each list, rank by rank, as numbers of texts.
    steps: Vec<String>,
    /// The call of each size; none of a size with too many steps.
    calls: Vec<Option<usize>>,
}

/// A call that is played.
#[derive(Serialize)]
struct Call {
    bytes: usize,
    rounds: usize,
    time_ns: f64,
    /// The critical path's parts.
    path: [f64; 3],
    /// Of each list, the number of its line.
    events: String,
    /// Which events are critical, of all lists' one after the other: distances.
    critical: String,
    /// Of each link, the numbers of its text and of its line.
    links: String,
}

/// Plays all candidates.
///
/// # Errors
/// A topology or schedule that is wrong.
pub(super) fn played(study: &Study) -> Result<Played, Failure> {
    let sizes = few(&study.sizes);
    let mut played = Played { sizes: sizes.clone(), ..Played::default() };
    for candidate in &study.candidates {
        let Some(small) = smaller(study, candidate)? else { continue };
        // The page shows what the table shows; what does not fit here was left out there.
        let Ok(schedule) = candidate.schedule(&small) else { continue };
        let mut made = BTreeMap::new();
        let mut calls = Vec::new();
        for &bytes in &sizes {
            let key = shortened(&small, candidate, bytes)?;
            let made = made.entry(key);
            calls.push(*made.or_insert_with(|| played.call(&small, candidate, &schedule, key)));
        }
        if calls.iter().any(Option::is_some) {
            played.describe(&small, candidate, &schedule, calls);
        }
    }
    Ok(played)
}

impl Played {
    /// Adds the names of a candidate and of its steps.
    fn describe(
        &mut self,
        small: &Study,
        candidate: &Candidate,
        schedule: &Schedule,
        calls: Vec<Option<usize>>,
    ) {
        let lane = lane(candidate.encoding());
        let steps = (0..schedule.lists.len()).map(|list| {
            let rank = list / schedule.lists_per_rank;
            let names = steps_of(schedule, list).map(|step| small::name(schedule, rank, step));
            Digits::of(names.map(|name| self.texts.number(without_lane(&name, lane))))
        });
        let schedule = PlayedSchedule {
            name: candidate.name(),
            per_node: small.network.per_node(),
            devices: (0..small.ranks()).map(|rank| small.network.device_name(rank)).collect(),
            lists: schedule.lists_per_rank,
            lane,
            steps: steps.collect(),
            calls,
        };
        self.schedules.push(schedule);
    }

    /// Adds a call. None of one that cannot be simulated or has too many steps.
    fn call(
        &mut self,
        small: &Study,
        candidate: &Candidate,
        schedule: &Schedule,
        (bytes, tile): (usize, usize),
    ) -> Option<usize> {
        let channels = schedule.lists_per_rank;
        let prediction = small::played(small, candidate, bytes, (channels, tile)).ok()?;
        let trace = prediction.trace.filter(|trace| trace.events.len() <= EVENTS)?;
        let time = Scale { part_ns: prediction.time_ns.max(1e-9) / PARTS };
        let (events, critical) = events(&trace, schedule, time);
        let events = Digits::of(events.into_iter().map(|line| self.lines.number(line)));
        let links = trace.links.iter().enumerate().flat_map(|(at, name)| {
            [self.texts.number(name.clone()), self.lines.number(occupied(&trace, at, time))]
        });
        let path = &trace.critical_path;
        self.calls.push(Call {
            bytes,
            rounds: trace.events.iter().map(|event| event.round as usize + 1).max().unwrap_or(0),
            time_ns: tenths(prediction.time_ns),
            path: [path.launch_ns, path.steps_ns, path.latency_ns].map(tenths),
            events,
            critical,
            links: Digits::of(links),
        });
        Some(self.calls.len() - 1)
    }
}

/// Some of many sizes, the first and the last among them.
fn few(sizes: &[usize]) -> Vec<usize> {
    if sizes.len() <= SIZES {
        return sizes.to_vec();
    }
    (0..SIZES).map(|at| sizes[at * (sizes.len() - 1) / (SIZES - 1)]).collect()
}

/// The same study on few ranks: spread over the nodes, if there are several. None where there
/// cannot be one.
fn smaller(study: &Study, candidate: &Candidate) -> Result<Option<Study>, Failure> {
    if candidate.is_custom() {
        return Ok((study.ranks() <= RANKS).then(|| study.clone()));
    }
    let ranks = study.ranks().min(RANKS);
    let several = study.network.nodes() > 1;
    let per_node = if several { study.network.per_node().min(RANKS / 2) } else { ranks };
    let nodes = ranks.div_ceil(per_node);
    let mut topology = study.topology.clone();
    topology.nodes = topology.nodes.max(nodes);
    let network = Network::new(&topology, ranks, Some(per_node))?;
    let root = study.case.root.min(ranks - 1);
    if study.case.kind == oxccl::Kind::SendRecv && ranks < 2 {
        return Ok(None);
    }
    let mut collective = oxccl::Collective { ranks, root, ..study.collective };
    collective.receiver =
        if study.case.kind == oxccl::Kind::SendRecv { (root + 1) % ranks } else { 0 };
    let case = Case { root, ..study.case };
    Ok(Some(study.on(topology, network, collective, case)))
}

/// The bytes and the tile of a call with few rounds, instead of one of so many bytes.
fn shortened(
    small: &Study,
    candidate: &Candidate,
    bytes: usize,
) -> Result<(usize, usize), Failure> {
    let tile = small.options(candidate, bytes).tile_bytes;
    let schedule = candidate.schedule(small)?;
    if schedule.has_one_round() {
        return Ok((bytes, tile));
    }
    let layout = layout(small, &candidate.subject(small)?, bytes)?;
    let chunk = layout.largest() * small.case.data_type.len_bytes();
    let rounds = chunk.div_ceil(tile);
    Ok((if rounds > ROUNDS { bytes * ROUNDS / rounds } else { bytes }, tile))
}

/// The lane that carries an encoding's data.
fn lane(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Ll => "ll",
        Encoding::Ll128 => "ll128",
        Encoding::Slots | Encoding::Windows => "slots",
    }
}

/// A step's text that is the same on every lane.
fn without_lane(text: &str, lane: &str) -> String {
    text.replace(&format!(".{lane}#"), ".%#").replace(&format!(".{lane}."), ".%.")
}

/// The numbers of a list's steps among those of its rank.
fn steps_of(schedule: &Schedule, list: usize) -> Range<usize> {
    let first = list - list % schedule.lists_per_rank;
    let before: usize = schedule.lists[first..list].iter().map(Vec::len).sum();
    before..before + schedule.lists[list].len()
}

/// Each list's events, and which of all are critical.
fn events(trace: &Trace, schedule: &Schedule, time: Scale) -> (Vec<String>, String) {
    let on_path: HashSet<usize> =
        trace.critical_path.segments.iter().map(|segment| segment.event).collect();
    let mut lists = Vec::new();
    let (mut critical, mut number, mut last) = (Digits::default(), 0, 0);
    for list in 0..schedule.lists.len() {
        let (mut digits, mut before) = (Digits::default(), 0);
        let (rank, steps) = (list / schedule.lists_per_rank, steps_of(schedule, list));
        let own = trace.events.iter().enumerate();
        let own = own.filter(|(_, event)| event.rank == rank && steps.contains(&event.step));
        for (at, event) in own {
            let (start, end) = (time.parts(event.start_ns), time.parts(event.end_ns));
            digits.push(start.saturating_sub(before));
            digits.push(end.saturating_sub(start.max(before)));
            before = end.max(before);
            if on_path.contains(&at) {
                critical.push(number - last);
                last = number;
            }
            number += 1;
        }
        lists.push(digits.0);
    }
    (lists, critical.0)
}

/// When a link carries something; what follows at once is one.
fn occupied(trace: &Trace, link: usize, time: Scale) -> String {
    let own = trace.occupations.iter().filter(|one| one.link == link);
    let mut spans: Vec<(usize, usize)> =
        own.map(|one| (time.parts(one.start_ns), time.parts(one.end_ns))).collect();
    spans.sort_unstable();
    spans.dedup_by(|next, kept| {
        let joins = next.0 <= kept.1;
        if joins {
            kept.1 = kept.1.max(next.1);
        }
        joins
    });
    let before = std::iter::once(0).chain(spans.iter().map(|(_, end)| *end));
    let distances = spans.iter().zip(before);
    Digits::of(distances.flat_map(|((start, end), before)| [start - before, end - start]))
}

fn tenths(ns: f64) -> f64 {
    (ns * 10.0).round() / 10.0
}

/// Times as parts of a call's.
#[derive(Clone, Copy)]
struct Scale {
    part_ns: f64,
}

impl Scale {
    fn parts(self, ns: f64) -> usize {
        (ns / self.part_ns).round() as usize
    }
}

/// Texts, each once.
#[derive(Default, Serialize)]
#[serde(transparent)]
struct Texts {
    all: Vec<String>,
    #[serde(skip)]
    numbers: HashMap<String, usize>,
}

impl Texts {
    fn number(&mut self, text: String) -> usize {
        *self.numbers.entry(text).or_insert_with_key(|text| {
            self.all.push(text.clone());
            self.all.len() - 1
        })
    }
}

/// Numbers as text: digits of 5 bits, the lowest first, where 32 says that another one follows.
#[derive(Default)]
struct Digits(String);

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl Digits {
    fn of(numbers: impl IntoIterator<Item = usize>) -> String {
        let mut digits = Digits::default();
        numbers.into_iter().for_each(|number| digits.push(number));
        digits.0
    }

    fn push(&mut self, mut number: usize) {
        while number >= 32 {
            self.0.push(DIGITS[number % 32 + 32].into());
            number /= 32;
        }
        self.0.push(DIGITS[number].into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the page reads it.
    fn read(text: &str) -> Vec<usize> {
        let (mut found, mut number, mut shift) = (Vec::new(), 0, 0);
        for byte in text.bytes() {
            let digit = DIGITS.iter().position(|one| *one == byte).expect("it is a digit");
            number += (digit % 32) << shift;
            shift += 5;
            if digit < 32 {
                found.push(number);
                (number, shift) = (0, 0);
            }
        }
        found
    }

    #[test]
    fn digits_are_read_back() {
        let numbers = [0, 1, 31, 32, 33, 1023, 1024, 16384, 1 << 40];
        assert_eq!(read(&Digits::of(numbers)), numbers);
    }

    #[test]
    fn of_many_sizes_some_are_played() {
        let sizes: Vec<usize> = (0..100).collect();
        let some = few(&sizes);
        assert_eq!((some.len(), some[0], some[SIZES - 1]), (SIZES, 0, 99));
        assert_eq!(few(&sizes[..5]), sizes[..5]);
    }
}
