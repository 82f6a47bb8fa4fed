//! Ranks that are processes, of one machine or of several.
//!
//! Those of one machine share memory; those of others are told of, and no more. Regions are memory
//! files without a name, handed from process to process as file descriptors over a Unix socket.
//! Nothing of this is in /dev/shm or in any other folder, so a full or tiny /dev/shm does not
//! matter, and a process that is killed leaves nothing behind: its sockets and its part of the
//! memory end with it. (Threads of one process can use this transport too, and the tests do.)
//!
//! Memory of GPUs travels the same way, as descriptors beside those of regions, in the same packet.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::region::BadRegion;
use crate::rendezvous::{ControlChannel, Split};
use crate::{
    Bootstrap, Cancel, Error, Liveness, Nodes, Offer, Part, Reach, Region, Seat, Secret, Shared,
    Side, UniqueId, cuda_ipc, interface,
};

mod exchange;

use exchange::{Exchange, Name};

/// Joins the other ranks. It comes back when all of them have.
///
/// # Errors
/// As [`ControlChannel::connect`].
pub fn connect(
    id: &UniqueId,
    rank: usize,
    world: usize,
    deadline: Instant,
) -> Result<ShmBootstrap, Error> {
    connect_as(id, Seat::here(rank, world), deadline)
}

/// As [`connect`], for a rank that says where it runs.
///
/// # Errors
/// As [`ControlChannel::connect`].
pub fn connect_as(id: &UniqueId, seat: Seat, deadline: Instant) -> Result<ShmBootstrap, Error> {
    connect_unless(id, seat, deadline, &Cancel::default())
}

/// As [`connect_as`], for a start that another thread may give up.
///
/// # Errors
/// As [`ControlChannel::connect`]; [`Error::Stopped`] once it is given up.
pub fn connect_unless(
    id: &UniqueId,
    seat: Seat,
    deadline: Instant,
    cancel: &Cancel,
) -> Result<ShmBootstrap, Error> {
    Ok(ShmBootstrap { channel: ControlChannel::connect(id, seat, deadline, cancel)? })
}

/// One rank's place among the processes.
#[derive(Debug)]
pub struct ShmBootstrap {
    channel: ControlChannel,
}

/// What a rank tells all others before regions change hands.
#[derive(Serialize, Deserialize)]
struct Invitation {
    /// The socket where it takes regions.
    name: Name,
    /// How long its regions are; `None` for one that it did not create.
    lens_bytes: Vec<Option<u64>>,
    gpu: cuda_ipc::Announcement,
}

impl Invitation {
    /// Descriptors that come with it.
    fn descriptors(&self) -> usize {
        self.lens_bytes.len() + self.gpu.descriptors()
    }
}

impl ShmBootstrap {
    /// The most regions that one rank can share in one call: what one message can carry.
    pub const REGIONS_LIMIT: usize = exchange::DESCRIPTORS_LIMIT;

    /// As [`ControlChannel::set_silence`].
    ///
    /// # Errors
    /// As there.
    pub fn set_silence(&self, silence: Duration) -> Result<(), Error> {
        self.channel.set_silence(silence)
    }

    fn invite(
        &mut self,
        name: Name,
        offer: &Offer<'_>,
        deadline: Instant,
    ) -> Result<Vec<Invitation>, Error> {
        let len_bytes = |region: &Arc<Region>| region.file().map(|_| region.len_bytes() as u64);
        let lens_bytes = offer.host.iter().map(len_bytes).collect();
        let gpu = cuda_ipc::Announcement::new(offer)?;
        let mine = Invitation { name, lens_bytes, gpu };
        let Ok(mine) = postcard::to_stdvec(&mine) else { unreachable!("a vector can grow") };
        let all = self.channel.all_gather(&mine, deadline)?;
        let read = |(rank, bytes): (usize, Vec<u8>)| {
            postcard::from_bytes(&bytes).map_err(|error| Error::BadRegion {
                rank,
                detail: format!("its announcement cannot be read ({error})"),
            })
        };
        all.into_iter().enumerate().map(read).collect()
    }

    /// Every rank looks at all invitations, so that all come to the same result.
    fn check(&self, invitations: &[Invitation]) -> Result<(), Error> {
        for (rank, invitation) in invitations.iter().enumerate() {
            let (count, limit) = (invitation.descriptors(), Self::REGIONS_LIMIT);
            if count > limit {
                return Err(Error::TooManyRegions { rank, count, limit });
            }
            if invitation.lens_bytes.contains(&None) {
                let detail = "it was created by another rank".to_owned();
                return Err(Error::BadRegion { rank, detail });
            }
        }
        let gpus = invitations.iter().map(|invitation| &invitation.gpu);
        cuda_ipc::check_gpus(gpus.map(|gpu| (gpu.descriptors(), gpu.uuid.is_some())))
    }

    /// Maps what a rank sent: host regions first, then device memory.
    fn map(
        rank: usize,
        files: Vec<OwnedFd>,
        invitation: &Invitation,
        offer: &Offer<'_>,
    ) -> Result<Shared, Error> {
        let (got, announced) = (files.len(), invitation.descriptors());
        if got != announced {
            let detail = format!("{got} regions came where {announced} were announced");
            return Err(Error::BadRegion { rank, detail });
        }
        let mut files = files.into_iter();
        let mut host = Vec::with_capacity(invitation.lens_bytes.len());
        // The lengths first: the end of the first iterator takes nothing from the second.
        for (len_bytes, file) in invitation.lens_bytes.iter().flatten().zip(files.by_ref()) {
            let len_bytes = usize::try_from(*len_bytes).unwrap_or(0);
            host.push(Arc::new(Region::receive(file, len_bytes).map_err(|bad| match bad {
                BadRegion::Refused(detail) => Error::BadRegion { rank, detail },
                BadRegion::Failed(error) => error,
            })?));
        }
        let (device, team) = invitation.gpu.receive(files.collect(), offer.context)?;
        Ok(Shared { host, device, team })
    }
}

fn part(Split { channel, number, ranks, told }: Split) -> Part {
    Part { bootstrap: Box::new(ShmBootstrap { channel }), number, ranks, told }
}

/// Reads what a rank may tell before regions change hands.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_invitation(data: &[u8]) {
    if let Ok(invitation) = postcard::from_bytes::<Invitation>(data) {
        assert!(invitation.descriptors() <= data.len(), "a length takes a byte at least");
    }
}

impl Bootstrap for ShmBootstrap {
    fn rank(&self) -> usize {
        self.channel.rank()
    }

    fn world(&self) -> usize {
        self.channel.world()
    }

    fn nodes(&self) -> &Nodes {
        self.channel.nodes()
    }

    fn reach(&self) -> Reach {
        Reach::SharedMemory
    }

    fn all_gather(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, Error> {
        self.channel.all_gather(bytes, deadline)
    }

    fn exchange(
        &mut self,
        offer: &Offer<'_>,
        deadline: Instant,
    ) -> Result<Vec<Option<Shared>>, Error> {
        let exported = cuda_ipc::export(offer)?;
        let (socket, name) = exchange::open()?;
        let invitations = self.invite(name, offer, deadline)?;
        self.check(&invitations)?;
        let beside = self.nodes().beside(self.rank());
        let names = beside.map(|rank| (rank, invitations[rank].name)).collect();
        let host = offer.host.iter().filter_map(|region| region.file());
        let files = host.chain(exported.iter().map(AsFd::as_fd)).collect();
        let exchange = Exchange::new(self.rank(), names, self.channel.secret(), files, socket);
        let received = exchange.run(deadline, &self.channel.liveness())?;
        let mut all: Vec<Option<Shared>> = (0..self.world()).map(|_| None).collect();
        for (rank, files) in received {
            all[rank] = Some(if rank == self.rank() {
                Shared::of(offer)
            } else {
                ShmBootstrap::map(rank, files, &invitations[rank], offer)?
            });
        }
        Ok(all)
    }

    fn split(
        &mut self,
        side: Side,
        tells: &[u8],
        deadline: Instant,
    ) -> Result<Option<Part>, Error> {
        Ok(self.channel.split(side, tells, deadline)?.map(part))
    }

    fn shrink(&mut self, ranks: &[usize], tells: &[u8], deadline: Instant) -> Result<Part, Error> {
        self.channel.shrink(ranks, tells, deadline).map(part)
    }

    fn secret(&self) -> &Secret {
        self.channel.secret()
    }

    fn address(&self, interface: Option<&str>) -> Result<IpAddr, Error> {
        interface.map_or(Ok(self.channel.address()), interface::address)
    }

    fn liveness(&self) -> Arc<Liveness> {
        self.channel.liveness()
    }
}
