//! How this rank's calls are launched: each by itself, or with those of the other ranks of its process ([`Joint`]).

use super::failure::Ranks;
use super::joint::{Joint, NotJoined, Part};
use super::on_gpu::{Place, Target};
use crate::device::cuda::{Event, Kernel};
use oxccl_kernels::format::Launch;
use std::sync::Arc;
use std::time::Instant;

/// Launches one call.
pub(super) struct Launcher {
    ranks: Arc<Ranks>,
    /// Where ranks meet, and an event for what is in the stream before the call.
    joint: Option<(Arc<Joint>, Arc<Event>)>,
}

impl Launcher {
    /// `joint` where all ranks make the call, and share its launch.
    pub(super) fn new(ranks: Arc<Ranks>, joint: Option<(Arc<Joint>, Arc<Event>)>) -> Launcher {
        Launcher { ranks, joint }
    }

    /// Puts the kernel into the stream: at once, or when all ranks have come.
    ///
    /// # Safety
    ///
    /// As for [`Kernel::launch`]; no more calls of this rank are under way than there are places.
    pub(super) unsafe fn launch(
        self,
        Target { stream, capture }: Target<'_>,
        place: Place,
        (kernel, channels): (Kernel, usize),
        launch: Launch,
    ) -> Result<(), NotJoined> {
        let Some((joint, before)) = self.joint else {
            // SAFETY: by this function's contract.
            return Ok(unsafe { kernel.launch(stream, &launch, channels) }?);
        };
        let part = Part { launch, kernel, channels, before, capture };
        let since = Instant::now();
        let stops = || self.ranks.poll.stops_before(place.numbered.collective, since);
        // SAFETY: by this function's contract.
        unsafe { joint.launch(self.ranks.rank, part, stream, stops) }
    }
}
