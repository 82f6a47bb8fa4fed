//! Launches: any number of calls at once, of which one alone is a group of one.
//!
//! A launch's collectives become parts ([`parts`]): calls of one kind, type and op are contiguous
//! in a virtual buffer, which one program handles as if it were a call's. Its messages
//! ([`messages`]) come after them, as rounds of an exchange. All launch blocks are chained
//! ([`chain`]), and the machine runs the chain. Nothing is copied to make it contiguous: a table
//! says where each bucket really is, and each rank shares its own with its peers, in its heap. A
//! call alone is one block, and needs no tables.
//!
//! Launches are prepared once for each [`Identity`], which leaves out buffers and factors.

mod chain;
mod copied;
mod exchange;
mod footprint;
mod launch;
mod make;
mod messages;
mod parts;
mod plans;
mod rooms;

pub(super) use chain::{Buffers, Chain, Places, Source};
pub(in crate::engine) use footprint::Footprint;
pub(super) use launch::{Block, Prepared, has_tables};
pub(super) use make::Maker;
pub(super) use plans::{Plans, Ways, Whose};

use crate::call::{CheckedCall, Mix, Placed, Signature};
use crate::device::Heap;
use crate::error::Error;
use launch::Identity;
use oxccl_kernels::format as f;
use oxccl_plans::element::OpKind;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// All launches that are prepared.
#[derive(Debug)]
pub(super) struct Launches {
    /// Grows when addresses are reached otherwise than before; and how far it had come when calls
    /// were placed.
    changes: Arc<AtomicU64>,
    seen: u64,
    prepared: Vec<Prepared>,
    index: HashMap<u64, Vec<usize>, BuildHasherDefault<Mix>>,
    /// Of the calls at hand: what they are, and how peers find their buffers.
    asked: Vec<Signature>,
    tokens: Vec<f::Tokens>,
    /// Where peers read, of what copy engines carry out.
    places: Vec<Option<u64>>,
    /// Bits, and whether they are an address.
    factors: Vec<(u64, bool)>,
    /// How often tables have been pointed to buffers.
    placings: u64,
    /// Launches prepared so far.
    plans: u64,
}

impl Launches {
    /// None yet, of a communicator over this heap.
    pub(super) fn new(heap: &Heap) -> Launches {
        Launches {
            changes: heap.changes(),
            seen: 0,
            prepared: Vec::new(),
            index: HashMap::default(),
            asked: Vec::new(),
            tokens: Vec::new(),
            places: Vec::new(),
            factors: Vec::new(),
            placings: 0,
            plans: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.prepared.clear();
        self.index.clear();
    }

    /// Launches prepared so far.
    pub(super) fn plans(&self) -> u64 {
        self.plans
    }

    /// No calls are placed any more.
    pub(super) fn displace(&mut self) {
        self.prepared.iter_mut().for_each(|prepared| prepared.placed = 0);
    }

    /// The launch of calls that have been placed, if they still are.
    #[inline]
    pub(super) fn placed(&mut self, placed: Placed) -> Option<&mut Prepared> {
        if self.changes.load(Ordering::Acquire) != self.seen {
            return None;
        }
        self.just_placed(placed)
    }

    /// The same where they have just been placed.
    #[inline]
    pub(super) fn just_placed(&mut self, placed: Placed) -> Option<&mut Prepared> {
        self.prepared.get_mut(placed.at).filter(|prepared| prepared.placed == placed.placing)
    }

    /// Finds the launch of these calls among the prepared ones, or prepares it, and points its
    /// tables to their buffers.
    pub(super) fn place(
        &mut self,
        calls: &[CheckedCall],
        grouped: bool,
        maker: &mut Maker<'_>,
    ) -> Result<Placed, Error> {
        let changes = self.changes.load(Ordering::Acquire);
        if changes != self.seen {
            self.displace();
            self.seen = changes;
        }
        self.look_at(calls, grouped, maker)?;
        let is_lone = is_lone(calls, grouped);
        let hash = hash(&(&self.asked, is_lone));
        let at = match self.known(hash, calls, is_lone) {
            Some(at) => at,
            None => self.prepare(hash, calls, is_lone, maker)?,
        };
        let prepared = &mut self.prepared[at];
        prepared.set_factors(calls, &self.places);
        let buffers = Buffers { calls, tokens: &self.tokens };
        maker.backend.place(prepared, buffers)?;
        self.placings += 1;
        prepared.placed = self.placings;
        Ok(Placed { at, placing: self.placings })
    }

    /// What the calls are, and where their buffers.
    fn look_at(
        &mut self,
        calls: &[CheckedCall],
        grouped: bool,
        maker: &Maker<'_>,
    ) -> Result<(), Error> {
        self.asked.clear();
        self.tokens.clear();
        self.places.clear();
        self.factors.clear();
        let is_lone = is_lone(calls, grouped);
        maker.backend.look_again();
        for call in calls {
            let (tokens, windows) = maker.backend.find(call)?;
            let by_copies = is_lone && copied::algorithm(call, maker.config).is_some();
            let place = by_copies.then(|| maker.backend.place_of(call)).flatten();
            let signature =
                call.signature(windows || place.is_some(), place.is_some(), maker.config);
            self.places.push(place);
            let factor_bits = self.factor_number(call);
            self.asked.push(Signature { factor_bits, ..signature });
            self.tokens.push(tokens);
        }
        Ok(())
    }

    /// The number of a call's factor among those of the launch, from 1; 0 where it has none.
    fn factor_number(&mut self, call: &CheckedCall) -> u64 {
        if call.op != OpKind::PreMulSum {
            return 0;
        }
        let factor = (call.factor_bits, call.factor_at);
        let known = self.factors.iter().position(|known| *known == factor);
        let at = known.unwrap_or_else(|| {
            self.factors.push(factor);
            self.factors.len() - 1
        });
        at as u64 + 1
    }

    fn known(&self, hash: u64, calls: &[CheckedCall], is_lone: bool) -> Option<usize> {
        let is_it = |at: &usize| {
            let identity = &self.prepared[*at].identity;
            let counts = calls.iter().map(|call| &call.counts);
            identity.is_lone == is_lone
                && identity.signatures == self.asked
                && identity.counts.iter().eq(counts)
        };
        self.index.get(&hash)?.iter().copied().find(is_it)
    }

    #[cold]
    fn prepare(
        &mut self,
        hash: u64,
        calls: &[CheckedCall],
        is_lone: bool,
        maker: &mut Maker<'_>,
    ) -> Result<usize, Error> {
        let counts = calls.iter().map(|call| call.counts.clone()).collect();
        let identity = Identity { signatures: self.asked.clone(), counts, is_lone };
        let prepared = match is_lone {
            true if identity.signatures[0].copies => maker.copied(&calls[0], identity)?,
            true => maker.lone(&calls[0], identity)?,
            false => maker.group(calls, identity)?,
        };
        self.plans += 1;
        self.prepared.push(prepared);
        let at = self.prepared.len() - 1;
        self.index.entry(hash).or_default().push(at);
        Ok(at)
    }
}

/// Whether these are one call that is carried out as such. What is made as a group is one on all
/// ranks, since some may have messages beside the call; and an all-to-all of which each rank knows
/// its own counts is made of messages.
fn is_lone(calls: &[CheckedCall], grouped: bool) -> bool {
    matches!(calls, [call] if !grouped && !messages::is_exchange(call))
}

fn hash(of: &impl Hash) -> u64 {
    let mut mix = Mix::default();
    of.hash(&mut mix);
    mix.finish()
}
