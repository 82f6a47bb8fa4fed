//! NCCL's names: each leads to its `pnccl` twin, which is the function.
//!
//! They are weak, as NVIDIA's are, so that a profiler may define one without a clash where
//! everything is linked into one program. rustc exports strong symbols alone, so a weak one is
//! written in assembly, and `build.rs` gives the linker a second list of what to export. A linker
//! that takes one list (GNU ld) gets strong names.

#[cfg(target_arch = "x86_64")]
macro_rules! lead {
    () => {
        "jmp {}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! lead {
    () => {
        "b {}"
    };
}

/// Defines a name of NCCL's.
#[cfg(weak_names)]
macro_rules! name {
    ($name:ident $twin:ident) => {
        core::arch::global_asm!(
            concat!(".pushsection .text.", stringify!($name), ",\"ax\",@progbits"),
            ".p2align 4",
            concat!(".weak ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            crate::names::lead!(),
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            ".popsection",
            sym $twin,
        );
    };
}

/// Defines a name of NCCL's.
#[cfg(not(weak_names))]
macro_rules! name {
    ($name:ident $twin:ident) => {
        /// Has its twin's arguments and result.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case, reason = "it has NCCL's name")]
        extern "C" fn $name() {
            core::arch::naked_asm!(crate::names::lead!(), sym $twin)
        }
    };
}

pub(crate) use {lead, name};
