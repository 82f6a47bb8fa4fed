//! NCCL's C interface, as much of it as is measured: types, and the functions that are looked up.
//!
//! Signatures and values are those of NCCL's public header, of release 2.30 (`nccl.h` in the
//! package nvidia-nccl-cu13).

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::error::NcclError;

/// `ncclComm_t`.
pub(crate) type Comm = *mut c_void;
/// `ncclWindow_t`.
pub(crate) type Window = *mut c_void;
/// `cudaStream_t`, which is `CUstream`.
pub(crate) type Stream = *mut c_void;
/// `ncclResult_t`.
pub(crate) type Code = c_int;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Id(pub(crate) [c_char; 128]);

/// `ncclConfig_t` as of release 2.30. Later ones append fields, and read no more than `size_bytes`.
#[repr(C)]
pub(crate) struct Config {
    size_bytes: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    pub(crate) min_ctas: c_int,
    pub(crate) max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
    comm_name: *const c_char,
    collnet_enable: c_int,
    cta_policy: c_int,
    shrink_share: c_int,
    nvls_ctas: c_int,
    channels_per_net_peer: c_int,
    nvlink_centric_sched: c_int,
    graph_usage_mode: c_int,
    rma_contexts: c_int,
    max_p2p_peers: c_int,
    graph_stream_ordering: c_int,
}

const _: () = assert!(size_of::<Config>() == 96, "as the header's compiler lays it out");

impl Config {
    /// Everything is left to NCCL.
    pub(crate) fn undefined() -> Config {
        const MAGIC: c_uint = 0xcafe_beef;
        const VERSION: c_uint = 23007;
        const UNDEFINED: c_int = c_int::MIN;
        Config {
            size_bytes: size_of::<Config>(),
            magic: MAGIC,
            version: VERSION,
            blocking: UNDEFINED,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
            comm_name: std::ptr::null(),
            collnet_enable: UNDEFINED,
            cta_policy: UNDEFINED,
            shrink_share: UNDEFINED,
            nvls_ctas: UNDEFINED,
            channels_per_net_peer: UNDEFINED,
            nvlink_centric_sched: UNDEFINED,
            graph_usage_mode: UNDEFINED,
            rma_contexts: UNDEFINED,
            max_p2p_peers: UNDEFINED,
            graph_stream_ordering: UNDEFINED,
        }
    }
}

/// A table of functions, each looked up by its name.
macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*) -> $answer:ty;)*) => {
        /// NCCL's functions, valid as long as the library is loaded.
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $answer,)*
        }

        impl Functions {
            /// # Safety
            /// The library is NCCL, and outlives the result.
            pub(crate) unsafe fn look_up(library: &libloading::Library) -> Result<Functions, NcclError> {
                Ok(Functions {
                    // SAFETY: by this function's contract these names have these types.
                    $($field: *unsafe { library.get(concat!($name, "\0")) }.map_err(|_| {
                        NcclError::MissingFunction { function: $name }
                    })?,)*
                })
            }
        }
    };
}

functions! {
    error_string = "ncclGetErrorString": fn(Code) -> *const c_char;
    last_error = "ncclGetLastError": fn(Comm) -> *const c_char;
    unique_id = "ncclGetUniqueId": fn(*mut Id) -> Code;
    init = "ncclCommInitRankConfig": fn(*mut Comm, c_int, Id, c_int, *mut Config) -> Code;
    mem_alloc = "ncclMemAlloc": fn(*mut *mut c_void, usize) -> Code;
    window_register = "ncclCommWindowRegister": fn(Comm, *mut c_void, usize, *mut Window, c_int) -> Code;
    group_start = "ncclGroupStart": fn() -> Code;
    group_end = "ncclGroupEnd": fn() -> Code;
    all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code;
    reduce_scatter = "ncclReduceScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code;
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> Code;
    all_to_all = "ncclAlltoAll": fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> Code;
    broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code;
    reduce = "ncclReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, Stream) -> Code;
    gather = "ncclGather": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code;
    scatter = "ncclScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> Code;
}
