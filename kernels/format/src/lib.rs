//! The binary layout that the machine reads: programs, connections and the launch block.
//!
//! This crate is the definition. The build of oxccl-kernels writes every size and offset of it into a header, and the C++ mirror,
//! `kernels/machine/shared/format.h`, is compiled against those numbers, for the host and for every GPU target.
//!
//! A [`Header`] starts the program; behind it, at the byte offsets it names, lie the tables of
//! [`ChannelEntry`], [`Instruction`], [`Operand`] and [`Advance`]. All integers are native-endian, all tables
//! are 8-byte aligned. Lengths and offsets are in bytes: element types matter only to `ReduceCopy`
//! with several sources, a premultiplication or a finish.

/// First word of a program.
pub const MAGIC: u32 = 0x6363_786f; // "oxcc"
/// Layout version; an executor refuses any other.
pub const VERSION: u32 = 5;
/// Operands that one `ReduceCopy` may have, sources and destinations together.
pub const MAX_OPERANDS: usize = 260;
/// Sources that one `ReduceCopy` with [`INSTRUCTION_TREE`] may have.
pub const MAX_TREE_SOURCES: usize = 256;
/// Lanes per (channel, peer): see [`Lane`].
pub const LANES: usize = 4;
/// Bytes in front of the payload of an [`Lane::Slots`] slot: [`SlotHeader`], padded to a cache line. A payload that fits into the rest of
/// that line lies there.
pub const SLOT_HEADER_BYTES: usize = 64;
/// Buckets begin at multiples of this in a group's virtual buffer, so that a message's lines belong to one bucket each.
pub const SEGMENT_ALIGN: usize = 64;
/// [`Progress::lane`] of a wait for a bucket of this rank to be ready; [`Progress::awaited`] is the bucket.
pub const LANE_READY: u32 = 4;
/// [`Launch::flags`]: the part begins when its buckets are ready.
pub const LAUNCH_AWAITS: u32 = 1;
/// [`Launch::flags`]: the part's buckets are done when it is.
pub const LAUNCH_COMPLETES: u32 = 2;
/// Bytes in front of the payload of an [`Lane::Ll`] slot: one LL line `{signature, epoch, len, epoch}`.
pub const LL_HEADER_BYTES: usize = 16;
/// A line of an [`Lane::Ll128`] slot, of which the first is the message's header: its last two words are `{signature, len}` and the flag.
pub const LL128_LINE_BYTES: usize = 128;
/// What a line carries; the word behind it is the line's flag.
pub const LL128_DATA_BYTES: usize = 120;
/// After this many messages a sender, at the start of a round, waits until all earlier messages are
/// consumed and clears its slots. Epochs count modulo twice this, plus one, so that 0 never is one
/// and a stale flag never matches, wherever in a round the multiple falls.
pub const LL_EPOCHS: u64 = 1 << 30;

/// From this bit on a token, as in [`Tokens`], has the number of the allocation that it counts from: 0 for [`Window::base`].
pub const TOKEN_NUMBER_SHIFT: u32 = 52;

/// Distance of two [`Lane::Ll`] slots for messages of up to `len_bytes`: the header and lines of 16
/// bytes with 8 bytes of data each (the last one padded with zeros), in whole cache lines.
pub const fn ll_slot_bytes(len_bytes: u64) -> u64 {
    (LL_HEADER_BYTES as u64 + len_bytes.div_ceil(8) * 16).next_multiple_of(64)
}

/// Distance of two [`Lane::Ll128`] slots for messages of up to `len_bytes`: the header's line and the others.
pub const fn ll128_slot_bytes(len_bytes: u64) -> u64 {
    (1 + len_bytes.div_ceil(LL128_DATA_BYTES as u64)) * LL128_LINE_BYTES as u64
}

/// Distance of two [`Lane::Slots`] slots for messages of up to `len_bytes`.
pub const fn plain_slot_bytes(len_bytes: u64) -> u64 {
    (SLOT_HEADER_BYTES as u64 + len_bytes).next_multiple_of(64)
}

/// Element types.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DataType {
    /// Signed 8-bit integer.
    I8 = 0,
    /// Unsigned 8-bit integer.
    U8 = 1,
    /// Signed 32-bit integer.
    I32 = 2,
    /// Unsigned 32-bit integer.
    U32 = 3,
    /// Signed 64-bit integer.
    I64 = 4,
    /// Unsigned 64-bit integer.
    U64 = 5,
    /// IEEE binary16; accumulates in f32.
    F16 = 6,
    /// bfloat16; accumulates in f32.
    BF16 = 7,
    /// IEEE binary32.
    F32 = 8,
    /// IEEE binary64.
    F64 = 9,
    /// 8-bit float, 4 exponent and 3 mantissa bits (finite and NaN only); accumulates in f32, saturates.
    F8E4M3 = 10,
    /// 8-bit float, 5 exponent and 2 mantissa bits; accumulates in f32, saturates.
    F8E5M2 = 11,
}

/// How two values become one. `avg` is [`Fold::Sum`] with [`Scale::Average`], `premul-sum` is [`Fold::Sum`]
/// with [`Scale::Premultiply`].
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fold {
    /// `a + b`; integers wrap.
    Sum = 0,
    /// `a * b`; integers wrap.
    Prod = 1,
    /// `(b < a || a is NaN) ? b : a`: a NaN loses, ties keep the earlier operand.
    Min = 2,
    /// `(b > a || a is NaN) ? b : a`: a NaN loses, ties keep the earlier operand.
    Max = 3,
    /// Bitwise and; integers only.
    BitAnd = 4,
    /// Bitwise or; integers only.
    BitOr = 5,
    /// Bitwise exclusive or; integers only.
    BitXor = 6,
}

impl DataType {
    /// All of them, in the order of their numbers.
    pub const ALL: [DataType; 12] = [
        DataType::I8,
        DataType::U8,
        DataType::I32,
        DataType::U32,
        DataType::I64,
        DataType::U64,
        DataType::F16,
        DataType::BF16,
        DataType::F32,
        DataType::F64,
        DataType::F8E4M3,
        DataType::F8E5M2,
    ];

    /// Size of an element.
    pub const fn len_bytes(self) -> usize {
        match self {
            DataType::I8 | DataType::U8 | DataType::F8E4M3 | DataType::F8E5M2 => 1,
            DataType::F16 | DataType::BF16 => 2,
            DataType::I32 | DataType::U32 | DataType::F32 => 4,
            DataType::I64 | DataType::U64 | DataType::F64 => 8,
        }
    }

    /// Whether elements are integers.
    pub const fn is_integer(self) -> bool {
        (self as u8) <= DataType::U64 as u8
    }

    /// Whether elements can be folded so: bitwise folds are for integers only.
    pub const fn has(self, fold: Fold) -> bool {
        self.is_integer() || (fold as u8) < Fold::BitAnd as u8
    }

    /// Whether an NVSwitch folds elements so, on every GPU from sm_90 on (the table of `multimem.ld_reduce` in PTX's manual). It does so for halves' minima
    /// and maxima, too, but does not say which of a number and a NaN wins, which [`Fold::Min`] does.
    pub const fn has_multicast(self, fold: Fold) -> bool {
        match fold {
            Fold::Sum => !matches!(self.len_bytes(), 1),
            Fold::Prod => false,
            _ => self.is_integer() && self.len_bytes() >= 4,
        }
    }

    /// The name that users know, nccl-tests' where that has one.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::I8 => "int8",
            DataType::U8 => "uint8",
            DataType::I32 => "int32",
            DataType::U32 => "uint32",
            DataType::I64 => "int64",
            DataType::U64 => "uint64",
            DataType::F16 => "half",
            DataType::BF16 => "bfloat16",
            DataType::F32 => "float",
            DataType::F64 => "double",
            DataType::F8E4M3 => "f8e4m3",
            DataType::F8E5M2 => "f8e5m2",
        }
    }

    /// Whether values accumulate in the type itself, so that a partial result can be stored without being rounded once more. 8- and
    /// 16-bit floats accumulate in f32.
    pub const fn accumulates_in_itself(self) -> bool {
        self.is_integer() || matches!(self, DataType::F32 | DataType::F64)
    }

    /// The short name, as in kernel names.
    pub const fn symbol(self) -> &'static str {
        match self {
            DataType::I8 => "i8",
            DataType::U8 => "u8",
            DataType::I32 => "i32",
            DataType::U32 => "u32",
            DataType::I64 => "i64",
            DataType::U64 => "u64",
            DataType::F16 => "f16",
            DataType::BF16 => "bf16",
            DataType::F32 => "f32",
            DataType::F64 => "f64",
            DataType::F8E4M3 => "f8e4m3",
            DataType::F8E5M2 => "f8e5m2",
        }
    }
}

impl core::fmt::Display for DataType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

impl core::str::FromStr for DataType {
    type Err = String;

    /// Takes [`DataType::name`] and [`DataType::symbol`].
    fn from_str(text: &str) -> Result<DataType, String> {
        let is_it = |one: &DataType| one.name() == text || one.symbol() == text;
        DataType::ALL.into_iter().find(is_it).ok_or_else(|| {
            let names: Vec<_> = DataType::ALL.iter().map(|one| one.name()).collect();
            format!("{text:?} is no element type; there are {}", names.join(", "))
        })
    }
}

impl Fold {
    /// All of them, in the order of their numbers.
    pub const ALL: [Fold; 7] =
        [Fold::Sum, Fold::Prod, Fold::Min, Fold::Max, Fold::BitAnd, Fold::BitOr, Fold::BitXor];

    /// Short name, as in kernel names.
    pub const fn name(self) -> &'static str {
        match self {
            Fold::Sum => "sum",
            Fold::Prod => "prod",
            Fold::Min => "min",
            Fold::Max => "max",
            Fold::BitAnd => "band",
            Fold::BitOr => "bor",
            Fold::BitXor => "bxor",
        }
    }
}

/// What happens to values besides the fold.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scale {
    /// Nothing.
    None = 0,
    /// Sources with [`OPERAND_RAW`] are multiplied by [`Launch::scale_bits`] in the accumulator type when read.
    Premultiply = 1,
    /// An instruction with [`INSTRUCTION_FINISH`] divides by [`Launch::ranks`] in the accumulator type before rounding
    /// (integers: the wrapped sum, truncating division).
    Average = 2,
}

/// Which instruction of the machine.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// Block until a counter reaches a value (acquire).
    Wait = 0,
    /// Read the sources, reduce them in the listed order, write the result to all destinations. A copy whose first
    /// destination is its source (buffers in place) neither reads nor writes there on that destination's behalf.
    ReduceCopy = 1,
    /// Make earlier writes visible, then store a counter (release).
    Signal = 2,
}

/// `Wait`/`Signal`: the head counter (credits) instead of the tail counter (arrivals).
pub const INSTRUCTION_HEAD: u8 = 1;
/// `ReduceCopy`: combine the sources as the aligned binary tree over their positions instead of a left fold: the left
/// subtree of k sources has the largest power of two below k.
pub const INSTRUCTION_TREE: u8 = 2;
/// `ReduceCopy`: the result is final ([`Scale::Average`] divides here).
pub const INSTRUCTION_FINISH: u8 = 4;

/// `ReduceCopy`: the sources are one chunk of all ranks' buffers, which lies in [`Launch::multicast`] where there is one: a switch may reduce
/// them, in any order. There is one destination then, or [`INSTRUCTION_MULTICAST_WRITE`].
pub const INSTRUCTION_MULTICAST_READ: u8 = 8;
/// `ReduceCopy`: the destinations are one chunk of all ranks' buffers, which a switch may write. There is one source then, or
/// [`INSTRUCTION_MULTICAST_READ`].
pub const INSTRUCTION_MULTICAST_WRITE: u8 = 16;
/// `ReduceCopy` of [`Space::Tokens`]: it gives access to what happened before. Without, one before it has done so.
pub const INSTRUCTION_RELEASE: u8 = 32;
/// `ReduceCopy` to [`Space::PeerTokens`]: the accesses that it and those before it give may follow.
pub const INSTRUCTION_ACQUIRE: u8 = 64;

/// Operand: an unscaled contribution ([`Scale::Premultiply`] multiplies it).
pub const OPERAND_RAW: u8 = 1;
/// Operand (destination): the data will not be read soon; write around the cache.
pub const OPERAND_STREAM: u8 = 2;

/// Where an operand lives.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// [`Launch::input`].
    Input = 0,
    /// [`Launch::output`].
    Output = 1,
    /// The receive slot of connection `index`, message `received + message`. A source only.
    Slot = 2,
    /// The same slot from the sender's side: connection `index`, message `sent + message`. A destination only.
    PeerSlot = 3,
    /// The input buffer of peer `index`, in place.
    WindowInput = 4,
    /// The output buffer of peer `index`, in place.
    WindowOutput = 5,
    /// This rank's [`Tokens`] of this call (16 bytes). A source only.
    Tokens = 6,
    /// Where peer `index`'s [`Tokens`] go: this channel's [`Window`] entry. A destination only.
    PeerTokens = 7,
}

/// The kinds of connection between two ranks on one channel, which have counters and slots of their own.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Slots in LL encoding: each 8-byte word carries 4 bytes of data and a 4-byte epoch; a message needs no tail signal.
    Ll = 0,
    /// Plain slots, announced by the tail in their header.
    Slots = 1,
    /// One slot that is only a header: a counter.
    Sync = 2,
    /// Slots in LL128 encoding: each line of 128 bytes carries 120 bytes of data and an 8-byte epoch; a message needs no tail signal.
    Ll128 = 3,
}

impl Lane {
    /// All of them, in the order of their numbers.
    pub const ALL: [Lane; LANES] = [Lane::Ll, Lane::Slots, Lane::Sync, Lane::Ll128];

    /// Whether its messages announce themselves by the flags that they carry.
    pub const fn has_flags(self) -> bool {
        matches!(self, Lane::Ll | Lane::Ll128)
    }

    /// Short name, as in schedules.
    pub const fn name(self) -> &'static str {
        match self {
            Lane::Ll => "ll",
            Lane::Slots => "slots",
            Lane::Sync => "sync",
            Lane::Ll128 => "ll128",
        }
    }
}

/// Start of a program.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u32,
    /// [`DataType`].
    pub data_type: u8,
    /// [`Fold`].
    pub fold: u8,
    /// [`Scale`].
    pub scale: u8,
    /// Zero.
    pub reserved: u8,
    /// Number of channels.
    pub channels: u32,
    /// Byte offset of the [`ChannelEntry`] table.
    pub channels_offset: u32,
    /// Byte offset of the [`Instruction`] table.
    pub instructions_offset: u32,
    /// Byte offset of the [`Operand`] table.
    pub operands_offset: u32,
    /// Byte offset of the [`Advance`] table.
    pub advances_offset: u32,
    /// Length of the whole program.
    pub len_bytes: u64,
}

/// One channel: a list of instructions that is run once per round.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ChannelEntry {
    /// First instruction, as an index into the table.
    pub first_instruction: u32,
    /// Number of instructions.
    pub instructions: u32,
    /// First [`Advance`].
    pub first_advance: u32,
    /// Number of [`Advance`]s.
    pub advances: u32,
    /// Rounds.
    pub rounds: u64,
    /// Bytes that a `ReduceCopy` handles per round at most; a multiple of 64, or at least of 8, where there is more than one round.
    pub tile_bytes: u64,
}

/// One instruction.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// [`Opcode`].
    pub opcode: u8,
    /// `INSTRUCTION_*` bits.
    pub flags: u8,
    /// `ReduceCopy`: number of sources, listed first.
    pub sources: u16,
    /// `ReduceCopy`: number of destinations, behind the sources.
    pub destinations: u16,
    /// `Wait`, `Signal`: this one and so many more, less one, are alike but for their counters, and may be carried out at once.
    pub run: u16,
    /// `ReduceCopy`: first operand. `Wait`, `Signal`: connection, as an index into
    /// [`Launch::connections`].
    pub index: u32,
    /// Step id, the same in traces, errors and explanations.
    pub step: u32,
    /// `Wait` and `Signal`, relative to the cursors at the start of the round. Wait tail: `received + value` messages have
    /// arrived. Wait head: `sent + value` messages have been consumed (so 1 - slots for the first message of a round).
    /// Signal tail: announce `sent + value` messages. Signal head: `received + value` have been consumed.
    pub value: i64,
    /// `Signal` tail: where in its slot the last segment of the message starts. `ReduceCopy`: bytes over all rounds; round r handles `[r * tile_bytes, min((r + 1) * tile_bytes, len_bytes))`,
    /// which may be empty: slots then carry an empty message.
    pub len_bytes: u64,
}

/// A source or destination of a `ReduceCopy`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// [`Space`].
    pub space: u8,
    /// `OPERAND_*` bits.
    pub flags: u8,
    /// [`Lane`] of a slot operand (also found through the connection; kept here so that the executor need not look).
    pub lane: u8,
    /// Zero.
    pub reserved: u8,
    /// Connection (slots), as an index into [`Launch::connections`], or peer (windows, tokens).
    pub index: u32,
    /// Slots: message number within the round, from 0. Memory of a group: which rank's part of each bucket.
    pub message: u32,
    /// Slots: what [`Launch::signature`] is xored with in the message's header: 0, or what the two ranks alone must agree on.
    pub signature: u32,
    /// Input, output, windows: where the operand's bytes of round 0 start, in a group in the virtual buffer. Slots: where the segment, with its header, starts in
    /// the slot: a multiple of 64, on the LL128 lane of 128.
    pub offset_bytes: u64,
}

/// How a connection's cursors move at the end of each round.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Advance {
    /// Connection, as an index into [`Launch::connections`]; at most one entry for each.
    pub connection: u32,
    /// Messages sent per round.
    pub sent: u32,
    /// Messages received per round.
    pub received: u32,
    /// Zero.
    pub reserved: u32,
}

/// Header of a [`Lane::Slots`] or [`Lane::Sync`] slot, written by the sender with each message and checked by the receiver. It holds
/// the tail, unless that lies [apart](SlotTail): message m is announced by the value m + 1 in the slot that m lies in.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SlotHeader {
    /// The tail when this slot's last message was announced.
    pub tail: u64,
    /// [`Launch::signature`] of the sender's call.
    pub signature: u32,
    /// Payload length of this message.
    pub len_bytes: u32,
}

/// What waiting threads of a rank sleep on, one per channel, in memory that all ranks map. A cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Doorbell {
    /// Futex word; incremented before a wake.
    pub rings: u32,
    /// Nonzero while the owner sleeps or is about to.
    pub sleeping: u32,
    /// The event descriptor, plus one, that an owner of this process sleeps on instead of the futex; 0 for none.
    pub event: i32,
}

/// Both directions between this rank and one peer on one lane of one channel. Two cache lines; only this rank's channel
/// thread (thread block) reads or writes it, except through the pointers.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// Where messages to the peer are written: slot `m % slots` of message m.
    pub send_slots: *mut u8,
    /// Where messages from the peer are read.
    pub recv_slots: *mut u8,
    /// Messages the peer has consumed; the peer stores it.
    pub send_head: *mut u64,
    /// Messages this rank has consumed, as the peer sees it; this rank stores it.
    pub recv_head: *mut u64,
    /// The peer's doorbell on this channel.
    pub doorbell: *mut Doorbell,
    /// Messages sent before this round.
    pub sent: u64,
    /// Messages received before this round.
    pub received: u64,
    /// Last value read from `send_head`, so that most head waits read no shared memory.
    pub head_seen: u64,
    /// Distance of two slots: a multiple of 64, on the LL128 lane of 128, as the slots' start is.
    pub slot_stride_bytes: u32,
    /// Number of slots: a power of two, at most 2^20.
    pub slots: u32,
    /// Rank at the other end.
    pub peer: u32,
    /// [`Lane`].
    pub lane: u32,
    /// `Ll`, `Ll128`: value of `sent` when the slots were last cleared (0 for fresh slots, which are zero).
    pub cleared: u64,
    /// Where messages to the peer are announced, if not in their slots: one for each slot. Null otherwise.
    pub send_tails: *mut SlotTail,
    /// The same of messages from the peer.
    pub recv_tails: *mut SlotTail,
}

/// A tail that lies apart from its slot, in memory that the host reaches fast: a proxy polls it, and moves the slot without having to look
/// into it. A cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct SlotTail {
    /// As [`SlotHeader::tail`].
    pub tail: u64,
    /// How much of the slot the message fills, its headers included. Written with the tail by the sender.
    pub content_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

/// How this call's buffers are found by peers: an offset from [`Window::base`], or from an allocation that this rank has registered,
/// whose number is from bit [`TOKEN_NUMBER_SHIFT`] on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// The input buffer.
    pub input: u64,
    /// The output buffer.
    pub output: u64,
}

/// One peer's buffers as this rank reaches them. One entry per (channel, peer).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Where the peer's shareable memory begins in this address space.
    pub base: *mut u8,
    /// Where the peer's registered allocations begin in this address space, by number; there is none of number 0. Null where nobody
    /// registers any.
    pub registered: *const *mut u8,
    /// What a token of the first byte of the peer's heap would be.
    pub heap: u64,
    /// What the peer sent for this call.
    pub tokens: Tokens,
}

/// Memory that is one address for as many GPUs as there are ranks: the same range of each rank's heap.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Multicast {
    /// Where it begins; null where there is none, or where this call's buffers do not both lie in the heap.
    pub base: *mut u8,
    /// How far into the heap this rank's input is. A switch does the work where all ranks' are as far.
    pub input: u64,
    /// How far into the heap this rank's output is.
    pub output: u64,
    /// Host only, may be null: how far each rank's memory is from this, wrapping, where the addresses behind `base` cannot be used.
    pub members: *const u64,
}

/// What a channel waits for, written only after a wait has spun for a while, so that a hang explains itself.
/// It stays written when the wait is stopped.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// [`Launch::call`]; 0 while nothing is waited for.
    pub call: u64,
    /// The counter value (or message number, where messages have flags) that is awaited.
    pub awaited: u64,
    /// Step id.
    pub step: u32,
    /// Peer.
    pub peer: u32,
    /// [`Lane`].
    pub lane: u32,
    /// 1 for a head counter (a credit), 0 for an arrival.
    pub head: u32,
}

/// How a channel ended.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All rounds done.
    Done = 0,
    /// The abort word was raised, or the poll function said stop.
    Aborted = 1,
    /// A message of another call arrived: see [`Status::found`].
    Mismatch = 2,
    /// The program is not one this executor can run.
    BadProgram = 3,
}

/// Written by each channel that does not end well. Whoever launches has it say [`Outcome::Done`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Status {
    /// [`Outcome`].
    pub outcome: u32,
    /// Step id where it ended.
    pub step: u32,
    /// Peer concerned.
    pub peer: u32,
    /// Mismatch: the signature that came instead of ours. (The right signature with
    /// another length is [`Outcome::BadProgram`]: the two ranks run programs that do not fit.)
    pub found: u32,
}

/// One bucket of a group, as this rank reaches it. The buckets of a part lie one behind the other in a virtual buffer, each from a
/// multiple of [`SEGMENT_ALIGN`] on; what lies between them exists in no memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Where it begins in the virtual buffer.
    pub start: u64,
    /// Its length: one rank's part where ranks have parts.
    pub len_bytes: u64,
    /// The caller's input.
    pub input: *const u8,
    /// The caller's output.
    pub output: *mut u8,
    /// How many of the buckets behind it lie in this rank's memory as in the virtual buffer, each without a gap behind the one before it: a host
    /// moves them together. Both buffers do, or this rank has none. 0 is always right.
    pub followers: u64,
    /// Number of the bucket in the group.
    pub bucket: u32,
    /// Zero.
    pub reserved: u32,
}

/// One bucket as peers find it, by numbers as in [`Tokens`]. A rank's table of these is where [`Tokens::input`] says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentTokens {
    /// The input.
    pub input: u64,
    /// The output.
    pub output: u64,
    /// As [`Segment::followers`], by these numbers.
    pub followers: u64,
}

/// The one parameter of an executor: a call, or the first part of a group.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// The program.
    pub program: *const Header,
    /// All connections of this rank: `(channel * ranks + peer) * LANES + lane`.
    pub connections: *mut Connection,
    /// Windows: `channel * ranks + peer`.
    pub windows: *mut Window,
    /// One per channel.
    pub progress: *mut Progress,
    /// One per channel.
    pub statuses: *mut Status,
    /// This rank's doorbells, one per channel.
    pub doorbells: *mut Doorbell,
    /// Nonzero stops every wait.
    pub abort: *const u32,
    /// Host only, may be null: called now and then by a wait that has lasted; nonzero stops it.
    pub poll: Option<unsafe extern "C" fn(context: *mut core::ffi::c_void, channel: u32) -> u32>,
    /// Passed to `poll`.
    pub poll_context: *mut core::ffi::c_void,
    /// The caller's input.
    pub input: *const u8,
    /// The caller's output.
    pub output: *mut u8,
    /// How peers find these two.
    pub tokens: Tokens,
    /// Where a switch finds these two, and all ranks' with them.
    pub multicast: Multicast,
    /// [`Scale::Premultiply`]: the factor in the accumulator type (f32, f64, i64 or u64 bits, zero-extended).
    pub scale_bits: u64,
    /// Number of this call on the communicator, from 1.
    pub call: u64,
    /// What all ranks called before this, hashed: its lower half goes into the header of every message, with the signature.
    /// 0 of calls that some ranks alone make.
    pub history: u64,
    /// What all ranks must agree on, hashed.
    pub signature: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// Host only: polls of a wait before it yields the processor.
    pub spins: u32,
    /// Host only: yields before it sleeps on the doorbell.
    pub yields: u32,
    /// The part of the group that follows; null at the end. Of it `statuses`, `call`, `history`, `ready`, `done`, `ended`, `arrived`, `launched`, `spins` and
    /// `yields` do not count: those of the first hold for all, so that a chain stays as it is while its launches differ. With
    /// [`joined_channels`](Self::joined_channels), the ranks' own launch blocks.
    pub next: *const Launch,
    /// The part's buckets, in place of `input` and `output`; null where it has none.
    pub segments: *const Segment,
    /// One word for each of the group's buckets, which has come to `call` once the bucket is ready; null where all are.
    pub ready: *const u64,
    /// One word for each of the group's buckets and channels (`bucket * done_stride + channel`), in which a channel that is done with the bucket
    /// writes `call`; may be null.
    pub done: *mut u64,
    /// Number of the part's buckets.
    pub segments_count: u32,
    /// Number of the part's bucket in the group, where it has one and no `segments`.
    pub bucket: u32,
    /// Words of a bucket in `done`.
    pub done_stride: u32,
    /// Not 0: this is a launch for several ranks of a process at once, of so many channels each. Channel c of it is channel
    /// `c % joined_channels` of rank `c / joined_channels` of the [`ranks`](Self::ranks) whose launch blocks lie at `next`; the other fields are not used.
    pub joined_channels: u32,
    /// [`LAUNCH_AWAITS`], [`LAUNCH_COMPLETES`].
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
    /// Where the last channel to end writes `call`, however it has ended; null where nobody looks. Nothing that the launch leads to is
    /// read or written behind that.
    pub ended: *mut u64,
    /// With `ended`: counts the channels that have ended, from 0 back to 0.
    pub arrived: *mut u32,
    /// With `ended`: the channels of the launch, of one rank.
    pub launched: u64,
}

impl Launch {
    /// Nothing: what a launch block is made from, by naming the fields that it has.
    pub const EMPTY: Launch = Launch {
        program: core::ptr::null(),
        connections: core::ptr::null_mut(),
        windows: core::ptr::null_mut(),
        progress: core::ptr::null_mut(),
        statuses: core::ptr::null_mut(),
        doorbells: core::ptr::null_mut(),
        abort: core::ptr::null(),
        poll: None,
        poll_context: core::ptr::null_mut(),
        input: core::ptr::null(),
        output: core::ptr::null_mut(),
        tokens: Tokens { input: 0, output: 0 },
        multicast: Multicast {
            base: core::ptr::null_mut(),
            input: 0,
            output: 0,
            members: core::ptr::null(),
        },
        scale_bits: 0,
        call: 0,
        history: 0,
        signature: 0,
        ranks: 0,
        spins: 0,
        yields: 0,
        next: core::ptr::null(),
        segments: core::ptr::null(),
        ready: core::ptr::null(),
        done: core::ptr::null_mut(),
        segments_count: 0,
        bucket: 0,
        done_stride: 0,
        joined_channels: 0,
        flags: 0,
        reserved: 0,
        ended: core::ptr::null_mut(),
        arrived: core::ptr::null_mut(),
        launched: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for data_type in DataType::ALL {
            assert_eq!(data_type.name().parse(), Ok(data_type));
            assert_eq!(data_type.symbol().parse(), Ok(data_type));
            let known = |one: &&DataType| {
                one.name() == data_type.name() || one.symbol() == data_type.symbol()
            };
            assert_eq!(DataType::ALL.iter().filter(known).count(), 1);
        }
        assert!("int7".parse::<DataType>().is_err());
    }
}
