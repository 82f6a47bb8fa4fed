//! libibverbs, loaded when it is first asked for.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use super::RdmaError;
use super::sys;

/// Declares the table of functions, and loads it.
macro_rules! functions {
    ($($(#[$comment:meta])* $name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libibverbs, by their names without `ibv_`.
        pub(super) struct Library {
            $($(#[$comment])* pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Since rdma-core 34.
            pub(super) reg_dmabuf_mr: Option<
                unsafe extern "C" fn(*mut sys::Domain, u64, usize, u64, c_int, c_int) -> *mut sys::MemoryRegion,
            >,
            // Never unloaded: providers keep threads and handlers of their own.
            _library: libloading::Library,
        }

        impl Library {
            fn open() -> Result<Library, libloading::Error> {
                // SAFETY: loading libibverbs runs its initialisers, which only read its settings;
                // the functions have the types that its header declares.
                unsafe {
                    let library = libloading::Library::new("libibverbs.so.1")?;
                    Ok(Library {
                        $($name: *library.get(concat!("ibv_", stringify!($name), "\0"))?,)*
                        reg_dmabuf_mr: library.get("ibv_reg_dmabuf_mr\0").map(|function| *function).ok(),
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    fork_init: fn() -> c_int;
    get_device_list: fn(*mut c_int) -> *mut *mut sys::Device;
    free_device_list: fn(*mut *mut sys::Device);
    get_device_name: fn(*mut sys::Device) -> *const c_char;
    open_device: fn(*mut sys::Device) -> *mut sys::Context;
    close_device: fn(*mut sys::Context) -> c_int;
    query_device: fn(*mut sys::Context, *mut sys::DeviceAttributes) -> c_int;
    query_port: fn(*mut sys::Context, u8, *mut sys::PortAttributes) -> c_int;
    query_gid: fn(*mut sys::Context, u8, c_int, *mut sys::Gid) -> c_int;
    get_async_event: fn(*mut sys::Context, *mut sys::AsyncEvent) -> c_int;
    ack_async_event: fn(*mut sys::AsyncEvent);
    event_type_str: fn(u32) -> *const c_char;
    alloc_pd: fn(*mut sys::Context) -> *mut sys::Domain;
    dealloc_pd: fn(*mut sys::Domain) -> c_int;
    reg_mr: fn(*mut sys::Domain, *mut c_void, usize, c_int) -> *mut sys::MemoryRegion;
    dereg_mr: fn(*mut sys::MemoryRegion) -> c_int;
    create_comp_channel: fn(*mut sys::Context) -> *mut sys::CompletionChannel;
    destroy_comp_channel: fn(*mut sys::CompletionChannel) -> c_int;
    create_cq: fn(*mut sys::Context, c_int, *mut c_void, *mut sys::CompletionChannel, c_int) -> *mut sys::CompletionQueue;
    destroy_cq: fn(*mut sys::CompletionQueue) -> c_int;
    get_cq_event: fn(*mut sys::CompletionChannel, *mut *mut sys::CompletionQueue, *mut *mut c_void) -> c_int;
    ack_cq_events: fn(*mut sys::CompletionQueue, u32);
    wc_status_str: fn(u32) -> *const c_char;
    create_qp: fn(*mut sys::Domain, *mut sys::QueuePairInit) -> *mut sys::QueuePair;
    modify_qp: fn(*mut sys::QueuePair, *mut sys::QueuePairAttributes, c_int) -> c_int;
    destroy_qp: fn(*mut sys::QueuePair) -> c_int;
}

impl Library {
    /// Loads the library; doing so again costs nothing.
    pub(super) fn load() -> Result<&'static Library, RdmaError> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let loaded = LIBRARY.get_or_init(|| {
            let library = Library::open().map_err(|error| error.to_string())?;
            // A child of this process must not take pinned pages with it. On kernels that copy them
            // at the fork it does nothing. SAFETY: no memory has been registered yet, as the
            // function asks.
            unsafe { (library.fork_init)() };
            Ok(library)
        });
        loaded.as_ref().map_err(|detail| RdmaError::NoLibrary { detail: detail.clone() })
    }

    /// The library's text for the status of a completion.
    pub(super) fn status_text(&self, status: u32) -> String {
        // SAFETY: the function takes any number, and answers with a text that is never freed.
        unsafe { text((self.wc_status_str)(status)) }
    }

    /// The library's text for an event of the device.
    pub(super) fn event_text(&self, event: u32) -> String {
        // SAFETY: as above.
        unsafe { text((self.event_type_str)(event)) }
    }
}

/// # Safety
/// A text that ends with a zero byte, or null.
pub(super) unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}
