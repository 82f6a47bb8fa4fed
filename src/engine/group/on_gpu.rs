//! Groups on a GPU: one kernel, whose launch blocks but the first lie in device memory.
//!
//! What a chain of blocks says is the same from launch to launch, as long as the buffers are: what differs, the first block has, which
//! is the kernel's parameter. So a group that comes again with the same buffers is one launch and nothing else. With other
//! buffers it gets other tables: those of a launch that has ended are written anew, by a copy in the call's stream.

use super::chain::{Buffers, Chain, Places, Source};
use super::prepared::{Block, Chains, PreparedGroup};
use super::{Engine, Groups, wrong_device};
use crate::call::Call;
use crate::device::cuda::{Gpu, Kernel, PinnedWords, Stream, copy};
use crate::device::{Heap, HeapBlock, Signals};
use crate::engine::Backend;
use crate::engine::flights::Ends;
use crate::engine::joint::Joined;
use crate::engine::launcher::Launcher;
use crate::engine::on_gpu::{GpuCalls, Place, Target};
use crate::error::Error;
use crate::group::Flight;
use oxccl_kernels::format as f;
use oxccl_transports::cuda::beside_captures;
use oxccl_transports::{CudaError, Reach};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// So many tables of a group stay as they are, for buffers that come by turns, before one is written anew.
const KEPT: usize = 4;

/// The tables of a group's launches.
#[derive(Debug)]
pub(super) struct DeviceChains {
    kernel: Kernel,
    segments: Vec<f::Segment>,
    /// Those used last come first.
    chains: Vec<Arc<DeviceChain>>,
    signals: Vec<Arc<Signals>>,
}

/// A call's input and output, and how peers find them.
type Reached = (*mut u8, *mut u8, f::Tokens);

/// The tables for one set of buffers.
#[derive(Debug)]
pub(in crate::engine) struct DeviceChain {
    chain: Chain,
    buffers: Vec<Reached>,
    /// All tables, one behind the other, as they are copied.
    mirror: PinnedWords,
    /// What they are copied to: in the heap, since peers read the tokens.
    table: HeapBlock,
    /// Whether they have been.
    uploaded: AtomicBool,
}

// SAFETY: the addresses are the GPU's, and tied to no thread.
unsafe impl Send for DeviceChain {}
// SAFETY: as above; it is written by whoever has it alone.
unsafe impl Sync for DeviceChain {}

impl Engine {
    /// Puts a group into a stream; into this rank's own without one. `gated` says which of its buckets are not ready. In a stream that is
    /// captured it is recorded, and its work is over.
    ///
    /// # Safety
    ///
    /// As for [`Engine::enqueue`], for all calls; no call's output overlaps another's buffers. An input may still be in use until its bucket
    /// is marked ready, and buffers may be used again from when their bucket is done.
    pub(crate) unsafe fn enqueue_group(
        &mut self,
        calls: &[Call],
        stream: Option<&Stream>,
        gated: &[bool],
        flight: &Arc<Flight>,
    ) -> Result<(), Error> {
        self.ranks.check()?;
        let rank = self.ranks.rank;
        let gpu_calls = self.backend.gpu_calls()?;
        let own = gpu_calls.gpu.stream().clone();
        let stream = stream.unwrap_or(&own);
        let target = Target { stream, capture: gpu_calls.check_stream(stream)? };
        if calls.is_empty() {
            flight.end(Ok(()));
            return Ok(());
        }
        let at = self.look_up_group(calls)?;
        let group = &self.groups.prepared[at];
        match target.capture {
            None => group.count_messages(&mut self.tally),
            Some(_) if group.has_messages() => self.tally.lose_count(),
            Some(_) => {}
        }
        if target.capture.is_none() {
            self.groups.count_exchanges(at, rank);
        }
        let base = (self.reach != Reach::SameProcess).then(|| self.heap.base());
        let (heap, stride) = (self.heap.clone(), self.config.max_channels);
        let Groups { prepared, tokens, .. } = &mut self.groups;
        let PreparedGroup {
            described, signature, channels, chains, blocks, sources, turns, ..
        } = &mut prepared[at];
        let (called, channels, parts) =
            ((*described, *signature), *channels, (&blocks[..], &sources[..]));
        let turns = turns.clone();
        let (Backend::Cuda(gpu_calls), Chains::Cuda(chains)) = (&mut self.backend, chains) else {
            return Err(wrong_device(&self.config));
        };
        let kernel = chains.kernel;
        let captured = target.capture.is_some();
        let signals =
            chains.signals(gpu_calls, (calls.len(), stride), gated.contains(&true), captured)?;
        let buffers = Buffers { calls, tokens, base };
        let chain = chains.chain(gpu_calls, &heap, parts, buffers, captured)?;
        if captured {
            gpu_calls.keep(chain.clone(), signals.clone());
        }
        let launcher = gpu_calls.launcher(&self.ranks, &called.0, target, gated.contains(&true))?;
        let alone = gpu_calls.keeps_back().is_some();
        let ends = Ends::Group { flight: flight.clone(), _chain: chain.clone() };
        let put = |gpu_calls: &mut GpuCalls, place: Place, launcher: Launcher| {
            chain.upload(if captured { &own } else { stream }, captured)?;
            signals.begin(place.call);
            signals.launch(channels);
            let marks = gpu_calls.marks(turns, place.call, captured);
            flight.board(signals.clone(), gated, Some(marks));
            flight.hold(stream)?;
            if captured {
                signals.clear_done_on(stream)?;
                flight.cleared(gpu_calls.mark(stream)?);
            }
            let first = f::Launch {
                call: place.call,
                history: place.numbered.history,
                statuses: gpu_calls.gpu.tables().statuses(place.slot),
                ready: signals.ready_words(),
                done: signals.done_words(),
                ..chain.chain.launches[0]
            };
            // SAFETY: the programs were prepared by this rank, the tables are there when the stream comes so far, and stay until the
            // flight has ended; buffers are the caller's promise, and calls in different streams are chained.
            let joined = unsafe { launcher.launch(target, place, (kernel, channels), first) }?;
            if captured {
                let mut gated = gated.iter().enumerate().filter(|(_, gated)| **gated);
                gated.try_for_each(|(bucket, _)| signals.clear_ready_on(stream, bucket))?;
            }
            Ok(joined)
        };
        let (end, joined) = self.put(target, called, channels, ends, launcher, put)?;
        flight.launched(end, alone || joined == Joined::Gated);
        Ok(())
    }
}

impl DeviceChains {
    /// No tables yet.
    pub(super) fn new(
        gpu: &Gpu,
        blocks: &[Block],
        segments: Vec<f::Segment>,
    ) -> Result<DeviceChains, Error> {
        let kernel = kernel(gpu, blocks)?;
        Ok(DeviceChains { kernel, segments, chains: Vec::new(), signals: Vec::new() })
    }

    /// Words that no launch under way uses.
    fn signals(
        &mut self,
        calls: &mut GpuCalls,
        (buckets, stride): (usize, usize),
        gated: bool,
        captured: bool,
    ) -> Result<Arc<Signals>, CudaError> {
        let is_free = |signals: &&Arc<Signals>| {
            signals.is_gated() == gated && Arc::strong_count(signals) == 1
        };
        if let (false, Some(free)) = (captured, self.signals.iter().find(is_free)) {
            return Ok(free.clone());
        }
        let words = calls.gpu.words(Signals::words(buckets, stride, gated))?;
        let signals = Arc::new(Signals::pinned(words, buckets, stride, gated));
        if !captured {
            self.signals.push(signals.clone());
        }
        Ok(signals)
    }

    /// Tables for these buffers.
    fn chain(
        &mut self,
        gpu_calls: &mut GpuCalls,
        heap: &Arc<Heap>,
        parts: (&[Block], &[Source]),
        buffers: Buffers<'_>,
        captured: bool,
    ) -> Result<Arc<DeviceChain>, Error> {
        let known = self.chains.iter().position(|chain| chain.is_for(buffers));
        if let Some(at) = known {
            self.chains[..=at].rotate_right(1);
            return Ok(self.chains[0].clone());
        }
        let full = self.chains.len() >= KEPT && !captured;
        let idle = if full { self.take_idle() } else { None };
        let mut chain = match idle {
            Some(chain) => chain,
            None => DeviceChain::new(gpu_calls, heap, parts, &self.segments)?,
        };
        chain.set_buffers(parts, buffers);
        self.chains.insert(0, Arc::new(chain));
        Ok(self.chains[0].clone())
    }

    /// The tables that have not been used for the longest time, if nobody uses them.
    fn take_idle(&mut self) -> Option<DeviceChain> {
        let at = self.chains.iter().rposition(|chain| Arc::strong_count(chain) == 1)?;
        Arc::into_inner(self.chains.remove(at))
    }
}

impl DeviceChain {
    fn new(
        gpu_calls: &mut GpuCalls,
        heap: &Arc<Heap>,
        (blocks, sources): (&[Block], &[Source]),
        segments: &[f::Segment],
    ) -> Result<DeviceChain, Error> {
        let len_bytes = blocks.len() * size_of::<f::Launch>()
            + segments.len() * (size_of::<f::Segment>() + size_of::<f::SegmentTokens>());
        let table = heap.alloc(len_bytes)?;
        let mirror = gpu_calls.gpu.words(len_bytes.div_ceil(size_of::<u64>()))?;
        let chain = Chain::new(blocks, sources, segments, |launches, segments| {
            let base = table.as_ptr();
            let at = |at: usize| base.wrapping_add(at).cast_const();
            Places {
                launches: at(0).cast(),
                segments: at(size_of_val(launches)).cast(),
                tokens: at(size_of_val(launches) + size_of_val(segments)).cast(),
            }
        });
        Ok(DeviceChain {
            chain,
            buffers: Vec::new(),
            mirror,
            table,
            uploaded: AtomicBool::new(false),
        })
    }

    /// Whether it leads to these buffers, and peers to the same memory: another's may have come to an address.
    fn is_for(&self, buffers: Buffers<'_>) -> bool {
        self.buffers.iter().copied().eq(reached(buffers))
    }

    /// Points the tables to these buffers, and makes them ready to be copied. Nobody copies them now.
    fn set_buffers(&mut self, parts: (&[Block], &[Source]), buffers: Buffers<'_>) {
        *self.uploaded.get_mut() = false;
        self.chain.set_buffers(parts, buffers, |_, _| {});
        self.buffers.clear();
        self.buffers.extend(reached(buffers));
        let Chain { launches, segments, tokens, .. } = &self.chain;
        let to = self.mirror.as_ptr().cast::<u8>();
        let segments_at = size_of_val(&launches[..]);
        let tokens_at = segments_at + size_of_val(&segments[..]);
        // SAFETY: the mirror is as long as the three together and this object's alone, which nobody else has now.
        unsafe {
            to.copy_from(launches.as_ptr().cast(), segments_at);
            to.add(segments_at).copy_from(segments.as_ptr().cast(), tokens_at - segments_at);
            to.add(tokens_at).copy_from(tokens.as_ptr().cast(), size_of_val(&tokens[..]));
        }
    }

    /// Copies the tables to the GPU if they are not there, in front of what comes next in the stream; of a group that is captured at once.
    fn upload(&self, stream: &Stream, at_once: bool) -> Result<(), CudaError> {
        if self.uploaded.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Chain { launches, segments, tokens, .. } = &self.chain;
        let len_bytes =
            size_of_val(&launches[..]) + size_of_val(&segments[..]) + size_of_val(&tokens[..]);
        let (to, from) = (self.table.as_ptr(), self.mirror.as_ptr().cast_const().cast());
        // SAFETY: both are as long. The mirror is not written before the launch has ended, and no launch under way uses the table.
        let put = || unsafe { copy(stream, to, from, len_bytes) };
        match at_once {
            false => put()?,
            true => beside_captures(stream.context().device().driver(), || {
                put()?;
                stream.synchronize()
            })?,
        }
        self.uploaded.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Where each call's buffers are, for this rank and for its peers.
fn reached(buffers: Buffers<'_>) -> impl Iterator<Item = Reached> {
    let calls = buffers.calls.iter().zip(buffers.tokens);
    calls.map(|(call, tokens)| (call.input, call.output, *tokens))
}

/// The kernel that runs all blocks. Each copies for all; where all that reduce do it alike, theirs is the fastest.
fn kernel(gpu: &Gpu, blocks: &[Block]) -> Result<Kernel, Error> {
    let mut kernels = Vec::new();
    for block in blocks.iter().filter(|block| block.reduces) {
        kernels.push(block.code.on_gpu()?.kernel());
    }
    match (kernels.first(), blocks.first()) {
        (Some(first), _) if kernels.iter().all(|kernel| kernel == first) => Ok(*first),
        (None, Some(block)) => Ok(block.code.on_gpu()?.kernel()),
        _ => {
            let channels = blocks.iter().map(|block| block.code.channels()).max();
            Ok(gpu.any_kernel(channels.unwrap_or(1))?)
        }
    }
}
