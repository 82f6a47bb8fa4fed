//! What a rank hears of the realms that it is in.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::liveness::Peers;
use crate::mailbox::Mailbox;
use crate::rendezvous::message::{Piece, RealmId, Said};
use crate::rendezvous::outlet::{Outlet, TELL_TIMEOUT};
use crate::{Cause, Error, Liveness, Nodes};

/// What one rank hears of a realm.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    /// Its number there.
    pub(super) rank: usize,
    pub(super) mailbox: Arc<Mailbox<Piece>>,
    pub(super) liveness: Arc<Liveness>,
    /// The ranks' numbers in the world.
    ranks: Arc<[usize]>,
}

impl Heard {
    pub(super) fn new(
        realm: RealmId,
        rank: usize,
        ranks: &[usize],
        nodes: &Nodes,
        outlet: &Arc<Outlet>,
    ) -> Heard {
        let mailbox = Arc::new(Mailbox::new(ranks.len()));
        let (outlet, several_nodes) = (outlet.clone(), nodes.count() > 1);
        let peers = RemotePeers { realm, outlet, mailbox: mailbox.clone(), several_nodes };
        let liveness = Arc::new(Liveness::new(rank, ranks.len(), Box::new(peers)));
        Heard { rank, mailbox, liveness, ranks: ranks.into() }
    }

    /// The number here of a rank of the world.
    pub(super) fn number(&self, rank: usize) -> Option<usize> {
        self.ranks.iter().position(|&other| other == rank)
    }

    pub(super) fn has_left(&self) -> bool {
        self.liveness.left(self.rank).is_some()
    }

    pub(super) fn raise(&self, cause: Cause) {
        self.liveness.raise(cause);
        self.mailbox.wake();
    }
}

/// The realms that this rank is in.
#[derive(Debug, Default)]
pub(super) struct Realms {
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    realms: BTreeMap<RealmId, Heard>,
    /// Why nothing is heard any more.
    end: Option<Lost>,
}

/// What has become of the server, where nothing goes on.
#[derive(Clone, Debug)]
pub(super) enum Lost {
    /// It has ended in order.
    Closed,
    /// It cannot be reached, be it that of a rank.
    Unreached { rank: Option<usize>, silent: bool },
    /// The rank whose turn it is to serve does not answer.
    Unserved { rank: usize },
    /// The server lets nobody go on, for this cause in the world's numbers.
    Stopped(Cause),
}

impl Lost {
    fn tell(&self, heard: &Heard) {
        let cause = match self {
            _ if heard.has_left() => None,
            Lost::Closed => None,
            Lost::Unreached { rank, silent } => Some(server_lost(heard, *rank, *silent)),
            Lost::Unserved { rank } => Some(match heard.number(*rank) {
                Some(rank) => Cause::CutOff { rank },
                None => Cause::Unserved { rank: *rank },
            }),
            Lost::Stopped(cause) => Some(match cause.lost() {
                Some(rank) => server_lost(heard, Some(rank), true),
                None => cause.clone(),
            }),
        };
        cause.into_iter().for_each(|cause| heard.raise(cause));
        heard.mailbox.end(|| Error::ServerClosed);
    }
}

/// What the end of a server is to the ranks of a realm, which that of `rank` is, if it is one's.
pub(super) fn server_lost(heard: &Heard, rank: Option<usize>, silent: bool) -> Cause {
    match rank.and_then(|rank| heard.number(rank)) {
        Some(rank) if silent => Cause::CutOff { rank },
        Some(rank) => Cause::Died { rank },
        None if silent => Cause::ServerCutOff,
        None => Cause::ServerLost,
    }
}

impl Realms {
    pub(super) fn add(&self, id: RealmId, heard: Heard) {
        let mut open = self.lock();
        open.end.iter().for_each(|end| end.tell(&heard));
        open.realms.insert(id, heard);
    }

    pub(super) fn remove(&self, id: RealmId) {
        self.lock().realms.remove(&id);
    }

    pub(super) fn get(&self, id: RealmId) -> Option<Heard> {
        self.lock().realms.get(&id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Heard> {
        self.lock().realms.values().cloned().collect()
    }

    /// Nothing is heard any more, also in realms that are opened later.
    pub(super) fn end(&self, end: Lost) {
        let mut open = self.lock();
        open.realms.values().for_each(|heard| end.tell(heard));
        // What came first is why.
        open.end.get_or_insert(end);
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The other ranks of a realm, through the server.
struct RemotePeers {
    realm: RealmId,
    outlet: Arc<Outlet>,
    mailbox: Arc<Mailbox<Piece>>,
    several_nodes: bool,
}

impl RemotePeers {
    fn say(&self, said: Said) {
        self.outlet.send(&said.among(self.realm), Instant::now() + TELL_TIMEOUT);
    }
}

impl Peers for RemotePeers {
    fn tell_abort(&self, cause: &Cause) {
        self.mailbox.wake();
        self.say(Said::Abort(cause.clone()));
    }

    fn ask(&self) {
        if self.several_nodes {
            self.say(Said::Ask);
        }
    }

    fn tell_goodbye(&self, calls: u64) {
        self.say(Said::Goodbye { calls });
    }
}
