//! The wire over several devices of a node.

use std::sync::Arc;

use oxccl_transports::proxy::{Conditions, Fabric};
use oxccl_transports::rdma::{Device, Port, RdmaFabric, Settings, share};

use super::links::{exchange, pair};

fn rails(node: usize) -> Vec<Port> {
    let device = |rail| Device::open(&format!("rxe{node}_{rail}")).unwrap();
    (0..2).map(|rail| Port::new(&device(rail), 1, None).unwrap()).collect()
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn messages_cross_in_parts_over_two_rails() {
    let fabric = |rank| -> Arc<dyn Fabric> {
        Arc::new(RdmaFabric::new(rails(rank), Settings::default()).unwrap())
    };
    let sent = |node, rail| {
        let counters = format!("/sys/class/infiniband/rxe{node}_{rail}/ports/1/hw_counters");
        let packets = std::fs::read_to_string(format!("{counters}/sent_pkts")).unwrap();
        packets.trim().parse::<u64>().unwrap()
    };
    exchange(&pair(fabric, Conditions::default()), 20);
    for node in 0..2 {
        let packets = [0, 1].map(|rail| sent(node, rail));
        assert!(packets.iter().all(|&packets| packets > 100), "node {node} sent {packets:?}");
    }
}

#[test]
#[ignore = "runs in the software RoCE guest"]
fn ranks_of_a_node_share_its_devices() {
    let names = |place, ranks| {
        let ports = share(rails(0), place, ranks, None);
        ports.iter().map(|port| port.device().name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(0, 1), ["rxe0_0", "rxe0_1"]);
    assert_eq!([names(0, 2), names(1, 2)], [["rxe0_0"], ["rxe0_1"]]);
    assert_eq!(
        [0, 1, 2, 3].map(|place| names(place, 4).concat()),
        ["rxe0_0", "rxe0_0", "rxe0_1", "rxe0_1"]
    );
}
