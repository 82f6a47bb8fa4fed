//! The tables of a launch on a GPU: all launch blocks but the first lie in device memory.
//!
//! What a chain of blocks says is the same from launch to launch, as long as the buffers are: what
//! differs, the first block has, which is the kernel's parameter. So calls that come again with the
//! same buffers are one launch and nothing else. With other buffers they get other tables: those of
//! a launch that has ended are written anew, by a copy in the call's stream.

use crate::device::cuda::{Gpu, Kernel, PinnedWords, Stream, copy};
use crate::device::{Heap, HeapBlock, Signals};
use crate::engine::prepared::{Buffers, Chain, Places, Prepared};
use crate::error::Error;
use oxccl_kernels::format as f;
use oxccl_plans::lower::CopyStep;
use oxccl_transports::CudaError;
use oxccl_transports::cuda::beside_captures;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// So many tables of a launch stay as they are, for buffers that come by turns, before one is
/// written anew.
const KEPT: usize = 4;

/// What carries a launch out.
#[derive(Clone, Debug)]
pub(super) enum Executor {
    /// A kernel.
    Kernel(Kernel),
    /// Copy engines, which do this.
    Copies(Arc<[CopyStep]>),
}

/// The tables of a launch, for several sets of buffers.
#[derive(Debug)]
pub(super) struct DeviceChains {
    executor: Executor,
    segments: Vec<f::Segment>,
    /// Those placed last come first.
    chains: Vec<Arc<DeviceChain>>,
    signals: Vec<Arc<Signals>>,
}

/// A call's input and output, how peers find them, and its factor.
type Reached = (*mut u8, *mut u8, f::Tokens, (u64, bool));

/// The tables for one set of buffers.
#[derive(Debug)]
pub(super) struct DeviceChain {
    chain: Chain,
    buffers: Vec<Reached>,
    /// None of a launch that needs no tables.
    table: Option<Table>,
}

/// All tables, concatenated.
#[derive(Debug)]
struct Table {
    /// What is copied.
    mirror: PinnedWords,
    /// What it is copied to: in the heap, since peers read the tokens.
    block: HeapBlock,
    /// Whether it has been.
    uploaded: AtomicBool,
}

// SAFETY: the addresses are the GPU's, and tied to no thread.
unsafe impl Send for DeviceChain {}
// SAFETY: as above; it is written by whoever has it alone.
unsafe impl Sync for DeviceChain {}

impl DeviceChains {
    /// No tables yet, for a launch by this executor.
    pub(super) fn new(executor: Executor, segments: Vec<f::Segment>) -> DeviceChains {
        DeviceChains { executor, segments, chains: Vec::new(), signals: Vec::new() }
    }

    /// What carries the launch out.
    pub(super) fn executor(&self) -> Executor {
        self.executor.clone()
    }

    /// The tables that were placed last.
    pub(super) fn chain(&self) -> Arc<DeviceChain> {
        self.chains[0].clone()
    }

    /// Words that no launch under way uses: for buckets that are not ready, where it is `gated`,
    /// and for those that are done, where somebody is to be `told`.
    pub(super) fn signals(
        &mut self,
        gpu: &mut Gpu,
        prepared: &Prepared,
        (gated, told): (bool, bool),
        captured: bool,
    ) -> Result<Arc<Signals>, CudaError> {
        let is_free = |signals: &&Arc<Signals>| {
            signals.is_gated() == gated && Arc::strong_count(signals) == 1
        };
        if let (false, Some(free)) = (captured, self.signals.iter().find(is_free)) {
            return Ok(free.clone());
        }
        let stride = if told { self.chains[0].chain.launches[0].done_stride as usize } else { 0 };
        let buckets = prepared.buckets();
        let words = gpu.words(Signals::words(buckets, stride, gated))?;
        let signals = Arc::new(Signals::pinned(words, buckets, stride, gated));
        if !captured {
            self.signals.push(signals.clone());
        }
        Ok(signals)
    }

    /// Brings tables for these buffers to the front. Peers find the table of tokens relative to
    /// `base`.
    pub(super) fn place(
        &mut self,
        gpu: &mut Gpu,
        heap: &Arc<Heap>,
        prepared: &Prepared,
        (buffers, base, multicast): (Buffers<'_>, Option<usize>, f::Multicast),
    ) -> Result<(), Error> {
        let known = self.chains.iter().position(|chain| chain.is_for(buffers));
        if let Some(at) = known {
            self.chains[..=at].rotate_right(1);
            return Ok(());
        }
        let full = self.chains.len() >= KEPT;
        let idle = if full { self.take_idle() } else { None };
        let mut chain = match idle {
            Some(chain) => chain,
            None => DeviceChain::new(gpu, heap, prepared, &self.segments)?,
        };
        chain.set_buffers(prepared, buffers, base, multicast);
        self.chains.insert(0, Arc::new(chain));
        Ok(())
    }

    /// The tables that have not been used for the longest time, if nobody uses them.
    fn take_idle(&mut self) -> Option<DeviceChain> {
        let at = self.chains.iter().rposition(|chain| Arc::strong_count(chain) == 1)?;
        Arc::into_inner(self.chains.remove(at))
    }
}

impl DeviceChain {
    fn new(
        gpu: &mut Gpu,
        heap: &Arc<Heap>,
        prepared: &Prepared,
        segments: &[f::Segment],
    ) -> Result<DeviceChain, Error> {
        let Prepared { blocks, sources, .. } = prepared;
        let len_bytes = blocks.len() * size_of::<f::Launch>()
            + segments.len() * (size_of::<f::Segment>() + size_of::<f::SegmentTokens>());
        let table = match prepared.has_tables() {
            true => Some(Table {
                mirror: gpu.words(len_bytes.div_ceil(size_of::<u64>()))?,
                block: heap.alloc(len_bytes)?,
                uploaded: AtomicBool::new(false),
            }),
            false => None,
        };
        let base = table.as_ref().map_or(std::ptr::null_mut(), |table| table.block.as_ptr());
        let chain = Chain::new(blocks, sources, segments, |launches, segments| {
            let at = |at: usize| base.wrapping_add(at).cast_const();
            Places {
                launches: at(0).cast(),
                segments: at(size_of_val(launches)).cast(),
                tokens: at(size_of_val(launches) + size_of_val(segments)).cast(),
            }
        });
        Ok(DeviceChain { chain, buffers: Vec::new(), table })
    }

    /// The first block: the kernel's parameter.
    pub(super) fn first(&self) -> f::Launch {
        self.chain.launches[0]
    }

    /// Whether it leads to these buffers, and peers to the same memory: another's may have come to
    /// an address.
    fn is_for(&self, buffers: Buffers<'_>) -> bool {
        self.buffers.iter().copied().eq(reached(buffers))
    }

    /// Points the tables to these buffers, and makes them ready to be copied. Nobody copies them
    /// now.
    fn set_buffers(
        &mut self,
        prepared: &Prepared,
        buffers: Buffers<'_>,
        base: Option<usize>,
        multicast: f::Multicast,
    ) {
        let parts = (&prepared.blocks[..], &prepared.sources[..]);
        self.chain.set_buffers(parts, buffers, base, |_, _| {});
        self.buffers.clear();
        self.buffers.extend(reached(buffers));
        self.chain.launches[0].multicast = multicast;
        let Some(Table { mirror, uploaded, .. }) = &mut self.table else { return };
        *uploaded.get_mut() = false;
        let Chain { launches, segments, tokens, .. } = &self.chain;
        let to = mirror.as_ptr().cast::<u8>();
        let segments_at = size_of_val(&launches[..]);
        let tokens_at = segments_at + size_of_val(&segments[..]);
        // SAFETY: the mirror is as long as the three together and this object's alone, which nobody
        // else has now.
        unsafe {
            to.copy_from(launches.as_ptr().cast(), segments_at);
            to.add(segments_at).copy_from(segments.as_ptr().cast(), tokens_at - segments_at);
            to.add(tokens_at).copy_from(tokens.as_ptr().cast(), size_of_val(&tokens[..]));
        }
    }

    /// Copies the tables to the GPU if they are not there, in front of what comes next in the
    /// stream; of a launch that is captured at once.
    pub(super) fn upload(&self, stream: &Stream, at_once: bool) -> Result<(), CudaError> {
        let Some(Table { mirror, block, uploaded }) = &self.table else { return Ok(()) };
        if uploaded.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Chain { launches, segments, tokens, .. } = &self.chain;
        let len_bytes =
            size_of_val(&launches[..]) + size_of_val(&segments[..]) + size_of_val(&tokens[..]);
        let (to, from) = (block.as_ptr(), mirror.as_ptr().cast_const().cast());
        // SAFETY: both are as long. The mirror is not written before the launch has ended, and no
        // launch under way uses the table.
        let put = || unsafe { copy(stream, to, from, len_bytes) };
        match at_once {
            false => put()?,
            true => beside_captures(stream.context().device().driver(), || {
                put()?;
                stream.synchronize()
            })?,
        }
        uploaded.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Where each call's buffers are, for this rank and for its peers, and its factor.
fn reached(buffers: Buffers<'_>) -> impl Iterator<Item = Reached> {
    let calls = buffers.calls.iter().zip(buffers.tokens);
    calls.map(|(call, tokens)| {
        (call.input, call.output, *tokens, (call.factor_bits, call.factor_at))
    })
}
