//! Numbers that come in any order within a window, and are passed on in theirs.

use super::ports::SLOTS_LIMIT;

/// Which numbers have come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InOrder {
    /// All below this have.
    next: u64,
    /// Bit i: `next + 1 + i` has.
    early: u64,
}

impl InOrder {
    /// All numbers below this have come.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Whether this number may come: it has not yet, and it is within the window.
    pub(super) fn expects(&self, number: u64) -> bool {
        match number.checked_sub(self.next) {
            None => false,
            Some(0) => true,
            Some(ahead) => ahead <= u64::from(SLOTS_LIMIT) && (self.early >> (ahead - 1)) & 1 == 0,
        }
    }

    /// Notes a number that is expected.
    pub(super) fn note(&mut self, number: u64) {
        debug_assert!(self.expects(number));
        if number > self.next {
            self.early |= 1 << (number - self.next - 1);
            return;
        }
        let following = self.early.trailing_ones();
        self.next += 1 + u64::from(following);
        self.early = self.early.checked_shr(following + 1).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_whole_window_may_come_backwards() {
        let mut order = InOrder::default();
        for number in (0..=u64::from(SLOTS_LIMIT)).rev() {
            assert_eq!(order.next(), 0);
            assert!(order.expects(number));
            order.note(number);
            assert!(!order.expects(number));
        }
        assert_eq!(order.next(), u64::from(SLOTS_LIMIT) + 1);
        assert!(!order.expects(order.next() + u64::from(SLOTS_LIMIT) + 1));
    }

    proptest! {
        #[test]
        fn each_number_counts_once(numbers in prop::collection::vec(0u64..100, 0..300)) {
            let mut order = InOrder::default();
            let mut come = std::collections::BTreeSet::new();
            for number in numbers {
                if order.expects(number) {
                    prop_assert!(come.insert(number));
                    order.note(number);
                }
                let next = (0..).find(|n| !come.contains(n)).unwrap_or(0);
                prop_assert_eq!(order.next(), next);
            }
        }
    }
}
