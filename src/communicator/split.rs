//! Communicators of some of the ranks.

use super::Communicator;
use super::start::not_started;
use crate::error::Error;
use oxccl_transports::Side;

impl Communicator {
    /// Makes communicators of parts of the ranks: those that give the same `color` are together in
    /// one, numbered by `key`, and by their ranks here where keys are equal. A rank that gives no
    /// color gets none. All ranks call this, between the same calls.
    ///
    /// It takes no new rendezvous. A part can be split in turn, and lives as long as it is used,
    /// whatever becomes of this communicator: each is closed by itself, and what ends one ends no
    /// other, but for a rank that dies, which ends all that it is in. The calls of different
    /// communicators are independent, and may be made from different threads. In one thread, ranks
    /// that share two communicators make their calls in the same order.
    ///
    /// The parts have their settings, and the memory of [`alloc`](Self::alloc), in common with this
    /// communicator: what one has allocated, all reach in place. Memory that was
    /// [registered](Self::register) is reached by all parts of the communicator that did so, made
    /// before or after. Switches do not reduce for parts on GPUs (no `nvls`). Where ranks on a GPU
    /// are threads of one process, the last of them that drops a communicator waits for kernels of
    /// the process: let none wait for that rank then.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use oxccl::{Collectives, Communicator, ReduceOp};
    ///
    /// // Two rows of two ranks.
    /// let ranks = Communicator::local(4)?;
    /// std::thread::scope(|scope| {
    ///     for world in ranks {
    ///         scope.spawn(move || -> Result<(), oxccl::Error> {
    ///             let row = world.split(Some(world.rank() as u32 / 2), 0)?;
    ///             let row = row.ok_or(()).expect("every rank has a color");
    ///             let mut sum = [world.rank() as f32];
    ///             row.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
    ///             assert_eq!(sum[0], if world.rank() < 2 { 1.0 } else { 5.0 });
    ///             row.close()
    ///         });
    ///     }
    /// });
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As other calls of all ranks: one that does not come, that calls something else, or that has
    /// ended. What goes wrong at the start of a part, as without memory, ends the part alone.
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>, Error> {
        // SAFETY: all issued tickets are done (`idle_engine`), and no other comes from this thread
        // meanwhile.
        let engine = unsafe { (*self.idle_engine()?).split(Side { color, key }) };
        let engine = engine.inspect_err(|error| not_started(self.rank, error))?;
        Ok(engine.map(Communicator::from_engine))
    }

    /// Makes a communicator of all ranks but these, also after a failure: of those that survive it.
    /// All others call this, with the same ranks in any order; [`Error::ranks`] of the failure
    /// names them. It is numbered as this one, without gaps.
    ///
    /// What it has in common with this one is as for [`split`](Self::split): the memory too, which
    /// stays as it is. A call that failed may have changed its output, so what that held is to be
    /// set anew. This communicator remains as it is, ended or not. Should the
    /// process that serves the rendezvous have failed, as a rule rank 0's, the next rank's serves
    /// it from there on.
    ///
    /// # Errors
    /// [`Error::Rank`] if this rank is among them, or there is no such rank. As other calls of all
    /// ranks where one that remains does not come or fails; then it can be called once more, by all
    /// that remain.
    pub fn shrink(&self, exclude: &[usize]) -> Result<Communicator, Error> {
        // SAFETY: as in `split`.
        let engine = unsafe { (*self.idle_engine()?).shrink(exclude) };
        let engine = engine.inspect_err(|error| not_started(self.rank, error))?;
        Ok(Communicator::from_engine(engine))
    }
}
