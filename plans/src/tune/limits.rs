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

    /// Thread blocks of a GPU: as many as leave a rank of eight below 64 MiB of device memory, heap
    /// included. More would be predicted to be faster on 8 H100: with 16 channels and slots of
    /// twice the size, private memory's all-reduce of 1 GiB takes half as long. Such are a setting.
    pub const GPU: Limits = Limits {
        max_channels: 8,
        slot_bytes: 64 << 10,
        link_slot_bytes: 512 << 10,
        ll_slot_bytes: 4 << 10,
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
