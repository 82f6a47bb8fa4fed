//! Device memory that other processes can map: made by the virtual-memory API, handed out as a file
//! descriptor.

use std::any::Any;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::driver::call;
use super::sys::{self, CUdevice_attribute};
use super::{Context, CudaError, Device};

/// Memory of a GPU that other ranks can map.
///
/// As with a [`Region`](crate::Region), others write to it at any time, and there is only its
/// address.
#[derive(Debug)]
pub struct DeviceRegion {
    // In the order in which they have to go.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
    /// None before there is memory, and while that is given up.
    backing: Mutex<Option<Backing>>,
    reservation: Reservation,
    len_bytes: usize,
    context: Context,
    /// Made here, not received.
    own: bool,
}

/// Memory, and that it is mapped.
#[derive(Debug)]
struct Backing {
    // In the order in which they have to go.
    mapping: Mapping,
    physical: Physical,
}

pub(super) const POSIX: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

impl DeviceRegion {
    /// Makes a region of zeros, of at least this length: the driver has a granularity of 2 MiB.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], [`CudaError::NotSupported`], and the driver's.
    pub fn create(context: &Context, len_bytes: usize) -> Result<DeviceRegion, CudaError> {
        context.scope(|| {
            let region = DeviceRegion::allocate(context, len_bytes)?;
            // The default stream would be ordered with what others capture.
            const NON_BLOCKING: u32 = 1;
            let mut stream = std::ptr::null_mut();
            // SAFETY: the driver is loaded, the context current, and the pointer valid.
            unsafe { call!(cuStreamCreate(&raw mut stream, NON_BLOCKING)) }?;
            let filled = region.fill_with_zeros(stream);
            // SAFETY: made above, given back once.
            let ended = unsafe { call!(cuStreamDestroy_v2(stream)) };
            filled.and(ended).map(|()| region)
        })
    }

    /// The same by a stream that the caller has: streams take turns with a GPU's connections, also
    /// those that are soon gone.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    ///
    /// # Safety
    /// The stream is one of the context's, and lives.
    pub unsafe fn create_by(
        context: &Context,
        len_bytes: usize,
        stream: sys::CUstream,
    ) -> Result<DeviceRegion, CudaError> {
        context.scope(|| {
            let region = DeviceRegion::allocate(context, len_bytes)?;
            region.fill_with_zeros(stream).map(|()| region)
        })
    }

    /// Takes addresses for a region of at least this length, behind which there is nothing until
    /// [`restore`](Self::restore).
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn reserve(context: &Context, len_bytes: usize) -> Result<DeviceRegion, CudaError> {
        context.scope(|| {
            let properties = properties(context.device())?;
            let len_bytes = len_bytes.max(1).next_multiple_of(granularity(&properties)?);
            DeviceRegion::empty(context, len_bytes, true)
        })
    }

    /// What it holds is undefined. In the context.
    fn allocate(context: &Context, len_bytes: usize) -> Result<DeviceRegion, CudaError> {
        let region = DeviceRegion::reserve(context, len_bytes)?;
        region.restore().map(|()| region)
    }

    /// Memory for the whole region, which adapters reach where the driver permits it. In the
    /// context.
    fn physical(&self) -> Result<Physical, CudaError> {
        let mut properties = properties(self.context.device())?;
        match Physical::create(&self.context, self.len_bytes, &properties) {
            // Some virtual machines and containers refuse memory for adapters.
            Err(error) if is_for_adapters(&properties) && is_refusal(&error) => {
                tracing::info!(%error, "the GPU's memory is out of adapters' reach");
                properties.allocFlags.gpuDirectRDMACapable = 0;
                Physical::create(&self.context, self.len_bytes, &properties)
            }
            other => other,
        }
    }

    /// In the context.
    fn fill_with_zeros(&self, stream: sys::CUstream) -> Result<(), CudaError> {
        // SAFETY: memory of this length that is mapped for the context's device; the stream is one
        // of the context's.
        unsafe { call!(cuMemsetD8Async(self.reservation.at, 0, self.len_bytes, stream)) }
            // SAFETY: as above.
            .and_then(|()| unsafe { call!(cuStreamSynchronize(stream)) })
    }

    /// Maps what another process exported.
    pub(crate) fn receive(
        context: &Context,
        file: OwnedFd,
        len_bytes: usize,
    ) -> Result<DeviceRegion, CudaError> {
        context.scope(|| {
            let physical = Physical::import(context, &file)?;
            let region = DeviceRegion::empty(context, len_bytes, false)?;
            region.back(physical).map(|()| region)
        })
    }

    /// Addresses alone. In the context.
    fn empty(context: &Context, len_bytes: usize, own: bool) -> Result<DeviceRegion, CudaError> {
        let reservation = Reservation::take(context, len_bytes)?;
        let (kept, backing, context) = (Mutex::default(), Mutex::default(), context.clone());
        Ok(DeviceRegion { kept, backing, reservation, len_bytes, context, own })
    }

    /// Puts memory behind the addresses. In the context.
    fn back(&self, physical: Physical) -> Result<(), CudaError> {
        let mapping = Mapping::make(&self.reservation, &physical)?;
        grant(mapping.at, self.len_bytes, self.context.device())?;
        *self.backing() = Some(Backing { mapping, physical });
        Ok(())
    }

    fn backing(&self) -> MutexGuard<'_, Option<Backing>> {
        self.backing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the memory back and keeps the addresses, behind which there is nothing until
    /// [`restore`](Self::restore) or [`take_over`](Self::take_over). The memory itself is free once
    /// whoever has received it gives it up, too.
    pub fn give_up(&self) {
        let backing = self.backing().take();
        drop(backing);
    }

    /// Puts new memory, whose content is undefined, behind the addresses of a region that this
    /// process [reserved](Self::reserve), or made and has [given up](Self::give_up). It is to be
    /// handed out anew, and other GPUs are to be [allowed](Self::allow) anew.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn restore(&self) -> Result<(), CudaError> {
        self.context.scope(|| self.back(self.physical()?))
    }

    /// Puts the memory of another region, which was received in its place, behind the addresses of
    /// this one, which was given up.
    ///
    /// # Errors
    /// [`CudaError::GivenUp`] if the other has none; the driver's.
    pub fn take_over(&self, other: DeviceRegion) -> Result<(), CudaError> {
        let Backing { mapping, physical } = other.backing().take().ok_or(CudaError::GivenUp)?;
        self.context.scope(|| {
            drop(mapping);
            self.back(physical)
        })
    }

    /// Keeps something until the region itself goes: with ranks of one process, when the last of
    /// them lets go of it. Giving memory back waits for all kernels of the process; so what one
    /// rank has must stay while another may be in a call.
    pub fn keep(&self, what: Box<dyn Any + Send>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Lets another GPU of this process use it, under the same address.
    ///
    /// # Errors
    /// [`CudaError::NoPeerAccess`], and the driver's.
    pub fn allow(&self, device: Device) -> Result<(), CudaError> {
        if device.raw == self.context.device().raw {
            return Ok(());
        }
        device.check_reach(self.context.device().uuid()?)?;
        self.context.scope(|| grant(self.reservation.at, self.len_bytes, device))
    }

    /// A descriptor of the memory, for another process.
    pub(crate) fn export(&self) -> Result<OwnedFd, CudaError> {
        self.backing().as_ref().ok_or(CudaError::GivenUp)?.physical.export()
    }

    /// The driver's handle of the memory.
    pub(super) fn handle(&self) -> Result<sys::CUmemGenericAllocationHandle, CudaError> {
        self.backing().as_ref().map(|backing| backing.physical.handle).ok_or(CudaError::GivenUp)
    }

    /// Its address, for GPUs to follow and not for the host. Valid until this is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.reservation.at as *mut u8
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Whether this rank made it.
    pub fn is_own(&self) -> bool {
        self.own
    }

    /// The context that it is mapped for.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

/// Lets a GPU use what is mapped there.
pub(super) fn grant(at: u64, len_bytes: usize, device: Device) -> Result<(), CudaError> {
    let access = sys::CUmemAccessDesc {
        location: location(device),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the caller's mapping of this length, and one description.
    unsafe { call!(cuMemSetAccess(at, len_bytes, &raw const access, 1)) }
}

fn location(device: Device) -> sys::CUmemLocation {
    let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    sys::CUmemLocation { type_, id: device.raw }
}

fn properties(device: Device) -> Result<sys::CUmemAllocationProp, CudaError> {
    use CUdevice_attribute::*;
    device.require(
        CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED,
        "virtual memory management",
    )?;
    device.require(
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        "sharing memory as file descriptors",
    )?;
    let rdma = device.attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)? != 0;
    Ok(sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: POSIX,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: rdma.into(),
            usage: 0,
            reserved: [0; 4],
        },
    })
}

/// Whether the driver does not do what was asked for, in the words that drivers have for it.
fn is_refusal(error: &CudaError) -> bool {
    const REFUSALS: [sys::CUresult; 3] = [
        sys::CUresult::CUDA_ERROR_INVALID_VALUE,
        sys::CUresult::CUDA_ERROR_NOT_PERMITTED,
        sys::CUresult::CUDA_ERROR_NOT_SUPPORTED,
    ];
    error.code().is_some_and(|code| REFUSALS.iter().any(|refusal| *refusal as u32 == code))
}

fn is_for_adapters(properties: &sys::CUmemAllocationProp) -> bool {
    properties.allocFlags.gpuDirectRDMACapable != 0
}

fn granularity(properties: &sys::CUmemAllocationProp) -> Result<usize, CudaError> {
    let recommended = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    let mut bytes = 0;
    // SAFETY: the driver is loaded, and the pointers valid.
    unsafe { call!(cuMemGetAllocationGranularity(&raw mut bytes, properties, recommended)) }?;
    Ok(bytes.max(1))
}

/// A handle of physical memory, or of what stands for that of several GPUs.
#[derive(Debug)]
pub(super) struct Physical {
    pub(super) handle: sys::CUmemGenericAllocationHandle,
    pub(super) context: Context,
}

impl Physical {
    fn create(
        context: &Context,
        len_bytes: usize,
        properties: &sys::CUmemAllocationProp,
    ) -> Result<Physical, CudaError> {
        let mut handle = 0;
        // SAFETY: the driver is loaded, and the pointers valid.
        unsafe { call!(cuMemCreate(&raw mut handle, len_bytes, properties, 0)) }.map_err(
            |error| error.allocating("GPU memory", len_bytes, context.free_bytes().ok()),
        )?;
        Ok(Physical { handle, context: context.clone() })
    }

    pub(super) fn import(context: &Context, file: &OwnedFd) -> Result<Physical, CudaError> {
        let mut handle = 0;
        // The driver takes the descriptor's number in the place of a pointer, and keeps a copy.
        let number = file.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: the driver is loaded, the pointer valid, and the descriptor open.
        unsafe { call!(cuMemImportFromShareableHandle(&raw mut handle, number, POSIX)) }?;
        Ok(Physical { handle, context: context.clone() })
    }

    pub(super) fn export(&self) -> Result<OwnedFd, CudaError> {
        let mut file = -1;
        // SAFETY: a handle of this object; for this type of handle the pointer is to an integer.
        self.context.scope(|| unsafe {
            let handle = self.handle;
            call!(cuMemExportToShareableHandle((&raw mut file).cast(), handle, POSIX, 0))
        })?;
        // SAFETY: the driver has just made it for this process, and nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: a handle of this object's, released once.
        self.context.give_back(|| unsafe { call!(cuMemRelease(self.handle)) });
    }
}

/// A range of addresses.
#[derive(Debug)]
pub(super) struct Reservation {
    at: u64,
    len_bytes: usize,
    context: Context,
}

impl Reservation {
    pub(super) fn take(context: &Context, len_bytes: usize) -> Result<Reservation, CudaError> {
        let mut at = 0;
        // SAFETY: the driver is loaded, and the pointer valid.
        unsafe { call!(cuMemAddressReserve(&raw mut at, len_bytes, 0, 0, 0)) }
            .map_err(|error| error.allocating("GPU address space", len_bytes, None))?;
        Ok(Reservation { at, len_bytes, context: context.clone() })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: taken by this object, with nothing mapped there any more, and given back once.
        self.context.give_back(|| unsafe { call!(cuMemAddressFree(self.at, self.len_bytes)) });
    }
}

/// Physical memory, mapped over a whole reservation.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) at: u64,
    len_bytes: usize,
    context: Context,
}

impl Mapping {
    /// It goes before the reservation.
    pub(super) fn make(
        reservation: &Reservation,
        physical: &Physical,
    ) -> Result<Mapping, CudaError> {
        let (at, len_bytes) = (reservation.at, reservation.len_bytes);
        // SAFETY: the reservation is this long and empty, and so is the memory.
        unsafe { call!(cuMemMap(at, len_bytes, 0, physical.handle, 0)) }
            .map_err(|error| error.allocating("GPU page tables", len_bytes, None))?;
        Ok(Mapping { at, len_bytes, context: reservation.context.clone() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by this object. Its users know that the address is good only as long as it
        // is.
        self.context.give_back(|| unsafe { call!(cuMemUnmap(self.at, self.len_bytes)) });
    }
}
