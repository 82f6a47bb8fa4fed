//! Tags that show a message to come from who holds a key, unchanged and in its turn.

use crate::Secret;

/// Length of a tag.
pub(crate) const TAG_BYTES: usize = blake3::OUT_LEN;

pub(crate) type Tag = [u8; TAG_BYTES];

/// One direction of one connection: makes the tags of its messages, or checks them. Each message
/// has a number, which goes into its tag, so that none can be repeated, left out or put elsewhere.
pub(crate) struct Seal {
    /// Never shown.
    key: [u8; blake3::KEY_LEN],
    next: u64,
}

/// Both directions, as one end has them.
#[derive(Debug)]
pub(crate) struct Seals {
    pub(crate) sending: Seal,
    pub(crate) receiving: Seal,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal(hidden)")
    }
}

impl Seal {
    /// For a connection that these nonces of both sides are of. The label says which direction it
    /// is.
    pub(crate) fn new(secret: &Secret, label: &str, nonces: &[&[u8]]) -> Seal {
        Seal { key: secret.prove(label, nonces), next: 0 }
    }

    /// The next message's tag.
    pub(crate) fn tag(&mut self, message: &[u8]) -> Tag {
        self.next_tag(message).into()
    }

    /// Whether this is the next message's tag. It is compared in constant time.
    pub(crate) fn check(&mut self, message: &[u8], tag: &Tag) -> bool {
        self.next_tag(message) == *tag
    }

    fn next_tag(&mut self, message: &[u8]) -> blake3::Hash {
        let mut mac = blake3::Hasher::new_keyed(&self.key);
        mac.update(&self.next.to_le_bytes());
        mac.update(message);
        self.next += 1;
        mac.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal(label: &str, nonce: &[u8]) -> Seal {
        Seal::new(&Secret::from_bytes([3; 32]), label, &[nonce])
    }

    #[test]
    fn a_tag_holds_for_its_message_in_its_turn() {
        let mut sending = seal("there", b"1");
        let [first, second] = [sending.tag(b"message"), sending.tag(b"message")];
        assert_ne!(first, second, "each has its number");
        let mut receiving = seal("there", b"1");
        assert!(receiving.check(b"message", &first));
        assert!(receiving.check(b"message", &second));
        assert!(!receiving.check(b"message", &second), "not again");
        assert!(!seal("there", b"1").check(b"massage", &first));
        assert!(!seal("there", b"1").check(b"message", &second), "not before the first");
        assert!(!seal("back", b"1").check(b"message", &first), "not in the other direction");
        assert!(!seal("there", b"2").check(b"message", &first), "not in another connection");
    }
}
