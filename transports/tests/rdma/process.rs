//! What other tests run in processes of their own.

use oxccl_transports::rdma::{Domain, usable_ports};

use super::pair::port;

#[test]
#[ignore = "started by a_node_uses_its_own_port"]
fn usable_ports_are_those_of_node1() {
    let ports = usable_ports(None).unwrap();
    let names: Vec<_> = ports.iter().map(|port| port.device().name()).collect();
    assert_eq!(names, ["rxe1_0"]);
    let other = usable_ports(Some(&["rxe0_0".to_owned()])).unwrap_err().to_string();
    assert!(other.contains("roce0_0, which is not in this process's network namespace"), "{other}");
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
