//! Whether the system reads other ranks' private memory for this one (cross-memory attach): tried
//! at the start, since only the system knows who may read whom.

use crate::error::Error;
use oxccl_transports::{Bootstrap, read_process, share_memory_with_siblings};
use std::sync::Arc;
use std::time::Instant;

/// What a rank tells of itself: where it has bytes that nobody guesses.
struct Probe {
    process: u32,
    address: u64,
    content: Box<[u8; Probe::CONTENT]>,
}

impl Probe {
    const CONTENT: usize = 16;
    const LEN: usize = 4 + 8 + Probe::CONTENT;

    fn new() -> Result<Probe, Error> {
        let content = Box::new(oxccl_transports::random_bytes()?);
        Ok(Probe { process: std::process::id(), address: content.as_ptr() as u64, content })
    }

    fn encode(&self) -> Vec<u8> {
        let (process, address) = (self.process.to_le_bytes(), self.address.to_le_bytes());
        [&process[..], &address, &*self.content].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Probe> {
        let bytes: &[u8; Probe::LEN] = bytes.try_into().ok()?;
        let (process, rest) = bytes.split_first_chunk()?;
        let (address, content) = rest.split_first_chunk()?;
        Some(Probe {
            process: u32::from_le_bytes(*process),
            address: u64::from_le_bytes(*address),
            content: Box::new(content.try_into().ok()?),
        })
    }

    /// Why what it tells of cannot be read, if it cannot.
    fn objection(&self) -> Option<String> {
        let mut found = [0; Probe::CONTENT];
        match read_process(self.process, self.address, &mut found) {
            // Process numbers of another namespace lead to others, or nowhere.
            Ok(()) if found != *self.content => Some("its process number is another's here".into()),
            Ok(()) => None,
            Err(error) => Some(error.to_string()),
        }
    }
}

/// The processes of all ranks, by rank; or why the system does not read them for each other. All
/// ranks come to the same.
pub(super) fn processes(
    bootstrap: &mut dyn Bootstrap,
    deadline: Instant,
) -> Result<Result<Arc<[u32]>, String>, Error> {
    share_memory_with_siblings();
    let own = Probe::new()?;
    let told = bootstrap.all_gather(&own.encode(), deadline)?;
    let probes: Vec<Option<Probe>> = told.iter().map(|bytes| Probe::decode(bytes)).collect();
    let objection = |(rank, probe): (usize, &Option<Probe>)| {
        let why = probe.as_ref().map_or(Some("it told nothing".into()), Probe::objection)?;
        Some(format!("rank {} cannot read the memory of rank {rank}: {why}", bootstrap.rank()))
    };
    let objection = probes.iter().enumerate().find_map(objection).unwrap_or_default();
    // `own` stays until all have looked.
    let objections = bootstrap.all_gather(objection.as_bytes(), deadline)?;
    drop(own);
    Ok(match objections.iter().find(|objection| !objection.is_empty()) {
        Some(objection) => Err(String::from_utf8_lossy(objection).into_owned()),
        None => Ok(probes.iter().flatten().map(|probe| probe.process).collect()),
    })
}
