//! What `oxccl explain --goal` writes: a receive for each send, in an order that ends, with the
//! bytes of the schedule.
#![allow(clippy::unwrap_used)]

mod command_line;
#[path = "../../tests/common/msccl_xml.rs"]
#[allow(dead_code)]
mod msccl_xml;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;

use command_line::oxccl;
use serde_json::Value;

/// From, to and tag.
type Channel = (usize, usize, usize);

#[derive(Debug)]
struct Line {
    is_send: bool,
    channel: Channel,
    bytes: usize,
    /// Which of the rank's lists it is of.
    cpu: usize,
    /// Labels that have to end, and to start, before.
    ends: Vec<String>,
    starts: Vec<String>,
}

/// Ranks' lines by their labels, as txt2bin of LogGOPSim reads them.
fn read(text: &str) -> Vec<HashMap<String, Line>> {
    let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("//"));
    let count: usize = lines.next().unwrap().strip_prefix("num_ranks ").unwrap().parse().unwrap();
    let mut ranks = Vec::new();
    while let Some(head) = lines.next() {
        assert_eq!(head, format!("rank {} {{", ranks.len()));
        let mut list = HashMap::new();
        for line in lines.by_ref().take_while(|line| *line != "}") {
            read_line(line, ranks.len(), &mut list);
        }
        ranks.push(list);
    }
    assert_eq!(ranks.len(), count);
    ranks
}

fn read_line(line: &str, rank: usize, list: &mut HashMap<String, Line>) {
    let (line, cpu) = line.split_once(" cpu ").unwrap_or((line, "0"));
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        [label, verb, bytes, "to" | "from", peer, "tag", tag] => {
            let (label, is_send) = (label.strip_suffix(':').unwrap(), verb == "send");
            assert!(is_send || verb == "recv", "{line}");
            let (peer, tag) = (peer.parse().unwrap(), tag.parse().unwrap());
            let channel = if is_send { (rank, peer, tag) } else { (peer, rank, tag) };
            let bytes = bytes.strip_suffix('b').unwrap().parse().unwrap();
            let (ends, starts, cpu) = (Vec::new(), Vec::new(), cpu.parse().unwrap());
            let line = Line { is_send, channel, bytes, cpu, ends, starts };
            assert!(list.insert(label.to_owned(), line).is_none(), "{label} is there twice");
        }
        [label, kind, before] => {
            assert!(list.contains_key(before), "{before} is named before it is there");
            let line = list.get_mut(label).unwrap();
            let after = if kind == "requires" { &mut line.ends } else { &mut line.starts };
            assert!(kind == "requires" || kind == "irequires", "{kind}");
            after.push(before.to_owned());
        }
        _ => panic!("what is {line}?"),
    }
}

/// Carries all out, where a send ends only when it is received: every line must end.
fn carry_out(ranks: &[HashMap<String, Line>]) {
    let all: Vec<(usize, &String, &Line)> = ranks
        .iter()
        .enumerate()
        .flat_map(|(rank, list)| list.iter().map(move |(label, line)| (rank, label, line)))
        .collect();
    let (mut started, mut ended) = (HashSet::new(), HashSet::new());
    // By channel: a send and a receive that have started.
    let mut open: BTreeMap<Channel, Vec<(usize, &String)>> = BTreeMap::new();
    loop {
        let before = (started.len(), ended.len());
        for (rank, label, line) in &all {
            let is_ready = line.ends.iter().all(|one| ended.contains(&(*rank, one)))
                && line.starts.iter().all(|one| started.contains(&(*rank, one)));
            if is_ready && started.insert((*rank, *label)) {
                let both = open.entry(line.channel).or_default();
                both.push((*rank, label));
                if both.len() == 2 {
                    ended.extend(both.iter().copied());
                }
            }
        }
        if before == (started.len(), ended.len()) {
            break;
        }
    }
    assert_eq!(ended.len(), all.len(), "some wait for ever");
}

/// What `oxccl explain` with these flags writes: it ends, and has the bytes of the schedule.
fn explained(flags: &[&str], name: &str) -> Vec<HashMap<String, Line>> {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let file = file.to_str().unwrap();
    let said = oxccl(&[&["explain"], flags, &["--goal", file, "--json"]].concat()).ok();
    let goal = read(&fs::read_to_string(file).unwrap());
    let messages = |is_send: bool| {
        let lines = goal.iter().flat_map(HashMap::values);
        let lines = lines.filter(|line| line.is_send == is_send);
        let mut all: Vec<_> = lines.map(|line| (line.channel, line.bytes)).collect();
        all.sort_unstable();
        all
    };
    let sends = messages(true);
    assert_eq!(sends, messages(false), "{flags:?}");
    assert!(sends.windows(2).all(|two| two[0].0 != two[1].0), "{flags:?}: {sends:?}");
    carry_out(&goal);
    let explained: Value = serde_json::from_str(said.out.trim()).unwrap();
    for (rank, told) in explained["schedule"].as_array().unwrap().iter().enumerate() {
        let own = sends.iter().filter(|((from, ..), _)| *from == rank);
        let bytes: usize = own.map(|(_, bytes)| bytes).sum();
        assert_eq!(told["message_bytes"], bytes, "{flags:?}: rank {rank}");
    }
    goal
}

#[test]
fn each_send_is_received_and_all_end() {
    for (kind, algorithm, encoding, ranks) in [
        ("all_reduce", "ring", "slots", "8"),
        ("all_reduce", "ring", "ll128", "5"),
        ("all_reduce", "tree", "ll", "7"),
        ("all_reduce", "halving_doubling", "slots", "8"),
        ("all_reduce", "multi_ring", "slots", "8"),
        ("all_reduce", "hierarchical_ring_tree", "slots", "8"),
        ("all_to_all", "pairwise", "slots", "6"),
        ("all_gather", "direct", "ll", "6"),
        ("broadcast", "binomial", "ll", "6"),
        ("reduce", "chain", "slots", "4"),
        ("send_recv", "direct", "slots", "3"),
    ] {
        let per_node = if algorithm.starts_with("hierarchical") { "4" } else { ranks };
        let flags = [kind, "-g", ranks, "--per-node", per_node, "-b", "1M"];
        let pins = ["--algorithm", algorithm, "--encoding", encoding];
        explained(&[&flags[..], &pins].concat(), "schedule.goal");
    }
}

/// A line and the labels that it is after.
fn before<'a>(list: &'a HashMap<String, Line>, line: &'a Line) -> impl Iterator<Item = &'a Line> {
    line.ends.iter().chain(&line.starts).map(|label| &list[label])
}

#[test]
fn lists_of_a_rank_are_side_by_side() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/two_lists.json");
    let goal = explained(&[file, "-b", "1M"], "two_lists.goal");
    for list in &goal {
        let mut cpus: Vec<_> = list.values().map(|line| (line.cpu, line.is_send)).collect();
        cpus.sort_unstable();
        assert_eq!(cpus, [(0, true), (1, false)]);
        assert!(list.values().all(|line| before(list, line).count() == 0), "{list:?}");
    }
    // Each ring is a list. In all pairs each list receives and sends a chunk, and one reduces.
    for (name, file, crosses) in [
        ("rings.goal.xml", msccl_xml::rings("Simple", 4, 2, 3), false),
        ("all_pairs.goal.xml", msccl_xml::all_pairs("LL", 4, false), true),
    ] {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&path, file.to_xml()).unwrap();
        let path = path.to_str().unwrap();
        let of = |blocks| explained(&[path, "--blocks", blocks, "-b", "1M"], "blocks.goal");
        let (merged, lists) = (of("merged"), of("lists"));
        let bytes = |goal: &[HashMap<String, Line>]| {
            goal.iter().flat_map(HashMap::values).map(|line| line.bytes).sum::<usize>()
        };
        assert_eq!(bytes(&merged), bytes(&lists), "{name}");
        assert!(merged.iter().flat_map(HashMap::values).all(|line| line.cpu == 0), "{name}");
        for list in &lists {
            // The second send of each list is of the result: after what all lists have received.
            let mut seconds = 0;
            for line in list.values().filter(|line| line.is_send && !line.ends.is_empty()) {
                let cpus: HashSet<usize> = before(list, line).map(|one| one.cpu).collect();
                assert_eq!(cpus.len(), if crosses { 3 } else { 1 }, "{name}: {line:?}");
                seconds += usize::from(crosses);
            }
            assert_eq!(seconds, if crosses { 3 } else { 0 }, "{name}");
        }
    }
}

#[test]
fn what_goal_cannot_say_is_refused() {
    let refused = |flags: &[&str], why: &str| {
        let said = oxccl(&[&["explain", "--goal", "x.goal"], flags].concat()).failed(2);
        assert!(said.err.contains(why), "{}", said.err);
    };
    let windows = ["all_reduce", "--algorithm", "two_shot", "--encoding", "windows"];
    refused(&windows, "try --encoding slots");
    refused(&["barrier"], "this schedule sends no data");
    let large =
        ["all_reduce", "-g", "512", "--rank", "3", "--algorithm", "ring", "--encoding", "slots"];
    refused(&large, "leave --rank away");
    let file = ["all_reduce", "--algorithm", "ring", "--encoding", "slots"];
    let said = oxccl(&[&["explain", "--goal", "/dev/null/x"][..], &file].concat()).failed(1);
    assert!(said.err.contains("writing /dev/null/x"), "{}", said.err);
}
