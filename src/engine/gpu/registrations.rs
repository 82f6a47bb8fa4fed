//! Memory that another library allocated on a GPU, which the processes of other ranks then reach in
//! place.
//!
//! A rank numbers the allocations that it registers. Peers open each once, and put where it begins
//! into a table, by rank and number; a token names the number and an offset (`TOKEN_NUMBER_SHIFT`
//! in `kernels/format/src/launch.rs`). What tells an allocation from a later one at the same
//! address is the number that the driver gives it: tokens are made only for the very allocation
//! that was registered.
//!
//! Registering is a call of all ranks, in rounds in which each tells all: what it registers,
//! whether it could open the others', and, where one could not, that it has closed them again. So
//! it works on all ranks or on none, and all know.
//!
//! A communicator and all its parts share the numbers and the table. A rank's memory is reached in
//! the communicator in which it was registered and in all parts of that, made before or after: all
//! their ranks have opened it.

use super::GpuBackend;
use crate::device::REGISTRATIONS;
use crate::device::cuda::{Registered, Stream};
use crate::error::Error;
use oxccl_kernels::format::TOKEN_NUMBER_SHIFT;
use oxccl_transports::cuda::{Context, IpcHandle, IpcMemory, Pointer, beside_captures};
use oxccl_transports::{Bootstrap, Cause, CudaError, Error as Transport, deadline_in};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the ranks of a communicator have registered, as one of them knows it.
#[derive(Debug)]
pub(in crate::engine) struct Registrations {
    scope: Arc<Scope>,
    table: Registered,
}

/// A communicator, for as long as it or a part of it is there: what was registered in it is
/// reached until then.
#[derive(Debug)]
struct Scope {
    number: u64,
    known: Arc<Mutex<Known>>,
    /// What it is a part of.
    whole: Option<Arc<Scope>>,
}

/// What a rank has registered in a communicator and its parts, and what it has opened of others.
#[derive(Debug, Default)]
struct Known {
    scopes: u64,
    serials: u64,
    /// The number that was given last.
    number: u16,
    /// The rows of the ranks of each communicator that is there.
    members: HashMap<u64, Vec<usize>>,
    /// By where they begin.
    own: HashMap<u64, Own>,
    /// By row of the table and number.
    opened: BTreeMap<(usize, u16), Opened>,
    /// What is registered no more in a scope, of which the others there have not heard.
    left: HashMap<u64, Vec<Name>>,
}

/// An allocation of this rank's.
#[derive(Debug)]
struct Own {
    name: Name,
    /// The driver's number of it.
    buffer: u64,
    /// How often it is registered in each scope.
    uses: BTreeMap<u64, usize>,
}

/// An allocation of another rank's, which is opened.
#[derive(Debug)]
struct Opened {
    serial: u64,
    /// In which scopes it is registered.
    scopes: Vec<u64>,
    /// Where it begins here.
    start: usize,
    _memory: IpcMemory,
}

/// What a rank's allocation is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Name {
    number: u16,
    /// Numbers come again, this one does not: scopes hear of a number in any order.
    serial: u64,
}

/// What a rank tells all in a round.
#[derive(Serialize, Deserialize)]
struct Told {
    round: Round,
    /// What is registered in this scope no more.
    dropped: Vec<Name>,
    /// What is new there.
    added: Option<(Name, IpcHandle)>,
    /// Why it cannot be.
    refused: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Round {
    Register,
    Opened,
    Deregister,
    Closed,
}

impl Told {
    fn new(round: Round) -> Told {
        Told { round, dropped: Vec::new(), added: None, refused: None }
    }
}

impl Registrations {
    /// Nothing yet, of all ranks of a table.
    pub(in crate::engine) fn new(table: &Registered) -> Registrations {
        Registrations::of(Scope { number: 0, known: Arc::default(), whole: None }, table.clone())
    }

    /// Those of a part with these ranks, in this order.
    pub(super) fn part(&self, ranks: &[usize]) -> Registrations {
        let number = {
            let mut known = self.known();
            known.scopes += 1;
            known.scopes
        };
        let (known, whole) = (self.scope.known.clone(), Some(self.scope.clone()));
        Registrations::of(Scope { number, known, whole }, self.table.part(ranks))
    }

    fn of(scope: Scope, table: Registered) -> Registrations {
        lock(&scope.known).members.insert(scope.number, table.rows().to_vec());
        Registrations { scope: Arc::new(scope), table }
    }

    /// Where what they have registered begins.
    pub(in crate::engine) fn table(&self) -> &Registered {
        &self.table
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.scope.known)
    }

    /// How many allocations of this rank's all reach.
    pub(super) fn len(&self) -> usize {
        self.known().own.values().filter(|own| self.scope.reaches(own)).count()
    }

    /// How peers find an address of an allocation that is registered.
    pub(super) fn token(&self, pointer: &Pointer) -> Option<u64> {
        let known = self.known();
        let own = known.own.get(&pointer.start).filter(|own| own.buffer == pointer.buffer)?;
        let offset = pointer.address - pointer.start;
        let token = (u64::from(own.name.number) << TOKEN_NUMBER_SHIFT) + offset;
        self.scope.reaches(own).then_some(token)
    }

    /// Where the peers' allocations of this number begin here, by rank, of this rank's own nowhere;
    /// none unless all have one.
    pub(super) fn starts(&self, number: u16, rank: usize) -> Option<Vec<*mut u8>> {
        let known = self.known();
        let start = |(peer, row): (usize, &usize)| match peer == rank {
            true => Some(std::ptr::null_mut()),
            false => known.opened.get(&(*row, number)).map(|opened| opened.start as *mut u8),
        };
        self.table.rows().iter().enumerate().map(start).collect()
    }

    /// Enters an allocation. What is told of it.
    fn enter(&self, context: &Context, pointer: &Pointer) -> Told {
        let (mut told, mut known) = (Told::new(Round::Register), self.known());
        known.forget_freed(context);
        told.dropped = known.take_left(self.scope.number);
        match known.enter(self.scope.number, context, pointer) {
            Ok(added) => told.added = added,
            Err(why) => told.refused = Some(why),
        }
        told
    }

    /// Opens what a peer has added.
    ///
    /// # Safety
    /// None of its earlier allocations of that number is used any more.
    unsafe fn open(
        &self,
        stream: &Stream,
        peer: usize,
        (name, handle): &(Name, IpcHandle),
    ) -> Result<(), CudaError> {
        let (mut known, at) = (self.known(), (self.table.rows()[peer], name.number));
        let (serial, scope) = (name.serial, self.scope.number);
        if let Some(opened) = known.opened.get_mut(&at).filter(|opened| opened.serial == serial) {
            opened.scopes.push(scope);
            return Ok(());
        }
        let memory = IpcMemory::open(stream.context(), handle)?;
        let start = memory.buffer(handle);
        // SAFETY: by this function's contract.
        unsafe { self.table.enter(stream, (peer, usize::from(name.number)), start) }?;
        let (start, scopes) = (start as usize, vec![scope]);
        known.opened.insert(at, Opened { serial, scopes, start, _memory: memory });
        Ok(())
    }

    /// Closes what a peer has in this scope no more, unless it is in another.
    fn close(&self, peer: usize, name: Name) {
        let (mut known, at) = (self.known(), (self.table.rows()[peer], name.number));
        let Some(opened) = known.opened.get_mut(&at).filter(|one| one.serial == name.serial) else {
            return;
        };
        opened.scopes.retain(|scope| *scope != self.scope.number);
        if opened.scopes.is_empty() {
            known.opened.remove(&at);
        }
    }
}

impl Drop for Registrations {
    /// What only this communicator's ranks have is closed, also where its parts go on.
    fn drop(&mut self) {
        let (number, mut known) = (self.scope.number, self.known());
        let Known { members, opened, left, .. } = &mut *known;
        members.remove(&number);
        left.remove(&number);
        opened.retain(|(row, _), _| members.values().any(|rows| rows.contains(row)));
    }
}

impl Scope {
    /// Whether all ranks here have opened it: it was registered here, or in what this is a part of.
    fn reaches(&self, own: &Own) -> bool {
        let mut scopes = std::iter::successors(Some(self), |scope| scope.whole.as_deref());
        scopes.any(|scope| own.uses.contains_key(&scope.number))
    }
}

impl Drop for Scope {
    /// None of its calls is under way: nothing is reached by it any more.
    fn drop(&mut self) {
        let (number, mut known) = (self.number, lock(&self.known));
        known.own.retain(|_, own| own.uses.remove(&number).is_none() || !own.uses.is_empty());
        known.opened.retain(|_, opened| {
            opened.scopes.retain(|scope| *scope != number);
            !opened.scopes.is_empty()
        });
    }
}

fn lock(known: &Mutex<Known>) -> MutexGuard<'_, Known> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    /// Registers an allocation in a scope once more. What is told the others there, unless they
    /// have it.
    fn enter(
        &mut self,
        scope: u64,
        context: &Context,
        pointer: &Pointer,
    ) -> Result<Option<(Name, IpcHandle)>, String> {
        let known = self.own.get_mut(&pointer.start);
        if let Some(uses) = known.and_then(|own| own.uses.get_mut(&scope)) {
            *uses += 1;
            return Ok(None);
        }
        let handle = IpcHandle::of(context, pointer.start as *const u8, 1);
        let handle = handle.map_err(|error| error.to_string())?;
        let name = match self.own.get(&pointer.start) {
            Some(own) => own.name,
            None => self.name()?,
        };
        let new = || Own { name, buffer: pointer.buffer, uses: BTreeMap::new() };
        self.own.entry(pointer.start).or_insert_with(new).uses.insert(scope, 1);
        Ok(Some((name, handle)))
    }

    /// Numbers take turns, so that one comes again as late as can be.
    fn name(&mut self) -> Result<Name, String> {
        let taken: Vec<u16> = self.own.values().map(|own| own.name.number).collect();
        let numbers = 1..REGISTRATIONS as u16;
        let turns = (self.number + 1..numbers.end).chain(numbers);
        let number = turns.into_iter().find(|number| !taken.contains(number)).ok_or_else(|| {
            format!("{} allocations are registered already, and no more can be", REGISTRATIONS - 1)
        })?;
        self.serials += 1;
        self.number = number;
        Ok(Name { number, serial: self.serials })
    }

    /// Forgets allocations that are not there any more.
    fn forget_freed(&mut self, context: &Context) {
        let is_there = |start: &u64, own: &Own| {
            Pointer::of(context, *start as *const u8).is_ok_and(|now| now.buffer == own.buffer)
        };
        let freed: Vec<_> = self.own.extract_if(|start, own| !is_there(start, own)).collect();
        for (_, own) in freed {
            for scope in own.uses.into_keys() {
                self.tell_of(scope, own.name);
            }
        }
    }

    /// Registered once less in a scope.
    fn leave(&mut self, scope: u64, buffer: u64) {
        let Some((&start, own)) = self.own.iter_mut().find(|(_, own)| own.buffer == buffer) else {
            return;
        };
        let Some(uses) = own.uses.get_mut(&scope) else { return };
        *uses -= 1;
        if *uses > 0 {
            return;
        }
        own.uses.remove(&scope);
        let (name, is_last) = (own.name, own.uses.is_empty());
        self.tell_of(scope, name);
        if is_last {
            self.own.remove(&start);
        }
    }

    /// Has the others of a scope told that it has this no more, while anybody can be told.
    fn tell_of(&mut self, scope: u64, name: Name) {
        if self.members.contains_key(&scope) {
            self.left.entry(scope).or_default().push(name);
        }
    }

    fn take_left(&mut self, scope: u64) -> Vec<Name> {
        self.left.remove(&scope).unwrap_or_default()
    }
}

/// What goes through the rounds of one call.
struct Session<'a> {
    gpu: &'a mut GpuBackend,
    bootstrap: &'a mut dyn Bootstrap,
}

impl GpuBackend {
    /// [`Backend::register`](super::Backend::register).
    pub(super) fn register_memory(
        &mut self,
        bootstrap: &mut dyn Bootstrap,
        address: *const u8,
        len_bytes: usize,
    ) -> Result<Option<u64>, Error> {
        let mut session = self.session(bootstrap)?;
        let driver = session.gpu.gpu.context().device().driver();
        let registered = beside_captures(driver, || session.register(address, len_bytes));
        let rank = self.ranks.rank;
        match &registered {
            Ok(_) => tracing::info!(rank, ?address, len_bytes, "memory is registered"),
            Err(error) => tracing::warn!(rank, ?address, len_bytes, %error, "not registered"),
        }
        registered
    }

    /// [`Backend::deregister`](super::Backend::deregister).
    pub(super) fn deregister_memory(
        &mut self,
        bootstrap: &mut dyn Bootstrap,
        buffer: Option<u64>,
    ) -> Result<(), Error> {
        let mut session = self.session(bootstrap)?;
        let driver = session.gpu.gpu.context().device().driver();
        beside_captures(driver, || session.deregister(buffer))
    }

    /// [`Backend::leave`](super::Backend::leave).
    pub(super) fn leave_memory(&mut self, buffer: Option<u64>) {
        if let (Some(registrations), Some(buffer)) = (&self.registrations, buffer) {
            registrations.known().leave(registrations.scope.number, buffer);
        }
    }

    /// Waits until this rank's launches have ended.
    fn session<'a>(&'a mut self, bootstrap: &'a mut dyn Bootstrap) -> Result<Session<'a>, Error> {
        self.watch.wait();
        self.ranks.check()?;
        Ok(Session { gpu: self, bootstrap })
    }
}

impl Session<'_> {
    fn register(&mut self, address: *const u8, len_bytes: usize) -> Result<Option<u64>, Error> {
        let (told, buffer) = self.offer(address, len_bytes);
        let mut offers = Vec::new();
        let refused = match self.open_all(&told, &mut offers) {
            Ok(None) => return Ok(buffer),
            Ok(Some(refused)) => Ok(refused),
            Err(error) => Err(error),
        };
        self.undo(&offers, buffer);
        let (rank, reason) = refused?;
        self.tell(&Told::new(Round::Closed))?;
        Err(Error::NotRegistered { rank, reason })
    }

    /// Tells of this rank's memory, and opens the others'. Who could not do so, and why.
    fn open_all(
        &mut self,
        told: &Told,
        offers: &mut Vec<Told>,
    ) -> Result<Option<(usize, String)>, Error> {
        *offers = self.tell(told)?;
        self.close(offers);
        let mut answer = Told::new(Round::Opened);
        if refused(offers).is_none() {
            answer.refused = self.open(offers).err().map(|error| error.to_string());
        }
        let answers = self.tell(&answer)?;
        Ok(refused(offers).or_else(|| refused(&answers)))
    }

    fn deregister(&mut self, buffer: Option<u64>) -> Result<(), Error> {
        let mut told = Told::new(Round::Deregister);
        self.gpu.leave_memory(buffer);
        if let Some(registrations) = &self.gpu.registrations {
            told.dropped = registrations.known().take_left(registrations.scope.number);
        }
        let all = self.tell(&told)?;
        self.close(&all);
        self.tell(&Told::new(Round::Closed))?;
        Ok(())
    }

    /// What this rank tells of an address to be registered, and the driver's number of its
    /// allocation.
    fn offer(&mut self, address: *const u8, len_bytes: usize) -> (Told, Option<u64>) {
        let told = Told::new(Round::Register);
        if address.is_null() || self.gpu.heap.offset(address as usize, len_bytes).is_some() {
            return (told, None);
        }
        let context = self.gpu.gpu.context().clone();
        let pointer = Pointer::of(&context, address)
            .and_then(|pointer| pointer.check_device(&context, len_bytes).map(|()| pointer));
        match (pointer, &self.gpu.registrations) {
            (Ok(pointer), Some(registrations)) => {
                let told = registrations.enter(&context, &pointer);
                let buffer = told.refused.is_none().then_some(pointer.buffer);
                (told, buffer)
            }
            (Ok(_), None) => (told, None),
            (Err(error), _) => (Told { refused: Some(error.to_string()), ..told }, None),
        }
    }

    /// Opens what others have added.
    fn open(&mut self, offers: &[Told]) -> Result<(), CudaError> {
        let GpuBackend { gpu, ranks, registrations: Some(registrations), .. } = &*self.gpu else {
            return Ok(());
        };
        let nodes = self.bootstrap.nodes();
        for (peer, told) in offers.iter().enumerate() {
            let Some(added) = &told.added else { continue };
            // Nothing is reached in place across nodes.
            if peer == ranks.rank || !nodes.share(ranks.rank, peer) {
                continue;
            }
            // SAFETY: this communicator's calls have ended, and none begins before this one has.
            // Those of its whole and parts use the number only if the peer took its memory back in
            // the middle of a call, and had a thousand others registered since.
            unsafe { registrations.open(gpu.stream(), peer, added) }?;
        }
        Ok(())
    }

    /// Closes what others have dropped.
    fn close(&self, all: &[Told]) {
        let Some(registrations) = &self.gpu.registrations else { return };
        for (peer, told) in all.iter().enumerate() {
            told.dropped.iter().for_each(|name| registrations.close(peer, *name));
        }
    }

    /// Closes what others have added, and forgets what this rank has.
    fn undo(&mut self, offers: &[Told], buffer: Option<u64>) {
        let Some(registrations) = &self.gpu.registrations else { return };
        for (peer, told) in offers.iter().enumerate() {
            if let Some((name, _)) = told.added {
                registrations.close(peer, name);
            }
        }
        self.gpu.leave_memory(buffer);
    }

    /// Tells all ranks, and hears from all. An error ends the communicator.
    fn tell(&mut self, told: &Told) -> Result<Vec<Told>, Error> {
        let heard = self.try_tell(told);
        heard.inspect_err(|error| {
            self.gpu.ranks.end(error, self.gpu.ranks.last_entered());
        })
    }

    fn try_tell(&mut self, told: &Told) -> Result<Vec<Told>, Error> {
        let bytes =
            serde_json::to_vec(told).map_err(|error| unreadable(self.gpu.ranks.rank, &error))?;
        let deadline = deadline_in(self.gpu.ranks.poll.timeout());
        let all = self.bootstrap.all_gather(&bytes, deadline).map_err(|error| match error {
            Transport::Stopped(cause) => Error::from_cause(cause, "registering memory".to_owned()),
            other => other.into(),
        })?;
        let read = |(rank, bytes): (usize, Vec<u8>)| {
            let theirs: Told =
                serde_json::from_slice(&bytes).map_err(|error| unreadable(rank, &error))?;
            let out_of_step = || {
                let detail = format!("it is at {:?}, this rank at {:?}", theirs.round, told.round);
                Error::from(Transport::Stopped(Cause::Mismatch { rank, detail, ranks: Vec::new() }))
            };
            if theirs.round == told.round { Ok(theirs) } else { Err(out_of_step()) }
        };
        all.into_iter().enumerate().map(read).collect()
    }
}

fn unreadable(rank: usize, error: &serde_json::Error) -> Error {
    let detail = format!("what it tells of its memory cannot be read ({error})");
    Transport::Stopped(Cause::Mismatch { rank, detail, ranks: Vec::new() }).into()
}

/// The first rank on which it cannot be, and why.
fn refused(all: &[Told]) -> Option<(usize, String)> {
    all.iter().enumerate().find_map(|(rank, told)| Some((rank, told.refused.clone()?)))
}
