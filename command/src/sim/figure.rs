//! The figure of the table: time over size, a line an algorithm.

use oxccl::plans::algorithms::{Algorithm, Encoding};

use super::args::Study;
use super::report::{Shown, shown_ever};
use super::sweep::Sweep;
use crate::figure::{self, Line};

/// The figure of what the table shows.
pub(super) fn svg(study: &Study, sweep: &Sweep, shown: Shown) -> String {
    figure::svg(&title(study), &lines(study, sweep, shown), ", predicted")
}

fn title(study: &Study) -> String {
    let (kind, topology) = (study.case.kind, &study.topology.name);
    format!("Predicted time of {kind} on {topology}, {} ranks", study.ranks())
}

/// Those that the table shows at any size. Those of one algorithm have one colour.
fn lines(study: &Study, sweep: &Sweep, shown: Shown) -> Vec<Line> {
    let mut algorithms: Vec<Algorithm> = Vec::new();
    let line = |at: usize| {
        let candidate = &study.candidates[at];
        let colour = algorithms.iter().position(|one| *one == candidate.algorithm());
        let colour = colour.unwrap_or_else(|| {
            algorithms.push(candidate.algorithm());
            algorithms.len() - 1
        });
        let points = sweep.columns[at].iter().flatten();
        Line {
            name: candidate.name(),
            colour: figure::colour(colour),
            dashes: dashes(candidate.encoding()),
            points: points.map(|point| (point.row.bytes as f64, point.row.time_us)).collect(),
        }
    };
    shown_ever(study, sweep, shown).into_iter().map(line).collect()
}

/// The dashes of an encoding's lines, as on the page.
fn dashes(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Ll => "5 3",
        Encoding::Ll128 => "9 3 2 3",
        Encoding::Slots => "none",
        Encoding::Windows => "1.5 3",
    }
}
