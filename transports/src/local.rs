//! Ranks that are threads of one process.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use crate::liveness::Peers;
use crate::mailbox::Mailbox;
use crate::rendezvous::Piece;
use crate::split::{Members, Numbers, by_numbers_before};
use crate::sync::{Mutex, lock};
use crate::{
    Bootstrap, Cause, Error, Liveness, Nodes, Offer, Part, Reach, Secret, Shared, Side, cuda_ipc,
    interface,
};

/// Makes the bootstraps of `world` ranks in this process; each is moved to its rank's thread.
///
/// A bootstrap dropped without [`Liveness::close`], as by a thread that panics, is a death to the
/// other ranks.
///
/// # Panics
/// If `world` is 0.
pub fn local(world: usize) -> Vec<LocalBootstrap> {
    local_on(&Nodes::one(world))
}

/// As [`local`], with ranks that act as if they were on these nodes: memory is handed to ranks of
/// the same one alone.
///
/// # Panics
/// If there are no ranks.
pub fn local_on(nodes: &Nodes) -> Vec<LocalBootstrap> {
    let world = nodes.world();
    assert!(world > 0, "a world has at least one rank");
    let hub = Arc::new(Hub::new(nodes.clone(), Secret::of_process()));
    (0..world).map(|rank| LocalBootstrap::new(rank, hub.clone())).collect()
}

/// One rank's place among the threads of this process.
#[derive(Debug)]
pub struct LocalBootstrap {
    rank: usize,
    round: u64,
    /// Of the parts that come of it.
    numbers: Numbers,
    hub: Arc<Hub>,
    liveness: Arc<Liveness>,
}

/// What the ranks share.
struct Hub {
    members: Vec<Member>,
    nodes: Nodes,
    /// Ranks on nodes of their own reach each other by sockets, as processes do.
    secret: Secret,
    /// Held while all ranks are told of a cause: the end of the first that hears of it does not
    /// overtake it on the way to the last.
    telling: Mutex<()>,
    /// Hubs of parts that not all of their ranks have come to.
    parts: Mutex<HashMap<PartKey, Arc<Hub>>>,
    /// What ranks that come late have missed.
    missed: Mutex<Missed>,
}

#[derive(Default)]
struct Missed {
    cause: Option<Cause>,
    left: Vec<(usize, u64)>,
}

struct Member {
    mailbox: Mailbox<Gift>,
    /// Set before any rank runs. Weak, since a liveness holds the hub.
    liveness: OnceLock<Weak<Liveness>>,
}

/// What one rank gives another in one exchange.
enum Gift {
    Bytes(Piece),
    Memory { regions: Option<Shared>, device_regions: usize, has_gpu: bool },
}

impl LocalBootstrap {
    fn new(rank: usize, hub: Arc<Hub>) -> LocalBootstrap {
        let peers = LocalPeers { rank, hub: hub.clone() };
        let liveness = Arc::new(Liveness::new(rank, hub.members.len(), Box::new(peers)));
        let first = hub.members[rank].liveness.set(Arc::downgrade(&liveness));
        debug_assert!(first.is_ok(), "one bootstrap a rank");
        let missed = lock(&hub.missed);
        for &(rank, calls) in &missed.left {
            liveness.record_left(rank, calls);
        }
        if let Some(cause) = &missed.cause {
            liveness.raise(cause.clone());
        }
        drop(missed);
        LocalBootstrap { rank, round: 0, numbers: Numbers::default(), hub, liveness }
    }

    /// Gives every rank what is meant for it, and takes what they give.
    fn swap(
        &mut self,
        gift: impl Fn(usize) -> Gift,
        doing: &'static str,
        deadline: Instant,
    ) -> Result<Vec<Gift>, Error> {
        self.liveness.check()?;
        let round = self.round;
        self.round += 1;
        for (rank, member) in self.hub.members.iter().enumerate() {
            member.mailbox.deposit(round, self.rank, gift(rank));
        }
        self.hub.members[self.rank].mailbox.collect(round, doing, deadline, &self.liveness)
    }
}

impl LocalBootstrap {
    /// The way to these ranks, of which this is one.
    fn part(&self, number: u64, ranks: &[usize]) -> (PartKey, LocalBootstrap) {
        let key = (number, ranks.to_vec());
        let place = ranks.iter().position(|&rank| rank == self.rank).unwrap_or(0);
        let new = || Arc::new(Hub::new(self.hub.nodes.of_ranks(ranks), self.hub.secret.clone()));
        let hub = lock(&self.hub.parts).entry(key.clone()).or_insert_with(new).clone();
        (key, LocalBootstrap::new(place, hub))
    }
}

/// The number of a part, and its ranks.
type PartKey = (u64, Vec<usize>);

impl Bootstrap for LocalBootstrap {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.hub.members.len()
    }

    fn nodes(&self) -> &Nodes {
        &self.hub.nodes
    }

    fn reach(&self) -> Reach {
        Reach::SameProcess
    }

    fn all_gather(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, Error> {
        let piece = Piece::new(bytes);
        let gifts = self.swap(|_| Gift::Bytes(piece.clone()), "exchanging bytes", deadline)?;
        let pieces = gifts.into_iter().enumerate().map(|(rank, gift)| match gift {
            Gift::Bytes(piece) => piece.into_bytes(rank),
            Gift::Memory { .. } => Err(out_of_step(rank, "exchange", "all_gather")),
        });
        pieces.collect()
    }

    fn exchange(
        &mut self,
        offer: &Offer<'_>,
        deadline: Instant,
    ) -> Result<Vec<Option<Shared>>, Error> {
        let (rank, nodes) = (self.rank, self.hub.nodes.clone());
        let shared = || Shared::of(offer);
        let gift = |peer| Gift::Memory {
            regions: nodes.share(rank, peer).then(shared),
            device_regions: offer.device.len() + usize::from(offer.team.is_some()),
            has_gpu: offer.context.is_some(),
        };
        let gifts = self.swap(gift, "sharing regions", deadline)?;
        let mut gpus = Vec::with_capacity(gifts.len());
        let mut all = Vec::with_capacity(gifts.len());
        for (rank, gift) in gifts.into_iter().enumerate() {
            let Gift::Memory { regions, device_regions, has_gpu } = gift else {
                return Err(out_of_step(rank, "all_gather", "exchange"));
            };
            gpus.push((device_regions, has_gpu));
            all.push(regions);
        }
        cuda_ipc::check_gpus(gpus.into_iter())?;
        if let Some(context) = offer.context {
            cuda_ipc::allow(context, all.iter().flatten())?;
        }
        Ok(all)
    }

    fn split(
        &mut self,
        side: Side,
        tells: &[u8],
        deadline: Instant,
    ) -> Result<Option<Part>, Error> {
        let all = self.all_gather(&side.encode(tells), deadline)?;
        let members = side.members(self.rank, &all)?;
        let number = self.numbers.split();
        let part = members.map(|members| (self.part(number, &members.ranks), members));
        // Then all have found it, and nobody looks for it any more.
        self.all_gather(&[], deadline)?;
        Ok(part.map(|((key, bootstrap), Members { ranks, told })| {
            lock(&self.hub.parts).remove(&key);
            Part { bootstrap: Box::new(bootstrap), number, ranks, told }
        }))
    }

    fn shrink(&mut self, ranks: &[usize], tells: &[u8], deadline: Instant) -> Result<Part, Error> {
        let number = self.numbers.shrink(ranks);
        let (key, mut bootstrap) = self.part(number, ranks);
        let told = bootstrap.all_gather(tells, deadline);
        let told = told.map_err(|error| by_numbers_before(error, ranks))?;
        lock(&self.hub.parts).remove(&key);
        Ok(Part { bootstrap: Box::new(bootstrap), number, ranks: ranks.to_vec(), told })
    }

    fn secret(&self) -> &Secret {
        &self.hub.secret
    }

    fn address(&self, interface: Option<&str>) -> Result<IpAddr, Error> {
        interface.map_or(Ok(Ipv4Addr::LOCALHOST.into()), interface::address)
    }

    fn liveness(&self) -> Arc<Liveness> {
        self.liveness.clone()
    }
}

fn out_of_step(rank: usize, theirs: &str, ours: &str) -> Error {
    let detail = format!("it called {theirs} of the bootstrap while this rank called {ours}");
    Error::Stopped(Cause::Mismatch { rank, detail, ranks: Vec::new() })
}

impl Drop for LocalBootstrap {
    fn drop(&mut self) {
        self.liveness.wait_told();
        if self.liveness.left(self.rank).is_none() {
            self.hub.raise_at_others(self.rank, &Cause::Died { rank: self.rank });
        }
    }
}

impl Hub {
    fn new(nodes: Nodes, secret: Secret) -> Hub {
        let world = nodes.world();
        let member = |_| Member { mailbox: Mailbox::new(world), liveness: OnceLock::new() };
        let members = (0..world).map(member).collect();
        Hub {
            members,
            nodes,
            secret,
            telling: Mutex::new(()),
            parts: Mutex::new(HashMap::new()),
            missed: Mutex::new(Missed::default()),
        }
    }

    fn others(&self, rank: usize) -> impl Iterator<Item = (&Mailbox<Gift>, Arc<Liveness>)> {
        let living = |member: &Member| member.liveness.get().and_then(Weak::upgrade);
        let members = self.members.iter().enumerate().filter(move |&(other, _)| other != rank);
        members.filter_map(move |(_, member)| Some((&member.mailbox, living(member)?)))
    }

    fn raise_at_others(&self, rank: usize, cause: &Cause) {
        let _telling = lock(&self.telling);
        lock(&self.missed).cause.get_or_insert_with(|| cause.clone());
        for (mailbox, liveness) in self.others(rank) {
            liveness.raise(cause.clone());
            mailbox.wake();
        }
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("world", &self.members.len()).finish()
    }
}

/// The other threads, as one of them sees them.
struct LocalPeers {
    rank: usize,
    hub: Arc<Hub>,
}

impl Peers for LocalPeers {
    fn tell_abort(&self, cause: &Cause) {
        self.hub.raise_at_others(self.rank, cause);
        self.hub.members[self.rank].mailbox.wake();
    }

    fn ask(&self) {
        let living = |rank: usize| self.hub.members[rank].liveness.get().and_then(Weak::upgrade);
        let Some(own) = living(self.rank) else { return };
        let apart = |rank: &usize| !self.hub.nodes.share(self.rank, *rank);
        for rank in (0..self.hub.members.len()).filter(apart) {
            if let Some(report) = living(rank).and_then(|other| other.reports().answer()) {
                own.reports().heard(rank, &report);
            }
        }
    }

    fn tell_goodbye(&self, calls: u64) {
        lock(&self.hub.missed).left.push((self.rank, calls));
        for (mailbox, liveness) in self.hub.others(self.rank) {
            liveness.record_left(self.rank, calls);
            mailbox.wake();
        }
    }
}
