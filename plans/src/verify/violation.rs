//! Why a schedule is refused.

use crate::collective::Kind;
use crate::schedule::{Buffer, Flag, Lane, Operand, Rail, SEGMENTS, Schedule};
use oxccl_format::{MAX_OPERANDS, MAX_TREE_SOURCES};
use thiserror::Error;

/// Why a schedule is refused. Steps are indices into a rank's list of instructions; where it has
/// several, they are numbered through all of them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The schedule as a whole does not fit its collective.
    #[error("the schedule does not fit its collective: {0}")]
    Schedule(Malformed),
    /// An instruction that no executor may get.
    #[error("rank {rank}, step {step}: {misuse}")]
    Instruction {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
        /// What is wrong.
        misuse: Misuse,
    },
    /// An operand that no executor may get.
    #[error("rank {rank}, step {step}: {operand}: {misuse}")]
    Operand {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
        /// The operand.
        operand: Operand,
        /// What is wrong.
        misuse: Misuse,
    },
    /// A message is sent or received out of turn: links are first in, first out.
    #[error(
        "rank {rank}, step {step}: {operand} is out of turn: the next message of this link is #{expected}"
    )]
    Message {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
        /// The operand.
        operand: Operand,
        /// The next message's number.
        expected: u32,
    },
    /// A message may overwrite one that has not been consumed.
    #[error(
        "rank {rank}, step {step}: {operand} may overwrite a message that rank {reader} has not consumed: \
         wait for its head >= {credit:+} first"
    )]
    Credit {
        /// The sender.
        rank: usize,
        /// The step.
        step: usize,
        /// The message.
        operand: Operand,
        /// The receiver.
        reader: usize,
        /// The value of the head counter that makes it safe.
        credit: i64,
    },
    /// A contribution to what a fabric's switches reduce may overwrite one, or its result one.
    #[error(
        "rank {rank}, step {step}: {operand} may overwrite a contribution of whose result nothing has been read: \
         {slots} may be on their way"
    )]
    Unfetched {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
        /// The contribution.
        operand: Operand,
        /// How many may be on their way.
        slots: u32,
    },
    /// A slot is read that may not have been written.
    #[error("rank {rank}, step {step}: {operand} may not have come: no wait for its tail precedes")]
    Arrival {
        /// The receiver.
        rank: usize,
        /// The step.
        step: usize,
        /// The message.
        operand: Operand,
    },
    /// A signal announces too much, or nothing new.
    #[error(
        "rank {rank}, step {step}: signals {} = {value:+}, but {done} are done and {announced} were announced before",
        name(flag)
    )]
    Signal {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
        /// The counter.
        flag: Flag,
        /// Its new value.
        value: i64,
        /// Messages that have really been written (tail) or consumed (head).
        done: i64,
        /// The counter's value before.
        announced: i64,
    },
    /// A wait of a counter-only link that is not for the next signal.
    #[error(
        "rank {rank}, step {step}: waits for {} >= {value:+}, but the next signal is {expected:+}",
        name(flag)
    )]
    SyncWait {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
        /// The counter.
        flag: Flag,
        /// The value waited for.
        value: i64,
        /// The value of the next signal.
        expected: i64,
    },
    /// Something is read that nobody has written.
    #[error("rank {rank}, step {step}: {operand} is read, but nothing has been written there")]
    Undefined {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
        /// What is read.
        operand: Operand,
    },
    /// The value of another chunk is read or written here; lengths may differ.
    #[error("rank {rank}, step {step}: {operand} does not fit its value {value}")]
    Misplaced {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
        /// The operand.
        operand: Operand,
        /// The value.
        value: String,
    },
    /// Values that cannot be combined so.
    #[error("rank {rank}, step {step}: {fault}")]
    Arithmetic {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
        /// What is wrong.
        fault: Arithmetic,
    },
    /// A peer's buffer is used before it is known where it is.
    #[error(
        "rank {rank}, step {step}: {operand} is used before the tokens of rank {peer} have come"
    )]
    Closed {
        /// The rank.
        rank: usize,
        /// The step.
        step: usize,
        /// The window.
        operand: Operand,
        /// Whose it is.
        peer: usize,
    },
    /// Two accesses to the same memory, one of them a write, and nothing orders them.
    #[error(
        "rank {rank}, step {step}: nothing orders the access to {operand} and that of {}",
        whose(rank, other)
    )]
    Race {
        /// The rank of the access that was found second.
        rank: usize,
        /// Its step.
        step: usize,
        /// Its operand.
        operand: Operand,
        /// The rank of the other access, which may be the same by another list; the owner if it is
        /// that rank's user, before or after the call.
        other: usize,
    },
    /// A list may be a round ahead of another one that still uses the scratch of this round.
    #[error(
        "rank {rank}: its list {list} may write scratch[{chunk}] in the next round while its list {other} still uses it"
    )]
    Kept {
        /// The rank.
        rank: usize,
        /// Its list that writes.
        list: usize,
        /// The chunk of scratch.
        chunk: usize,
        /// The other list.
        other: usize,
    },
    /// A rank gives its buffer back to its user while a peer may still use it.
    #[error("rank {rank} may leave while rank {peer} still uses its {} chunk {chunk}", buffer_name(.buffer))]
    Leaves {
        /// The rank that leaves.
        rank: usize,
        /// The peer.
        peer: usize,
        /// Whose of the leaving rank's buffers.
        buffer: Buffer,
        /// The chunk.
        chunk: usize,
    },
    /// Some ranks wait for ever.
    #[error("deadlock: {}", join(.0))]
    Deadlock(Vec<Stuck>),
    /// More or fewer messages are sent over a link than received.
    #[error("rank {from} sends {sent} messages to rank {to} on the {} lane, which receives {received}", lane_name(.lane))]
    Unread {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// The lane.
        lane: Lane,
        /// Messages of a round that are sent.
        sent: i64,
        /// Messages of a round that are received.
        received: i64,
    },
    /// A rank gives more or fewer contributions to a fabric's switches than it reads results.
    #[error("rank {rank} gives {given} contributions to its {rail}, and reads {read} results")]
    Left {
        /// The rank.
        rank: usize,
        /// The rail.
        rail: Rail,
        /// Contributions of a round.
        given: u32,
        /// Results of a round.
        read: u32,
    },
    /// A counter falls behind the messages, round by round.
    #[error("rank {rank} signals {} only up to {announced:+}, of {done}", name(flag))]
    Unannounced {
        /// The rank.
        rank: usize,
        /// The counter.
        flag: Flag,
        /// The counter's last value.
        announced: i64,
        /// What it should be.
        done: i64,
    },
    /// An output chunk is not written.
    #[error("rank {rank}: output chunk {chunk} is not written")]
    Missing {
        /// The rank.
        rank: usize,
        /// The chunk.
        chunk: usize,
    },
    /// An output chunk has a value that was not asked for.
    #[error("rank {rank}: output chunk {chunk} should be {expected} and is {found}")]
    WrongValue {
        /// The rank.
        rank: usize,
        /// The chunk.
        chunk: usize,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// A rank leaves a barrier too early.
    #[error("rank {rank} may leave the barrier before rank {peer} has entered it")]
    LeavesBarrier {
        /// The rank that leaves.
        rank: usize,
        /// The rank that it has not heard of.
        peer: usize,
    },
    /// The schedule is right with separate buffers only.
    #[error("with input and output in one buffer: {0}")]
    InPlace(Box<Violation>),
}

impl Violation {
    /// The same, of a schedule whose ranks have several lists, with ranks and steps as everybody
    /// numbers them: found are the numbers of lists, and steps of these.
    pub(super) fn of_lists(mut self, schedule: &Schedule) -> Violation {
        let of_each = schedule.lists_per_rank;
        if of_each < 2 {
            return self;
        }
        match &mut self {
            Violation::Race { other, .. } => *other /= of_each,
            Violation::Unannounced { rank, .. } => *rank /= of_each,
            Violation::Unread { from, to, .. } => {
                *from /= of_each;
                *to /= of_each;
            }
            Violation::Deadlock(stuck) => {
                for one in stuck {
                    one.step += schedule.first_step(one.rank);
                    (one.rank, one.list) = (one.rank / of_each, one.rank % of_each);
                    (one.peer, one.peer_list) = (one.peer / of_each, one.peer % of_each);
                }
            }
            Violation::InPlace(found) => {
                let inner =
                    std::mem::replace(&mut **found, Violation::Schedule(Malformed::Slots(0)));
                **found = inner.of_lists(schedule);
            }
            _ => {}
        }
        if let Some((rank, step)) = self.place_mut() {
            *step += schedule.first_step(*rank);
            *rank /= of_each;
        }
        self
    }

    /// The rank and step of a violation that has one.
    pub(super) fn place_mut(&mut self) -> Option<(&mut usize, &mut usize)> {
        match self {
            Violation::Instruction { rank, step, .. }
            | Violation::Operand { rank, step, .. }
            | Violation::Message { rank, step, .. }
            | Violation::Credit { rank, step, .. }
            | Violation::Unfetched { rank, step, .. }
            | Violation::Arrival { rank, step, .. }
            | Violation::Signal { rank, step, .. }
            | Violation::SyncWait { rank, step, .. }
            | Violation::Undefined { rank, step, .. }
            | Violation::Misplaced { rank, step, .. }
            | Violation::Arithmetic { rank, step, .. }
            | Violation::Closed { rank, step, .. }
            | Violation::Race { rank, step, .. } => Some((rank, step)),
            _ => None,
        }
    }
}

fn whose(rank: &usize, other: &usize) -> String {
    if rank == other { "another of its lists".to_owned() } else { format!("rank {other}") }
}

/// What is wrong with a schedule as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Malformed {
    /// As many lists for each rank are needed, and at least one rank.
    #[error("{ranks} ranks, but {lists} lists of instructions")]
    Ranks {
        /// Ranks of the collective.
        ranks: usize,
        /// Lists there are.
        lists: usize,
    },
    /// A root or receiver that is no rank, or the same rank twice.
    #[error("root {root} and receiver {receiver} do not fit {ranks} ranks")]
    Root {
        /// The root.
        root: usize,
        /// The receiver.
        receiver: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A division of buffers that the kind does not have.
    #[error("{0} does not divide its buffers so")]
    Chunking(Kind),
    /// More chunks than the verifier can tell apart.
    #[error("{ranks} ranks with {chunks} chunks each are too many")]
    Chunks {
        /// The number of ranks.
        ranks: usize,
        /// Chunks of a buffer.
        chunks: usize,
    },
    /// The collective cannot be used in place.
    #[error("{0} is never in place")]
    InPlace(Kind),
    /// Ranks have several lists.
    #[error("a {0} has one list for each rank")]
    Lists(Kind),
    /// Numbers of slots must be powers of two.
    #[error("{0} slots: not a power of two")]
    Slots(u32),
}

/// What is wrong with an instruction or an operand, on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Misuse {
    /// The peer is no rank.
    #[error("there is no such rank")]
    NoSuchRank,
    /// The peer is the rank itself.
    #[error("a rank is not its own peer")]
    OwnPeer,
    /// The list at the other end is not there.
    #[error("that rank has no such list")]
    NoSuchList,
    /// The list at the other end is the list itself.
    #[error("a list is not its own peer")]
    OwnList,
    /// A message to another list of the rank.
    #[error(
        "lists of one rank pass no messages: they share its memory, and signal on the sync lane"
    )]
    OwnMessage,
    /// A window, or a rail's switches, of a rank with several lists.
    #[error("lists of ranks that have several reach no peer's buffers, and no rail's switches")]
    OfSeveralLists,
    /// The chunk is not there.
    #[error("there is no such chunk")]
    NoSuchChunk,
    /// The buffer has no part in the collective.
    #[error("this rank's buffer has no part in the collective")]
    NoSuchBuffer,
    /// Only sources.
    #[error("it can only be read")]
    ReadOnly,
    /// Only destinations.
    #[error("it can only be written")]
    WriteOnly,
    /// A lane without slots.
    #[error("this lane has counters only")]
    NoSlots,
    /// Too many segments.
    #[error("a message has at most {SEGMENTS} segments")]
    TooManySegments,
    /// A counter that the lane does not have.
    #[error("this lane has no such counter")]
    NoCounter,
    /// Nothing to read or nothing to write.
    #[error("a reduce-copy needs a source and a destination")]
    NoOperands,
    /// Too many operands.
    #[error("more than {MAX_OPERANDS} operands")]
    TooManyOperands,
    /// Too many sources for a tree.
    #[error("more than {MAX_TREE_SOURCES} sources of a tree")]
    TooManyTreeSources,
    /// The same destination twice.
    #[error("it is written twice by one instruction")]
    Twice,
    /// All ranks' memory is read or written by an instruction that does something else besides.
    #[error(
        "an instruction with all ranks' memory has one source and one destination: memory of this rank's, or of all"
    )]
    BesideMulticast,
    /// Ranks have no rail of that kind.
    #[error("there are not several nodes of so many ranks, all of them full")]
    NoSuchRail,
    /// What a rail's switches have reduced is read beside something else, or as a rank's own.
    #[error(
        "what a rail's switches have reduced is the only source of its instruction, and not raw"
    )]
    BesideReduced,
    /// A collective that moves values must not change them.
    #[error("this collective does not reduce")]
    DoesNotReduce,
    /// Tokens have a place of their own.
    #[error("tokens and data do not mix")]
    Tokens,
}

/// Values that cannot be combined so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Arithmetic {
    /// A contribution was not marked raw.
    #[error("a contribution is reduced without having been premultiplied")]
    NotPremultiplied,
    /// Something else than a contribution is marked raw.
    #[error("a source that is no unscaled contribution would be premultiplied")]
    PremultipliedTwice,
    /// A result is reduced again.
    #[error("a finished value is reduced again")]
    FinishedBefore,
    /// A copy cannot be final.
    #[error("a copy of a value that is not a rank's own contribution is marked final")]
    FinishedCopy,
    /// Different elements are combined.
    #[error("sources are of different chunks")]
    Parts,
    /// Tokens are no values.
    #[error("tokens are reduced")]
    Tokens,
}

/// A rank that waits for ever.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("rank {rank}, step {step} waits for rank {peer}: {awaited}")]
pub struct Stuck {
    /// The rank.
    pub rank: usize,
    /// Which of its lists.
    pub list: usize,
    /// Its step.
    pub step: usize,
    /// For whom it waits.
    pub peer: usize,
    /// For which of the peer's lists.
    pub peer_list: usize,
    /// For what.
    pub awaited: Awaited,
}

/// What a stuck rank waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Awaited {
    /// A counter.
    #[error("{} is {reached:+}, not {value:+}", name(flag))]
    Counter {
        /// The counter.
        flag: Flag,
        /// The value that is waited for.
        value: i64,
        /// The value it has reached.
        reached: i64,
    },
    /// A message that announces itself.
    #[error("{0}")]
    Message(Operand),
}

fn name(flag: &Flag) -> String {
    match flag {
        Flag::Tail(link) => format!("{link}.tail"),
        Flag::Head(link) => format!("{link}.head"),
    }
}

fn buffer_name(buffer: &Buffer) -> &'static str {
    match buffer {
        Buffer::Input => "input",
        Buffer::Output => "output",
    }
}

fn lane_name(lane: &Lane) -> &'static str {
    lane.name()
}

/// The first few of a list.
fn join(stuck: &[Stuck]) -> String {
    const SHOWN: usize = 8;
    let mut lines: Vec<String> = stuck.iter().take(SHOWN).map(Stuck::to_string).collect();
    if stuck.len() > SHOWN {
        lines.push(format!("and {} more ranks", stuck.len() - SHOWN));
    }
    lines.join("; ")
}
