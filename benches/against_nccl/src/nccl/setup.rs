//! Setting NCCL up.

use std::time::Instant;

use oxccl::{Collectives, Communicator};
use oxccl_command::shared::Failure;

use super::communicator::NcclCommunicator;
use super::error::NcclError;
use super::library::{NcclLibrary, Version};
use super::raw::Id;
use super::{Nccl, Way, ways};
use crate::args::{NcclWay, Options};
use crate::buffers::Buffer;
use crate::report::{LeftOut, Printer, Started};
use crate::site::Site;
use crate::turns::slowest;

/// What ranks set NCCL up from: the ways, and by what the ranks of each find each other.
pub(crate) struct Setup {
    library: NcclLibrary,
    ways: Vec<(Way, Id)>,
}

impl Setup {
    /// The ways that the options ask for.
    ///
    /// # Errors
    /// NCCL's.
    pub(crate) fn new(
        library: NcclLibrary,
        options: &Options,
        ranks: usize,
    ) -> Result<Setup, NcclError> {
        let ways = ways(ranks, &options.nccl_ways, &options.nccl_ctas).into_iter();
        let ways = ways.map(|way| Ok((way, library.unique_id()?))).collect::<Result<_, _>>()?;
        Ok(Setup { library, ways })
    }

    /// NCCL.
    pub(crate) fn library(&self) -> &NcclLibrary {
        &self.library
    }

    /// Its release.
    pub(crate) fn version(&self) -> Version {
        self.library.version()
    }

    /// One rank's part in setting it up over these buffers, way by way. One that a rank cannot be
    /// set up with is left out on all; as long as others wait for that rank, where nobody can tell
    /// them to stop, the process is about to end.
    ///
    /// # Errors
    /// [`NcclError::NoWay`].
    pub(crate) fn connect(
        &self,
        site: &Site,
        control: &Communicator,
        buffers: &[Buffer; 2],
        printer: &Printer,
    ) -> Result<Nccl, Failure> {
        let (rank, ranks) = (control.rank(), control.world_size());
        let (mut nccl, mut all_ms, mut all_bytes) = (Nccl::default(), 0.0, 0);
        for (way, id) in &self.ways {
            let setting = way.setting().name;
            site.watchdog.step(format!("NCCL starts ({setting})"));
            let before = site.context.free_bytes()?;
            site.meeting.wait();
            let start = Instant::now();
            let made = way.connect(&self.library, *id, (rank, ranks), buffers);
            let time_ms = start.elapsed().as_secs_f64() * 1e3;
            if let Err(error) = &made {
                site.watchdog.failed(&format!("rank {rank}: NCCL ({setting}): {error}"));
            }
            let [failed, time_ms] =
                slowest(control, [f64::from(u8::from(made.is_err())), time_ms])?;
            let device_bytes = before.saturating_sub(site.context.free_bytes()?) / ranks;
            site.watchdog.recovered();
            control.barrier()?;
            match made {
                Ok(comm) if failed == 0.0 => {
                    nccl.ways.push((*way, comm));
                    (all_ms, all_bytes) = (all_ms + time_ms, all_bytes + device_bytes);
                }
                made => {
                    let why =
                        made.err().map_or("another rank failed".to_owned(), |e| e.to_string());
                    let (op, contestant) = ("left_out", "nccl");
                    printer.fact(&LeftOut { op, contestant, ranks, setting, why });
                }
            }
        }
        let count = nccl.ways.len();
        if count == 0 {
            return Err(NcclError::NoWay.into());
        }
        let (time_ms, device_bytes) = (all_ms / count as f64, all_bytes / count);
        printer.fact(&Started { op: "start", contestant: "nccl", ranks, time_ms, device_bytes });
        Ok(nccl)
    }
}

impl Way {
    /// Connects all ranks; with windows on these buffers, if it uses some. All ranks do so
    /// together.
    fn connect(
        &self,
        library: &NcclLibrary,
        id: Id,
        place: (usize, usize),
        buffers: &[Buffer; 2],
    ) -> Result<NcclCommunicator, NcclError> {
        let comm = NcclCommunicator::connect(library, id, place, self.ctas)?;
        if self.way == NcclWay::Symmetric {
            buffers.iter().try_for_each(|buffer| comm.register(buffer))?;
        }
        Ok(comm)
    }
}
