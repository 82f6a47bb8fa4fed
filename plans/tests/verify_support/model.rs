//! A model of the machine, independent of the verifier: it runs a schedule on numbers, several
//! rounds and launches long, and at each moment lets chance choose the list that goes on. An
//! instruction goes on element by element. Nothing here knows of happens-before: a fault shows as a
//! wrong number or as ranks that wait for ever.

use super::Case;
use oxccl_plans::collective::{Kind, Order};
use oxccl_plans::schedule::{Buffer, Flag, Instruction, Lane, Link, Operand, Rail, Source, Tree};
use std::collections::HashMap;

/// Elements of a chunk, each handled at a moment of its own.
const ELEMENTS: usize = 2;
const POISON: u64 = 0xdead_beef_dead_beef;

/// Runs a case with this seed.
pub(crate) fn run(case: &Case, in_place: bool, seed: u64) -> Result<(), String> {
    let (launches, rounds) = if case.schedule.has_one_round() { (5, 1) } else { (2, 3) };
    let mut model = Model::new(case, in_place, seed, launches, rounds);
    loop {
        let runnable: Vec<usize> =
            (0..model.ranks.len()).filter(|&rank| model.can_go_on(rank)).collect();
        if runnable.is_empty() {
            break;
        }
        // Chance favours one rank for a while, so that ranks run apart.
        let favourite = model.favourite;
        if !runnable.contains(&favourite) || model.random().is_multiple_of(8) {
            model.favourite = runnable[model.random() as usize % runnable.len()];
        }
        model.go_on(model.favourite)?;
    }
    match model.ranks.iter().position(|rank| rank.launch < launches) {
        Some(list) => Err(format!("list {list} waits for ever at step {}", model.ranks[list].step)),
        None => Ok(()),
    }
}

type Place = (Buffer, usize, usize, usize);

struct Model<'a> {
    case: &'a Case,
    in_place: bool,
    launches: usize,
    rounds: usize,
    /// By list.
    ranks: Vec<List>,
    /// By rank.
    memories: Vec<Memory>,
    /// By the lists at both ends.
    routes: HashMap<(usize, usize, Lane), Connection>,
    /// By rank.
    adapters: HashMap<(usize, Rail), Adapter>,
    favourite: usize,
    random: u64,
}

#[derive(Default)]
struct Memory {
    buffers: HashMap<Place, u64>,
    /// By chunk and element: what this round has written; where lists may be in different rounds,
    /// what was written last.
    scratch: HashMap<(usize, usize), u64>,
}

#[derive(Default)]
struct List {
    launch: usize,
    round: usize,
    step: usize,
    element: usize,
    /// It has come to the end of a launch, and waits for the rank's other lists.
    ended: bool,
    /// Messages of earlier rounds, by link: sent and received.
    cursors: HashMap<Link, (i64, i64)>,
    /// Contributions of earlier rounds, and results, by rail.
    on_rails: HashMap<Rail, (i64, i64)>,
}

/// What a rank gives to the switches of a rail, and what comes from there.
#[derive(Default)]
struct Adapter {
    /// Contributions that it has handed over.
    given: i64,
    /// By slot and element.
    gives: HashMap<(i64, usize), u64>,
    /// By slot and element: the message's number and the datum.
    results: HashMap<(i64, usize), (i64, u64)>,
}

/// One direction.
#[derive(Default)]
struct Connection {
    tail: i64,
    head: i64,
    /// By slot, segment and element: the message's number and the datum.
    slots: HashMap<(i64, u32, usize), (i64, u64)>,
}

impl<'a> Model<'a> {
    fn new(case: &'a Case, in_place: bool, seed: u64, launches: usize, rounds: usize) -> Model<'a> {
        let n = case.schedule.collective.ranks;
        let mut model = Model {
            case,
            in_place,
            launches,
            rounds,
            ranks: case.schedule.lists.iter().map(|_| List::default()).collect(),
            memories: (0..n).map(|_| Memory::default()).collect(),
            routes: HashMap::new(),
            adapters: HashMap::new(),
            favourite: 0,
            random: seed,
        };
        (0..n).for_each(|rank| model.user_writes(rank));
        model
    }

    /// Whether the rank has something to do and need not wait for it.
    fn can_go_on(&self, rank: usize) -> bool {
        let state = &self.ranks[rank];
        if state.launch == self.launches || state.ended {
            return false;
        }
        match self.case.schedule.lists[rank].get(state.step) {
            Some(Instruction::Wait { flag, value }) => {
                let (route, cursor) = self.flag(rank, *flag, true);
                self.routes.get(&route).map_or(0, |connection| match flag {
                    Flag::Tail(_) => connection.tail,
                    Flag::Head(_) => connection.head,
                }) >= cursor + value
            }
            Some(Instruction::ReduceCopy { sources, .. }) => {
                sources.iter().all(|source| self.has_come(rank, source.operand, state.element))
            }
            _ => true,
        }
    }

    fn go_on(&mut self, rank: usize) -> Result<(), String> {
        let case = self.case;
        let list = &case.schedule.lists[rank];
        match list.get(self.ranks[rank].step) {
            None => return self.end_round(rank),
            Some(Instruction::Wait { .. }) => {}
            Some(Instruction::Signal { flag, value }) => {
                let (route, cursor) = self.flag(rank, *flag, false);
                let connection = self.routes.entry(route).or_default();
                match flag {
                    Flag::Tail(_) => connection.tail = cursor + value,
                    Flag::Head(_) => connection.head = cursor + value,
                }
            }
            Some(Instruction::ReduceCopy { sources, destinations, tree, finish }) => {
                let element = self.ranks[rank].element;
                let result = self.reduce(rank, sources, *tree, *finish, element)?;
                let ranks = self.memories.len();
                for operand in destinations.iter().flat_map(|one| one.members(rank, ranks)) {
                    self.write(rank, operand, element, result)?;
                }
                self.ranks[rank].element += 1;
                if self.ranks[rank].element < ELEMENTS {
                    return Ok(());
                }
                self.ranks[rank].element = 0;
                for operand in destinations {
                    self.hand_over(rank, *operand);
                }
            }
        }
        self.ranks[rank].step += 1;
        Ok(())
    }

    /// Cursors move; at the end of a launch the user looks at the output and uses its buffers
    /// again.
    fn end_round(&mut self, rank: usize) -> Result<(), String> {
        let mut moves: HashMap<Link, (i64, i64)> = HashMap::new();
        for operand in self.case.schedule.lists[rank].iter().flat_map(Instruction::operands) {
            match operand {
                Operand::Contribution { rail, .. } => {
                    self.ranks[rank].on_rails.entry(rail).or_default().0 += 1;
                }
                Operand::Reduced { rail, .. } => {
                    self.ranks[rank].on_rails.entry(rail).or_default().1 += 1;
                }
                _ => {}
            }
        }
        for instruction in &self.case.schedule.lists[rank] {
            match instruction {
                Instruction::Signal { flag: Flag::Tail(link), .. } if link.lane == Lane::Sync => {
                    moves.entry(*link).or_default().0 += 1
                }
                Instruction::Wait { flag: Flag::Tail(link), .. } if link.lane == Lane::Sync => {
                    moves.entry(*link).or_default().1 += 1
                }
                Instruction::ReduceCopy { sources, destinations, .. } => {
                    for operand in destinations {
                        if let Operand::PeerSlot { link, segment: 0, .. } = operand {
                            moves.entry(*link).or_default().0 += 1;
                        }
                    }
                    for source in sources {
                        if let Operand::Slot { link, segment: 0, .. } = source.operand {
                            moves.entry(link).or_default().1 += 1;
                        }
                    }
                }
                _ => {}
            }
        }
        let state = &mut self.ranks[rank];
        for (link, (sent, received)) in moves {
            let cursor = state.cursors.entry(link).or_default();
            *cursor = (cursor.0 + sent, cursor.1 + received);
        }
        (state.step, state.round) = (0, state.round + 1);
        state.ended = state.round == self.rounds;
        let (owner, lists) = (self.rank_of(rank), self.case.schedule.lists_of(self.rank_of(rank)));
        if lists.len() == 1 {
            self.memories[owner].scratch.clear();
        }
        if self.ranks[lists.clone()].iter().all(|list| list.ended) {
            self.check(owner)?;
            for list in &mut self.ranks[lists] {
                (list.round, list.launch, list.ended) = (0, list.launch + 1, false);
            }
            self.user_writes(owner);
        }
        Ok(())
    }

    fn rank_of(&self, list: usize) -> usize {
        list / self.case.schedule.lists_per_rank
    }

    /// The number of the list at the other end of a link.
    fn peer_of(&self, link: Link) -> usize {
        link.peer * self.case.schedule.lists_per_rank + usize::from(link.list)
    }

    fn launch(&self, rank: usize) -> usize {
        self.ranks[self.case.schedule.lists_of(rank).start].launch
    }

    fn user_writes(&mut self, rank: usize) {
        let collective = self.case.schedule.collective;
        let launch = self.launch(rank);
        let (inputs, outputs) = self.chunks();
        for (round, element) in
            (0..self.rounds).flat_map(|round| (0..ELEMENTS).map(move |element| (round, element)))
        {
            for chunk in 0..outputs {
                let place = self.place(rank, Buffer::Output, chunk, round, element);
                self.memories[rank].buffers.insert(place, POISON);
            }
            for chunk in (0..inputs).filter(|_| collective.has_input(rank)) {
                let place = self.place(rank, Buffer::Input, chunk, round, element);
                self.memories[rank]
                    .buffers
                    .insert(place, contribution(launch, round, rank, chunk, element));
            }
        }
    }

    fn check(&self, rank: usize) -> Result<(), String> {
        let collective = self.case.schedule.collective;
        let launch = self.launch(rank);
        if collective.kind == Kind::Barrier {
            return match self.ranks.iter().position(|peer| peer.launch < launch) {
                Some(peer) => {
                    Err(format!("rank {rank} leaves barrier {launch} before rank {peer} enters it"))
                }
                None => Ok(()),
            };
        }
        if !collective.has_output(rank) {
            return Ok(());
        }
        for (round, element) in
            (0..self.rounds).flat_map(|round| (0..ELEMENTS).map(move |element| (round, element)))
        {
            let parts = self.chunks_of_a_part();
            for chunk in 0..self.chunks().1 {
                let of = |peer, chunk| contribution(launch, round, peer, chunk, element);
                let expected = match collective.kind {
                    Kind::AllReduce | Kind::Reduce => self.reduced(|peer| of(peer, chunk)),
                    Kind::ReduceScatter => self.reduced(|peer| of(peer, rank * parts + chunk)),
                    Kind::AllGather | Kind::Gather => of(chunk / parts, chunk % parts),
                    Kind::AllToAll => of(chunk / parts, rank * parts + chunk % parts),
                    Kind::Scatter => of(collective.root, rank * parts + chunk),
                    Kind::Broadcast | Kind::SendRecv => of(collective.root, chunk),
                    Kind::Barrier => unreachable!("it has no output"),
                };
                let found = self.memories[rank].buffers
                    [&self.place(rank, Buffer::Output, chunk, round, element)];
                if found != expected {
                    return Err(format!(
                        "rank {rank}, launch {launch}, round {round}: output chunk {chunk} is wrong"
                    ));
                }
            }
        }
        Ok(())
    }

    fn reduced(&self, of: impl Fn(usize) -> u64) -> u64 {
        let all: Vec<u64> = (0..self.memories.len()).map(|rank| premultiplied(of(rank))).collect();
        let tree = if self.case.order == Order::Tree { Tree::Aligned } else { Tree::Left };
        finished(self.fold(&all, tree))
    }

    fn reduce(
        &mut self,
        rank: usize,
        sources: &[Source],
        tree: Tree,
        finish: bool,
        element: usize,
    ) -> Result<u64, String> {
        let (mut values, ranks) = (Vec::new(), self.memories.len());
        for source in sources {
            for operand in source.operand.members(rank, ranks) {
                let value = self.read(rank, operand, element)?;
                values.push(if source.raw { premultiplied(value) } else { value });
            }
        }
        let value = self.fold(&values, tree);
        Ok(if finish { finished(value) } else { value })
    }

    /// Any order: a sum. Otherwise something that no other order gives.
    fn fold(&self, values: &[u64], tree: Tree) -> u64 {
        match (values, tree) {
            ([value], _) => *value,
            (_, Tree::Left) => {
                values[1..].iter().fold(values[0], |left, right| self.pair(left, *right))
            }
            (_, Tree::Aligned) => {
                let middle = (1..)
                    .map(|level| 1 << level)
                    .take_while(|half| *half < values.len())
                    .last()
                    .unwrap_or(1);
                self.pair(self.fold(&values[..middle], tree), self.fold(&values[middle..], tree))
            }
        }
    }

    fn pair(&self, left: u64, right: u64) -> u64 {
        match self.case.order {
            Order::Any => left.wrapping_add(right),
            _ => mix(left ^ mix(right).rotate_left(17)),
        }
    }

    /// The slot of a contribution or a result, and its number since the beginning, from 0.
    fn on_rail(&self, rank: usize, operand: Operand) -> Option<(Rail, i64, i64)> {
        let (rail, message, receives) = match operand {
            Operand::Contribution { rail, message } => (rail, message, false),
            Operand::Reduced { rail, message } => (rail, message, true),
            _ => return None,
        };
        let (given, read) = self.ranks[rank].on_rails.get(&rail).copied().unwrap_or_default();
        let number = if receives { read } else { given } + i64::from(message);
        Some((rail, number % i64::from(self.case.schedule.slots.slots), number))
    }

    /// A contribution is complete. With the rail's last one, switches read all of them, wherever
    /// these have been, and write the result to all.
    fn hand_over(&mut self, rank: usize, operand: Operand) {
        let Some((rail, slot, number)) = self.on_rail(rank, operand) else { return };
        self.adapters.entry((rank, rail)).or_default().given += 1;
        let members: Vec<usize> = rail.members(rank, self.memories.len()).collect();
        let given = |peer: &usize| self.adapters.get(&(*peer, rail)).map_or(0, |one| one.given);
        if members.iter().any(|peer| given(peer) <= number) {
            return;
        }
        for element in 0..ELEMENTS {
            let give = |peer: &usize| {
                let there = self.adapters[&(*peer, rail)].gives.get(&(slot, element));
                there.copied().unwrap_or(POISON)
            };
            let gives: Vec<u64> = members.iter().map(give).collect();
            let sum = self.fold(&gives, Tree::Left);
            for peer in &members {
                let adapter = self.adapters.entry((*peer, rail)).or_default();
                adapter.results.insert((slot, element), (number, sum));
            }
        }
    }

    fn has_come(&self, rank: usize, operand: Operand, element: usize) -> bool {
        if let (Operand::Reduced { .. }, Some((rail, slot, number))) =
            (operand, self.on_rail(rank, operand))
        {
            let adapter = self.adapters.get(&(rank, rail));
            let result = adapter.and_then(|adapter| adapter.results.get(&(slot, element)));
            return result.is_some_and(|(found, _)| *found == number);
        }
        let Operand::Slot { link: link @ Link { lane: Lane::Ll, .. }, segment, .. } = operand
        else {
            return true;
        };
        let (slot, message) = self.slot(rank, operand, true);
        let connection = self.routes.get(&(self.peer_of(link), rank, Lane::Ll));
        connection
            .and_then(|c| c.slots.get(&(slot, segment, element)))
            .is_some_and(|(number, _)| *number == message)
    }

    fn read(&self, rank: usize, operand: Operand, element: usize) -> Result<u64, String> {
        let round = self.ranks[rank].round;
        let own = self.rank_of(rank);
        let memory = |owner: usize, buffer, chunk| {
            self.memories[owner]
                .buffers
                .get(&self.place(owner, buffer, chunk, round, element))
                .copied()
                .unwrap_or(POISON)
        };
        Ok(match operand {
            Operand::Input(chunk) => memory(own, Buffer::Input, chunk),
            Operand::Output(chunk) => memory(own, Buffer::Output, chunk),
            Operand::Scratch(chunk) => {
                let there = self.memories[own].scratch.get(&(chunk, element));
                there.copied().unwrap_or(POISON)
            }
            Operand::Window { peer, buffer, chunk } => memory(peer, buffer, chunk),
            Operand::Tokens => self.ranks[rank].launch as u64,
            Operand::Slot { link, segment, .. } => {
                let (slot, _) = self.slot(rank, operand, true);
                let connection = self.routes.get(&(self.peer_of(link), rank, link.lane));
                connection
                    .and_then(|c| c.slots.get(&(slot, segment, element)))
                    .map_or(POISON, |(_, datum)| *datum)
            }
            Operand::Reduced { .. } => {
                let (rail, slot, _) = self.on_rail(rank, operand).ok_or("of no rail")?;
                self.adapters[&(rank, rail)].results[&(slot, element)].1
            }
            Operand::PeerSlot { .. } | Operand::PeerTokens(_) | Operand::Contribution { .. } => {
                return Err("write-only".into());
            }
            Operand::Multicast { .. } => return Err("read rank by rank".into()),
        })
    }

    fn write(
        &mut self,
        rank: usize,
        operand: Operand,
        element: usize,
        value: u64,
    ) -> Result<(), String> {
        let round = self.ranks[rank].round;
        let (owner, buffer, chunk) = match operand {
            Operand::Output(chunk) => (self.rank_of(rank), Buffer::Output, chunk),
            Operand::Window { peer, buffer, chunk } => (peer, buffer, chunk),
            Operand::Scratch(chunk) => {
                let owner = self.rank_of(rank);
                self.memories[owner].scratch.insert((chunk, element), value);
                return Ok(());
            }
            Operand::PeerTokens(_) => return Ok(()),
            Operand::PeerSlot { link, segment, .. } => {
                let (slot, message) = self.slot(rank, operand, false);
                let route = (rank, self.peer_of(link), link.lane);
                let connection = self.routes.entry(route).or_default();
                connection.slots.insert((slot, segment, element), (message, value));
                return Ok(());
            }
            Operand::Contribution { .. } => {
                let (rail, slot, _) = self.on_rail(rank, operand).ok_or("of no rail")?;
                let adapter = self.adapters.entry((rank, rail)).or_default();
                adapter.gives.insert((slot, element), value);
                return Ok(());
            }
            _ => return Err("read-only".into()),
        };
        let place = self.place(owner, buffer, chunk, round, element);
        self.memories[owner].buffers.insert(place, value);
        Ok(())
    }

    /// A message's slot and its number since the beginning, from 1.
    fn slot(&self, rank: usize, operand: Operand, receives: bool) -> (i64, i64) {
        let (Operand::Slot { link, message, .. } | Operand::PeerSlot { link, message, .. }) =
            operand
        else {
            return (0, 0);
        };
        let (sent, received) = self.ranks[rank].cursors.get(&link).copied().unwrap_or_default();
        let number = if receives { received } else { sent } + i64::from(message);
        (number % i64::from(self.case.schedule.slots.on(link.lane)), number + 1)
    }

    fn flag(&self, rank: usize, flag: Flag, waits: bool) -> ((usize, usize, Lane), i64) {
        let (Flag::Tail(link) | Flag::Head(link)) = flag;
        let (sent, received) = self.ranks[rank].cursors.get(&link).copied().unwrap_or_default();
        let sends = matches!(flag, Flag::Tail(_)) != waits;
        if sends {
            ((rank, self.peer_of(link), link.lane), sent)
        } else {
            ((self.peer_of(link), rank, link.lane), received)
        }
    }

    fn chunks(&self) -> (usize, usize) {
        let (schedule, n) = (&self.case.schedule, self.memories.len());
        (schedule.input.chunks(n), schedule.output.chunks(n))
    }

    /// In place, an output chunk and an input chunk are the same memory.
    fn place(
        &self,
        rank: usize,
        buffer: Buffer,
        chunk: usize,
        round: usize,
        element: usize,
    ) -> Place {
        let collective = self.case.schedule.collective;
        let one = self.in_place && collective.has_input(rank) && collective.has_output(rank);
        let own = rank * self.chunks_of_a_part() + chunk;
        let chunk = match (collective.kind, buffer) {
            (Kind::AllGather | Kind::Gather, Buffer::Input) if one => own,
            (Kind::ReduceScatter | Kind::Scatter, Buffer::Output) if one => own,
            _ => chunk,
        };
        (if one { Buffer::Input } else { buffer }, chunk, round, element)
    }

    /// Of what a rank gives to, or gets from, each rank.
    fn chunks_of_a_part(&self) -> usize {
        let (inputs, outputs) = self.chunks();
        let ranks = self.case.schedule.collective.ranks;
        match self.case.schedule.collective.kind {
            Kind::ReduceScatter | Kind::Scatter => outputs,
            Kind::AllGather | Kind::Gather => inputs,
            Kind::AllToAll => outputs / ranks,
            _ => 1,
        }
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random)
    }
}

fn contribution(launch: usize, round: usize, rank: usize, chunk: usize, element: usize) -> u64 {
    [launch, round, rank, chunk, element]
        .into_iter()
        .fold(1, |value, part| mix(value ^ mix(part as u64 + 1)))
}

fn premultiplied(value: u64) -> u64 {
    value.wrapping_mul(0x1001)
}

fn finished(value: u64) -> u64 {
    value.rotate_left(7).wrapping_add(12345)
}

/// A bijection that scatters.
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
