//! Lowering: one rank's part of a verified schedule becomes the program that the machine runs.

mod at_once;
mod copies;

pub use copies::{CopyAction, CopySource, CopyStep, NotCopies, Notice, copies};

use crate::length::{Length, TooLong};
use crate::schedule::{
    Buffer, Flag, Instruction, Layout, Link, MostSegments, Operand, Schedule, Source, Tree,
};
use crate::verify::Verified;
use oxccl_format::{self as f, Lane};
use std::collections::{BTreeMap, HashMap};
use thiserror::Error;

/// Cache-line granularity at which a chunk is dealt to channels.
pub const PART_BYTES: usize = 64;

/// What lowering needs besides schedule and layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lowering {
    /// Element type.
    pub data_type: f::DataType,
    /// How two values become one.
    pub fold: f::Fold,
    /// What else happens to values.
    pub scale: f::Scale,
    /// Channels that share the work. Where ranks have several lists, each list of a share of it has
    /// one of them ([`Verified::shares`]).
    pub channels: usize,
    /// Set of connections that the first of these uses. Messages from rank to rank have sets of
    /// their own: other calls may overtake them, and they must not come between those' messages.
    pub first_connections: usize,
    /// So many channels have connections, from that one on.
    pub most_channels: usize,
    /// Bytes a channel handles per chunk and round; at most the slots' payload. Less where messages
    /// have several segments, which share a slot. Ignored by schedules that have one round
    /// ([`Schedule::has_one_round`]).
    pub tile_bytes: usize,
    /// Outputs are written with streaming stores by launches that ask for it
    /// ([`f::LAUNCH_STREAM`]).
    pub stream: bool,
    /// Peers' buffers are in memory of their own, which the system reads: the schedule writes to no
    /// window.
    pub cma: bool,
    /// The buffers are virtual, those of a group: bytes of one rank's part of them, or of the whole
    /// where ranks have no parts.
    pub virtual_bytes: Option<usize>,
}

/// A program in the machine's binary format, for one rank.
#[derive(Clone, Debug)]
pub struct Program {
    words: Box<[u64]>,
    channels: usize,
    rounds: u64,
    scratch_bytes: usize,
}

impl Program {
    /// The program's first word, as the launch block takes it.
    pub fn header(&self) -> *const f::Header {
        self.words.as_ptr().cast()
    }

    /// The program's bytes as 64-bit words.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Memory that it needs besides the buffers of calls. Its content is of no matter before and
    /// after.
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_bytes
    }

    /// Says where that memory is, for whoever runs the program: at a multiple of 64 bytes.
    pub fn set_scratch(&mut self, memory: *mut u8) {
        let word = std::mem::offset_of!(f::Header, scratch) / size_of::<u64>();
        self.words[word] = memory as u64;
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Rounds that each channel runs.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }
}

/// A slot does not hold all segments of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "its messages have up to {segments} segments, which do not fit into slots of {payload_bytes} bytes: set \
     OXCCL_SLOT_BYTES and OXCCL_LL_SLOT_BYTES to at least {} a segment", 2 * f::LL128_LINE_BYTES
)]
pub struct SlotTooSmall {
    /// Most segments of a message.
    pub segments: usize,
    /// The slots' payload.
    pub payload_bytes: usize,
}

/// Why a schedule cannot be lowered for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LowerError {
    /// A slot does not hold all segments of a message.
    #[error(transparent)]
    SlotTooSmall(#[from] SlotTooSmall),
    /// Channels that have no connections, or none at all.
    #[error("{channels} channels are asked for, and there are connections for 1 to {most}")]
    NoConnections {
        /// What is asked for.
        channels: usize,
        /// What there is.
        most: usize,
    },
    /// Ranks have more lists than there are channels for.
    #[error("its lists need {needed} channels, and it has {channels}")]
    TooManyLists {
        /// What is needed.
        needed: usize,
        /// What is asked for.
        channels: usize,
    },
    /// It has the fabric's switches reduce, which no executor can.
    #[error("it has the fabric's switches reduce, and no executor drives them")]
    InFabric,
    /// It writes to peers' memory, which the system only reads.
    #[error("it writes to peers' buffers, which are private memory")]
    WritesPrivate,
    /// The buffers are longer than memory.
    #[error("its buffers come to {0}")]
    TooLong(#[from] TooLong),
}

/// Lowers one rank's instructions. Equal arguments give equal programs.
///
/// # Errors
/// [`LowerError`]
pub fn lower(
    verified: &Verified,
    rank: usize,
    layout: &Layout,
    lowering: &Lowering,
) -> Result<Program, LowerError> {
    lower_shares(verified, rank, std::slice::from_ref(layout), lowering, &[])
}

/// As [`lower`], with a layout for each share, of which it moves all, or with one of which each
/// moves a part; and with what the rank and each of its peers alone must agree on: a number for
/// each peer, or none.
///
/// # Panics
/// There are several layouts, and not as many as shares.
pub fn lower_shares(
    verified: &Verified,
    rank: usize,
    layouts: &[Layout],
    lowering: &Lowering,
    signatures: &[u32],
) -> Result<Program, LowerError> {
    let &Lowering { channels, most_channels: most, .. } = lowering;
    if channels == 0 || channels > most {
        return Err(LowerError::NoConnections { channels, most });
    }
    let schedule = verified.schedule();
    let shares = verified.shares(channels);
    if shares == 0 {
        return Err(LowerError::TooManyLists { needed: verified.needed_channels(), channels });
    }
    if lowering.cma && schedule.writes_windows() {
        return Err(LowerError::WritesPrivate);
    }
    if schedule.uses_rails() {
        return Err(LowerError::InFabric);
    }
    let size = lowering.data_type.len_bytes();
    let divided = if layouts.len() == 1 { shares } else { 1 };
    assert_eq!(layouts.len() * divided, shares);
    let mut part = 0;
    for layout in layouts {
        // From here on no offset can wrap: all of them lie in buffers of this length, but for the
        // padding of a part.
        Length::new(layout.end(), size)?;
        part = part.max(part_bytes(layout.largest() * size, divided));
    }
    let tile = match schedule.has_one_round() {
        true => part.max(PART_BYTES),
        // No larger than the part, so that the segments of short messages lie close together.
        false => tile_bytes(schedule.most_segments(), lowering.tile_bytes)?
            .min(part.next_multiple_of(PART_BYTES).max(PART_BYTES)),
    };
    let rounds = part.div_ceil(tile).max(1) as u64;
    // It begins anew with each round, so a tile of each chunk is enough.
    let scratch_stride = tile.next_multiple_of(PART_BYTES);
    let scratch_chunks = schedule.scratch.saturating_mul(shares);
    let scratch_bytes = Length::new(scratch_chunks, scratch_stride)?.bytes();
    let mut tables = Tables::default();
    for share in 0..shares {
        for list in schedule.lists_of(rank) {
            let first_step = schedule.first_step(list);
            let channel = Channel {
                verified,
                schedule,
                rank,
                list,
                first_step,
                layout: &layouts[share / divided],
                lowering,
                signatures,
                share,
                part: (share % divided, divided),
                size,
                tile,
            };
            tables.push(&channel, rounds, tile as u64);
        }
    }
    let words = tables.encode(lowering);
    let channels = shares * schedule.lists_per_rank;
    Ok(Program { words, channels, rounds, scratch_bytes })
}

/// The largest segments of which so many fit into a slot with this payload; none if not even a few
/// bytes do.
pub fn segment_bytes(lane: Lane, segments: usize, payload_bytes: usize) -> Option<usize> {
    if segments <= 1 {
        return Some(payload_bytes);
    }
    let slot = match lane {
        Lane::Ll => f::ll_slot_bytes(payload_bytes as u64) as usize,
        Lane::Ll128 => f::ll128_slot_bytes(payload_bytes as u64) as usize,
        _ => f::SLOT_HEADER_BYTES + payload_bytes,
    };
    let room = slot / segments;
    let bytes = match lane {
        Lane::Ll => rounded_down(room, PART_BYTES).saturating_sub(f::LL_HEADER_BYTES) / 2,
        Lane::Ll128 => (room / f::LL128_LINE_BYTES).saturating_sub(1) * f::LL128_DATA_BYTES,
        _ => rounded_down(room, PART_BYTES).saturating_sub(f::SLOT_HEADER_BYTES),
    };
    // Tiles begin at cache lines where they can.
    let unit = if bytes >= PART_BYTES { PART_BYTES } else { 8 };
    Some(rounded_down(bytes, unit)).filter(|bytes| *bytes > 0)
}

fn rounded_down(bytes: usize, unit: usize) -> usize {
    bytes / unit * unit
}

/// What each chunk's tile may have so that every message fits into a slot.
pub fn tile_bytes(
    most_segments: MostSegments,
    payload_bytes: usize,
) -> Result<usize, SlotTooSmall> {
    let mut tile = payload_bytes;
    for (lane, segments) in most_segments {
        tile = segment_bytes(lane, segments, payload_bytes)
            .ok_or(SlotTooSmall { segments, payload_bytes })?
            .min(tile);
    }
    Ok(tile)
}

/// Bytes of a chunk that one channel handles, but for the last, which may have fewer.
pub fn part_bytes(chunk_bytes: usize, channels: usize) -> usize {
    if channels == 1 {
        chunk_bytes
    } else {
        chunk_bytes.div_ceil(channels).next_multiple_of(PART_BYTES)
    }
}

/// One channel's view while its tables are written.
struct Channel<'a> {
    verified: &'a Verified,
    schedule: &'a Schedule,
    rank: usize,
    /// The number of its list among all, and of the list's first step.
    list: usize,
    first_step: usize,
    layout: &'a Layout,
    lowering: &'a Lowering,
    signatures: &'a [u32],
    /// Which share of the work it has.
    share: usize,
    /// Which part of every chunk of its layout that is, and of how many.
    part: (usize, usize),
    size: usize,
    tile: usize,
}

impl Channel<'_> {
    /// The connection by which it sends over a link, or receives.
    fn connection(&self, link: Link, sends: bool) -> u32 {
        let (set, lane) = self.verified.set(self.list, link, sends);
        let set = self.share * self.verified.sets() + set;
        let pair =
            (self.lowering.first_connections + set) * self.schedule.collective.ranks + link.peer;
        (pair * f::LANES + lane as usize) as u32
    }

    /// That of a flag, which it waits for or raises.
    fn connection_of(&self, flag: Flag, raises: bool) -> u32 {
        match flag {
            Flag::Tail(link) => self.connection(link, raises),
            Flag::Head(link) => self.connection(link, !raises),
        }
    }

    /// Offset and length in bytes of this channel's part of a chunk.
    fn part(&self, rank: usize, buffer: Buffer, chunk: usize) -> (usize, usize) {
        let extent = self.layout.extent(rank, buffer, chunk);
        let len = extent.count * self.size;
        let part = part_bytes(len, self.part.1);
        let start = (self.part.0 * part).min(len);
        (extent.offset * self.size + start, part.min(len - start))
    }

    /// Where a segment starts in its slot. Each has a header.
    fn segment(&self, lane: Lane, segment: u32) -> usize {
        let tile = self.tile as u64;
        let stride = match lane {
            Lane::Ll => f::ll_slot_bytes(tile),
            Lane::Ll128 => f::ll128_slot_bytes(tile),
            _ => f::plain_slot_bytes(tile),
        };
        segment as usize * stride as usize
    }

    /// The encoded operand and its length, where it has one of its own.
    /// A multicast has been divided into its members.
    fn operand(&self, operand: Operand, raw: bool) -> (f::Operand, Option<usize>) {
        let encode = |space: f::Space, index: u32, message: u32, offset: usize| f::Operand {
            space: space as u8,
            flags: if raw { f::OPERAND_RAW } else { 0 },
            lane: 0,
            reserved: 0,
            index,
            message,
            signature: 0,
            offset_bytes: offset as u64,
        };
        // In a group a rank's part is a number, since it lies elsewhere in each bucket.
        let memory = |space, index, offset: usize| match self.lowering.virtual_bytes {
            Some(part) if part > 0 => encode(space, index, (offset / part) as u32, offset % part),
            _ => encode(space, index, 0, offset),
        };
        let stream = |mut operand: f::Operand| {
            operand.flags |= if self.lowering.stream { f::OPERAND_STREAM } else { 0 };
            operand
        };
        let slot = |space, link: Link, message, segment: u32| f::Operand {
            lane: link.lane as u8,
            signature: self.signatures.get(link.peer).copied().unwrap_or(0),
            ..encode(
                space,
                self.connection(link, space == f::Space::PeerSlot),
                message,
                self.segment(link.lane, segment),
            )
        };
        match operand {
            Operand::Input(chunk) => {
                let (offset, len) = self.part(self.rank, Buffer::Input, chunk);
                (memory(f::Space::Input, 0, offset), Some(len))
            }
            Operand::Output(chunk) => {
                let (offset, len) = self.part(self.rank, Buffer::Output, chunk);
                (stream(memory(f::Space::Output, 0, offset)), Some(len))
            }
            Operand::Scratch(chunk) => {
                let chunk = self.share * self.schedule.scratch + chunk;
                let offset = chunk * self.tile.next_multiple_of(PART_BYTES);
                (encode(f::Space::Scratch, 0, 0, offset), None)
            }
            Operand::Window { peer, buffer, chunk } => {
                let (offset, len) = self.part(peer, buffer, chunk);
                let space = match buffer {
                    Buffer::Input => f::Space::WindowInput,
                    Buffer::Output => f::Space::WindowOutput,
                };
                let mut operand = stream(memory(space, peer as u32, offset));
                operand.flags |= if self.lowering.cma { f::OPERAND_CMA } else { 0 };
                (operand, Some(len))
            }
            Operand::Slot { link, message, segment } => {
                (slot(f::Space::Slot, link, message, segment), None)
            }
            Operand::PeerSlot { link, message, segment } => {
                (slot(f::Space::PeerSlot, link, message, segment), None)
            }
            Operand::Multicast { .. } => unreachable!("its members are operands, not itself"),
            Operand::Contribution { .. } | Operand::Reduced { .. } => {
                unreachable!("such schedules are not lowered")
            }
            Operand::Tokens => {
                (encode(f::Space::Tokens, 0, 0, 0), Some(std::mem::size_of::<f::Tokens>()))
            }
            Operand::PeerTokens(peer) => (
                encode(f::Space::PeerTokens, peer as u32, 0, 0),
                Some(std::mem::size_of::<f::Tokens>()),
            ),
        }
    }
}

/// The program's tables while they grow.
#[derive(Default)]
struct Tables {
    channels: Vec<f::ChannelEntry>,
    instructions: Vec<f::Instruction>,
    operands: Vec<f::Operand>,
    advances: Vec<f::Advance>,
}

impl Tables {
    fn push(&mut self, channel: &Channel<'_>, rounds: u64, tile_bytes: u64) {
        let list = &channel.schedule.lists[channel.list];
        let mut entry = f::ChannelEntry {
            first_instruction: self.instructions.len() as u32,
            instructions: list.len() as u32,
            first_advance: self.advances.len() as u32,
            advances: 0,
            first_operand: self.operands.len() as u32,
            operands: 0,
            first_connection: 0,
            connections: 0,
            rounds,
            tile_bytes,
        };
        let mut moves = BTreeMap::<u32, (u32, u32)>::new();
        let mut last_segments = HashMap::new();
        for (step, instruction) in list.iter().enumerate() {
            count_messages(channel, instruction, &mut moves);
            let mut encoded = self.instruction(channel, step, instruction);
            note_segments(instruction, &mut last_segments);
            if let Instruction::Signal { flag: Flag::Tail(link), value } = instruction {
                let last = last_segments.get(&(*link, value - 1)).copied().unwrap_or(0);
                encoded.len_bytes = channel.segment(link.lane, last) as u64;
            }
            self.instructions.push(encoded);
        }
        let encoded = &mut self.instructions[entry.first_instruction as usize..];
        at_once::note_runs(encoded);
        at_once::note_token_runs(list, encoded);
        at_once::note_fences(list, encoded);
        at_once::note_copy_runs(encoded, &self.operands);
        entry.operands = self.operands.len() as u32 - entry.first_operand;
        let numbers = || moves.keys().copied();
        entry.first_connection = numbers().next().unwrap_or(0);
        entry.connections =
            numbers().next_back().map_or(0, |last| last + 1 - entry.first_connection);
        for (connection, (sent, received)) in moves {
            self.advances.push(f::Advance { connection, sent, received, reserved: 0 });
            entry.advances += 1;
        }
        self.channels.push(entry);
    }

    fn instruction(
        &mut self,
        channel: &Channel<'_>,
        step: usize,
        instruction: &Instruction,
    ) -> f::Instruction {
        let number = (channel.first_step + step) as u32;
        let flag_word = |opcode: f::Opcode, flag: Flag, value: i64| {
            let flags = match flag {
                Flag::Tail(_) => 0,
                Flag::Head(_) => f::INSTRUCTION_HEAD,
            };
            f::Instruction {
                opcode: opcode as u8,
                flags,
                sources: 0,
                destinations: 0,
                run: 1,
                index: channel.connection_of(flag, opcode == f::Opcode::Signal),
                step: number,
                value,
                len_bytes: 0,
            }
        };
        match instruction {
            Instruction::Wait { flag, value } => flag_word(f::Opcode::Wait, *flag, *value),
            Instruction::Signal { flag, value } => flag_word(f::Opcode::Signal, *flag, *value),
            Instruction::ReduceCopy { sources, destinations, tree, finish } => {
                let index = self.operands.len() as u32;
                let ranks = channel.schedule.collective.ranks;
                let members = |operand: Operand| operand.members(channel.rank, ranks);
                let reads = sources.iter().flat_map(|source| {
                    members(source.operand).map(|operand| channel.operand(operand, source.raw))
                });
                let writes = destinations.iter().flat_map(|operand| members(*operand));
                let writes = writes.map(|operand| channel.operand(operand, false));
                // What goes between slots and scratch has the length of the chunk that it was once.
                let origin = channel.verified.origin(channel.list, step);
                let mut len =
                    origin.map(|(rank, buffer, chunk)| channel.part(rank, buffer, chunk).1);
                let mut counts = [0u16; 2];
                let sides = reads.map(|read| (0, read)).chain(writes.map(|write| (1, write)));
                for (side, (operand, own_len)) in sides {
                    debug_assert!(len.is_none() || own_len.is_none() || len == own_len);
                    len = len.or(own_len);
                    self.operands.push(operand);
                    counts[side] += 1;
                }
                f::Instruction {
                    opcode: f::Opcode::ReduceCopy as u8,
                    flags: flags(sources, destinations, *tree, *finish)
                        | reads_private(channel.lowering, sources),
                    sources: counts[0],
                    destinations: counts[1],
                    run: 1,
                    index,
                    step: number,
                    value: 0,
                    len_bytes: len.unwrap_or(0) as u64,
                }
            }
        }
    }

    fn encode(&self, lowering: &Lowering) -> Box<[u64]> {
        use std::mem::size_of_val;
        let channels = std::mem::size_of::<f::Header>();
        let instructions = channels + size_of_val(&self.channels[..]);
        let operands = instructions + size_of_val(&self.instructions[..]);
        let advances = operands + size_of_val(&self.operands[..]);
        let len = advances + size_of_val(&self.advances[..]);
        let header = f::Header {
            magic: f::MAGIC,
            version: f::VERSION,
            data_type: lowering.data_type as u8,
            fold: lowering.fold as u8,
            scale: lowering.scale as u8,
            reserved: 0,
            channels: self.channels.len() as u32,
            channels_offset: channels as u32,
            instructions_offset: instructions as u32,
            operands_offset: operands as u32,
            advances_offset: advances as u32,
            scratch: std::ptr::null_mut(),
            len_bytes: len as u64,
        };
        let mut words = Vec::with_capacity(len.div_ceil(8));
        append(&mut words, &[header]);
        append(&mut words, &self.channels);
        append(&mut words, &self.instructions);
        append(&mut words, &self.operands);
        append(&mut words, &self.advances);
        words.into_boxed_slice()
    }
}

/// The flags of a reduce-copy.
fn flags(sources: &[Source], destinations: &[Operand], tree: Tree, finish: bool) -> u8 {
    let everywhere = |operand: &Operand| matches!(operand, Operand::Multicast { .. });
    let all = [
        (tree == Tree::Aligned, f::INSTRUCTION_TREE),
        (finish, f::INSTRUCTION_FINISH),
        (sources.iter().any(|one| everywhere(&one.operand)), f::INSTRUCTION_MULTICAST_READ),
        (destinations.iter().any(everywhere), f::INSTRUCTION_MULTICAST_WRITE),
    ];
    all.iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag)
}

/// The flag of a reduce-copy that has the system read peers' memory.
fn reads_private(lowering: &Lowering, sources: &[Source]) -> u8 {
    let is_window = |source: &Source| matches!(source.operand, Operand::Window { .. });
    if lowering.cma && sources.iter().any(is_window) { f::INSTRUCTION_CMA } else { 0 }
}

/// Notes the last segment of each message that an instruction writes, by link and number.
fn note_segments(instruction: &Instruction, last: &mut HashMap<(Link, i64), u32>) {
    let Instruction::ReduceCopy { destinations, .. } = instruction else { return };
    for operand in destinations {
        if let Operand::PeerSlot { link, message, segment } = *operand {
            last.insert((link, i64::from(message)), segment);
        }
    }
}

/// Counts the messages that an instruction sends and receives on each connection.
fn count_messages(
    channel: &Channel<'_>,
    instruction: &Instruction,
    moves: &mut BTreeMap<u32, (u32, u32)>,
) {
    match instruction {
        // A counter-only link has no slots: its signals and waits are its messages.
        Instruction::Signal { flag: Flag::Tail(link), .. } if link.lane == f::Lane::Sync => {
            moves.entry(channel.connection(*link, true)).or_default().0 += 1;
        }
        Instruction::Wait { flag: Flag::Tail(link), .. } if link.lane == f::Lane::Sync => {
            moves.entry(channel.connection(*link, false)).or_default().1 += 1;
        }
        Instruction::ReduceCopy { sources, destinations, .. } => {
            for operand in destinations {
                if let Operand::PeerSlot { link, segment: 0, .. } = operand {
                    moves.entry(channel.connection(*link, true)).or_default().0 += 1;
                }
            }
            for source in sources {
                if let Operand::Slot { link, segment: 0, .. } = source.operand {
                    moves.entry(channel.connection(link, false)).or_default().1 += 1;
                }
            }
        }
        _ => {}
    }
}

/// Marks the format's plain structs, whose bytes may be copied into a program.
///
/// # Safety
///
/// The type has no padding and its size is a multiple of 8.
unsafe trait Plain: Copy {}
// SAFETY: 8-byte multiples without padding; asserted in `oxccl_format` and against the C++ mirror.
unsafe impl Plain for f::Header {}
// SAFETY: as above.
unsafe impl Plain for f::ChannelEntry {}
// SAFETY: as above.
unsafe impl Plain for f::Instruction {}
// SAFETY: as above.
unsafe impl Plain for f::Operand {}
// SAFETY: as above.
unsafe impl Plain for f::Advance {}

fn append<T: Plain>(words: &mut Vec<u64>, table: &[T]) {
    let len_bytes = std::mem::size_of_val(table);
    let start = words.len();
    words.resize(start + len_bytes / 8, 0);
    // SAFETY: `T: Plain` has no padding and the new words hold exactly the table's bytes; both
    // ranges are valid and distinct.
    unsafe {
        std::ptr::copy_nonoverlapping(
            table.as_ptr().cast::<u8>(),
            words[start..].as_mut_ptr().cast(),
            len_bytes,
        )
    }
}
