//! Calls that are simulated with every step recorded.

use oxccl::algorithms::Entry;
use oxccl::schedule::{SLOTS, Schedule};
use oxccl::simulate::{Prediction, SimulationError, Subject, simulate};

use super::args::Study;
use super::sweep::layout;
use crate::failure::Failure;

/// The largest size of the only entry, for a trace viewer.
///
/// # Errors
/// A call with too many steps.
pub(super) fn trace(study: &Study) -> Result<String, Failure> {
    let (Some(entry), Some(&bytes)) = (study.entries.first(), study.sizes.last()) else {
        return Err(Failure::Usage("nothing to trace".to_owned()));
    };
    let schedule = entry
        .schedule(study.collective, study.placement(), study.order, SLOTS)
        .map_err(SimulationError::from)?;
    let prediction = recorded(study, entry, bytes, None)?;
    let Some(trace) = prediction.trace else {
        return Err(Failure::Usage("nothing was recorded".to_owned()));
    };
    let path = &trace.critical_path;
    eprintln!(
        "# critical path, predicted: {:.2} us launch, {:.2} us steps, {:.2} us under way, {} steps",
        path.launch_ns / 1e3,
        path.steps_ns / 1e3,
        path.latency_ns / 1e3,
        path.segments.len()
    );
    let text = trace.to_chrome(|rank, step| name(&schedule, rank, step));
    // Numbers and names only: this cannot fail.
    Ok(serde_json::to_string(&text).unwrap_or_default())
}

/// One call with every step recorded, on the entry's channels or on so many.
pub(super) fn recorded(
    study: &Study,
    entry: &Entry,
    bytes: usize,
    channels: Option<usize>,
) -> Result<Prediction, Failure> {
    let subject = Subject::entry(entry, study.collective, study.placement(), study.order, SLOTS)?;
    let mut options = study.options(entry);
    options.trace = true;
    options.channels = channels.unwrap_or(options.channels);
    let layout = layout(study, &subject, bytes);
    Ok(simulate(&subject, &layout, &study.network, &options)?)
}

/// A step in words.
pub(super) fn name(schedule: &Schedule, rank: usize, step: usize) -> String {
    let text = schedule.ranks.get(rank).and_then(|list| list.get(step)).map(ToString::to_string);
    let text = text.unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
