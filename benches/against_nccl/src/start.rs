//! What all ranks start from.

use std::sync::{Mutex, MutexGuard};

use oxccl::cuda::Stream;
use oxccl_command::shared::Failure;

use crate::args::Options;
use crate::floor::Floor;
use crate::leaving::Leaving;
use crate::nccl::{NcclLibrary, Setup};
use crate::report::{Machine, Printer, Started};
use crate::site::Site;
use crate::turns::Meeting;
use crate::work::Work;

/// Made before there are threads.
pub(crate) struct Start<'a> {
    pub(crate) options: &'a Options,
    pub(crate) work: Work,
    pub(crate) site: Site<'a>,
    pub(crate) nccl: Option<Setup>,
    /// What the start of oxccl's communicators took.
    pub(crate) own_start: Started,
    pub(crate) captures: Meeting,
    pub(crate) leaving: Leaving,
    floor: Mutex<Option<Floor>>,
}

impl<'a> Start<'a> {
    /// With NCCL, if it is compared.
    pub(crate) fn new(
        options: &'a Options,
        work: Work,
        site: Site<'a>,
        nccl: Option<NcclLibrary>,
        own_start: Started,
    ) -> Result<Start<'a>, Failure> {
        let ranks = options.sweep.ranks();
        let nccl = nccl.map(|library| Setup::new(library, options, ranks)).transpose()?;
        let captures = Meeting::new(site.context, ranks)?;
        let (leaving, floor) = (Leaving::default(), Mutex::default());
        Ok(Start { options, work, site, nccl, own_start, captures, leaving, floor })
    }

    /// Measured by one rank while the others do nothing.
    pub(crate) fn floor(
        &self,
        printer: &Printer,
        (rank, ranks): (usize, usize),
        stream: &Stream,
    ) -> Result<Floor, Failure> {
        self.site.watchdog.step("the floor is measured");
        self.site.meeting.wait();
        let mut measured = Ok(());
        if rank == 0 {
            let taken = Floor::measure(self.site.context, stream);
            measured = taken.map(|floor| *lock(&self.floor) = Some(floor));
        }
        self.site.meeting.wait();
        measured?;
        let floor = *lock(&self.floor);
        let floor =
            floor.ok_or_else(|| Failure::Usage("rank 0 has measured no floor".to_owned()))?;
        let version = self.nccl.as_ref().map(|nccl| nccl.version().to_string());
        printer.fact(&Machine::of(self.site.context, version, ranks, &floor)?);
        Ok(floor)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}
