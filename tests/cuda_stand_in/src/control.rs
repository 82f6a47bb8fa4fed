//! The tests' side: where the stand-in is, what is alive in it, and failures to come.

use std::ffi::{CString, c_char};
use std::io;
use std::path::PathBuf;

use crate::memory::{self, Kind};
use crate::{
    call, context, emulator, event, graph, kernel, module, multicast, stream, virtual_memory,
};

/// What a text that the stand-in takes for an image begins with; compute capabilities times ten
/// follow.
pub const IMAGE_START: &str = "oxccl stand-in image for ";

/// The text of an image for these compute capabilities, with the zero that ends it.
pub fn image(capabilities: &[u32]) -> Vec<u8> {
    let list: Vec<String> = capabilities.iter().map(u32::to_string).collect();
    format!("{IMAGE_START}{}\0", list.join(" ")).into_bytes()
}

/// A folder to put first on `LD_LIBRARY_PATH` of a process, in which the stand-in then is libcuda.
///
/// # Errors
/// If the folder cannot be made, or the stand-in was not built beside the running test.
pub fn library_folder() -> io::Result<PathBuf> {
    let test = std::env::current_exe()?;
    let beside = test.parent().unwrap_or(&test);
    let library = "liboxccl_cuda_stand_in.so";
    std::fs::metadata(beside.join(library))?;
    let folder = beside.join("cuda-stand-in");
    std::fs::create_dir_all(&folder)?;
    for name in ["libcuda.so", "libcuda.so.1"] {
        // Relative, so that the build's folder may move.
        let target = std::path::Path::new("..").join(library);
        match std::os::unix::fs::symlink(target, folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(folder)
}

/// An image for all compute capabilities that tests have, as a file beside the stand-in.
///
/// # Errors
/// As [`library_folder`]; a file that cannot be written.
pub fn image_file() -> io::Result<PathBuf> {
    let path = library_folder()?.join("image");
    let text = image(&[80, 90, 100, 120]);
    // A rename, since tests run at the same time.
    let id = (std::process::id(), std::thread::current().id());
    let own = path.with_extension(format!("{id:?}"));
    std::fs::write(&own, &text[..text.len() - 1])?;
    std::fs::rename(&own, &path)?;
    Ok(path)
}

/// How many objects of each kind are alive.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// `cuMemAlloc`.
    pub allocations: usize,
    /// Handles of physical memory, and of multicast teams.
    pub physical: usize,
    /// Reserved address ranges.
    pub reservations: usize,
    /// Mappings of physical memory.
    pub mappings: usize,
    /// Blocks of other processes, opened by legacy IPC.
    pub imported: usize,
    /// Pinned host allocations.
    pub pinned: usize,
    /// Registered host ranges.
    pub registered: usize,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Modules.
    pub modules: usize,
    /// Graphs.
    pub graphs: usize,
    /// Graphs made ready to launch.
    pub executables: usize,
    /// Contexts that were created.
    pub contexts: usize,
    /// Times that primary contexts are retained.
    pub retained: usize,
}

/// The stand-in that this process has loaded as libcuda.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    live: extern "C" fn() -> Live,
    calls: extern "C" fn() -> u64,
    launches: extern "C" fn() -> u64,
    traced: extern "C" fn() -> u64,
    hot: extern "C" fn() -> u64,
    remote: extern "C" fn() -> u64,
    blocks: extern "C" fn() -> u64,
    switched: extern "C" fn() -> u64,
    switched_bytes: extern "C" fn() -> u64,
    fail: unsafe extern "C" fn(*const c_char) -> i32,
}

impl Control {
    /// Finds it.
    ///
    /// # Errors
    /// If libcuda cannot be loaded, or is another one.
    pub fn attach() -> Result<Control, String> {
        // SAFETY: the name ends with a zero; a driver's initialisers do nothing before cuInit.
        let library = unsafe { libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return Err("there is no libcuda.so on the library path".to_owned());
        }
        let find = |name: &std::ffi::CStr| {
            // SAFETY: a library that is loaded and stays so, since it is never closed.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            if found.is_null() {
                Err("libcuda.so is not the stand-in".to_owned())
            } else {
                Ok(found)
            }
        };
        // SAFETY: the functions below, of the same crate.
        unsafe {
            Ok(Control {
                live: std::mem::transmute::<*mut _, extern "C" fn() -> Live>(find(
                    c"oxccl_stand_in_live",
                )?),
                calls: std::mem::transmute::<*mut _, extern "C" fn() -> u64>(find(
                    c"oxccl_stand_in_calls",
                )?),
                launches: std::mem::transmute::<*mut _, extern "C" fn() -> u64>(find(
                    c"oxccl_stand_in_launches",
                )?),
                hot: std::mem::transmute::<*mut _, extern "C" fn() -> u64>(find(
                    c"oxccl_stand_in_hot",
                )?),
                traced: std::mem::transmute::<*mut _, extern "C" fn() -> u64>(find(
                    c"oxccl_stand_in_traced",
                )?),
                remote: std::mem::transmute::<*mut _, extern "C" fn() -> u64>(find(
                    c"oxccl_stand_in_remote",
                )?),
                blocks: std::mem::transmute::<*mut _, extern "C" fn() -> u64>(find(
                    c"oxccl_stand_in_blocks",
                )?),
                switched: std::mem::transmute::<*mut _, extern "C" fn() -> u64>(find(
                    c"oxccl_stand_in_switched",
                )?),
                switched_bytes: std::mem::transmute::<*mut _, extern "C" fn() -> u64>(find(
                    c"oxccl_stand_in_switched_bytes",
                )?),
                fail: std::mem::transmute::<*mut _, unsafe extern "C" fn(*const c_char) -> i32>(
                    find(c"oxccl_stand_in_fail")?,
                ),
            })
        }
    }

    /// What is alive.
    pub fn live(&self) -> Live {
        (self.live)()
    }

    /// Calls so far, but for those that give something back.
    pub fn calls(&self) -> u64 {
        (self.calls)()
    }

    /// Launches of kernels so far, captured ones once.
    pub fn launches(&self) -> u64 {
        (self.launches)()
    }

    /// Those of these whose kernels were hot ones.
    pub fn hot(&self) -> u64 {
        (self.hot)()
    }

    /// Those of these whose kernels were traced.
    pub fn traced(&self) -> u64 {
        (self.traced)()
    }

    /// Those of these that were in the memory-synchronisation domain for remote memory.
    pub fn remote(&self) -> u64 {
        (self.remote)()
    }

    /// Blocks of all launches.
    pub fn blocks(&self) -> u64 {
        (self.blocks)()
    }

    /// Launches so far that had a multicast address.
    pub fn switched(&self) -> u64 {
        (self.switched)()
    }

    /// The bytes that emulated kernels have read of all members of a multicast team at once.
    pub fn switched_bytes(&self) -> u64 {
        (self.switched_bytes)()
    }

    /// Plans a failure, as `OXCCL_STAND_IN_FAIL` does; an empty text cancels it.
    ///
    /// # Panics
    /// If the text cannot be understood.
    pub fn fail(&self, text: &str) {
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: the text ends with a zero.
        let done = unsafe { (self.fail)(text.as_ptr()) };
        assert_eq!(done, 0, "{text:?} cannot be understood");
    }
}

/// See [`Control::live`].
#[unsafe(no_mangle)]
extern "C" fn oxccl_stand_in_live() -> Live {
    Live {
        allocations: memory::count(|kind| matches!(kind, Kind::Plain(_))),
        physical: virtual_memory::PHYSICAL.len() + multicast::TEAMS.len(),
        reservations: virtual_memory::reservations(),
        mappings: memory::count(|kind| matches!(kind, Kind::Mapped(..) | Kind::Multicast(..))),
        imported: memory::count(|kind| matches!(kind, Kind::Imported)),
        pinned: memory::count(|kind| matches!(kind, Kind::Pinned)),
        registered: memory::count(|kind| matches!(kind, Kind::Registered(_))),
        streams: stream::count(),
        events: event::EVENTS.len(),
        modules: module::MODULES.len(),
        graphs: graph::GRAPHS.len(),
        executables: graph::EXECUTABLES.len(),
        contexts: context::CONTEXTS.len(),
        retained: context::retained(),
    }
}

/// See [`Control::calls`].
#[unsafe(no_mangle)]
extern "C" fn oxccl_stand_in_calls() -> u64 {
    call::counted()
}

/// See [`Control::launches`].
#[unsafe(no_mangle)]
extern "C" fn oxccl_stand_in_launches() -> u64 {
    kernel::launches()
}

/// See [`Control::hot`].
#[unsafe(no_mangle)]
extern "C" fn oxccl_stand_in_hot() -> u64 {
    kernel::hot()
}

/// See [`Control::traced`].
#[unsafe(no_mangle)]
extern "C" fn oxccl_stand_in_traced() -> u64 {
    kernel::traced()
}

/// See [`Control::remote`].
#[unsafe(no_mangle)]
extern "C" fn oxccl_stand_in_remote() -> u64 {
    kernel::remote()
}

/// See [`Control::blocks`].
#[unsafe(no_mangle)]
extern "C" fn oxccl_stand_in_blocks() -> u64 {
    kernel::blocks()
}

/// See [`Control::switched`].
#[unsafe(no_mangle)]
extern "C" fn oxccl_stand_in_switched() -> u64 {
    multicast::launches()
}

/// See [`Control::switched_bytes`].
#[unsafe(no_mangle)]
extern "C" fn oxccl_stand_in_switched_bytes() -> u64 {
    emulator::switched_bytes()
}

/// See [`Control::fail`].
///
/// # Safety
/// The text ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn oxccl_stand_in_fail(text: *const c_char) -> i32 {
    // SAFETY: by this function's contract.
    let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy();
    match call::plan(&text) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("stand-in: {error}");
            1
        }
    }
}
