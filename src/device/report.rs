//! What a rank tells ranks of other nodes of its control memory, which they cannot map: its call
//! log, its progress words and the words of its last groups, as words.

use super::control::{BUCKET_WORDS, GroupWords};
use super::log::{CallLog, LOG_WORDS};
use oxccl_kernels::format as f;

/// Words of a channel's progress.
const PROGRESS_WORDS: usize = 4;

/// Words before those of each group: their offset, and how many buckets there are.
const GROUP_WORDS: usize = 2;
/// The most buckets that a report tells of, in all its groups: what is left of its longest length
/// (64 KiB) with 64 channels.
const BUCKETS_LIMIT: usize = 1024;

/// Writes a report.
pub(super) fn encode(log: &CallLog, progress: &[f::Progress], groups: &[GroupWords]) -> Vec<u8> {
    let progress = progress.iter().flat_map(|p| {
        let low_high = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [p.call, p.awaited, low_high(p.step, p.peer), low_high(p.lane, p.head)]
    });
    let mut room = BUCKETS_LIMIT;
    let fits = |group: &&GroupWords| {
        // Its head takes the room of a bucket at most.
        let left = room.checked_sub(group.words.len() + 1);
        room = left.unwrap_or(room);
        left.is_some()
    };
    let groups = groups.iter().filter(fits).flat_map(|group| {
        let head = [group.offset, group.words.len() as u64];
        head.into_iter().chain(group.words.iter().flatten().copied())
    });
    log.words().into_iter().chain(progress).chain(groups).flat_map(u64::to_le_bytes).collect()
}

/// What a report says beside the log.
pub(super) struct Told {
    pub(super) progress: Vec<f::Progress>,
    pub(super) groups: Vec<GroupWords>,
}

/// Reads a report over so many channels into a log, and gives the rest. `None` if it is no such
/// report.
pub(super) fn decode(bytes: &[u8], log: &CallLog, channels: usize) -> Option<Told> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (of_log, words) = words.split_at_checked(LOG_WORDS)?;
    let (of_progress, of_groups) = words.split_at_checked(channels * PROGRESS_WORDS)?;
    let groups = decode_groups(of_groups)?;
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
    Some(Told { progress: progress.collect(), groups })
}

/// `None` if these are no groups.
fn decode_groups(mut words: &[u64]) -> Option<Vec<GroupWords>> {
    let mut groups = Vec::new();
    while !words.is_empty() {
        let (&[offset, count], rest) = words.split_first_chunk::<GROUP_WORDS>()?;
        let len = usize::try_from(count).ok()?.checked_mul(BUCKET_WORDS)?;
        let (buckets, rest) = rest.split_at_checked(len)?;
        groups.push(GroupWords { offset, words: buckets.as_chunks().0.to_vec() });
        words = rest;
    }
    Some(groups)
}
