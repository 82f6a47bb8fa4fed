//! What a communicator needs of its transport, at its start and for failures.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::cuda::{Context, DeviceRegion, MulticastTeam};
use crate::{Error, Liveness, Nodes, Region, Secret, Side};

/// How ranks of one node reach each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// They are threads of one process: a region has one address for all of them.
    SameProcess,
    /// They are processes of one machine: a region has an address of its own in each.
    SharedMemory,
}

/// What a rank hands out in one exchange, and what it needs to take the others' in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offer<'a> {
    /// Host memory.
    pub host: &'a [Arc<Region>],
    /// Memory of GPUs.
    pub device: &'a [Arc<DeviceRegion>],
    /// A team of GPUs, for all to join.
    pub team: Option<&'a Arc<MulticastTeam>>,
    /// This rank's GPU, which others' device memory is mapped for. Needed as soon as any rank
    /// offers such.
    pub context: Option<&'a Context>,
}

/// What a rank has handed out, as this rank reaches it.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Host memory.
    pub host: Vec<Arc<Region>>,
    /// Memory of GPUs.
    pub device: Vec<Arc<DeviceRegion>>,
    /// A team of GPUs.
    pub team: Option<Arc<MulticastTeam>>,
}

impl Shared {
    /// What a rank's own offer is to itself, and to ranks of its process.
    pub(crate) fn of(offer: &Offer<'_>) -> Shared {
        let (host, device) = (offer.host.to_vec(), offer.device.to_vec());
        Shared { host, device, team: offer.team.cloned() }
    }
}

/// The way to some of the ranks.
pub struct Part {
    /// The way.
    pub bootstrap: Box<dyn Bootstrap>,
    /// A number that its ranks alone, of those of one process, give to a part of these ranks.
    pub number: u64,
    /// The numbers that its ranks have had, by those that they have.
    pub ranks: Vec<usize>,
    /// What they have told each other.
    pub told: Vec<Vec<u8>>,
}

/// The way to the other ranks, before and beside the collectives.
///
/// It is kept for as long as the communicator lives: the control channel that feeds [`Liveness`]
/// is its own, and dropping it without [`Liveness::close`] is a death to the other ranks.
pub trait Bootstrap: Send {
    /// This rank, smaller than `world`.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world(&self) -> usize;

    /// Which ranks share memory with which. All ranks know the same.
    fn nodes(&self) -> &Nodes;

    /// How regions of ranks on this node are reached.
    fn reach(&self) -> Reach;

    /// Exchanges bytes with all ranks: `result[i]` is what rank `i` gave.
    ///
    /// All ranks call it, [`exchange`](Self::exchange) and [`share`](Self::share) in the same
    /// order. After an error other than [`Error::MessageTooLong`] the ranks are out of step, and
    /// the bootstrap is of no more use.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the ranks that gave nothing until the deadline; [`Error::Stopped`]
    /// and [`Error::Left`] a rank that will not; [`Error::MessageTooLong`], on every rank, one
    /// that gave more than [`rendezvous::PIECE_LIMIT_BYTES`](crate::rendezvous::PIECE_LIMIT_BYTES).
    fn all_gather(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, Error>;

    /// Hands memory to every rank on this node and maps theirs, all in one handshake:
    /// `result[peer]` is what rank `peer` offered, in its order, and `None` for a rank of another
    /// node, whose memory cannot be reached. `result[self]` are the own regions, the same `Arc`s;
    /// with [`Reach::SameProcess`] all of them are, and device memory is made accessible for this
    /// rank's GPU. Ranks may offer different numbers of regions. All ranks of all nodes call it.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather), and what can go wrong with memory:
    /// [`Error::BadRegion`], [`Error::TooManyRegions`], [`Error::NoGpu`],
    /// [`Error::OutOfMemory`], [`Error::Cuda`]. Of the last two, only this rank knows.
    fn exchange(
        &mut self,
        offer: &Offer<'_>,
        deadline: Instant,
    ) -> Result<Vec<Option<Shared>>, Error>;

    /// [`exchange`](Self::exchange) of host memory alone: `result[peer]` has the regions of rank
    /// `peer`, or is `None`.
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    fn share(
        &mut self,
        regions: &[Arc<Region>],
        deadline: Instant,
    ) -> Result<Vec<Option<Vec<Arc<Region>>>>, Error> {
        let all = self.exchange(&Offer { host: regions, ..Offer::default() }, deadline)?;
        Ok(all.into_iter().map(|shared| Some(shared?.host)).collect())
    }

    /// Makes the way to some of the ranks: those that give the same color are together, numbered
    /// by key, then by rank. Nothing for a rank that gives none. It needs no new rendezvous, and
    /// outlives this way. The ranks of a part hear of each other there, whatever becomes of others.
    /// Each also tells the others something. All ranks call it, in turn with
    /// [`all_gather`](Self::all_gather).
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather).
    fn split(&mut self, side: Side, tells: &[u8], deadline: Instant)
    -> Result<Option<Part>, Error>;

    /// Makes the way to these ranks alone, numbered in this order, whatever has become of the
    /// others and of this way. This rank is one of them. They all call it, as often as each other,
    /// and tell each other something.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather), about these ranks.
    fn shrink(&mut self, ranks: &[usize], tells: &[u8], deadline: Instant) -> Result<Part, Error>;

    /// The job's secret, which links prove.
    fn secret(&self) -> &Secret;

    /// An address of this machine at which ranks of other nodes find it: that of the interface
    /// named, or that address itself, or else the one by which this rank has reached the
    /// rendezvous.
    ///
    /// # Errors
    /// [`Error::NoInterface`]
    fn address(&self, interface: Option<&str>) -> Result<IpAddr, Error>;

    /// What is known of the other ranks' state.
    fn liveness(&self) -> Arc<Liveness>;
}
