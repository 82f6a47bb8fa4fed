//! A world of ranks in one process, and programs made by hand.
#![allow(dead_code)]

use oxccl_kernels::format::*;
use oxccl_kernels::{HostExecutor, Outcome};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::time::Duration;

/// Zeroed memory at the boundary of an LL128 line that several threads may access through pointers.
pub(crate) struct Memory {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the memory is only reached through raw pointers; who accesses it when is the machine's
// business.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(len_bytes: usize) -> Memory {
        let layout = Layout::from_size_align(len_bytes.max(64), LL128_LINE_BYTES).unwrap();
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        assert!(!start.is_null());
        Memory { start, layout }
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.layout.size());
        self.start.wrapping_add(offset)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start, self.layout) }
    }
}

/// How the connections of a [`World`] are made.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) ranks: usize,
    pub(crate) channels: usize,
    /// Of both lanes whose messages have flags.
    pub(crate) ll_slots: u32,
    pub(crate) ll_bytes: u64,
    pub(crate) slots: u32,
    pub(crate) slot_bytes: u64,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { ranks: 2, channels: 1, ll_slots: 4, ll_bytes: 256, slots: 2, slot_bytes: 256 }
    }
}

/// One rank's view of the world.
pub(crate) struct Rank {
    pub(crate) connections: Vec<Connection>,
    pub(crate) windows: Vec<Window>,
    pub(crate) progress: Vec<Progress>,
    pub(crate) statuses: Vec<Status>,
    pub(crate) doorbells: *mut Doorbell,
    pub(crate) spins: u32,
    pub(crate) yields: u32,
    pub(crate) calls: u64,
    pub(crate) signature: u32,
    pub(crate) poll: Option<unsafe extern "C" fn(*mut core::ffi::c_void, u32) -> u32>,
    pub(crate) abort: *const u32,
    pub(crate) scale_bits: u64,
    pub(crate) tokens: Tokens,
    world: u32,
}

// SAFETY: the pointers lead into `Memory`, which outlives the scoped threads of the tests.
unsafe impl Send for Rank {}

impl Rank {
    /// Runs one channel.
    pub(crate) fn execute(
        &mut self,
        executor: &HostExecutor,
        program: &Program,
        channel: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Outcome {
        self.calls += 1;
        let launch = self.launch(program, input.as_ptr(), output.as_mut_ptr());
        // SAFETY: the world's memory is sized by its shape; the tests' programs stay within it.
        unsafe { executor.execute(&launch, channel) }
    }

    pub(crate) fn launch(
        &mut self,
        program: &Program,
        input: *const u8,
        output: *mut u8,
    ) -> Launch {
        Launch {
            program: program.words.as_ptr().cast(),
            connections: self.connections.as_mut_ptr(),
            windows: self.windows.as_mut_ptr(),
            progress: self.progress.as_mut_ptr(),
            statuses: self.statuses.as_mut_ptr(),
            doorbells: self.doorbells,
            abort: self.abort,
            poll: self.poll,
            input,
            output,
            tokens: self.tokens,
            scale_bits: self.scale_bits,
            call: self.calls,
            history: 0,
            signature: self.signature,
            ranks: self.world,
            spins: self.spins,
            yields: self.yields,
            ..Launch::EMPTY
        }
    }
}

/// All ranks and the memory between them.
pub(crate) struct World {
    pub(crate) ranks: Vec<Rank>,
    pub(crate) abort: Box<std::sync::atomic::AtomicU32>,
    pub(crate) shape: Shape,
    _slots: Memory,
    _counters: Memory,
    _doorbells: Memory,
}

impl World {
    pub(crate) fn new(shape: Shape) -> World {
        let (n, channels) = (shape.ranks, shape.channels);
        let connections = channels * n * n * LANES;
        let ll = ll_slot_bytes(shape.ll_bytes) as usize;
        let plain = plain_slot_bytes(shape.slot_bytes) as usize;
        let ll128 = ll128_slot_bytes(shape.ll_bytes) as usize;
        let (ll_all, plain_all) = (ll * shape.ll_slots as usize, plain * shape.slots as usize);
        let ll128_all = ll128 * shape.ll_slots as usize;
        let pair = (ll128_all + ll_all + plain_all + 64).next_multiple_of(LL128_LINE_BYTES);
        let slots = Memory::new(channels * n * n * pair);
        let counters = Memory::new(connections * 64);
        let doorbells = Memory::new(channels * n * 64);
        let abort = Box::new(std::sync::atomic::AtomicU32::new(0));
        // Memory of the direction `from` -> `to`.
        let pair_of = |c: usize, from: usize, to: usize| (c * n + from) * n + to;
        let slots_at = |c, from, to, lane: usize| {
            let start = pair_of(c, from, to) * pair;
            let plain_at = ll128_all + ll_all;
            slots.at(start + [ll128_all, plain_at, plain_at + plain_all, 0][lane])
        };
        let head_at = |c, from, to, lane: usize| {
            counters.at((pair_of(c, from, to) * LANES + lane) * 64).cast::<u64>()
        };
        let connection = |c: usize, me: usize, peer: usize, lane: usize| Connection {
            send_slots: slots_at(c, me, peer, lane),
            recv_slots: slots_at(c, peer, me, lane),
            send_head: head_at(c, me, peer, lane),
            recv_head: head_at(c, peer, me, lane),
            doorbell: doorbells.at((peer * channels + c) * 64).cast(),
            sent: 0,
            received: 0,
            head_seen: 0,
            slot_stride_bytes: [ll, plain, 64, ll128][lane] as u32,
            slots: [shape.ll_slots, shape.slots, 1, shape.ll_slots][lane],
            peer: peer as u32,
            lane: lane as u32,
            cleared: 0,
            send_tails: std::ptr::null_mut(),
            recv_tails: std::ptr::null_mut(),
        };
        let ranks = (0..n)
            .map(|me| Rank {
                connections: (0..channels)
                    .flat_map(|c| (0..n).map(move |peer| (c, peer)))
                    .flat_map(|(c, peer)| (0..LANES).map(move |lane| (c, peer, lane)))
                    .map(|(c, peer, lane)| connection(c, me, peer, lane))
                    .collect(),
                windows: vec![
                    Window {
                        base: std::ptr::null_mut(),
                        registered: std::ptr::null(),
                        heap: 0,
                        tokens: Tokens::default(),
                        process: 0,
                    };
                    channels * n
                ],
                progress: vec![Progress::default(); channels],
                statuses: vec![Status::default(); channels],
                doorbells: doorbells.at(me * channels * 64).cast(),
                spins: 2000,
                yields: 200,
                calls: 0,
                signature: 0x5eed,
                poll: None,
                abort: abort.as_ptr(),
                scale_bits: 0,
                tokens: Tokens::default(),
                world: n as u32,
            })
            .collect();
        World { ranks, abort, shape, _slots: slots, _counters: counters, _doorbells: doorbells }
    }

    /// The index of a connection of any rank.
    pub(crate) fn connection(&self, channel: usize, peer: usize, lane: Lane) -> u32 {
        ((channel * self.shape.ranks + peer) * LANES + lane as usize) as u32
    }
}

/// A program under construction, then its words.
pub(crate) struct Program {
    pub(crate) words: Vec<u64>,
}

/// One instruction with its operands.
#[derive(Clone)]
pub(crate) struct Step {
    pub(crate) instruction: Instruction,
    pub(crate) operands: Vec<Operand>,
}

fn instruction(opcode: Opcode, flags: u8, index: u32, value: i64) -> Instruction {
    let (sources, destinations, len_bytes) = (0, 0, 0);
    let opcode = opcode as u8;
    Instruction { opcode, flags, sources, destinations, run: 1, index, step: 0, value, len_bytes }
}

pub(crate) fn wait_tail(connection: u32, value: i64) -> Step {
    Step { instruction: instruction(Opcode::Wait, 0, connection, value), operands: vec![] }
}

pub(crate) fn wait_head(connection: u32, value: i64) -> Step {
    let head = INSTRUCTION_HEAD;
    Step { instruction: instruction(Opcode::Wait, head, connection, value), operands: vec![] }
}

pub(crate) fn signal_tail(connection: u32, value: i64) -> Step {
    Step { instruction: instruction(Opcode::Signal, 0, connection, value), operands: vec![] }
}

pub(crate) fn signal_head(connection: u32, value: i64) -> Step {
    let head = INSTRUCTION_HEAD;
    Step { instruction: instruction(Opcode::Signal, head, connection, value), operands: vec![] }
}

pub(crate) fn reduce_copy(
    flags: u8,
    len_bytes: usize,
    sources: &[Operand],
    destinations: &[Operand],
) -> Step {
    let mut instruction = instruction(Opcode::ReduceCopy, flags, 0, 0);
    instruction.sources = sources.len() as u16;
    instruction.destinations = destinations.len() as u16;
    instruction.len_bytes = len_bytes as u64;
    Step { instruction, operands: [sources, destinations].concat() }
}

pub(crate) fn operand(space: Space, offset_bytes: usize) -> Operand {
    let offset_bytes = offset_bytes as u64;
    Operand {
        space: space as u8,
        flags: OPERAND_RAW,
        lane: 0,
        reserved: 0,
        index: 0,
        message: 0,
        signature: 0,
        offset_bytes,
    }
}

pub(crate) fn slot(space: Space, connection: u32, lane: Lane, message: u32) -> Operand {
    let flags = 0;
    Operand { flags, lane: lane as u8, index: connection, message, ..operand(space, 0) }
}

pub(crate) fn peer(space: Space, peer: u32) -> Operand {
    Operand { index: peer, ..operand(space, 0) }
}

/// One channel's list.
pub(crate) struct Channel {
    pub(crate) steps: Vec<Step>,
    pub(crate) rounds: u64,
    pub(crate) tile_bytes: u64,
    /// (connection, sent, received) per round.
    pub(crate) advances: Vec<(u32, u32, u32)>,
}

impl Program {
    pub(crate) fn new(
        data_type: DataType,
        fold: Fold,
        scale: Scale,
        channels: &[Channel],
    ) -> Program {
        let (mut entries, mut instructions) = (vec![], vec![]);
        let (mut operands, mut advances) = (vec![], vec![]);
        for channel in channels {
            entries.push(ChannelEntry {
                first_instruction: instructions.len() as u32,
                instructions: channel.steps.len() as u32,
                first_advance: advances.len() as u32,
                advances: channel.advances.len() as u32,
                first_operand: operands.len() as u32,
                operands: channel.steps.iter().map(|step| step.operands.len() as u32).sum(),
                first_connection: 0,
                connections: 0,
                rounds: channel.rounds,
                tile_bytes: channel.tile_bytes,
            });
            for (number, step) in channel.steps.iter().enumerate() {
                let mut instruction = step.instruction;
                instruction.step = number as u32;
                if instruction.opcode == Opcode::ReduceCopy as u8 {
                    instruction.index = operands.len() as u32;
                }
                operands.extend(step.operands.iter().copied());
                instructions.push(instruction);
            }
            advances.extend(channel.advances.iter().map(|&(connection, sent, received)| Advance {
                connection,
                sent,
                received,
                reserved: 0,
            }));
        }
        let mut words = vec![0u64; size_of::<Header>() / 8];
        let channels_offset = append(&mut words, &entries);
        let instructions_offset = append(&mut words, &instructions);
        let operands_offset = append(&mut words, &operands);
        let advances_offset = append(&mut words, &advances);
        let header = Header {
            scratch: std::ptr::null_mut(),
            magic: MAGIC,
            version: VERSION,
            data_type: data_type as u8,
            fold: fold as u8,
            scale: scale as u8,
            reserved: 0,
            channels: channels.len() as u32,
            channels_offset,
            instructions_offset,
            operands_offset,
            advances_offset,
            len_bytes: words.len() as u64 * 8,
        };
        // SAFETY: the first words were left free for the header.
        unsafe { words.as_mut_ptr().cast::<Header>().write(header) };
        Program { words }
    }

    /// A program of one channel that runs once.
    pub(crate) fn once(
        data_type: DataType,
        fold: Fold,
        steps: Vec<Step>,
        advances: Vec<(u32, u32, u32)>,
    ) -> Program {
        let channel = Channel { steps, rounds: 1, tile_bytes: 1 << 20, advances };
        Program::new(data_type, fold, Scale::None, &[channel])
    }

    pub(crate) fn header_mut(&mut self) -> &mut Header {
        // SAFETY: every program starts with a header.
        unsafe { &mut *self.words.as_mut_ptr().cast::<Header>() }
    }
}

fn append<T>(words: &mut Vec<u64>, table: &[T]) -> u32 {
    let start = words.len();
    words.resize(start + size_of_val(table) / 8, 0);
    // SAFETY: the tables are plain data in multiples of 8 bytes, and the room was just made.
    unsafe {
        let to = words.as_mut_ptr().add(start).cast::<T>();
        std::ptr::copy_nonoverlapping(table.as_ptr(), to, table.len());
    }
    (start * 8) as u32
}

/// The exchange of two ranks over LL: see [`exchange`].
pub(crate) fn ll_exchange(
    world: &World,
    rank: usize,
    data_type: DataType,
    fold: Fold,
    len: usize,
) -> Program {
    exchange(Lane::Ll, world, rank, data_type, fold, len)
}

/// The exchange of two ranks in messages with flags: send the input, fold the peer's behind the
/// own, in rank order.
pub(crate) fn exchange(
    lane: Lane,
    world: &World,
    rank: usize,
    data_type: DataType,
    fold: Fold,
    len: usize,
) -> Program {
    let to = world.connection(0, 1 - rank, lane);
    let own = operand(Space::Input, 0);
    let theirs = slot(Space::Slot, to, lane, 0);
    let sources = if rank == 0 { [own, theirs] } else { [theirs, own] };
    let steps = vec![
        wait_head(to, 1 - i64::from(world.shape.ll_slots)),
        reduce_copy(0, len, &[own], &[slot(Space::PeerSlot, to, lane, 0)]),
        reduce_copy(INSTRUCTION_FINISH, len, &sources, &[operand(Space::Output, 0)]),
        signal_head(to, 1),
    ];
    Program::once(data_type, fold, steps, vec![(to, 1, 1)])
}

/// Runs `body` for every rank in a thread of its own, and fails if they do not end.
pub(crate) fn run_ranks<T: Send>(
    ranks: &mut [Rank],
    body: impl Fn(usize, &mut Rank) -> T + Sync,
) -> Vec<T> {
    let (done, finished) = std::sync::mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if finished.recv_timeout(Duration::from_secs(120)).is_err() {
            eprintln!("the ranks did not end within two minutes");
            std::process::abort();
        }
    });
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .iter_mut()
            .enumerate()
            .map(|(index, rank)| {
                let body = &body;
                scope.spawn(move || body(index, rank))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    done.send(()).unwrap();
    watchdog.join().unwrap();
    results
}
