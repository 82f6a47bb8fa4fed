//! Ranks that join later.

use super::Communicator;
use super::start::not_started;
use crate::error::Error;
use oxccl_transports::UniqueId;

impl Communicator {
    /// Makes the id by which other ranks join this communicator's: hand it to them as the first one
    /// was. One rank calls this, before [`grow`](Self::grow). Its process serves the rendezvous of
    /// what grows, and the id is of use once.
    ///
    /// # Errors
    /// [`Error::Transport`] where nothing can be listened on.
    pub fn invite(&self) -> Result<UniqueId, Error> {
        // SAFETY: all issued tickets are done (`idle_engine`), and no other comes from this thread
        // meanwhile.
        unsafe { (*self.idle_engine()?).invite() }
    }

    /// Makes a communicator of these ranks, which keep their numbers, and others that join: `world`
    /// in all. All ranks call this, between the same calls; one or more of them give the id that
    /// [`invite`](Self::invite) has made. Each of the others
    /// [connects](Communicator::connect) by that id, as a rank from this communicator's size on,
    /// with the same configuration.
    ///
    /// What has been allocated before stays, and all ranks of the node reach it in place, the new
    /// ones too. Ranks that are threads of [`local`](Self::local) are joined by others of any
    /// process; then they reach each other's private memory as processes do. On GPUs no switch
    /// reduces (no `nvls`), as for [parts](Self::split). This communicator remains as it is. A rank
    /// that has failed is replaced by [`shrink`](Self::shrink) and this.
    ///
    /// ```
    /// use oxccl::{Collectives, Communicator, Config, ReduceOp, UniqueId};
    ///
    /// let (id, _server) = UniqueId::create()?;
    /// let config = Config { heap_bytes: 1 << 20, ..Config::default() };
    /// let first = Communicator::connect(&id, 0, 1, &config)?;
    /// let joins = first.invite()?;
    /// std::thread::scope(|scope| {
    ///     let second = scope.spawn(|| Communicator::connect(&joins, 1, 2, &config)?.close());
    ///     let both = first.grow(2, Some(&joins))?;
    ///     both.close()?;
    ///     second.join().expect("it does not panic")
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] on all ranks alike, where they ask for different things, or for nothing
    /// that can be. [`Error::Transport`] where ranks do not join within the time-out: they are
    /// named, and this communicator goes on. Otherwise as other calls of all ranks.
    pub fn grow(&self, world: usize, id: Option<&UniqueId>) -> Result<Communicator, Error> {
        // SAFETY: as in `invite`.
        let engine = unsafe { (*self.idle_engine()?).grow(world, id) };
        let engine = engine.inspect_err(|error| not_started(self.rank, error))?;
        Ok(Communicator::from_engine(engine))
    }
}
