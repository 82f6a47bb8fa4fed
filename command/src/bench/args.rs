//! The flags of `oxccl bench`: nccl-tests' in their meaning, and some more.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry, catalogue};
use oxccl::plans::schedule::SLOTS;
use oxccl::{Config, CustomSchedule, DataType, Device, Kind, OpKind, Order};

use super::case::Case;
use super::gpu::{self, CompareOptions};
use super::group::{self, GroupOptions};
use super::sizes;
use crate::failure::Failure;
use crate::options::{self, Choice, Size, Target};

/// Times collectives and checks their results, with nccl-tests' flags and table.
///
/// Ranks are started as processes of this machine, one pinned to each core where there are enough;
/// under torchrun, mpirun, srun or `oxccl run` this process is one of the ranks that those started.
/// A time is the mean of a loop of calls, barrier before it, and of the slowest rank; the table has
/// the median over repeats.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchOptions {
    /// The collective, or all: all_reduce, reduce_scatter, all_gather, all_to_all, broadcast,
    /// reduce, gather, scatter, send_recv, barrier; or group: buckets of --bucket-op [default: the schedule's].
    #[arg(value_name = "OP", value_parser = options::target, required_unless_present = "schedule")]
    target: Option<Target>,
    /// What a group groups.
    #[command(flatten)]
    pub(crate) group: GroupOptions,
    /// What it is compared with.
    #[command(flatten)]
    pub(crate) compare: CompareOptions,

    /// Smallest size; K, M and G are powers of 1,024.
    #[arg(short = 'b', long, default_value = "8")]
    pub(crate) minbytes: Size,
    /// Largest size.
    #[arg(short = 'e', long, default_value = "64M")]
    pub(crate) maxbytes: Size,
    /// Each size is this much larger than the one before.
    #[arg(short = 'i', long, conflicts_with = "stepfactor")]
    pub(crate) stepbytes: Option<Size>,
    /// Each size is this many times the one before.
    #[arg(short = 'f', long, default_value_t = 2)]
    pub(crate) stepfactor: usize,

    /// Calls in a timed loop [default: as many as take half of --repeat-ms to all of it].
    #[arg(short = 'n', long, value_parser = options::positive)]
    pub(crate) iters: Option<usize>,
    /// Calls before the first timed one.
    #[arg(short = 'w', long, default_value_t = 5)]
    pub(crate) warmup_iters: usize,
    /// Calls that count as one iteration.
    #[arg(short = 'm', long, default_value = "1", value_parser = options::positive)]
    pub(crate) agg_iters: usize,
    /// Timed loops; the median counts.
    #[arg(long, default_value = "7", value_parser = options::positive)]
    pub(crate) repeats: usize,
    /// About how long a timed loop takes, where -n does not say.
    #[arg(long, default_value = "10", value_parser = options::positive)]
    pub(crate) repeat_ms: usize,
    /// Whether results are checked (1) or not (0): before and after timing, against all ranks' inputs.
    #[arg(short = 'c', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) check: u8,

    /// The operation, or all: sum, prod, min, max, avg, mulsum, band, bor, bxor.
    #[arg(short = 'o', long, default_value = "sum", value_parser = options::ops)]
    pub(crate) op: Choice<OpKind>,
    /// The element type, or all: int8, uint8, int32, uint32, int64, uint64, half, bfloat16, float,
    /// double, f8e4m3, f8e5m2.
    #[arg(short = 'd', long, default_value = "float", value_parser = options::data_types)]
    pub(crate) datatype: Choice<DataType>,
    /// The root, or -1 for every rank in turn.
    #[arg(short = 'r', long, default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) root: i64,
    /// Calls of a CUDA graph that is launched again and again, with --compare: besides calls one by one, unless it is 0. There
    /// are no CUDA graphs on the host.
    #[arg(short = 'G', long, alias = "cudagraph", default_value_t = 0)]
    pub(crate) graph: usize,

    /// How many ranks to start [default: 2; the schedule's].
    #[arg(short = 'g', long = "ranks", visible_alias = "ngpus", value_parser = options::ranks)]
    pub(crate) ranks: Option<usize>,
    /// Lets this machine stand for so many nodes, which share no memory [default: 1].
    #[arg(long, value_parser = options::positive)]
    pub(crate) nodes: Option<usize>,
    /// So many consecutive ranks count as a node, for hierarchical algorithms [default: as many as share one].
    #[arg(long, value_parser = options::positive)]
    pub(crate) per_node: Option<usize>,
    /// Carries out its collective by the schedule of this JSON file.
    #[arg(long, conflicts_with_all = ["algorithm", "encoding"])]
    pub(crate) schedule: Option<PathBuf>,
    /// Ranks are threads of this process.
    #[arg(long)]
    pub(crate) threads: bool,
    /// What ranks compute on: host, cuda or cuda:N. Calls block, on a GPU too; for streams and graphs see --compare.
    #[arg(long, value_parser = options::device)]
    pub(crate) device: Option<Device>,
    /// Whether ranks share one launch for each call, as threads on one GPU do if they can. true: it is an error if they cannot. false: each
    /// launches by itself, for which their streams need connections of their own.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) single_launch: Option<bool>,
    /// Buffers are ordinary memory of each rank, which the others cannot reach, instead of
    /// comm.alloc's.
    #[arg(long)]
    pub(crate) private: bool,
    /// Leaves ranks on whatever cores the system gives them.
    #[arg(long)]
    pub(crate) no_bind: bool,

    /// Uses this algorithm instead of the tuner's choice.
    #[arg(long)]
    pub(crate) algorithm: Option<Algorithm>,
    /// Uses this encoding instead of the tuner's choice.
    #[arg(long)]
    pub(crate) encoding: Option<Encoding>,
    /// Uses this many channels instead of the tuner's choice.
    #[arg(long, value_parser = options::positive)]
    pub(crate) channels: Option<usize>,
    /// The promised order of reduction: any, rank or tree [default: any].
    #[arg(long)]
    pub(crate) order: Option<Order>,
    /// Seconds that a call may wait for other ranks [default: 30].
    #[arg(long, value_parser = options::seconds)]
    pub(crate) timeout: Option<Duration>,

    /// Prints comma-separated values.
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Prints one JSON object a row.
    #[arg(long)]
    pub(crate) json: bool,
    /// Writes the steps of one more call of the largest size, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<std::path::PathBuf>,
    /// Does not measure the machine before.
    #[arg(long)]
    pub(crate) no_probe: bool,
}

impl BenchOptions {
    /// With what a schedule of one's own says and the options leave open.
    ///
    /// # Errors
    /// A schedule that cannot be read or proven, or is of another collective than the one that is asked for.
    pub(crate) fn completed(&self) -> Result<BenchOptions, Failure> {
        let mut options = self.clone();
        if let Some(path) = &self.schedule {
            let schedule = CustomSchedule::read(path)?;
            let collective = schedule.schedule().collective;
            let target = Target::Kinds(Choice::One(collective.kind));
            if self.target.is_some_and(|wanted| wanted != target) {
                return Err(Failure::Usage(format!(
                    "{} carries out {} and nothing else: leave OP away",
                    path.display(),
                    collective.kind
                )));
            }
            if collective.kind == Kind::SendRecv {
                return Err(Failure::Usage(format!(
                    "{} is a message from rank {} to rank {} alone, and bench sends one from every rank to the next: \
                     `oxccl verify` proves it, and a program runs it by Config::schedule",
                    path.display(),
                    collective.root,
                    collective.receiver
                )));
            }
            options.target = Some(target);
            options.ranks = self.ranks.or(Some(collective.ranks));
        }
        Ok(options)
    }

    /// What is measured. Completed options have it.
    pub(crate) fn target(&self) -> Target {
        self.target.unwrap_or(Target::Kinds(Choice::All))
    }

    /// The configuration that calls are measured with.
    ///
    /// # Errors
    /// An environment variable that cannot be read.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let device = self.device.map(|device| device.to_string());
        let mut config = Config::from_lookup(|name| match (&device, name) {
            (Some(device), "OXCCL_DEVICE") => Some(device.into()),
            _ => std::env::var_os(name),
        })?;
        gpu::fit(&mut config, self.heap_needed()?, self.compare.image.as_deref())?;
        config.advanced.single_launch = self.single_launch.or(config.advanced.single_launch);
        config.timeout = self.timeout.unwrap_or(config.timeout);
        config.order = self.order.unwrap_or(config.order);
        config.nodes = self.nodes.or(config.nodes);
        config.ranks_per_node = self.per_node.or(config.ranks_per_node);
        if let Some(path) = &self.schedule {
            config.schedule = Some(Arc::new(CustomSchedule::read(path)?));
        }
        config.pin.algorithm = self.algorithm.or(config.pin.algorithm);
        config.pin.encoding = self.encoding.or(config.pin.encoding);
        config.pin.channels = self.channels.or(config.pin.channels);
        if let Some(channels) = config.pin.channels {
            config.max_channels = config.max_channels.max(channels);
        }
        Ok(config)
    }

    /// Of a GPU's heap, whose memory is taken at the start: the longest of two buffers that are needed.
    fn heap_needed(&self) -> Result<usize, Failure> {
        if self.target != Some(Target::Group) {
            return Ok(self.maxbytes.0);
        }
        let counts = self.group.counts(self.ranks.unwrap_or(super::RANKS))?;
        // And what groups' tables take.
        Ok(group::heap_bytes(&counts) / 2 + (8 << 20))
    }

    /// The sizes to measure.
    ///
    /// # Errors
    /// Sizes that have no end.
    pub(crate) fn sizes(&self) -> Result<Vec<usize>, Failure> {
        let step = match self.stepbytes {
            Some(Size(bytes)) => sizes::Step::Bytes(bytes),
            None => sizes::Step::Factor(self.stepfactor),
        };
        sizes::progression(self.minbytes.0, self.maxbytes.0, step).map_err(Failure::Usage)
    }

    /// What to measure with this many ranks.
    ///
    /// # Errors
    /// Wishes that do not fit together, or that nothing can fulfil.
    pub(crate) fn cases(&self, ranks: usize) -> Result<Vec<Case>, Failure> {
        let config = self.config()?;
        self.sizes()?;
        self.check_modes(&config)?;
        let roots = self.roots(ranks)?;
        let mut cases = Vec::new();
        let kinds = match self.target() {
            Target::Kinds(kinds) => kinds,
            Target::Group => Choice::One(Kind::AllReduce),
        };
        for kind in kinds.of(&Kind::ALL) {
            match can_run(kind, ranks, &config) {
                Err(_) if kinds == Choice::All => continue,
                other => other.map_err(Failure::Usage)?,
            }
            for data_type in self.datatype.of(&oxccl::DataType::ALL) {
                for op in self.ops(kind, data_type)? {
                    let own_root = [0];
                    let roots = if kind.is_rooted() { &roots[..] } else { &own_root };
                    cases.extend(roots.iter().map(|&root| Case { kind, data_type, op, root }));
                }
            }
        }
        if self.trace.is_some() && cases.len() > 1 {
            let text = "--trace shows one call: name one collective, type, operation and root";
            return Err(Failure::Usage(text.to_owned()));
        }
        match cases.is_empty() {
            true => Err(Failure::Usage("no collective fits what is pinned".to_owned())),
            false => Ok(cases),
        }
    }

    fn check_modes(&self, config: &Config) -> Result<(), Failure> {
        let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
        if self.graph > 0 && self.compare.compare.is_none() {
            return usage("--graph: there are no CUDA graphs on the host; leave it at 0");
        }
        if self.private && config.pin.encoding == Some(Encoding::Windows) {
            return usage(
                "--encoding windows reads peers' buffers in place, --private makes that \
                 impossible: leave one of them away",
            );
        }
        Ok(())
    }

    fn roots(&self, ranks: usize) -> Result<Vec<usize>, Failure> {
        match usize::try_from(self.root) {
            Ok(root) if root < ranks => Ok(vec![root]),
            Err(_) if self.root == -1 => Ok((0..ranks).collect()),
            _ => Err(Failure::Usage(format!(
                "--root is {}, there are ranks 0 to {}, and -1 for all",
                self.root,
                ranks - 1
            ))),
        }
    }

    fn ops(&self, kind: Kind, data_type: DataType) -> Result<Vec<OpKind>, Failure> {
        if !kind.reduces() {
            return Ok(vec![OpKind::Sum]);
        }
        let all = self.op.of(&OpKind::ALL);
        let fitting: Vec<_> = all.into_iter().filter(|op| op.applies_to(data_type)).collect();
        match self.op {
            Choice::One(op) if fitting.is_empty() && self.datatype != Choice::All => {
                Err(Failure::Usage(format!(
                    "op {op} does not exist for {}: bitwise operations need an integer type",
                    data_type.name()
                )))
            }
            _ => Ok(fitting),
        }
    }
}

/// Whether there is an algorithm, or why not.
fn can_run(kind: Kind, ranks: usize, config: &Config) -> Result<(), String> {
    if kind == Kind::SendRecv && ranks == 1 {
        return Err("send_recv needs at least 2 ranks".to_owned());
    }
    let placement = config.placement(ranks);
    let of_kind = || catalogue().filter(|entry| entry.kind == kind);
    let exists = |entry: &&Entry| entry.check(ranks, placement, SLOTS).is_ok();
    let ordered = |entry: &&Entry| exists(entry) && entry.keeps_unrounded(config.order, placement);
    let fits = |entry: &&Entry| {
        config.pin.algorithm.is_none_or(|algorithm| algorithm == entry.algorithm)
            && config.pin.encoding.is_none_or(|encoding| encoding == entry.encoding)
    };
    if kind == Kind::Barrier || of_kind().filter(ordered).any(|entry| fits(&entry)) {
        return Ok(());
    }
    let checks = of_kind().filter(fits).map(|entry| entry.check(ranks, placement, SLOTS));
    if let Some(Err(unavailable)) = checks.reduce(Result::or) {
        return Err(unavailable.to_string());
    }
    let names: Vec<String> = of_kind()
        .filter(ordered)
        .map(|entry| format!("{}/{}", entry.algorithm, entry.encoding))
        .collect();
    Err(format!(
        "no algorithm of {kind} fits what is pinned (--algorithm/--encoding) and order {}; there \
         are {}",
        config.order,
        names.join(", ")
    ))
}
