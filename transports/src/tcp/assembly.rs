//! Messages that come in parts, over several sockets.

use std::collections::HashMap;

use crate::proxy::{Ledger, PortNumber, WireError};

/// The messages of which parts are missing.
#[derive(Default)]
pub(super) struct Assembly(HashMap<(PortNumber, u64), Missing>);

struct Missing {
    content_bytes: u32,
    /// Bytes that no part has announced.
    unannounced: u32,
    /// Parts that are announced and not read to their end.
    reading: u32,
}

impl Assembly {
    /// A part has been announced.
    pub(super) fn begin(
        &mut self,
        port: PortNumber,
        message: u64,
        len_bytes: u32,
        content_bytes: u32,
    ) -> Result<(), WireError> {
        let new = Missing { content_bytes, unannounced: content_bytes, reading: 0 };
        let missing = self.0.entry((port, message)).or_insert(new);
        if missing.content_bytes != content_bytes || len_bytes > missing.unannounced {
            let detail = format!(
                "a part of {len_bytes} of {content_bytes} bytes, where {} of {} are missing",
                missing.unannounced, missing.content_bytes
            );
            return Err(WireError::Protocol(detail));
        }
        missing.unannounced -= len_bytes;
        missing.reading += 1;
        Ok(())
    }

    /// A part has been read to its end. With the last one, the message has arrived.
    pub(super) fn came(
        &mut self,
        ledger: &mut Ledger,
        port: PortNumber,
        message: u64,
    ) -> Result<(), WireError> {
        let Some(missing) = self.0.get_mut(&(port, message)) else { return Ok(()) };
        missing.reading -= 1;
        if missing.reading == 0 && missing.unannounced == 0 {
            self.0.remove(&(port, message));
            return ledger.arrived(port, message);
        }
        Ok(())
    }
}
