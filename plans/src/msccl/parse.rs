//! From text to steps, each with its line: everything is checked that can be seen without running
//! it.

use super::fault::{MscclFault, Place, Unfit};
use crate::collective::{Collective, Kind};
use crate::schedule::SEGMENTS;
use oxccl_format::Lane;
use roxmltree::{Document, Node};
use std::collections::HashMap;
use std::ops::Range;
use std::str::FromStr;

/// Most chunks of a buffer. The longest of public files have some hundreds.
pub(super) const CHUNKS_MAX: usize = 1 << 16;

/// A file.
#[derive(Debug)]
pub(super) struct Algorithm {
    pub(super) name: Option<String>,
    pub(super) collective: Collective,
    pub(super) lane: Lane,
    pub(super) in_place: bool,
    /// Chunks of one rank's part, or of the whole where ranks have no parts.
    pub(super) chunks: usize,
    /// By rank.
    pub(super) ranks: Vec<Vec<Block>>,
}

/// A thread block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) send: Option<usize>,
    pub(super) recv: Option<usize>,
    pub(super) channel: usize,
    /// It is no thread block: its steps are done before all others of the rank.
    pub(super) is_first: bool,
    pub(super) steps: Vec<Step>,
}

/// A step, or a part of one: a message has no more chunks than it can have segments.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) op: Op,
    pub(super) source: Span,
    pub(super) destination: Span,
    pub(super) count: usize,
    /// A step of another thread block of this rank that must be done before: its thread block, and
    /// its index there.
    pub(super) dependency: Option<(usize, usize)>,
    pub(super) place: Place,
}

/// Chunks of a buffer, from this one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) buffer: Buffer,
    pub(super) first: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Buffer {
    Input,
    Output,
    Scratch,
}

impl Buffer {
    /// As files call it.
    pub(super) fn letter(self) -> char {
        match self {
            Buffer::Input => 'i',
            Buffer::Output => 'o',
            Buffer::Scratch => 's',
        }
    }
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Send,
    Recv,
    RecvCopySend,
    RecvReduceCopy,
    RecvReduceSend,
    RecvReduceCopySend,
    Copy,
    Reduce,
    Nop,
}

impl Op {
    const NAMES: [(&str, Op); 11] = [
        ("s", Op::Send),
        ("r", Op::Recv),
        ("rcs", Op::RecvCopySend),
        ("rrc", Op::RecvReduceCopy),
        ("rrs", Op::RecvReduceSend),
        ("rrcs", Op::RecvReduceCopySend),
        ("cpy", Op::Copy),
        ("c", Op::Copy),
        ("re", Op::Reduce),
        ("nop", Op::Nop),
        ("copy", Op::Copy),
    ];

    pub(super) fn receives(self) -> bool {
        !matches!(self, Op::Send | Op::Copy | Op::Reduce | Op::Nop)
    }

    pub(super) fn sends(self) -> bool {
        matches!(self, Op::Send | Op::RecvCopySend | Op::RecvReduceSend | Op::RecvReduceCopySend)
    }

    /// Whether it reads the source.
    pub(super) fn reads(self) -> bool {
        !matches!(self, Op::Recv | Op::RecvCopySend | Op::Nop)
    }

    /// Whether it writes the destination.
    pub(super) fn writes(self) -> bool {
        !matches!(self, Op::Send | Op::RecvReduceSend | Op::Nop)
    }
}

/// Reads a file.
pub(super) fn parse(text: &str) -> Result<Algorithm, MscclFault> {
    let document =
        crate::xml::document(text).map_err(|(line, fault)| MscclFault::Xml { line, fault })?;
    let reader = Reader { document: &document };
    let root = document.root_element();
    if root.tag_name().name() != "algo" {
        return Err(reader.unfit(root, Unfit::Element(root.tag_name().name().to_owned(), "algo")));
    }
    let mut algorithm = reader.algorithm(root)?;
    coarsen(&mut algorithm);
    algorithm.split();
    Ok(algorithm)
}

struct Reader<'a> {
    document: &'a Document<'a>,
}

type Element<'a> = Node<'a, 'a>;

/// A step as it is written, with what it depends on.
struct Written {
    step: Step,
    depends: Option<(usize, usize)>,
    tells: bool,
}

impl<'a> Reader<'a> {
    fn line(&self, element: Element<'_>) -> usize {
        self.document.text_pos_at(element.range().start).row as usize
    }

    fn unfit(&self, element: Element<'_>, unfit: Unfit) -> MscclFault {
        MscclFault::Line { line: self.line(element), unfit }
    }

    fn value(&self, element: Element<'_>, attribute: &'static str, wanted: String) -> MscclFault {
        let value = element.attribute(attribute).unwrap_or_default().to_owned();
        self.unfit(element, Unfit::Value { attribute, value, wanted })
    }

    fn required(
        &self,
        element: Element<'a>,
        (name, attribute): (&'static str, &'static str),
    ) -> Result<&'a str, MscclFault> {
        let missing = || self.unfit(element, Unfit::Missing { element: name, attribute });
        element.attribute(attribute).ok_or_else(missing)
    }

    fn number<T: FromStr>(
        &self,
        element: Element<'a>,
        (name, attribute): (&'static str, &'static str),
    ) -> Result<T, MscclFault> {
        let text = self.required(element, (name, attribute))?;
        text.trim().parse().map_err(|_| self.value(element, attribute, "a number".to_owned()))
    }

    /// A number, or nothing where it is -1.
    fn number_or_none(
        &self,
        element: Element<'a>,
        (name, attribute): (&'static str, &'static str),
    ) -> Result<Option<usize>, MscclFault> {
        match self.number::<i64>(element, (name, attribute))? {
            -1 => Ok(None),
            number => usize::try_from(number)
                .map(Some)
                .map_err(|_| self.value(element, attribute, "a number, or -1 for none".to_owned())),
        }
    }

    fn flag(
        &self,
        element: Element<'a>,
        (name, attribute): (&'static str, &'static str),
    ) -> Result<bool, MscclFault> {
        match self.required(element, (name, attribute))? {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(self.value(element, attribute, "0 or 1".to_owned())),
        }
    }

    /// The elements inside of this one, all of which have this name, but for copies in front.
    fn inner(&self, of: Element<'a>, name: &'static str) -> Result<Vec<Element<'a>>, MscclFault> {
        let is_copy = |one: &Element<'a>| name == "tb" && one.tag_name().name() == "copy";
        let elements = of.children().filter(Node::is_element);
        let all: Vec<Element<'a>> = elements.skip_while(is_copy).collect();
        match all.iter().find(|one| one.tag_name().name() != name) {
            Some(other) => {
                let found = other.tag_name().name().to_owned();
                Err(self.unfit(*other, Unfit::Element(found, name)))
            }
            None => Ok(all),
        }
    }

    fn algorithm(&self, root: Element<'a>) -> Result<Algorithm, MscclFault> {
        let ranks = self.number::<usize>(root, ("algo", "ngpus"))?;
        let total = self.number::<usize>(root, ("algo", "nchunksperloop"))?;
        let lane = match self.required(root, ("algo", "proto"))? {
            "Simple" => Lane::Slots,
            "LL" => Lane::Ll,
            "LL128" => Lane::Ll128,
            _ => return Err(self.value(root, "proto", "Simple, LL or LL128".to_owned())),
        };
        let kind = self.kind(root)?;
        let of_root = match root.attribute("root") {
            Some(_) => self.number(root, ("algo", "root"))?,
            None => 0,
        };
        if ranks == 0 || of_root >= ranks {
            return Err(self.value(
                root,
                "ngpus",
                "a rank at least, the root among them".to_owned(),
            ));
        }
        let collective = Collective { kind, ranks, root: of_root, receiver: 0 };
        if total > CHUNKS_MAX {
            return Err(self.value(root, "nchunksperloop", format!("at most {CHUNKS_MAX}")));
        }
        let has_parts = !matches!(kind, Kind::AllReduce | Kind::Broadcast | Kind::Reduce);
        let parts = if has_parts { ranks } else { 1 };
        if total == 0 || !total.is_multiple_of(parts) {
            return Err(self.unfit(root, Unfit::Parts { kind, ranks, chunks: total }));
        }
        let mut algorithm = Algorithm {
            name: root.attribute("name").map(str::to_owned),
            collective,
            lane,
            in_place: self.flag(root, ("algo", "inplace"))?,
            chunks: total / parts,
            ranks: Vec::new(),
        };
        let gpus = self.inner(root, "gpu")?;
        if gpus.len() != ranks {
            let wanted = format!("there are {} <gpu>", gpus.len());
            return Err(self.value(root, "ngpus", wanted));
        }
        let mut of_ranks: HashMap<usize, Vec<Block>> = HashMap::new();
        for gpu in gpus {
            let rank = self.number::<usize>(gpu, ("gpu", "id"))?;
            if rank >= ranks || of_ranks.contains_key(&rank) {
                let wanted = format!("each of 0 to {} once", ranks - 1);
                return Err(self.value(gpu, "id", wanted));
            }
            of_ranks.insert(rank, self.rank(gpu, rank, &algorithm)?);
        }
        algorithm.ranks = (0..ranks).filter_map(|rank| of_ranks.remove(&rank)).collect();
        Ok(algorithm)
    }

    fn kind(&self, root: Element<'a>) -> Result<Kind, MscclFault> {
        let plain = |text: &str| text.to_lowercase().replace(['_', '-'], "");
        let name = plain(self.required(root, ("algo", "coll"))?);
        let known =
            Kind::ALL.into_iter().filter(|kind| !matches!(kind, Kind::SendRecv | Kind::Barrier));
        let known: Vec<(String, Kind)> = known.map(|kind| (plain(kind.name()), kind)).collect();
        match known.iter().find(|(one, _)| *one == name) {
            Some((_, kind)) => Ok(*kind),
            None => {
                let names: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
                let wanted = format!(
                    "the file does not say what its result should be; there are {}",
                    names.join(", ")
                );
                Err(self.value(root, "coll", wanted))
            }
        }
    }

    fn rank(
        &self,
        gpu: Element<'a>,
        rank: usize,
        algorithm: &Algorithm,
    ) -> Result<Vec<Block>, MscclFault> {
        let scratch = self.number::<usize>(gpu, ("gpu", "s_chunks"))?;
        let elements = self.inner(gpu, "tb")?;
        let (mut blocks, mut written) = (Vec::new(), Vec::new());
        for (number, &element) in elements.iter().enumerate() {
            if self.number::<usize>(element, ("tb", "id"))? != number {
                let wanted = format!("{number}: thread blocks are numbered in their order");
                return Err(self.value(element, "id", wanted));
            }
            let block = self.block(element, (rank, number), algorithm, scratch)?;
            self.check_connections(element, &blocks, &block.0)?;
            blocks.push(block.0);
            written.push(block.1);
        }
        self.resolve(&elements, &written)?;
        let copies = gpu.children().filter(|one| one.tag_name().name() == "copy");
        let copies: Vec<Element<'a>> = copies.collect();
        if !copies.is_empty() {
            let block = (rank, blocks.len());
            let steps = copies.into_iter().enumerate();
            let steps = steps.map(|(step, copy)| self.copy(copy, (block, step), algorithm));
            written.push(steps.collect::<Result<_, _>>()?);
            let (send, recv, steps) = (None, None, Vec::new());
            blocks.push(Block { send, recv, channel: 0, is_first: true, steps });
        }
        for (block, written) in blocks.iter_mut().zip(written) {
            block.steps = written
                .into_iter()
                .map(|one| Step { dependency: one.depends, ..one.step })
                .collect();
        }
        Ok(blocks)
    }

    /// A connection in one direction is one thread block's.
    fn check_connections(
        &self,
        element: Element<'a>,
        blocks: &[Block],
        new: &Block,
    ) -> Result<(), MscclFault> {
        for (other, block) in
            blocks.iter().enumerate().filter(|(_, one)| one.channel == new.channel)
        {
            let sides =
                [(block.send, new.send, "send", "to"), (block.recv, new.recv, "receive", "from")];
            for (theirs, mine, verb, preposition) in sides {
                if let (Some(peer), true) = (mine, mine == theirs) {
                    let channel = new.channel;
                    let unfit = Unfit::Connection { other, verb, preposition, peer, channel };
                    return Err(self.unfit(element, unfit));
                }
            }
        }
        Ok(())
    }

    /// Steps that others depend on are there, and tell that they are done.
    fn resolve(
        &self,
        elements: &[Element<'a>],
        written: &[Vec<Written>],
    ) -> Result<(), MscclFault> {
        for (element, block) in elements.iter().zip(written) {
            let steps = self.inner(*element, "step")?;
            for (element, one) in steps.into_iter().zip(block) {
                let Some((of, step)) = one.depends else { continue };
                let unfit = match written.get(of).and_then(|block| block.get(step)) {
                    None => Unfit::NoStep { block: of, step },
                    Some(other) if !other.tells => Unfit::Silent(other.step.place.line),
                    Some(_) => continue,
                };
                return Err(self.unfit(element, unfit));
            }
        }
        Ok(())
    }

    fn block(
        &self,
        element: Element<'a>,
        (rank, number): (usize, usize),
        algorithm: &Algorithm,
        scratch: usize,
    ) -> Result<(Block, Vec<Written>), MscclFault> {
        let ranks = algorithm.collective.ranks;
        let peer =
            |attribute: &'static str| match self.number_or_none(element, ("tb", attribute))? {
                Some(peer) if peer >= ranks || peer == rank => {
                    let wanted = format!("another rank, 0 to {}, or -1 for none", ranks - 1);
                    Err(self.value(element, attribute, wanted))
                }
                other => Ok(other),
            };
        let block = Block {
            send: peer("send")?,
            recv: peer("recv")?,
            channel: self.number(element, ("tb", "chan"))?,
            is_first: false,
            steps: Vec::new(),
        };
        let mut written = Vec::new();
        for (index, step) in self.inner(element, "step")?.into_iter().enumerate() {
            if self.number::<usize>(step, ("step", "s"))? != index {
                let wanted = format!("{index}: steps are numbered in their order");
                return Err(self.value(step, "s", wanted));
            }
            let place = Place { line: self.line(step), rank, block: number, step: index };
            written.push(self.step(step, place, (algorithm, scratch), &block)?);
        }
        Ok((block, written))
    }

    fn step(
        &self,
        element: Element<'a>,
        place: Place,
        (algorithm, scratch): (&Algorithm, usize),
        block: &Block,
    ) -> Result<Written, MscclFault> {
        let name = self.required(element, ("step", "type"))?;
        let Some((_, op)) = Op::NAMES.into_iter().find(|(known, _)| *known == name) else {
            let names: Vec<&str> = Op::NAMES.iter().map(|(name, _)| *name).collect();
            return Err(self.value(element, "type", format!("one of {}", names.join(", "))));
        };
        if op.sends() && block.send.is_none() {
            return Err(self.unfit(element, Unfit::NoPeer("send", "to")));
        }
        if op.receives() && block.recv.is_none() {
            return Err(self.unfit(element, Unfit::NoPeer("receive", "from")));
        }
        let count = self.number::<usize>(element, ("step", "cnt"))?;
        let moves = op != Op::Nop;
        if moves && count == 0 {
            return Err(self.value(element, "cnt", "at least 1".to_owned()));
        }
        let nothing = Span { buffer: Buffer::Scratch, first: 0 };
        let span = |used: bool, buffer, offset| match used {
            true => self.span(element, (buffer, offset), (algorithm, scratch), count),
            false => Ok(nothing),
        };
        let source = span(op.reads(), "srcbuf", "srcoff")?;
        let destination = span(op.writes(), "dstbuf", "dstoff")?;
        let block = self.number_or_none(element, ("step", "depid"))?;
        let step = self.number_or_none(element, ("step", "deps"))?;
        let depends = block.zip(step);
        let tells = self.flag(element, ("step", "hasdep"))?;
        let step = Step { op, source, destination, count, dependency: None, place };
        Ok(Written { step, depends, tells })
    }

    /// A chunk of the input that is copied to the output before all else.
    fn copy(
        &self,
        element: Element<'a>,
        ((rank, block), step): ((usize, usize), usize),
        algorithm: &Algorithm,
    ) -> Result<Written, MscclFault> {
        let span = |buffer: Buffer, attribute| {
            let first = self.number::<usize>(element, ("copy", attribute))?;
            let chunks = algorithm.len_of(buffer);
            let unfit = Unfit::Chunk { buffer: buffer.letter(), chunk: first, chunks };
            if first < chunks {
                Ok(Span { buffer, first })
            } else {
                Err(self.unfit(element, unfit))
            }
        };
        let (source, destination) = (span(Buffer::Input, "i_off")?, span(Buffer::Output, "o_off")?);
        let place = Place { line: self.line(element), rank, block, step };
        let (op, count, dependency) = (Op::Copy, 1, None);
        let step = Step { op, source, destination, count, dependency, place };
        Ok(Written { step, depends: None, tells: false })
    }

    fn span(
        &self,
        element: Element<'a>,
        (buffer_name, offset_name): (&'static str, &'static str),
        (algorithm, scratch): (&Algorithm, usize),
        count: usize,
    ) -> Result<Span, MscclFault> {
        let buffer = match self.required(element, ("step", buffer_name))? {
            "i" => Buffer::Input,
            "o" => Buffer::Output,
            "s" => Buffer::Scratch,
            _ => return Err(self.value(element, buffer_name, "i, o or s".to_owned())),
        };
        let first = self.number::<usize>(element, ("step", offset_name))?;
        let chunks = match buffer {
            Buffer::Scratch => scratch,
            _ => algorithm.len_of(buffer),
        };
        let last = first.saturating_add(count - 1);
        if last >= chunks {
            let unfit = Unfit::Chunk { buffer: buffer.letter(), chunk: last, chunks };
            return Err(self.unfit(element, unfit));
        }
        Ok(Span { buffer, first })
    }
}

impl Algorithm {
    /// Chunks of an input or output.
    pub(super) fn len_of(&self, buffer: Buffer) -> usize {
        let all = self.chunks * self.collective.ranks;
        match (self.collective.kind, buffer) {
            (Kind::AllToAll, _)
            | (Kind::AllGather | Kind::Gather, Buffer::Output)
            | (Kind::ReduceScatter | Kind::Scatter, Buffer::Input) => all,
            _ => self.chunks,
        }
    }

    /// The output chunk that a chunk of a rank's input is in place.
    pub(super) fn twin(&self, rank: usize, chunk: usize) -> Option<usize> {
        match self.collective.kind {
            Kind::AllGather | Kind::Gather => Some(rank * self.chunks + chunk),
            Kind::ReduceScatter | Kind::Scatter => {
                (chunk / self.chunks == rank).then_some(chunk % self.chunks)
            }
            _ => Some(chunk),
        }
    }

    /// A step.
    pub(super) fn step(&self, (rank, block, step): At) -> &Step {
        &self.ranks[rank][block].steps[step]
    }

    /// Cuts steps with more chunks than a message has segments into several.
    fn split(&mut self) {
        for rank in &mut self.ranks {
            let mut ends: Vec<Vec<usize>> = Vec::new();
            for block in rank.iter_mut() {
                let (mut of_block, mut steps) = (Vec::new(), Vec::new());
                for step in std::mem::take(&mut block.steps) {
                    pieces(&step, &mut steps);
                    of_block.push(steps.len() - 1);
                }
                block.steps = steps;
                ends.push(of_block);
            }
            for step in rank.iter_mut().flat_map(|block| &mut block.steps) {
                if let Some((block, index)) = &mut step.dependency {
                    *index = ends[*block][*index];
                }
            }
        }
    }
}

/// A rank, a thread block of it, and a step of that.
pub(super) type At = (usize, usize, usize);

/// A step's parts. The first waits for what the step depends on.
fn pieces(step: &Step, pieces: &mut Vec<Step>) {
    if step.op == Op::Nop {
        pieces.push(step.clone());
        return;
    }
    let most = SEGMENTS as usize;
    for first in (0..step.count).step_by(most) {
        let move_on = |span: Span| Span { first: span.first + first, ..span };
        pieces.push(Step {
            source: move_on(step.source),
            destination: move_on(step.destination),
            count: most.min(step.count - first),
            dependency: if first == 0 { step.dependency } else { None },
            ..step.clone()
        });
    }
}

/// Takes chunks that are only moved together as one.
fn coarsen(algorithm: &mut Algorithm) {
    let mut unit = algorithm.chunks;
    let steps = || algorithm.ranks.iter().flatten().flat_map(|block| &block.steps);
    for step in steps().filter(|step| step.op != Op::Nop) {
        unit = [step.source.first, step.destination.first, step.count]
            .into_iter()
            .fold(unit, greatest_common_divisor);
    }
    if unit <= 1 {
        return;
    }
    algorithm.chunks /= unit;
    for step in algorithm.ranks.iter_mut().flatten().flat_map(|block| &mut block.steps) {
        step.source.first /= unit;
        step.destination.first /= unit;
        step.count /= unit;
    }
}

pub(super) fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Chunks of a step's source or destination.
pub(super) fn chunks(span: Span, count: usize) -> Range<usize> {
    span.first..span.first + count
}
