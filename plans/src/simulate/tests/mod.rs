//! Calls of the catalogue on presets, by what is asked of them.

mod bounds;
mod chance;
mod inside;
mod links;
mod lowering;
mod published;
mod rails;
mod refusals;
mod shortcuts;
mod trace;

use super::*;
use crate::algorithms::{Algorithm, Encoding, Entry, catalogue, find};
use crate::collective::{Collective, Kind, Order};
use crate::schedule::{Chunking, SLOTS, Schedule};
use crate::topology::{Placement, Processor, Topology, preset};
use crate::tune::Limits;

/// Channels and tile of calls on GPUs, unless a test says something else: as many as NCCL uses
/// where bandwidths are published: an eighth of its buffers of 4 MiB.
const GPU_CHANNELS: usize = 24;
const GPU_TILE_BYTES: usize = 512 << 10;
const LL_TILE_BYTES: usize = 16 << 10;

/// A call on a topology.
struct Case {
    network: Network,
    collective: Collective,
    bytes: usize,
    options: Options,
}

impl Case {
    fn new(topology: &str, kind: Kind, ranks: usize, bytes: usize) -> Case {
        Case::on(&preset(topology).unwrap(), kind, ranks, bytes)
    }

    fn on(topology: &Topology, kind: Kind, ranks: usize, bytes: usize) -> Case {
        let network = Network::new(topology, ranks, None).unwrap();
        let (channels, tile_bytes) = match network.device(0).processor {
            Processor::Gpu => (GPU_CHANNELS, GPU_TILE_BYTES),
            Processor::Cpu => (1, Limits::HOST.plain_slot_bytes(1, ranks)),
        };
        let options = Options { channels, tile_bytes, ..Options::default() };
        let collective = match kind {
            Kind::SendRecv => Collective::send_recv(ranks, 0, 1),
            kind => Collective::new(kind, ranks),
        };
        Case { network, collective, bytes, options }
    }

    fn with(mut self, change: impl FnOnce(&mut Options)) -> Case {
        change(&mut self.options);
        self
    }

    fn layout(&self, input: Chunking, output: Chunking) -> Layout {
        let whole = matches!(
            self.collective.kind,
            Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::SendRecv
        );
        let count = self.bytes / 4 / if whole { 1 } else { self.collective.ranks };
        Layout::even(&self.collective, input, output, count, 16).unwrap()
    }

    fn entry(&self, entry: &Entry) -> Result<Prediction, SimulationError> {
        let subject = Subject::entry(entry, self.collective, self.placement(), Order::Any, SLOTS)?;
        let (input, output) = subject.chunking();
        let mut options = self.options.clone();
        if entry.encoding.has_flags() {
            options.tile_bytes = options.tile_bytes.min(LL_TILE_BYTES);
        }
        simulate(&subject, &self.layout(input, output), &self.network, &options)
    }

    fn placement(&self) -> Placement {
        Placement::uniform(self.network.per_node().min(self.collective.ranks))
    }

    fn run(&self, algorithm: Algorithm, encoding: Encoding) -> Prediction {
        self.entry(find(self.collective.kind, algorithm, encoding).unwrap()).unwrap()
    }

    fn busbw(&self, prediction: &Prediction) -> f64 {
        let n = self.collective.ranks as f64;
        self.bytes as f64 / prediction.time_ns * 2.0 * (n - 1.0) / n
    }
}

/// A schedule of ranks on one node.
fn schedule_of(kind: Kind, algorithm: Algorithm, encoding: Encoding, ranks: usize) -> Schedule {
    let (collective, placement) = (Collective::new(kind, ranks), Placement::one_node(ranks));
    let entry = find(kind, algorithm, encoding).unwrap();
    entry.schedule(collective, placement, Order::Any, SLOTS).unwrap()
}

fn link_bytes(prediction: &Prediction, name: &str) -> u64 {
    prediction.links.iter().find(|link| link.name == name).map_or(0, |link| link.bytes)
}

/// Every entry that can be simulated, with what it predicts.
fn every_entry(case: &Case) -> Vec<(&'static Entry, Prediction)> {
    // LL128 differs from LL in bytes alone.
    let entries = catalogue()
        .filter(|entry| entry.kind == case.collective.kind && entry.encoding != Encoding::Ll128);
    entries
        .filter_map(|entry| match case.entry(entry) {
            Ok(prediction) => Some((entry, prediction)),
            Err(
                SimulationError::WindowAcross { .. }
                | SimulationError::FabricDoesNotReduce { .. }
                | SimulationError::Unavailable(_),
            ) => None,
            Err(other) => panic!("{entry:?}: {other}"),
        })
        .collect()
}
