//! What the two ends of a wire tell each other over its socket before they are joined, and whether
//! they go together.

use serde::{Deserialize, Serialize};

use super::address::QueuePairAddress;
use super::memory::RemoteMemory;
use crate::proxy::WireError;

/// Of what wires send each other.
pub(super) const VERSION: u16 = 2;

/// What an end tells.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) version: u16,
    /// The length of the ports' memory, whose layout both share.
    pub(super) ports_bytes: u64,
    pub(super) paths: Vec<PathOffer>,
}

/// What a peer must know of a path.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PathOffer {
    pub(super) queue_pair: QueuePairAddress,
    pub(super) memory: RemoteMemory,
    /// Requests that its receive queue takes.
    pub(super) depth: u32,
}

impl Offer {
    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("plain numbers and texts can be written")
    }

    /// What the other end has told, if it goes together with this one's.
    pub(super) fn read(&self, bytes: &[u8]) -> Result<Offer, WireError> {
        let unreadable = |error| WireError::Protocol(format!("its RDMA addresses: {error}"));
        let theirs: Offer = postcard::from_bytes(bytes).map_err(unreadable)?;
        let unfit = |what, ours: u64, theirs: u64| {
            let same = "start all ranks with the same release and settings";
            Err(WireError::Unfit(format!("{what}: {ours} here and {theirs} there; {same}")))
        };
        if theirs.version != self.version {
            return unfit("RDMA protocol", self.version.into(), theirs.version.into());
        }
        if theirs.paths.len() != self.paths.len() {
            let (ours, theirs) = (self.paths.len() as u64, theirs.paths.len() as u64);
            return unfit("queue pairs (devices times queue pairs on each)", ours, theirs);
        }
        if theirs.ports_bytes != self.ports_bytes {
            return unfit("bytes of connections", self.ports_bytes, theirs.ports_bytes);
        }
        if !theirs.paths.iter().all(|path| path.memory.is_as_long_as(theirs.ports_bytes)) {
            return Err(WireError::Protocol("memory that its ports do not fit into".to_owned()));
        }
        Ok(theirs)
    }
}

/// What a peer that has proven the secret may send as its offer, for fuzzing: see [`crate::fuzz`].
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn link_offers(data: &[u8]) {
    let own = example();
    let Ok(theirs) = own.read(data) else { return };
    let len_bytes = own.ports_bytes as usize;
    for (ours, theirs) in own.paths.iter().zip(&theirs.paths) {
        if ours.queue_pair.port.fits(&theirs.queue_pair.port).is_ok() {
            assert_eq!(ours.queue_pair.port.mtu_bytes, theirs.queue_pair.port.mtu_bytes);
        }
        assert!(theirs.memory.at(0, len_bytes).is_ok());
        assert!(theirs.memory.at(1, len_bytes).is_err());
    }
}

/// One in order.
#[cfg(any(test, feature = "fuzzing"))]
fn example() -> Offer {
    use super::address::{Gid, LinkKind, PortAddress};
    let (device, kind) = ("mlx5_0".to_owned(), LinkKind::RoceV2);
    let port = PortAddress { device, kind, mtu_bytes: 4096, lid: 0, gid: Gid([1; 16]) };
    let queue_pair = QueuePairAddress { port, number: 7, first_packet: 9 };
    let memory = RemoteMemory { start: 1 << 40, len_bytes: 1 << 20, key: 5 };
    let path = PathOffer { queue_pair, memory, depth: 256 };
    Offer { version: VERSION, ports_bytes: 1 << 20, paths: vec![path] }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// One in order, but for a byte or two.
        #[test]
        fn changed_offers_are_survived(
            changes in prop::collection::vec((0usize..80, any::<u8>()), 0..3),
        ) {
            let mut bytes = example().encode();
            for (at, byte) in changes {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            link_offers(&bytes);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let own = example();
        assert!(own.read(&own.encode()).is_ok());
        let refused = |change: fn(&mut Offer)| {
            let mut theirs = example();
            change(&mut theirs);
            own.read(&theirs.encode()).unwrap_err().to_string()
        };
        assert!(refused(|offer| offer.version = 1).contains("RDMA protocol: 2 here and 1 there"));
        assert!(refused(|offer| offer.paths.clear()).contains("1 here and 0 there"));
        assert!(refused(|offer| offer.ports_bytes += 1).contains("bytes of connections"));
        let memory = "memory that its ports do not fit into";
        assert!(refused(|offer| offer.paths[0].memory.len_bytes -= 1).contains(memory));
        assert!(refused(|offer| offer.paths[0].memory.start = u64::MAX).contains(memory));
    }
}
