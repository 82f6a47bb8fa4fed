//! Kernels: loaded from the image, picked by element type and fold, launched a block a channel.
//!
//! All of them are loaded at once, and once in a process for all ranks of a GPU. The driver
//! otherwise loads a kernel when it is first asked for, waits for the whole context to do so, and
//! so for another rank's kernel that waits for this one's.
//!
//! The blocks of all ranks wait for each other, so all must be on the GPU at once. A rank's launch
//! does not ask for that (a cooperative one would, and would not run beside another rank's); it
//! follows from the bound on channels: each kernel fits once on a multiprocessor at least, and no
//! communicator has more blocks on a GPU than that. A launch for all ranks at once is a cooperative
//! one.
//!
//! A fence of the whole system awaits all stores that kernels of its memory-synchronisation domain
//! have under way: beside a matrix product that would be the product's, too. From 9.0 on launches
//! are therefore in the domain for remote memory, as NCCL's are. What a kernel in another domain
//! has written, it has to release for the system, or to end.

use super::image::{missing, targets};
use super::traced::TracedKernels;
use super::{Image, Stream, call};
use oxccl_kernels::format::{DataType, Fold, Launch};
use oxccl_kernels::image::{
    self, ANY_KERNEL, BLOCK_THREADS, BULK_COPY_BYTES, BULK_COPY_CAPABILITY, HOT, hot_name,
    kernel_name,
};
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, has, sys};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The kernels of a context.
#[derive(Debug)]
pub struct Kernels {
    module: Module,
    image: Image,
    /// By type and fold; none where the type does not have the fold.
    kernels: Vec<Option<Kernel>>,
    /// The one for all types and folds.
    any: Kernel,
    /// Those of one schedule each, as [`HOT`] lists them, and what they are in.
    hot: Vec<Kernel>,
    _hot_module: Module,
    /// Once somebody has asked for a trace.
    traced: Mutex<Option<Arc<TracedKernels>>>,
}

/// Those of this process.
static LOADED: Mutex<Vec<Weak<Kernels>>> = Mutex::new(Vec::new());

/// What they are in.
#[derive(Debug)]
pub(super) struct Module {
    context: Context,
    raw: sys::CUmodule,
    multiprocessors: usize,
    in_domain: bool,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    function: sys::CUfunction,
    /// The type and fold that it is for; none: all.
    of: Option<(DataType, Fold)>,
    /// How many of its blocks a GPU holds at once.
    resident: usize,
    /// Dynamic shared memory that its launches ask for.
    shared_bytes: u32,
    /// Whether it writes its steps.
    traced: bool,
    /// Of a hot kernel: its place in [`HOT`].
    hot: Option<usize>,
    /// Whether its launches are in the domain for remote memory.
    in_domain: bool,
}

/// The first compute capability that has memory-synchronisation domains.
const DOMAIN_CAPABILITY: (u32, u32) = (9, 0);

// SAFETY: handles, which the driver lets all threads use.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}
// SAFETY: as above.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernels {
    /// The kernels of an image, loaded unless another rank has them already.
    ///
    /// # Errors
    /// [`CudaError::NoImage`] if the image has no code for this GPU that this driver can run; the
    /// driver's.
    pub fn load(context: &Context, image: Image) -> Result<Arc<Kernels>, CudaError> {
        // Others wait for the first, as they would for the driver.
        let mut all = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        let same = |one: &Arc<Kernels>| {
            one.module.context.raw() == context.raw() && one.image.as_ptr() == image.as_ptr()
        };
        if let Some(one) = all.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(one);
        }
        let one = Arc::new(context.scope(|| Kernels::load_all(context, image))?);
        all.push(Arc::downgrade(&one));
        Ok(one)
    }

    /// In the context.
    fn load_all(context: &Context, image: Image) -> Result<Kernels, CudaError> {
        let module = Module::load(context, image)?;
        let mut by_name = HashMap::new();
        for (data_type, fold) in image::kernels() {
            let name = kernel_name(data_type, fold);
            by_name.insert(name.clone(), module.find(&name)?);
        }
        let of = |data_type, fold| {
            let kernel = by_name.get(&kernel_name(data_type, fold))?;
            DataType::has(data_type, fold)
                .then_some(Kernel { of: Some((data_type, fold)), ..*kernel })
        };
        let folds = |data_type| Fold::ALL.map(|fold| of(data_type, fold));
        let kernels = DataType::ALL.into_iter().flat_map(folds).collect();
        let any = module.find(ANY_KERNEL)?;
        let hot_module = Module::load(context, image.hot())?;
        let of_schedule = |(place, &(schedule, sums)): (usize, &(&str, Option<DataType>))| {
            let of = sums.map(|data_type| (data_type, Fold::Sum));
            let found = hot_module.find(&hot_name(schedule, sums))?;
            Ok(Kernel { of, hot: Some(place), ..found })
        };
        let hot = HOT.iter().enumerate().map(of_schedule).collect::<Result<_, CudaError>>()?;
        let traced = Mutex::default();
        Ok(Kernels { module, image, kernels, any, hot, _hot_module: hot_module, traced })
    }

    /// The kernel for a type and a fold.
    ///
    /// # Errors
    /// [`CudaError::NotSupported`] if the type does not have the fold.
    #[inline]
    pub fn pick(&self, data_type: DataType, fold: Fold) -> Result<Kernel, CudaError> {
        self.kernels[data_type as usize * Fold::ALL.len() + fold as usize].ok_or_else(|| {
            let ordinal = self.module.context.device().ordinal();
            CudaError::NotSupported { ordinal, what: "this fold of this type" }
        })
    }

    /// The kernel of one schedule, named as in `oxccl_plans::hot`, for sums of this type or, where
    /// the schedule only copies, for any; if there is one.
    pub fn hot(&self, schedule: &str, data_type: DataType, fold: Fold) -> Option<Kernel> {
        let is_it = |(of, sums): &(&str, Option<DataType>)| {
            let reduces_so = sums.is_none_or(|sums| (sums, Fold::Sum) == (data_type, fold));
            *of == schedule && reduces_so
        };
        HOT.iter().position(is_it).map(|place| self.hot[place])
    }

    /// The kernel for all types and folds, slower than those for one.
    pub fn any(&self) -> Kernel {
        self.any
    }

    /// The traced ones, loaded unless another rank has them already. As a start does, that may wait
    /// for all kernels of the context.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(super) fn traced(&self) -> Result<Arc<TracedKernels>, CudaError> {
        let mut traced = self.traced.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernels) = &*traced {
            return Ok(kernels.clone());
        }
        let context = &self.module.context;
        let kernels = Arc::new(context.scope(|| TracedKernels::load(context, self.image))?);
        Ok(traced.insert(kernels).clone())
    }

    /// Fails if a kernel cannot run for so many ranks with so many channels each, all at once.
    ///
    /// # Errors
    /// [`CudaError::TooManyBlocks`], and the driver's.
    pub fn check_residency(
        &self,
        kernel: Kernel,
        ranks: usize,
        channels: usize,
    ) -> Result<(), CudaError> {
        let resident = kernel.resident;
        if ranks.saturating_mul(channels) <= resident {
            return Ok(());
        }
        let gpu = self.module.context.device().uuid()?;
        Err(CudaError::TooManyBlocks { gpu, ranks, channels, resident })
    }

    /// The same kernel, which leaves long copies to the engine for bulk asynchronous copies.
    /// Results are the same; whether it is faster depends on the GPU and the number of blocks.
    ///
    /// # Errors
    /// [`CudaError::NotSupported`] if the GPU has no such engine; the driver's.
    pub fn with_bulk_copies(&self, kernel: Kernel) -> Result<Kernel, CudaError> {
        let device = self.module.context.device();
        if device.capability()? < BULK_COPY_CAPABILITY {
            let (ordinal, what) = (device.ordinal(), "bulk asynchronous copies: they need 9.0");
            return Err(CudaError::NotSupported { ordinal, what });
        }
        let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let resident = self.module.context.scope(|| {
            // SAFETY: a function of this module, the context current.
            unsafe { call!(cuFuncSetAttribute(kernel.function, most, BULK_COPY_BYTES as i32)) }?;
            self.module.resident(kernel.function, BULK_COPY_BYTES)
        })?;
        Ok(Kernel { resident, shared_bytes: BULK_COPY_BYTES, ..kernel })
    }
}

impl Module {
    /// In the context.
    pub(super) fn load(context: &Context, image: Image) -> Result<Module, CudaError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver is loaded, the context current, the pointer valid, and the image
        // whole.
        unsafe { call!(cuModuleLoadData(&raw mut raw, image.as_ptr().cast())) }
            .map_err(|error| unusable(context, error))?;
        let (multiprocessors, in_domain) = (0, false);
        let mut loaded = Module { context: context.clone(), raw, multiprocessors, in_domain };
        loaded.multiprocessors = context.device().multiprocessors()?;
        loaded.in_domain = context.device().capability()? >= DOMAIN_CAPABILITY;
        Ok(loaded)
    }

    /// In the context.
    pub(super) fn find(&self, name: &str) -> Result<Kernel, CudaError> {
        let name = CString::new(name).unwrap_or_default();
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, the context current, the name ends with a zero.
        unsafe { call!(cuModuleGetFunction(&raw mut function, self.raw, name.as_ptr())) }?;
        // Drivers before 12.4 load with the look-up.
        if has("cuFuncLoad") {
            // SAFETY: a function of this module.
            unsafe { call!(cuFuncLoad(function)) }?;
        }
        let resident = self.resident(function, 0)?;
        let in_domain = self.in_domain;
        let (of, shared_bytes, traced, hot) = (None, 0, false, None);
        Ok(Kernel { function, of, resident, shared_bytes, traced, hot, in_domain })
    }

    /// How many blocks with so much dynamic shared memory the GPU holds at once. In the context.
    fn resident(&self, function: sys::CUfunction, shared_bytes: u32) -> Result<usize, CudaError> {
        let (mut blocks, shared_bytes) = (0, shared_bytes as usize);
        // SAFETY: a function of this module, the context current; the pointer is valid.
        unsafe {
            call!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &raw mut blocks,
                function,
                BLOCK_THREADS as i32,
                shared_bytes,
            ))
        }?;
        if blocks < 1 {
            let ordinal = self.context.device().ordinal();
            return Err(CudaError::NotSupported { ordinal, what: "blocks of 512 threads" });
        }
        Ok(blocks as usize * self.multiprocessors)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by this object, given back once. Whoever launched has waited.
        self.context.give_back(|| unsafe { call!(cuModuleUnload(self.raw)) });
    }
}

impl Kernel {
    /// How many of its blocks the GPU holds at once.
    pub fn resident(&self) -> usize {
        self.resident
    }

    /// Whether it is another module's handle of the same kernel, launched alike.
    pub(crate) fn is_same(&self, other: &Kernel) -> bool {
        let launched = |of: &Kernel| (of.of, of.shared_bytes, of.traced, of.hot);
        launched(self) == launched(other)
    }

    /// The type and fold that it is for; none: all.
    pub(super) fn of(&self) -> Option<(DataType, Fold)> {
        self.of
    }

    /// The same as one that writes its steps, for this type and fold.
    pub(super) fn traced(self, of: Option<(DataType, Fold)>) -> Kernel {
        Kernel { of, traced: true, ..self }
    }

    /// The same, launched as another one is.
    pub(super) fn launched_as(self, other: Kernel) -> Kernel {
        Kernel { shared_bytes: other.shared_bytes, ..self }
    }

    /// Puts the calls of several ranks into a stream, of so many blocks together, all of which run
    /// at once.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch), for each of the launch blocks that this one leads to.
    pub(crate) unsafe fn launch_joined(
        &self,
        stream: &Stream,
        launch: &Launch,
        blocks: usize,
    ) -> Result<(), CudaError> {
        // SAFETY: by this function's contract.
        unsafe { self.launch_as(stream, launch, blocks, true) }
    }

    /// Puts a call into a stream: one block for each of the program's channels.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The launch is complete and valid for so many channels, as `format` describes it, with
    /// addresses that the GPU reaches, until the stream has come that far; its program is one of
    /// this kernel's type and fold, or only copies. No other launch uses its connections at the
    /// same time.
    #[inline]
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        launch: &Launch,
        channels: usize,
    ) -> Result<(), CudaError> {
        // SAFETY: by this function's contract.
        unsafe { self.launch_as(stream, launch, channels, false) }
    }

    /// # Safety
    /// As for [`launch`](Self::launch).
    #[inline]
    unsafe fn launch_as(
        &self,
        stream: &Stream,
        launch: &Launch,
        blocks: usize,
        at_once: bool,
    ) -> Result<(), CudaError> {
        use sys::CUlaunchAttributeID::{
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE as COOPERATIVE,
            CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN as DOMAIN,
        };
        // The driver copies the parameter before it returns, and does not write to it.
        let mut parameters = [std::ptr::from_ref(launch).cast_mut().cast::<c_void>()];
        let attribute = |id, value| sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let remote = sys::CUlaunchMemSyncDomain::CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
        let mut attributes = [
            attribute(DOMAIN, sys::CUlaunchAttributeValue { memSyncDomain: remote }),
            attribute(COOPERATIVE, sys::CUlaunchAttributeValue { cooperative: 1 }),
        ];
        let wanted = usize::from(!self.in_domain)..1 + usize::from(at_once);
        let attributes = &mut attributes[wanted];
        let config = sys::CUlaunchConfig {
            gridDimX: blocks as u32,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: BLOCK_THREADS,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes,
            hStream: stream.raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: the kernel has this one parameter; the rest is the caller's promise.
        stream.context().scope(|| unsafe {
            call!(cuLaunchKernelEx(
                &raw const config,
                self.function,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            ))
        })
    }
}

/// Names an image that a GPU, or its driver, cannot run.
fn unusable(context: &Context, error: CudaError) -> CudaError {
    use sys::CUresult::*;
    let device = context.device();
    let version = device.driver().version();
    let is = |codes: &[sys::CUresult]| codes.iter().any(|code| error.code() == Some(*code as u32));
    if is(&[CUDA_ERROR_NO_BINARY_FOR_GPU]) {
        missing(device, &targets())
    } else if is(&[CUDA_ERROR_INVALID_IMAGE, CUDA_ERROR_UNSUPPORTED_PTX_VERSION]) {
        let detail = format!(
            "the driver, of version {version}, cannot read them: install a driver at least as new \
             as the CUDA compiler that oxccl was built with"
        );
        missing(device, &detail)
    } else {
        error
    }
}
