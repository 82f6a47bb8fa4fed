//! How a communicator is split, and how it goes on without ranks that have failed: those of a part
//! set up an engine of their own, over the connection to the rendezvous and the memory that they
//! have.

use super::Engine;
use super::start::{Beginning, Inherited, agree, agreed};
use crate::call::{Meeting, Mix};
use crate::config::patience;
use crate::device::{Label, NO_ROOM, Rooms};
use crate::error::Error;
use oxccl_transports::{Error as Transport, Part, Side, deadline_in};
use std::hash::{Hash, Hasher};

impl Engine {
    /// Splits the communicator. All ranks call it. Nothing for a rank without a color.
    pub(crate) fn split(&mut self, side: Side) -> Result<Option<Engine>, Error> {
        let (number, record) = self.meet(Meeting::Split)?;
        let deadline = deadline_in(self.ranks.poll.timeout());
        // Of parts, what they are to agree on is told with the split, and where their memory is.
        let tells = self.tells(side.color.is_some());
        let part = self.bootstrap.split(side, &tells, deadline);
        let part = part.map_err(|error| self.unheard(error, &record));
        let part = part.inspect_err(|error| {
            self.ranks.end(error, number);
        })?;
        self.ranks.control.log(self.ranks.rank).leave(number);
        part.map(|part| self.begin_part(part)).transpose()
    }

    /// Sets up the ranks but for these, which do not take part. All others call it, also after the
    /// communicator has ended.
    pub(crate) fn shrink(&mut self, exclude: &[usize]) -> Result<Engine, Error> {
        let (rank, world) = (self.ranks.rank, self.world());
        if let Some(bad) = exclude.iter().find(|&&other| other >= world || other == rank) {
            let (argument, own) = ("exclude", *bad == rank);
            return Err(Error::Rank { argument, rank: *bad, last: world - 1, own });
        }
        self.backend.wait();
        let ranks: Vec<usize> = (0..world).filter(|other| !exclude.contains(other)).collect();
        // Nobody can abort what is not there yet.
        let deadline = deadline_in(patience(self.ranks.poll.timeout()));
        let part = self.bootstrap.shrink(&ranks, &self.tells(true), deadline);
        let part = part.map_err(|error| match error {
            Transport::Stopped(cause) => Error::from_cause(cause, "shrink".into()),
            Transport::Left { rank, calls } => Error::Left { rank, calls, during: "shrink".into() },
            other => other.into(),
        })?;
        // All that remain are here, so none is in a call.
        if exclude.iter().all(|other| self.ranks.liveness.is_over(*other)) {
            self.ranks.release_heap();
        }
        self.begin_part(part)
    }

    /// What this rank tells the others of a part. The room that it takes is not taken again should
    /// the others not be heard: some may have heard it.
    fn tells(&self, is_of_it: bool) -> Vec<u8> {
        let room = self.rooms.as_ref().filter(|_| is_of_it).map_or(NO_ROOM, Rooms::take);
        [&room.to_le_bytes(), &agreed(&self.given)[..]].concat()
    }

    /// What tells a part from others: its ranks come to the same.
    fn label_of_part(&self, number: u64, ranks: &[usize]) -> Label {
        let mut mix = Mix::default();
        (self.label, number, ranks).hash(&mut mix);
        Label { communicator: (mix.finish() >> 32) as u32, ..self.label }
    }

    /// Sets up this rank of a part, with the others of it.
    fn begin_part(&self, part: Part) -> Result<Engine, Error> {
        let Part { bootstrap, number, ranks, told } = part;
        let (told_rooms, told): (Vec<u32>, Vec<&[u8]>) =
            told.iter().map(|told| heard(told)).unzip();
        let own = told_rooms[bootstrap.rank()];
        // All of them come to the same.
        let have_rooms = told_rooms.iter().all(|room| *room != NO_ROOM);
        let rooms = self.rooms.as_ref().map(|rooms| rooms.of_ranks(&ranks));
        let agreed = agree(&told, &self.given);
        if let Some(rooms) = rooms.as_ref().filter(|_| !have_rooms || agreed.is_err()) {
            rooms.give_back(own);
        }
        agreed?;
        let mut config = self.given.clone();
        config.device = self.config.device;
        // Of a part they follow from where its ranks are.
        config.ranks_per_node = None;
        config.nodes = config.nodes.map(|_| bootstrap.nodes().count());
        let inherited = Inherited {
            heap: self.heap.clone(),
            heaps: self.backend.heaps().of_ranks(&ranks),
            registrations: self.backend.registrations_of(&ranks),
            egress: self.egress.clone(),
            told_rooms: have_rooms.then_some(told_rooms),
            rooms,
            readers: self.readers.as_ref().map(|all| all.of_ranks(&ranks)),
            spins: self.spins,
            label: self.label_of_part(number, &ranks),
        };
        let joint = self.joint.as_ref().map(|joint| joint.part(number, &ranks));
        Engine::start(Beginning {
            bootstrap,
            server: self.server.clone(),
            config,
            joint,
            inherited: Some(inherited),
            heap: None,
        })
    }
}

/// The room that a rank has told, and the rest.
fn heard(told: &[u8]) -> (u32, &[u8]) {
    told.split_first_chunk()
        .map_or((NO_ROOM, &[]), |(room, rest)| (u32::from_le_bytes(*room), rest))
}
