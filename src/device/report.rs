//! What a rank tells ranks of other nodes of its control memory, which they cannot map: its call log and its progress words, as words.

use super::log::{CallLog, LOG_WORDS};
use oxccl_kernels::format as f;

/// Words of a channel's progress.
const PROGRESS_WORDS: usize = 4;

/// Words of a report over so many channels.
fn report_words(channels: usize) -> usize {
    LOG_WORDS + channels * PROGRESS_WORDS
}

/// Writes a report.
pub(super) fn encode(log: &CallLog, progress: &[f::Progress]) -> Vec<u8> {
    let progress = progress.iter().flat_map(|p| {
        let low_high = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        [p.call, p.awaited, low_high(p.step, p.peer), low_high(p.lane, p.head)]
    });
    log.words().into_iter().chain(progress).flat_map(u64::to_le_bytes).collect()
}

/// Reads a report over so many channels into a log; gives the progress words. `None` if it is no such report.
pub(super) fn decode(bytes: &[u8], log: &CallLog, channels: usize) -> Option<Vec<f::Progress>> {
    let (words, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || words.len() != report_words(channels) {
        return None;
    }
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (of_log, of_progress) = words.split_at(LOG_WORDS);
    log.mirror(of_log);
    let progress = of_progress.chunks_exact(PROGRESS_WORDS).map(|words| f::Progress {
        call: words[0],
        awaited: words[1],
        step: words[2] as u32,
        peer: (words[2] >> 32) as u32,
        lane: words[3] as u32,
        head: (words[3] >> 32) as u32,
    });
    Some(progress.collect())
}
