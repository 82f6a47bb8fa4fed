//! NVLink, as NVML knows it, the driver's management library: to what the links of each GPU lead.
//!
//! The library is loaded when somebody asks, so that one binary serves machines with and without
//! it.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};

use libloading::{Library, Symbol};

/// Where the library is looked for: on the system's path.
pub const NVML: &str = "libnvidia-ml.so.1";

/// Most links of a GPU, so far.
const LINKS_MAX: c_uint = 18;

/// A link that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvLink {
    /// The PCI address of its GPU, as sysfs writes it.
    pub gpu: String,
    /// What is at its other end.
    pub end: NvLinkEnd,
    /// Its version, as `nvmlNvlinkVersion_t` numbers them.
    pub version: u32,
}

/// What is at the other end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NvLinkEnd {
    /// The GPU with this PCI address.
    Gpu(String),
    /// A switch.
    Switch,
    /// Something else: a processor, or what NVML does not tell.
    Other,
}

impl NvLink {
    /// Its generation, and what it carries in one direction in 10^9 bytes a second by NVIDIA's data
    /// sheets; none for a version that is newer than this.
    pub fn generation(&self) -> Option<(u32, f64)> {
        match self.version {
            1 => Some((1, 20.0)),
            2 | 3 => Some((2, 25.0)),
            4 | 5 => Some((3, 25.0)),
            6 => Some((4, 25.0)),
            7 => Some((5, 50.0)),
            _ => None,
        }
    }
}

/// Why NVML cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum NvmlError {
    /// The library is not there.
    #[error("{}: {reason}", .library.display())]
    Missing {
        /// Where it was looked for.
        library: PathBuf,
        /// What the loader says.
        reason: String,
    },
    /// The library has no such function: the driver is too old.
    #[error("NVML has no function {function}: the driver is too old")]
    MissingFunction {
        /// The function.
        function: &'static str,
    },
    /// A function failed.
    #[error("{function} failed with NVML's status {status}")]
    Failed {
        /// The function.
        function: &'static str,
        /// An `nvmlReturn_t`.
        status: i32,
    },
}

/// The links of all GPUs that are up, GPU by GPU.
///
/// # Errors
/// [`NvmlError`]
pub fn nvlinks(library: &Path) -> Result<Vec<NvLink>, NvmlError> {
    let nvml = Nvml::load(library)?;
    let mut gpus = Vec::new();
    for index in 0..nvml.count()? {
        let Some(device) = nvml.device(index)? else { continue };
        gpus.push((nvml.address(device)?, device));
    }
    let mut links = Vec::new();
    for (address, device) in &gpus {
        for link in 0..LINKS_MAX {
            match nvml.is_up(*device, link)? {
                None => break,
                Some(false) => {}
                Some(true) => links.push(NvLink {
                    gpu: address.clone(),
                    end: nvml.end(*device, link, |end| gpus.iter().any(|(gpu, _)| gpu == end))?,
                    version: nvml.version(*device, link)?,
                }),
            }
        }
    }
    Ok(links)
}

/// The library, initialised.
struct Nvml {
    library: Library,
}

/// An `nvmlDevice_t`: lives as long as the library is initialised.
type Device = *mut c_void;

/// `nvmlPciInfo_t`, as functions with the suffix v2 or v3 fill it.
#[repr(C)]
#[derive(Default)]
struct PciInfo {
    legacy_id: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    id: [c_char; 32],
}

/// Of `nvmlReturn_t`.
const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const NO_PERMISSION: c_int = 4;

/// Of `nvmlIntNvLinkDeviceType_t`.
const END_IS_GPU: c_uint = 0;
const END_IS_SWITCH: c_uint = 2;

type OfLink<T> = unsafe extern "C" fn(Device, c_uint, *mut T) -> c_int;

impl Nvml {
    fn load(path: &Path) -> Result<Nvml, NvmlError> {
        // SAFETY: NVML's initialisers do nothing before nvmlInit.
        let library = unsafe { Library::new(path) }.map_err(|error| NvmlError::Missing {
            library: path.to_owned(),
            reason: error.to_string(),
        })?;
        let nvml = Nvml { library };
        // SAFETY: the type is nvml.h's, as that of all below.
        unsafe {
            let init = nvml.function::<unsafe extern "C" fn() -> c_int>("nvmlInit_v2")?;
            check("nvmlInit_v2", init())?;
        }
        Ok(nvml)
    }

    fn count(&self) -> Result<c_uint, NvmlError> {
        let (name, mut count) = ("nvmlDeviceGetCount_v2", 0);
        // SAFETY: the count is written to a live variable.
        unsafe {
            let get = self.function::<unsafe extern "C" fn(*mut c_uint) -> c_int>(name)?;
            check(name, get(&mut count))?;
        }
        Ok(count)
    }

    /// A GPU, if this process may use it.
    fn device(&self, index: c_uint) -> Result<Option<Device>, NvmlError> {
        let (name, mut device) = ("nvmlDeviceGetHandleByIndex_v2", std::ptr::null_mut());
        // SAFETY: the handle is written to a live variable.
        unsafe {
            let get = self.function::<unsafe extern "C" fn(c_uint, *mut Device) -> c_int>(name)?;
            match get(index, &mut device) {
                NO_PERMISSION => Ok(None),
                status => check(name, status).map(|()| Some(device)),
            }
        }
    }

    fn address(&self, device: Device) -> Result<String, NvmlError> {
        let (name, mut info) = ("nvmlDeviceGetPciInfo_v3", PciInfo::default());
        // SAFETY: the handle is of this library, which is initialised; the structure is nvml.h's.
        unsafe {
            let get = self.function::<unsafe extern "C" fn(Device, *mut PciInfo) -> c_int>(name)?;
            check(name, get(device, &mut info))?;
        }
        Ok(info.address())
    }

    /// Whether a link is up; none where the GPU has no such link.
    fn is_up(&self, device: Device, link: c_uint) -> Result<Option<bool>, NvmlError> {
        let name = "nvmlDeviceGetNvLinkState";
        match self.of_link::<c_uint>(name, device, link) {
            Ok(state) => Ok(Some(state == 1)),
            Err(NvmlError::Failed { status: NOT_SUPPORTED | INVALID_ARGUMENT, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn version(&self, device: Device, link: c_uint) -> Result<u32, NvmlError> {
        self.of_link::<c_uint>("nvmlDeviceGetNvLinkVersion", device, link)
    }

    /// What is at a link's other end. Older drivers tell only the address there.
    fn end(
        &self,
        device: Device,
        link: c_uint,
        is_gpu: impl Fn(&str) -> bool,
    ) -> Result<NvLinkEnd, NvmlError> {
        let kind = "nvmlDeviceGetNvLinkRemoteDeviceType";
        let told = match self.of_link::<c_uint>(kind, device, link) {
            Ok(kind) => Some(kind),
            Err(NvmlError::MissingFunction { .. } | NvmlError::Failed { .. }) => None,
            Err(error) => return Err(error),
        };
        if told == Some(END_IS_SWITCH) {
            return Ok(NvLinkEnd::Switch);
        }
        let address = "nvmlDeviceGetNvLinkRemotePciInfo_v2";
        let address = match self.of_link::<PciInfo>(address, device, link) {
            Ok(info) => info.address(),
            Err(NvmlError::Failed { status: NOT_SUPPORTED, .. }) => return Ok(NvLinkEnd::Other),
            Err(error) => return Err(error),
        };
        let gpu = told == Some(END_IS_GPU) || is_gpu(&address);
        Ok(if gpu { NvLinkEnd::Gpu(address) } else { NvLinkEnd::Other })
    }

    /// What a function tells of a link.
    fn of_link<T: Default>(
        &self,
        name: &'static str,
        device: Device,
        link: c_uint,
    ) -> Result<T, NvmlError> {
        let mut value = T::default();
        // SAFETY: the handle is of this library, which is initialised; these functions write an
        // unsigned integer, an enumeration or a structure, all of which `T` is at each call.
        unsafe {
            let get = self.function::<OfLink<T>>(name)?;
            check(name, get(device, link, &mut value))?;
        }
        Ok(value)
    }

    /// A function of the library.
    ///
    /// # Safety
    /// `T` must be its type in nvml.h.
    unsafe fn function<T>(&self, name: &'static str) -> Result<Symbol<'_, T>, NvmlError> {
        // SAFETY: promised by the caller.
        unsafe { self.library.get(name.as_bytes()) }
            .map_err(|_| NvmlError::MissingFunction { function: name })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: the type is nvml.h's; no handle is used any more.
        unsafe {
            if let Ok(end) = self.function::<unsafe extern "C" fn() -> c_int>("nvmlShutdown") {
                end();
            }
        }
    }
}

impl PciInfo {
    /// The address as sysfs writes it.
    fn address(&self) -> String {
        format!("{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }
}

fn check(function: &'static str, status: c_int) -> Result<(), NvmlError> {
    if status == SUCCESS { Ok(()) } else { Err(NvmlError::Failed { function, status }) }
}
