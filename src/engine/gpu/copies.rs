//! Calls that copy engines carry out: what they fetch, and the notices around it, is put into the
//! caller's stream, and no kernel.

use super::{GpuBackend, Place};
use crate::call::{CheckedCall, PLACE_OF_PARTS};
use crate::device::cuda::{Cells, MemoryOp, Stream, copy};
use oxccl_kernels::format::{Launch, TOKEN_NUMBER_SHIFT};
use oxccl_plans::collective::Kind;
use oxccl_plans::lower::{CopyAction, CopySource, CopyStep};
use oxccl_transports::CudaError;

/// Of a place: how far it is from where the heap, or what is registered, begins.
const OFFSET: u64 = (1 << TOKEN_NUMBER_SHIFT) - 1;

/// The number of what is registered that a place lies in; 0: the heap.
fn number(place: u64) -> u16 {
    ((place & !PLACE_OF_PARTS) >> TOKEN_NUMBER_SHIFT) as u16
}

/// What is put into a stream.
pub(super) struct Copying<'a> {
    pub(super) cells: &'a Cells,
    pub(super) steps: &'a [CopyStep],
    /// Where the call's input and output are.
    pub(super) launch: Launch,
    /// Where peers read of all ranks' memory: as [`GpuBackend::place`] says.
    pub(super) place: u64,
    /// Where that begins here, by rank.
    pub(super) bases: Vec<*mut u8>,
    /// What all ranks must agree on.
    pub(super) agreed: u64,
    /// How the host is told of the end, if somebody waits for it.
    pub(super) ended: Option<MemoryOp>,
}

impl Copying<'_> {
    /// Puts it into the stream.
    ///
    /// # Safety
    /// The call's buffers are valid until the stream has come that far, and the heaps as long as
    /// the ranks' communicators.
    pub(super) unsafe fn enqueue(&self, stream: &Stream, place: Place) -> Result<(), CudaError> {
        let mut ops: Vec<MemoryOp> = Vec::new();
        let put = |ops: &mut Vec<MemoryOp>| {
            // SAFETY: words of regions that are registered as long as this rank's calls run.
            let done = unsafe { stream.memory_ops(ops) };
            ops.clear();
            done
        };
        let mut steps = self.steps.iter().peekable();
        while let Some(one) = steps.next() {
            match one.action {
                CopyAction::Tell(peer, notice) => {
                    ops.push(self.cells.tell(peer, notice, self.agreed));
                }
                CopyAction::Await(peer, notice) => {
                    let mut peers = vec![(peer, one.step)];
                    let same = |of: &&CopyStep| matches!(of.action, CopyAction::Await(_, other) if other == notice);
                    while let Some(next) = steps.next_if(same) {
                        let CopyAction::Await(peer, _) = next.action else { break };
                        peers.push((peer, next.step));
                    }
                    ops.extend(self.cells.wait(peers, notice, self.agreed, place.call));
                }
                CopyAction::Copy { source, from_bytes, to_bytes, len_bytes } => {
                    put(&mut ops)?;
                    let from = self.read(source, from_bytes, to_bytes);
                    let to = self.launch.output.wrapping_add(to_bytes);
                    if from != to.cast_const() {
                        // SAFETY: by this function's contract; peers' buffers are as long, and
                        // theirs until they are told that this rank is done.
                        unsafe { copy(stream, to, from, len_bytes) }?;
                    }
                }
            }
        }
        ops.extend(self.ended);
        put(&mut ops)
    }

    /// Where a copy reads.
    fn read(&self, source: CopySource, from_bytes: usize, to_bytes: usize) -> *const u8 {
        let CopySource::Peer(peer) = source else {
            return self.launch.input.wrapping_add(from_bytes);
        };
        // Of parts of a whole buffer each rank has its own where all have it.
        let own = if self.place & PLACE_OF_PARTS != 0 { to_bytes } else { from_bytes };
        self.bases[peer].wrapping_add((self.place & OFFSET) as usize + own)
    }
}

impl GpuBackend {
    /// Where a rank's buffer lies of which peers read, or to which they expect theirs to lie alike:
    /// what a root has, and what the others get. In its heap, or in what all ranks have registered
    /// by one number; none if it lies elsewhere.
    pub(super) fn place(&self, call: &CheckedCall) -> Option<u64> {
        self.gpu.cells()?;
        let rank = self.ranks.rank;
        let (input_bytes, output_bytes) = call.buffer_bytes();
        let (input, output) = (call.input as usize, call.output as usize);
        let at = |address, len| match self.heap.offset(address, len) {
            Some(offset) => Some(offset as u64),
            None => self.registered_place(address, len),
        };
        let is_inside = (output..output + output_bytes).contains(&input);
        match call.collective.kind {
            Kind::AllGather if is_inside => Some(at(output, output_bytes)? | PLACE_OF_PARTS),
            Kind::Gather if is_inside => at(output, output_bytes),
            Kind::AllGather | Kind::AllToAll | Kind::Gather => at(input, input_bytes),
            Kind::Broadcast | Kind::Scatter if call.collective.root == rank => {
                at(input, input_bytes)
            }
            Kind::Broadcast | Kind::Scatter => at(output, output_bytes),
            _ => None,
        }
    }

    fn registered_place(&self, address: usize, len_bytes: usize) -> Option<u64> {
        let (registrations, context) = (self.registrations.as_ref()?, self.gpu.context());
        let pointer = self.pointers.of(context, address as *const u8).ok()?;
        pointer.check_device(context, len_bytes).ok()?;
        let token = registrations.token(&pointer)?;
        registrations.starts(number(token), self.ranks.rank).map(|_| token)
    }

    /// Where all ranks' memory begins here of which this is a place.
    pub(super) fn bases(&self, place: u64) -> Result<Vec<*mut u8>, CudaError> {
        match (number(place), &self.registrations) {
            (0, _) => Ok(self.heap_bases.clone()),
            (number, Some(registrations)) => {
                registrations.starts(number, self.ranks.rank).ok_or(CudaError::GivenUp)
            }
            (_, None) => Err(CudaError::GivenUp),
        }
    }
}
