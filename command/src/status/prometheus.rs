//! Ranks as metrics, in Prometheus' text format.

use oxccl::status::{ProcessState, Snapshot};
use std::fmt::Write;

/// A metric: its name, its type, what it means, and a rank's value.
type Metric = (&'static str, &'static str, &'static str, fn(&Snapshot) -> Option<f64>);

const METRICS: [Metric; 6] = [
    ("oxccl_calls_total", "counter", "Calls made, groups as one.", |one| {
        Some(one.seen.entered as f64)
    }),
    ("oxccl_in_call", "gauge", "1 while the last call has not ended.", |one| {
        Some(f64::from(u8::from(one.seen.is_inside)))
    }),
    (
        "oxccl_waiting_seconds",
        "gauge",
        "For how long the last call has waited for others.",
        |one| Some(one.seen.waiting_s.unwrap_or(0.0)),
    ),
    ("oxccl_stopped", "gauge", "1 while the process is stopped.", |one| {
        Some(f64::from(u8::from(one.seen.state == Some(ProcessState::Stopped))))
    }),
    (
        "oxccl_timed_calls_total",
        "counter",
        "Calls that none leaves before all have come, where times are kept.",
        |one| Some(one.seen.times?.calls as f64),
    ),
    (
        "oxccl_timed_calls_seconds_total",
        "counter",
        "How long these took: a straggler is who takes the least.",
        |one| Some(one.seen.times?.total_s),
    ),
];

/// The metrics of ranks.
pub(super) fn metrics(all: &[Snapshot]) -> String {
    let mut text = String::new();
    for (name, kind, help, value) in METRICS {
        let values: Vec<_> = all.iter().filter_map(|one| Some((one, value(one)?))).collect();
        if values.is_empty() {
            continue;
        }
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (one, value) in values {
            let (job, communicator, rank) = (&one.job, &one.communicator, one.seen.rank);
            let _ = writeln!(
                text,
                "{name}{{job=\"{job}\",communicator=\"{communicator}\",rank=\"{rank}\"}} {value}"
            );
        }
    }
    text
}
