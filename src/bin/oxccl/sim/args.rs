//! The flags of `oxccl sim`, and what they ask for.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use oxccl::algorithms::{Algorithm, Encoding, Entry, catalogue};
use oxccl::schedule::SLOTS;
use oxccl::simulate::{Fold, Options};
use oxccl::topology::{Network, Placement, Topology};
use oxccl::{Collective, DataType, Kind, OpKind, Order};

use crate::bench::{Case, Shape, Step, progression};
use crate::failure::Failure;
use crate::options::{self, Size};
use crate::topo;

/// Predicts how long every algorithm takes on a topology.
///
/// The schedules are those that the executors run, with the same channels, tiles and rounds; docs/simulator.md says what is
/// modelled. Sizes mean what they mean for bench: the larger of one rank's input and output. Nothing is run: all
/// figures are predicted.
#[derive(Args, Clone, Debug)]
pub(crate) struct SimOptions {
    /// The collective.
    #[arg(value_name = "OP")]
    kind: Kind,
    /// A preset (oxccl topo --list), a file that ends with .toml, or "this" machine.
    #[arg(long, short = 't', default_value = "dgx-h100")]
    topology: String,
    /// Nodes of the topology [default: as it says, or as many as the ranks need].
    #[arg(long, value_parser = options::positive)]
    nodes: Option<usize>,
    /// How many ranks [default: one a device].
    #[arg(long, short = 'g', value_parser = options::positive)]
    ranks: Option<usize>,
    /// Ranks of a node [default: one a device].
    #[arg(long, value_parser = options::positive)]
    per_node: Option<usize>,

    /// These sizes, with K, M or G, and commas between.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["minbytes", "maxbytes"])]
    sizes: Vec<Size>,
    /// Smallest size.
    #[arg(short = 'b', long, default_value = "1K")]
    minbytes: Size,
    /// Largest size.
    #[arg(short = 'e', long, default_value = "1G")]
    maxbytes: Size,
    /// Each size is this much larger than the one before.
    #[arg(short = 'i', long, conflicts_with = "stepfactor")]
    stepbytes: Option<Size>,
    /// Each size is this many times the one before.
    #[arg(short = 'f', long, default_value_t = 4)]
    stepfactor: usize,

    /// The element type.
    #[arg(short = 'd', long, default_value = "float", value_parser = options::data_type)]
    datatype: DataType,
    /// The operation. (It does not change a prediction.)
    #[arg(short = 'o', long, default_value = "sum", value_parser = options::op)]
    op: OpKind,
    /// The root; the sender of send_recv, which sends to the next rank.
    #[arg(short = 'r', long, default_value_t = 0)]
    root: usize,
    /// The promised order of reduction: any, rank or tree.
    #[arg(long, default_value = "any")]
    order: Order,
    /// Only this algorithm.
    #[arg(long)]
    algorithm: Option<Algorithm>,
    /// Only this encoding.
    #[arg(long)]
    encoding: Option<Encoding>,
    /// Channels [default: the device's].
    #[arg(long, value_parser = options::positive)]
    channels: Option<usize>,
    /// Bytes that a channel handles per chunk and round [default: the device's slot].
    #[arg(long)]
    tile: Option<Size>,
    /// Lets switches that can reduce and multicast do so: NVLink SHARP, SHARP. (The executors cannot yet.)
    #[arg(long)]
    in_network: bool,
    /// Whether one node stands for all where ranks are alike: auto means from more than 1,024 ranks on.
    #[arg(long, value_enum, default_value = "auto")]
    fold: FoldChoice,

    /// Prints comma-separated values.
    #[arg(long, conflicts_with = "json")]
    pub(super) csv: bool,
    /// Prints one JSON object a row.
    #[arg(long)]
    pub(super) json: bool,
    /// Writes a page with plots, a schedule to be played, and the links' timeline.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Prints what each link carries at the largest size; needs --algorithm and --encoding.
    #[arg(long, conflicts_with_all = ["csv", "json"])]
    pub(super) links: bool,
    /// Writes every step of the largest size, for Perfetto or chrome://tracing; needs --algorithm and --encoding.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FoldChoice {
    Auto,
    Never,
    Always,
}

/// What is predicted.
#[derive(Debug)]
pub(super) struct Study {
    pub(super) case: Case,
    pub(super) collective: Collective,
    pub(super) order: Order,
    pub(super) topology: Topology,
    pub(super) network: Network,
    pub(super) sizes: Vec<usize>,
    pub(super) entries: Vec<&'static Entry>,
    channels: usize,
    tile: Option<usize>,
    pub(super) in_network: bool,
    fold: Fold,
}

impl SimOptions {
    /// What these flags ask for.
    ///
    /// # Errors
    /// Flags that do not fit together, or a topology that is wrong.
    pub(super) fn study(&self) -> Result<Study, Failure> {
        let mut topology = topo::load(&self.topology)?;
        let devices = topology.devices_per_node();
        let per_node = self.per_node.unwrap_or(devices);
        if per_node > devices {
            return Err(Failure::Usage(format!(
                "--per-node is {per_node}, but a node of {} has {devices} devices",
                topology.name
            )));
        }
        topology.nodes = match (self.nodes, self.ranks) {
            (Some(nodes), _) => nodes,
            (None, Some(ranks)) => topology.nodes.max(ranks.div_ceil(per_node)),
            (None, None) => topology.nodes,
        };
        let ranks = self.ranks.unwrap_or(topology.nodes * per_node);
        let network = Network::new(&topology, ranks, self.per_node)?;
        self.check(ranks)?;
        let case = Case { kind: self.kind, data_type: self.datatype, op: self.op, root: self.root };
        let study = Study {
            collective: self.collective(ranks),
            order: self.order,
            sizes: self.sizes()?,
            entries: self.entries(ranks, placement(&network))?,
            channels: self.channels.unwrap_or(network.device(0).channels),
            tile: self.tile.map(|size| size.0),
            in_network: self.in_network,
            fold: match self.fold {
                FoldChoice::Auto => Fold::Auto,
                FoldChoice::Never => Fold::Never,
                FoldChoice::Always => Fold::Always,
            },
            topology,
            network,
            case,
        };
        let one = [("--trace", self.trace.is_some()), ("--links", self.links)];
        match one.iter().find(|(_, asked)| *asked && study.entries.len() != 1) {
            Some((flag, _)) => Err(Failure::Usage(format!(
                "{flag} shows one algorithm: name it with --algorithm and --encoding"
            ))),
            None => Ok(study),
        }
    }

    fn check(&self, ranks: usize) -> Result<(), Failure> {
        let usage = |text: String| Err(Failure::Usage(text));
        if self.root >= ranks {
            return usage(format!("--root is {}, there are ranks 0 to {}", self.root, ranks - 1));
        }
        if self.kind == Kind::SendRecv && ranks == 1 {
            return usage("send_recv needs at least 2 ranks".to_owned());
        }
        if self.tile.is_some_and(|size| size.0 < 64 || !size.0.is_multiple_of(64)) {
            return usage("--tile must be a multiple of 64 bytes".to_owned());
        }
        if self.kind.reduces() && !self.op.applies_to(self.datatype) {
            return Err(oxccl::Error::Op { op: self.op, data_type: self.datatype }.into());
        }
        Ok(())
    }

    fn collective(&self, ranks: usize) -> Collective {
        match self.kind {
            Kind::SendRecv => Collective::send_recv(ranks, self.root, (self.root + 1) % ranks),
            kind if Case::is_rooted(kind) => Collective::rooted(kind, ranks, self.root),
            kind => Collective::new(kind, ranks),
        }
    }

    fn sizes(&self) -> Result<Vec<usize>, Failure> {
        if self.kind == Kind::Barrier {
            return Ok(vec![0]);
        }
        if !self.sizes.is_empty() {
            let mut sizes: Vec<usize> = self.sizes.iter().map(|size| size.0).collect();
            sizes.sort_unstable();
            sizes.dedup();
            return Ok(sizes);
        }
        let step = match self.stepbytes {
            Some(Size(bytes)) => Step::Bytes(bytes),
            None => Step::Factor(self.stepfactor),
        };
        progression(self.minbytes.0, self.maxbytes.0, step).map_err(Failure::Usage)
    }

    /// Those that exist for these ranks and keep the order.
    fn entries(&self, ranks: usize, placement: Placement) -> Result<Vec<&'static Entry>, Failure> {
        let of_kind = || catalogue().filter(|entry| entry.kind == self.kind);
        let fits = |entry: &&Entry| {
            self.algorithm.is_none_or(|algorithm| algorithm == entry.algorithm)
                && self.encoding.is_none_or(|encoding| encoding == entry.encoding)
                && entry.keeps(self.order, placement, self.datatype)
        };
        let fitting: Vec<&'static Entry> = of_kind().filter(fits).collect();
        if fitting.is_empty() {
            let names: Vec<String> = of_kind().map(name).collect();
            return Err(Failure::Usage(format!(
                "no such algorithm keeps order {} for {}; there are {}",
                self.order,
                self.kind,
                names.join(", ")
            )));
        }
        let exists = |entry: &&Entry| entry.check(ranks, placement, SLOTS).is_ok();
        let entries: Vec<&'static Entry> = fitting.iter().copied().filter(exists).collect();
        let absent = fitting.iter().find_map(|entry| entry.check(ranks, placement, SLOTS).err());
        match absent {
            Some(why) if entries.is_empty() => Err(Failure::Usage(why.to_string())),
            _ => Ok(entries),
        }
    }
}

impl Study {
    /// The same on another network.
    pub(super) fn on(
        &self,
        topology: Topology,
        network: Network,
        collective: Collective,
        case: Case,
    ) -> Study {
        Study {
            case,
            collective,
            topology,
            network,
            order: self.order,
            sizes: self.sizes.clone(),
            entries: self.entries.clone(),
            channels: self.channels,
            tile: self.tile,
            in_network: self.in_network,
            fold: Fold::Never,
        }
    }

    /// Which ranks share a node.
    pub(super) fn placement(&self) -> Placement {
        placement(&self.network)
    }

    pub(super) fn ranks(&self) -> usize {
        self.collective.ranks
    }

    pub(super) fn shape(&self, bytes: usize) -> Shape {
        self.case.shape(self.ranks(), bytes)
    }

    /// How an entry is lowered and simulated.
    pub(super) fn options(&self, entry: &Entry) -> Options {
        let device = self.network.device(0);
        let slot = match entry.encoding {
            Encoding::Ll => device.ll_slot_bytes,
            _ => device.slot_bytes,
        };
        Options {
            element_bytes: self.case.data_type.len_bytes(),
            channels: self.channels(entry),
            tile_bytes: self.tile.unwrap_or(slot),
            in_network: self.in_network,
            fold: self.fold,
            ..Options::default()
        }
    }

    /// Send/recv has one set of connections.
    pub(super) fn channels(&self, entry: &Entry) -> usize {
        if entry.kind == Kind::SendRecv { 1 } else { self.channels }
    }
}

/// Which of its ranks share a node.
fn placement(network: &Network) -> Placement {
    Placement::uniform(network.per_node().min(network.ranks()))
}

/// An entry's name in tables.
pub(super) fn name(entry: &Entry) -> String {
    format!("{}/{}", entry.algorithm, entry.encoding)
}
