//! A wire under [`Conditions`]: what it is given is held back until a network so slow would have
//! carried it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;

use super::conditions::Conditions;
use crate::Region;
use crate::proxy::ledger::Ledger;
use crate::proxy::ports::{Content, PortNumber};
use crate::proxy::wire::{Counter, Wire, WireError};

/// What a message costs besides its content, and a counter at all.
const OVERHEAD_BYTES: usize = 24;

/// When what a node has sent so far will have left it: one word for all its ranks, which share the
/// adapter that is imitated.
#[derive(Clone, Debug)]
pub struct Egress {
    region: Arc<Region>,
    offset: usize,
}

impl Egress {
    /// The word at this offset of a region that all ranks of the node map, zero at first, and
    /// aligned.
    ///
    /// # Panics
    /// If it does not lie within the region.
    pub fn new(region: Arc<Region>, offset: usize) -> Egress {
        assert!(offset.is_multiple_of(8) && offset + 8 <= region.len_bytes());
        Egress { region, offset }
    }

    /// Takes so many bytes' turn, and returns when it is over, in nanoseconds of the system's
    /// monotonic clock.
    fn reserve(&self, len_bytes: usize, bytes_per_s: f64) -> u64 {
        let word = self.region.as_ptr().wrapping_add(self.offset).cast::<AtomicU64>();
        // SAFETY: within the region and aligned, by `new`; the region is mapped as long as this
        // object lives, and others use the word as an atomic, too.
        let word = unsafe { &*word };
        let (now, lasts) = (now_ns(), (len_bytes as f64 / bytes_per_s * 1e9) as u64);
        let mut over = 0;
        // The closure always has an answer.
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
            over = free.max(now) + lasts;
            Some(over)
        });
        over
    }
}

/// A wire that is slower, and ends sooner, than the one it is made of.
pub(super) struct Slowed {
    inner: Box<dyn Wire>,
    conditions: Conditions,
    egress: Option<Egress>,
    held: BinaryHeap<Reverse<Held>>,
    taken: u64,
    random: u64,
}

/// Ordered by when it goes on, then by when it came.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    due_ns: u64,
    number: u64,
    what: What,
}

enum What {
    Message(PortNumber, u64, Content),
    Told(PortNumber, Counter, u64),
}

impl PartialEq for What {
    fn eq(&self, _: &What) -> bool {
        true
    }
}
impl Eq for What {}
impl PartialOrd for What {
    fn partial_cmp(&self, other: &What) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for What {
    fn cmp(&self, _: &What) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl Slowed {
    pub(super) fn new(
        inner: Box<dyn Wire>,
        conditions: Conditions,
        egress: Option<Egress>,
        seed: u64,
    ) -> Slowed {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Slowed { inner, conditions, egress, held: BinaryHeap::new(), taken: 0, random }
    }

    fn hold(&mut self, len_bytes: usize, what: What) {
        let left_ns = match (&self.egress, self.conditions.bytes_per_s) {
            (Some(egress), Some(rate)) => egress.reserve(len_bytes + OVERHEAD_BYTES, rate),
            _ => now_ns(),
        };
        let delay = self.conditions.latency + self.conditions.jitter.mul_f64(self.fraction());
        self.taken += 1;
        let due_ns = left_ns + delay.as_nanos() as u64;
        self.held.push(Reverse(Held { due_ns, number: self.taken, what }));
    }

    /// The next of a sequence of numbers from 0 to 1 (xorshift).
    fn fraction(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Wire for Slowed {
    fn send(
        &mut self,
        port: PortNumber,
        message: u64,
        content: Content,
    ) -> Result<bool, WireError> {
        self.hold(content.len_bytes, What::Message(port, message, content));
        Ok(true)
    }

    fn tell(&mut self, port: PortNumber, counter: Counter, value: u64) -> Result<bool, WireError> {
        self.hold(0, What::Told(port, counter, value));
        Ok(true)
    }

    fn progress(&mut self, ledger: &mut Ledger) -> Result<bool, WireError> {
        let now = now_ns();
        let mut any = false;
        while let Some(Reverse(held)) = self.held.peek() {
            if held.due_ns > now {
                break;
            }
            let taken = match held.what {
                What::Message(port, message, content) => self.inner.send(port, message, content)?,
                What::Told(port, counter, value) => self.inner.tell(port, counter, value)?,
            };
            if !taken {
                break;
            }
            any = true;
            self.held.pop();
        }
        if self.conditions.cut_after.is_some_and(|after| self.taken >= after) {
            let source = std::io::Error::other("the link was to break here");
            return Err(WireError::Io { doing: "carrying more messages", source });
        }
        Ok(self.inner.progress(ledger)? || any)
    }

    fn arm(&mut self) -> Result<bool, WireError> {
        self.inner.arm()
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        self.inner.descriptors()
    }

    fn is_drained(&self) -> bool {
        self.held.is_empty() && self.inner.is_drained()
    }

    fn due(&self) -> Option<Instant> {
        let Reverse(first) = self.held.peek()?;
        let left = Duration::from_nanos(first.due_ns.saturating_sub(now_ns()));
        Some(Instant::now() + left)
    }
}

/// The system's monotonic clock, which all processes of a machine share.
fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `now`, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
