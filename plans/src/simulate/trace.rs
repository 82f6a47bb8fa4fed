//! Every step of a simulated call, and what each link did meanwhile.

use super::path::{CriticalPath, critical_path};
use super::program::Compiled;
use super::servers::{Service, Time};
use crate::topology::{LinkId, Network};
use serde_json::{Value, json};

/// No event came before.
pub(super) const NO_EVENT: u32 = u32::MAX;
/// Events that are recorded at most.
const LIMIT: usize = 1 << 21;

/// One step of one rank on one bundle of channels in one round.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The rank.
    pub rank: usize,
    /// The first channel of the bundle. Where ranks have several lists, each has a channel of every
    /// share.
    pub channel: usize,
    /// The round.
    pub round: u64,
    /// The step, as in the program.
    pub step: usize,
    /// When it began, from the call on.
    pub start_ns: f64,
    /// When the rank went on.
    pub end_ns: f64,
    /// Bytes that a reduce-copy made.
    pub bytes: u64,
    /// What it waited for last: the event whose end let it begin.
    pub cause: Option<usize>,
}

/// A link while it carries something.
#[derive(Clone, Debug, PartialEq)]
pub struct Occupation {
    /// The link, as an index into [`Trace::links`].
    pub link: usize,
    /// For which event.
    pub event: usize,
    /// From when.
    pub start_ns: f64,
    /// Until when.
    pub end_ns: f64,
}

/// A call, step by step.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// All steps, in the order in which ranks went through them.
    pub events: Vec<Event>,
    /// What links carried, in the order in which they began.
    pub occupations: Vec<Occupation>,
    /// The links' names.
    pub links: Vec<String>,
    /// What the call's time is made of.
    pub critical_path: CriticalPath,
}

impl Trace {
    /// The events for a trace viewer (the Trace Event Format of Chrome and Perfetto): a process a
    /// rank, a thread a bundle of channels, and the links as one more process. `text` gives a
    /// step's name.
    pub fn to_chrome(&self, text: impl Fn(usize, usize) -> String) -> Value {
        let links_pid = self.events.iter().map(|event| event.rank + 1).max().unwrap_or(0);
        let critical: std::collections::HashSet<usize> =
            self.critical_path.segments.iter().map(|segment| segment.event).collect();
        let name = |pid: usize, name: String| json!({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}});
        let mut all: Vec<Value> =
            (0..links_pid).map(|rank| name(rank, format!("rank {rank}"))).collect();
        all.push(name(links_pid, "links".into()));
        for (at, link) in self.links.iter().enumerate() {
            let args = json!({"name": link});
            all.push(json!({"name": "thread_name", "ph": "M", "pid": links_pid, "tid": at, "args": args}));
        }
        for (at, event) in self.events.iter().enumerate() {
            let args = json!({
                "step": event.step,
                "round": event.round,
                "bytes": event.bytes,
                "critical": critical.contains(&at),
                "predicted": true,
            });
            all.push(json!({
                "name": text(event.rank, event.step),
                "ph": "X",
                "pid": event.rank,
                "tid": event.channel,
                "ts": event.start_ns / 1e3,
                "dur": (event.end_ns - event.start_ns) / 1e3,
                "args": args,
            }));
        }
        for occupation in &self.occupations {
            let event = &self.events[occupation.event];
            let args = json!({"rank": event.rank, "step": event.step, "round": event.round});
            all.push(json!({
                "name": format!("rank {} step {}", event.rank, event.step),
                "ph": "X",
                "pid": links_pid,
                "tid": occupation.link,
                "ts": occupation.start_ns / 1e3,
                "dur": (occupation.end_ns - occupation.start_ns) / 1e3,
                "args": args,
            }));
        }
        json!({"traceEvents": all, "displayTimeUnit": "ns", "otherData": {"predicted": true}})
    }
}

/// What the event loop writes down.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    pub(super) events: Vec<Recorded>,
    served: Vec<(LinkId, Service, u32)>,
    /// The link that ends the move at hand: until when, since when, and what it did before.
    bound: Option<(Time, Time, u32)>,
    /// The event that goes on, where links are asked behind its end.
    continued: Option<u32>,
}

/// An event in picoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    pub(super) place: (u32, u32, u32, u32),
    pub(super) start: Time,
    pub(super) end: Time,
    pub(super) cause: u32,
    /// When a link began to carry it that was busy before, and with what.
    pub(super) queued: Option<(Time, u32)>,
    bytes: u64,
}

impl Recorder {
    /// The limit, once it is passed.
    pub(super) fn overflow(&self) -> Option<usize> {
        (self.events.len() > LIMIT).then_some(LIMIT)
    }

    /// The event that links serve now.
    pub(super) fn owner(&self) -> u32 {
        self.continued.unwrap_or(self.events.len() as u32)
    }

    pub(super) fn continues(&mut self, event: Option<u32>) {
        (self.continued, self.bound) = (event, None);
    }

    pub(super) fn serve(&mut self, link: LinkId, service: Service, before: u32, ready: Time) {
        self.served.push((link, service, self.owner()));
        let last = self.bound.map_or(0, |(end, _, _)| end);
        if service.end >= last {
            let before = if service.start > ready { before } else { NO_EVENT };
            self.bound = Some((service.end, service.start, before));
        }
    }

    pub(super) fn record(
        &mut self,
        place: (u32, u32, u32, u32),
        start: Time,
        end: Time,
        cause: u32,
        bytes: u64,
    ) -> u32 {
        let bound = self.bound.take();
        let queued = bound.filter(|(until, _, before)| *before != NO_EVENT && *until == end);
        let queued = queued.map(|(_, since, before)| (since, before));
        self.events.push(Recorded { place, start, end, cause, queued, bytes });
        self.events.len() as u32 - 1
    }

    pub(super) fn finish(self, compiled: &Compiled, network: &Network, end: Time) -> Trace {
        let critical_path = critical_path(&self.events, end);
        let ns = |time: Time| time as f64 / 1e3;
        let mut ids: Vec<LinkId> = self.served.iter().map(|(link, _, _)| *link).collect();
        ids.sort_unstable();
        ids.dedup();
        let index = |link: LinkId| ids.binary_search(&link).unwrap_or_default();
        let mut occupations: Vec<Occupation> = self
            .served
            .iter()
            .map(|(link, service, event)| Occupation {
                link: index(*link),
                event: *event as usize,
                start_ns: ns(service.start),
                end_ns: ns(service.end),
            })
            .collect();
        occupations.sort_by(|a, b| a.start_ns.total_cmp(&b.start_ns));
        let name = |id: &LinkId| network.link_name(*id);
        let firsts: Vec<usize> =
            (0..compiled.programs.len()).map(|list| compiled.first_step(list)).collect();
        let event = |recorded: &Recorded| {
            let (list, bundle, round, step) = recorded.place;
            let (list, of_each) = (list as usize, compiled.lists_per_rank);
            Event {
                rank: compiled.rank(list),
                channel: compiled.bundles[bundle as usize].channel * of_each + list % of_each,
                round: u64::from(round),
                step: firsts[list] + step as usize,
                start_ns: ns(recorded.start),
                end_ns: ns(recorded.end),
                bytes: recorded.bytes,
                cause: (recorded.cause != NO_EVENT).then_some(recorded.cause as usize),
            }
        };
        Trace {
            events: self.events.iter().map(event).collect(),
            occupations,
            links: ids.iter().map(name).collect(),
            critical_path,
        }
    }
}
