//! Runs programs on the calling thread.

use crate::format::{DataType, Fold, Launch, MAX_OPERANDS, MAX_TREE_SOURCES, Outcome, Scale};
use crate::trace::{self, Sink, Trace, TracedStep};

/// An instruction set that the host executor was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain x86-64.
    X86_64,
    /// x86-64 with AVX2, F16C, BMI1 and BMI2.
    Avx2,
    /// [`Isa::Avx2`] and AVX-512 F, BW, DQ and VL.
    Avx512,
    /// 64-bit Arm with its vectors.
    Aarch64,
}

impl Isa {
    /// All of them, the best of each architecture last.
    pub const fn all() -> [Isa; 4] {
        [Isa::X86_64, Isa::Avx2, Isa::Avx512, Isa::Aarch64]
    }

    /// Short name.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::X86_64 => "x86-64",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Aarch64 => "aarch64",
        }
    }

    /// Whether this processor has it.
    #[cfg(target_arch = "x86_64")]
    fn is_here(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = || has!("avx2") && has!("f16c") && has!("bmi1") && has!("bmi2");
        let avx512 = || has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        match self {
            Isa::X86_64 => true,
            Isa::Avx2 => avx2(),
            Isa::Avx512 => avx2() && avx512(),
            Isa::Aarch64 => false,
        }
    }

    /// Whether this processor has it.
    #[cfg(target_arch = "aarch64")]
    fn is_here(self) -> bool {
        self == Isa::Aarch64
    }
}

/// A bare reduce-copy on plain memory, for benches and tests: what a `ReduceCopy` instruction does
/// once its operands are addresses.
#[derive(Clone, Copy, Debug)]
pub struct Reduction {
    /// Element type.
    pub data_type: DataType,
    /// How values combine.
    pub fold: Fold,
    /// [`Scale::Premultiply`] multiplies every source; [`Scale::Average`] needs `finish`.
    pub scale: Scale,
    /// The factor, as in [`Launch::scale_bits`].
    pub scale_bits: u64,
    /// The divisor of [`Scale::Average`].
    pub ranks: u32,
    /// Combine as the aligned binary tree instead of a left fold.
    pub tree: bool,
    /// The result is final.
    pub finish: bool,
    /// Write with streaming stores.
    pub stream: bool,
}

/// Mirrors `Reduction` in `machine/host/table.h`.
#[repr(C)]
struct RawReduction {
    sources: *const *const u8,
    destinations: *const *mut u8,
    sources_count: u32,
    destinations_count: u32,
    len_bytes: u64,
    scale_bits: u64,
    ranks: u32,
    data_type: u8,
    fold: u8,
    scale: u8,
    tree: u8,
    finish: u8,
    stream: u8,
}

type Execute = unsafe extern "C" fn(launch: *const Launch, channel: u32) -> u32;
type Reduce = unsafe extern "C" fn(reduction: *const RawReduction) -> u32;
type Convert = unsafe extern "C" fn(u32, u32, *const u8, *mut u8, usize) -> u32;

macro_rules! entry_points {
    ($($execute:ident $reduce:ident $convert:ident $trace:ident),+) => {
        unsafe extern "C" {
            $(
                fn $execute(launch: *const Launch, channel: u32) -> u32;
                fn $trace(
                    launch: *const Launch,
                    channel: u32,
                    sink: Sink,
                    context: *mut core::ffi::c_void,
                ) -> u32;
                fn $reduce(reduction: *const RawReduction) -> u32;
                fn $convert(
                    data_type: u32,
                    widen: u32,
                    from: *const u8,
                    to: *mut u8,
                    count: usize,
                ) -> u32;
            )+
        }
    };
}

#[cfg(target_arch = "x86_64")]
entry_points!(
    oxccl_execute_x86_64 oxccl_reduce_x86_64 oxccl_convert_x86_64 oxccl_trace_x86_64,
    oxccl_execute_avx2 oxccl_reduce_avx2 oxccl_convert_avx2 oxccl_trace_avx2,
    oxccl_execute_avx512 oxccl_reduce_avx512 oxccl_convert_avx512 oxccl_trace_avx512
);
#[cfg(target_arch = "aarch64")]
entry_points!(oxccl_execute_aarch64 oxccl_reduce_aarch64 oxccl_convert_aarch64 oxccl_trace_aarch64);

/// The machine for this processor. Small and freely copied.
#[derive(Clone, Copy, Debug)]
pub struct HostExecutor {
    isa: Isa,
    execute: Execute,
    trace: Trace,
    reduce: Reduce,
    convert: Convert,
}

impl HostExecutor {
    /// The best build that this processor runs.
    pub fn detect() -> HostExecutor {
        let best = Isa::all().into_iter().rev().find_map(HostExecutor::for_isa);
        // One build needs no extension, so there always is one.
        best.unwrap_or_else(|| unreachable!("the baseline build runs on every processor"))
    }

    /// A particular build, or `None` if this processor cannot run it.
    pub fn for_isa(isa: Isa) -> Option<HostExecutor> {
        if !isa.is_here() {
            return None;
        }
        let (execute, reduce, convert, trace): (Execute, Reduce, Convert, Trace) = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::X86_64 => (
                oxccl_execute_x86_64,
                oxccl_reduce_x86_64,
                oxccl_convert_x86_64,
                oxccl_trace_x86_64,
            ),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                (oxccl_execute_avx2, oxccl_reduce_avx2, oxccl_convert_avx2, oxccl_trace_avx2)
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => (
                oxccl_execute_avx512,
                oxccl_reduce_avx512,
                oxccl_convert_avx512,
                oxccl_trace_avx512,
            ),
            #[cfg(target_arch = "aarch64")]
            Isa::Aarch64 => (
                oxccl_execute_aarch64,
                oxccl_reduce_aarch64,
                oxccl_convert_aarch64,
                oxccl_trace_aarch64,
            ),
            _ => return None,
        };
        Some(HostExecutor { isa, execute, trace, reduce, convert })
    }

    /// Which build this is.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Runs one channel of a program to its end, in the calling thread.
    ///
    /// # Safety
    ///
    /// `launch` and everything it points to must be valid as `format` describes it, for the whole
    /// call: the program's tables lie within its length, instructions name operands, connections
    /// and windows that exist, and every offset plus length lies within its buffer or slot. No
    /// other thread may run the same channel of the same rank at the same time.
    #[inline]
    pub unsafe fn execute(&self, launch: *const Launch, channel: u32) -> Outcome {
        // SAFETY: passed on to the caller; the function runs on this processor (`for_isa`).
        outcome(unsafe { (self.execute)(launch, channel) })
    }

    /// As [`HostExecutor::execute`], by a build that tells when each step began and ended. Slower.
    ///
    /// # Safety
    ///
    /// As for [`HostExecutor::execute`].
    pub unsafe fn execute_traced(
        &self,
        launch: *const Launch,
        channel: u32,
    ) -> (Outcome, Vec<TracedStep>) {
        // SAFETY: passed on to the caller; the function runs on this processor (`for_isa`).
        unsafe { trace::run(self.trace, launch, channel) }
    }

    /// Reduces `len_bytes` of each source, in the listed order, into every destination.
    ///
    /// # Panics
    ///
    /// If there is no source, more operands than [`MAX_OPERANDS`] (or tree sources than
    /// [`MAX_TREE_SOURCES`]), or the type does not have the fold.
    ///
    /// # Safety
    ///
    /// Every pointer must be aligned for its element and valid for `len_bytes`, a multiple of the
    /// element size (any length for a copy). A destination may be a source but must not half
    /// overlap one.
    pub unsafe fn reduce(
        &self,
        reduction: &Reduction,
        sources: &[*const u8],
        destinations: &[*mut u8],
        len_bytes: usize,
    ) {
        assert!(!sources.is_empty(), "a reduction needs a source");
        assert!(sources.len() + destinations.len() <= MAX_OPERANDS, "too many operands");
        assert!(!reduction.tree || sources.len() <= MAX_TREE_SOURCES, "too many sources");
        assert!(reduction.data_type.has(reduction.fold), "the type does not have the fold");
        let raw = RawReduction {
            sources: sources.as_ptr(),
            destinations: destinations.as_ptr(),
            sources_count: sources.len() as u32,
            destinations_count: destinations.len() as u32,
            len_bytes: len_bytes as u64,
            scale_bits: reduction.scale_bits,
            ranks: reduction.ranks,
            data_type: reduction.data_type as u8,
            fold: reduction.fold as u8,
            scale: reduction.scale as u8,
            tree: u8::from(reduction.tree),
            finish: u8::from(reduction.finish),
            stream: u8::from(reduction.stream),
        };
        // SAFETY: the counts are those of the slices; the pointers are the caller's promise.
        let outcome = unsafe { (self.reduce)(&raw) };
        assert_eq!(outcome, Outcome::Done as u32, "checked above");
    }

    /// The conversion of a 16- or 8-bit float type to f32, as the machine does it.
    #[doc(hidden)]
    pub fn widen(&self, data_type: DataType, from: &[u8]) -> Vec<f32> {
        let count = from.len() / data_type.len_bytes();
        let mut to = vec![0f32; count];
        // SAFETY: `to` has room for `count` values, and `from` holds as many.
        unsafe {
            self.convert_elements(data_type, true, from.as_ptr(), to.as_mut_ptr().cast(), count)
        };
        to
    }

    /// The rounding of f32 to a 16- or 8-bit float type, as the machine does it.
    #[doc(hidden)]
    pub fn narrow(&self, data_type: DataType, from: &[f32]) -> Vec<u8> {
        let mut to = vec![0u8; from.len() * data_type.len_bytes()];
        // SAFETY: `to` has room for as many elements as `from` has.
        unsafe {
            self.convert_elements(
                data_type,
                false,
                from.as_ptr().cast(),
                to.as_mut_ptr(),
                from.len(),
            )
        };
        to
    }

    /// Converts elements of a 16- or 8-bit float type to f32 (`widen`), or f32 to them, as the
    /// machine does it.
    ///
    /// # Panics
    ///
    /// If the type is not a 16- or 8-bit float.
    ///
    /// # Safety
    ///
    /// `from` holds `count` elements and `to` has room for as many, each aligned.
    pub unsafe fn convert_elements(
        &self,
        data_type: DataType,
        widen: bool,
        from: *const u8,
        to: *mut u8,
        count: usize,
    ) {
        // SAFETY: by this function's contract.
        let done = unsafe { (self.convert)(data_type as u32, u32::from(widen), from, to, count) };
        assert_eq!(done, Outcome::Done as u32, "{data_type:?} is not a small float");
    }
}

/// What an executor returns.
#[inline]
pub(crate) fn outcome(number: u32) -> Outcome {
    match number {
        0 => Outcome::Done,
        1 => Outcome::Aborted,
        2 => Outcome::Mismatch,
        4 => Outcome::Unreadable,
        _ => Outcome::BadProgram,
    }
}
