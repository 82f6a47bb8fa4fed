//! Traced kernels, and the memory that they write their steps to.
//!
//! They are a module of their own, loaded when somebody asks for a trace: only while no kernel of
//! the context waits for what the loading rank has yet to launch.

use super::kernels::{Kernel, Kernels, Module};
use super::{Image, Stream, copy};
use oxccl_kernels::format::{StepRecord, StepRing};
use oxccl_kernels::image::{TRACED_SUMS, traced_kernels};
use oxccl_kernels::{StepTrace, TracedStep};
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, DeviceMemory, beside_captures};
use std::ffi::c_void;
use std::sync::Arc;

/// The traced kernels of a context.
#[derive(Debug)]
pub(super) struct TracedKernels {
    _module: Module,
    kernels: Vec<Kernel>,
}

/// A rank's traced kernels, and its steps.
#[derive(Debug)]
pub(crate) struct Traced {
    kernels: Arc<TracedKernels>,
    stream: Arc<Stream>,
    /// A [`StepRing`], a counter for each channel, and the records.
    memory: DeviceMemory,
    channels: usize,
    /// Records that each channel has places for.
    capacity: usize,
    /// By channel: records that have been taken.
    taken: Vec<u64>,
}

impl TracedKernels {
    /// In the context.
    pub(super) fn load(context: &Context, image: Image) -> Result<TracedKernels, CudaError> {
        let module = Module::load(context, image.traced())?;
        let find = |(of, name): (_, String)| Ok(module.find(&name)?.traced(of));
        let kernels = traced_kernels().map(find).collect::<Result<Vec<_>, CudaError>>()?;
        Ok(TracedKernels { _module: module, kernels })
    }
}

impl Traced {
    /// Loads what is not loaded, and makes room for so many steps of each channel. `check` looks at
    /// each kernel.
    ///
    /// # Errors
    /// [`CudaError::NoImage`], [`CudaError::OutOfMemory`], the driver's, and those of `check`.
    pub(super) fn new(
        kernels: &Kernels,
        stream: &Arc<Stream>,
        (channels, capacity): (usize, usize),
        check: impl Fn(Kernel) -> Result<(), CudaError>,
    ) -> Result<Traced, CudaError> {
        let kernels = kernels.traced()?;
        kernels.kernels.iter().copied().try_for_each(check)?;
        let len_bytes = records_at(channels) + channels * capacity * size_of::<StepRecord>();
        let memory = DeviceMemory::allocate(stream.context(), len_bytes)?;
        let taken = vec![0; channels];
        let traced = Traced { kernels, stream: stream.clone(), memory, channels, capacity, taken };
        traced.write_ring()?;
        Ok(traced)
    }

    /// The ring, and counters that are 0.
    fn write_ring(&self) -> Result<(), CudaError> {
        let at = |offset_bytes| self.memory.as_ptr().wrapping_add(offset_bytes);
        let ring = StepRing {
            records: at(records_at(self.channels)).cast(),
            counts: at(COUNTS_AT).cast(),
            capacity: self.capacity as u32,
            reserved: 0,
        };
        let (from, zeros) = (std::ptr::from_ref(&ring).cast(), vec![0u64; self.channels]);
        // SAFETY: memory of this object's, as long as what is copied, which lives until the stream
        // has been waited for.
        unsafe {
            copy(&self.stream, at(0), from, size_of::<StepRing>())?;
            copy(&self.stream, at(COUNTS_AT), zeros.as_ptr().cast(), size_of_val(&zeros[..]))?;
        }
        self.stream.synchronize()
    }

    /// Whether it has so many places for each channel.
    pub(super) fn keeps(&self, capacity: usize) -> bool {
        self.capacity == capacity
    }

    /// Where kernels find the [`StepRing`].
    pub(crate) fn ring(&self) -> *mut c_void {
        self.memory.as_ptr().cast()
    }

    /// The traced kernel that runs what this one runs.
    ///
    /// # Errors
    /// [`CudaError::NotTraced`] if there is none.
    pub(crate) fn pick(&self, kernel: Kernel, reduces: bool) -> Result<Kernel, CudaError> {
        // What only copies runs in any of them.
        let found = match reduces {
            true => self.kernels.kernels.iter().find(|traced| traced.of() == kernel.of()),
            false => self.kernels.kernels.first(),
        };
        found.map(|traced| traced.launched_as(kernel)).ok_or_else(|| {
            let what = kernel.of().map_or_else(String::new, |(data_type, fold)| {
                format!("the {} of {}", fold.name(), data_type.name())
            });
            CudaError::NotTraced { what, traced: TRACED_SUMS.map(|of| of.name()).join(", ") }
        })
    }

    /// The steps that were written since they were last taken. Nothing that writes any is under
    /// way.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn take(&mut self) -> Result<StepTrace, CudaError> {
        let mut counts = vec![0u64; self.channels];
        self.read(COUNTS_AT, &mut counts)?;
        let mut trace = StepTrace::default();
        for (channel, count) in counts.into_iter().enumerate() {
            let new = count - std::mem::replace(&mut self.taken[channel], count);
            if new == 0 {
                continue;
            }
            let mut records = vec![StepRecord::default(); self.capacity];
            let offset_bytes = channel * size_of_val(&records[..]);
            self.read(records_at(self.channels) + offset_bytes, &mut records)?;
            let kept = new.min(self.capacity as u64);
            trace.lost += new - kept;
            trace.steps.extend((count - kept..count).map(|number| {
                let StepRecord { start_ns, end_ns, round, step, .. } =
                    records[number as usize % self.capacity];
                TracedStep { channel: channel as u32, round, step, start_ns, end_ns }
            }));
        }
        Ok(trace)
    }

    /// Copies from so far into the memory on.
    fn read<T: Copy>(&self, offset_bytes: usize, to: &mut [T]) -> Result<(), CudaError> {
        let from = self.memory.as_ptr().wrapping_add(offset_bytes);
        let driver = self.stream.context().device().driver();
        beside_captures(driver, || {
            // SAFETY: within the memory, of which this is a table of `T`; `to` is as long, and the
            // copy is waited for.
            unsafe { copy(&self.stream, to.as_mut_ptr().cast(), from, size_of_val(to)) }?;
            self.stream.synchronize()
        })
    }
}

const COUNTS_AT: usize = size_of::<StepRing>();

/// Where the records begin.
fn records_at(channels: usize) -> usize {
    (COUNTS_AT + channels * size_of::<u64>()).next_multiple_of(align_of::<StepRecord>() * 16)
}
