//! What ranks tell those of other nodes, which cannot read their memory, when one of them asks: how
//! far they have come.

use crate::sync::{Mutex, lock};

type Answer = Box<dyn Fn() -> Vec<u8> + Send>;
type Listener = Box<dyn Fn(usize, &[u8]) + Send>;

/// A rank's answer, and what it does with those of others.
#[derive(Default)]
pub(crate) struct Reports {
    answer: Mutex<Option<Answer>>,
    listener: Mutex<Option<Listener>>,
}

impl Reports {
    pub(crate) fn set(&self, answer: Answer, listener: Listener) {
        *lock(&self.answer) = Some(answer);
        *lock(&self.listener) = Some(listener);
    }

    /// This rank's report; nothing while it has none to give.
    pub(crate) fn answer(&self) -> Option<Vec<u8>> {
        lock(&self.answer).as_ref().map(|answer| answer())
    }

    /// Another rank's has come.
    pub(crate) fn heard(&self, rank: usize, report: &[u8]) {
        if let Some(listener) = lock(&self.listener).as_ref() {
            listener(rank, report);
        }
    }
}
