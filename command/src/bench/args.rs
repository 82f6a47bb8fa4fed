//! The flags of `oxccl bench`: nccl-tests' in their meaning, and some more.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use oxccl::plans::msccl::Blocks;
use oxccl::plans::topology::Placement;
use oxccl::{Config, CustomSchedule, Device, Kind, MAX_CHANNELS, OpKind};

use super::against::Log;
use super::buffers::rotated_bytes;
use super::case::Case;
use super::gpu;
use super::group::{self, Form, GroupOptions};
use super::predict::Model;
use super::sweep::SweepOptions;
use crate::failure::Failure;
use crate::options::{self, Choice, Subject, Target};

/// Times collectives and checks their results, with nccl-tests' flags and table.
///
/// Ranks are started as processes of this machine, one pinned to each core where there are enough;
/// under torchrun, mpirun, srun or `oxccl run` this process is one of the ranks that those started.
/// A time is the mean of a loop of calls, barrier before it, and of the slowest rank; the table has
/// the median over repeats.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchOptions {
    /// The collective, or all: all_reduce, reduce_scatter, all_gather, all_to_all, broadcast,
    /// reduce, gather, scatter, send_recv, barrier; or group: buckets of --bucket-op [default: the
    /// schedule's]. Or a file with a custom schedule, as --schedule.
    #[arg(value_name = "OP|FILE", value_parser = subject, required_unless_present_any = ["schedule", "suite"])]
    subject: Option<Subject<Target>>,
    #[arg(skip)]
    target: Option<Target>,
    /// What a group groups.
    #[command(flatten)]
    pub(crate) group: GroupOptions,
    /// Which ways are measured of a group, separated by commas [default: all].
    #[arg(long, value_delimiter = ',')]
    pub(crate) modes: Vec<Form>,
    /// Which calls are measured, and by which plans.
    #[command(flatten)]
    pub(crate) sweep: SweepOptions,

    /// Calls in a timed loop [default: as many as take half of --repeat-ms to all of it].
    #[arg(short = 'n', long, value_parser = options::positive)]
    pub(crate) iters: Option<usize>,
    /// Calls before the first timed one.
    #[arg(short = 'w', long, default_value_t = 5)]
    pub(crate) warmup_iters: usize,
    /// Calls that count as one iteration.
    #[arg(short = 'm', long, default_value = "1", value_parser = options::positive)]
    pub(crate) agg_iters: usize,
    /// Timed calls rotate over so many buffers, or as many as have 64 MiB together, as programs do;
    /// and reductions over sum, prod, min and max, unless --op names one. 1: each call is the one
    /// before once more.
    #[arg(long, value_name = "BUFFERS", default_value = "16", value_parser = options::positive)]
    pub(crate) rotate: usize,
    /// CUDA graphs: none. `oxccl-against-nccl` measures calls in graphs.
    #[arg(short = 'G', long, alias = "cudagraph", default_value_t = 0)]
    pub(crate) graph: usize,

    /// Lets this machine stand for so many nodes, which share no memory [default: 1].
    #[arg(long, value_parser = options::positive)]
    pub(crate) nodes: Option<usize>,
    /// So many consecutive ranks count as a node, for hierarchical algorithms [default: as many as
    /// share one].
    #[arg(long, value_parser = options::positive)]
    pub(crate) per_node: Option<usize>,
    /// Carries out its collective by the schedule of this file, JSON or MSCCL's XML, with as many
    /// ranks as it has.
    #[arg(long, conflicts_with_all = ["algorithm", "encoding"])]
    pub(crate) schedule: Option<PathBuf>,
    /// What becomes of the thread blocks of MSCCL's XML: merged to one list of each rank, or lists
    /// that run side by side, each on a channel of its own.
    #[arg(long, value_name = "merged|lists", default_value = "merged")]
    blocks: Blocks,
    /// Ranks are threads of this process.
    #[arg(long)]
    pub(crate) threads: bool,
    /// What ranks compute on: host, cuda or cuda:N. Calls block, on a GPU too.
    #[arg(long, value_parser = options::device)]
    pub(crate) device: Option<Device>,
    /// Buffers are ordinary memory of each rank, which the others cannot reach, instead of
    /// comm.alloc's.
    #[arg(long)]
    pub(crate) private: bool,
    /// Buffers are ordinary memory of each rank, which is registered.
    #[arg(long, conflicts_with = "private")]
    pub(crate) registered: bool,
    /// Leaves ranks on whatever cores the system gives them.
    #[arg(long)]
    pub(crate) no_bind: bool,

    /// Holds rows against those of this log: a table of nccl-tests', or of this command's.
    #[arg(long, value_name = "LOG")]
    pub(crate) against: Option<PathBuf>,
    /// Holds rows against what is predicted of the same calls on this topology, as for sim.
    #[arg(long, value_name = "TOPOLOGY")]
    pub(crate) expect: Option<String>,
    /// Measures what this file says, and nothing else: contestants that take turns at the same
    /// calls. Writes a JSON file and a page.
    #[arg(long, value_name = "FILE", exclusive = true)]
    pub(crate) suite: Option<PathBuf>,
    /// Prints comma-separated values.
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// Writes the steps of one more call of the largest size, for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Does not measure the machine before.
    #[arg(long)]
    pub(crate) no_probe: bool,
    /// --threads: seconds after which a step that does not end ends the command, which says what it
    /// was doing [default: none].
    #[arg(long, value_name = "SECONDS", value_parser = options::seconds)]
    pub(crate) patience: Option<Duration>,
    /// Kernels are those of this file instead of those built in, for tests.
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) image: Option<PathBuf>,
}

fn subject(text: &str) -> Result<Subject<Target>, String> {
    Subject::parse(text, options::target)
}

impl BenchOptions {
    /// With what a custom schedule says and the options leave open.
    ///
    /// # Errors
    /// A schedule that cannot be read or proven, or is of another collective than the one that is
    /// asked for.
    pub(crate) fn completed(&self) -> Result<BenchOptions, Failure> {
        let mut options = self.clone();
        let (asked, schedule) = Subject::divide(self.subject.as_ref(), self.schedule.as_deref())?;
        (options.target, options.schedule) = (asked, schedule);
        if let Some(path) = options.schedule.clone() {
            let path = &path;
            let schedule = CustomSchedule::read_with(path, self.blocks)?;
            let collective = schedule.schedule().collective;
            let lone = Target::Kinds(Choice::One(collective.kind));
            let target = asked.unwrap_or(lone);
            let buckets = target == Target::Group && self.group.bucket_op == collective.kind;
            if target != lone && !buckets {
                return Err(Failure::Usage(format!(
                    "{} carries out {} and nothing else: leave OP away, or name a group of it",
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
            options.sweep.ranks = self.sweep.ranks.or(Some(collective.ranks));
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
        gpu::fit(&mut config, self.heap_needed()?, self.image.as_deref())?;
        self.sweep.set(&mut config);
        if let Some(channels) = config.pin.channels {
            config.max_channels = config.max_channels.max(channels);
        }
        config.nodes = self.nodes.or(config.nodes);
        config.ranks_per_node = self.per_node.or(config.ranks_per_node);
        if let Some(path) = &self.schedule {
            let schedule = CustomSchedule::read_with(path, self.blocks)?;
            let needed = schedule.needed_channels();
            if needed > MAX_CHANNELS {
                return Err(Failure::Usage(format!(
                    "{}: its lists need {needed} channels, and there are {MAX_CHANNELS} at most (thread blocks of XML can be --blocks merged)",
                    path.display()
                )));
            }
            config.max_channels = config.max_channels.max(needed);
            config.schedule = Some(Arc::new(schedule));
        }
        Ok(config)
    }

    /// Of a GPU's heap, whose memory is taken at the start: the longest of two buffers that are
    /// needed.
    fn heap_needed(&self) -> Result<usize, Failure> {
        if self.target != Some(Target::Group) {
            return Ok(rotated_bytes(self.sweep.maxbytes.0, self.rotate));
        }
        let counts = self.group.counts(self.sweep.ranks())?;
        // And what groups' tables take.
        Ok(group::heap_bytes(&counts) / 2 + (8 << 20))
    }

    /// What rows are held against, with this many ranks.
    ///
    /// # Errors
    /// A log or a topology that cannot be read.
    pub(super) fn besides(&self, ranks: usize) -> Result<(Option<Log>, Option<Model>), Failure> {
        let log = self.against.as_deref().map(Log::read).transpose()?;
        let Some(topology) = &self.expect else { return Ok((log, None)) };
        let config = self.config()?;
        let is_divided = config.nodes.is_some() || config.ranks_per_node.is_some();
        let placement = config.placement(ranks);
        let per_node = is_divided.then_some(placement.ranks_per_node());
        if is_divided && Placement::filled(ranks, placement.ranks_per_node()) != placement {
            let text = "--expect: nodes of a topology have equal numbers of ranks, but the last";
            return Err(Failure::Usage(text.to_owned()));
        }
        let model = Model::new(topology, ranks, per_node, &config)?;
        Ok((log, Some(model)))
    }

    /// The operations that timed calls of a case rotate over.
    pub(super) fn operations(&self, case: &Case) -> Vec<OpKind> {
        if self.rotate == 1 || self.sweep.op.is_some() || !case.kind.reduces() {
            return vec![case.op];
        }
        vec![OpKind::Sum, OpKind::Prod, OpKind::Min, OpKind::Max]
    }

    /// What to measure with this many ranks.
    ///
    /// # Errors
    /// Wishes that do not fit together, or that nothing can fulfil.
    pub(crate) fn cases(&self, ranks: usize) -> Result<Vec<Case>, Failure> {
        let config = self.config()?;
        self.check_modes()?;
        let cases = self.sweep.cases(self.target(), ranks, &config)?;
        if self.trace.is_some() && cases.len() > 1 {
            let text = "--trace shows one call: name one collective, type, operation and root";
            return Err(Failure::Usage(text.to_owned()));
        }
        Ok(cases)
    }

    fn check_modes(&self) -> Result<(), Failure> {
        let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
        if self.against.is_some() && self.target() == Target::Group {
            return usage("--against: nccl-tests have no groups to hold these against");
        }
        if self.expect.is_some() && self.target() == Target::Group {
            return usage("--expect: groups are not simulated");
        }
        if self.graph > 0 {
            return usage("--graph: oxccl-against-nccl measures CUDA graphs; leave it at 0 here");
        }
        Ok(())
    }
}
