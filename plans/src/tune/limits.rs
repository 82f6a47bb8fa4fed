//! What a communicator sets aside for its calls. The runtime's settings begin with these, and the
//! simulator and `oxccl explain` take them from the settings: channels, slots and tiles are said
//! here and nowhere else.

use crate::topology::Processor;

/// What there is of channels and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Most channels of a call.
    pub max_channels: usize,
    /// Payload of a slot on the slots lane, where all ranks share a node.
    pub slot_bytes: usize,
    /// The same where ranks are on several nodes.
    pub link_slot_bytes: usize,
    /// Payload of a slot on the LL lane, and on the LL128 lane.
    pub ll_slot_bytes: usize,
}

impl Limits {
    /// Threads of a host. Each takes a core, so there are few.
    pub const HOST: Limits = Limits {
        max_channels: 4,
        slot_bytes: 64 << 10,
        link_slot_bytes: 512 << 10,
        ll_slot_bytes: 4 << 10,
    };

    /// Thread blocks of a GPU: what predicts best on 8 H100 and on two nodes of them, out of 8 to
    /// 32 channels and slots of 64 to 512 KiB (4 to 16 KiB in LL), as long as the blocks of 8 ranks
    /// fit a GPU of 132 multiprocessors and the staging memory of 8 ranks stays below 128 MiB. Half
    /// of the channels make private memory's all-reduce of 1 GiB 1.9 times as long. 24 channels
    /// would make nothing but that faster, by 1.5 times. Slots of half the size make it 1.3 times
    /// as long. Between nodes, slots of twice the size would gain 2 %, and take 68 MiB a link.
    pub const GPU: Limits = Limits {
        max_channels: 16,
        slot_bytes: 128 << 10,
        link_slot_bytes: 256 << 10,
        ll_slot_bytes: 8 << 10,
    };

    /// Payload of the slots lane's slots.
    pub fn plain_slot_bytes(&self, several_nodes: bool) -> usize {
        if several_nodes { self.link_slot_bytes } else { self.slot_bytes }
    }

    /// The defaults of a kind of device.
    pub fn of(processor: Processor) -> Limits {
        match processor {
            Processor::Cpu => Limits::HOST,
            Processor::Gpu => Limits::GPU,
        }
    }
}
