//! A rank on its GPU without the memory that messages go through, for as long as no call is made.
//!
//! Only the memory goes: its addresses stay reserved, and lead to new memory with the same content
//! when it is there again. So tables, programs and captured calls are as they were.

use super::Gpu;
use oxccl_transports::cuda::{DeviceRegion, copy_in, copy_out};
use oxccl_transports::{Bootstrap, CudaError, Error, Offer, Shared};
use std::sync::Arc;
use std::time::Instant;

impl Gpu {
    /// Whether its staging is given back.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.is_some()
    }

    /// Gives staging back, this rank's and what it has mapped of others'. No kernel of any rank
    /// runs or comes before [`resume`](Self::resume).
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn suspend(&mut self) -> Result<(), CudaError> {
        let (own, shape) = (self.tables().own_staging(), self.tables().shape());
        let mut content = vec![0; shape.len_bytes()];
        // SAFETY: nobody writes there, since nothing runs.
        unsafe { copy_out(self.context(), &mut content, own.as_ptr()) }?;
        own.give_up();
        self.mapped_of_others().for_each(|(_, region)| region.give_up());
        self.suspended = Some(content);
        Ok(())
    }

    /// Has staging again, as it was. All ranks call this together.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`]; as [`Bootstrap::exchange`].
    pub(crate) fn resume(
        &mut self,
        bootstrap: &mut dyn Bootstrap,
        deadline: Instant,
    ) -> Result<(), Error> {
        let Some(content) = &self.suspended else { return Ok(()) };
        let own = std::slice::from_ref(self.tables().own_staging());
        own[0].restore()?;
        // SAFETY: it is as long, and no rank reaches it yet.
        unsafe { copy_in(self.context(), own[0].as_ptr(), content) }?;
        let offer = Offer { device: own, context: Some(self.context()), ..Offer::default() };
        let mut all = bootstrap.exchange(&offer, deadline)?;
        for (rank, region) in self.mapped_of_others() {
            let theirs = all[rank].take().and_then(|Shared { mut device, .. }| device.pop());
            let theirs = theirs.and_then(Arc::into_inner).ok_or(CudaError::GivenUp)?;
            region.take_over(theirs)?;
        }
        // Until all have mapped it, none launches.
        bootstrap.all_gather(&[], deadline)?;
        self.suspended = None;
        Ok(())
    }

    /// Other ranks' staging that was received, and so has addresses of its own here.
    fn mapped_of_others(&self) -> impl Iterator<Item = (usize, &DeviceRegion)> {
        let all = self.tables().staging().iter().enumerate();
        let regions = all.filter_map(|(rank, region)| Some((rank, region.as_deref()?)));
        regions.filter(|(_, region)| !region.is_own())
    }
}
