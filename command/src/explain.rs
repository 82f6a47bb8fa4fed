//! `oxccl explain`: prints the schedule that a call would choose, and why.

mod chakra;
mod document;
mod goal;
mod messages;
mod times;

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use oxccl::plans::algorithms::{Algorithm, Encoding, Unavailable, find};
use oxccl::plans::hot::{self, Work};
use oxccl::plans::msccl::Blocks;
use oxccl::plans::schedule::{Buffer, Instruction, Lane, Layout, Notes, Operand, Schedule};
use oxccl::plans::topology::{Network, Placement, Processor};
use oxccl::plans::tune::{self, Plan, Question, SystemReads};
use oxccl::plans::verify::Verified;
use oxccl::{
    Collective, Config, CustomSchedule, DataType, Device, Error, Kind, OpKind, Order, TooLong,
};

use crate::bench::{self, Case, Shape};
use crate::failure::Failure;
use crate::options::{self, Size, Subject};
use crate::{names, speak, topo};
use document::{Explained, Told};
use serde::Serialize;
use times::Times;

/// Up to so many ranks all are proven, also where one is asked for.
const PROVEN: usize = 256;
/// What GPUs are taken to be unless something is said.
const TOPOLOGY: &str = "dgx-h100";

/// Prints the schedule that a call would choose, and why.
///
/// Sizes mean what they mean for bench: the larger of one rank's input and output.
#[derive(Args, Clone)]
pub(crate) struct ExplainOptions {
    /// The collective; or a file with a custom schedule, JSON or MSCCL's XML, for its ranks.
    #[arg(value_name = "OP|FILE", value_parser = subject)]
    subject: Subject<Kind>,
    #[arg(skip = Kind::AllReduce)]
    kind: Kind,
    /// How many ranks.
    #[arg(long, short = 'g', default_value = "2", value_parser = options::positive)]
    ranks: usize,
    /// So many consecutive ranks share a node [default: all].
    #[arg(long, value_parser = options::positive)]
    per_node: Option<usize>,
    /// The size of a call, with K, M or G.
    #[arg(long, short = 'b', default_value = "1M")]
    bytes: Size,
    /// The element type.
    #[arg(long = "type", short = 'd', default_value = "float", value_parser = options::data_type)]
    data_type: DataType,
    /// The operation.
    #[arg(long, short = 'o', default_value = "sum", value_parser = options::op)]
    op: OpKind,
    /// The promised order of reduction: any, rank or tree.
    #[arg(long, default_value = "any", value_parser = names::order)]
    order: Order,
    /// The root; the sender of send_recv, which sends to the next rank.
    #[arg(long, short = 'r', default_value_t = 0)]
    root: usize,
    /// Input and output are one buffer.
    #[arg(long)]
    in_place: bool,
    /// What the ranks compute on: host or cuda [default: OXCCL_DEVICE]. It need not be there, but
    /// for --measure.
    #[arg(long, value_parser = options::device)]
    device: Option<Device>,
    /// How GPUs are joined: a preset (oxccl topo --list), a file that ends with .toml or, of NCCL,
    /// with .xml, or "this" machine [default: dgx-h100, as many nodes as the ranks need].
    #[arg(long, short = 't')]
    topology: Option<String>,
    /// Buffers are memory that other ranks cannot reach.
    #[arg(long)]
    private: bool,
    /// Explains this algorithm instead of the tuner's choice.
    #[arg(long, value_parser = names::algorithm)]
    algorithm: Option<Algorithm>,
    /// Explains this encoding instead of the tuner's choice.
    #[arg(long, value_parser = names::encoding)]
    encoding: Option<Encoding>,
    /// With this many channels.
    #[arg(long, value_parser = options::positive)]
    channels: Option<usize>,
    /// Only this rank's instructions.
    #[arg(long)]
    rank: Option<usize>,
    /// Starts the ranks and measures every algorithm that fits.
    #[arg(long, conflicts_with = "in_place")]
    measure: bool,
    /// What becomes of the thread blocks of MSCCL's XML: merged to one list of each rank, or lists
    /// that run side by side, each on a channel of its own.
    #[arg(long, value_name = "merged|lists", default_value = "merged")]
    blocks: Blocks,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
    /// Writes the schedule's messages as GOAL, for LogGOPSim and ATLAHS.
    #[arg(long, value_name = "FILE")]
    goal: Option<PathBuf>,
    /// Writes the schedule's messages as Chakra execution traces, PREFIX.RANK.et, for ASTRA-sim.
    #[arg(long, value_name = "PREFIX")]
    chakra: Option<PathBuf>,
    /// Kernels are those of this file instead of those built in, for tests.
    #[arg(long, value_name = "FILE", hide = true)]
    image: Option<PathBuf>,
}

fn subject(text: &str) -> Result<Subject<Kind>, String> {
    Subject::parse(text, names::kind)
}

pub(crate) fn main(options: &ExplainOptions) -> Result<(), Failure> {
    match &options.subject {
        Subject::Op(kind) => explain(&ExplainOptions { kind: *kind, ..options.clone() }),
        Subject::File(path) => {
            explain_file(options, &CustomSchedule::read_with(path, options.blocks)?)
        }
    }
}

/// A custom schedule, for the calls that it is made for.
fn explain_file(options: &ExplainOptions, custom: &CustomSchedule) -> Result<(), Failure> {
    if options.measure {
        let text = "--measure is for the algorithms that there are: `oxccl bench FILE` runs a file";
        return Err(Failure::Usage(text.to_owned()));
    }
    let Collective { kind, ranks, root, .. } = custom.schedule().collective;
    let order = if kind.reduces() { custom.order() } else { options.order };
    let options = &ExplainOptions { kind, ranks, root, order, ..options.clone() };
    options.check()?;
    let mut config = options.config()?;
    config.max_channels = config.max_channels.max(custom.needed_channels());
    let shape = options.case().shape(ranks, options.bytes.0);
    let question = Question {
        ll128: true,
        multicast: custom.schedule().switched().next(),
        fabric_reduces: custom.schedule().uses_rails(),
        ..options.question(&config, None, custom.schedule().collective, shape)
    };
    let processor = match config.device {
        Device::Host => Processor::Cpu,
        Device::Cuda(_) => Processor::Gpu,
    };
    match custom.plan(&question, processor).map_err(Error::from)? {
        Some(plan) => {
            let lists = Lists::Proven(custom.verified().clone());
            options.print(&config, &plan, &lists, custom.notes(), &Times::default())
        }
        None => unreachable!("it is asked for its own kind"),
    }
}

fn explain(options: &ExplainOptions) -> Result<(), Failure> {
    options.check()?;
    let mut config = options.config()?;
    if options.measure {
        bench::fit_gpu(&mut config, options.bytes.0, options.image.as_deref())?;
    }
    let case = options.case();
    let shape = case.shape(options.ranks, options.bytes.0);
    // What is measured runs here, on whatever there is.
    let network = if options.measure { None } else { options.network(config.device)? };
    let question = options.question(&config, network.as_ref(), options.collective(), shape);
    let table = config.tuning.as_deref();
    let plan = match config.device {
        Device::Host => tune::plan_by(table, &question).map_err(Error::from)?,
        Device::Cuda(_) => tune::plan_on_gpu(table, &question).map_err(Error::from)?,
    };
    let mut times = Times::predicted(config.tuning.as_deref(), &question);
    let lists = options.lists(&question, &plan)?;
    let print = |times: &Times| options.print(&config, &plan, &lists, &Notes::default(), times);
    if !options.measure {
        return print(&times);
    }
    if !question.placement.are_alike() {
        let text = "--measure: nodes that have different numbers of ranks are measured by \
                    oxccl bench --nodes";
        return Err(Failure::Usage(text.to_owned()));
    }
    let measured = Config {
        ranks_per_node: Some(question.placement.ranks_per_node()),
        pin: oxccl::Pin::default(),
        ..config.clone()
    };
    bench::on_ranks(Some(options.ranks), &measured, |comms| {
        times.measure(comms, &case, options.bytes.0, &question)?;
        if comms.rank() == 0 { print(&times) } else { Ok(()) }
    })
}

impl ExplainOptions {
    /// The algorithm's schedule, proven; of a large world, what is asked for of it alone.
    fn lists(&self, question: &Question, plan: &Plan) -> Result<Lists, Failure> {
        let Some(entry) = find(self.kind, plan.algorithm, plan.encoding) else {
            unreachable!("the tuner chooses out of the catalogue")
        };
        let unavailable = |unavailable: Unavailable| Failure::Usage(unavailable.to_string());
        let (collective, placement) = (question.collective, question.placement);
        let pipeline = question.limits.pipeline();
        if let Some(rank) = self.rank.filter(|_| self.ranks > PROVEN) {
            let one = rank..rank + 1;
            let order = self.order;
            let schedule = entry.schedule_of_ranks(collective, placement, order, pipeline, one);
            return Ok(Lists::Alone { schedule: schedule.map_err(unavailable)?, rank });
        }
        let schedule = entry.schedule(collective, placement, self.order, pipeline);
        let schedule = schedule.map_err(unavailable)?;
        let verified = oxccl::plans::verify::verify(schedule, self.order, entry.in_place)
            .map_err(|violation| Failure::Usage(violation.to_string()))?;
        Ok(Lists::Proven(Arc::new(verified)))
    }

    fn print(
        &self,
        config: &Config,
        plan: &Plan,
        lists: &Lists,
        notes: &Notes,
        times: &Times,
    ) -> Result<(), Failure> {
        let case = self.case();
        let shape = case.shape(self.ranks, self.bytes.0);
        let layout = self.layout(lists.schedule(), shape)?;
        let messages =
            |format: &str| messages::messages(format, lists, &layout, self.data_type.len_bytes());
        let call = self.call(&case, shape, config.device);
        if let Some(path) = &self.goal {
            let text = goal::goal(&call, &messages("--goal: GOAL")?);
            std::fs::write(path, text)
                .map_err(Failure::system(format!("writing {}", path.display())))?;
        }
        if let Some(prefix) = &self.chakra {
            chakra::write(prefix, &call, &messages("--chakra: a trace of messages")?)?;
        }
        let mut pipeline = Pipeline::of(plan, lists, &layout, self.data_type);
        pipeline.hot_kernel = self.hot_kernel(config, plan, lists, (&layout, &pipeline));
        let shown = self.rank.map_or(0..self.ranks, |rank| rank..rank + 1);
        let told = |rank: usize| Told::of(lists, &layout, rank, self.data_type, notes);
        if self.json {
            let ranks = shown.map(told).collect();
            let explained = Explained::new(self, config, plan, pipeline, times, lists, ranks);
            println!("{}", speak::json(&explained));
            return Ok(());
        }
        println!("{call}");
        println!("{}", choice(plan));
        println!("{pipeline}");
        if config.device != Device::Host {
            let interpreted = "the interpreter's";
            println!("kernel   {}", pipeline.hot_kernel.unwrap_or(interpreted));
        }
        for line in times.lines(plan) {
            println!("{line}");
        }
        if let Lists::Alone { rank, .. } = lists {
            println!(
                "proof    none: rank {rank}'s instructions alone were made, and a message that it \
                 forwards is counted as the longest chunk; `oxccl verify` proves all ranks"
            );
        }
        let mut out = std::io::stdout().lock();
        let print = || shown.map(told).try_for_each(|told| write!(out, "\n{told}"));
        print().or_else(options::unless_closed("printing the schedule"))
    }

    /// The hot schedule whose kernel carries the call out on GPUs, if there is one.
    fn hot_kernel(
        &self,
        config: &Config,
        plan: &Plan,
        lists: &Lists,
        (layout, pipeline): (&Layout, &Pipeline),
    ) -> Option<&'static str> {
        let one_node = self.per_node.is_none_or(|per_node| per_node >= self.ranks);
        let wanted = config.advanced.hot_kernels && !config.advanced.bulk_copies;
        let serves = config.device != Device::Host && wanted && one_node;
        let Lists::Proven(verified) = lists else { return None };
        let ((fold, scale), data_type) = (self.op.lower(), self.data_type);
        let (channels, rounds) = (plan.channels, pipeline.rounds as u64);
        let work = Work { data_type, fold, scale, channels, rounds, buckets: None };
        let rank = self.rank.unwrap_or(0);
        let found = hot::kernel(verified.schedule(), rank, layout, &work).filter(|_| serves)?;
        Some(found.0)
    }

    fn check(&self) -> Result<(), Failure> {
        let last = self.ranks - 1;
        for (name, rank) in [("--root", Some(self.root)), ("--rank", self.rank)] {
            if rank.is_some_and(|rank| rank > last) {
                return Err(Failure::Usage(format!(
                    "{name} is {}, there are ranks 0 to {last}",
                    rank.unwrap_or_default()
                )));
            }
        }
        if self.kind == Kind::SendRecv && self.ranks == 1 {
            return Err(Failure::Usage("send_recv needs at least 2 ranks".to_owned()));
        }
        if self.kind.reduces() && !self.op.applies_to(self.data_type) {
            return Err(oxccl::Error::Op { op: self.op, data_type: self.data_type }.into());
        }
        if self.measure && (self.data_type, self.op) != (bench::DATA_TYPE, bench::OP) {
            let text = "--measure times float and sum: leave --type and --op away";
            return Err(Failure::Usage(text.to_owned()));
        }
        Ok(())
    }

    /// The environment's, for the device asked for.
    fn config(&self) -> Result<Config, Failure> {
        let Some(device) = self.device else { return Ok(Config::from_env()?) };
        let lookup = |name: &str| match name {
            "OXCCL_DEVICE" => Some(device.to_string().into()),
            _ => std::env::var_os(name),
        };
        Ok(Config::from_lookup(lookup)?)
    }

    /// The GPUs that are asked about, and how they are joined.
    fn network(&self, device: Device) -> Result<Option<Network>, Failure> {
        match device {
            Device::Host if self.topology.is_some() => {
                let text = "--topology says how GPUs are joined: add --device cuda";
                Err(Failure::Usage(text.to_owned()))
            }
            Device::Host => Ok(None),
            Device::Cuda(_) => {
                let name = self.topology.as_deref().unwrap_or(TOPOLOGY);
                let (_, network) = topo::with_ranks(name, None, Some(self.ranks), self.per_node)?;
                if network.device(0).processor != Processor::Gpu {
                    let text = format!("--topology is {name}, which has no GPUs");
                    return Err(Failure::Usage(text));
                }
                Ok(Some(network))
            }
        }
    }

    fn case(&self) -> Case {
        Case { kind: self.kind, data_type: self.data_type, op: self.op, root: self.root }
    }

    fn collective(&self) -> Collective {
        match self.kind {
            Kind::SendRecv => {
                Collective::send_recv(self.ranks, self.root, (self.root + 1) % self.ranks)
            }
            kind if kind.is_rooted() => Collective::rooted(kind, self.ranks, self.root),
            kind => Collective::new(kind, self.ranks),
        }
    }

    fn question(
        &self,
        config: &Config,
        network: Option<&Network>,
        collective: Collective,
        shape: Shape,
    ) -> Question {
        let pin = oxccl::Pin {
            algorithm: self.algorithm.or(config.pin.algorithm),
            encoding: self.encoding.or(config.pin.encoding),
            channels: self.channels.or(config.pin.channels),
        };
        // Ranks of a node share memory, ranks of different nodes do not.
        let per_node = network.map_or(self.per_node, |network| Some(network.per_node()));
        let nodes = self.ranks.div_ceil(per_node.unwrap_or(self.ranks).max(1));
        let placement = Placement::filled(self.ranks, per_node.unwrap_or(self.ranks));
        Question {
            collective,
            placement,
            data_type: self.data_type,
            op: self.op,
            total_bytes: shape.bytes(self.data_type),
            order: self.order,
            in_place: self.in_place,
            windows: !self.private,
            // As where the system allows it.
            cma: (self.private
                && nodes == 1
                && config.device == Device::Host
                && config.advanced.cma != Some(false))
            .then(SystemReads::default),
            nodes,
            ll128: network.is_some_and(Network::carries_lines)
                || pin.encoding == Some(Encoding::Ll128),
            multicast: pin
                .algorithm
                .and_then(|pinned| pinned.switched(self.ranks, placement))
                .or_else(|| network?.switched()),
            fabric_reduces: pin.algorithm.is_some_and(Algorithm::is_in_fabric),
            limits: config.limits(),
            pin,
            cache_bytes: config.last_level_cache_bytes(),
        }
    }

    fn layout(&self, schedule: &Schedule, shape: Shape) -> Result<Layout, Error> {
        // Parts start at cache lines, as in a call.
        let align = (64 / self.data_type.len_bytes()).max(1);
        let too_long = |TooLong| Error::Overflow { call: self.kind.name(), argument: "size" };
        Layout::even(&schedule.collective, schedule.input, schedule.output, shape.count, align)
            .map_err(too_long)
    }

    fn call(&self, case: &Case, shape: Shape, device: Device) -> String {
        let reduction = match self.kind.reduces() {
            true => format!(", op {}, order {}", self.op, self.order),
            false => String::new(),
        };
        let root =
            if self.kind.is_rooted() { format!(", root {}", self.root) } else { String::new() };
        format!(
            "{} over {} ranks{}: {} bytes ({} in, {} out, {}){reduction}{root}, {}, {}",
            self.kind,
            self.ranks,
            if device == Device::Host { "" } else { " on GPUs" },
            shape.bytes(case.data_type),
            shape.input,
            shape.output,
            self.data_type.name(),
            if self.in_place { "in place" } else { "out of place" },
            if self.private { "private memory" } else { "memory of comm.alloc" },
        )
    }
}

/// What is explained: all ranks' instructions, or one rank's, as a large world has too many to make
/// and to prove them all for the sake of one.
enum Lists {
    /// They are proven.
    Proven(Arc<Verified>),
    /// The schedule's only list is this rank's.
    Alone { schedule: Schedule, rank: usize },
}

impl Lists {
    fn schedule(&self) -> &Schedule {
        match self {
            Lists::Proven(verified) => verified.schedule(),
            Lists::Alone { schedule, .. } => schedule,
        }
    }

    /// A rank's instructions with their numbers.
    fn of(&self, rank: usize) -> impl Iterator<Item = (usize, &Instruction)> {
        match self {
            Lists::Proven(verified) => verified.schedule().steps(rank),
            Lists::Alone { schedule, .. } => schedule.steps(0),
        }
    }

    /// How many elements a step moves that has no operand which knows.
    fn forwarded(&self, rank: usize, step: usize, layout: &Layout) -> usize {
        match self {
            Lists::Proven(verified) => {
                let (list, step) = verified.schedule().place(rank, step);
                let origin = verified.origin(list, step);
                origin.map_or(0, |(rank, buffer, chunk)| layout.extent(rank, buffer, chunk).count)
            }
            Lists::Alone { .. } => layout.largest(),
        }
    }
}

fn choice(plan: &Plan) -> String {
    let around = if plan.stream { ", outputs written with streaming stores" } else { "" };
    format!(
        "choice   {} / {}, {} channel{}{around}\nwhy      {}",
        plan.algorithm,
        plan.encoding,
        plan.channels,
        if plan.channels == 1 { "" } else { "s" },
        plan.reason
    )
}

/// How often the instructions run, and on how much.
#[derive(Serialize)]
struct Pipeline {
    input_chunks: usize,
    output_chunks: usize,
    scratch_chunks: usize,
    /// Of the longest.
    chunk_bytes: usize,
    rounds: usize,
    /// Of a chunk, on a channel in a round.
    tile_bytes: usize,
    /// On GPUs: the schedule whose own kernel carries the call out; none where it is interpreted.
    hot_kernel: Option<&'static str>,
}

impl Pipeline {
    fn of(plan: &Plan, lists: &Lists, layout: &Layout, data_type: DataType) -> Pipeline {
        let (chunk_bytes, schedule) = (layout.largest() * data_type.len_bytes(), lists.schedule());
        let shares = match lists {
            Lists::Proven(verified) => verified.shares(plan.channels).max(1),
            Lists::Alone { .. } => plan.channels,
        };
        let part = if shares == 1 { chunk_bytes } else { chunk_bytes.div_ceil(shares) };
        let ranks = schedule.collective.ranks;
        let (rounds, tile_bytes) = match schedule.has_one_round() {
            true => (1, part),
            false => (part.div_ceil(plan.tile_bytes).max(1), plan.tile_bytes.min(part)),
        };
        Pipeline {
            input_chunks: schedule.input.chunks(ranks),
            output_chunks: schedule.output.chunks(ranks),
            scratch_chunks: schedule.scratch,
            chunk_bytes,
            rounds,
            tile_bytes,
            hot_kernel: None,
        }
    }
}

impl std::fmt::Display for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "chunks   {} in, {} out", self.input_chunks, self.output_chunks)?;
        if self.scratch_chunks > 0 {
            write!(f, ", {} in scratch", self.scratch_chunks)?;
        }
        write!(
            f,
            ", at most {} bytes each\nrounds   {} of at most {} bytes a chunk and channel",
            self.chunk_bytes, self.rounds, self.tile_bytes
        )
    }
}

/// What one rank does in a call, on one channel and one round; bytes are those of the whole call.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Traffic {
    waits: usize,
    reduce_copies: usize,
    signals: usize,
    messages: usize,
    message_bytes: usize,
    read_bytes: usize,
    written_bytes: usize,
}

impl Traffic {
    fn of(lists: &Lists, layout: &Layout, rank: usize, element_bytes: usize) -> Traffic {
        let mut traffic = Traffic::default();
        for (step, instruction) in lists.of(rank) {
            match instruction {
                Instruction::Wait { .. } => traffic.waits += 1,
                Instruction::Signal { .. } => traffic.signals += 1,
                Instruction::ReduceCopy { sources, destinations, .. } => {
                    traffic.reduce_copies += 1;
                    let ranks = lists.schedule().collective.ranks;
                    let members = |operand: Operand| operand.members(rank, ranks);
                    let sources: Vec<Operand> =
                        sources.iter().flat_map(|s| members(s.operand)).collect();
                    let destinations: Vec<Operand> =
                        destinations.iter().flat_map(|to| members(*to)).collect();
                    let bytes = bytes_of(lists, layout, (rank, step), instruction, element_bytes);
                    let windows = |operands: &[Operand]| {
                        let is_window = |o: &&Operand| matches!(o, Operand::Window { .. });
                        operands.iter().filter(is_window).count() * bytes
                    };
                    traffic.read_bytes += windows(&sources);
                    traffic.written_bytes += windows(&destinations);
                    let sent = destinations.iter().filter(|o| is_message(o)).count();
                    traffic.messages += destinations.iter().filter(|o| starts_message(o)).count();
                    traffic.message_bytes += sent * bytes;
                }
            }
        }
        traffic
    }
}

fn is_message(operand: &Operand) -> bool {
    match operand {
        Operand::PeerSlot { link, .. } => link.lane != Lane::Sync,
        operand => matches!(operand, Operand::Contribution { .. }),
    }
}

fn starts_message(operand: &Operand) -> bool {
    is_message(operand) && !matches!(operand, Operand::PeerSlot { segment: 1.., .. })
}

/// How many bytes a reduce-copy moves.
fn bytes_of(
    lists: &Lists,
    layout: &Layout,
    (rank, step): (usize, usize),
    instruction: &Instruction,
    element_bytes: usize,
) -> usize {
    let ranks = lists.schedule().collective.ranks;
    let known = match instruction {
        Instruction::ReduceCopy { sources, destinations, .. } => {
            let read = sources.iter().map(|source| source.operand);
            let mut all = read.chain(destinations.iter().copied());
            all.find_map(|o| o.members(rank, ranks).find_map(|one| count_of(&one, layout, rank)))
        }
        _ => Some(0),
    };
    known.unwrap_or_else(|| lists.forwarded(rank, step, layout)) * element_bytes
}

/// How many elements an operand has, if it knows.
fn count_of(operand: &Operand, layout: &Layout, rank: usize) -> Option<usize> {
    let (rank, buffer, chunk) = match *operand {
        Operand::Input(chunk) => (rank, Buffer::Input, chunk),
        Operand::Output(chunk) => (rank, Buffer::Output, chunk),
        Operand::Window { peer, buffer, chunk } => (peer, buffer, chunk),
        _ => return None,
    };
    Some(layout.extent(rank, buffer, chunk).count)
}

impl std::fmt::Display for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let instructions = self.waits + self.reduce_copies + self.signals;
        write!(
            f,
            "{instructions} instructions a round ({} wait, {} reduce-copy, {} signal)",
            self.waits, self.reduce_copies, self.signals
        )?;
        write!(f, ", {} messages a round", self.messages)?;
        write!(f, ", {} bytes sent in messages", self.message_bytes)?;
        write!(
            f,
            ", {} read from and {} written to peers in place",
            self.read_bytes, self.written_bytes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl::plans::algorithms::{Entry, catalogue};
    use oxccl::plans::schedule::SLOTS;

    fn verified(entry: &Entry, collective: Collective) -> Lists {
        let nodes = Placement::uniform(2);
        let schedule = entry.schedule(collective, nodes, Order::Any, SLOTS).expect("it exists");
        let verified = oxccl::plans::verify::verify(schedule, Order::Any, false);
        Lists::Proven(Arc::new(verified.expect("it is right")))
    }

    fn traffic(algorithm: Algorithm, encoding: Encoding) -> Traffic {
        let collective = Collective::new(Kind::AllReduce, 4);
        let entry = find(Kind::AllReduce, algorithm, encoding).expect("in the catalogue");
        let verified = verified(entry, collective);
        let schedule = verified.schedule();
        let layout = Layout::even(&collective, schedule.input, schedule.output, 1024, 16)
            .expect("it is short");
        Traffic::of(&verified, &layout, 1, 4)
    }

    #[test]
    fn bytes_are_those_of_the_algorithm() {
        // 4096 bytes, 4 ranks: 2 (n - 1) / n of them, in 2 (n - 1) messages.
        let ring = traffic(Algorithm::Ring, Encoding::Slots);
        assert_eq!((ring.messages, ring.message_bytes), (6, 6 * 1024));
        let push = traffic(Algorithm::TwoShotPush, Encoding::Windows);
        assert_eq!((push.read_bytes, push.written_bytes), (3 * 1024, 3 * 1024));
        let one_shot = traffic(Algorithm::OneShot, Encoding::Ll);
        assert_eq!((one_shot.messages, one_shot.message_bytes), (3, 3 * 4096));
    }

    #[test]
    fn a_rank_alone_is_what_it_is_among_all() {
        let collective = Collective::new(Kind::AllReduce, 4);
        let entry = find(Kind::AllReduce, Algorithm::Ring, Encoding::Slots).expect("it is there");
        let all = verified(entry, collective);
        let placement = Placement::uniform(2);
        let alone = entry.schedule_of_ranks(collective, placement, Order::Any, SLOTS, 2..3);
        let alone = Lists::Alone { schedule: alone.expect("it exists"), rank: 2 };
        assert!(alone.of(2).eq(all.of(2)));
        let schedule = all.schedule();
        let layout = Layout::even(&collective, schedule.input, schedule.output, 1024, 16)
            .expect("it is short");
        assert_eq!(Traffic::of(&alone, &layout, 2, 4), Traffic::of(&all, &layout, 2, 4));
    }

    #[test]
    fn every_schedule_can_be_counted() {
        for entry in catalogue() {
            let collective = match entry.kind {
                Kind::SendRecv => Collective::send_recv(8, 0, 1),
                kind => Collective::new(kind, 8),
            };
            let verified = verified(entry, collective);
            let schedule = verified.schedule();
            let layout = Layout::even(&collective, schedule.input, schedule.output, 96, 16)
                .expect("it is short");
            let reached: usize = (0..8)
                .map(|rank| Traffic::of(&verified, &layout, rank, 1))
                .map(|t| t.message_bytes + t.read_bytes + t.written_bytes)
                .sum();
            assert_eq!(reached == 0, entry.kind == Kind::Barrier, "{entry:?}");
        }
    }
}
