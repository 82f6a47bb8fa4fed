//! The launch block: what an executor is given, and how it ends.

use crate::*;

table! {
    /// Buckets begin at multiples of this in a group's virtual buffer, so that a message's lines
    /// belong to one bucket each.
    pub const SEGMENT_ALIGN: usize = 64;
    /// [`Progress::lane`] of a wait for a bucket of this rank to be ready; [`Progress::awaited`] is
    /// the bucket.
    pub const LANE_READY: u32 = 4;
    /// [`Launch::flags`]: the part begins when its buckets are ready.
    pub const LAUNCH_AWAITS: u32 = 1;
    /// [`Launch::flags`]: the part's buckets are done when it is.
    pub const LAUNCH_COMPLETES: u32 = 2;
    /// [`Launch::flags`]: the factor is a value of the program's type, and [`Launch::scale_bits`]
    /// is its address.
    pub const LAUNCH_FACTOR_AT: u32 = 4;
    /// [`Launch::flags`], of a kernel of one schedule: final results are divided by the number of
    /// ranks, as [`Scale::Average`] says elsewhere.
    pub const LAUNCH_AVERAGES: u32 = 8;
    /// [`Launch::flags`], of a host: what operands with [`OPERAND_STREAM`] name is written with
    /// streaming stores.
    pub const LAUNCH_STREAM: u32 = 16;
    /// From this bit on a token, as in [`Tokens`], has the number of the allocation that it counts
    /// from: 0 for [`Window::base`].
    pub const TOKEN_NUMBER_SHIFT: u32 = 52;
    /// Bytes of a channel's share of [`Launch::bounce`].
    pub const BOUNCE_BYTES: usize = 256 << 10;

    /// How this call's buffers are found by peers: an offset from [`Window::base`], or from an
    /// allocation that this rank has registered, whose number is from bit [`TOKEN_NUMBER_SHIFT`]
    /// on. With [`OPERAND_CMA`] an address of this rank's process.
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
        /// Where the peer's registered allocations begin in this address space, by number; there is
        /// none of number 0. Null where nobody registers any.
        pub registered: *const *mut u8,
        /// What a token of the first byte of the peer's heap would be.
        pub heap: u64,
        /// What the peer sent for this call.
        pub tokens: Tokens,
        /// Host only: the peer's process, whose memory [`OPERAND_CMA`] reads. 0 where none is read.
        pub process: u64,
    }

    /// Memory that is one address for as many GPUs as there are ranks: the same range of each
    /// rank's heap.
    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    pub struct Multicast {
        /// Where it begins; null where there is none, or where this call's buffers do not both lie
        /// in the heap.
        pub base: *mut u8,
        /// How far into the heap this rank's input is. A switch does the work where all ranks' are
        /// as far.
        pub input: u64,
        /// How far into the heap this rank's output is.
        pub output: u64,
        /// Host only, may be null: how far each rank's memory is from this, wrapping, where the
        /// addresses behind `base` cannot be used.
        pub members: *const u64,
    }

    /// What a channel waits for, written only after a wait has spun for a while, so that a hang
    /// explains itself. It stays written when the wait is stopped.
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
        /// The system did not read a peer's memory ([`OPERAND_CMA`]): see [`Status::found`].
        Unreadable = 4,
        /// Another launch of this rank was under way on the GPU.
        Beside = 5,
    }

    /// Written by each channel that does not end well. Whoever launches has it say
    /// [`Outcome::Done`].
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
        /// Unreadable: the number of the system's error.
        pub found: u32,
    }

    /// How both of a call's buffers are divided, where chunks are of one length, but for the last
    /// ones: chunk c begins at `c * chunk_bytes`, and ends where the next one begins or where the
    /// buffer ends. What a kernel of one schedule has instead of a program's offsets.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Extents {
        /// Length of a buffer that has all chunks.
        pub total_bytes: u64,
        /// Length of a chunk.
        pub chunk_bytes: u64,
        /// What a channel moves of a chunk: the last ones may move less.
        pub part_bytes: u64,
        /// The same of the chunk that is shorter than others, if there is one.
        pub shorter_part_bytes: u64,
    }

    /// One bucket of a group, as this rank reaches it. The buckets of a part lie one behind the
    /// other in a virtual buffer, each from a multiple of [`SEGMENT_ALIGN`] on; what lies between
    /// them exists in no memory.
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
        /// How many of the buckets behind it lie in this rank's memory as in the virtual buffer,
        /// each without a gap behind the one before it: a host moves them together. Both buffers
        /// do, or this rank has none. 0 is always right.
        pub followers: u64,
        /// Number of the bucket in the group.
        pub bucket: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// One bucket as peers find it, by numbers as in [`Tokens`]. A rank's table of these is where
    /// [`Tokens::input`] says.
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

    /// A step that a traced kernel has executed.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct StepRecord {
        /// When it began, by the GPU's timer.
        pub start_ns: u64,
        /// When it ended.
        pub end_ns: u64,
        /// The round.
        pub round: u64,
        /// Step id.
        pub step: u32,
        /// Zero.
        pub reserved: u32,
    }

    /// Where traced kernels write their steps: each channel has so many places for records, which
    /// it fills one after the other, and then again from the first on.
    #[repr(C)]
    #[derive(Clone, Copy, Debug)]
    pub struct StepRing {
        /// `channel * capacity`, and then as many as it has.
        pub records: *mut StepRecord,
        /// By channel: records written so far, those that have been overwritten among them.
        pub counts: *mut u64,
        /// Places of a channel: a power of two.
        pub capacity: u32,
        /// Zero.
        pub reserved: u32,
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
        /// Host: passed to `poll`. Of a traced kernel: where its [`StepRing`] is.
        pub poll_context: *mut core::ffi::c_void,
        /// The caller's input.
        pub input: *const u8,
        /// The caller's output.
        pub output: *mut u8,
        /// How peers find these two.
        pub tokens: Tokens,
        /// Where a switch finds these two, and all ranks' with them.
        pub multicast: Multicast,
        /// [`Scale::Premultiply`]: the factor in the accumulator type (f32, f64, i64 or u64 bits,
        /// zero-extended), or where it is ([`LAUNCH_FACTOR_AT`]).
        pub scale_bits: u64,
        /// Number of this call on the communicator, from 1.
        pub call: u64,
        /// What all ranks called before this, hashed: its lower half goes into the header of every
        /// message, with the signature. 0 of calls that some ranks alone make.
        pub history: u64,
        /// What all ranks must agree on, hashed.
        pub signature: u32,
        /// Number of ranks.
        pub ranks: u32,
        /// Host only: polls of a wait before it yields the processor.
        pub spins: u32,
        /// Host only: yields before it sleeps on the doorbell.
        pub yields: u32,
        /// The part of the group that follows; null at the end. Of it `statuses`, `call`,
        /// `history`, `ready`, `done`, `ended`, `arrived`, `launched`, `spins` and `yields` do not
        /// count: those of the first hold for all, so that a chain stays as it is while its
        /// launches differ. With [`joined_channels`](Self::joined_channels), the ranks' own launch
        /// blocks.
        pub next: *const Launch,
        /// The part's buckets, in place of `input` and `output`; null where it has none.
        pub segments: *const Segment,
        /// One word for each of the group's buckets, which has come to `call` once the bucket is
        /// ready; null where all are.
        pub ready: *const u64,
        /// One word for each of the group's buckets and channels
        /// (`bucket * done_stride + channel`), in which a channel that is done with the bucket
        /// writes `call`; may be null.
        pub done: *mut u64,
        /// Number of the part's buckets.
        pub segments_count: u32,
        /// Number of the part's bucket in the group, where it has one and no `segments`.
        pub bucket: u32,
        /// Words of a bucket in `done`.
        pub done_stride: u32,
        /// Not 0: this is a launch for several ranks of a process at once, of so many channels
        /// each. Channel c of it is channel `c % joined_channels` of rank `c / joined_channels` of
        /// the [`ranks`](Self::ranks) whose launch blocks lie at `next`; the other fields are not
        /// used.
        pub joined_channels: u32,
        /// [`LAUNCH_AWAITS`], [`LAUNCH_COMPLETES`], [`LAUNCH_FACTOR_AT`],
        /// [`LAUNCH_AVERAGES`], [`LAUNCH_STREAM`].
        pub flags: u32,
        /// Number of this rank. GPU only.
        pub rank: u32,
        /// Of a part of a group: which of the launch's channels is the program's first. Those in
        /// front of it and behind the program's last have no share in the part.
        pub first_channel: u32,
        /// Of a kernel of one schedule that is not the root's: the root.
        pub root: u32,
        /// Where the last channel to end writes `call`, however it has ended; null where nobody
        /// looks. Nothing that the launch leads to is read or written behind that.
        pub ended: *mut u64,
        /// With `ended`: counts the channels that have ended, from 0 back to 0.
        pub arrived: *mut u32,
        /// With `ended`: the channels of the launch, of one rank.
        pub launched: u64,
        /// Host only: [`BOUNCE_BYTES`] for each channel, where peers' private memory is read to;
        /// null where none is read.
        pub bounce: *mut u8,
        /// Of a kernel of one schedule: how the buffers are divided.
        pub extents: Extents,
    }
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
        rank: 0,
        first_channel: 0,
        root: 0,
        ended: core::ptr::null_mut(),
        arrived: core::ptr::null_mut(),
        launched: 0,
        bounce: core::ptr::null_mut(),
        extents: Extents { total_bytes: 0, chunk_bytes: 0, part_bytes: 0, shorter_part_bytes: 0 },
    };
}
