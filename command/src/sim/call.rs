//! One call, for those who compare a schedule with the catalogue: timed as `oxccl sim` does.

use std::sync::Arc;

use oxccl::plans::algorithms::Encoding;
use oxccl::plans::topology::Network;
use oxccl::{CustomSchedule, Kind};
use serde::Serialize;

use super::args::{SimOptions, Study};
use super::candidate::Candidate;
use super::sweep::{Point, Sweep, Unwatched, predicted};
use crate::failure::Failure;
use crate::options::Size;

/// A call of a collective on a topology.
pub(crate) struct Call {
    study: Study,
    bytes: usize,
}

/// What is predicted of it by some schedule.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Timed {
    /// What carries it out.
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) algorithm: &'static str,
    pub(crate) encoding: Encoding,
    pub(crate) channels: usize,
    pub(crate) tile_bytes: usize,
    pub(crate) time_us: f64,
    pub(crate) algbw_gbps: f64,
    pub(crate) busbw_gbps: f64,
}

impl Call {
    /// A call of so many bytes, in floats, with the settings of OXCCL_ variables.
    ///
    /// # Errors
    /// As for `oxccl sim`.
    pub(crate) fn new(
        kind: Kind,
        bytes: Size,
        topology: &str,
        ranks: Option<usize>,
        per_node: Option<usize>,
    ) -> Result<Call, Failure> {
        let options = SimOptions::of_one(kind, bytes, topology, ranks, per_node);
        let mut study = options.study_of_one()?;
        // What is found is to be faster than what could run.
        study.candidates.retain(|one| !one.is_in_fabric());
        Ok(Call { study, bytes: bytes.0 })
    }

    pub(crate) fn network(&self) -> &Network {
        &self.study.network
    }

    pub(crate) fn topology(&self) -> &str {
        &self.study.topology.name
    }

    /// Whether there are slots for LL128 messages.
    pub(crate) fn has_ll128(&self) -> bool {
        self.study.has_ll128(self.bytes)
    }

    /// Channels that a call has at most.
    pub(crate) fn most_channels(&self) -> usize {
        self.study.most_channels(self.bytes)
    }

    /// The fastest out of the catalogue.
    ///
    /// # Errors
    /// As for `oxccl sim`.
    pub(crate) fn best(&self) -> Result<Timed, Failure> {
        let (mut sweep, subjects) = Sweep::new(&self.study)?;
        sweep.run(&self.study, &subjects, 0, &Unwatched)?;
        let best = sweep.best(0).and_then(|at| Some((at, sweep.point(at, 0)?)));
        let Some((at, point)) = best else {
            unreachable!("a sweep of which nothing is left is an error")
        };
        Ok(Timed::new(&self.study.candidates[at], point))
    }

    /// By a custom schedule.
    ///
    /// # Errors
    /// It cannot be simulated.
    pub(crate) fn by(&self, custom: &CustomSchedule) -> Result<Timed, Failure> {
        let candidate = Candidate::Custom(Arc::new(custom.clone()));
        let subject = candidate.subject(&self.study)?;
        let (point, _) = predicted(&self.study, &candidate, &subject, self.bytes)?;
        Ok(Timed::new(&candidate, &point))
    }
}

impl Timed {
    fn new(candidate: &Candidate, point: &Point) -> Timed {
        let row = &point.row;
        Timed {
            name: candidate.name(),
            algorithm: candidate.algorithm().name(),
            encoding: candidate.encoding(),
            channels: row.channels,
            tile_bytes: point.tile_bytes,
            time_us: row.time_us,
            algbw_gbps: row.algbw_gbps,
            busbw_gbps: row.busbw_gbps,
        }
    }
}
