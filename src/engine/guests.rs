//! What kernels that are not oxccl's own get of a communicator.

use super::Engine;
use crate::call::Meeting;
use crate::device::cuda::{DeviceCommunicator, DeviceShape};
use crate::error::Error;
use crate::target::Device;
use oxccl_transports::cuda::beside_captures;
use oxccl_transports::deadline_in;

impl Engine {
    /// Counters, lines and addresses for user kernels. All ranks call it.
    pub(crate) fn device_communicator(
        &mut self,
        shape: DeviceShape,
    ) -> Result<DeviceCommunicator, Error> {
        const WHAT: &str = "communication inside user kernels";
        let device = self.device();
        if device == Device::Host {
            return Err(Error::Unsupported { what: WHAT, device });
        }
        if self.backend.is_suspended() {
            return Err(Error::Suspended);
        }
        if self.nodes() > 1 {
            let what = "communication with ranks of other nodes inside user kernels";
            return Err(Error::Unsupported { what, device });
        }
        let too_large = |detail: String| Error::Config { variable: "blocks", detail };
        if shape.blocks == 0 || u32::try_from(shape.blocks.max(shape.lines)).is_err() {
            return Err(too_large(format!("{shape:?} has none, or too many")));
        }
        let bytes = shape.bytes(self.ranks.control.ranks());
        let [counters, lines] = bytes.map_err(Error::too_long("device_communicator", "blocks"))?;
        let (number, record) = self.meet(Meeting::Kernels)?;
        let made = self.shared_with_kernels((shape, counters, lines), &record);
        self.met(number, made)
    }

    fn shared_with_kernels(
        &mut self,
        (shape, counters, lines): (DeviceShape, usize, usize),
        record: &crate::call::Record,
    ) -> Result<DeviceCommunicator, Error> {
        // Zeros, before any rank hears where they are.
        let shared = self.heap.alloc(counters + lines)?;
        let told = [shared.offset(), shape.blocks, shape.lines].map(|word| word as u64);
        let told: Vec<u8> = told.iter().flat_map(|word| word.to_le_bytes()).collect();
        let deadline = deadline_in(self.ranks.poll.timeout());
        let all = self.told(record, &told, deadline)?;
        let word = |bytes: &[u8], at: usize| {
            let bytes = bytes.get(8 * at..8 * at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes) as usize
        };
        let rank = self.ranks.rank;
        for (argument, at) in [("blocks", 1), ("lines", 2)] {
            let ours = word(&all[rank], at);
            if let Some(odd) = all.iter().position(|told| word(told, at) != ours) {
                return Err(Error::Mismatch {
                    call: record.collective,
                    bucket: None,
                    argument,
                    rank: odd,
                    theirs: word(&all[odd], at).to_string(),
                    compared_with: rank,
                    ours: ours.to_string(),
                    what: record.text().into(),
                });
            }
        }
        let offsets: Vec<usize> = all.iter().map(|told| word(told, 0)).collect();
        let Some(gpu) = self.backend.gpu() else { unreachable!("its device is a GPU") };
        let context = gpu.context().clone();
        let made = beside_captures(context.device().driver(), || {
            gpu.device_communicator((rank, shape), shared, &offsets, counters)
        });
        Ok(made?)
    }
}
