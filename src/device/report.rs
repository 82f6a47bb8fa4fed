//! What a rank tells ranks of other nodes of its control memory, which they cannot map: its call log, its progress words and the words
//! of its last group, as words.

use super::control::{BUCKET_WORDS, GroupWords};
use super::log::{CallLog, LOG_WORDS};
use oxccl_kernels::format as f;

/// Words of a channel's progress.
const PROGRESS_WORDS: usize = 4;

/// Words before those of a group: their offset, and how many buckets there are.
const GROUP_WORDS: usize = 2;
/// The most buckets that a report tells of: what is left of its longest length (64 KiB) with 64 channels.
const BUCKETS_LIMIT: usize = 1024;

/// Writes a report.
pub(super) fn encode(
    log: &CallLog,
    progress: &[f::Progress],
    group: Option<&GroupWords>,
) -> Vec<u8> {
    let progress = progress.iter().flat_map(|p| {
        let low_high = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [p.call, p.awaited, low_high(p.step, p.peer), low_high(p.lane, p.head)]
    });
    let group = group.filter(|group| group.words.len() <= BUCKETS_LIMIT);
    let head = group.map(|group| [group.offset, group.words.len() as u64]);
    let buckets = group.iter().flat_map(|group| group.words.iter().flatten().copied());
    let words = log.words().into_iter().chain(progress);
    words.chain(head.into_iter().flatten()).chain(buckets).flat_map(u64::to_le_bytes).collect()
}

/// What a report says beside the log.
pub(super) struct Told {
    pub(super) progress: Vec<f::Progress>,
    pub(super) group: Option<GroupWords>,
}

/// Reads a report over so many channels into a log, and gives the rest. `None` if it is no such report.
pub(super) fn decode(bytes: &[u8], log: &CallLog, channels: usize) -> Option<Told> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (of_log, words) = words.split_at_checked(LOG_WORDS)?;
    let (of_progress, of_group) = words.split_at_checked(channels * PROGRESS_WORDS)?;
    let group = decode_group(of_group)?;
    if !rest.is_empty() {
        return None;
    }
    log.mirror(of_log);
    let progress = of_progress.chunks_exact(PROGRESS_WORDS).map(|words| f::Progress {
        call: words[0],
        awaited: words[1],
        step: words[2] as u32,
        peer: (words[2] >> 32) as u32,
        lane: words[3] as u32,
        head: (words[3] >> 32) as u32,
    });
    Some(Told { progress: progress.collect(), group })
}

/// `None` if it is neither a group nor nothing.
fn decode_group(words: &[u64]) -> Option<Option<GroupWords>> {
    if words.is_empty() {
        return Some(None);
    }
    let (&[offset, count], words) = words.split_first_chunk::<GROUP_WORDS>()?;
    let (words, rest) = words.as_chunks::<BUCKET_WORDS>();
    let whole = rest.is_empty() && words.len() as u64 == count;
    whole.then(|| Some(GroupWords { offset, words: words.to_vec() }))
}
