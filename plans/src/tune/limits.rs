//! What a communicator sets aside for its calls. The runtime's settings begin with these, and the
//! simulator and `oxccl explain` take them from the settings: channels, slots and tiles are said
//! here and nowhere else.

use crate::algorithms::{Encoding, Pipeline};
use crate::schedule::{SLOTS, Slots};
use crate::topology::Processor;

/// What there is of channels and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Most channels of a call.
    pub max_channels: usize,
    /// So many of them carry messages from rank to rank through slots: send/recv, alone and in
    /// groups, and all-to-alls of uneven parts. Each has connections of its own for these.
    pub message_channels: usize,
    /// Payload of a slot on the slots lane, where all ranks share a node; unless that is said, by
    /// their number.
    pub slot_bytes: Option<usize>,
    /// The same where ranks are on several nodes; unless that is said, by their number.
    pub link_slot_bytes: Option<usize>,
    /// Payload of a slot on the LL lane, and on the LL128 lane.
    pub ll_slot_bytes: usize,
    /// Slots of a connection: at least [`SLOTS`].
    pub slots: Slots,
    /// As [`Pipeline::parts`].
    pub pipeline_parts: Option<usize>,
}

impl Limits {
    /// Threads of a host. Each takes a core, so there are few. Senders of small messages may be far
    /// ahead: with half of the LL slots an all-reduce of 8 B takes 1.4 times as long.
    pub const HOST: Limits = Limits {
        max_channels: 4,
        message_channels: 1,
        slot_bytes: Some(64 << 10),
        link_slot_bytes: None,
        ll_slot_bytes: 4 << 10,
        slots: Slots { ll: 16, ..SLOTS },
        pipeline_parts: None,
    };

    /// Thread blocks of a GPU: as many as leave a rank of eight about 64 MiB of device memory, heap
    /// included. On an H200 that two ranks share, an all-reduce of 64 MiB takes half as long with
    /// 16 as with 8 in place, and 0.55 times as long through slots; with 32, which are a setting,
    /// 0.4 times as long in place.
    pub const GPU: Limits = Limits {
        max_channels: 16,
        message_channels: 4,
        slot_bytes: None,
        link_slot_bytes: None,
        ll_slot_bytes: 4 << 10,
        slots: SLOTS,
        pipeline_parts: None,
    };

    /// Where there are more nodes, slots are smaller: what a rank has of them grows with the nodes,
    /// of each of which it gets smaller pieces.
    pub const FEW_NODES: usize = 32;

    /// Payload of the slots lane's slots, where so many ranks are on so many nodes. Few ranks of a
    /// node have longer ones, which take fewer rounds: there is memory for those to seven peers.
    pub fn plain_slot_bytes(&self, nodes: usize, ranks: usize) -> usize {
        if nodes <= 1 {
            return self.slot_bytes.unwrap_or(match ranks {
                ..=2 => 512 << 10,
                3 => 256 << 10,
                4 | 5 => 128 << 10,
                _ => 64 << 10,
            });
        }
        let [few, many] = match self.max_channels {
            ..=8 => [512 << 10, 128 << 10],
            _ => [256 << 10, 64 << 10],
        };
        let usual = if nodes > Limits::FEW_NODES { many } else { few };
        self.link_slot_bytes.unwrap_or(usual)
    }

    /// Channels that share a message from rank to rank, at most, where there are so many nodes. One
    /// carries what has flags, which is short. What is read in place needs no slots, and where all
    /// ranks share a node any channel can.
    pub fn channels_of_message(&self, encoding: Encoding, nodes: usize) -> usize {
        match encoding {
            Encoding::Ll | Encoding::Ll128 => 1,
            Encoding::Windows if nodes <= 1 => self.max_channels,
            Encoding::Slots | Encoding::Windows => self.message_channels.min(self.max_channels),
        }
    }

    /// What schedules of the catalogue are made with.
    pub fn pipeline(&self) -> Pipeline {
        Pipeline { slots: self.slots, parts: self.pipeline_parts }
    }

    /// The defaults of a kind of device.
    pub fn of(processor: Processor) -> Limits {
        match processor {
            Processor::Cpu => Limits::HOST,
            Processor::Gpu => Limits::GPU,
        }
    }
}
