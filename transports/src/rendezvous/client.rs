//! A rank's side of the rendezvous: the control channel.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::rendezvous::heard::Heard;
use crate::rendezvous::joining::{Failure, Joined, Joining, check_wanted};
use crate::rendezvous::line::Line;
use crate::rendezvous::message::{Piece, RealmId, Said, WORLD};
use crate::rendezvous::state::WORLD_LIMIT;
use crate::split::{Members, Numbers, Side, by_numbers_before};
use crate::{Cancel, Error, Liveness, Nodes, Seat, Secret, UniqueId};

/// The pause between attempts grows from the first to the second.
pub(super) const RETRY_PAUSES: (Duration, Duration) =
    (Duration::from_millis(5), Duration::from_millis(200));

/// How long a place may take to answer where the server may be at another: from the first to the
/// second, as attempts fail.
const ANSWERS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));

/// How long to look for the server where others have answered, and it has not.
const STRANGERS: Duration = Duration::from_secs(5);

/// A rank's way to the others through the rendezvous: it exchanges bytes with them, and hears of
/// them.
#[derive(Debug)]
pub struct ControlChannel {
    realm: RealmId,
    /// The ranks' numbers in the world.
    ranks: Vec<usize>,
    nodes: Nodes,
    heard: Heard,
    round: u64,
    /// Of the parts that come of it.
    numbers: Numbers,
    line: Arc<Line>,
}

/// The way to some of the ranks: see [`Part`](crate::Part).
#[derive(Debug)]
pub struct Split {
    /// The way.
    pub channel: ControlChannel,
    /// Its number among those of the same ranks.
    pub number: u64,
    /// The numbers that its ranks have had, by those that they have.
    pub ranks: Vec<usize>,
    /// What they have told each other.
    pub told: Vec<Vec<u8>>,
}

impl ControlChannel {
    /// Joins the other ranks. It comes back when all of them have; ranks may start before the
    /// server does. Another thread may give it up.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if no server answers until the deadline, [`Error::Timeout`] naming
    /// the ranks that have not joined until then (on every rank that has, at the first one's
    /// deadline), and why this rank may not join: [`Error::WrongSecret`], [`Error::Version`],
    /// [`Error::RankTwice`], [`Error::RankOutOfRange`], [`Error::WorldMismatch`],
    /// [`Error::WorldTooLarge`]. [`Error::Stopped`] once it is given up.
    pub fn connect(
        id: &UniqueId,
        seat: Seat,
        deadline: Instant,
        cancel: &Cancel,
    ) -> Result<ControlChannel, Error> {
        let Seat { rank, world, .. } = seat;
        if rank >= world {
            return Err(Error::RankOutOfRange { rank, world });
        }
        if world > WORLD_LIMIT {
            return Err(Error::WorldTooLarge { world, limit: WORLD_LIMIT });
        }
        let (places, cancel) = (id.places(), cancel.clone());
        let mut search = Search { places, next: 0, answer: ANSWERS.0, stranger: None, cancel };
        let mut pause = RETRY_PAUSES.0;
        loop {
            match search.attempt(seat, deadline) {
                Ok((joining, joined)) => {
                    let (line, heard, nodes) = Line::start(joining, id.secret(), joined)?;
                    let ranks = (0..world).collect();
                    return Ok(ControlChannel::new(WORLD, ranks, nodes, heard, line));
                }
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Again(source)) if Instant::now() + pause >= deadline => {
                    let otherwise = || Error::Unreachable { address: id.address(), source };
                    return Err(search.stranger.map_or_else(otherwise, |(_, error)| error));
                }
                Err(Failure::Again(error)) => {
                    tracing::trace!(%error, "the rendezvous does not answer yet");
                    std::thread::sleep(pause);
                    check_wanted(&search.cancel, rank)?;
                    pause = (pause * 2).min(RETRY_PAUSES.1);
                }
            }
        }
    }

    fn new(
        realm: RealmId,
        ranks: Vec<usize>,
        nodes: Nodes,
        heard: Heard,
        line: Arc<Line>,
    ) -> ControlChannel {
        ControlChannel { realm, ranks, nodes, heard, round: 0, numbers: Numbers::default(), line }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.heard.rank
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.nodes.world()
    }

    /// Which ranks share a node.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// What is known of the other ranks' state.
    pub fn liveness(&self) -> Arc<Liveness> {
        self.heard.liveness.clone()
    }

    /// See [`Bootstrap::all_gather`](crate::Bootstrap::all_gather).
    ///
    /// # Errors
    /// As there.
    pub fn all_gather(&mut self, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>, Error> {
        if !self.line.origin.is_here() {
            return Err(Error::Forked);
        }
        let Heard { mailbox, liveness, .. } = &self.heard;
        liveness.check()?;
        let round = self.round;
        self.round += 1;
        // A send that fails has ended the channel, and the mailbox knows why.
        let piece = Piece::new(bytes);
        self.line.say(&Said::Gather { round, piece }.among(self.realm), deadline);
        let pieces = mailbox.collect(round, "exchanging bytes", deadline, liveness)?;
        pieces.into_iter().enumerate().map(|(rank, piece)| piece.into_bytes(rank)).collect()
    }

    /// See [`Bootstrap::split`](crate::Bootstrap::split).
    ///
    /// # Errors
    /// As there.
    pub fn split(
        &mut self,
        side: Side,
        tells: &[u8],
        deadline: Instant,
    ) -> Result<Option<Split>, Error> {
        let all = self.all_gather(&side.encode(tells), deadline)?;
        let number = self.numbers.split();
        Ok(side.members(self.rank(), &all)?.map(|Members { ranks, told }| {
            let channel = self.part(number, &ranks, deadline);
            Split { channel, number, ranks, told }
        }))
    }

    /// See [`Bootstrap::shrink`](crate::Bootstrap::shrink).
    ///
    /// # Errors
    /// As there.
    pub fn shrink(
        &mut self,
        ranks: &[usize],
        tells: &[u8],
        deadline: Instant,
    ) -> Result<Split, Error> {
        if !self.line.origin.is_here() {
            return Err(Error::Forked);
        }
        let number = self.numbers.shrink(ranks);
        let mut channel = self.part(number, ranks, deadline);
        let told = channel.all_gather(tells, deadline);
        let told = told.map_err(|error| by_numbers_before(error, ranks))?;
        Ok(Split { channel, number, ranks: ranks.to_vec(), told })
    }

    /// The way to these ranks, of which this is one, in a realm of their own.
    fn part(&self, number: u64, ranks: &[usize], deadline: Instant) -> ControlChannel {
        let place = ranks.iter().position(|&rank| rank == self.rank()).unwrap_or(0);
        let nodes = self.nodes.of_ranks(ranks);
        let whole = ranks;
        let ranks: Vec<usize> = whole.iter().map(|&rank| self.ranks[rank]).collect();
        let realm = realm_of(self.realm, number, &ranks);
        let heard = self.line.open(realm, place, &ranks, &nodes, deadline);
        heard.liveness.watch_as(&self.heard.liveness, whole);
        ControlChannel::new(realm, ranks, nodes, heard, self.line.clone())
    }

    /// For how long this machine and the server's may be silent to each other, instead of
    /// [`SILENCE`](crate::silence::SILENCE): then this rank counts as cut off. No shorter than
    /// [`LEAST_SILENCE`](crate::silence::LEAST_SILENCE).
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses it.
    pub fn set_silence(&self, silence: Duration) -> Result<(), Error> {
        let granted = self.line.set_silence(silence);
        granted.map_err(Error::io("setting a time-out of the control channel"))
    }

    /// By which of its addresses this rank has reached the rendezvous.
    pub(crate) fn address(&self) -> IpAddr {
        self.line.address
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.line.secret
    }
}

/// The number of a realm: the same for its ranks, and no other's.
fn realm_of(parent: RealmId, number: u64, ranks: &[usize]) -> RealmId {
    let ranks = ranks.iter().map(|&rank| rank as u64);
    let said: Vec<u8> =
        [parent, number].into_iter().chain(ranks).flat_map(u64::to_le_bytes).collect();
    let hash = blake3::hash(&said);
    let Some(word) = hash.as_bytes().first_chunk() else { unreachable!("it has 32 bytes") };
    u64::from_le_bytes(*word).max(WORLD + 1)
}

/// The search for the server, which may be at one of several places.
struct Search {
    places: Vec<UniqueId>,
    /// The next one to try beside the first.
    next: usize,
    /// How long each may take to answer.
    answer: Duration,
    /// Since when somebody has answered who is not the server, or not that of this job, and how.
    stranger: Option<(Instant, Error)>,
    cancel: Cancel,
}

impl Search {
    /// Tries the first place and, by turns, one of the others: a machine may let all of them wait.
    fn attempt(&mut self, seat: Seat, deadline: Instant) -> Result<(Joining<'_>, Joined), Failure> {
        let [first, others @ ..] = &self.places[..] else { unreachable!("there is one") };
        let other = others.get(self.next % others.len().max(1));
        self.next += 1;
        let mut last = None;
        for place in std::iter::once(first).chain(other) {
            let until = match other {
                Some(_) => deadline.min(Instant::now() + self.answer),
                None => deadline,
            };
            match Joining::open(place, seat, until, &self.cancel) {
                Ok(mut joining) => {
                    let joined = joining.join(deadline)?;
                    return Ok((joining, joined));
                }
                Err(Failure::Final(error)) if other.is_some() => {
                    self.stranger.get_or_insert((Instant::now(), error));
                }
                Err(Failure::Again(error)) => last = Some(error),
                Err(failure) => return Err(failure),
            }
        }
        self.answer = (self.answer * 2).min(ANSWERS.1);
        let stranger = self.stranger.take_if(|(since, _)| since.elapsed() >= STRANGERS);
        Err(match (stranger, last) {
            (Some((_, error)), _) => Failure::Final(error),
            (None, Some(error)) => Failure::Again(error),
            (None, None) => Failure::Again(io::Error::other("only strangers answer")),
        })
    }
}

impl Drop for ControlChannel {
    fn drop(&mut self) {
        if self.line.origin.is_here() {
            self.heard.liveness.wait_told();
            let is_last = Arc::strong_count(&self.line) == 1;
            self.line.leave(self.realm, &self.heard, is_last);
        }
    }
}
