//! Ranks of nodes that RDMA joins: in the software RoCE guest, whose nodes are network namespaces.

use super::common::element::TestElement;
use super::common::events::Events;
use super::common::nodes::{COUNTS, Memory, cases, run};
use super::common::{left, seed};
use super::{config, guest, on_ranks};
use oxccl::{Advanced, Collectives, Communicator, Config, FabricKind, ReduceOp, UniqueId, bf16};
use oxccl_transports::rdma::survey;
use oxccl_transports::{SYSFS, Secret};
use std::io::{Write, stderr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

#[test]
fn two_nodes_in_the_guest() {
    guest::run("rdma::on_two_nodes::", &[]);
}

#[test]
fn four_nodes_in_the_guest() {
    // Eight ranks share the guest's one core.
    if left::to_test_all("every operation on four nodes over RDMA") {
        return;
    }
    guest::run("rdma::on_four_nodes::", &["--nodes", "4"]);
}

#[test]
fn a_machine_without_devices_says_so() {
    if !survey(Path::new(SYSFS)).is_empty() {
        let _ = writeln!(stderr(), "skipped: a_machine_without_devices_says_so: there are some");
        return;
    }
    let config = Config { fabric: Some(FabricKind::Rdma), ..config(2, "") };
    let error = Communicator::local_with(2, &config).unwrap_err().to_string();
    let either = ["no RDMA device is to be seen: see that", "libibverbs could not be loaded"];
    assert!(error.contains("is rdma, which rank 0 cannot use: "), "{error}");
    assert!(either.iter().any(|why| error.contains(why)), "{error}");
}

mod on_two_nodes {
    use super::*;

    #[test]
    #[ignore = "runs in the software RoCE guest"]
    fn every_operation_by_every_algorithm_with_2_ranks_each() {
        on_nodes(2, "float");
    }

    #[test]
    #[ignore = "runs in the software RoCE guest"]
    fn large_messages_over_several_queue_pairs() {
        let config = Config {
            heap_bytes: 64 << 20,
            nodes: Some(2),
            timeout: Duration::from_secs(300),
            advanced: Advanced { rdma_queue_pairs: 3, ..Advanced::default() },
            ..Config::default()
        };
        on_ranks(2, &over_both_devices(config), |comm| {
            let mut data: Vec<i32> = (0..2 << 20).map(|i| i * (1 + comm.rank() as i32)).collect();
            comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
            assert!(data.iter().zip(0..).all(|(x, i): (&i32, i32)| *x == i.wrapping_mul(3)));
        });
    }

    #[test]
    #[ignore = "runs in the software RoCE guest"]
    fn a_device_that_is_not_there_is_named_on_every_rank() {
        let mut config = over_both_devices(config(2, ""));
        config.advanced.rdma_devices = Some(vec!["mlx5_9".to_owned()]);
        let error = Communicator::local_with(2, &config).unwrap_err().to_string();
        assert!(error.contains("rank 0 cannot use: there is no RDMA device mlx5_9"), "{error}");
    }
}

mod on_four_nodes {
    use super::*;

    #[test]
    #[ignore = "runs in the software RoCE guest"]
    fn every_operation_by_every_algorithm_with_2_ranks_each() {
        on_nodes(4, "bfloat");
    }
}

/// Threads of one process: the first half of the ranks on one node's device, the others on the
/// other's.
fn over_both_devices(config: Config) -> Config {
    let devices = vec!["rxe0_0".to_owned(), "rxe1_0".to_owned()];
    Config {
        fabric: Some(FabricKind::Rdma),
        advanced: Advanced { rdma_devices: Some(devices), ..config.advanced },
        ..config
    }
}

/// What a rank, this program once more, is told: where to meet, its rank, how many nodes, the type,
/// and the seed of its choices.
const TOLD: &str = "RDMA_TEST_RANK";

/// Two ranks on each of so many nodes: processes, each in its node's namespace, of which all must
/// succeed.
fn on_nodes(nodes: usize, data_type: &str) {
    let id = UniqueId::new("10.0.0.1", 29_771, Secret::random().unwrap());
    let seed = seed();
    let spawn = |rank: usize| {
        let told = format!("{id} {rank} {nodes} {data_type} {seed}");
        Command::new("ip")
            .args(["netns", "exec", &format!("node{}", rank / 2)])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "rdma::one_rank", "--ignored", "--nocapture"])
            .env(TOLD, told)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let ranks: Vec<Child> = (0..2 * nodes).map(spawn).collect();
    let ends: Vec<_> = ranks.into_iter().map(|mut rank| rank.wait().unwrap()).collect();
    assert!(ends.iter().all(|end| end.success()), "{data_type}: {ends:?}");
}

#[test]
#[ignore = "a rank of the other tests"]
fn one_rank() {
    let told = std::env::var(TOLD).unwrap();
    let told: Vec<&str> = told.split(' ').collect();
    let number = |at: usize| told[at].parse::<u64>().unwrap();
    let (id, rank, nodes): (UniqueId, _, _) =
        (told[0].parse().unwrap(), number(1) as usize, number(2) as usize);
    let _server = (rank == 0).then(|| id.serve().unwrap());
    // Nodes are namespaces, whose devices are found.
    let config = Config { fabric: Some(FabricKind::Rdma), nodes: None, ..config(nodes, "") };
    let events = Events::collect();
    let mut comm = Communicator::connect(&id, rank, 2 * nodes, &config).unwrap();
    events.has(1, "a communicator has started", &["fabric=\"rdma\"", "device=host"]);
    events.has(1, "links are accepted", &["fabric=\"rdma\"", "adapter="]);
    match told[3] {
        "float" => matrix::<f32>(&mut comm, nodes, number(4)),
        "bfloat" => matrix::<bf16>(&mut comm, nodes, number(4)),
        other => panic!("no type {other}"),
    }
    let link = ["peer=", "devices=[\"rxe", "paths="];
    events.has(2 * (nodes - 1), "a link over RDMA is made", &link);
}

fn matrix<T: TestElement>(comm: &mut Communicator, nodes: usize, seed: u64) {
    let cases = cases::<T>((comm.world_size(), nodes), Memory::Private, &COUNTS, seed);
    run::<T>(comm, &cases);
}
