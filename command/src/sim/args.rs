//! The flags of `oxccl sim`, and what they ask for.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry, catalogue};
use oxccl::plans::msccl::Blocks;
use oxccl::plans::simulate::{Fold, Options};
use oxccl::plans::topology::{Network, Placement, Processor, Topology};
use oxccl::plans::tune::{self, Limits, Question};
use oxccl::{Collective, Config, CustomSchedule, DataType, Kind, OpKind, Order, Pin};

use super::candidate::Candidate;
use super::chance::Chance;
use super::report::{Form, Shown};
use crate::bench::{Case, Shape, Step, progression};
use crate::failure::Failure;
use crate::options::{self, Size, Subject};
use crate::{names, topo};

/// So many are predicted in minutes where few stand for all. Of 100,000 no row came in eight.
const MOST_RANKS: usize = 65_536;

/// Predicts how long every algorithm takes on a topology.
///
/// The schedules are those that the executors run, with the same channels, tiles and rounds;
/// docs/simulator.md says what is modelled. Sizes mean what they mean for bench: the larger of one
/// rank's input and output. Nothing is run: all figures are predicted.
#[derive(Args, Clone, Debug)]
pub(crate) struct SimOptions {
    /// The collective; or a file with a custom schedule, as --schedule.
    #[arg(value_name = "OP|FILE", value_parser = subject, required_unless_present = "schedule")]
    subject: Option<Subject<Kind>>,
    #[arg(skip)]
    kind: Option<Kind>,
    /// A custom schedule in a file, JSON or MSCCL's XML, for its ranks, beside the algorithms that
    /// there are for its collective.
    #[arg(long, value_name = "FILE")]
    schedule: Option<PathBuf>,
    /// What becomes of the thread blocks of MSCCL's XML: merged to one list of each rank, or lists
    /// that run side by side, each on a channel of its own.
    #[arg(long, value_name = "merged|lists", default_value = "merged")]
    blocks: Blocks,
    /// A preset (oxccl topo --list), a file that ends with .toml or, of NCCL, with
    /// .xml, or "this" machine.
    #[arg(long, short = 't', default_value = "dgx-h100")]
    topology: String,
    /// Nodes of the topology [default: as it says, or as many as the ranks need]; with commas
    /// between, worlds of so many nodes one after the other, which the page shows together.
    #[arg(long, value_delimiter = ',', value_parser = options::positive)]
    nodes: Vec<usize>,
    /// How many ranks [default: one a device; the schedule's].
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
    /// The root; the sender of send_recv, which sends to the next rank [default: 0; the
    /// schedule's].
    #[arg(short = 'r', long)]
    root: Option<usize>,
    /// The promised order of reduction: any, rank or tree.
    #[arg(long, default_value = "any", value_parser = names::order)]
    order: Order,
    /// Only this algorithm.
    #[arg(long, value_parser = names::algorithm)]
    algorithm: Option<Algorithm>,
    /// Only this encoding.
    #[arg(long, value_parser = names::encoding)]
    encoding: Option<Encoding>,
    /// Channels [default: as many as a call would use, by the settings in OXCCL_ variables].
    #[arg(long, value_parser = options::positive)]
    channels: Option<usize>,
    /// Bytes that a channel handles per chunk and round [default: a slot, by the settings].
    #[arg(long)]
    tile: Option<Size>,
    /// Lets switches that can reduce and multicast do so: NVLink SHARP, SHARP. (Of the executors,
    /// GPUs can with nvls.)
    #[arg(long)]
    in_network: bool,
    /// Predicts besides what NCCL takes, by the fastest of its algorithms, with costs of kernels
    /// that are fitted on published measurements.
    #[arg(long)]
    nccl: bool,
    /// Whether few ranks stand for all where they are alike: auto means from more than 1,024 ranks
    /// on.
    #[arg(long, value_enum, default_value = "auto")]
    fold: FoldChoice,
    #[command(flatten)]
    chance: Chance,

    /// Shows all algorithms at each size.
    #[arg(long, conflicts_with = "best")]
    all: bool,
    /// Shows so many of the fastest at each size.
    #[arg(long, value_name = "COUNT", default_value = "3", value_parser = options::positive)]
    best: usize,
    /// Prints comma-separated values; with =FILE writes them there, beside what is printed.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    csv: Option<Option<PathBuf>>,
    /// Prints one JSON object a row.
    #[arg(long)]
    json: bool,
    /// Writes a figure of what the table shows: time over size, a line an algorithm.
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Writes a page with plots, a schedule to be played, and the links' timeline.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Prints what each link carries at the largest size; needs --algorithm and --encoding, or
    /// --schedule.
    #[arg(long, conflicts_with_all = ["csv", "json"])]
    pub(super) links: bool,
    /// Writes every step of the largest size, for Perfetto or chrome://tracing; needs --algorithm
    /// and --encoding, or --schedule.
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
#[derive(Clone, Debug)]
pub(super) struct Study {
    pub(super) case: Case,
    pub(super) collective: Collective,
    pub(super) order: Order,
    pub(super) topology: Topology,
    pub(super) network: Network,
    pub(super) sizes: Vec<usize>,
    /// The custom schedule first, if there is one.
    pub(super) candidates: Vec<Candidate>,
    /// What communicators of the ranks would be set to.
    config: Config,
    tile: Option<usize>,
    pub(super) in_network: bool,
    /// Whether NCCL is predicted besides.
    pub(super) nccl: bool,
    fold: Fold,
    pub(super) chance: Chance,
}

fn subject(text: &str) -> Result<Subject<Kind>, String> {
    Subject::parse(text, names::kind)
}

impl SimOptions {
    /// A collective at one size, with all else as it is if nothing is said.
    pub(super) fn of_one(
        kind: Kind,
        bytes: Size,
        topology: &str,
        ranks: Option<usize>,
        per_node: Option<usize>,
    ) -> SimOptions {
        SimOptions {
            subject: None,
            kind: Some(kind),
            schedule: None,
            blocks: Blocks::default(),
            topology: topology.to_owned(),
            nodes: Vec::new(),
            ranks,
            per_node,
            sizes: vec![bytes],
            minbytes: bytes,
            maxbytes: bytes,
            stepbytes: None,
            stepfactor: 4,
            datatype: DataType::F32,
            op: OpKind::Sum,
            root: None,
            order: Order::Any,
            algorithm: None,
            encoding: None,
            channels: None,
            tile: None,
            in_network: false,
            nccl: false,
            fold: FoldChoice::Auto,
            chance: Chance::default(),
            all: true,
            best: 1,
            csv: None,
            json: false,
            svg: None,
            html: None,
            links: false,
            trace: None,
        }
    }

    /// What these flags ask for: a study for each number of nodes, the smallest first.
    ///
    /// # Errors
    /// Flags that do not fit together, a topology that is wrong, or a schedule that is.
    pub(super) fn studies(&self) -> Result<Vec<Study>, Failure> {
        let (kind, schedule) = Subject::divide(self.subject.as_ref(), self.schedule.as_deref())?;
        let mut counts = self.nodes.clone();
        counts.sort_unstable();
        counts.dedup();
        if counts.len() < 2 {
            let one = SimOptions { kind, schedule, subject: None, ..self.clone() };
            return Ok(vec![one.study_of_one()?]);
        }
        let of_one = [
            ("--ranks", self.ranks.is_some()),
            ("--schedule", schedule.is_some()),
            ("--links", self.links),
            ("--trace", self.trace.is_some()),
            ("--svg", self.svg.is_some()),
        ];
        if let Some((flag, _)) = of_one.into_iter().find(|(_, is_said)| *is_said) {
            let text = format!("{flag} is for one number of nodes, and --nodes names several");
            return Err(Failure::Usage(text));
        }
        let study = |nodes: usize| {
            let nodes = vec![nodes];
            SimOptions { kind, nodes, subject: None, ..self.clone() }.study_of_one()
        };
        counts.into_iter().map(study).collect()
    }

    /// The same where the collective is known.
    ///
    /// # Errors
    /// As [`SimOptions::studies`].
    pub(super) fn study_of_one(&self) -> Result<Study, Failure> {
        let read = |path: &Path| CustomSchedule::read_with(path, self.blocks);
        let custom = self.schedule.as_deref().map(read).transpose()?.map(Arc::new);
        let (topology, network) = self.topology(custom.as_deref())?;
        let collective = match &custom {
            Some(custom) => self.collective_of(custom)?,
            None => self.collective(network.ranks())?,
        };
        let mut config = topo::config(&network)?;
        let needed = custom.as_deref().map_or(1, CustomSchedule::needed_channels);
        config.max_channels = config.max_channels.max(needed);
        let (kind, root) = (collective.kind, collective.root);
        let case = Case { kind, data_type: self.datatype, op: self.op, root };
        self.check(kind)?;
        if self.nccl && network.nccl_costs().is_none() {
            return Err(Failure::Usage(format!(
                "--nccl: what NCCL's kernels take is not known of the devices of {}; a topology's \
                 file says it as devices.KIND.nccl, which oxccl topo dgx-h100 --toml shows",
                topology.name
            )));
        }
        let entries = self.entries(&collective, &network, (config.limits(), custom.is_some()))?;
        let entries = entries.into_iter().map(Candidate::Entry);
        if let (true, None) = (self.links || self.trace.is_some(), &custom)
            && entries.len() != 1
        {
            let flag = if self.links { "--links" } else { "--trace" };
            return Err(Failure::Usage(format!(
                "{flag} shows one algorithm: name it with --algorithm and --encoding"
            )));
        }
        Ok(Study {
            case,
            collective,
            order: self.order,
            sizes: self.sizes(kind)?,
            candidates: custom.map(Candidate::Custom).into_iter().chain(entries).collect(),
            config: Config {
                pin: Pin { channels: self.channels.or(config.pin.channels), ..Pin::default() },
                ..config
            },
            tile: self.tile.map(|size| size.0),
            in_network: self.in_network,
            nccl: self.nccl,
            fold: match self.fold {
                _ if self.chance.differs() => Fold::Never,
                FoldChoice::Auto => Fold::Auto,
                FoldChoice::Never => Fold::Never,
                FoldChoice::Always => Fold::Always,
            },
            chance: self.chance.clone(),
            network: self.chance.disturb(&topology, network)?,
            topology,
        })
    }

    /// How it is printed.
    pub(super) fn form(&self) -> Form {
        match (self.json, &self.csv) {
            (true, _) => Form::Json,
            (_, Some(None)) => Form::Csv,
            _ => Form::Table(self.shown()),
        }
    }

    /// How many the table and the figure show.
    pub(super) fn shown(&self) -> Shown {
        if self.all { Shown::All } else { Shown::Best(self.best) }
    }

    /// The file for comma-separated values.
    pub(super) fn csv_file(&self) -> Option<&Path> {
        self.csv.as_ref().and_then(Option::as_deref)
    }

    /// The topology with as many nodes as the ranks need, and the ranks on its devices.
    fn topology(&self, custom: Option<&CustomSchedule>) -> Result<(Topology, Network), Failure> {
        let ranks = self.ranks.or(custom.map(|custom| custom.schedule().collective.ranks));
        let (topology, network) =
            topo::with_ranks(&self.topology, self.nodes.first().copied(), ranks, self.per_node)?;
        match network.ranks() {
            ..=MOST_RANKS => Ok((topology, network)),
            ranks => {
                Err(Failure::Usage(format!("{ranks} ranks: up to {MOST_RANKS} are predicted")))
            }
        }
    }

    fn check(&self, kind: Kind) -> Result<(), Failure> {
        if self.json && self.csv == Some(None) {
            let text = "--json and --csv both say what is printed: with --csv=FILE both are had";
            return Err(Failure::Usage(text.to_owned()));
        }
        if self.tile.is_some_and(|size| size.0 < 64 || !size.0.is_multiple_of(64)) {
            return Err(Failure::Usage("--tile must be a multiple of 64 bytes".to_owned()));
        }
        if kind.reduces() && !self.op.applies_to(self.datatype) {
            return Err(oxccl::Error::Op { op: self.op, data_type: self.datatype }.into());
        }
        Ok(())
    }

    /// What a custom schedule carries out, unless the flags ask for something else.
    fn collective_of(&self, custom: &CustomSchedule) -> Result<Collective, Failure> {
        let made = custom.schedule().collective;
        let asked = [
            ("OP", self.kind.map(|kind| kind.to_string()), made.kind.to_string()),
            ("--ranks", self.ranks.map(|ranks| ranks.to_string()), made.ranks.to_string()),
            ("--root", self.root.map(|root| root.to_string()), made.root.to_string()),
        ];
        for (flag, asked, made) in asked {
            if let Some(asked) = asked.filter(|asked| *asked != made) {
                return Err(Failure::Usage(format!(
                    "{flag} is {asked}, but the schedule {} is made for {made}",
                    custom.name()
                )));
            }
        }
        if self.order != Order::Any && made.kind.reduces() && self.order != custom.order() {
            return Err(Failure::Usage(format!(
                "--order is {}, but the schedule {} promises order {}",
                self.order,
                custom.name(),
                custom.order()
            )));
        }
        Ok(made)
    }

    fn collective(&self, ranks: usize) -> Result<Collective, Failure> {
        let root = self.root.unwrap_or(0);
        if root >= ranks {
            let text = format!("--root is {root}, there are ranks 0 to {}", ranks - 1);
            return Err(Failure::Usage(text));
        }
        match self.kind {
            Some(Kind::SendRecv) if ranks == 1 => {
                Err(Failure::Usage("send_recv needs at least 2 ranks".to_owned()))
            }
            Some(Kind::SendRecv) => Ok(Collective::send_recv(ranks, root, (root + 1) % ranks)),
            Some(kind) if kind.is_rooted() => Ok(Collective::rooted(kind, ranks, root)),
            Some(kind) => Ok(Collective::new(kind, ranks)),
            // The parser asks for one of the two.
            None => Err(Failure::Usage("name a collective, or a --schedule".to_owned())),
        }
    }

    fn sizes(&self, kind: Kind) -> Result<Vec<usize>, Failure> {
        if kind == Kind::Barrier {
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

    /// Those that exist for these ranks and keep the order: at least one, unless there is something
    /// else to be simulated.
    fn entries(
        &self,
        collective: &Collective,
        network: &Network,
        (limits, may_be_none): (Limits, bool),
    ) -> Result<Vec<&'static Entry>, Failure> {
        let placement = placement(network);
        let lines = network.carries_lines();
        let several_nodes = network.nodes() > 1;
        let switched = network.switched().is_some() || self.in_network;
        let is_named = self.algorithm.is_some() || self.encoding.is_some();
        let (kind, ranks) = (collective.kind, collective.ranks);
        let of_kind = || catalogue().filter(|entry| entry.kind == kind);
        let fits = |entry: &&Entry| {
            self.algorithm.is_none_or(|algorithm| algorithm == entry.algorithm)
                && self.encoding.is_none_or(|encoding| encoding == entry.encoding)
                && entry.keeps(self.order, placement, self.datatype)
                && (lines || entry.encoding != Encoding::Ll128)
                && (switched || self.algorithm.is_some() || !entry.is_in_network())
                && (network.fabric_reduces()
                    || self.algorithm.is_some()
                    || !entry.is_in_fabric())
                // Between nodes there are slots alone, unless somebody wants to know.
                && (!several_nodes || is_named || entry.crosses_nodes())
        };
        let fitting: Vec<&'static Entry> = of_kind().filter(fits).collect();
        if fitting.is_empty() {
            let names: Vec<String> = of_kind().map(|e| Candidate::Entry(e).name()).collect();
            return Err(Failure::Usage(format!(
                "no such algorithm keeps order {} for {kind}; there are {}",
                self.order,
                names.join(", ")
            )));
        }
        let slots = limits.slots;
        let exists = |entry: &&Entry| entry.check(ranks, placement, slots).is_ok();
        let entries: Vec<&'static Entry> = fitting.iter().copied().filter(exists).collect();
        let absent = fitting.iter().find_map(|entry| entry.check(ranks, placement, slots).err());
        match absent {
            Some(why) if entries.is_empty() && !may_be_none => Err(Failure::Usage(why.to_string())),
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
            candidates: self.candidates.clone(),
            config: self.config.clone(),
            tile: self.tile,
            in_network: self.in_network,
            nccl: false,
            fold: Fold::Never,
            chance: Chance::default(),
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

    /// How a candidate of so many bytes is lowered and simulated: as the runtime would carry it
    /// out.
    pub(super) fn options(&self, candidate: &Candidate, bytes: usize) -> Options {
        let question = self.question(bytes);
        let (channels, tile_bytes) = match candidate {
            Candidate::Entry(entry) => {
                let plan = tune::plan_of(&question, entry, self.processor());
                (plan.channels, plan.tile_bytes)
            }
            Candidate::Custom(custom) => {
                let tile = custom.tile_bytes(&question.limits, question.nodes);
                (custom.channels(&question, self.processor()), tile)
            }
        };
        Options {
            element_bytes: self.case.data_type.len_bytes(),
            channels,
            tile_bytes: self.tile.unwrap_or(tile_bytes),
            in_network: self.in_network,
            fold: self.fold,
            noise: self.chance.noise(),
            ..Options::default()
        }
    }

    /// Which of the candidates the runtime would choose for so many bytes.
    pub(super) fn choice(&self, bytes: usize) -> Option<usize> {
        let question = self.question(bytes);
        let plan = match self.processor() {
            Processor::Cpu => tune::plan(&question),
            Processor::Gpu => tune::plan_on_gpu(None, &question),
        };
        let plan = plan.ok()?;
        self.candidates.iter().position(|candidate| {
            (candidate.algorithm(), candidate.encoding()) == (plan.algorithm, plan.encoding)
        })
    }

    /// Whether few ranks stand for all.
    pub(super) fn fold(&self) -> Fold {
        self.fold
    }

    /// What channels and slots the ranks have.
    pub(super) fn limits(&self) -> Limits {
        self.config.limits()
    }

    /// Whether there are slots for LL128 messages.
    pub(super) fn has_ll128(&self, bytes: usize) -> bool {
        self.question(bytes).ll128
    }

    /// Channels that a call has at most.
    pub(super) fn most_channels(&self, bytes: usize) -> usize {
        self.question(bytes).limits.max_channels
    }

    fn processor(&self) -> Processor {
        self.network.device(0).processor
    }

    /// What the tuner is asked for a call of so many bytes, in memory of `comm.alloc`.
    fn question(&self, bytes: usize) -> Question {
        Question {
            collective: self.collective,
            total_bytes: self.shape(bytes).bytes(self.case.data_type),
            placement: self.placement(),
            data_type: self.case.data_type,
            op: self.case.op,
            order: if self.case.kind.reduces() { self.order } else { Order::Any },
            in_place: false,
            windows: true,
            cma: None,
            nodes: self.network.nodes(),
            ll128: self.processor() == Processor::Gpu && self.network.carries_lines(),
            multicast: self.network.switched().filter(|_| self.processor() == Processor::Gpu),
            // What could run is asked for.
            fabric_reduces: false,
            limits: self.limits(),
            pin: self.config.pin,
            cache_bytes: self.config.last_level_cache_bytes(),
        }
    }
}

/// Which of its ranks share a node.
fn placement(network: &Network) -> Placement {
    Placement::filled(network.ranks(), network.per_node())
}
