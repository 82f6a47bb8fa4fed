//! Where the allocations that ranks have registered begin in this process.

use super::tables::upload;
use super::{Stream, copy};
use crate::device::REGISTRATIONS;
use oxccl_transports::CudaError;
use oxccl_transports::cuda::DeviceMemory;
use std::sync::Arc;

/// A table in device memory, by rank and number, and which of its rows belong to a communicator's
/// ranks: a communicator and all its parts share one.
#[derive(Clone, Debug)]
pub struct Registered {
    table: Arc<DeviceMemory>,
    /// By rank.
    rows: Arc<[usize]>,
}

impl Registered {
    /// Nothing is registered. It is filled through the stream, which is waited for.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], and the driver's.
    pub(crate) fn new(stream: &Stream, ranks: usize) -> Result<Registered, CudaError> {
        let nothing = vec![std::ptr::null_mut::<u8>(); ranks * REGISTRATIONS];
        let table = Arc::new(upload(stream, &nothing)?);
        Ok(Registered { table, rows: (0..ranks).collect() })
    }

    /// The same for some of the ranks, in this order.
    pub(crate) fn part(&self, ranks: &[usize]) -> Registered {
        let rows = ranks.iter().map(|rank| self.rows[*rank]).collect();
        Registered { table: self.table.clone(), rows }
    }

    /// What ranks are called in all communicators that share the table.
    pub(crate) fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// Where those of a rank begin, by number, for kernels.
    pub(crate) fn starts(&self, rank: usize) -> *const *mut u8 {
        self.entry(rank, 0)
    }

    fn entry(&self, rank: usize, number: usize) -> *mut *mut u8 {
        let table = self.table.as_ptr().cast::<*mut u8>();
        table.wrapping_add(self.rows[rank] * REGISTRATIONS + number)
    }

    /// Says where an allocation of a rank's begins, through a stream that is waited for.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// No kernel that is under way looks that number of the rank's up.
    pub(crate) unsafe fn enter(
        &self,
        stream: &Stream,
        (rank, number): (usize, usize),
        address: *mut u8,
    ) -> Result<(), CudaError> {
        assert!((1..REGISTRATIONS).contains(&number));
        let (to, from) = (self.entry(rank, number).cast(), std::ptr::from_ref(&address).cast());
        // SAFETY: an entry of the table, which no kernel reads; the address lives until the copy
        // has been waited for.
        unsafe { copy(stream, to, from, size_of_val(&address)) }?;
        stream.synchronize()
    }
}
