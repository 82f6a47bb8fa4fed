//! One rank's calls.

use std::time::{Duration, Instant};

use oxccl::{Collectives, Communicator, Element, Error, HostBuffer, ReduceOp, Stream, bf16};

use super::SoakOptions;
use super::faults::Fault;
use super::random::{Random, value};
use crate::failure::Failure;

/// How often the ranks agree on whether to go on.
const ROUND: u64 = 64;
/// Parts that are open at once, at most.
const PARTS: usize = 3;
/// So many calls from one death to the next, where they are not counted.
const EVERY: u64 = 5_000;
/// How long until all have heard of a death.
const NEWS: Duration = Duration::from_secs(30);
/// By how much what a process holds may grow.
const GROWTH: usize = 40;

/// A communicator, and the numbers that its ranks have had in the world.
struct Part {
    comm: Communicator,
    members: Vec<usize>,
}

/// A fault that is to come.
#[derive(Clone, Copy)]
struct Due {
    /// Before this call.
    call: u64,
    fault: Fault,
    /// The rank of the whole.
    victim: usize,
}

/// One of them.
pub(super) struct Rank<'a> {
    options: &'a SoakOptions,
    /// Its number in the world.
    own: usize,
    whole: Part,
    parts: Vec<Part>,
    stream: Option<Stream>,
    /// The next call.
    call: u64,
    /// How many ranks have failed so far.
    deaths: usize,
    splits: u64,
    done: Done,
    began: Instant,
    /// Descriptors, threads and mappings, once it has settled.
    held: Option<[usize; 3]>,
}

impl<'a> Rank<'a> {
    pub(super) fn new(comm: Communicator, options: &'a SoakOptions) -> Rank<'a> {
        let (own, members) = (comm.rank(), (0..comm.world_size()).collect());
        Rank {
            options,
            own,
            whole: Part { comm, members },
            parts: Vec::new(),
            stream: None,
            call: 0,
            deaths: 0,
            splits: 0,
            done: Done::default(),
            began: Instant::now(),
            held: None,
        }
    }

    /// The rank that it is at the end.
    pub(super) fn run(mut self) -> Result<usize, Failure> {
        self.stream = Some(Stream::new()?);
        loop {
            let done = match self.turn() {
                Ok(done) => done,
                Err(error) if error.is_fatal() => {
                    self.survive(error)?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if done {
                break;
            }
        }
        self.end()
    }

    /// A call, or what all agree on now and then. Whether it is over.
    fn turn(&mut self) -> Result<bool, Error> {
        if self.call.is_multiple_of(ROUND) && self.agree()? {
            return Ok(true);
        }
        self.call += 1;
        let mut random = Random::of(self.options.seed, self.call);
        let late = random.below(self.members().len());
        if self.options.faults.contains(&Fault::Slow) && random.below(100) == 0 {
            let pause = Duration::from_micros(random.below(20_000) as u64);
            if self.members()[late] == self.own {
                std::thread::sleep(pause);
            }
        }
        let fault = self.next_fault().filter(|fault| fault.call == self.call);
        if fault.is_some() {
            // Who has ended a call may have messages of it under way. Now all have them.
            self.whole.comm.barrier()?;
        }
        if let Some(Due { fault, victim, .. }) = fault
            && self.members()[victim] == self.own
        {
            fault.befall();
        }
        if fault.is_some_and(|due| due.fault == Fault::Stop) {
            // Nobody but those who wait for it notices one that has stopped: so all do.
            self.whole.comm.barrier()?;
        }
        if fault.is_none() && random.below(50) == 0 {
            self.split(&mut random)?;
        }
        let whole = self.parts.len();
        let which = if fault.is_some() { whole } else { random.below(whole + 1) };
        let part = self.parts.get(which).unwrap_or(&self.whole);
        let stream = self.stream.as_ref().filter(|_| random.below(4) == 0);
        let call = Call { part, stream, number: self.call };
        let Done { operations, wrong } = match random.below(5) {
            0 => call.one::<u8>(&mut random)?,
            1 => call.one::<i32>(&mut random)?,
            2 => call.one::<f64>(&mut random)?,
            3 => call.one::<bf16>(&mut random)?,
            _ => call.one::<f32>(&mut random)?,
        };
        self.done.operations += operations;
        self.done.wrong += wrong;
        Ok(false)
    }

    /// Whether it is over, by the clock of whoever is late.
    fn agree(&mut self) -> Result<bool, Error> {
        if self.call == 20 * ROUND {
            self.held = held();
        }
        let late = self.began.elapsed() >= self.options.minutes
            || self.options.calls.is_some_and(|calls| self.call >= calls);
        let mut over = [u8::from(late)];
        self.whole.comm.all_reduce_in_place(&mut over, ReduceOp::Max)?;
        Ok(over[0] > 0)
    }

    fn members(&self) -> &[usize] {
        &self.whole.members
    }

    /// What befalls a rank next.
    fn next_fault(&self) -> Option<Due> {
        let SoakOptions { deaths, calls, seed, .. } = *self.options;
        let fault = self.options.ends().cycle().nth(self.deaths)?;
        // In the first half, where the calls are counted.
        let every = calls.map_or(EVERY, |calls| calls / 2 / (deaths as u64 + 1)).max(1);
        let call = (self.deaths as u64 + 1) * every;
        let victim = Random::of(seed, call).below(self.members().len());
        (self.deaths < deaths).then_some(Due { call, fault, victim })
    }

    /// Splits off a part, which the oldest makes room for.
    fn split(&mut self, random: &mut Random) -> Result<(), Error> {
        let Part { comm, members } = &self.whole;
        if self.parts.len() == PARTS {
            self.parts.remove(0).comm.close()?;
        }
        let (colors, turn) = (1 + random.below(members.len()), random.below(members.len()));
        let place = |rank: usize| (rank * 7 + turn) % members.len();
        let color = |rank: usize| place(rank) % colors;
        let rank = comm.rank();
        let part = comm.split(Some(color(rank) as u32), place(rank) as i64)?;
        let mut beside: Vec<usize> =
            (0..members.len()).filter(|other| color(*other) == color(rank)).collect();
        beside.sort_by_key(|other| (place(*other), *other));
        let members = beside.into_iter().map(|other| members[other]).collect();
        self.splits += 1;
        self.parts.extend(part.map(|comm| Part { comm, members }));
        Ok(())
    }

    /// Goes on without those that have died.
    fn survive(&mut self, error: Error) -> Result<(), Failure> {
        // Others may be in calls of a part in which nobody has died.
        for part in self.parts.drain(..) {
            part.comm.handle().abort("a rank has died")?;
        }
        let since = Instant::now();
        let handle = self.whole.comm.handle();
        let dead = loop {
            match handle.error() {
                Some(cause) => break cause.ranks(),
                None if since.elapsed() > NEWS => return Err(error.into()),
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let Some(Due { fault, victim, .. }) = self.next_fault() else { return Err(error.into()) };
        if self.members()[victim] == self.own {
            // The others have given it up, and go on.
            // SAFETY: it ends the process, past everything.
            unsafe { libc::_exit(9) };
        }
        if dead != [victim] {
            return Err(Failure::Usage(format!(
                "rank {victim} was to fail by {fault:?}, and {dead:?} are blamed: {error}"
            )));
        }
        let comm = self.whole.comm.shrink(&dead)?;
        let mut members = std::mem::take(&mut self.whole.members);
        let mut rank = 0..;
        members.retain(|_| rank.next().is_some_and(|rank| !dead.contains(&rank)));
        self.whole = Part { comm, members };
        self.deaths += 1;
        // Some may have ended the call that others have not.
        let mut call = [self.call];
        self.whole.comm.all_reduce_in_place(&mut call, ReduceOp::Max)?;
        self.call = call[0];
        Ok(())
    }

    fn end(mut self) -> Result<usize, Failure> {
        for part in self.parts.drain(..) {
            part.comm.close()?;
        }
        let mut wrong = [self.done.wrong];
        self.whole.comm.all_reduce_in_place(&mut wrong, ReduceOp::Sum)?;
        let grown = self.held.zip(held()).map(|(before, after)| {
            let grown = |at: usize| after[at].saturating_sub(before[at]);
            [grown(0), grown(1), grown(2)]
        });
        let rank = self.whole.comm.rank();
        if rank == 0 {
            let (ranks, seconds) = (self.whole.members.len(), self.began.elapsed().as_secs_f64());
            println!(
                "{} calls and {} splits in {seconds:.1} s, seed {}; {} of {} ranks died; {} wrong elements",
                self.call,
                self.splits,
                self.options.seed,
                self.deaths,
                ranks + self.deaths,
                wrong[0]
            );
            println!("{} operations: those of groups count one by one", self.done.operations);
            if let Some([descriptors, threads, mappings]) = grown {
                println!(
                    "since call {}: {descriptors} more descriptors, {threads} more threads, {mappings} more mappings",
                    20 * ROUND
                );
            }
        }
        self.whole.comm.close()?;
        if wrong[0] > 0 {
            return Err(Failure::Wrong { count: wrong[0] });
        }
        match grown {
            Some(grown) if grown.iter().any(|more| *more > GROWTH) => Err(Failure::Usage(format!(
                "this process has accumulated {grown:?} descriptors, threads and mappings"
            ))),
            _ => Ok(rank),
        }
    }
}

/// What this process holds: descriptors, threads and mappings.
fn held() -> Option<[usize; 3]> {
    let entries = |folder| Some(std::fs::read_dir(folder).ok()?.count());
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?.lines().count();
    Some([entries("/proc/self/fd")?, entries("/proc/self/task")?, maps])
}

/// What calls came to.
#[derive(Clone, Copy, Default)]
struct Done {
    /// Collectives and messages of this rank.
    operations: u64,
    /// Elements that are not as they must be.
    wrong: u64,
}

/// One call of a communicator.
struct Call<'a> {
    part: &'a Part,
    /// On a stream where it may be; otherwise it blocks.
    stream: Option<&'a Stream>,
    number: u64,
}

/// What values are in a type.
trait Small: Element + PartialEq {
    fn small(value: u8) -> Self;
}

macro_rules! small {
    ($($t:ty)*) => {
        $(impl Small for $t {
            fn small(value: u8) -> $t {
                <$t>::from(value)
            }
        })*
    };
}
small!(u8 i32 f32 f64 bf16);

impl Call<'_> {
    /// Makes it.
    fn one<T: Small>(&self, random: &mut Random) -> Result<Done, Error> {
        let Part { comm, members } = self.part;
        let (n, len) = (members.len(), random.length());
        let (shared, root) = (random.below(2) == 0, random.below(n));
        let in_of = |rank: usize, at: usize| value(self.number, members[rank], at);
        let (op, fold) = reduction::<T>(random);
        let reduced = |at: usize| {
            let values = (0..n).map(|rank| in_of(rank, at));
            T::small(values.reduce(fold).unwrap_or(0))
        };
        let own = comm.rank();
        let input = |len: usize| (0..len).map(move |at| T::small(in_of(own, at)));
        let is_root = own == root;
        let mut operations = 1;
        let wrong = match random.below(9) {
            0 => {
                let mut data = Data::new(comm, shared, input(len))?;
                match (self.stream, &mut data) {
                    (Some(stream), Data::Shared(buffer)) => {
                        comm.on(stream).all_reduce_in_place(buffer, op)?.wait()?;
                    }
                    (_, data) => comm.all_reduce_in_place(data.all(), op)?,
                }
                data.wrong((0..len).map(|at| Some(reduced(at))))
            }
            1 => {
                let (from, mut to) = self.pair(shared, input(len), len)?;
                comm.all_reduce(from.get(), to.all(), op)?;
                to.wrong((0..len).map(|at| Some(reduced(at))))
            }
            2 => {
                let (from, mut to) = self.pair(shared, input(len), n * len)?;
                comm.all_gather(from.get(), to.all())?;
                to.wrong((0..n * len).map(|at| Some(T::small(in_of(at / len, at % len)))))
            }
            3 => {
                let (from, mut to) = self.pair(shared, input(n * len), len)?;
                comm.reduce_scatter(from.get(), to.all(), op)?;
                to.wrong((0..len).map(|at| Some(reduced(own * len + at))))
            }
            4 => {
                let (from, mut to) = self.pair(shared, input(n * len), n * len)?;
                comm.all_to_all(from.get(), to.all())?;
                to.wrong(
                    (0..n * len).map(|at| Some(T::small(in_of(at / len, own * len + at % len)))),
                )
            }
            5 => {
                let mut data = Data::new(comm, shared, input(len))?;
                comm.broadcast_in_place(data.all(), root)?;
                data.wrong((0..len).map(|at| Some(T::small(in_of(root, at)))))
            }
            6 => {
                let mut data = Data::new(comm, shared, input(len))?;
                comm.reduce_in_place(data.all(), op, root)?;
                data.wrong((0..len).map(|at| is_root.then(|| reduced(at))))
            }
            7 => {
                operations = 2;
                self.ring::<T>(shared, len, &in_of)?
            }
            _ => {
                let buckets = 1 + random.below(6);
                operations = buckets as u64;
                let lens: Vec<usize> = (0..buckets).map(|_| random.length()).collect();
                let mut data: Vec<_> = lens
                    .iter()
                    .map(|len| Data::new(comm, shared, input(*len)))
                    .collect::<Result<_, _>>()?;
                comm.group(|group| {
                    for data in &mut data {
                        group.all_reduce_in_place(data.all(), op)?;
                    }
                    Ok(())
                })?;
                data.iter()
                    .zip(&lens)
                    .map(|(data, len)| data.wrong((0..*len).map(|at| Some(reduced(at)))))
                    .sum()
            }
        };
        Ok(Done { operations, wrong })
    }

    /// Each rank sends to the next, and receives from the one before.
    fn ring<T: Small>(
        &self,
        shared: bool,
        len: usize,
        in_of: &dyn Fn(usize, usize) -> u8,
    ) -> Result<u64, Error> {
        let Part { comm, members } = self.part;
        let (own, n) = (comm.rank(), members.len());
        if n == 1 {
            return Ok(0);
        }
        let (next, before) = ((own + 1) % n, (own + n - 1) % n);
        let from = (0..len).map(|at| T::small(in_of(own, at)));
        let (from, mut to) = self.pair(shared, from, len)?;
        comm.group(|group| {
            group.send(from.get(), next)?;
            group.recv(to.all(), before)
        })?;
        Ok(to.wrong((0..len).map(|at| Some(T::small(in_of(before, at))))))
    }

    /// An input, and an output that holds something else than what is to come.
    fn pair<T: Small>(
        &self,
        shared: bool,
        from: impl Iterator<Item = T>,
        len: usize,
    ) -> Result<(Data<T>, Data<T>), Error> {
        let (comm, poison) = (&self.part.comm, std::iter::repeat_n(T::small(99), len));
        Ok((Data::new(comm, shared, from)?, Data::new(comm, shared, poison)?))
    }
}

/// An operation, and what it does to two values.
fn reduction<T: Small>(random: &mut Random) -> (ReduceOp<T>, fn(u8, u8) -> u8) {
    match random.below(4) {
        0 => (ReduceOp::Max, u8::max),
        1 => (ReduceOp::Min, u8::min),
        _ => (ReduceOp::Sum, u8::wrapping_add),
    }
}

/// A buffer.
enum Data<T> {
    /// That the ranks of the node reach.
    Shared(HostBuffer<T>),
    Own(Vec<T>),
}

impl<T: Small> Data<T> {
    fn new(
        comm: &Communicator,
        shared: bool,
        values: impl Iterator<Item = T>,
    ) -> Result<Data<T>, Error> {
        let values: Vec<T> = values.collect();
        if !shared {
            return Ok(Data::Own(values));
        }
        let mut buffer = comm.alloc_host(values.len())?;
        buffer.copy_from_slice(&values);
        Ok(Data::Shared(buffer))
    }

    fn get(&self) -> &[T] {
        match self {
            Data::Shared(buffer) => buffer,
            Data::Own(values) => values,
        }
    }

    fn all(&mut self) -> &mut [T] {
        match self {
            Data::Shared(buffer) => buffer,
            Data::Own(values) => values,
        }
    }

    /// Elements that are not as they must be, where they must be anything.
    fn wrong(&self, expected: impl Iterator<Item = Option<T>>) -> u64 {
        let wrong = |(found, expected): (&T, Option<T>)| expected.is_some_and(|one| one != *found);
        self.get()
            .iter()
            .zip(expected)
            .filter(|(found, expected)| wrong((found, *expected)))
            .count() as u64
    }
}
