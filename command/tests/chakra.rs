//! What `oxccl explain --chakra` writes: files of Chakra's schema, in which each send is received,
//! in an order that ends, with the bytes of the schedule.
#![allow(clippy::unwrap_used)]

mod command_line;
#[path = "../../tests/common/msccl_xml.rs"]
#[allow(dead_code)]
mod msccl_xml;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;

use command_line::oxccl;
use prost::Message;
use prost::bytes::Buf as _;
use serde_json::Value;

/// As in Chakra's `et_def.proto`.
#[derive(Clone, PartialEq, Message)]
struct GlobalMetadata {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(message, repeated, tag = "2")]
    attr: Vec<AttributeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(int32, tag = "3")]
    kind: i32,
    #[prost(uint64, repeated, tag = "4")]
    ctrl_deps: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    data_deps: Vec<u64>,
    #[prost(uint64, tag = "6")]
    start_time_micros: u64,
    #[prost(uint64, tag = "7")]
    duration_micros: u64,
    #[prost(message, repeated, tag = "10")]
    attr: Vec<AttributeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct AttributeProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, optional, tag = "2")]
    doc_string: Option<String>,
    #[prost(int32, optional, tag = "7")]
    int32_val: Option<i32>,
    #[prost(int64, optional, tag = "9")]
    int64_val: Option<i64>,
    #[prost(bool, optional, tag = "27")]
    bool_val: Option<bool>,
    #[prost(string, optional, tag = "29")]
    string_val: Option<String>,
}

/// From, to and tag.
type Channel = (i32, i32, i32);

struct Transfer {
    id: u64,
    is_send: bool,
    channel: Channel,
    bytes: i64,
    after: Vec<u64>,
}

fn read(path: &str, rank: usize) -> Vec<Transfer> {
    let bytes = fs::read(path).unwrap();
    let mut rest = &bytes[..];
    let metadata = GlobalMetadata::decode_length_delimited(&mut rest).unwrap();
    assert!(metadata.attr[0].string_val.as_ref().unwrap().contains(" ranks: "), "{metadata:?}");
    let mut transfers = Vec::new();
    while rest.has_remaining() {
        let node = Node::decode_length_delimited(&mut rest).unwrap();
        let named = |name: &str| node.attr.iter().find(|one| one.name == name).unwrap();
        let number = |name: &str| named(name).int32_val.unwrap();
        assert_eq!(named("is_cpu_op").bool_val, Some(false));
        // COMM_SEND_NODE and COMM_RECV_NODE.
        assert!(matches!(node.kind, 5 | 6), "{node:?}");
        let is_send = node.kind == 5;
        let own = number(if is_send { "comm_src" } else { "comm_dst" });
        assert_eq!(usize::try_from(own).unwrap(), rank);
        transfers.push(Transfer {
            id: node.id,
            is_send,
            channel: (number("comm_src"), number("comm_dst"), number("comm_tag")),
            bytes: named("comm_size").int64_val.unwrap(),
            after: node.data_deps,
        });
    }
    let ids: HashSet<u64> = transfers.iter().map(|one| one.id).collect();
    assert_eq!(ids.len(), transfers.len());
    assert!(transfers.iter().flat_map(|one| &one.after).all(|id| ids.contains(id)));
    transfers
}

/// Carries all out, where a send ends only when it is received: every node must end.
fn carry_out(ranks: &[Vec<Transfer>]) {
    let (mut started, mut ended) = (HashSet::new(), HashSet::new());
    // By channel: a send and a receive that have started.
    let mut open: BTreeMap<Channel, Vec<(usize, u64)>> = BTreeMap::new();
    loop {
        let before = (started.len(), ended.len());
        for (rank, one) in
            ranks.iter().enumerate().flat_map(|(r, all)| all.iter().map(move |one| (r, one)))
        {
            let is_ready = one.after.iter().all(|id| ended.contains(&(rank, *id)));
            if is_ready && started.insert((rank, one.id)) {
                let both = open.entry(one.channel).or_default();
                both.push((rank, one.id));
                if both.len() == 2 {
                    ended.extend(both.iter().copied());
                }
            }
        }
        if before == (started.len(), ended.len()) {
            break;
        }
    }
    assert_eq!(ended.len(), ranks.iter().map(Vec::len).sum::<usize>(), "some wait for ever");
}

/// What `oxccl explain` with these flags writes: it ends, and has the bytes of the schedule.
fn explained(flags: &[&str], name: &str) -> Vec<Vec<Transfer>> {
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let prefix = prefix.to_str().unwrap();
    let said = oxccl(&[&["explain"], flags, &["--chakra", prefix, "--json"]].concat()).ok();
    let explained: Value = serde_json::from_str(said.out.trim()).unwrap();
    let told = explained["schedule"].as_array().unwrap();
    let traces: Vec<Vec<Transfer>> =
        (0..told.len()).map(|rank| read(&format!("{prefix}.{rank}.et"), rank)).collect();
    carry_out(&traces);
    let messages = |is_send: bool| {
        let all = traces.iter().flatten().filter(|one| one.is_send == is_send);
        let bytes: HashMap<Channel, i64> = all.map(|one| (one.channel, one.bytes)).collect();
        bytes
    };
    let sends = messages(true);
    assert_eq!(sends, messages(false), "{flags:?}");
    assert_eq!(2 * sends.len(), traces.iter().map(Vec::len).sum::<usize>(), "tags are alike");
    for (rank, told) in told.iter().enumerate() {
        let own = traces[rank].iter().filter(|one| one.is_send);
        let bytes: i64 = own.map(|one| one.bytes).sum();
        assert_eq!(told["message_bytes"], bytes, "{flags:?}: rank {rank}");
    }
    traces
}

#[test]
fn each_send_is_received_and_all_end() {
    for (kind, algorithm, encoding, ranks) in [
        ("all_reduce", "ring", "slots", "8"),
        ("all_reduce", "tree", "ll", "7"),
        ("all_reduce", "hierarchical_ring_tree", "slots", "8"),
        ("all_to_all", "pairwise", "slots", "6"),
        ("broadcast", "binomial", "ll128", "6"),
        ("send_recv", "direct", "slots", "3"),
    ] {
        let per_node = if algorithm.starts_with("hierarchical") { "4" } else { ranks };
        let flags = [kind, "-g", ranks, "--per-node", per_node, "-b", "1M"];
        let pins = ["--algorithm", algorithm, "--encoding", encoding];
        explained(&[&flags[..], &pins].concat(), "schedule");
    }
}

/// A message that a list sends on is after its receive by another; in two lists that have nothing
/// to say to each other, nothing is.
#[test]
fn lists_of_a_rank_are_side_by_side() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/two_lists.json");
    let traces = explained(&[file, "-b", "1M"], "two_lists");
    assert!(traces.iter().flatten().all(|one| one.after.is_empty()));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rings.chakra.xml");
    fs::write(&path, msccl_xml::rings("Simple", 4, 2, 3).to_xml()).unwrap();
    let traces = explained(&[path.to_str().unwrap(), "--blocks", "lists", "-b", "1M"], "rings");
    for trace in &traces {
        let received = |id: &u64| trace.iter().any(|one| one.id == *id && !one.is_send);
        assert!(trace.iter().any(|one| one.is_send && !one.after.is_empty()));
        assert!(trace.iter().flat_map(|one| &one.after).all(received));
    }
}

#[test]
fn what_a_trace_cannot_say_is_refused() {
    let refused = |flags: &[&str], why: &str| {
        let said = oxccl(&[&["explain", "--chakra", "x"], flags].concat()).failed(2);
        assert!(said.err.contains(why), "{}", said.err);
        assert!(!Path::new("x.0.et").exists());
    };
    let windows = ["all_reduce", "--algorithm", "two_shot", "--encoding", "windows"];
    refused(&windows, "try --encoding slots");
    refused(&["barrier"], "this schedule sends no data");
    let file = ["all_reduce", "--algorithm", "ring", "--encoding", "slots"];
    let said = oxccl(&[&["explain", "--chakra", "/dev/null/x"][..], &file].concat()).failed(1);
    assert!(said.err.contains("writing /dev/null/x.0.et"), "{}", said.err);
}
