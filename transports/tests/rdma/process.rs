//! What other tests run in processes of their own.

use std::sync::Arc;

use oxccl_transports::cuda::{Context, DeviceRegion, Driver};
use oxccl_transports::proxy::testing::MemoryPorts;
use oxccl_transports::proxy::{Conditions, Fabric, PortsMemory};
use oxccl_transports::rdma::{Domain, GpuWay, RdmaFabric, Settings, usable_ports};

use super::links::{PAYLOAD_BYTES, PORTS, SLOTS, end_behind_messages, exchange, pair_with};
use super::pair::port;

#[test]
#[ignore = "started by a_node_uses_its_own_port"]
fn usable_ports_are_those_of_node1() {
    let ports = usable_ports(None, None).unwrap();
    let names: Vec<_> = ports.iter().map(|port| port.device().name()).collect();
    assert_eq!(names, ["rxe1_0"]);
    // Who names a device means it.
    let other = usable_ports(Some(&["rxe0_0".to_owned()]), None).unwrap();
    assert_eq!(other[0].device().name(), "rxe0_0");
}

#[test]
#[ignore = "started by too_little_locked_memory_is_named_with_its_limit"]
fn locked_memory_is_short() {
    let domain = Domain::new(port(0).device()).unwrap();
    let mut memory = vec![0_u8; 1 << 20];
    // SAFETY: the memory is as large, and outlives the registration, which fails.
    let refused = unsafe { domain.register(memory.as_mut_ptr(), memory.len()) }.unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("1048576 bytes of memory cannot be registered with rxe0_0"), "{said}");
    assert!(
        said.contains("(RLIMIT_MEMLOCK) is 65536 bytes") && said.contains("ulimit -l"),
        "{said}"
    );
}

#[test]
#[ignore = "started by ports_may_lie_in_memory_of_a_gpu"]
fn messages_cross_memory_of_gpus() {
    let context = Context::primary(Driver::load().unwrap().device(0).unwrap()).unwrap();
    let fabric = |rank| {
        let fabric = RdmaFabric::new(vec![port(rank)], Settings::default()).unwrap();
        Arc::new(fabric.with_gpu(context.clone(), &GpuWay::ALL))
    };
    let fabrics = [0, 1].map(fabric);
    let ports = |rank: usize| {
        let len_bytes = MemoryPorts::len_bytes(PORTS, SLOTS, PAYLOAD_BYTES);
        let region = DeviceRegion::create(&context, len_bytes).unwrap();
        let memory = PortsMemory { start: region.as_ptr(), len_bytes: region.len_bytes() };
        // SAFETY: the region is memory of the stand-in's GPU, as long, of zeros, and goes along,
        // behind what registers it.
        unsafe {
            let reach = fabrics[rank].reach_gpu(memory).unwrap();
            assert_eq!(reach.way(), GpuWay::PeerMemory);
            let owner = Box::new((reach, region));
            MemoryPorts::over(memory, owner, PORTS, SLOTS, PAYLOAD_BYTES)
        }
    };
    let fabric = |rank: usize| -> Arc<dyn Fabric> { fabrics[rank].clone() };
    exchange(&pair_with(fabric, ports, Conditions::default()), 10);
    for _ in 0..10 {
        end_behind_messages(pair_with(fabric, ports, Conditions::default()));
    }
    let dmabuf = RdmaFabric::new(vec![port(0)], Settings::default()).unwrap();
    let dmabuf = dmabuf.with_gpu(context.clone(), &[GpuWay::Dmabuf]).try_gpu();
    let dmabuf = dmabuf.unwrap_err().to_string();
    assert!(dmabuf.contains("rxe0_0 does not take memory of the GPU as a dmabuf: "), "{dmabuf}");
}
