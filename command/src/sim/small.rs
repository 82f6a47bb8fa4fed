//! Calls that are simulated with every step recorded.

use oxccl::plans::schedule::Schedule;
use oxccl::plans::simulate::{Prediction, simulate};

use super::args::Study;
use super::candidate::Candidate;
use super::sweep::layout;
use crate::failure::Failure;

/// The largest size of the first candidate, for a trace viewer.
///
/// # Errors
/// A call with too many steps.
pub(super) fn trace(study: &Study) -> Result<String, Failure> {
    let (Some(candidate), Some(&bytes)) = (study.candidates.first(), study.sizes.last()) else {
        return Err(Failure::Usage("nothing to trace".to_owned()));
    };
    let schedule = candidate.schedule(study)?;
    let prediction = recorded(study, candidate, bytes, None)?;
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

/// One call with every step recorded, on the study's channels or on so many.
pub(super) fn recorded(
    study: &Study,
    candidate: &Candidate,
    bytes: usize,
    channels: Option<usize>,
) -> Result<Prediction, Failure> {
    let subject = candidate.subject(study)?;
    let mut options = study.options(candidate, bytes);
    options.trace = true;
    options.channels = channels.unwrap_or(options.channels);
    let layout = layout(study, &subject, bytes)?;
    Ok(simulate(&subject, &layout, &study.network, &options)?)
}

/// A step in words.
pub(super) fn name(schedule: &Schedule, rank: usize, step: usize) -> String {
    let text = schedule.ranks.get(rank).and_then(|list| list.get(step)).map(ToString::to_string);
    let text = text.unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
