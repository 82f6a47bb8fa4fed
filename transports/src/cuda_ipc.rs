//! Memory of GPUs changes hands: between processes as file descriptors, over the sockets that host
//! regions go over; between threads as it is.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cuda::{Context, DeviceRegion, MulticastTeam, Uuid};
use crate::{Error, Offer, Shared};

/// What a rank tells of its GPU and of the memory that it sends.
#[derive(Serialize, Deserialize)]
pub(crate) struct Announcement {
    /// Its GPU; `None` if it named none.
    pub(crate) uuid: Option<Uuid>,
    /// How long its device regions are.
    pub(crate) lens_bytes: Vec<u64>,
    /// How much memory of each GPU the team is for that it sends, if it sends one.
    team_bytes: Option<u64>,
}

/// Memory of a rank's GPU, and a team.
type Received = (Vec<Arc<DeviceRegion>>, Option<Arc<MulticastTeam>>);

impl Announcement {
    pub(crate) fn new(offer: &Offer<'_>) -> Result<Announcement, Error> {
        let uuid = offer.context.map(|context| context.device().uuid()).transpose()?;
        let lens_bytes = offer.device.iter().map(|region| region.len_bytes() as u64).collect();
        let team_bytes = offer.team.map(|team| team.len_bytes() as u64);
        Ok(Announcement { uuid, lens_bytes, team_bytes })
    }

    /// Descriptors that come with it.
    pub(crate) fn descriptors(&self) -> usize {
        self.lens_bytes.len() + usize::from(self.team_bytes.is_some())
    }

    /// Takes what came for this announcement, as many descriptors as it announces: those of memory,
    /// which is mapped, and a team's.
    pub(crate) fn receive(
        &self,
        files: Vec<OwnedFd>,
        context: Option<&Context>,
    ) -> Result<Received, Error> {
        let (Some(context), Some(uuid)) = (context, self.uuid) else {
            return Ok((Vec::new(), None));
        };
        if !self.lens_bytes.is_empty() {
            context.device().check_reach(uuid)?;
        }
        let mut files = files.into_iter();
        let mut regions = Vec::with_capacity(self.lens_bytes.len());
        // The lengths first: the end of the first iterator takes nothing from the second.
        for (len_bytes, file) in self.lens_bytes.iter().zip(files.by_ref()) {
            let len_bytes = usize::try_from(*len_bytes).unwrap_or(0);
            regions.push(Arc::new(DeviceRegion::receive(context, file, len_bytes)?));
        }
        let team = match (self.team_bytes, files.next()) {
            (Some(len_bytes), Some(file)) => {
                let len_bytes = usize::try_from(len_bytes).unwrap_or(0);
                Some(Arc::new(MulticastTeam::receive(context, &file, len_bytes)?))
            }
            _ => None,
        };
        Ok((regions, team))
    }
}

/// Descriptors of the device memory that a rank offers, and of a team.
pub(crate) fn export(offer: &Offer<'_>) -> Result<Vec<OwnedFd>, Error> {
    let regions = offer.device.iter().map(|region| region.export());
    let team = offer.team.map(|team| team.export());
    regions.chain(team).map(|file| file.map_err(Error::from)).collect()
}

/// Fails, alike on every rank, if one offers device memory and another could not take it. For each
/// rank: how many device regions it offers, and whether it has a GPU.
pub(crate) fn check_gpus(ranks: impl Iterator<Item = (usize, bool)> + Clone) -> Result<(), Error> {
    let owner = ranks.clone().position(|(regions, _)| regions > 0);
    let without = ranks.into_iter().position(|(_, has_gpu)| !has_gpu);
    match (owner, without) {
        (Some(owner), Some(rank)) => Err(Error::NoGpu { rank, owner }),
        _ => Ok(()),
    }
}

/// Makes the device memory of this process' ranks accessible for one's GPU.
pub(crate) fn allow<'a>(
    context: &Context,
    all: impl Iterator<Item = &'a Shared>,
) -> Result<(), Error> {
    let mut regions = all.flat_map(|shared| &shared.device);
    regions.try_for_each(|region| Ok(region.allow(context.device())?))
}
