//! How this rank's calls are launched: each by itself, or with those of the other ranks of its
//! process ([`Joint`]).

use super::copies::Copying;
use super::joint::{Behind, Joined, Joint, NotJoined, Part};
use super::{Place, Target};
use crate::device::cuda::{Ended, Event, Kernel, Turn};
use crate::engine::diagnosis::Ranks;
use oxccl_kernels::format::Launch;
use oxccl_transports::CudaError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Launches one call.
pub(super) struct Launcher<'a, 'b> {
    pub(super) ranks: Arc<Ranks>,
    pub(super) ended: Arc<Ended>,
    /// Where ranks meet, and an event for the order of their streams; where all ranks make the
    /// call, and share its launch.
    pub(super) joint: Option<(Arc<Joint>, Arc<Event>)>,
    /// What the call is to follow in another stream.
    pub(super) behind: Option<Behind>,
    /// Whose turn it is to launch, where communicators take turns.
    pub(super) turn: Option<&'a mut Turn<'b>>,
    /// Whether it has a bucket that is not ready.
    pub(super) gated: bool,
    /// The call's own time-out.
    pub(super) timeout: Option<Duration>,
    /// Why it cannot be launched by itself.
    pub(super) alone: Result<(), CudaError>,
}

impl Launcher<'_, '_> {
    /// Returns once anything may be put into the stream for this call; whether all ranks have
    /// marked what they had before it.
    pub(super) fn meet(&self, place: Place) -> Result<bool, NotJoined> {
        let Some((joint, _)) = &self.joint else { return Ok(false) };
        let since = Instant::now();
        let collective = place.numbered.collective;
        joint.meet(|| self.ranks.poll.stops_before(collective, since, self.timeout))
    }

    /// Puts what copy engines do into the stream.
    ///
    /// # Safety
    /// As for [`Copying::enqueue`].
    pub(super) unsafe fn copy(
        self,
        Target { stream, .. }: Target<'_>,
        place: Place,
        copying: &Copying<'_>,
    ) -> Result<(), CudaError> {
        self.alone?;
        self.behind.iter().try_for_each(|behind| behind.hold(stream))?;
        // SAFETY: by this function's contract.
        unsafe { copying.enqueue(stream, place) }
    }

    /// Puts the kernel into the stream: at once, or when all ranks have come. Whether it may wait
    /// for marks of other ranks of the process.
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
    ) -> Result<Joined, NotJoined> {
        let Launcher { ranks, ended, joint, behind, turn, gated, timeout, alone } = self;
        // Nobody waits for the end of a call that is captured but its graph, and each replay of it
        // has the same number.
        let launch = match capture {
            None => ended.told_by(launch, channels),
            Some(_) => launch,
        };
        if let Some((joint, event)) = joint {
            let (stream, behind) = (stream.alias(), behind.clone());
            let part = Part { launch, kernel, channels, stream, behind, event, capture, gated };
            let since = Instant::now();
            let stops = || ranks.poll.stops_before(place.numbered.collective, since, timeout);
            // SAFETY: by this function's contract; the caller's stream lives until this returns.
            let joined = unsafe { joint.launch(ranks.rank, part, stops) }?;
            if joined != Joined::ByOneself {
                return Ok(joined);
            }
        }
        alone?;
        behind.iter().try_for_each(|behind| behind.hold(stream))?;
        if let Some(turn) = turn {
            turn.hold(stream, channels, capture)?;
        }
        // SAFETY: by this function's contract.
        unsafe { kernel.launch(stream, &launch, channels) }?;
        Ok(Joined::ByOneself)
    }
}
