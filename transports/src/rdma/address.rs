//! Where a port is on its network, and what the two ends of a connection tell each other.

use std::fmt;
use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

use super::RdmaError;

/// What carries packets between two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkKind {
    /// InfiniBand: routed by local identifiers.
    InfiniBand,
    /// RDMA over Converged Ethernet, version 2: UDP packets, routed by IP addresses.
    RoceV2,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkKind::InfiniBand => "InfiniBand",
            LinkKind::RoceV2 => "RoCE v2",
        })
    }
}

/// A global identifier; of a RoCE v2 port its IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether it is an IPv4 address.
    pub fn is_ipv4(&self) -> bool {
        Ipv6Addr::from(self.0).to_ipv4_mapped().is_some()
    }

    /// Whether it is an IPv6 address that no router knows.
    pub fn is_link_local(&self) -> bool {
        Ipv6Addr::from(self.0).is_unicast_link_local()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from(self.0);
        match address.to_ipv4_mapped() {
            Some(address) => address.fmt(f),
            None => address.fmt(f),
        }
    }
}

/// A port, as the other end must know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortAddress {
    /// The device's name, for messages.
    pub device: String,
    /// What carries its packets.
    pub kind: LinkKind,
    /// The largest packet that it takes now.
    pub mtu_bytes: usize,
    /// The local identifier; 0 for RoCE.
    pub lid: u16,
    /// The global identifier, by which RoCE and routed InfiniBand send.
    pub gid: Gid,
}

impl PortAddress {
    /// Whether the two ends can be joined.
    ///
    /// # Errors
    /// [`RdmaError::KindDiffers`], [`RdmaError::GidDiffers`], [`RdmaError::MtuDiffers`].
    pub fn fits(&self, peer: &PortAddress) -> Result<(), RdmaError> {
        if self.kind != peer.kind {
            return Err(RdmaError::KindDiffers {
                device: self.device.clone(),
                ours: self.kind,
                peer_device: peer.device.clone(),
                theirs: peer.kind,
            });
        }
        if self.kind == LinkKind::RoceV2 && self.gid.is_ipv4() != peer.gid.is_ipv4() {
            return Err(RdmaError::GidDiffers {
                device: self.device.clone(),
                ours: self.gid,
                peer_device: peer.device.clone(),
                theirs: peer.gid,
            });
        }
        if self.mtu_bytes != peer.mtu_bytes {
            return Err(RdmaError::MtuDiffers {
                device: self.device.clone(),
                ours_bytes: self.mtu_bytes,
                peer_device: peer.device.clone(),
                theirs_bytes: peer.mtu_bytes,
            });
        }
        Ok(())
    }
}

/// One end of a queue pair, as the other end must know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePairAddress {
    /// The port that it uses.
    pub port: PortAddress,
    /// Its number there.
    pub number: u32,
    /// The number of the first packet that it sends: 24 bits.
    pub first_packet: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(kind: LinkKind, mtu_bytes: usize) -> PortAddress {
        PortAddress { device: format!("{kind}"), kind, mtu_bytes, lid: 0, gid: Gid([0; 16]) }
    }

    #[test]
    fn a_gid_reads_like_the_address_that_it_is() {
        let mut ipv4 = [0; 16];
        ipv4[10..].copy_from_slice(&[255, 255, 10, 0, 1, 2]);
        assert_eq!(Gid(ipv4).to_string(), "10.0.1.2");
        assert!(Gid(ipv4).is_ipv4() && !Gid(ipv4).is_link_local());
        let mut local = [0; 16];
        local[..2].copy_from_slice(&[0xfe, 0x80]);
        assert!(Gid(local).is_link_local() && !Gid(local).is_ipv4());
    }

    #[test]
    fn ends_that_differ_do_not_fit() {
        let small = port(LinkKind::RoceV2, 1024);
        small.fits(&small).expect("equal ends fit");
        let large = port(LinkKind::RoceV2, 4096).fits(&small).unwrap_err().to_string();
        assert!(large.contains("MTU of 4096") && large.contains("1024"), "{large}");
        let other = port(LinkKind::InfiniBand, 1024).fits(&small).unwrap_err().to_string();
        assert!(other.contains("one for RoCE v2"), "{other}");
        let mut routed = small.clone();
        routed.gid.0[10..].copy_from_slice(&[255, 255, 10, 0, 1, 2]);
        let gids = routed.fits(&small).unwrap_err().to_string();
        assert!(gids.contains("sends from 10.0.1.2") && gids.contains("from ::"), "{gids}");
    }
}
