//! This machine's network interfaces.

use std::net::IpAddr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};

use crate::Error;

/// The address of an interface, given its name (of several addresses, an IPv4 one first), or one of
/// this machine's addresses itself.
pub(crate) fn address(name: &str) -> Result<IpAddr, Error> {
    let all: Vec<(String, IpAddr)> = interfaces().collect();
    let literal: Option<IpAddr> = name.parse().ok();
    let mut fitting = all.iter().filter(|(of, address)| of == name || Some(*address) == literal);
    let found = fitting.clone().find(|(_, address)| address.is_ipv4()).or(fitting.next());
    found.map(|(_, address)| *address).ok_or_else(|| {
        let known = all.iter().map(|(name, address)| format!("{name} ({address})"));
        let known = known.collect::<Vec<_>>().join(", ");
        Error::NoInterface { name: name.to_owned(), known }
    })
}

/// The interface that has an address.
pub(crate) fn name_of(address: IpAddr) -> Option<String> {
    interfaces().find(|(_, of)| *of == address).map(|(name, _)| name)
}

fn interfaces() -> impl Iterator<Item = (String, IpAddr)> {
    let all = getifaddrs().into_iter().flatten();
    all.filter_map(|interface| Some((interface.interface_name.clone(), ip_of(&interface)?)))
}

fn ip_of(interface: &InterfaceAddress) -> Option<IpAddr> {
    let address = interface.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_found_by_name_and_address() {
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(address("lo").unwrap(), loopback);
        assert_eq!(address("127.0.0.1").unwrap(), loopback);
        assert_eq!(name_of(loopback).as_deref(), Some("lo"));
        assert_eq!(name_of("192.0.2.1".parse().unwrap()), None);
        let error = address("no-such").unwrap_err().to_string();
        assert!(error.contains("no-such") && error.contains("lo (127.0.0.1)"), "{error}");
    }
}
