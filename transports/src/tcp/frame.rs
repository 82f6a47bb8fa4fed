//! What a socket between two ranks carries: headers of fixed length, some with bytes of a message
//! behind them.
//!
//! ```text
//! 0  kind     1: a part of a message; 2: a count of consumed messages; 3: a raised counter
//! 1  zero
//! 2  port     16 bits
//! 4  length   32 bits: how many bytes follow
//! 8  offset   32 bits: where they belong in the message's content
//! 12 content  32 bits: how long that is
//! 16 value    64 bits: the message's number, or the counter's value
//! ```
//!
//! All are little-endian. The version was compared when the sockets were made. Where frames are
//! sealed, a tag of 32 bytes follows the header, and another one the bytes behind it.

use crate::proxy::{Counter, PortNumber, WireError};

/// Length of a header.
pub(super) const HEADER_BYTES: usize = 24;

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// Bytes of a message follow.
    Part { port: PortNumber, message: u64, offset: u32, len_bytes: u32, content_bytes: u32 },
    /// A counter's value.
    Told { port: PortNumber, counter: Counter, value: u64 },
}

const PART: u8 = 1;
const CONSUMED: u8 = 2;
const RAISED: u8 = 3;

impl Frame {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let (kind, port, [len_bytes, offset, content_bytes], value) = match *self {
            Frame::Part { port, message, offset, len_bytes, content_bytes } => {
                (PART, port, [len_bytes, offset, content_bytes], message)
            }
            Frame::Told { port, counter: Counter::Consumed, value } => {
                (CONSUMED, port, [0; 3], value)
            }
            Frame::Told { port, counter: Counter::Raised, value } => (RAISED, port, [0; 3], value),
        };
        let mut header = [0; HEADER_BYTES];
        header[0] = kind;
        header[2..4].copy_from_slice(&port.to_le_bytes());
        header[4..8].copy_from_slice(&len_bytes.to_le_bytes());
        header[8..12].copy_from_slice(&offset.to_le_bytes());
        header[12..16].copy_from_slice(&content_bytes.to_le_bytes());
        header[16..].copy_from_slice(&value.to_le_bytes());
        header
    }

    /// Reads a header. What it names is checked against the ledger later.
    pub(super) fn decode(header: &[u8; HEADER_BYTES]) -> Result<Frame, WireError> {
        let number = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let port = PortNumber::from_le_bytes([header[2], header[3]]);
        let value = u64::from(number(16)) | u64::from(number(20)) << 32;
        let (len_bytes, offset, content_bytes) = (number(4), number(8), number(12));
        let frame = match header[0] {
            PART => Frame::Part { port, message: value, offset, len_bytes, content_bytes },
            CONSUMED => Frame::Told { port, counter: Counter::Consumed, value },
            RAISED => Frame::Told { port, counter: Counter::Raised, value },
            kind => return Err(WireError::Protocol(format!("a frame of kind {kind}"))),
        };
        let fits = match frame {
            Frame::Part { .. } => {
                len_bytes > 0
                    && offset.checked_add(len_bytes).is_some_and(|end| end <= content_bytes)
            }
            Frame::Told { .. } => (len_bytes, offset, content_bytes) == (0, 0, 0),
        };
        if !fits || header[1] != 0 {
            let detail = format!("{len_bytes} bytes at {offset} of {content_bytes}");
            return Err(WireError::Protocol(detail));
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_decoded_encodes_to_the_same(header in prop::array::uniform24(0u8..4)) {
            if let Ok(frame) = Frame::decode(&header) {
                prop_assert_eq!(frame.encode(), header);
            }
        }

        #[test]
        fn parts_survive(port: u16, message: u64, offset in 0..1u32 << 30, len in 1..1u32 << 30) {
            let content_bytes = offset + len;
            let frame = Frame::Part { port, message, offset, len_bytes: len, content_bytes };
            prop_assert_eq!(Frame::decode(&frame.encode()).unwrap(), frame);
        }
    }
}
