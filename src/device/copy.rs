//! A copy of what a rank's control memory says of it, made at some moment, by whoever can read it.

use super::badge::{Badge, LAYOUT};
use super::control::ControlShape;
use super::log::{CallLog, ENTRY_LINES};
use oxccl_kernels::format as f;
use oxccl_plans::schedule::MAX_CHANNELS;
use std::io;

/// A cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line([u64; 8]);

/// The log, the badge and the progress words of a rank.
#[derive(Debug)]
pub(crate) struct ControlCopy {
    lines: Vec<Line>,
    shape: ControlShape,
}

/// Why there is none.
#[derive(Debug)]
pub(crate) enum NoCopy {
    /// The rank has yet to start.
    NotStarted,
    /// Another release has laid it out.
    OtherLayout,
    /// It cannot be read.
    Unreadable(io::Error),
}

impl ControlCopy {
    /// A copy over so many channels; `words` gives the first so many words of the memory, which
    /// its rank may write meanwhile.
    ///
    /// # Errors
    /// That of `words`.
    pub(super) fn new(
        shape: ControlShape,
        words: impl Fn(usize) -> io::Result<Vec<u64>>,
    ) -> io::Result<ControlCopy> {
        let lines = || -> io::Result<Vec<Line>> {
            let words = words(shape.abort_word() / size_of::<u64>())?;
            Ok(words.as_chunks::<8>().0.iter().copied().map(Line).collect())
        };
        let (before, mut lines) = (lines()?, lines()?);
        // What was written meanwhile is no whole entry.
        for at in ENTRY_LINES {
            if before[at] != lines[at] {
                lines[at].0[0] = 0;
            }
        }
        Ok(ControlCopy { lines, shape })
    }

    /// The same of memory whose badge says how many channels there are.
    ///
    /// # Errors
    /// [`NoCopy`]
    pub(crate) fn badged(
        words: impl Fn(usize) -> io::Result<Vec<u64>>,
    ) -> Result<ControlCopy, NoCopy> {
        let copy = |channels| ControlCopy::new(ControlShape { channels }, &words);
        let first = copy(0).map_err(NoCopy::Unreadable)?;
        match (first.badge().layout(), first.badge().facts()) {
            (0, _) => Err(NoCopy::NotStarted),
            (LAYOUT, Some(facts)) if facts.channels <= MAX_CHANNELS => {
                copy(facts.channels).map_err(NoCopy::Unreadable)
            }
            _ => Err(NoCopy::OtherLayout),
        }
    }

    /// Its log.
    pub(crate) fn log(&self) -> &CallLog {
        // SAFETY: the lines begin with one, and are aligned as one; any bits are valid.
        unsafe { &*self.lines.as_ptr().cast::<CallLog>() }
    }

    /// Its badge.
    pub(crate) fn badge(&self) -> &Badge {
        // SAFETY: as in `log`.
        unsafe { &*self.lines.as_ptr().byte_add(self.shape.badge()).cast::<Badge>() }
    }

    /// What its channels wait for, by channel, where they do.
    pub(crate) fn waits(&self) -> impl Iterator<Item = (usize, f::Progress)> + use<'_> {
        let first = self.lines.as_ptr().wrapping_byte_add(self.shape.progress());
        let all = (0..self.shape.channels).map(move |channel| {
            // SAFETY: the lines hold so many, each a line long; any bits are valid.
            (channel, unsafe { first.cast::<f::Progress>().add(channel).read() })
        });
        all.filter(|(_, progress)| progress.call != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::badge::Facts;
    use std::cell::Cell;

    fn memory(channels: usize) -> Vec<u64> {
        vec![0; ControlShape { channels }.abort_word() / 8]
    }

    #[test]
    fn what_has_not_started_or_is_of_another_release_is_told() {
        let (zeros, mut other) = (memory(2), memory(2));
        let read = |memory: &Vec<u64>| {
            let memory = memory.clone();
            ControlCopy::badged(move |len| Ok(memory[..len].to_vec()))
        };
        assert!(matches!(read(&zeros), Err(NoCopy::NotStarted)));
        other[ControlShape { channels: 0 }.badge() / 8] = LAYOUT + 1;
        assert!(matches!(read(&other), Err(NoCopy::OtherLayout)));
        let refused = ControlCopy::badged(|_| Err(io::Error::other("no")));
        assert!(matches!(refused, Err(NoCopy::Unreadable(_))));
    }

    #[test]
    fn calls_that_are_written_meanwhile_are_left_out() {
        // SAFETY: all zeros is a valid log and a valid badge.
        let (log, badge): (Box<CallLog>, Box<Badge>) =
            unsafe { (Box::new(std::mem::zeroed()), Box::new(std::mem::zeroed())) };
        badge.fill(Facts { channels: 1, ..Facts::default() });
        for number in 1..=3 {
            log.enter(number, &[number; 6]);
        }
        let reads = Cell::new(0);
        let words = |len: usize| {
            reads.set(reads.get() + 1);
            if reads.get() == 4 {
                log.enter(4, &[9; 6]);
                log.enter(130, &[9; 6]);
            }
            let mut all = memory(1);
            let shape = ControlShape { channels: 1 };
            // SAFETY: there is room for both.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    std::ptr::from_ref(&*log).cast(),
                    all.as_mut_ptr(),
                    size_of::<CallLog>() / 8,
                );
                std::ptr::copy_nonoverlapping(
                    std::ptr::from_ref(&*badge).cast(),
                    all.as_mut_ptr().byte_add(shape.badge()),
                    size_of::<Badge>() / 8,
                );
            }
            all.truncate(len);
            Ok(all)
        };
        let copy = ControlCopy::badged(words).unwrap();
        assert_eq!(copy.log().record(3).unwrap().words, [3; 6]);
        assert!(copy.log().record(2).is_none() && copy.log().record(130).is_none());
        assert_eq!((copy.log().entered(), copy.waits().count()), (130, 0));
    }
}
