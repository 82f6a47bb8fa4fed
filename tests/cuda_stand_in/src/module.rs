//! Modules: what images are accepted, and the functions in them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUmodule, CUresult};
use oxccl_kernels::format::{DataType, Fold};
use oxccl_kernels::image::{self, BLOCK_THREADS};

use crate::call::{Answer, driver_calls, put};
use crate::registry::Registry;
use crate::settings::settings;
use crate::{context, control, emulator};

pub(crate) struct Module {
    context: usize,
}

/// A kernel of a module.
pub(crate) struct Function {
    pub(crate) context: usize,
    module: usize,
    pub(crate) name: String,
}

impl Function {
    /// Whether it has no parameters and does nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.name == EMPTY_KERNEL
    }

    /// Whether it reduces elements of this type so.
    pub(crate) fn reduces(&self, data_type: DataType, fold: Fold) -> bool {
        if let Some(sums) = self.sums() {
            return sums.is_none_or(|sums| (sums, Fold::Sum) == (data_type, fold));
        }
        match image::traced_kernels().find(|(_, name)| *name == self.name) {
            Some((of, _)) => of.is_none_or(|of| of == (data_type, fold)),
            None => {
                self.name == image::ANY_KERNEL || self.name == image::kernel_name(data_type, fold)
            }
        }
    }

    /// Of a hot kernel: the type whose sums it makes, or that it makes none.
    fn sums(&self) -> Option<Option<DataType>> {
        let named = |(schedule, sums): &&(&str, _)| image::hot_name(schedule, *sums) == self.name;
        image::HOT.iter().find(named).map(|(_, sums)| *sums)
    }

    /// Whether it is of one schedule alone.
    pub(crate) fn is_hot(&self) -> bool {
        self.sums().is_some()
    }

    /// Whether it writes its steps.
    pub(crate) fn is_traced(&self) -> bool {
        image::traced_kernels().any(|(_, name)| name == self.name)
    }
}

pub(crate) static MODULES: Registry<Module> = Registry::new(7);
pub(crate) static FUNCTIONS: Registry<Function> = Registry::new(8);

/// The one kernel in a PTX text that is accepted.
const EMPTY_KERNEL: &str = "oxccl_empty";

/// What a fat binary begins with.
const FATBIN_MAGIC: u32 = 0xba55_ed50;

/// Whether this device can run an image. Of the stand-in's own images, the text says for which
/// devices they are; PTX of a kernel that does nothing runs on all.
///
/// # Safety
/// It is a fat binary, or a text that ends with a zero.
unsafe fn check(image: *const c_void) -> Answer {
    if image.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: an image of either kind has this many bytes.
    if unsafe { image.cast::<u32>().read_unaligned() } == FATBIN_MAGIC {
        return Ok(());
    }
    // SAFETY: otherwise it is a text.
    let text = unsafe { CStr::from_ptr(image.cast::<c_char>()) }.to_string_lossy();
    // A text in PTX's place names the kernels of others.
    let has_guest =
        |text: &str| text.split_whitespace().any(|name| emulator::guest(name).is_some());
    if text.starts_with(".version") && (text.contains(EMPTY_KERNEL) || has_guest(&text)) {
        return Ok(());
    }
    let list = text.strip_prefix(control::IMAGE_START).ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE)?;
    let capability = settings().capability;
    // Machine code runs on later devices of the same generation.
    let fits = |target: u32| target / 10 == capability / 10 && target <= capability;
    if list.split(' ').filter_map(|target| target.parse().ok()).any(fits) {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU)
    }
}

driver_calls! {
    fn cuModuleLoadData(out: *mut CUmodule, image: *const c_void) {
        let (context, _) = context::current()?;
        check(image)?;
        put(out, MODULES.add(Arc::new(Module { context })) as CUmodule)
    }

    fn cuModuleUnload(module: CUmodule) {
        MODULES.remove(module as usize).map(drop)
    }

    fn cuModuleGetFunction(out: *mut CUfunction, module: CUmodule, name: *const c_char) {
        let context = MODULES.find(module as usize)?.context;
        // A kernel is loaded when it is first asked for, which may have to wait for all others.
        context::current()?.1.drain(context);
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        let known = name == EMPTY_KERNEL
            || name == image::ANY_KERNEL
            || emulator::guest(&name).is_some()
            || image::kernels().any(|(data_type, fold)| image::kernel_name(data_type, fold) == name)
            || image::traced_kernels().any(|(_, traced)| traced == name)
            || image::HOT.iter().any(|(schedule, sums)| image::hot_name(schedule, *sums) == name);
        if !known {
            return Err(CUresult::CUDA_ERROR_NOT_FOUND);
        }
        let function = Function { context, module: module as usize, name };
        put(out, FUNCTIONS.add(Arc::new(function)) as CUfunction)
    }

    fn cuFuncLoad(function: CUfunction) {
        find(function).map(drop)
    }

    fn cuFuncGetAttribute(out: *mut c_int, attribute: CUfunction_attribute, function: CUfunction) {
        use CUfunction_attribute::*;
        find(function)?;
        let value = match attribute {
            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => BLOCK_THREADS as c_int,
            CU_FUNC_ATTRIBUTE_NUM_REGS => 128,
            CU_FUNC_ATTRIBUTE_BINARY_VERSION => settings().capability as c_int,
            _ => 0,
        };
        put(out, value)
    }

    fn cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int) {
        find(function)?;
        // What a block can have on GPUs from 9.0 on, less what the kernels have without asking.
        let most = (227 << 10) - (48 << 10);
        let is_shared = attribute == CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        if is_shared && settings().capability >= 90 && value <= most {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_INVALID_VALUE)
        }
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        out: *mut c_int,
        function: CUfunction,
        threads: c_int,
        _shared_bytes: usize,
    ) {
        find(function)?;
        // By registers: 128 for each of 512 threads fill a multiprocessor.
        put(out, if threads <= BLOCK_THREADS as c_int { BLOCK_THREADS as c_int / threads.max(1) } else { 0 })
    }
}

/// A function, as long as its module is loaded.
pub(crate) fn find(function: CUfunction) -> Answer<Arc<Function>> {
    let function = FUNCTIONS.find(function as usize)?;
    MODULES.find(function.module)?;
    Ok(function)
}
