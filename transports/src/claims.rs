//! What the ranks of a node are about to reserve. Each looks at what memory is left before it takes
//! its own, and what two ranks see is the same memory: so each says first what it wants, and holds
//! the wishes of all against what is left.

use crate::Region;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The sum of what has been claimed and not been taken, in memory that all ranks of the node map. A
/// rank that dies leaves its claim, which then stands in the way of no communicator but its own.
#[derive(Clone, Debug)]
pub struct Claims {
    region: Arc<Region>,
    offset: usize,
}

impl Claims {
    /// The word at this offset of a region that all ranks of the node map, zero at first, and
    /// aligned.
    ///
    /// # Panics
    /// If it does not lie within the region.
    pub fn new(region: Arc<Region>, offset: usize) -> Claims {
        let end = offset.checked_add(size_of::<AtomicU64>());
        assert!(offset.is_multiple_of(8) && end.is_some_and(|end| end <= region.len_bytes()));
        Claims { region, offset }
    }

    fn word(&self) -> &AtomicU64 {
        let word = self.region.as_ptr().wrapping_add(self.offset).cast::<AtomicU64>();
        // SAFETY: within the region and aligned, by `new`; the region is mapped as long as this
        // object lives, and others use the word as an atomic, too.
        unsafe { &*word }
    }

    /// Claims so many bytes.
    pub(crate) fn claim(&self, len_bytes: u64) -> Claim<'_> {
        self.word().fetch_add(len_bytes, Ordering::SeqCst);
        Claim { claims: self, left: len_bytes }
    }
}

/// What is left of a claim; dropped, it is given up.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    claims: &'a Claims,
    left: u64,
}

impl Claim<'_> {
    /// What all ranks of the node claim, this one included.
    pub(crate) fn of_all(&self) -> u64 {
        self.claims.word().load(Ordering::SeqCst).max(self.left)
    }

    /// So many bytes have been taken: the system counts them from here on.
    pub(crate) fn settle(&mut self, len_bytes: u64) {
        let settled = len_bytes.min(self.left);
        self.left -= settled;
        self.claims.word().fetch_sub(settled, Ordering::SeqCst);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.settle(self.left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_add_up_until_they_are_settled_or_given_up() {
        let claims = Claims::new(Arc::new(Region::create("test", 4096).unwrap()), 64);
        let mut one = claims.claim(100);
        let other = claims.clone();
        let two = other.claim(11);
        assert_eq!((one.of_all(), two.of_all()), (111, 111));
        one.settle(60);
        assert_eq!(two.of_all(), 51);
        drop(one);
        assert_eq!(two.of_all(), 11);
        drop(two);
        assert_eq!(claims.claim(0).of_all(), 0);
    }
}
