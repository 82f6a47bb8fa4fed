//! A program: its tables, and what stands in them.

use crate::*;

table! {
    /// First word of a program.
    pub const MAGIC: u32 = 0x6363_786f; // "oxcc"
    /// Layout version; an executor refuses any other.
    pub const VERSION: u32 = 8;
    /// Operands that one `ReduceCopy` may have, sources and destinations together.
    pub const MAX_OPERANDS: usize = 260;
    /// Sources that one `ReduceCopy` with [`INSTRUCTION_TREE`] may have.
    pub const MAX_TREE_SOURCES: usize = 256;

    /// Which instruction of the machine.
    #[repr(u8)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Opcode {
        /// Block until a counter reaches a value (acquire).
        Wait = 0,
        /// Read the sources, reduce them in the listed order, write the result to all destinations.
        /// A copy whose first destination is its source (buffers in place) neither reads nor writes
        /// there on that destination's behalf.
        ReduceCopy = 1,
        /// Make earlier writes visible, then store a counter (release).
        Signal = 2,
    }

    /// `Wait`/`Signal`: the head counter (credits) instead of the tail counter (arrivals).
    pub const INSTRUCTION_HEAD: u8 = 1;
    /// `ReduceCopy`: combine the sources as the aligned binary tree over their positions instead of
    /// a left fold: the left subtree of k sources has the largest power of two below k.
    pub const INSTRUCTION_TREE: u8 = 2;
    /// `ReduceCopy`: the result is final ([`Scale::Average`] divides here).
    pub const INSTRUCTION_FINISH: u8 = 4;
    /// `ReduceCopy`: the sources are one chunk of all ranks' buffers, which lies in
    /// [`Launch::multicast`] where there is one: a switch may reduce them, in any order. There is
    /// one destination then, or [`INSTRUCTION_MULTICAST_WRITE`].
    pub const INSTRUCTION_MULTICAST_READ: u8 = 8;
    /// `ReduceCopy`: the destinations are one chunk of all ranks' buffers, which a switch may
    /// write. There is one source then, or [`INSTRUCTION_MULTICAST_READ`].
    pub const INSTRUCTION_MULTICAST_WRITE: u8 = 16;
    /// `ReduceCopy` of [`Space::Tokens`]: it gives access to what happened before. Without, one
    /// before it has done so.
    pub const INSTRUCTION_RELEASE: u8 = 32;
    /// `ReduceCopy` to [`Space::PeerTokens`]: the accesses that it and those before it give may
    /// follow.
    pub const INSTRUCTION_ACQUIRE: u8 = 64;

    /// `ReduceCopy`: some of the sources have [`OPERAND_CMA`].
    pub const INSTRUCTION_CMA: u8 = 128;

    /// Operand: an unscaled contribution ([`Scale::Premultiply`] multiplies it).
    pub const OPERAND_RAW: u8 = 1;
    /// Operand (destination): written with streaming stores by launches with [`LAUNCH_STREAM`].
    /// Only hosts have it.
    pub const OPERAND_STREAM: u8 = 2;
    /// Operand (source, a window): memory of the peer's process that is not mapped here, which a
    /// host has the system read (cross-memory attach, `process_vm_readv`). Only hosts have it.
    pub const OPERAND_CMA: u8 = 4;

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
        /// The same slot from the sender's side: connection `index`, message `sent + message`. A
        /// destination only.
        PeerSlot = 3,
        /// The input buffer of peer `index`, in place.
        WindowInput = 4,
        /// The output buffer of peer `index`, in place.
        WindowOutput = 5,
        /// This rank's [`Tokens`] of this call (16 bytes). A source only.
        Tokens = 6,
        /// Where peer `index`'s [`Tokens`] go: this channel's [`Window`] entry. A destination only.
        PeerTokens = 7,
        /// [`Header::scratch`]: the same bytes in every round.
        Scratch = 8,
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
        /// Memory that the program uses as its own; null where it needs none.
        pub scratch: *mut u8,
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
        /// First operand of its instructions.
        pub first_operand: u32,
        /// Number of their operands, which are one behind the other.
        pub operands: u32,
        /// First of the connections that they use, which have one channel's numbers.
        pub first_connection: u32,
        /// How many there are from that one to the last that they use.
        pub connections: u32,
        /// Rounds.
        pub rounds: u64,
        /// Bytes that a `ReduceCopy` handles per round at most; a multiple of 64, or at least of 8,
        /// where there is more than one round.
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
        /// `Wait`, `Signal`: this one and so many more, less one, are alike but for their counters,
        /// and may be carried out at once. `ReduceCopy` to [`Space::PeerTokens`]: the same, of
        /// different peers. Other `ReduceCopy`s of one source and one destination: the same;
        /// none writes what another reads or writes. Of others 1.
        pub run: u16,
        /// `ReduceCopy`: first operand. `Wait`, `Signal`: connection, as an index into
        /// [`Launch::connections`].
        pub index: u32,
        /// Step id, the same in traces, errors and explanations.
        pub step: u32,
        /// `Wait` and `Signal`, relative to the cursors at the start of the round. Wait tail:
        /// `received + value` messages have arrived. Wait head: `sent + value` messages have been
        /// consumed (so 1 - slots for the first message of a round). Signal tail: announce
        /// `sent + value` messages. Signal head: `received + value` have been consumed.
        pub value: i64,
        /// `Signal` tail: where in its slot the last segment of the message starts. `ReduceCopy`:
        /// bytes over all rounds; round r handles
        /// `[r * tile_bytes, min((r + 1) * tile_bytes, len_bytes))`, which may be empty: slots then
        /// carry an empty message.
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
        /// [`Lane`] of a slot operand (also found through the connection; kept here so that the
        /// executor need not look).
        pub lane: u8,
        /// Zero.
        pub reserved: u8,
        /// Connection (slots), as an index into [`Launch::connections`], or peer (windows, tokens).
        pub index: u32,
        /// Slots: message number within the round, from 0. Memory of a group: which rank's part of
        /// each bucket.
        pub message: u32,
        /// Slots: what [`Launch::signature`] is xored with in the message's header: 0, or what the
        /// two ranks alone must agree on.
        pub signature: u32,
        /// Input, output, windows: where the operand's bytes of round 0 start, in a group in the
        /// virtual buffer. Scratch: where those of every round start. Slots: where the segment,
        /// with its header, starts in the slot: a multiple of 64, on the LL128 lane of 128.
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
}
