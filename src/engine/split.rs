//! How a communicator is split, and how it goes on without ranks that have failed: those of a part
//! set up an engine of their own, over the connection to the rendezvous and the memory that they
//! have.

use super::Engine;
use super::start::{Beginning, Inherited, agree, agreed};
use crate::call::{Meeting, Mix};
use crate::config::patience;
use crate::device::Label;
use crate::error::Error;
use oxccl_transports::{Error as Transport, Part, Side, deadline_in};
use std::hash::{Hash, Hasher};

impl Engine {
    /// Splits the communicator. All ranks call it. Nothing for a rank without a color.
    pub(crate) fn split(&mut self, side: Side) -> Result<Option<Engine>, Error> {
        let (number, record) = self.meet(Meeting::Split)?;
        let deadline = deadline_in(self.ranks.poll.timeout());
        // Of parts, what they are to agree on is told with the split.
        let part = self.bootstrap.split(side, &agreed(&self.given), deadline);
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
        let part = self.bootstrap.shrink(&ranks, &agreed(&self.given), deadline);
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

    /// What tells a part from others: its ranks come to the same.
    fn label_of_part(&self, number: u64, ranks: &[usize]) -> Label {
        let mut mix = Mix::default();
        (self.label, number, ranks).hash(&mut mix);
        Label { communicator: (mix.finish() >> 32) as u32, ..self.label }
    }

    /// Sets up this rank of a part, with the others of it.
    fn begin_part(&self, part: Part) -> Result<Engine, Error> {
        let Part { bootstrap, number, ranks, told } = part;
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
