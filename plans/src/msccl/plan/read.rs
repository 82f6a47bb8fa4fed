//! From a plan's fields to what its thread blocks do: everything is checked that can be seen
//! without running it.

use super::super::parse::{Algorithm, Buffer, CHUNKS_MAX};
use super::fault::{PlanFault, PlanPlace};
use super::file::{Buff, BufferType, ChannelType, File, Gpu, Op, ThreadBlock};
use crate::collective::{Collective, Kind};
use oxccl_format::Lane;
use std::collections::HashMap;

/// A plan.
#[derive(Debug)]
pub(super) struct Plan {
    /// Without steps.
    pub(super) algorithm: Algorithm,
    /// Those of all ranks.
    pub(super) blocks: Vec<Block>,
    /// What semaphores of a rank hold at the beginning.
    pub(super) semaphores: Vec<Vec<i64>>,
}

/// A thread block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) rank: usize,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug)]
pub(super) struct Step {
    pub(super) action: Action,
    pub(super) place: PlanPlace,
}

/// A channel in one direction: from a rank to another, one of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Channel {
    pub(super) kind: ChannelType,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) number: usize,
}

/// A chunk of a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cell {
    pub(super) rank: usize,
    pub(super) buffer: Buffer,
    pub(super) chunk: usize,
}

/// What an operation does, or one part of it.
#[derive(Debug)]
pub(super) enum Action {
    /// Reads these, reduces them, and writes the result to those. Of packets are the sources from
    /// `packets.0` on, and the destinations from `packets.1` on.
    Move {
        sources: Vec<Cell>,
        destinations: Vec<Cell>,
        packets: (usize, usize),
    },
    Signal(Channel),
    Wait(Channel),
    /// Of so many thread blocks of the rank.
    Barrier(usize, usize),
    Acquire(usize),
    Release(usize),
}

/// No source and no destination is one.
const NO_PACKETS: (usize, usize) = (usize::MAX, usize::MAX);

/// How an operation's buffers belong together.
enum Shape {
    /// Each source is copied to the destination of its number.
    Pairs { packets: (usize, usize) },
    /// All sources are reduced, and the result is written to all destinations.
    All { packets: (usize, usize) },
}

/// By the names of operations that move data.
fn shape(name: &str) -> Option<Shape> {
    let (all, first) = (0, usize::MAX);
    Some(match name {
        "put" | "pws" | "pwsf" | "get" | "copy" => Shape::Pairs { packets: NO_PACKETS },
        "ppkt" | "cpkt" => Shape::Pairs { packets: (first, all) },
        "upkt" => Shape::Pairs { packets: (all, first) },
        "rppkt" => Shape::All { packets: (all, all) },
        "re" | "res" | "rre" | "rres" | "glres" | "gstore" => Shape::All { packets: NO_PACKETS },
        "gstorepkt" => Shape::All { packets: (first, all) },
        // The first of either is plain memory.
        "repkt" | "respkt" | "recpkt" | "recspkt" => Shape::All { packets: (1, 1) },
        _ => return None,
    })
}

/// Reads a plan.
pub(super) fn read(text: &str) -> Result<Plan, PlanFault> {
    let mut file: File =
        serde_json::from_str(text).map_err(|fault| PlanFault::Json(fault.to_string()))?;
    let whole = |what: &str| PlanFault::Whole(what.to_owned());
    file.divide_groups()
        .ok_or_else(|| whole("a group of thread blocks is none, or divides chunks too often"))?;
    let algorithm = algorithm(&file)?;
    let reader = Reader { file: &file, algorithm: &algorithm, channels: channels(&file)? };
    let mut blocks = Vec::new();
    for (gpu, of_gpu) in file.gpus.iter().enumerate() {
        for block in &of_gpu.threadblocks {
            let mut steps = Vec::new();
            reader.operations((gpu, block), &block.ops, None, &mut steps)?;
            blocks.push(Block { rank: gpu, steps });
        }
    }
    let held = |gpu: &Gpu| gpu.semaphores.iter().map(|one| one.init_value).collect();
    let semaphores = file.gpus.iter().map(held).collect();
    Ok(Plan { algorithm, blocks, semaphores })
}

fn algorithm(file: &File) -> Result<Algorithm, PlanFault> {
    let whole = |what: String| Err(PlanFault::Whole(what));
    let ranks = file.gpus.len();
    if let Some((number, gpu)) =
        file.gpus.iter().enumerate().find(|(number, gpu)| gpu.id != *number)
    {
        return whole(format!(
            "gpu {} stands at place {number}: they are in order, from 0",
            gpu.id
        ));
    }
    let Some(first) = file.gpus.first() else { return whole("it has no gpus".to_owned()) };
    let plain = file.collective.to_lowercase().replace(['_', '-'], "");
    let (kind, chunks) = match plain.as_str() {
        "allreduce" => (Kind::AllReduce, Some(first.input_chunks)),
        "allgather" => (Kind::AllGather, Some(first.input_chunks)),
        "reducescatter" => (Kind::ReduceScatter, part(first.input_chunks, ranks)),
        "alltoall" => (Kind::AllToAll, part(first.input_chunks, ranks)),
        _ => {
            return whole(format!(
                "collective {:?}: the plan does not say what its result should be; there are \
                 allreduce, allgather, reducescatter, alltoall",
                file.collective
            ));
        }
    };
    let lane = match file.protocol.as_str() {
        "Simple" => Lane::Slots,
        "LL" => Lane::Ll,
        other => return whole(format!("protocol {other:?}: there are Simple and LL")),
    };
    let chunks = match chunks {
        Some(chunks) if (1..=CHUNKS_MAX / ranks).contains(&chunks) => chunks,
        _ => {
            let chunks = first.input_chunks;
            return whole(format!("{kind} over {ranks} ranks cannot have {chunks} chunks"));
        }
    };
    let collective = Collective::new(kind, ranks);
    let algorithm = Algorithm {
        name: file.name.clone(),
        collective,
        lane,
        in_place: file.inplace,
        chunks,
        ranks: Vec::new(),
    };
    let lens = [Buffer::Input, Buffer::Output].map(|buffer| algorithm.len_of(buffer));
    for gpu in &file.gpus {
        // In place one of the two may not be named.
        let right = |len: usize, told: usize| told == len || (file.inplace && told == 0);
        if !right(lens[0], gpu.input_chunks) || !right(lens[1], gpu.output_chunks) {
            return whole(format!(
                "gpu {} has {} and {} chunks of input and output, where {kind} has {} and {}",
                gpu.id, gpu.input_chunks, gpu.output_chunks, lens[0], lens[1]
            ));
        }
    }
    Ok(algorithm)
}

fn part(chunks: usize, ranks: usize) -> Option<usize> {
    chunks.is_multiple_of(ranks).then_some(chunks / ranks)
}

/// By rank and type, the channels that a rank numbers: to whom each goes, and how many there are to
/// the same rank before it.
type Numbered = Vec<HashMap<ChannelType, Vec<(usize, usize)>>>;

fn channels(file: &File) -> Result<Numbered, PlanFault> {
    let mut all: Numbered = Vec::new();
    for gpu in &file.gpus {
        let mut of_gpu: HashMap<ChannelType, Vec<(usize, usize)>> = HashMap::new();
        for channels in &gpu.channels {
            let numbered = of_gpu.entry(channels.channel_type).or_default();
            for peer in &channels.connected_to {
                if *peer >= file.gpus.len() || *peer == gpu.id {
                    let what = format!("gpu {} has a channel to {peer}, which is no other", gpu.id);
                    return Err(PlanFault::Whole(what));
                }
                let before = numbered.iter().filter(|(other, _)| other == peer).count();
                numbered.push((*peer, before));
            }
        }
        all.push(of_gpu);
    }
    Ok(all)
}

struct Reader<'a> {
    file: &'a File,
    algorithm: &'a Algorithm,
    channels: Numbered,
}

/// A rank, and a thread block of it.
type Of<'a> = (usize, &'a ThreadBlock);

impl Reader<'_> {
    /// Those of a pipeline are numbered as it is.
    fn operations(
        &self,
        of: Of<'_>,
        ops: &[Op],
        pipeline: Option<usize>,
        steps: &mut Vec<Step>,
    ) -> Result<(), PlanFault> {
        for (number, op) in ops.iter().enumerate() {
            let number = pipeline.unwrap_or(number);
            let (gpu, block, name) = (of.0, of.1.id, op.name.clone());
            let place = PlanPlace { gpu, block, op: number, name };
            if op.name == "pipeline" && pipeline.is_none() {
                self.operations(of, &op.ops, Some(number), steps)?;
                continue;
            }
            let actions = self.actions(of, op);
            let actions =
                actions.map_err(|unfit| PlanFault::Operation { place: place.clone(), unfit })?;
            let named = |action| Step { action, place: place.clone() };
            steps.extend(actions.into_iter().map(named));
        }
        Ok(())
    }

    fn actions(&self, of: Of<'_>, op: &Op) -> Result<Vec<Action>, String> {
        if let Some(shape) = shape(&op.name) {
            let mut actions = self.moves(of, op, &shape)?;
            if matches!(op.name.as_str(), "pws" | "pwsf") {
                actions.extend(self.channels(of, op)?.into_iter().map(Action::Signal));
            }
            return Ok(actions);
        }
        let (rank, _) = of;
        let semaphores = || {
            let known = self.file.gpus[rank].semaphores.len();
            match op.semaphore_ids.iter().find(|id| **id >= known) {
                Some(id) => Err(format!("semaphore {id}: this gpu has {known}")),
                None => Ok(op.semaphore_ids.iter().copied()),
            }
        };
        Ok(match op.name.as_str() {
            // What thread blocks' own threads wait for, and what a proxy has sent.
            "nop" | "flush" => Vec::new(),
            "signal" | "rlxsignal" => {
                self.channels(of, op)?.into_iter().map(Action::Signal).collect()
            }
            "wait" | "rlxwait" => {
                let back = |Channel { kind, from, to, number }| Channel {
                    kind,
                    from: to,
                    to: from,
                    number,
                };
                self.channels(of, op)?.into_iter().map(back).map(Action::Wait).collect()
            }
            "barrier" => match (op.barrier_id, op.num_threadblocks) {
                (Some(id), Some(count)) => vec![Action::Barrier(id, count)],
                _ => return Err("it has no barrier_id or no num_threadblocks".to_owned()),
            },
            "sem_acquire" => semaphores()?.map(Action::Acquire).collect(),
            "sem_release" => semaphores()?.map(Action::Release).collect(),
            _ => return Err("no such operation is known".to_owned()),
        })
    }

    /// An operation's channels, from this rank on.
    fn channels(&self, (rank, block): Of<'_>, op: &Op) -> Result<Vec<Channel>, String> {
        let kind = op.channel_type.unwrap_or(ChannelType::None);
        let used: Vec<usize> = used_channels(block, kind).collect();
        let known = self.channels[rank].get(&kind).map_or(&[][..], Vec::as_slice);
        let find = |id: &usize| {
            let (to, number) = *known.get(*used.get(*id)?)?;
            Some(Channel { kind, from: rank, to, number })
        };
        let all = op.channel_ids.iter().map(|id| {
            find(id).ok_or_else(|| format!("channel {id}: the thread block has no such one"))
        });
        all.collect()
    }

    fn moves(&self, of: Of<'_>, op: &Op, shape: &Shape) -> Result<Vec<Action>, String> {
        if op.src_buff.is_empty() || op.dst_buff.is_empty() {
            return Err("it has no source or no destination".to_owned());
        }
        let cells = |buffs: &[Buff]| {
            buffs.iter().map(|buff| self.cells(of, op, buff)).collect::<Result<Vec<_>, _>>()
        };
        let (sources, destinations) = (cells(&op.src_buff)?, cells(&op.dst_buff)?);
        let len = sources[0][0].len();
        let of_one = |chunk: usize, all: &[Vec<Vec<Cell>>]| -> Vec<Cell> {
            all.iter().flatten().map(|cells| cells[chunk]).collect()
        };
        match shape {
            Shape::Pairs { packets } => {
                let is_pair = |(from, to): (&Vec<Vec<Cell>>, &Vec<Vec<Cell>>)| {
                    from.len() == 1 && to.len() == 1 && from[0].len() == to[0].len()
                };
                if sources.len() != destinations.len()
                    || !sources.iter().zip(&destinations).all(is_pair)
                {
                    return Err(
                        "its sources and destinations are no pairs of one length".to_owned()
                    );
                }
                let pairs = sources.iter().zip(&destinations);
                let cells = pairs.flat_map(|(from, to)| from[0].iter().zip(&to[0]));
                let copy = |(from, to): (&Cell, &Cell)| Action::Move {
                    sources: vec![*from],
                    destinations: vec![*to],
                    packets: *packets,
                };
                Ok(cells.map(copy).collect())
            }
            Shape::All { packets } => {
                let mut all = sources.iter().chain(&destinations).flatten();
                if !all.all(|cells| cells.len() == len) {
                    return Err("its sources and destinations are not of one length".to_owned());
                }
                let whole = |chunk| Action::Move {
                    sources: of_one(chunk, &sources),
                    destinations: of_one(chunk, &destinations),
                    packets: *packets,
                };
                Ok((0..len).map(whole).collect())
            }
        }
    }

    /// The chunks of a buffer; of a switch, those of each of its ranks.
    fn cells(&self, (rank, block): Of<'_>, op: &Op, buff: &Buff) -> Result<Vec<Vec<Cell>>, String> {
        let (ranks, kind) = match (buff.kind, buff.buffer_id, buff.switch_channel_id) {
            (Some(kind), None, None) => (vec![rank], kind),
            (None, Some(id), None) => {
                let kind = op.channel_type.unwrap_or(ChannelType::None);
                let refs =
                    block.remote_buffer_refs.iter().filter(|refs| refs.access_channel_type == kind);
                let ids: Vec<usize> =
                    refs.flat_map(|refs| refs.remote_buffer_ids.iter().copied()).collect();
                let buffer =
                    ids.get(id).and_then(|id| self.file.gpus[rank].remote_buffers.get(*id));
                let buffer = buffer.filter(|buffer| buffer.rank < self.file.gpus.len());
                let buffer =
                    buffer.ok_or_else(|| format!("buffer_id {id}: there is no such one"))?;
                (vec![buffer.rank], buffer.kind)
            }
            (None, None, Some(id)) => self.switch((rank, block), id)?,
            _ => {
                return Err(
                    "a buffer has none or several of type, buffer_id and switch_channel_id"
                        .to_owned(),
                );
            }
        };
        let buffer = match kind {
            BufferType::Input => Buffer::Input,
            BufferType::Output => Buffer::Output,
            BufferType::Scratch => Buffer::Scratch,
        };
        if buff.size == 0 {
            return Err("a buffer has size 0".to_owned());
        }
        let of_rank = |rank: usize| {
            let chunks = match buffer {
                Buffer::Scratch => self.file.gpus[rank].scratch_chunks,
                _ => self.algorithm.len_of(buffer),
            };
            match buff.index.checked_add(buff.size) {
                Some(end) if end <= chunks => {
                    Ok((buff.index..end).map(|chunk| Cell { rank, buffer, chunk }).collect())
                }
                _ => Err(format!(
                    "{}[{}], {} of them: this buffer of gpu {rank} has {chunks} chunks",
                    buffer.letter(),
                    buff.index,
                    buff.size
                )),
            }
        };
        ranks.into_iter().map(of_rank).collect()
    }

    fn switch(&self, (rank, block): Of<'_>, id: usize) -> Result<(Vec<usize>, BufferType), String> {
        let gpu = &self.file.gpus[rank];
        let switches = gpu.channels.iter().filter(|one| one.channel_type == ChannelType::Switch);
        let mut groups =
            switches.flat_map(|one| one.rank_groups.iter().map(|group| (group, one.buffer_type)));
        let number = used_channels(block, ChannelType::Switch).nth(id);
        let found = number.and_then(|number| groups.nth(number));
        match found {
            Some((group, Some(kind)))
                if group.ranks.iter().all(|one| *one < self.file.gpus.len()) =>
            {
                Ok((group.ranks.clone(), kind))
            }
            _ => Err(format!("switch_channel_id {id}: there is no such one")),
        }
    }
}

fn used_channels(block: &ThreadBlock, kind: ChannelType) -> impl Iterator<Item = usize> {
    let used = block.channels.iter().filter(move |used| used.channel_type == kind);
    used.flat_map(|used| used.channel_ids.iter().copied())
}
