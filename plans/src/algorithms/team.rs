//! Ranks that carry out a part of a collective together: all of them, those of a node, or those of
//! a rail. Parts made for teams are what hierarchical and composed algorithms are put together
//! from.

use super::Encoding;
use crate::schedule::{Lane, Link, Operand, RankBuilder, Read, Write};
use std::fmt;
use std::rc::Rc;

/// A rank's team. Who has which place is told, not listed: a rank of many thousands has few peers.
#[derive(Clone)]
pub(super) struct Team {
    len: usize,
    member: Rc<dyn Fn(usize) -> usize>,
    /// This rank's place.
    pub(super) me: usize,
    lane: Lane,
    /// Of which lists its connections are.
    list: u16,
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Team { len, me, lane, .. } = self;
        f.debug_struct("Team").field("len", len).field("me", me).field("lane", lane).finish()
    }
}

/// What a rank holds of a chunk when a part begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// Its own contribution, in its input.
    Raw,
    /// What its node has reduced, in its output.
    Partial,
}

impl Held {
    /// To be reduced by this rank.
    pub(super) fn read(self, chunk: usize) -> Read {
        match self {
            Held::Raw => Read::Raw(Operand::Input(chunk)),
            Held::Partial => Read::Plain(Operand::Output(chunk)),
        }
    }

    /// To be sent.
    pub(super) fn operand(self, chunk: usize) -> Operand {
        match self {
            Held::Raw => Operand::Input(chunk),
            Held::Partial => Operand::Output(chunk),
        }
    }

    /// To be reduced by the rank that has received it.
    pub(super) fn recv(self, link: Link) -> Read {
        match self {
            Held::Raw => Read::RecvRaw(link),
            Held::Partial => Read::Recv(link),
        }
    }
}

impl Team {
    /// The team of so many ranks, of which this rank has the place `me`. `member` tells who has a
    /// place.
    pub(super) fn new(
        len: usize,
        me: usize,
        encoding: Encoding,
        member: impl Fn(usize) -> usize + 'static,
    ) -> Team {
        Team { len, member: Rc::new(member), me, lane: encoding.lane(), list: 0 }
    }

    /// The same in this list of each of its ranks.
    pub(super) fn in_list(self, list: u16) -> Team {
        Team { list, ..self }
    }

    /// The team of so many of its members, of which this rank has the place `me`. `place` tells
    /// which place a member has here.
    pub(super) fn some(
        &self,
        len: usize,
        me: usize,
        place: impl Fn(usize) -> usize + 'static,
    ) -> Team {
        let all = Rc::clone(&self.member);
        Team {
            len,
            member: Rc::new(move |at| all(place(at))),
            me,
            lane: self.lane,
            list: self.list,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The member at a place.
    pub(super) fn member(&self, place: usize) -> usize {
        (self.member)(place % self.len)
    }

    /// The data connection to the member at a place.
    pub(super) fn link(&self, place: usize) -> Link {
        Link { list: self.list, ..Link::new(self.member(place), self.lane) }
    }

    /// The connection to the member behind this rank.
    pub(super) fn next(&self) -> Link {
        self.link(self.me + 1)
    }

    /// The connection to the member before this rank.
    pub(super) fn previous(&self) -> Link {
        self.link(self.me + self.len() - 1)
    }

    /// The places of the others, starting behind this rank's.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, len) = (self.me, self.len());
        (1..len).map(move |step| (me + step) % len)
    }

    /// Reduces every member's chunk `part(place)` to that member; this rank's goes to `writes`,
    /// with what `also` brings.
    pub(super) fn reduce_scatter_direct(
        &self,
        b: &mut RankBuilder,
        part: impl Fn(usize) -> usize,
        also: &[Read],
        writes: &[Write],
        finish: bool,
    ) {
        self.reduce_direct(b, (self.len(), part), also, writes, finish);
    }

    /// The same where the first `owners` members have chunks, and the others only send.
    pub(super) fn reduce_direct(
        &self,
        b: &mut RankBuilder,
        (owners, part): (usize, impl Fn(usize) -> usize),
        also: &[Read],
        writes: &[Write],
        finish: bool,
    ) {
        for place in self.others().filter(|place| *place < owners) {
            b.send(Operand::Input(part(place)), self.link(place));
        }
        if self.me >= owners {
            return;
        }
        let own = part(self.me);
        let all = (0..self.len()).map(|place| match place == self.me {
            true => Read::Raw(Operand::Input(own)),
            false => Read::RecvRaw(self.link(place)),
        });
        b.transfer(&all.chain(also.iter().copied()).collect::<Vec<Read>>(), writes, finish);
    }

    /// The same around the ring: chunk c starts behind its member, every rank adding its own, until
    /// it ends there.
    pub(super) fn reduce_scatter_ring(
        &self,
        b: &mut RankBuilder,
        part: impl Fn(usize) -> usize,
        also: &[Read],
        writes: &[Write],
        finish: bool,
    ) {
        if self.len() == 1 {
            return self.reduce_scatter_direct(b, part, also, writes, finish);
        }
        for step in 0..self.len() {
            self.reduce_scatter_step(b, step, &part, also, writes, finish);
        }
    }

    /// One step of it, of as many as there are members, at least two.
    pub(super) fn reduce_scatter_step(
        &self,
        b: &mut RankBuilder,
        step: usize,
        part: impl Fn(usize) -> usize,
        also: &[Read],
        writes: &[Write],
        finish: bool,
    ) {
        let n = self.len();
        let own = Operand::Input(part((self.me + n - 1 - step + n) % n));
        if step == 0 {
            return b.send(own, self.next());
        }
        // The first message is the previous rank's own; later ones are partial results.
        let previous = self.previous();
        let partial = if step == 1 { Read::RecvRaw(previous) } else { Read::Recv(previous) };
        if step + 1 < n {
            b.transfer(&[partial, Read::Raw(own)], &[Write::Send(self.next())], false);
        } else {
            b.transfer(&[&[partial, Read::Raw(own)], also].concat(), writes, finish);
        }
    }

    /// The same around the ring.
    pub(super) fn all_gather_ring(&self, b: &mut RankBuilder, part: impl Fn(usize) -> usize) {
        if self.len() > 1 {
            b.send(Operand::Output(part(self.me)), self.next());
        }
        for step in 1..self.len() {
            self.all_gather_step(b, step, &part);
        }
    }

    /// One step of it, from 1, when this rank's own chunk has been sent.
    pub(super) fn all_gather_step(
        &self,
        b: &mut RankBuilder,
        step: usize,
        part: impl Fn(usize) -> usize,
    ) {
        let n = self.len();
        let chunk = Operand::Output(part((self.me + n - step) % n));
        if step + 1 < n {
            b.recv_copy_send(self.previous(), chunk, self.next());
        } else {
            b.recv_copy(self.previous(), chunk);
        }
    }
}

/// The aligned binary tree over places: the blocks that hold `place`, from the smallest to the
/// whole, each as its begin, the begin of its right half, and its end. The left half has the
/// largest power of two below the block's size.
pub(super) fn blocks(len: usize, place: usize) -> Vec<(usize, usize, usize)> {
    let (mut low, mut high) = (0, len);
    let mut blocks = Vec::new();
    while high - low > 1 {
        let middle = low + (high - low).next_power_of_two() / 2;
        blocks.push((low, middle, high));
        if place < middle {
            high = middle;
        } else {
            low = middle;
        }
    }
    blocks.reverse();
    blocks
}
