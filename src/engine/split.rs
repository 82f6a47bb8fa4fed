//! How a communicator is split: the ranks say which of them come together, and those of a part set
//! up an engine of their own, over the connection to the rendezvous and the memory that they have.

use super::Engine;
use super::start::{Beginning, Inherited, agree, agreed};
use super::tally::Digest;
use crate::call::{Record, What};
use crate::error::Error;
use oxccl_transports::{Part, Side, deadline_in};

impl Engine {
    /// Splits the communicator. All ranks call it. Nothing for a rank without a color.
    pub(crate) fn split(&mut self, side: Side) -> Result<Option<Engine>, Error> {
        self.ranks.check()?;
        self.backend.wait();
        self.ranks.check()?;
        let number = self.tally.launch();
        let collective = self.tally.collective(Digest::of(&"split")).collective;
        let record = Record { collective, what: What::Split };
        self.ranks.control.log(self.ranks.rank).enter(number, &record.encode());
        let deadline = deadline_in(self.ranks.poll.timeout());
        // Of parts, what they are to agree on is told with the split.
        let part = self.bootstrap.split(side, &agreed(&self.given), deadline);
        let part = part.map_err(|error| self.unheard(error, &record));
        let part = part.inspect_err(|error| {
            self.ranks.end(error, number);
        })?;
        self.ranks.control.log(self.ranks.rank).leave(number);
        part.map(|part| self.begin_part(part, collective)).transpose()
    }

    /// Sets up this rank of a part, with the others of it.
    fn begin_part(&self, part: Part, split: u64) -> Result<Engine, Error> {
        let Part { bootstrap, ranks, told } = part;
        agree(&told, &self.given)?;
        let mut config = self.given.clone();
        config.device = self.config.device;
        // Of a part they follow from where its ranks are.
        config.ranks_per_node = None;
        config.nodes = config.nodes.map(|_| bootstrap.nodes().count());
        let inherited = Inherited {
            heap: self.heap.clone(),
            heaps: self.backend.heaps().of_ranks(&ranks),
            egress: self.egress.clone(),
            spins: self.spins,
        };
        let joint = self.joint.as_ref().map(|joint| joint.part(split, ranks[0], ranks.len()));
        Engine::start(Beginning {
            bootstrap,
            server: self.server.clone(),
            config,
            joint,
            inherited: Some(inherited),
        })
    }
}
