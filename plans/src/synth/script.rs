//! From trees to instructions: one imagined execution decides in which order each rank acts.
//!
//! ```text
//! whenever a rank is free:
//!     do the first of these that there are credits for:
//!         send what was there from the beginning
//!         pass on what has come, or reduce a chunk of which all parts have come, and pass it on
//!         add a part to scratch, if messages behind it wait
//! ```
//!
//! The order in which ranks acted is their list. It is one that can be executed, with the credits
//! that there are, so the lists do not deadlock. Messages of a connection are taken in the order in
//! which they were sent. How long things take is a guess that decides no more than this order; what
//! is said of a schedule's time is the simulator's.
//!
//! Where ranks have several lists, chunks are dealt over them, and each list is made by itself: it
//! has connections of its own, to the same list of each peer, and nothing to say to others.
//!
//! All-gather goes down the trees. Reduce-scatter goes up: a rank reduces what its children send
//! with its own part, and sends the result to its parent. All-reduce goes up, and then down.

use super::trees::{Tree, Trees};
use super::ways::{Load, Time, Ways};
use crate::collective::{Collective, Kind};
use crate::schedule::{
    Buffer, Chunking, Lane, Link, Operand, RankBuilder, Read, SLOTS, Schedule, Write,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

/// What is to be written down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script<'a> {
    pub(super) ways: &'a Ways,
    pub(super) kind: Kind,
    /// Chunks of each rank.
    pub(super) chunks: usize,
    pub(super) chunk_bytes: usize,
    /// Up which trees chunks are reduced, unless it is an all-gather.
    pub(super) up: Option<&'a Trees>,
    /// Down which trees chunks are told, unless it is a reduce-scatter.
    pub(super) down: Option<&'a Trees>,
    /// The lane of messages inside of nodes.
    pub(super) lane: Lane,
    /// Whose buffers are written, or read, in place.
    pub(super) reach: Reach,
    /// Whether what goes to other nodes is handed over before the node is told.
    pub(super) across_first: bool,
    /// Which list of each rank this is, and of how many.
    pub(super) list: (usize, usize),
}

/// Whose buffers are used in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Nobody's: all that is moved is messages.
    Nobody,
    /// Those of ranks of the node that pass nothing on.
    Last,
    /// Down the trees those of all ranks of the node. Who passes something on waits for a notice.
    Node,
}

impl<'a> Script<'a> {
    /// The schedule; none if the ranks come to a standstill.
    pub(super) fn schedule(self) -> Option<Schedule> {
        let lists_per_rank = self.list.1;
        let written = (0..lists_per_rank).map(|list| {
            let mut writer = Writer::new(Script { list: (list, lists_per_rank), ..self });
            writer.run()?;
            Some(writer)
        });
        let written: Vec<Writer<'_>> = written.collect::<Option<_>>()?;
        let (input, output) = match (self.kind, self.chunks) {
            (Kind::AllGather, 1) => (Chunking::Whole, Chunking::PerRank(1)),
            (Kind::AllGather, chunks) => (Chunking::Parts(chunks), Chunking::PerRank(chunks)),
            (Kind::ReduceScatter, 1) => (Chunking::PerRank(1), Chunking::Whole),
            (Kind::ReduceScatter, chunks) => (Chunking::PerRank(chunks), Chunking::Parts(chunks)),
            (_, chunks) => (Chunking::PerRank(chunks), Chunking::PerRank(chunks)),
        };
        let ranks = written.iter().flat_map(|writer| &writer.ranks);
        let scratch = ranks.map(|rank| rank.scratch.len()).max().unwrap_or(0);
        let mut of_lists: Vec<_> =
            written.into_iter().map(|writer| writer.finish().into_iter()).collect();
        let of_ranks = (0..self.ways.ranks()).flat_map(|_| {
            of_lists.iter_mut().map(|list| list.next().unwrap_or_default()).collect::<Vec<_>>()
        });
        Some(Schedule {
            collective: Collective::new(self.kind, self.ways.ranks()),
            input,
            output,
            scratch: scratch * lists_per_rank,
            slots: SLOTS,
            lists_per_rank,
            lists: of_ranks.collect(),
        })
    }

    /// The ranks with which each uses buffers in place.
    fn beside(&self) -> Vec<BTreeSet<usize>> {
        let mut beside = vec![BTreeSet::new(); self.ways.ranks()];
        let up = self.up.into_iter().flat_map(|trees| &trees.0).map(|tree| (tree, true));
        let down = self.down.into_iter().flat_map(|trees| &trees.0).map(|tree| (tree, false));
        for (tree, up) in up.chain(down) {
            for (child, parent) in tree.parent.iter().enumerate() {
                let is_used = |parent: &usize| match up {
                    true => self.is_read(tree, *parent, child),
                    false => self.is_written(tree, *parent, child),
                };
                if let Some(parent) = parent.filter(is_used) {
                    beside[parent].insert(child);
                    beside[child].insert(parent);
                }
            }
        }
        beside
    }

    /// Whether a rank reads its child's input in place.
    fn is_read(&self, tree: &Tree, parent: usize, child: usize) -> bool {
        let reached = self.reach != Reach::Nobody && !self.ways.way(child, parent).posted;
        reached && tree.children[child].is_empty()
    }

    /// Whether a rank writes its child's output in place.
    fn is_written(&self, tree: &Tree, parent: usize, child: usize) -> bool {
        let last = self.reach == Reach::Node || tree.children[child].is_empty();
        self.reach != Reach::Nobody && !self.ways.way(parent, child).posted && last
    }

    fn link(&self, from: usize, to: usize, peer: usize) -> Link {
        let posted = self.ways.way(from, to).posted;
        let lane = if posted { Lane::Slots } else { self.lane };
        Link { list: self.list.0 as u16, ..Link::new(peer, lane) }
    }

    /// Whether a chunk is this list's.
    fn has(&self, chunk: usize) -> bool {
        chunk % self.list.1 == self.list.0
    }

    /// Where a list has its scratch, between the others'.
    fn scratch(&self, at: usize) -> Operand {
        Operand::Scratch(at * self.list.1 + self.list.0)
    }
}

/// A message under way, or there.
#[derive(Clone, Copy, Debug)]
struct Message {
    chunk: usize,
    /// Whether it is a part that is to be reduced.
    up: bool,
    /// Whether it is a notice, of what has been written in place.
    notice: bool,
    arrival: Time,
}

/// What a rank does next.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// Tells its own chunk.
    Own(usize),
    /// Passes on what has come from a rank.
    Pass(usize, usize),
    /// Reduces all that there is of a chunk, and sends it on or has it.
    Reduce(usize),
    /// Adds to scratch what has come of a chunk.
    Add(usize),
}

#[derive(Debug)]
struct Rank {
    builder: RankBuilder,
    beside: Vec<usize>,
    free: Time,
    /// What can be done from the beginning.
    starts: VecDeque<Job>,
    /// Messages that have been sent and not been taken, by sender.
    queues: BTreeMap<usize, VecDeque<Message>>,
    /// In which chunk of scratch the sum of a chunk is.
    sums: BTreeMap<usize, usize>,
    /// Which chunks of scratch are in use.
    scratch: Vec<bool>,
    /// By chunk, of how many children messages are still to come.
    awaited: Vec<u32>,
}

struct Writer<'a> {
    script: Script<'a>,
    ranks: Vec<Rank>,
    load: Load,
    /// Messages from one rank to another that have not been taken.
    unread: Vec<u32>,
    /// When to look at which rank, in the order of being asked.
    looks: BinaryHeap<Reverse<(Time, u64, usize)>>,
    asked: u64,
    /// Jobs that are left.
    left: usize,
    /// Whether parts are added since nothing else can be done.
    stuck: bool,
}

impl<'a> Writer<'a> {
    fn new(script: Script<'a>) -> Writer<'a> {
        let count = script.ways.ranks();
        let ranks = script.beside().into_iter().enumerate().map(|(rank, beside)| {
            let mut builder = RankBuilder::new(rank, SLOTS, crate::schedule::Tree::Left);
            // Starting behind the rank, so that not all turn to the same one first.
            let (before, behind): (Vec<usize>, Vec<usize>) =
                beside.into_iter().partition(|other| *other < rank);
            let beside = [behind, before].concat();
            if !beside.is_empty() {
                builder.enter(&beside);
            }
            Rank {
                builder,
                beside,
                free: 0,
                starts: VecDeque::new(),
                queues: BTreeMap::new(),
                sums: BTreeMap::new(),
                scratch: Vec::new(),
                awaited: Vec::new(),
            }
        });
        let mut writer = Writer {
            ranks: ranks.collect(),
            load: Load::new(script.ways),
            unread: vec![0; count * count],
            looks: BinaryHeap::new(),
            asked: 0,
            left: 0,
            stuck: false,
            script,
        };
        (0..count).for_each(|rank| writer.prepare(rank));
        writer
    }

    /// What a rank can do from the beginning, and how much there is to do.
    fn prepare(&mut self, rank: usize) {
        let (script, chunks) = (self.script, self.script.chunks);
        let mut starts = Vec::new();
        if let Some(trees) = script.up {
            for (chunk, tree) in trees.0.iter().enumerate() {
                let is_message = |child: &&usize| !script.is_read(tree, rank, **child);
                let awaited = tree.children[rank].iter().filter(is_message).count();
                self.ranks[rank].awaited.push(awaited as u32);
                let parent = tree.parent[rank];
                if !script.has(chunk) {
                    continue;
                }
                if parent.is_some_and(|parent| script.is_read(tree, parent, rank)) {
                    continue;
                }
                self.left += 1;
                if awaited == 0 {
                    // What would come last down the tree goes first up the tree.
                    let all = trees.0.len();
                    let turn = (chunk + all - rank * chunks) % all;
                    starts.push((Reverse(tree.when[rank]), turn, Job::Reduce(chunk)));
                }
            }
        } else {
            let own = (rank * chunks..(rank + 1) * chunks).filter(|chunk| script.has(*chunk));
            starts.extend(own.map(|chunk| (Reverse(0), chunk, Job::Own(chunk))));
            self.left += starts.len();
        }
        let down = script.down.into_iter().flat_map(|trees| trees.0.iter().enumerate());
        for (_, tree) in down.filter(|(chunk, _)| script.has(*chunk)) {
            let parent = tree.parent[rank];
            let is_last = tree.children[rank].is_empty();
            let told =
                parent.is_some_and(|parent| !is_last || !script.is_written(tree, parent, rank));
            self.left += usize::from(told);
        }
        starts.sort_by_key(|(when, turn, _)| (*when, *turn));
        self.ranks[rank].starts = starts.into_iter().map(|(.., job)| job).collect();
        self.look(rank, 0);
    }

    fn look(&mut self, rank: usize, when: Time) {
        self.asked += 1;
        self.looks.push(Reverse((when, self.asked, rank)));
    }

    fn run(&mut self) -> Option<()> {
        let mut last = 0;
        while self.left > 0 {
            let Some(Reverse((now, _, rank))) = self.looks.pop() else {
                if self.stuck {
                    return None;
                }
                self.stuck = true;
                (0..self.ranks.len()).for_each(|rank| self.look(rank, last));
                continue;
            };
            last = now.max(last);
            let free = self.ranks[rank].free;
            if free > now {
                self.look(rank, free);
            } else if let Some(job) = self.job(rank, now) {
                self.stuck = false;
                self.carry_out(rank, job, now);
            }
        }
        Some(())
    }

    fn finish(self) -> Vec<Vec<crate::schedule::Instruction>> {
        let lists = self.ranks.into_iter().map(|mut rank| {
            if !rank.beside.is_empty() {
                rank.builder.barrier(&rank.beside);
            }
            rank.builder.finish()
        });
        lists.collect()
    }

    /// What a rank does next; a job of its beginning is taken away.
    fn job(&mut self, rank: usize, now: Time) -> Option<Job> {
        let start = (0..self.ranks[rank].starts.len())
            .find(|at| self.has_credit(rank, self.ranks[rank].starts[*at]));
        if let Some(at) = start {
            return self.ranks[rank].starts.remove(at);
        }
        let mut fronts: Vec<(Time, usize, Message, usize)> = Vec::new();
        for (from, queue) in &self.ranks[rank].queues {
            if let Some(front) = queue.front().filter(|front| front.arrival <= now) {
                fronts.push((front.arrival, *from, *front, queue.len()));
            }
        }
        fronts.sort_by_key(|(arrival, from, ..)| (*arrival, *from));
        let of = |chunk: usize| {
            fronts.iter().filter(|(.., front, _)| front.up && front.chunk == chunk).count() as u32
        };
        let ready = fronts.iter().find_map(|(_, from, front, _)| {
            let job = match front.up {
                false => Job::Pass(front.chunk, *from),
                true if of(front.chunk) == self.ranks[rank].awaited[front.chunk] => {
                    Job::Reduce(front.chunk)
                }
                true => return None,
            };
            self.has_credit(rank, job).then_some(job)
        });
        ready.or_else(|| {
            let (.., front, _) = fronts.iter().find(|(_, from, front, queued)| {
                let link = self.script.link(*from, rank, *from);
                let full = *queued as u32 >= SLOTS.on(link.lane);
                front.up
                    && of(front.chunk) < self.ranks[rank].awaited[front.chunk]
                    && (*queued > 1 || full || self.stuck)
            })?;
            Some(Job::Add(front.chunk))
        })
    }

    /// Whether there are credits for all messages of a job.
    fn has_credit(&self, rank: usize, job: Job) -> bool {
        let free = |to: usize| {
            let lane = self.script.link(rank, to, to).lane;
            self.unread[rank * self.ranks.len() + to] < SLOTS.on(lane)
        };
        let told = |chunk: usize| self.told(rank, chunk).1.into_iter().all(free);
        match job {
            Job::Own(chunk) | Job::Pass(chunk, _) => told(chunk),
            Job::Reduce(chunk) => match self.parent(rank, chunk) {
                Some(parent) => free(parent),
                None => told(chunk),
            },
            Job::Add(_) => true,
        }
    }

    fn parent(&self, rank: usize, chunk: usize) -> Option<usize> {
        self.script.up.and_then(|trees| trees.0[chunk].parent[rank])
    }

    /// Whose output a rank writes in place, and to whom it sends a message, down the tree.
    fn told(&self, rank: usize, chunk: usize) -> (Vec<usize>, Vec<usize>) {
        let Some(trees) = self.script.down else { return (Vec::new(), Vec::new()) };
        let tree = &trees.0[chunk];
        let children = tree.children[rank].iter().copied();
        children.partition(|child| self.script.is_written(tree, rank, *child))
    }

    fn carry_out(&mut self, rank: usize, job: Job, now: Time) {
        match job {
            Job::Own(chunk) => {
                let input = Operand::Input(chunk % self.script.chunks);
                self.tell(rank, chunk, Some((&[Read::Plain(input)], false)), now);
            }
            Job::Pass(chunk, from) => {
                let message = Read::Recv(self.script.link(from, rank, from));
                let end = if self.take(rank, from) {
                    self.ranks[rank].builder.await_notice(from);
                    self.tell(rank, chunk, None, now)
                } else {
                    self.tell(rank, chunk, Some((&[message], false)), now)
                };
                self.look(from, end);
            }
            Job::Reduce(chunk) => self.reduce(rank, chunk, now),
            Job::Add(chunk) => self.add(rank, chunk, now),
        }
        if !matches!(job, Job::Add(_)) {
            self.left -= 1;
        }
        let free = self.ranks[rank].free;
        self.look(rank, free);
    }

    /// Takes the first message of a connection; whether it is a notice.
    fn take(&mut self, rank: usize, from: usize) -> bool {
        let queue = self.ranks[rank].queues.get_mut(&from);
        let notice = queue.and_then(VecDeque::pop_front).is_some_and(|message| message.notice);
        self.unread[from * self.ranks.len() + rank] -= u32::from(!notice);
        notice
    }

    /// Takes what has come of a chunk; from whom.
    fn take_parts(&mut self, rank: usize, chunk: usize, now: Time) -> Vec<usize> {
        let queues = self.ranks[rank].queues.iter();
        let of_chunk =
            |message: &Message| message.up && message.chunk == chunk && message.arrival <= now;
        let from: Vec<usize> = queues
            .filter(|(_, queue)| queue.front().is_some_and(of_chunk))
            .map(|(from, _)| *from)
            .collect();
        for from in &from {
            self.take(rank, *from);
        }
        self.ranks[rank].awaited[chunk] -= from.len() as u32;
        from
    }

    /// The sum so far, or this rank's own part, and the parts that have come.
    fn parts(&self, rank: usize, chunk: usize, from: &[usize]) -> Vec<Read> {
        let sum = self.ranks[rank].sums.get(&chunk);
        let own = sum.map_or(Operand::Input(chunk), |sum| self.script.scratch(*sum));
        let parts = from.iter().map(|from| Read::Recv(self.script.link(*from, rank, *from)));
        [Read::Plain(own)].into_iter().chain(parts).collect()
    }

    fn add(&mut self, rank: usize, chunk: usize, now: Time) {
        let from = self.take_parts(rank, chunk, now);
        let reads = self.parts(rank, chunk, &from);
        let here = &mut self.ranks[rank];
        let known = here.sums.get(&chunk).copied();
        let sum = known.unwrap_or_else(|| {
            let free = here.scratch.iter().position(|used| !used);
            let at = free.unwrap_or(here.scratch.len());
            here.scratch.resize(here.scratch.len().max(at + 1), false);
            here.scratch[at] = true;
            here.sums.insert(chunk, at);
            at
        });
        here.builder.transfer(&reads, &[Write::To(self.script.scratch(sum))], false);
        here.free = now + self.script.ways.step;
        let end = here.free;
        from.into_iter().for_each(|from| self.look(from, end));
    }

    fn reduce(&mut self, rank: usize, chunk: usize, now: Time) {
        let from = self.take_parts(rank, chunk, now);
        let mut reads = self.parts(rank, chunk, &from);
        if let Some(sum) = self.ranks[rank].sums.remove(&chunk) {
            self.ranks[rank].scratch[sum] = false;
        }
        let Some(trees) = self.script.up else { return };
        let tree = &trees.0[chunk];
        let mut ready = now;
        for &child in &tree.children[rank] {
            if self.script.is_read(tree, rank, child) {
                let window = Operand::Window { peer: child, buffer: Buffer::Input, chunk };
                reads.push(Read::Plain(window));
                let way = self.script.ways.way(child, rank);
                ready = ready.max(self.load.carry(way, self.script.chunk_bytes, now));
            }
        }
        let end = match (tree.parent[rank], self.script.kind) {
            (Some(parent), _) => {
                let link = self.script.link(rank, parent, parent);
                self.ranks[rank].builder.transfer(&reads, &[Write::Send(link)], false);
                self.move_on(rank, &[], &[(parent, Message::part(chunk))], ready)
            }
            (None, Kind::ReduceScatter) => {
                let output = Write::To(Operand::Output(chunk % self.script.chunks));
                self.ranks[rank].builder.transfer(&reads, &[output], true);
                self.move_on(rank, &[], &[], ready)
            }
            (None, _) => self.tell(rank, chunk, Some((&reads, true)), ready),
        };
        from.into_iter().for_each(|from| self.look(from, end));
    }

    /// Puts into the output what these read, unless it is there, and tells the children.
    fn tell(
        &mut self,
        rank: usize,
        chunk: usize,
        reads: Option<(&[Read], bool)>,
        now: Time,
    ) -> Time {
        let (script, output) = (self.script, Operand::Output(chunk));
        let (written, sent) = self.told(rank, chunk);
        let is_far = |to: &usize| script.ways.way(rank, *to).posted;
        let (far, near): (Vec<usize>, Vec<usize>) = sent.into_iter().partition(is_far);
        let window = |peer: &usize| {
            Write::To(Operand::Window { peer: *peer, buffer: Buffer::Output, chunk })
        };
        let send = |to: &usize| Write::Send(script.link(rank, *to, *to));
        let own = reads.map(|_| Write::To(output));
        let mut first: Vec<Write> = own.into_iter().chain(far.iter().map(send)).collect();
        let inside: Vec<Write> = written.iter().map(window).chain(near.iter().map(send)).collect();
        let there = [Read::Plain(output)];
        let (reads, finish) = reads.unwrap_or((&there, false));
        let builder = &mut self.ranks[rank].builder;
        let apart = script.across_first && !far.is_empty() && !inside.is_empty();
        if apart {
            builder.transfer(reads, &first, finish);
            builder.transfer(&there, &inside, false);
        } else {
            first.extend(inside);
            builder.transfer(reads, &first, finish);
        }
        let tree = script.down.map(|trees| &trees.0[chunk]);
        let passes = |child: &usize| tree.is_some_and(|tree| !tree.children[*child].is_empty());
        let noticed: Vec<usize> = written.iter().copied().filter(passes).collect();
        noticed.iter().for_each(|child| builder.notify(*child));

        let messages =
            |to: &[usize], message: Message| to.iter().map(|to| (*to, message)).collect::<Vec<_>>();
        let (whole, notice) = (Message::whole(chunk), Message::notice(chunk));
        let (far, near) = (messages(&far, whole), messages(&near, whole));
        let near = [near, messages(&noticed, notice)].concat();
        if apart {
            let handed = self.move_on(rank, &[], &far, now);
            return self.move_on(rank, &written, &near, handed);
        }
        self.move_on(rank, &written, &[near, far].concat(), now)
    }

    /// Data on its ways; when the rank is free again.
    fn move_on(
        &mut self,
        rank: usize,
        written: &[usize],
        messages: &[(usize, Message)],
        now: Time,
    ) -> Time {
        let (ways, bytes, count) = (self.script.ways, self.script.chunk_bytes, self.ranks.len());
        let begun = now + ways.step;
        let is_far = |to: usize| ways.way(rank, to).posted;
        let sent = messages.iter().filter(|(to, message)| !message.notice && !is_far(*to));
        let mut end = begun;
        for to in written.iter().chain(sent.map(|(to, _)| to)) {
            end = end.max(self.load.carry(ways.way(rank, *to), bytes, begun));
        }
        for &(to, message) in messages {
            let way = ways.way(rank, to);
            // Adapters begin when the rank has done its part.
            let left = if way.posted { self.load.carry(way, bytes, end) } else { end };
            let arrival = left + way.latency;
            let queue = self.ranks[to].queues.entry(rank).or_default();
            queue.push_back(Message { arrival, ..message });
            self.unread[rank * count + to] += u32::from(!message.notice);
            self.look(to, arrival);
        }
        self.ranks[rank].free = end;
        end
    }
}

impl Message {
    /// A chunk as everybody is to have it.
    fn whole(chunk: usize) -> Message {
        Message { chunk, up: false, notice: false, arrival: 0 }
    }

    /// A part of a sum.
    fn part(chunk: usize) -> Message {
        Message { up: true, ..Message::whole(chunk) }
    }

    /// That a chunk has been written.
    fn notice(chunk: usize) -> Message {
        Message { notice: true, ..Message::whole(chunk) }
    }
}
