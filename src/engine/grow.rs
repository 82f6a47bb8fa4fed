//! How a communicator grows: its ranks meet those that join at a new rendezvous, which one of them
//! serves, and set up an engine of their own over the memory that they have.

use super::Engine;
use super::start::Beginning;
use crate::call::Meeting;
use crate::config::Config;
use crate::error::Error;
use oxccl_transports::{Seat, Server, UniqueId, deadline_in, shm};
use std::sync::Arc;

/// What a rank tells the others when a communicator grows.
struct Wish {
    /// How many ranks there are to be.
    world: usize,
    /// Where they meet, if this rank knows.
    id: String,
}

impl Wish {
    fn encode(&self) -> Vec<u8> {
        [&(self.world as u64).to_le_bytes()[..], self.id.as_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Wish> {
        let (world, id) = bytes.split_first_chunk::<8>()?;
        let world = usize::try_from(u64::from_le_bytes(*world)).ok()?;
        Some(Wish { world, id: String::from_utf8(id.to_vec()).ok()? })
    }
}

/// What all want, by what all have told: all ranks come to the same.
fn agreed(told: &[Vec<u8>]) -> Result<(usize, UniqueId), Error> {
    let refuse = |variable, detail: String| Err(Error::Config { variable, detail });
    let wishes: Option<Vec<Wish>> = told.iter().map(|bytes| Wish::decode(bytes)).collect();
    let wishes = wishes.unwrap_or_default();
    let Some(world) = wishes.first().map(|wish| wish.world) else {
        return refuse("world", "cannot be read".into());
    };
    if let Some(other) = wishes.iter().position(|wish| wish.world != world) {
        let theirs = wishes[other].world;
        return refuse("world", format!("is {world} on rank 0 and {theirs} on rank {other}"));
    }
    if world <= wishes.len() {
        let ranks = wishes.len();
        return refuse("world", format!("must be above {ranks}, the ranks there are, not {world}"));
    }
    let mut ids = wishes.iter().map(|wish| &wish.id).filter(|id| !id.is_empty());
    let Some(first) = ids.next() else {
        return refuse("id", "one rank must give what `invite` has made".into());
    };
    if ids.any(|id| id != first) {
        return refuse("id", "ranks give different ones".into());
    }
    match first.parse() {
        Ok(id) => Ok((world, id)),
        Err(_) => refuse("id", "cannot be read".into()),
    }
}

impl Engine {
    /// Makes the id by which ranks join, and serves them.
    pub(crate) fn invite(&mut self) -> Result<UniqueId, Error> {
        let address = self.bootstrap.address(self.config.interface.as_deref())?;
        let host = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
        let (id, server) = UniqueId::create_on(&format!("{host}:0"))?;
        self.invited = Some((id.clone(), Arc::new(server)));
        Ok(id)
    }

    /// Sets up these ranks and those that join. All of these call it.
    pub(crate) fn grow(&mut self, world: usize, id: Option<&UniqueId>) -> Result<Engine, Error> {
        let (number, record) = self.meet(Meeting::Grow)?;
        let deadline = deadline_in(self.ranks.poll.timeout());
        let id = id.map(UniqueId::to_string).unwrap_or_default();
        let told = self.told(&record, &Wish { world, id }.encode(), deadline);
        let told = told.inspect_err(|error| {
            self.ranks.end(error, number);
        })?;
        self.ranks.control.own_log().leave(number);
        let (world, id) = agreed(&told)?;
        let rank = self.ranks.rank;
        let config = Config { device: self.config.device, ..self.given.clone() };
        let seat = match config.nodes {
            None => Seat::here(rank, world),
            Some(nodes) => Seat::on_part(rank, world, nodes),
        };
        let bootstrap = shm::connect_as(&id, seat, deadline)?;
        bootstrap.set_silence(config.granted_silence())?;
        Engine::start(Beginning {
            bootstrap: Box::new(bootstrap),
            server: self.take_invited(&id),
            config,
            joint: None,
            inherited: None,
            heap: Some(self.heap.clone()),
        })
    }

    /// Serves the grown communicator's ranks from there on, if this rank has invited them.
    fn take_invited(&mut self, id: &UniqueId) -> Option<Arc<Server>> {
        let invited = self.invited.take_if(|(invited, _)| invited == id);
        invited.map(|(_, server)| server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_come_to_the_same() {
        let id = UniqueId::new("10.0.0.1", 7, oxccl_transports::Secret::from_bytes([1; 32]));
        let other = UniqueId::new("10.0.0.2", 7, oxccl_transports::Secret::from_bytes([1; 32]));
        let wish = |world, id: Option<&UniqueId>| {
            Wish { world, id: id.map(UniqueId::to_string).unwrap_or_default() }.encode()
        };
        let (world, found) = agreed(&[wish(3, None), wish(3, Some(&id))]).unwrap();
        assert!(world == 3 && found == id);
        let refused = [
            (vec![wish(3, None), wish(4, Some(&id))], "is 3 on rank 0 and 4 on rank 1"),
            (vec![wish(2, Some(&id)), wish(2, None)], "must be above 2"),
            (vec![wish(3, None), wish(3, None)], "one rank must give"),
            (vec![wish(3, Some(&other)), wish(3, Some(&id))], "ranks give different ones"),
            (vec![vec![1], wish(3, Some(&id))], "cannot be read"),
        ];
        for (told, why) in refused {
            let error = agreed(&told).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
