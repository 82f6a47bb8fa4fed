//! What is simulated: an algorithm out of the catalogue, or a custom schedule.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use oxccl::CustomSchedule;
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry};
use oxccl::plans::schedule::Schedule;
use oxccl::plans::simulate::{SimulationError, Subject};
use oxccl::plans::verify::verify;

use super::args::Study;

/// Up to so many ranks every schedule is proven before it is simulated.
const PROVEN: usize = 32;

/// One of those that are compared.
#[derive(Clone, Debug)]
pub(super) enum Candidate {
    /// An algorithm.
    Entry(&'static Entry),
    /// A custom schedule. It is proven.
    Custom(Arc<CustomSchedule>),
}

impl Candidate {
    /// Its name in tables.
    pub(super) fn name(&self) -> String {
        match self {
            Candidate::Entry(entry) => format!("{}/{}", entry.algorithm, entry.encoding),
            Candidate::Custom(custom) => {
                let file = Path::new(custom.name()).file_name().map(|name| name.to_string_lossy());
                file.unwrap_or_default().into_owned()
            }
        }
    }

    pub(super) fn algorithm(&self) -> Algorithm {
        match self {
            Candidate::Entry(entry) => entry.algorithm,
            Candidate::Custom(_) => Algorithm::Custom,
        }
    }

    pub(super) fn encoding(&self) -> Encoding {
        match self {
            Candidate::Entry(entry) => entry.encoding,
            Candidate::Custom(custom) => custom.encoding(),
        }
    }

    /// Whether it has the fabric's switches reduce, which no executor can.
    pub(super) fn is_in_fabric(&self) -> bool {
        match self {
            Candidate::Entry(entry) => entry.is_in_fabric(),
            Candidate::Custom(custom) => custom.schedule().uses_rails(),
        }
    }

    /// Whether it is for these ranks alone.
    pub(super) fn is_custom(&self) -> bool {
        matches!(self, Candidate::Custom(_))
    }

    /// The study's call, to be simulated.
    ///
    /// # Errors
    /// It does not exist for the study's ranks.
    pub(super) fn subject(&self, study: &Study) -> Result<Subject<'_>, SimulationError> {
        match self {
            Candidate::Entry(entry) => {
                let pipeline = study.limits().pipeline();
                Subject::entry(entry, study.collective, study.placement(), study.order, pipeline)
            }
            Candidate::Custom(custom) => Subject::schedule(custom.schedule()),
        }
    }

    /// Every rank's instructions for the study's call.
    ///
    /// # Errors
    /// As for [`Candidate::subject`].
    pub(super) fn schedule(&self, study: &Study) -> Result<Cow<'_, Schedule>, SimulationError> {
        match self {
            Candidate::Entry(entry) => {
                let (placement, pipeline) = (study.placement(), study.limits().pipeline());
                let schedule =
                    entry.schedule(study.collective, placement, study.order, pipeline)?;
                Ok(Cow::Owned(schedule))
            }
            Candidate::Custom(custom) => Ok(Cow::Borrowed(custom.schedule())),
        }
    }

    /// Proves what is simulated, where the proof takes no time to speak of.
    ///
    /// # Errors
    /// What is wrong with the schedule.
    pub(super) fn prove(&self, study: &Study) -> Result<(), SimulationError> {
        match self {
            Candidate::Entry(entry) if study.ranks() <= PROVEN => {
                let schedule = self.schedule(study)?.into_owned();
                verify(schedule, study.order, entry.in_place)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
