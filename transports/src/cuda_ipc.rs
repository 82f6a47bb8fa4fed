//! Memory of GPUs changes hands: between processes as file descriptors, over the sockets that host regions go over;
//! between threads as it is.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cuda::{Context, DeviceRegion, Uuid};
use crate::{Error, Offer, Shared};

/// What a rank tells of its GPU and of the memory that it sends.
#[derive(Serialize, Deserialize)]
pub(crate) struct Announcement {
    /// Its GPU; `None` if it named none.
    pub(crate) uuid: Option<Uuid>,
    /// How long its device regions are.
    pub(crate) lens_bytes: Vec<u64>,
}

impl Announcement {
    pub(crate) fn new(offer: &Offer<'_>) -> Result<Announcement, Error> {
        let uuid = offer.context.map(|context| context.device().uuid()).transpose()?;
        let lens_bytes = offer.device.iter().map(|region| region.len_bytes() as u64).collect();
        Ok(Announcement { uuid, lens_bytes })
    }

    /// Maps what came for this announcement, as many descriptors as it announces.
    pub(crate) fn receive(
        &self,
        files: Vec<OwnedFd>,
        context: Option<&Context>,
    ) -> Result<Vec<Arc<DeviceRegion>>, Error> {
        let (Some(context), Some(uuid)) = (context, self.uuid) else { return Ok(Vec::new()) };
        if !files.is_empty() {
            context.device().check_reach(uuid)?;
        }
        let mut regions = Vec::with_capacity(files.len());
        for (file, len_bytes) in files.into_iter().zip(&self.lens_bytes) {
            let len_bytes = usize::try_from(*len_bytes).unwrap_or(0);
            regions.push(Arc::new(DeviceRegion::receive(context, file, len_bytes)?));
        }
        Ok(regions)
    }
}

/// Descriptors of the device memory that a rank offers.
pub(crate) fn export(offer: &Offer<'_>) -> Result<Vec<OwnedFd>, Error> {
    offer.device.iter().map(|region| region.export().map_err(Error::from)).collect()
}

/// Fails, alike on every rank, if one offers device memory and another could not take it. For each rank: how many
/// device regions it offers, and whether it has a GPU.
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
