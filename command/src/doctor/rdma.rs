//! The RDMA part: each port of each device, the library, how much memory may be pinned, and whether
//! all of it works together.

use std::path::Path;

use oxccl::{Communicator, Config, FabricKind};
use oxccl_transports::SYSFS;
use oxccl_transports::rdma::{
    Device, FoundDevice, FoundGid, FoundPort, Port, RdmaError, device_names, locked_memory_limit,
    survey,
};

use super::{Finding, State, all_reduce, impatient};
use crate::options::Size;

pub(super) fn findings() -> Vec<Finding> {
    let found = survey(Path::new(SYSFS));
    if found.is_empty() {
        return vec![failed("rdma (nodes)", &RdmaError::NoDevice)];
    }
    let mut findings: Vec<Finding> = found.iter().flat_map(of_device).collect();
    match device_names() {
        Ok(_) => findings.extend([locked_memory(), works()]),
        Err(error) => findings.push(failed("libibverbs", &error)),
    }
    findings
}

/// An error says what helps behind its first colon.
fn failed(what: &'static str, error: &RdmaError) -> Finding {
    let text = error.to_string();
    match text.split_once(": ") {
        Some((detail, remedy)) => Finding::new(what, State::Missing, detail).remedy(remedy),
        None => Finding::new(what, State::Missing, text),
    }
}

fn of_device(device: &FoundDevice) -> Vec<Finding> {
    device.ports.iter().map(|port| of_port(device, port)).collect()
}

fn of_port(device: &FoundDevice, port: &FoundPort) -> Finding {
    let opened = Device::open(&device.name)
        .and_then(|opened| Port::new(&opened, port.number, None))
        .and_then(Port::in_this_namespace);
    let mut detail = format!("{} port {}: {}, {}", device.name, port.number, port.state, port.kind);
    if let Ok(opened) = &opened {
        detail += &format!(", MTU {}", opened.address().mtu_bytes);
    }
    let place = device.numa_node.map_or("unknown".to_owned(), |node| node.to_string());
    detail += &format!(", {}, NUMA node {place}", port.rate);
    let gids: Vec<String> = port.gids.iter().map(gid).collect();
    if !gids.is_empty() {
        detail += &format!("; GIDs {}", gids.join(", "));
    }
    let what = "rdma device";
    match opened {
        Ok(_) => Finding::new(what, State::Ok, detail),
        // What is wrong with the library is said once, behind the devices.
        Err(RdmaError::NoLibrary { .. }) => Finding::new(what, State::Note, detail),
        Err(error) => Finding::new(what, State::Note, detail).remedy(error.to_string()),
    }
}

fn gid(found: &FoundGid) -> String {
    let net_device = found.net_device.as_deref().map_or(String::new(), |of| format!(" of {of}"));
    format!("{}: {} ({}{net_device})", found.index, found.gid, found.kind)
}

fn locked_memory() -> Finding {
    let pinned = Config::from_env().unwrap_or_default().link_memory_bytes(2) as u64;
    let what = "locked memory";
    let each =
        format!("links to a rank of another node pin {}", Size((pinned >> 10 << 10) as usize));
    match locked_memory_limit() {
        None => Finding::new(what, State::Ok, format!("no limit; {each}")),
        Some(limit) => {
            let ranks = limit / pinned;
            let detail = format!("{limit} bytes (RLIMIT_MEMLOCK): room for {ranks} ranks; {each}");
            if ranks > 0 {
                return Finding::new(what, State::Ok, detail);
            }
            Finding::new(what, State::Note, detail).remedy(
                "raise it: `ulimit -l unlimited` in the shell, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 \
                 for a container",
            )
        }
    }
}

/// Two parts of this machine stand for nodes.
fn works() -> Finding {
    let config = Config { nodes: Some(2), fabric: Some(FabricKind::Rdma), ..impatient() };
    let tried = Communicator::local_with(2, &config)
        .map_err(|error| error.to_string())
        .and_then(|comms| all_reduce(comms.into_iter().map(|comm| move || Ok(comm))));
    match tried {
        Ok(()) => Finding::new("rdma (nodes)", State::Ok, "an all-reduce over 2 ranks is right"),
        Err(error) => Finding::new("rdma (nodes)", State::Missing, error)
            .remedy("see to the devices above; OXCCL_RDMA_DEVICES names those to use, and OXCCL_FABRIC=tcp goes without"),
    }
}
