//! Files of MSCCL's as data, written here for tests: what its compilers make of the usual
//! algorithms.

/// A file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) collective: &'static str,
    pub(crate) proto: &'static str,
    /// Of `nchunksperloop`.
    pub(crate) chunks: usize,
    pub(crate) in_place: bool,
    pub(crate) scratch: usize,
    /// By rank.
    pub(crate) ranks: Vec<Vec<Block>>,
}

/// A thread block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) send: Option<usize>,
    pub(crate) recv: Option<usize>,
    pub(crate) channel: usize,
    pub(crate) steps: Vec<Step>,
}

/// A step.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) op: &'static str,
    pub(crate) source: (char, usize),
    pub(crate) destination: (char, usize),
    pub(crate) count: usize,
    pub(crate) depends: Option<(usize, usize)>,
    pub(crate) tells: bool,
}

impl File {
    pub(crate) fn new(
        collective: &'static str,
        (proto, in_place): (&'static str, bool),
        (ranks, chunks, scratch): (usize, usize, usize),
    ) -> File {
        let ranks = vec![Vec::new(); ranks];
        File { collective, proto, chunks, in_place, scratch, ranks }
    }

    /// Its text, an element a line.
    pub(crate) fn to_xml(&self) -> String {
        let File { collective, proto, chunks, scratch, .. } = self;
        let (ranks, in_place) = (self.ranks.len(), u8::from(self.in_place));
        let mut lines = vec![format!(
            r#"<algo name="{collective}_test" proto="{proto}" nchannels="1" nchunksperloop="{chunks}" ngpus="{ranks}" coll="{collective}" inplace="{in_place}" outofplace="{}" minBytes="0" maxBytes="0">"#,
            1 - in_place
        )];
        let number = |of: Option<usize>| of.map_or("-1".to_owned(), |of| of.to_string());
        for (rank, blocks) in self.ranks.iter().enumerate() {
            lines.push(format!(
                r#"  <gpu id="{rank}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="{scratch}">"#
            ));
            for (id, block) in blocks.iter().enumerate() {
                let (send, recv, channel) = (number(block.send), number(block.recv), block.channel);
                lines.push(format!(
                    r#"    <tb id="{id}" send="{send}" recv="{recv}" chan="{channel}">"#
                ));
                for (at, step) in block.steps.iter().enumerate() {
                    let (op, count, tells) = (step.op, step.count, u8::from(step.tells));
                    let ((from, from_at), (to, to_at)) = (step.source, step.destination);
                    let depid = number(step.depends.map(|on| on.0));
                    let deps = number(step.depends.map(|on| on.1));
                    lines.push(format!(
                        r#"      <step s="{at}" type="{op}" srcbuf="{from}" srcoff="{from_at}" dstbuf="{to}" dstoff="{to_at}" cnt="{count}" depid="{depid}" deps="{deps}" hasdep="{tells}"/>"#
                    ));
                }
                lines.push("    </tb>".to_owned());
            }
            lines.push("  </gpu>".to_owned());
        }
        lines.push("</algo>\n".to_owned());
        lines.join("\n")
    }
}

/// A step that depends on nothing, and on which nothing depends.
pub(crate) fn step(
    op: &'static str,
    source: (char, usize),
    destination: (char, usize),
    count: usize,
) -> Step {
    Step { op, source, destination, count, depends: None, tells: false }
}

/// An all-reduce by rings, one a channel, of `count` chunks a rank and channel, in place.
pub(crate) fn rings(proto: &'static str, ranks: usize, channels: usize, count: usize) -> File {
    let mut file = File::new("allreduce", (proto, true), (ranks, ranks * channels * count, 0));
    for (rank, channel) in (0..ranks).flat_map(|rank| (0..channels).map(move |c| (rank, c))) {
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let chunk =
            |turn: usize| ('i', (channel * ranks + (rank + 2 * ranks - turn) % ranks) * count);
        let mut steps = vec![step("s", chunk(0), chunk(0), count)];
        for turn in 1..ranks - 1 {
            steps.push(step("rrs", chunk(turn), chunk(turn), count));
        }
        steps.push(step("rrcs", chunk(ranks - 1), chunk(ranks - 1), count));
        for turn in ranks..2 * ranks - 2 {
            steps.push(step("rcs", chunk(turn), chunk(turn), count));
        }
        steps.push(step("r", chunk(2 * ranks - 2), chunk(2 * ranks - 2), count));
        let (send, recv) = (Some(next), Some(previous));
        file.ranks[rank].push(Block { send, recv, channel, steps });
    }
    file
}

/// An all-reduce in which every rank reduces a chunk: what the others send it lies in scratch. Its
/// thread blocks wait for each other.
pub(crate) fn all_pairs(proto: &'static str, ranks: usize, in_place: bool) -> File {
    let mut file = File::new("allreduce", (proto, in_place), (ranks, ranks, ranks));
    let result = if in_place { 'i' } else { 'o' };
    for rank in 0..ranks {
        let others: Vec<usize> = (0..ranks).filter(|peer| *peer != rank).collect();
        let last = ranks - 2;
        for (at, &peer) in others.iter().enumerate() {
            let mut steps = vec![
                step("s", ('i', peer), ('s', rank), 1),
                Step { tells: true, ..step("r", ('i', rank), ('s', peer), 1) },
            ];
            // The last thread block reduces; all send the result when it has.
            if at == last {
                for (of, &from) in others[..last].iter().enumerate() {
                    let depends = Some((of, 1));
                    steps.push(Step { depends, ..step("nop", ('i', 0), ('i', 0), 0) });
                    let _ = from;
                }
                if !in_place {
                    steps.push(step("cpy", ('i', rank), ('o', rank), 1));
                }
                for &from in &others {
                    steps.push(step("re", ('s', from), (result, rank), 1));
                }
                if let Some(step) = steps.last_mut() {
                    step.tells = true;
                }
            }
            let reduced = if in_place { 2 + last + others.len() } else { 3 + last + others.len() };
            let depends = (at != last).then_some((last, reduced - 1));
            steps.push(Step { depends, ..step("s", (result, rank), (result, rank), 1) });
            steps.push(step("r", (result, peer), (result, peer), 1));
            file.ranks[rank].push(Block { send: Some(peer), recv: Some(peer), channel: 0, steps });
        }
    }
    file
}

/// An all-gather: directly, from one buffer to the other or in place.
pub(crate) fn gather(proto: &'static str, ranks: usize, of_part: usize, in_place: bool) -> File {
    let mut file = File::new("allgather", (proto, in_place), (ranks, ranks * of_part, 0));
    for rank in 0..ranks {
        let own = if in_place { ('o', rank * of_part) } else { ('i', 0) };
        for peer in (0..ranks).filter(|peer| *peer != rank) {
            let theirs = ('o', peer * of_part);
            let steps = vec![
                step("s", own, ('o', rank * of_part), of_part),
                step("r", theirs, theirs, of_part),
            ];
            file.ranks[rank].push(Block { send: Some(peer), recv: Some(peer), channel: 0, steps });
        }
        if !in_place {
            let steps = vec![step("cpy", ('i', 0), ('o', rank * of_part), of_part)];
            file.ranks[rank].push(Block { send: None, recv: None, channel: 0, steps });
        }
    }
    file
}

/// A reduce-scatter by the ring, in place, where the rest of the input is overwritten; with the
/// order of chunks that ends with a rank's part.
pub(crate) fn scatter(proto: &'static str, ranks: usize) -> File {
    let mut file = File::new("reduce_scatter", (proto, true), (ranks, ranks, 0));
    for rank in 0..ranks {
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let chunk = |turn: usize| ('i', (rank + 2 * ranks - 1 - turn) % ranks);
        let mut steps = vec![step("s", chunk(0), chunk(0), 1)];
        for turn in 1..ranks - 1 {
            steps.push(step("rrcs", chunk(turn), chunk(turn), 1));
        }
        steps.push(step("rrc", chunk(ranks - 1), chunk(ranks - 1), 1));
        let (send, recv) = (Some(next), Some(previous));
        file.ranks[rank].push(Block { send, recv, channel: 0, steps });
    }
    file
}

/// An all-to-all of two chunks for each rank, over channels that overtake one another: the receiver
/// wants the second channel's message first.
pub(crate) fn overtaking(proto: &'static str, ranks: usize) -> File {
    let mut file = File::new("alltoall", (proto, false), (ranks, 2 * ranks, 0));
    for rank in 0..ranks {
        for peer in (0..ranks).filter(|peer| *peer != rank) {
            let first = file.ranks[rank].len();
            for channel in 0..2 {
                let (mine, theirs) = (2 * peer + channel, 2 * peer + channel);
                let mut receive = step("r", ('o', theirs), ('o', theirs), 1);
                match channel {
                    0 => receive.depends = Some((first + 3, 0)),
                    _ => receive.tells = true,
                }
                let send = step("s", ('i', mine), ('o', 2 * rank + channel), 1);
                let (to, from) = (Some(peer), Some(peer));
                file.ranks[rank].push(Block { send: to, recv: None, channel, steps: vec![send] });
                file.ranks[rank].push(Block {
                    send: None,
                    recv: from,
                    channel,
                    steps: vec![receive],
                });
            }
        }
        let own = step("cpy", ('i', 2 * rank), ('o', 2 * rank), 2);
        file.ranks[rank].push(Block { send: None, recv: None, channel: 0, steps: vec![own] });
    }
    file
}

/// All-to-all in which every thread block sends more than there are slots before it receives.
pub(crate) fn running_ahead(proto: &'static str, ranks: usize) -> File {
    const MANY: usize = 20;
    let mut file = File::new("alltoall", (proto, false), (ranks, MANY * ranks, 0));
    for rank in 0..ranks {
        for distance in 1..ranks {
            let (to, from) = ((rank + distance) % ranks, (rank + ranks - distance) % ranks);
            let send = |at| step("s", ('i', to * MANY + at), ('o', rank * MANY + at), 1);
            let receive = |at| step("r", ('o', from * MANY + at), ('o', from * MANY + at), 1);
            let steps = (0..MANY).map(send).chain((0..MANY).map(receive)).collect();
            let channel = distance;
            file.ranks[rank].push(Block { send: Some(to), recv: Some(from), channel, steps });
        }
        let own = step("cpy", ('i', rank * MANY), ('o', rank * MANY), MANY);
        file.ranks[rank].push(Block { send: None, recv: None, channel: 0, steps: vec![own] });
    }
    file
}
