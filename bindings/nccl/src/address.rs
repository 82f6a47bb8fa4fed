//! The address under which other ranks reach this process' rendezvous.

use std::net::IpAddr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;

use crate::answer::{Answer, Failure};

/// Which interfaces may serve, as `NCCL_SOCKET_IFNAME` says it: beginnings of names, or with `=`
/// whole ones, separated by commas; behind `^`, those that may not.
struct Choice<'t> {
    excluded: bool,
    exact: bool,
    names: Vec<&'t str>,
}

impl<'t> Choice<'t> {
    fn parse(text: &'t str) -> Choice<'t> {
        let (excluded, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let names = rest.split(',').filter(|name| !name.is_empty()).collect();
        Choice { excluded, exact, names }
    }

    fn takes(&self, interface: &str) -> bool {
        let named = self.names.iter().any(|name| match self.exact {
            true => interface == *name,
            false => interface.starts_with(name),
        });
        named != self.excluded
    }
}

/// An interface's name and address.
type Interface = (String, IpAddr);

/// The interface for the rendezvous and for links: of the first of these variables that is set,
/// otherwise one that leaves the machine, otherwise loopback.
pub(crate) fn own(lookup: impl Fn(&str) -> Option<String>) -> Answer<Interface> {
    let all: Vec<(Interface, bool)> = interfaces();
    let pick = |takes: &dyn Fn(&Interface, bool) -> bool| {
        let fits = |of: &&(Interface, bool)| takes(&of.0, of.1);
        let v4 = all.iter().filter(fits).find(|of| of.0.1.is_ipv4());
        v4.or_else(|| all.iter().find(fits)).map(|of| of.0.clone())
    };
    let none = |variable: &str, value: &str| {
        let known: Vec<_> = all.iter().map(|((name, ip), _)| format!("{name} ({ip})")).collect();
        let known = known.join(", ");
        Failure::usage(format!("{variable}={value} names none of this machine's: {known}"))
    };
    if let Some(name) = lookup("OXCCL_INTERFACE") {
        let literal = name.parse::<IpAddr>().ok();
        return pick(&|(of, ip), _| *of == name || Some(*ip) == literal)
            .ok_or_else(|| none("OXCCL_INTERFACE", &name));
    }
    if let Some(text) = lookup("NCCL_SOCKET_IFNAME").filter(|text| !text.is_empty()) {
        let choice = Choice::parse(&text);
        return pick(&|(of, _), _| choice.takes(of))
            .ok_or_else(|| none("NCCL_SOCKET_IFNAME", &text));
    }
    let leaves = |(of, _): &Interface, loopback: bool| {
        !loopback && !["docker", "veth", "virbr"].iter().any(|kind| of.starts_with(kind))
    };
    pick(&leaves)
        .or_else(|| pick(&|_, loopback| loopback))
        .ok_or_else(|| Failure::usage("this machine has no network interface, not even loopback"))
}

/// Interfaces that are up, and whether they are loopback.
fn interfaces() -> Vec<(Interface, bool)> {
    let all = getifaddrs().into_iter().flatten();
    let up = all.filter(|interface| interface.flags.contains(InterfaceFlags::IFF_UP));
    up.filter_map(|interface| {
        let loopback = interface.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        Some(((interface.interface_name.clone(), ip_of(&interface)?), loopback))
    })
    .collect()
}

fn ip_of(interface: &InterfaceAddress) -> Option<IpAddr> {
    let address = interface.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    let v6 = || address.as_sockaddr_in6().map(|address| address.ip());
    // An address of one link alone does not say of which.
    v4.or_else(|| v6().filter(|ip| !ip.is_unicast_link_local()).map(IpAddr::V6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_chosen_as_nccl_does() {
        let takes = |text: &str, name: &str| Choice::parse(text).takes(name);
        assert!(takes("eth", "eth0") && !takes("eth", "ib0"));
        assert!(takes("=eth0", "eth0") && !takes("=eth", "eth0"));
        assert!(!takes("^docker,lo", "lo") && takes("^docker,lo", "eth1"));
        assert!(!takes("^=lo", "lo") && takes("^=lo", "lo0"));
        assert!(takes("eth,ib", "ib3"));
    }

    #[test]
    fn an_interface_is_found_or_named() {
        let lo = |name: &str| (name == "NCCL_SOCKET_IFNAME").then(|| "=lo".to_owned());
        assert!(own(lo).unwrap().1.is_loopback());
        let wrong = |name: &str| (name == "OXCCL_INTERFACE").then(|| "no-such".to_owned());
        let failure = own(wrong).unwrap_err();
        assert!(failure.text.contains("no-such") && failure.text.contains("lo ("));
        own(|_| None).unwrap();
    }
}
