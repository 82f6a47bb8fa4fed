//! Connections between two ranks, and the slots that their messages are in.

use crate::*;

table! {
    /// The kinds of connection between two ranks on one channel, which have counters and slots of
    /// their own.
    #[repr(u8)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Lane {
        /// Slots in LL encoding: each 8-byte word carries 4 bytes of data and a 4-byte epoch; a
        /// message needs no tail signal.
        Ll = 0,
        /// Plain slots, announced by the tail in their header.
        Slots = 1,
        /// One slot that is only a header: a counter.
        Sync = 2,
        /// Slots in LL128 encoding: each line of 128 bytes carries 120 bytes of data and an 8-byte
        /// epoch; a message needs no tail signal.
        Ll128 = 3,
    }

    /// Bytes in front of the payload of an [`Lane::Slots`] slot: [`SlotHeader`], padded to a cache
    /// line. A payload that fits into the rest of that line lies there.
    pub const SLOT_HEADER_BYTES: usize = 64;
    /// Bytes in front of the payload of an [`Lane::Ll`] slot: one LL line
    /// `{signature, epoch, len, epoch}`.
    pub const LL_HEADER_BYTES: usize = 16;
    /// A line of an [`Lane::Ll128`] slot, of which the first is the message's header: its last two
    /// words are `{signature, len}` and the flag.
    pub const LL128_LINE_BYTES: usize = 128;
    /// What a line carries; the word behind it is the line's flag.
    pub const LL128_DATA_BYTES: usize = 120;
    /// After this many messages a sender, at the start of a round, waits until all earlier messages
    /// are consumed and clears its slots. Epochs count modulo twice this, plus one, so that 0 never
    /// is one and a stale flag never matches, wherever in a round the multiple falls.
    pub const LL_EPOCHS: u64 = 1 << 30;

    /// Header of a [`Lane::Slots`] or [`Lane::Sync`] slot, written by the sender with each message
    /// and checked by the receiver. It holds the tail, unless that lies [apart](SlotTail): message
    /// m is announced by the value m + 1 in the slot that m lies in.
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

    /// What waiting threads of a rank sleep on, one per channel, in memory that all ranks map. A
    /// cache line.
    #[repr(C, align(64))]
    #[derive(Debug)]
    pub struct Doorbell {
        /// Futex word; incremented before a wake.
        pub rings: u32,
        /// Nonzero while the owner sleeps or is about to: bit 0. Bit 1: it sleeps often, and
        /// whoever finds bit 0 clear looks again behind a fence. On a GPU, of channel 0: a launch
        /// is under way.
        pub sleeping: u32,
        /// The event descriptor, plus one, that an owner of this process sleeps on instead of the
        /// futex; 0 for none.
        pub event: i32,
        /// Wakes that the owner has missed: naps that ended by themselves though what was awaited
        /// had come. Only the owner writes it.
        pub missed: u32,
    }

    /// A tail that lies apart from its slot, in memory that the host reaches fast: a proxy polls
    /// it, and moves the slot without having to look into it. A cache line.
    #[repr(C, align(64))]
    #[derive(Clone, Copy, Debug)]
    pub struct SlotTail {
        /// As [`SlotHeader::tail`].
        pub tail: u64,
        /// How much of the slot the message fills, its headers included. Written with the tail by
        /// the sender.
        pub content_bytes: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// Both directions between this rank and one peer on one lane of one channel. Two cache lines;
    /// only this rank's channel thread (thread block) reads or writes it, except through the
    /// pointers.
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
        /// Distance of two slots: a multiple of 64, on the LL128 lane of 128, as the slots' start
        /// is.
        pub slot_stride_bytes: u32,
        /// Number of slots: a power of two, at most 2^20.
        pub slots: u32,
        /// Rank at the other end.
        pub peer: u32,
        /// [`Lane`].
        pub lane: u32,
        /// `Ll`, `Ll128`: value of `sent` when the slots were last cleared (0 for fresh slots,
        /// which are zero).
        pub cleared: u64,
        /// Where messages to the peer are announced, if not in their slots: one for each slot. Null
        /// otherwise.
        pub send_tails: *mut SlotTail,
        /// The same of messages from the peer.
        pub recv_tails: *mut SlotTail,
    }
}

/// Lanes per (channel, peer): see [`Lane`].
pub const LANES: usize = Lane::ALL.len();

impl Lane {
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

/// Distance of two [`Lane::Ll`] slots for messages of up to `len_bytes`: the header and lines of 16
/// bytes with 8 bytes of data each (the last one padded with zeros), in whole cache lines.
pub const fn ll_slot_bytes(len_bytes: u64) -> u64 {
    (LL_HEADER_BYTES as u64 + len_bytes.div_ceil(8) * 16).next_multiple_of(64)
}

/// Distance of two [`Lane::Ll128`] slots for messages of up to `len_bytes`: the header's line and
/// the others.
pub const fn ll128_slot_bytes(len_bytes: u64) -> u64 {
    (1 + len_bytes.div_ceil(LL128_DATA_BYTES as u64)) * LL128_LINE_BYTES as u64
}

/// Distance of two [`Lane::Slots`] slots for messages of up to `len_bytes`.
pub const fn plain_slot_bytes(len_bytes: u64) -> u64 {
    (SLOT_HEADER_BYTES as u64 + len_bytes).next_multiple_of(64)
}
