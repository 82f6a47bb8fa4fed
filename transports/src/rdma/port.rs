//! A port of a device, and which ports a rank uses.

use std::fs;
use std::sync::Arc;

use nix::net::if_::if_nametoindex;

use super::address::{Gid, LinkKind, PortAddress};
use super::device::{Device, device_names};
use super::near::{PciPlace, nearest};
use super::{RdmaError, sys};

/// A port that is up, with the address that it sends from.
#[derive(Clone, Debug)]
pub struct Port {
    pub(super) device: Arc<Device>,
    pub(super) number: u8,
    pub(super) gid_index: u8,
    address: PortAddress,
    /// Gbit/s.
    speed: u32,
    net_device: Option<String>,
}

/// Every port that this process can use, the fastest first, those of one speed in the order of
/// their names; with `only`, those of these devices, in that order, whatever their namespace. Each
/// sends from the address at `gid_index`, or from the one that others reach best.
///
/// A port of whose net device this network namespace knows nothing is left out: the kernel shows
/// adapters to every namespace, and packets would leave from another one's address.
///
/// # Errors
/// [`RdmaError::NoLibrary`], [`RdmaError::NoDevice`]; [`RdmaError::NoUsablePort`] says for each
/// port why not. A device in `only` that cannot be used is an error, too, even if others can.
pub fn usable_ports(
    only: Option<&[String]>,
    gid_index: Option<u8>,
) -> Result<Vec<Port>, RdmaError> {
    if let Some(names) = only {
        let ports = names.iter().map(|name| ports_of(name, gid_index, Ok));
        let ports = ports.collect::<Result<Vec<_>, _>>()?;
        return Ok(ports.into_iter().flatten().collect());
    }
    let names = device_names()?;
    if names.is_empty() {
        return Err(RdmaError::NoDevice);
    }
    let (mut ports, mut why) = (Vec::new(), Vec::new());
    for name in &names {
        match ports_of(name, gid_index, Port::in_this_namespace) {
            Ok(found) => ports.extend(found),
            Err(error) => why.push(error.to_string()),
        }
    }
    if ports.is_empty() {
        return Err(RdmaError::NoUsablePort { why });
    }
    // Stable, so that names keep their order.
    ports.sort_by_key(|port| std::cmp::Reverse(port.speed));
    Ok(ports)
}

/// Which ports one of so many ranks of a node uses: of the fastest as many as there are for it, or
/// one that it shares. `near`: where its GPU is, whose nearest they are to be.
///
/// # Panics
/// If there are no ports, or no such rank.
pub fn share(ports: Vec<Port>, place: usize, ranks: usize, near: Option<&PciPlace>) -> Vec<Port> {
    assert!(place < ranks, "place {place} of {ranks}");
    let fastest = ports.iter().map(|port| port.speed).max().expect("there are ports");
    let ports: Vec<Port> = ports.into_iter().filter(|port| port.speed == fastest).collect();
    let place_of = |port: &Port| PciPlace::of_adapter(port.device.name());
    let places: Vec<Option<PciPlace>> = ports.iter().map(place_of).collect();
    nearest(&places, near, place, ranks).into_iter().map(|at| ports[at].clone()).collect()
}

/// The ports of a device that can be used; the reason if there is none.
fn ports_of(
    name: &str,
    gid_index: Option<u8>,
    check: impl Fn(Port) -> Result<Port, RdmaError>,
) -> Result<Vec<Port>, RdmaError> {
    let device = Device::open(name)?;
    let mut why = None;
    let mut ports = Vec::new();
    for number in 1..=device.port_count() {
        match Port::new(&device, number, gid_index).and_then(&check) {
            Ok(port) => ports.push(port),
            Err(error) => why = Some(error),
        }
    }
    match why {
        Some(why) if ports.is_empty() => Err(why),
        _ => Ok(ports),
    }
}

impl Port {
    /// A port by its number, from 1 on, with the address at `gid_index`, or the one of its
    /// addresses that others reach best.
    ///
    /// # Errors
    /// [`RdmaError::PortDown`], [`RdmaError::NoGid`], [`RdmaError::NoSuchGid`],
    /// [`RdmaError::Verbs`].
    pub fn new(device: &Arc<Device>, number: u8, gid_index: Option<u8>) -> Result<Port, RdmaError> {
        let attributes = query(device, number)?;
        if attributes.state != sys::PORT_ACTIVE {
            let state = state_text(attributes.state);
            return Err(RdmaError::PortDown {
                device: device.name().to_owned(),
                port: number,
                state,
            });
        }
        let kind = match attributes.link_layer {
            sys::LINK_ETHERNET => LinkKind::RoceV2,
            // Old drivers of InfiniBand adapters leave it out.
            _ => LinkKind::InfiniBand,
        };
        let len = attributes.gid_tbl_len.clamp(0, 256);
        let (gid_index, gid) = match (gid_index, kind) {
            (Some(index), _) => (index, gid_at(device, number, index, kind, len)?),
            (None, LinkKind::InfiniBand) => (0, gid(device, number, 0)?),
            (None, LinkKind::RoceV2) => best_roce_gid(device, number, len)?,
        };
        let mtu_bytes = 128 << attributes.active_mtu.clamp(1, 5);
        let lid = if kind == LinkKind::InfiniBand { attributes.lid } else { 0 };
        let address = PortAddress { device: device.name().to_owned(), kind, mtu_bytes, lid, gid };
        let net_device = attribute(device, number, &format!("gid_attrs/ndevs/{gid_index}"));
        let speed = speed_gbit(attributes.active_speed, attributes.active_width);
        Ok(Port { device: Arc::clone(device), number, gid_index, address, speed, net_device })
    }

    /// Its address.
    pub fn address(&self) -> &PortAddress {
        &self.address
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Gbit/s of its link.
    pub fn speed_gbit(&self) -> u32 {
        self.speed
    }

    /// The port, unless its packets would leave from another network namespace.
    ///
    /// # Errors
    /// [`RdmaError::OtherNamespace`].
    pub fn in_this_namespace(self) -> Result<Port, RdmaError> {
        let elsewhere = |name: &String| if_nametoindex(name.as_str()).is_err();
        match self.net_device.as_ref().filter(|name| elsewhere(name)) {
            None => Ok(self),
            Some(net_device) => Err(RdmaError::OtherNamespace {
                device: self.device.name().to_owned(),
                port: self.number,
                net_device: net_device.clone(),
            }),
        }
    }
}

fn query(device: &Device, number: u8) -> Result<sys::PortAttributes, RdmaError> {
    // SAFETY: all zero is a valid value of these numbers.
    let mut attributes: sys::PortAttributes = unsafe { std::mem::zeroed() };
    // The library's own function knows all fields but the last, which is not used.
    // SAFETY: both are valid.
    let answer =
        unsafe { (device.library.query_port)(device.context(), number, &raw mut attributes) };
    device.check("ibv_query_port", answer)?;
    Ok(attributes)
}

fn gid(device: &Device, number: u8, index: i32) -> Result<Gid, RdmaError> {
    let mut gid = sys::Gid::default();
    // SAFETY: both are valid.
    let answer =
        unsafe { (device.library.query_gid)(device.context(), number, index, &raw mut gid) };
    device.check("ibv_query_gid", answer)?;
    Ok(Gid(gid.0))
}

/// The GID at an index, if packets can be routed by it.
fn gid_at(
    device: &Device,
    number: u8,
    index: u8,
    kind: LinkKind,
    len: i32,
) -> Result<Gid, RdmaError> {
    let fits = kind == LinkKind::InfiniBand || is_roce_v2(device, number, index.into());
    if i32::from(index) < len && fits {
        let found = gid(device, number, index.into())?;
        if found.0 != [0; 16] {
            return Ok(found);
        }
    }
    Err(RdmaError::NoSuchGid { device: device.name().to_owned(), port: number, index })
}

/// Whether a RoCE port has a RoCE v2 GID there. A slot without an address has no type to read
/// either.
fn is_roce_v2(device: &Device, number: u8, index: i32) -> bool {
    let kind = attribute(device, number, &format!("gid_attrs/types/{index}"));
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case("RoCE v2"))
}

/// The RoCE v2 GID to send from: an IPv4 address if there is one, then an IPv6 address that routers
/// know, then a local one.
fn best_roce_gid(device: &Device, number: u8, len: i32) -> Result<(u8, Gid), RdmaError> {
    let mut best: Option<(u32, u8, Gid)> = None;
    for index in 0..len {
        if !is_roce_v2(device, number, index) {
            continue;
        }
        let found = gid(device, number, index)?;
        let rank = if found.is_ipv4() { 2 } else { u32::from(!found.is_link_local()) };
        if best.is_none_or(|(best_rank, ..)| rank > best_rank) {
            best = Some((rank, index as u8, found));
        }
    }
    let missing = || RdmaError::NoGid { device: device.name().to_owned(), port: number };
    best.map(|(_, index, gid)| (index, gid)).ok_or_else(missing)
}

/// A file of the port in the system's tree, if it can be read.
fn attribute(device: &Device, number: u8, file: &str) -> Option<String> {
    let path = format!("/sys/class/infiniband/{}/ports/{number}/{file}", device.name());
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn state_text(state: u32) -> &'static str {
    match state {
        1 => "down",
        2 => "initialising",
        3 => "armed, but not active",
        5 => "waiting to become active again",
        _ => "in no known state",
    }
}

/// A link has `width` lanes of `speed`, each a bit of the specification's; 0 where they are
/// unknown.
fn speed_gbit(speed: u8, width: u8) -> u32 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    // Tenths of a Gbit/s: SDR to NDR.
    let lane = match speed {
        1 => 25,
        2 => 50,
        4 | 8 => 100,
        16 => 140,
        32 => 250,
        64 => 500,
        128 => 1000,
        _ => 0,
    };
    lanes * lane / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_those_of_the_specification() {
        assert_eq!(speed_gbit(128, 2), 400); // NDR, four lanes
        assert_eq!(speed_gbit(32, 2), 100); // EDR
        assert_eq!(speed_gbit(1, 1), 2); // SDR, one lane, rounded down
        assert_eq!(speed_gbit(0, 0), 0);
    }
}
