//! Messages of many segments: they are announced once, and cost one exchange however many chunks
//! they carry.

use crate::schedule::{Incoming, Link, Operand, Outgoing, RankBuilder, SEGMENTS};

/// Segments that come over a link, in as few messages as can be. A message stays in its slot until
/// its last segment has been read.
#[derive(Debug)]
pub(super) struct Inbox {
    link: Link,
    /// Segments that have not been read.
    left: usize,
    /// The most of a message.
    most: usize,
    open: Option<(Incoming, usize)>,
}

impl Inbox {
    /// So many segments from a peer.
    pub(super) fn new(link: Link, segments: usize) -> Inbox {
        Inbox { link, left: segments, most: SEGMENTS as usize, open: None }
    }

    /// The same in messages of so many segments at most, as the sender has them.
    pub(super) fn at_most(self, most: usize) -> Inbox {
        Inbox { most, ..self }
    }

    /// Whether all have been read.
    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Awaits the message that has the next segment.
    pub(super) fn open(&mut self, b: &mut RankBuilder) -> &mut (Incoming, usize) {
        let size = self.left.min(self.most);
        self.open.get_or_insert_with(|| (b.open_incoming(self.link), size))
    }

    /// The next segment.
    pub(super) fn segment(&mut self, b: &mut RankBuilder) -> Operand {
        let (message, left) = self.open(b);
        *left -= 1;
        let segment = message.segment();
        self.left -= 1;
        segment
    }

    /// The segments that were asked for have been read.
    pub(super) fn settle(&mut self, b: &mut RankBuilder) {
        if let Some((message, _)) = self.open.take_if(|(_, left)| *left == 0) {
            b.close_incoming(message);
        }
    }
}

/// The same at the sender.
#[derive(Debug)]
pub(super) struct Outbox {
    link: Link,
    left: usize,
    most: usize,
    open: Option<(Outgoing, usize)>,
}

impl Outbox {
    /// So many segments to a peer.
    pub(super) fn new(link: Link, segments: usize) -> Outbox {
        Outbox { link, left: segments, most: SEGMENTS as usize, open: None }
    }

    /// The same in messages of so many segments at most, as the receiver has them.
    pub(super) fn at_most(self, most: usize) -> Outbox {
        Outbox { most, ..self }
    }

    /// Whether all have been written.
    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Awaits room for the message that has the next segment.
    pub(super) fn open(&mut self, b: &mut RankBuilder) -> &mut (Outgoing, usize) {
        let size = self.left.min(self.most);
        self.open.get_or_insert_with(|| (b.open_outgoing(self.link), size))
    }

    /// The next segment.
    pub(super) fn segment(&mut self, b: &mut RankBuilder) -> Operand {
        let (message, left) = self.open(b);
        *left -= 1;
        let segment = message.segment();
        self.left -= 1;
        segment
    }

    /// The segments that were asked for have been written.
    pub(super) fn settle(&mut self, b: &mut RankBuilder) {
        if let Some((message, _)) = self.open.take_if(|(_, left)| *left == 0) {
            b.close_outgoing(message);
        }
    }
}

/// The order in which all ranks handle chunks that have these bits still to go, so that segments
/// are read in the order in which they come: by the lowest bit, then the next, and so on; `end` is
/// the place of those that have arrived.
pub(super) fn by_bits(bits: usize, end: u32) -> Vec<u32> {
    let set = (0..usize::BITS).filter(|bit| bits >> bit & 1 == 1);
    set.chain([end]).collect()
}
