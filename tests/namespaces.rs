//! Ranks on nodes that are network namespaces of this machine, over TCP through a switch between
//! them: what a real network may do to them. Skipped, and said so, where the system gives no
//! namespaces.
#![allow(clippy::unwrap_used)]

mod common;

use common::element::TestElement;
use common::network::{self, FIRST_ADDRESS, Network};
use common::nodes::{COUNTS, Memory, cases, config, run};
use oxccl::{Advanced, Collectives, Communicator, Config, Error, ReduceOp, UniqueId, bf16};
use oxccl_transports::Secret;
use std::io::{BufRead, BufReader};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Ranks of each node.
const PER_NODE: usize = 2;

/// Under which names a rank is told its place, and what chance decides.
const RANK: &str = "NAMESPACES_TEST_RANK";
const WORLD: &str = "NAMESPACES_TEST_WORLD";
const MEETING: &str = "NAMESPACES_TEST_MEETING";
const SEED: &str = "NAMESPACES_TEST_SEED";

/// What a rank is told.
fn told<T: std::str::FromStr>(name: &str) -> T {
    std::env::var(name).unwrap().parse().ok().unwrap()
}

/// What ranks print: the rank, the time at which it came, and a line.
type Lines = Sender<(usize, Instant, String)>;

/// Starts a rank on each place of the nodes.
fn start(nodes: usize, test: &str, lines: &Lines) -> Vec<Child> {
    let id = UniqueId::new(FIRST_ADDRESS, 20_777, Secret::random().unwrap());
    let world = nodes * PER_NODE;
    start_on(&id, (0..world).map(|rank| rank / PER_NODE).collect(), test, lines)
}

/// Starts a rank on each of these nodes.
fn start_on(id: &UniqueId, nodes: Vec<usize>, test: &str, lines: &Lines) -> Vec<Child> {
    let (seed, world) = (common::seed(), nodes.len());
    let rank = |(rank, node): (usize, usize)| {
        let mut command = network::on_node(node, test);
        command.env(RANK, rank.to_string()).env(WORLD, world.to_string());
        command.env(MEETING, id.to_string()).env(SEED, seed.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (said, lines) = (BufReader::new(child.stdout.take().unwrap()), lines.clone());
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                // Nobody listens any more when the test has ended.
                let _ = lines.send((rank, Instant::now(), line));
            }
        });
        child
    };
    nodes.into_iter().enumerate().map(rank).collect()
}

fn connect(config: &Config) -> Communicator {
    let id: UniqueId = told(MEETING);
    let rank = told(RANK);
    // As long as the ranks run.
    (rank == 0).then(|| std::mem::forget(id.serve().unwrap()));
    Communicator::connect(&id, rank, told(WORLD), config).unwrap()
}

fn all_succeed(ranks: Vec<Child>) {
    for (rank, mut child) in ranks.into_iter().enumerate() {
        let status = child.wait().unwrap();
        assert!(status.success(), "rank {rank}: {status}");
    }
}

mod matrix {
    use super::*;

    #[test]
    fn every_operation_by_every_algorithm_on_2_nodes() {
        let link = Some(("10gbit", "50us"));
        Network { nodes: 2, link }.run("every_operation_on_2_nodes", "matrix::on_2_nodes");
    }

    #[test]
    fn every_operation_by_every_algorithm_on_4_nodes() {
        Network { nodes: 4, link: None }.run("every_operation_on_4_nodes", "matrix::on_4_nodes");
    }

    #[test]
    #[ignore = "runs beside the switch of a network"]
    fn on_2_nodes() {
        on_nodes(2);
    }

    #[test]
    #[ignore = "runs beside the switch of a network"]
    fn on_4_nodes() {
        on_nodes(4);
    }

    fn on_nodes(nodes: usize) {
        println!("links: {}", network::shape().unwrap_or("as they are".into()));
        let (lines, _said) = channel();
        all_succeed(start(nodes, "matrix::rank", &lines));
    }

    #[test]
    #[ignore = "one rank of a matrix"]
    fn rank() {
        let mut comm = connect(&config());
        let (world, seed) = (comm.world_size(), told(SEED));
        let nodes = world / PER_NODE;
        match nodes {
            2 => run_all::<f32>(&mut comm, nodes, seed),
            _ => run_all::<bf16>(&mut comm, nodes, seed),
        }
    }

    fn run_all<T: TestElement>(comm: &mut Communicator, nodes: usize, seed: u64) {
        let world = comm.world_size();
        run::<T>(comm, &cases::<T>((world, nodes), Memory::Private, &COUNTS, seed));
    }
}

mod cut_off {
    use super::*;

    const BEGINS: &str = "the large call begins";
    const FAILED: &str = "it failed: ";
    const AGAIN: &str = "a new communicator works";

    /// Elements of 4 bytes: 1 GiB.
    const COUNT: usize = 256 << 20;

    #[test]
    fn a_node_cut_off_in_a_large_call_is_named_by_all_and_both_sides_go_on() {
        Network { nodes: 2, link: None }
            .run("a_node_cut_off_in_a_large_call", "cut_off::in_a_call");
    }

    #[test]
    #[ignore = "runs beside the switch of a network"]
    fn in_a_call() {
        let before = shared_memory_files();
        let (lines, said) = channel();
        let ranks = start(2, "cut_off::rank", &lines);
        let world = ranks.len();
        let mut all: Vec<(usize, Instant, String)> = Vec::new();
        let mut wait_for = |text: &str| {
            let found = |all: &[(usize, Instant, String)]| -> Vec<_> {
                all.iter().filter(|(_, _, line)| line.contains(text)).cloned().collect()
            };
            while found(&all).len() < world {
                all.push(said.recv_timeout(Duration::from_secs(300)).unwrap());
            }
            found(&all)
        };
        wait_for(BEGINS);
        std::thread::sleep(Duration::from_millis(300));
        network::cut_off(1);
        let cut = Instant::now();
        let failures = wait_for(FAILED);
        for (rank, at, line) in &failures {
            println!("rank {rank}, {:?} after the cut: {line}", at.duration_since(cut));
            let named: &[usize] = if *rank < PER_NODE { &[2, 3] } else { &[0, 1] };
            let names =
                |named: &usize| line.contains(&format!("the machine of rank {named} is down"));
            assert!(named.iter().any(names), "{line}");
        }
        // It is a second, and half of one until somebody sends something; a busy machine gets more.
        let last = failures.iter().map(|(_, at, _)| at.duration_since(cut)).max().unwrap();
        assert!(last < Duration::from_secs(60), "{last:?}");
        wait_for(AGAIN);
        all_succeed(ranks);
        assert_eq!(shared_memory_files(), before);
    }

    fn shared_memory_files() -> Vec<String> {
        let files = std::fs::read_dir("/dev/shm").unwrap();
        let names = files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.contains("oxccl")).collect();
        names.sort();
        names
    }

    #[test]
    #[ignore = "one rank of those that are cut off from each other"]
    fn rank() {
        let (timeout, silence) = (Duration::from_secs(300), Some(Duration::from_secs(1)));
        let config = Config {
            timeout,
            advanced: Advanced { silence, ..Advanced::default() },
            ..Config::default()
        };
        let comm = connect(&config);
        let mut data = vec![0f32; COUNT];
        comm.all_reduce_in_place(&mut data[..1000], ReduceOp::Sum).unwrap();
        println!("{BEGINS}");
        let error = loop {
            if let Err(error) = comm.all_reduce_in_place(&mut data, ReduceOp::Sum) {
                break error;
            }
            println!("it ended before the cut");
        };
        println!("{FAILED}{error}");
        assert!(matches!(error, Error::CutOff { .. }), "{error}");
        let rank = comm.rank();
        // The side of the server goes on. The other one finds nobody who may serve: it does not
        // know whether the first lives.
        match rank < PER_NODE {
            true => comm.shrink(&[2, 3]).unwrap().barrier().unwrap(),
            false => {
                let error = comm.shrink(&[0, 1]).unwrap_err();
                let named = error.to_string();
                assert!(named.contains("rank 1 of those that started together"), "{named}");
            }
        }
        drop((comm, data));
        // The ranks of the node go on among themselves.
        let id = UniqueId::new("127.0.0.1", 20_778, told::<UniqueId>(MEETING).secret().clone());
        let _server = rank.is_multiple_of(PER_NODE).then(|| id.serve().unwrap());
        let comm = Communicator::connect(&id, rank % PER_NODE, PER_NODE, &config).unwrap();
        let mut data = [1.0f32; 1000];
        comm.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, [PER_NODE as f32; 1000]);
        println!("{AGAIN}");
    }
}

/// The rendezvous is served on a machine that has no ranks.
mod server_cut_off {
    use super::*;

    const BEGINS: &str = "the calls begin";

    #[test]
    fn ranks_go_on_without_a_server_that_is_cut_off() {
        Network { nodes: 3, link: None }
            .run("ranks_go_on_without_a_server_that_is_cut_off", "server_cut_off::in_calls");
    }

    #[test]
    #[ignore = "runs beside the switch of a network"]
    fn in_calls() {
        let id = UniqueId::new(FIRST_ADDRESS, 20_779, Secret::random().unwrap());
        let mut server = network::on_node(0, "server_cut_off::server");
        let _server = Killed(server.env(MEETING, id.to_string()).spawn().unwrap());
        let (lines, said) = channel();
        let ranks = start_on(&id, vec![1, 2], "server_cut_off::rank", &lines);
        for _ in &ranks {
            let begun = |line: &str| line.contains(BEGINS);
            while !begun(&said.recv_timeout(Duration::from_secs(300)).unwrap().2) {}
        }
        network::cut_off(0);
        all_succeed(ranks);
    }

    /// A process that goes with this one's test, however that ends.
    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    #[ignore = "serves the others"]
    fn server() {
        let _server = told::<UniqueId>(MEETING).serve().unwrap();
        std::thread::sleep(Duration::from_secs(600));
    }

    #[test]
    #[ignore = "one rank of those that the server is cut off from"]
    fn rank() {
        let (timeout, silence) = (Duration::from_secs(300), Some(Duration::from_secs(1)));
        let config = Config {
            timeout,
            advanced: Advanced { silence, ..Advanced::default() },
            ..Config::default()
        };
        let id: UniqueId = told(MEETING);
        let comm = Communicator::connect(&id, told(RANK), told(WORLD), &config).unwrap();
        let mut data = [1.0f32; 1000];
        comm.all_reduce_in_place(&mut data, ReduceOp::Max).unwrap();
        println!("{BEGINS}");
        let server = (id.host(), id.port()).to_socket_addrs().unwrap().next().unwrap();
        let pause = Duration::from_millis(300);
        // Until one of them does not reach it: they look at different times.
        while data[0] > 0.0 {
            let reaches = TcpStream::connect_timeout(&server, pause).is_ok();
            data.fill(f32::from(reaches));
            comm.all_reduce_in_place(&mut data, ReduceOp::Min).unwrap();
            std::thread::sleep(pause);
        }
        // All that is said from here on, one of them passes on.
        let late = comm.monitored_barrier(timeout).unwrap();
        assert_eq!(late.len(), 2);
        let part = comm.split(Some(0), 0).unwrap().unwrap();
        part.all_reduce_in_place(&mut data, ReduceOp::Max).unwrap();
        part.close().unwrap();
        comm.close().unwrap();
    }
}

/// The network breaks for a while, and comes back.
mod interrupted {
    use super::*;

    const CALLS: &str = "calls: ";

    #[test]
    fn a_break_of_the_network_shorter_than_the_time_out_ends_nothing() {
        Network { nodes: 2, link: None }
            .run("a_break_of_the_network_ends_nothing", "interrupted::in_calls");
    }

    #[test]
    #[ignore = "runs beside the switch of a network"]
    fn in_calls() {
        let (lines, said) = channel();
        let ranks = start(2, "interrupted::rank", &lines);
        let wait_for = |calls: usize| {
            let text = format!("{CALLS}{calls}");
            let found = |line: &str| line == text;
            while !found(&said.recv_timeout(Duration::from_secs(300)).unwrap().2) {}
        };
        wait_for(100);
        network::cut_off(1);
        std::thread::sleep(Duration::from_millis(2500));
        network::restore(1);
        all_succeed(ranks);
    }

    #[test]
    #[ignore = "one rank of those whose network breaks"]
    fn rank() {
        let config = Config { timeout: Duration::from_secs(120), ..Config::default() };
        let comm = connect(&config);
        let (begin, mut longest) = (Instant::now(), Duration::ZERO);
        let (mut data, mut last) = ([1.0f32; 1000], Instant::now());
        for call in 1.. {
            comm.all_reduce_in_place(&mut data, ReduceOp::Max).unwrap();
            // From such a call to the next: the break may be in the other.
            longest = longest.max(last.elapsed());
            last = Instant::now();
            println!("{CALLS}{call}");
            // All ranks have had the break when one of them has.
            let mut over = [f32::from(u8::from(longest > Duration::from_secs(2)))];
            comm.all_reduce_in_place(&mut over, ReduceOp::Max).unwrap();
            if over == [1.0] {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(300), "the network did not break");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
