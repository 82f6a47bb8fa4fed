//! The critical path: from the call's end back to its start, always to what came last.

use super::servers::Time;
use super::trace::{NO_EVENT, Recorded};
use serde::Serialize;

/// What a call's time is made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CriticalPath {
    /// Launching, and whatever else precedes the first step of the path.
    pub launch_ns: f64,
    /// Moving and folding data, and instructions.
    pub steps_ns: f64,
    /// Signals and messages under way.
    pub latency_ns: f64,
    /// The steps, first to last.
    pub segments: Vec<Segment>,
}

/// A part of the path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Segment {
    /// The event, as an index into the trace's.
    pub event: usize,
    /// From when it alone was what the call waited for.
    pub start_ns: f64,
    /// Until when.
    pub end_ns: f64,
}

pub(super) fn critical_path(events: &[Recorded], end: Time) -> CriticalPath {
    let mut path = CriticalPath::default();
    let Some(mut at) = (0..events.len()).max_by_key(|at| events[*at].end) else { return path };
    let ns = |time: Time| time as f64 / 1e3;
    let mut until = end;
    loop {
        let event = &events[at];
        // What it did is on its way until the next one goes on.
        let own_end = event.end.min(until);
        path.latency_ns += ns(until - own_end);
        let (since, before) = match event.queued {
            Some((since, before)) if since < own_end => (since, before),
            _ => (event.start.min(own_end), event.cause),
        };
        // A wait for something that came later than it began is no work of its own.
        let came = events.get(before as usize).map_or(since, |cause| cause.end.min(own_end));
        let since = since.max(came);
        path.steps_ns += ns(own_end - since);
        path.segments.push(Segment { event: at, start_ns: ns(since), end_ns: ns(own_end) });
        until = since;
        if before == NO_EVENT || before as usize == at {
            break;
        }
        at = before as usize;
    }
    path.launch_ns = ns(until);
    path.segments.reverse();
    path
}
