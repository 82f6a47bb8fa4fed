//! Execution plans as MSCCL++ writes them, field by field. What nothing depends on is left out.

use super::super::parse::greatest_common_divisor;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct File {
    pub(super) name: Option<String>,
    pub(super) collective: String,
    pub(super) protocol: String,
    pub(super) inplace: bool,
    pub(super) gpus: Vec<Gpu>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Gpu {
    pub(super) id: usize,
    pub(super) input_chunks: usize,
    pub(super) output_chunks: usize,
    pub(super) scratch_chunks: usize,
    pub(super) threadblocks: Vec<ThreadBlock>,
    #[serde(default)]
    pub(super) channels: Vec<Channels>,
    #[serde(default)]
    pub(super) remote_buffers: Vec<RemoteBuffer>,
    #[serde(default)]
    pub(super) semaphores: Vec<Semaphore>,
}

/// Channels of a rank: to these peers, or of these groups by a switch.
#[derive(Debug, Deserialize)]
pub(super) struct Channels {
    pub(super) channel_type: ChannelType,
    #[serde(default)]
    pub(super) connected_to: Vec<usize>,
    pub(super) buffer_type: Option<BufferType>,
    #[serde(default)]
    pub(super) rank_groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Group {
    pub(super) ranks: Vec<usize>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RemoteBuffer {
    pub(super) rank: usize,
    #[serde(rename = "type")]
    pub(super) kind: BufferType,
}

#[derive(Debug, Deserialize)]
pub(super) struct Semaphore {
    pub(super) init_value: i64,
}

#[derive(Debug, Deserialize)]
pub(super) struct ThreadBlock {
    pub(super) id: usize,
    pub(super) ops: Vec<Op>,
    #[serde(default)]
    pub(super) channels: Vec<UsedChannels>,
    #[serde(default)]
    pub(super) remote_buffer_refs: Vec<UsedBuffers>,
}

/// Numbers of the rank's channels of a type, in the order in which operations number them.
#[derive(Debug, Deserialize)]
pub(super) struct UsedChannels {
    pub(super) channel_type: ChannelType,
    pub(super) channel_ids: Vec<usize>,
}

/// Numbers of the rank's `remote_buffers`, in the order in which operations number them.
#[derive(Debug, Deserialize)]
pub(super) struct UsedBuffers {
    pub(super) access_channel_type: ChannelType,
    pub(super) remote_buffer_ids: Vec<usize>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Op {
    pub(super) name: String,
    pub(super) channel_type: Option<ChannelType>,
    #[serde(default)]
    pub(super) channel_ids: Vec<usize>,
    #[serde(default)]
    pub(super) src_buff: Vec<Buff>,
    #[serde(default)]
    pub(super) dst_buff: Vec<Buff>,
    pub(super) barrier_id: Option<usize>,
    pub(super) num_threadblocks: Option<usize>,
    #[serde(default)]
    pub(super) semaphore_ids: Vec<usize>,
    /// Those of a pipeline.
    #[serde(default)]
    pub(super) ops: Vec<Op>,
    pub(super) tbg_info: Option<ThreadBlockGroup>,
}

/// The thread blocks that share an operation.
#[derive(Debug, Deserialize)]
pub(super) struct ThreadBlockGroup {
    pub(super) tb_id: usize,
    pub(super) tbg_size: usize,
}

/// Chunks of a buffer: of the rank's own, of a peer's, or of all those that a switch joins.
#[derive(Debug, Deserialize)]
pub(super) struct Buff {
    #[serde(rename = "type")]
    pub(super) kind: Option<BufferType>,
    pub(super) buffer_id: Option<usize>,
    pub(super) switch_channel_id: Option<usize>,
    pub(super) index: usize,
    pub(super) size: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ChannelType {
    Memory,
    Port,
    Switch,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum BufferType {
    #[serde(rename = "i")]
    Input,
    #[serde(rename = "o")]
    Output,
    #[serde(rename = "s")]
    Scratch,
}

impl File {
    /// Where thread blocks share operations, makes chunks so much finer that each has whole ones,
    /// and gives each its own. None where that cannot be.
    pub(super) fn divide_groups(&mut self) -> Option<()> {
        let blocks = || self.gpus.iter().flat_map(|gpu| &gpu.threadblocks);
        let mut finer = 1;
        let mut look = |op: &Op| {
            if let Some(ThreadBlockGroup { tb_id, tbg_size }) = op.tbg_info {
                let right = (1..=MOST_THREAD_BLOCKS).contains(&tbg_size) && tb_id < tbg_size;
                finer = if right { least_common_multiple(finer, tbg_size) } else { 0 };
            }
            (1..=MOST_THREAD_BLOCKS).contains(&finer)
        };
        let ops = blocks().flat_map(|block| &block.ops);
        if !ops.flat_map(|op| std::iter::once(op).chain(&op.ops)).all(&mut look) {
            return None;
        }
        for gpu in &mut self.gpus {
            for chunks in [&mut gpu.input_chunks, &mut gpu.output_chunks, &mut gpu.scratch_chunks] {
                *chunks = chunks.checked_mul(finer)?;
            }
            for op in gpu.threadblocks.iter_mut().flat_map(|block| &mut block.ops) {
                op.divide(finer)?;
                op.ops.iter_mut().try_for_each(|op| op.divide(finer))?;
            }
        }
        Some(())
    }
}

impl Op {
    fn divide(&mut self, finer: usize) -> Option<()> {
        let (own, of) =
            self.tbg_info.as_ref().map_or((0, 1), |group| (group.tb_id, group.tbg_size));
        for buff in self.src_buff.iter_mut().chain(&mut self.dst_buff) {
            buff.size = buff.size.checked_mul(finer)? / of;
            buff.index = buff.index.checked_mul(finer)?.checked_add(buff.size.checked_mul(own)?)?;
        }
        Some(())
    }
}

/// Those that may share an operation, and as many parts of a chunk: more than a GPU has.
const MOST_THREAD_BLOCKS: usize = 1024;

fn least_common_multiple(a: usize, b: usize) -> usize {
    a / greatest_common_divisor(a, b) * b
}
