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

use super::GpuBackend;
use crate::device::REGISTRATIONS;
use crate::error::Error;
use oxccl_kernels::format::TOKEN_NUMBER_SHIFT;
use oxccl_transports::cuda::{Context, IpcHandle, IpcMemory, Pointer, beside_captures};
use oxccl_transports::{Bootstrap, Cause, CudaError, Error as Transport, deadline_in};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// What a rank has registered, and what it has opened of others.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    /// By where they begin.
    own: HashMap<u64, Own>,
    /// Numbers that this rank uses no more, of which the others have not heard.
    left: Vec<u16>,
    /// By rank and number.
    opened: BTreeMap<(usize, u16), IpcMemory>,
}

/// An allocation of this rank's.
#[derive(Debug)]
struct Own {
    number: u16,
    /// The driver's number of it.
    buffer: u64,
    /// How often it is registered.
    uses: usize,
}

/// What a rank tells all in a round.
#[derive(Serialize, Deserialize)]
struct Told {
    round: Round,
    /// Numbers that it uses no more.
    dropped: Vec<u16>,
    /// What is new.
    added: Option<(u16, IpcHandle)>,
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
    /// How many allocations of this rank's there are.
    pub(super) fn len(&self) -> usize {
        self.own.len()
    }

    /// How peers find an address of an allocation that is registered.
    pub(super) fn token(&self, pointer: &Pointer) -> Option<u64> {
        let own = self.own.get(&pointer.start).filter(|own| own.buffer == pointer.buffer)?;
        Some((u64::from(own.number) << TOKEN_NUMBER_SHIFT) + (pointer.address - pointer.start))
    }

    /// Enters an allocation. What is told of it.
    fn enter(&mut self, context: &Context, pointer: &Pointer) -> Told {
        let mut told = Told::new(Round::Register);
        told.dropped = self.forget_freed(context);
        told.dropped.append(&mut self.left);
        if let Some(own) = self.own.get_mut(&pointer.start) {
            own.uses += 1;
            return told;
        }
        match self.number_and_handle(context, pointer) {
            Ok((number, handle)) => {
                let own = Own { number, buffer: pointer.buffer, uses: 1 };
                self.own.insert(pointer.start, own);
                told.added = Some((number, handle));
            }
            Err(why) => told.refused = Some(why),
        }
        told
    }

    fn number_and_handle(
        &self,
        context: &Context,
        pointer: &Pointer,
    ) -> Result<(u16, IpcHandle), String> {
        let number = self.number().ok_or_else(|| {
            format!("{} allocations are registered already, and no more can be", REGISTRATIONS - 1)
        })?;
        let handle = IpcHandle::of(context, pointer.start as *const u8, 1);
        Ok((number, handle.map_err(|error| error.to_string())?))
    }

    /// Allocations that are not there any more: their numbers.
    fn forget_freed(&mut self, context: &Context) -> Vec<u16> {
        let is_there = |start: &u64, own: &Own| {
            Pointer::of(context, *start as *const u8).is_ok_and(|now| now.buffer == own.buffer)
        };
        let freed = self.own.extract_if(|start, own| !is_there(start, own));
        freed.map(|(_, own)| own.number).collect()
    }

    /// The smallest that is free.
    fn number(&self) -> Option<u16> {
        let taken: Vec<u16> = self.own.values().map(|own| own.number).collect();
        (1..REGISTRATIONS as u16).find(|number| !taken.contains(number))
    }

    /// Registered once less. The number of the allocation, if that was the last time.
    fn leave(&mut self, buffer: u64) -> Option<u16> {
        let (&start, own) = self.own.iter_mut().find(|(_, own)| own.buffer == buffer)?;
        own.uses -= 1;
        if own.uses > 0 {
            return None;
        }
        self.own.remove(&start).map(|own| own.number)
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
        if let (Some(registrations), Some(buffer)) = (&mut self.registrations, buffer) {
            let left = registrations.leave(buffer);
            registrations.left.extend(left);
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
        let offers = self.tell(&told)?;
        self.close(&offers);
        let mut answer = Told::new(Round::Opened);
        if refused(&offers).is_none() {
            answer.refused = self.open(&offers).err().map(|error| error.to_string());
        }
        let answers = self.tell(&answer)?;
        let Some((rank, reason)) = refused(&offers).or_else(|| refused(&answers)) else {
            return Ok(buffer);
        };
        self.undo(&offers, buffer);
        self.tell(&Told::new(Round::Closed))?;
        Err(Error::NotRegistered { rank, reason })
    }

    fn deregister(&mut self, buffer: Option<u64>) -> Result<(), Error> {
        let mut told = Told::new(Round::Deregister);
        self.gpu.leave_memory(buffer);
        if let Some(registrations) = &mut self.gpu.registrations {
            told.dropped.append(&mut registrations.left);
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
        match (pointer, &mut self.gpu.registrations) {
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
        let GpuBackend { gpu, ranks, registrations: Some(registrations), .. } = &mut *self.gpu
        else {
            return Ok(());
        };
        let nodes = self.bootstrap.nodes();
        for (peer, told) in offers.iter().enumerate() {
            let Some((number, handle)) = &told.added else { continue };
            // Nothing is reached in place across nodes.
            if peer == ranks.rank || !nodes.share(ranks.rank, peer) {
                continue;
            }
            let memory = IpcMemory::open(gpu.context(), handle)?;
            let at = (peer, usize::from(*number));
            // SAFETY: this rank's calls have ended, and none begins before this one has.
            unsafe { gpu.tables().enter_registered(gpu.stream(), at, memory.buffer(handle)) }?;
            registrations.opened.insert((peer, *number), memory);
        }
        Ok(())
    }

    /// Closes what others have dropped.
    fn close(&mut self, all: &[Told]) {
        let Some(registrations) = &mut self.gpu.registrations else { return };
        for (peer, told) in all.iter().enumerate() {
            for number in &told.dropped {
                registrations.opened.remove(&(peer, *number));
            }
        }
    }

    /// Closes what others have added, and forgets what this rank has.
    fn undo(&mut self, offers: &[Told], buffer: Option<u64>) {
        let Some(registrations) = &mut self.gpu.registrations else { return };
        for (peer, told) in offers.iter().enumerate() {
            if let Some((number, _)) = told.added {
                registrations.opened.remove(&(peer, number));
            }
        }
        if let Some(buffer) = buffer {
            registrations.leave(buffer);
        }
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
