//! Why a launch failed: reads the other ranks' call logs and progress, names the culprit, and ends
//! the communicator on all ranks.

mod buckets;
mod failure;
mod logs;
mod poll;

pub(super) use buckets::{Words, collective_words, message_words, words_of_groups};
pub(super) use failure::{Odd, Ranks};
pub(super) use logs::mismatch;
pub(super) use poll::poll;
