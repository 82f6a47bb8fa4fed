//! The 32 bits that come with a request: what it is, and for which port.

use crate::proxy::{Counter, PortNumber};

/// The most parts that a message is cut into, one a path.
pub(super) const PARTS_LIMIT: usize = 8;

/// What a request brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brought {
    /// A part of a message, in its place.
    Part {
        port: PortNumber,
        /// The last bits of the message's number: more than a port has slots.
        message: u8,
        /// How many parts there are, each on a path of its own.
        parts: usize,
    },
    /// The value of a counter, in the receive buffer.
    Value { port: PortNumber, counter: Counter },
    /// How much may be sent, in the receive buffer.
    Credit,
}

const KIND_SHIFT: u32 = 30;
const PARTS_SHIFT: u32 = 24;
const MESSAGE_SHIFT: u32 = 16;

impl Brought {
    /// From the top: 2 bits for the kind, 3 unused, 3 for the parts less one, 8 of the message's
    /// number, 16 for the port.
    pub(super) fn encode(self) -> u32 {
        match self {
            Brought::Part { port, message, parts } => {
                debug_assert!((1..=PARTS_LIMIT).contains(&parts));
                let parts = (parts as u32 - 1) << PARTS_SHIFT;
                parts | u32::from(message) << MESSAGE_SHIFT | u32::from(port)
            }
            Brought::Value { port, counter: Counter::Consumed } => {
                1 << KIND_SHIFT | u32::from(port)
            }
            Brought::Value { port, counter: Counter::Raised } => 2 << KIND_SHIFT | u32::from(port),
            Brought::Credit => 3 << KIND_SHIFT,
        }
    }

    /// Every number means something: a peer's mistakes show in the port and the message.
    pub(super) fn decode(immediate: u32) -> Brought {
        let port = immediate as PortNumber;
        match immediate >> KIND_SHIFT {
            0 => Brought::Part {
                port,
                message: (immediate >> MESSAGE_SHIFT) as u8,
                parts: (immediate >> PARTS_SHIFT) as usize % PARTS_LIMIT + 1,
            },
            1 => Brought::Value { port, counter: Counter::Consumed },
            2 => Brought::Value { port, counter: Counter::Raised },
            _ => Brought::Credit,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_read(port: u16, message: u8, parts in 1..=PARTS_LIMIT) {
            for brought in [
                Brought::Part { port, message, parts },
                Brought::Value { port, counter: Counter::Consumed },
                Brought::Value { port, counter: Counter::Raised },
                Brought::Credit,
            ] {
                prop_assert_eq!(Brought::decode(brought.encode()), brought);
            }
        }

        #[test]
        fn all_numbers_can_be_read(immediate: u32) {
            if let Brought::Part { parts, .. } = Brought::decode(immediate) {
                prop_assert!((1..=PARTS_LIMIT).contains(&parts));
            }
        }
    }
}
