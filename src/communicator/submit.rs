//! Calls that block.

use super::Communicator;
use crate::call::{Call, CheckedCall, Counts, Options, Parts, Terms, one_count_each};
use crate::collectives::{Collectives, Submit};
use crate::engine::Request;
use crate::error::Error;
use crate::memory::{Borrowed, Where};
use crate::target::Device;

impl<'b> Submit<'b> for &Communicator {
    type Done = ();
    type Access = Borrowed;

    #[inline]
    fn rank(&self) -> usize {
        self.rank
    }

    #[inline]
    fn world_size(&self) -> usize {
        self.world
    }

    #[inline]
    unsafe fn submit(self, call: Call<'_>, places: [Where; 2]) -> Result<(), Error> {
        if call.parts != Parts::Even || self.terms().are_own() {
            // SAFETY: by this function's contract.
            return unsafe { self.submit_unlike(&call, places) };
        }
        let engine = self.idle_engine()?;
        // SAFETY: nobody else uses the engine (`idle_engine`); the memory is the caller's promise.
        unsafe { (*engine).launch_one(&call, || Where::check(places, self.device)) }
    }
}

impl Communicator {
    /// A call of uneven parts, or with options.
    ///
    /// # Safety
    ///
    /// As for [`Submit::submit`].
    #[cold]
    unsafe fn submit_unlike(&self, call: &Call<'_>, places: [Where; 2]) -> Result<(), Error> {
        Where::check(places, self.device)?;
        let call = match call.parts {
            Parts::Own { send, recv } if self.device == Device::Host => {
                self.with_all_counts(call, send, recv)?
            }
            // On a GPU it is messages, each of which has its count.
            _ => CheckedCall::new(call, self.rank, self.world)?,
        };
        let Terms { options, timeout } = self.terms();
        let call = CheckedCall { options, ..call };
        let request = Request { timeout, ..Request::BLOCKING };
        // SAFETY: by this function's contract.
        unsafe { self.launch(std::slice::from_ref(&call), &mut None, &request) }
    }

    /// An all-to-all of which each rank knows its own counts: the ranks exchange them first, by one
    /// small all-gather.
    fn with_all_counts(
        &self,
        call: &Call<'_>,
        send: &[usize],
        recv: &[usize],
    ) -> Result<CheckedCall, Error> {
        for (argument, counts) in [("send_counts", send), ("recv_counts", recv)] {
            one_count_each(call.kind, argument, counts, self.world)?;
        }
        // Before anything is sent: what only this rank can see is an error on this rank alone.
        let own = Counts::Own { send: send.to_vec(), recv: recv.to_vec() };
        CheckedCall::uneven(call, self.rank, own)?;
        let row: Vec<u64> = send.iter().chain(recv).map(|count| *count as u64).collect();
        let mut rows = vec![0u64; row.len() * self.world];
        let asked = self.terms();
        self.terms.set(Terms { options: Options::NONE, ..asked });
        let gathered = self.all_gather(&row, &mut rows);
        self.terms.set(asked);
        gathered?;
        let row = |row: &[u64]| row.iter().map(|count| *count as usize).collect();
        let rows: Vec<Vec<usize>> = rows.chunks(2 * self.world).map(row).collect();
        self.check_counts(&rows)?;
        let matrix = rows.iter().map(|row| row[..self.world].to_vec()).collect();
        CheckedCall::uneven(call, self.rank, Counts::Matrix(matrix))
    }

    /// Every rank sees all counts, so every rank finds the same first pair that does not agree.
    fn check_counts(&self, rows: &[Vec<usize>]) -> Result<(), Error> {
        let n = self.world;
        let pairs = (0..n).flat_map(|sender| (0..n).map(move |receiver| (sender, receiver)));
        for (sender, receiver) in pairs {
            let (sent, received) = (rows[sender][receiver], rows[receiver][n + sender]);
            if sent != received {
                return Err(Error::CountsDiffer { sender, receiver, sent, received });
            }
        }
        Ok(())
    }
}
