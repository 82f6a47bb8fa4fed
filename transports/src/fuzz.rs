//! All that reads bytes which came over a socket, as functions of bytes. They must neither panic
//! nor run away, whatever the bytes are. libFuzzer drives them where it can be had (`fuzz/`); the
//! tests do on every machine, with bytes made at random and with messages in which some are
//! changed.

use crate::{proxy, rdma, rendezvous, shm, tcp};

/// A function that takes bytes from a socket, and its name.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: &[Target] = &[
    ("from_ranks", rendezvous::from_ranks),
    ("from_server", rendezvous::from_server),
    ("invitation", shm::read_invitation),
    ("link_frames", tcp::link_frames),
    ("link_greetings", proxy::link_greetings),
    ("link_offers", rdma::link_offers),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_survived(data in prop::collection::vec(any::<u8>(), 0..400)) {
            TARGETS.iter().for_each(|(_, target)| target(&data));
        }

        /// Bytes that are small numbers are tags, ranks and lengths more often.
        #[test]
        fn small_numbers_are_survived(data in prop::collection::vec(0u8..20, 0..400)) {
            TARGETS.iter().for_each(|(_, target)| target(&data));
        }
    }

    #[test]
    fn every_target_has_a_file() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/fuzz_targets");
        for (name, _) in TARGETS {
            let text = std::fs::read_to_string(format!("{folder}/{name}.rs")).unwrap();
            assert!(text.contains(&format!("\"{name}\"")), "{name}");
        }
    }
}
