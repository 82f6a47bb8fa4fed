//! Files of MSCCL's: what is right is proven, what is wrong or cannot be represented is refused
//! with its line, and what is accepted is right however chance interleaves its thread blocks.
#![allow(clippy::unwrap_used)]

#[path = "../../tests/common/msccl_xml.rs"]
mod msccl_xml;

use msccl_xml::{
    Block, File, Step, all_pairs, gather, overtaking, rings, running_ahead, scatter, step,
};
use oxccl_plans::collective::Order;
use oxccl_plans::msccl::{Blocks, MscclFault, from_xml};
use oxccl_plans::schedule::{Chunking, ScheduleFile};
use oxccl_plans::verify::{Violation, infer_raw, verify};
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};

fn read(file: &File) -> Result<ScheduleFile, MscclFault> {
    read_with(file, Blocks::Merged)
}

fn read_with(file: &File, blocks: Blocks) -> Result<ScheduleFile, MscclFault> {
    let mut read = from_xml(&file.to_xml(), blocks)?;
    infer_raw(&mut read.schedule);
    Ok(read)
}

/// With thread blocks in an order, and with each as a list.
fn prove(file: &File) -> Result<(), Violation> {
    Blocks::ALL.into_iter().try_for_each(|blocks| {
        let ScheduleFile { schedule, order, in_place, .. } = read_with(file, blocks).unwrap();
        verify(schedule, order, in_place).map(drop)
    })
}

fn right() -> Vec<File> {
    let mut all = Vec::new();
    for proto in ["Simple", "LL", "LL128"] {
        for ranks in [2, 3, 8] {
            all.extend([1, 2].map(|channels| rings(proto, ranks, channels, 1)));
            all.extend([false, true].map(|in_place| all_pairs(proto, ranks, in_place)));
            all.extend([false, true].map(|in_place| gather(proto, ranks, 3, in_place)));
            all.extend([scatter(proto, ranks), overtaking(proto, ranks)]);
        }
        for ranks in [2, 3] {
            all.push(running_ahead(proto, ranks));
        }
    }
    all
}

#[test]
fn what_is_right_is_proven() {
    for file in right() {
        prove(&file).unwrap_or_else(|why| panic!("{}: {why}", file.to_xml()));
        model(&file, 1).unwrap();
    }
}

/// Chunks that always move together are one, and a message has no more than it has segments.
#[test]
fn chunks_are_no_finer_than_steps() {
    let chunks = |file: &File| match read(file).unwrap().schedule.input {
        Chunking::Parts(parts) => parts,
        other => panic!("{other:?}"),
    };
    assert_eq!(chunks(&rings("Simple", 4, 2, 24)), 8);
    let mut finer = rings("Simple", 4, 1, 40);
    // A chunk by itself: nothing is coarser then.
    let alone = step("cpy", ('i', 7), ('i', 7), 1);
    finer.ranks[0][0].steps.insert(0, alone);
    assert_eq!(chunks(&finer), 160);
    prove(&finer).unwrap();
    let schedule = read(&finer).unwrap().schedule;
    assert_eq!(schedule.most_segments()[1].1, 16);
}

/// In place the rest of a buffer may be written, with separate ones it goes to scratch.
#[test]
fn what_no_buffer_has_room_for_is_in_scratch() {
    let chunks = |file: &File| read(file).unwrap().schedule.scratch;
    assert_eq!(chunks(&rings("LL", 4, 2, 1)), 0);
    assert_eq!(chunks(&scatter("LL", 4)), 2);
    assert_eq!(chunks(&all_pairs("LL", 4, true)), 3);
    // A message that lies in front of the one that is wanted.
    assert!(chunks(&overtaking("LL", 2)) > 0);
    // More messages than there are slots, before any is wanted.
    for blocks in Blocks::ALL {
        let chunks = |proto| read_with(&running_ahead(proto, 2), blocks).unwrap().schedule.scratch;
        assert_eq!(["LL", "LL128", "Simple"].map(chunks), [12, 12, 16], "{blocks:?}");
    }
}

/// Copies in front of thread blocks, as TE-CCL writes them, are done before these.
#[test]
fn copies_come_first() {
    let mut file = gather("Simple", 3, 1, false);
    for (rank, blocks) in file.ranks.iter_mut().enumerate() {
        blocks.pop();
        blocks[0].steps[0].source = ('o', rank);
    }
    let text = (0..3).fold(file.to_xml(), |text, rank| {
        let gpu = format!("<gpu id=\"{rank}\" i_chunks=\"3\" o_chunks=\"3\" s_chunks=\"0\">");
        text.replace(&gpu, &format!("{gpu}<copy i_off=\"0\" o_off=\"{rank}\"/>"))
    });
    for blocks in Blocks::ALL {
        let ScheduleFile { schedule, order, .. } = from_xml(&text, blocks).unwrap();
        verify(schedule, order, true).unwrap();
    }
    let order = Order::Any;
    let fault = from_xml(&text.replace("o_off=\"2\"", "o_off=\"3\""), Blocks::Merged)
        .unwrap_err()
        .to_string();
    assert!(fault.contains("o[3]: this buffer has 3 chunks"), "{fault}");
    let refused = from_xml(&text.replace("o_off=\"2\"", "o_off=\"1\""), Blocks::Merged).unwrap();
    assert!(verify(refused.schedule, order, false).is_err());
}

/// Names the line of a fault.
fn line_of(file: &File) -> (usize, String) {
    match read(file) {
        Err(MscclFault::Line { line, unfit }) => (line, unfit.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_cannot_be_represented_is_named_with_its_line() {
    type Change = fn(&mut File);
    let cases: [(usize, &str, Change); 14] = [
        (1, "nchunksperloop=\"65537\": at most 65536", |file| file.chunks = 65537),
        (1, "proto=\"Fast\": Simple, LL or LL128", |file| file.proto = "Fast"),
        (1, "coll=\"custom\": the file does not say what its result should be", |file| {
            file.collective = "custom";
        }),
        (1, "all_gather over 3 ranks cannot have 4 chunks", |file| {
            (file.collective, file.chunks) = ("allgather", 4);
        }),
        (1, "nchunksperloop", |file| file.chunks = 0),
        (3, "send=\"3\": another rank, 0 to 2, or -1 for none", |file| {
            file.ranks[0][0].send = Some(3);
        }),
        (3, "send=\"0\": another rank", |file| file.ranks[0][0].send = Some(0)),
        (4, "it sends, and its thread block has no rank to send to", |file| {
            file.ranks[0][0].send = None;
        }),
        (5, "it receives, and its thread block has no rank to receive from", |file| {
            file.ranks[0][0].recv = None;
        }),
        (5, "type=\"jump\": one of s, r,", |file| file.ranks[0][0].steps[1].op = "jump"),
        (4, "i[3]: this buffer has 3 chunks", |file| file.ranks[0][0].steps[0].source.1 = 3),
        (4, "srcbuf=\"x\": i, o or s", |file| file.ranks[0][0].steps[0].source.0 = 'x'),
        (6, "it depends on step 9 of thread block 0, which is not there", |file| {
            file.ranks[0][0].steps[2].depends = Some((0, 9));
        }),
        (6, "it depends on line 4, which has hasdep=\"0\"", |file| {
            file.ranks[0][0].steps[2].depends = Some((0, 0));
        }),
    ];
    for (line, text, change) in cases {
        let mut file = rings("Simple", 3, 1, 1);
        change(&mut file);
        if text == "nchunksperloop" {
            assert_eq!(line_of(&file).0, line);
            continue;
        }
        let (found, unfit) = line_of(&file);
        assert!(found == line && unfit.starts_with(text), "line {found}: {unfit}");
    }
    let mut shared = rings("Simple", 3, 2, 1);
    shared.ranks[0][1].channel = 0;
    let (line, unfit) = line_of(&shared);
    assert_eq!(
        (line, unfit.as_str()),
        (10, "thread block 0 of the rank sends on channel 0 too, to rank 1")
    );
    let mut shorter = rings("Simple", 3, 1, 2);
    shorter.ranks[1][0].steps[1].count = 1;
    let unfit = line_of(&shorter).1;
    assert!(unfit.starts_with("it receives 1 chunks, and line 4 sends 2"), "{unfit}");
}

#[test]
fn what_is_no_file_of_mscclls_is_named_with_its_line() {
    let text = rings("Simple", 3, 1, 1).to_xml();
    for (from, to, fault) in [
        ("</algo>", "", "the file ends in the middle"),
        ("</tb>", "</gpu>", "line 9: expected 'tb' tag"),
        ("<algo", "<algorithm/><algo", "line 1"),
        ("cnt=\"1\"", "", "line 4: <step> has no cnt"),
        ("cnt=\"1\"", "cnt=\"one\"", "line 4: cnt=\"one\": a number"),
        ("cnt=\"1\"", "cnt=\"0\"", "line 4: cnt=\"0\": at least 1"),
        ("hasdep=\"0\"", "hasdep=\"2\"", "line 4: hasdep=\"2\": 0 or 1"),
        ("depid=\"-1\"", "depid=\"-2\"", "line 4: depid=\"-2\": a number, or -1 for none"),
        ("step s=\"1\"", "step s=\"7\"", "line 5: s=\"7\": 1: steps are numbered in their order"),
        ("tb id=\"0\"", "tb id=\"1\"", "line 3: id=\"1\": 0: thread blocks are numbered"),
        ("gpu id=\"1\"", "gpu id=\"0\"", "id=\"0\": each of 0 to 2 once"),
        ("gpu id=\"0\"", "gpu id=\"5\"", "line 2: id=\"5\": each of 0 to 2 once"),
        ("ngpus=\"3\"", "ngpus=\"4\"", "line 1: ngpus=\"4\": there are 3 <gpu>"),
        ("inplace=\"1\"", "", "line 1: <algo> has no inplace"),
        ("<tb ", "<wat/><tb ", "line 3: <wat> where <tb> belongs"),
    ] {
        let changed = text.replacen(from, to, 1);
        let found = from_xml(&changed, Blocks::Merged).unwrap_err().to_string();
        assert!(found.contains(fault), "{from}: {found}");
    }
}

#[test]
fn thread_blocks_that_wait_for_each_other_are_told_in_a_circle() {
    let mut file = gather("Simple", 2, 1, true);
    for rank in 0..2 {
        file.ranks[rank][0].steps.reverse();
    }
    let fault = read(&file).unwrap_err();
    assert!(fault.is_wrong());
    let story = fault.story();
    assert_eq!(
        story,
        "line 4 (gpu 0, tb 0, step 0) waits for a message of line 11 (gpu 1, tb 0, step 1).\n\
         line 10 (gpu 1, tb 0, step 0) waits for a message of line 5 (gpu 0, tb 0, step 1).\n"
    );
    let mut file = gather("Simple", 2, 1, true);
    file.ranks[1][0].steps.remove(0);
    let story = read(&file).unwrap_err().story();
    assert!(
        story.contains("waits for a message of rank 1 on channel 0, who sends no more"),
        "{story}"
    );
    let mut file = gather("Simple", 2, 1, true);
    file.ranks[0][0].steps[0] = Step { depends: Some((0, 1)), ..file.ranks[0][0].steps[0].clone() };
    file.ranks[0][0].steps[1].tells = true;
    let story = read(&file).unwrap_err().story();
    assert!(story.contains("waits for line 5 (gpu 0, tb 0, step 1) to be done"), "{story}");
}

/// Nobody reduces, a chunk is left out, one is reduced twice: the verifier's to say.
#[test]
fn wrong_results_are_refused() {
    let mut copies = all_pairs("LL", 3, true);
    for step in copies.ranks.iter_mut().flatten().flat_map(|block| &mut block.steps) {
        step.op = if step.op == "re" { "cpy" } else { step.op };
    }
    let refused = prove(&copies).unwrap_err();
    assert!(matches!(refused, Violation::WrongValue { .. }), "{refused}");
    let mut twice = all_pairs("LL", 3, true);
    for step in twice.ranks.iter_mut().flatten().flat_map(|block| &mut block.steps) {
        if step.op == "re" {
            step.source.1 = if step.source.1 == 2 { 1 } else { step.source.1 };
        }
    }
    assert!(prove(&twice).is_err());
}

#[test]
fn a_dependency_that_is_dropped_is_a_race() {
    for in_place in [false, true] {
        let file = all_pairs("Simple", 4, in_place);
        let mut dropped = 0;
        for (rank, block) in (0..4).flat_map(|rank| (0..3).map(move |block| (rank, block))) {
            for at in 0..file.ranks[rank][block].steps.len() {
                let mut changed = file.clone();
                let step = &mut changed.ranks[rank][block].steps[at];
                if step.depends.take().is_none() {
                    continue;
                }
                let fault = read(&changed).unwrap_err();
                assert!(matches!(fault, MscclFault::Race { .. }), "{fault}");
                assert!(fault.is_wrong() && fault.to_string().contains("which both touch"));
                dropped += 1;
            }
        }
        assert_eq!(dropped, 16);
    }
}

/// Everything that may go wrong with a file, once.
fn damage(file: &File, (rank, block, at): (usize, usize, usize), choice: usize) -> File {
    let mut file = file.clone();
    let (ranks, chunks, scratch) = (file.ranks.len(), file.chunks, file.scratch.max(1));
    let blocks = &mut file.ranks[rank % ranks];
    let number = block % blocks.len();
    let steps = &mut blocks[number].steps;
    let at = at % steps.len();
    let next = (at + 1) % steps.len();
    match choice {
        0 => drop(steps.remove(at)),
        1 => steps.swap(at, next),
        2 => steps[at].depends = None,
        3 => {
            steps[at].source.1 =
                (steps[at].source.1 + 1) % if steps[at].source.0 == 's' { scratch } else { chunks }
        }
        4 => {
            steps[at].destination.1 = (steps[at].destination.1 + 1)
                % if steps[at].destination.0 == 's' { scratch } else { chunks }
        }
        5 => {
            let moved = steps.remove(at);
            blocks.push(Block { send: None, recv: None, channel: 0, steps: vec![moved] });
        }
        6 => steps[at].op = ["re", "cpy"][usize::from(steps[at].op == "re")],
        _ => {
            let again = steps[at].clone();
            steps.insert(at, again);
        }
    }
    file
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, ..ProptestConfig::default() })]
    #[test]
    fn what_is_accepted_is_right_in_every_interleaving(
        which in 0..4_usize,
        place in (0..4_usize, 0..8_usize, 0..16_usize),
        choice in 0..8_usize,
        seed in any::<u64>(),
    ) {
        let file = match which {
            0 => rings("Simple", 3, 2, 1),
            1 => all_pairs("Simple", 3, true),
            2 => all_pairs("Simple", 4, false),
            _ => overtaking("LL", 3),
        };
        let changed = damage(&file, place, choice);
        let is_accepted = |blocks: Blocks| match read_with(&changed, blocks) {
            Ok(ScheduleFile { schedule, order, in_place, .. }) => {
                verify(schedule, order, in_place).is_ok()
            }
            Err(_) => false,
        };
        let [merged, lists] = Blocks::ALL.map(is_accepted);
        prop_assert!(merged || !lists, "{}", changed.to_xml());
        if merged || lists {
            for turn in 0..8 {
                let found = model(&changed, seed ^ turn);
                prop_assert!(found.is_ok(), "{:?}: {}", found, changed.to_xml());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, ..ProptestConfig::default() })]
    /// Whatever stands in a file, it is read or refused.
    #[test]
    fn any_value_of_any_attribute_is_read_or_refused(
        which in 0..6_usize,
        changes in proptest::collection::vec((any::<usize>(), 0..10_usize), 1..3),
    ) {
        let files = [
            rings("Simple", 3, 2, 20),
            all_pairs("LL", 3, true),
            gather("LL128", 2, 2, false),
            scatter("LL", 3),
            overtaking("Simple", 2),
            all_pairs("Simple", 4, false),
        ];
        let values =
            ["0", "1", "-1", "7", "16", "65536", "99999999999999999999", "18446744073709551615", "", "s"];
        let mut text = files[which].to_xml();
        for (place, value) in changes {
            // What is between quotes: every second piece.
            let mut pieces: Vec<&str> = text.split('"').collect();
            let at = place % (pieces.len() / 2) * 2 + 1;
            pieces[at] = values[value];
            text = pieces.join("\"");
        }
        for blocks in Blocks::ALL {
            if let Ok(ScheduleFile { mut schedule, order, in_place, .. }) = from_xml(&text, blocks) {
                infer_raw(&mut schedule);
                let _ = verify(schedule, order, in_place);
            }
        }
    }
}

/// What a chunk holds: the contributions that are reduced in it.
type Value = Option<Vec<(usize, usize)>>;

fn receives(step: &Step) -> bool {
    step.op.starts_with('r') && step.op != "re"
}

/// Runs the thread blocks side by side, as chance will have it.
fn model(file: &File, seed: u64) -> Result<(), String> {
    let ranks = file.ranks.len();
    let part = if file.collective == "allreduce" { file.chunks } else { file.chunks / ranks };
    let cell = |rank: usize, (buffer, chunk): (char, usize)| match (file.collective, buffer) {
        ("allreduce", 'o') if file.in_place => (rank, 'i', chunk),
        ("allgather", 'i') if file.in_place => (rank, 'o', rank * part + chunk),
        ("reduce_scatter", 'o') if file.in_place => (rank, 'i', rank * part + chunk),
        _ => (rank, buffer, chunk),
    };
    let mut memory: HashMap<(usize, char, usize), Value> = HashMap::new();
    let inputs = if file.collective == "allgather" { part } else { file.chunks };
    for (rank, chunk) in (0..ranks).flat_map(|rank| (0..inputs).map(move |chunk| (rank, chunk))) {
        memory.insert(cell(rank, ('i', chunk)), Some(vec![(rank, chunk)]));
    }
    let mut channels: HashMap<(usize, usize, usize), VecDeque<Vec<Value>>> = HashMap::new();
    let mut next: Vec<Vec<usize>> = file.ranks.iter().map(|blocks| vec![0; blocks.len()]).collect();
    let mut random = seed | 1;
    loop {
        let mut ready = Vec::new();
        for (rank, blocks) in file.ranks.iter().enumerate() {
            for (number, block) in blocks.iter().enumerate() {
                let Some(step) = block.steps.get(next[rank][number]) else { continue };
                let free = step.depends.is_none_or(|(of, at)| next[rank][of] > at);
                let come = !receives(step)
                    || channels
                        .get(&(block.recv.unwrap(), rank, block.channel))
                        .is_some_and(|channel| !channel.is_empty());
                if free && come {
                    ready.push((rank, number));
                }
            }
        }
        if ready.is_empty() {
            break;
        }
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (rank, number) = ready[(random >> 33) as usize % ready.len()];
        let block = &file.ranks[rank][number];
        let step = &block.steps[next[rank][number]];
        next[rank][number] += 1;
        if step.op == "nop" {
            continue;
        }
        let channel = (block.recv.unwrap_or(0), rank, block.channel);
        let come = receives(step).then(|| channels.get_mut(&channel).unwrap().pop_front().unwrap());
        let (mut sent, reads) = (Vec::new(), !matches!(step.op, "r" | "rcs"));
        for at in 0..step.count {
            let of = |(buffer, chunk): (char, usize)| cell(rank, (buffer, chunk + at));
            let mut sources: Vec<Value> = Vec::new();
            if step.op == "re" {
                sources.push(memory.get(&of(step.destination)).cloned().flatten());
            }
            if reads {
                sources.push(memory.get(&of(step.source)).cloned().flatten());
            }
            sources.extend(come.as_ref().map(|come| come[at].clone()));
            let value: Value = sources.into_iter().collect::<Option<Vec<_>>>().map(|all| {
                let mut all = all.concat();
                all.sort_unstable();
                all
            });
            if !matches!(step.op, "s" | "rrs") {
                memory.insert(of(step.destination), value.clone());
            }
            sent.push(value);
        }
        if step.op.ends_with('s') {
            let channel = (rank, block.send.unwrap(), block.channel);
            channels.entry(channel).or_default().push_back(sent);
        }
    }
    for (rank, blocks) in file.ranks.iter().enumerate() {
        if let Some(stuck) = (0..blocks.len()).find(|at| next[rank][*at] < blocks[*at].steps.len())
        {
            return Err(format!("rank {rank}, thread block {stuck} waits for ever"));
        }
    }
    let outputs = if file.collective == "reduce_scatter" { part } else { file.chunks };
    for (rank, chunk) in (0..ranks).flat_map(|rank| (0..outputs).map(move |chunk| (rank, chunk))) {
        let all = |chunk: usize| (0..ranks).map(|from| (from, chunk)).collect();
        let expected: Vec<(usize, usize)> = match file.collective {
            "allreduce" => all(chunk),
            "reduce_scatter" => all(rank * part + chunk),
            "allgather" => vec![(chunk / part, chunk % part)],
            _ => vec![(chunk / part, rank * part + chunk % part)],
        };
        let found = memory.get(&cell(rank, ('o', chunk))).cloned().flatten();
        if found.as_ref() != Some(&expected) {
            return Err(format!("rank {rank}, chunk {chunk}: {found:?}"));
        }
    }
    Ok(())
}
