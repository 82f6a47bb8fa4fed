//! Calls that are simulated with every step recorded.

use oxccl::plans::schedule::Schedule;
use oxccl::plans::simulate::{Options, Prediction, simulate};

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
    let prediction = recorded(study, candidate, bytes)?;
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

/// One call with every step recorded, as it would be carried out.
fn recorded(study: &Study, candidate: &Candidate, bytes: usize) -> Result<Prediction, Failure> {
    traced(study, candidate, bytes, study.options(candidate, bytes))
}

/// One call with every step recorded, on so many channels, with tiles of so many bytes.
pub(super) fn played(
    study: &Study,
    candidate: &Candidate,
    bytes: usize,
    (channels, tile_bytes): (usize, usize),
) -> Result<Prediction, Failure> {
    let options = Options { channels, tile_bytes, ..study.options(candidate, bytes) };
    traced(study, candidate, bytes, options)
}

fn traced(
    study: &Study,
    candidate: &Candidate,
    bytes: usize,
    options: Options,
) -> Result<Prediction, Failure> {
    let subject = candidate.subject(study)?;
    let layout = layout(study, &subject, bytes)?;
    Ok(simulate(&subject, &layout, &study.network, &Options { trace: true, ..options })?)
}

/// A step in words.
pub(super) fn name(schedule: &Schedule, rank: usize, step: usize) -> String {
    let text = schedule.step(rank, step).map(ToString::to_string);
    let text = text.unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
