//! One address for memory of several GPUs, behind an NVSwitch that reduces what is read there and
//! spreads what is written.
//!
//! It is made in steps, and the driver lets a GPU take the next one only when all have taken the
//! one before:
//!
//! 1. one rank makes the team ([`MulticastTeam::create`]) and hands it to the others
//!    ([`Offer`](crate::Offer));
//! 2. each rank adds its GPU ([`MulticastTeam::join`]);
//! 3. each rank binds a region of its GPU's memory, and maps the address that stands for all of
//!    them ([`MulticastMemory::bind`]).
//!
//! A GPU joins a team once, so ranks that share a GPU have none.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::driver::call;
use super::region::{Mapping, POSIX, Physical, Reservation, grant};
use super::sys::{self, CUdevice_attribute};
use super::{Context, CudaError, Device, DeviceRegion};

/// GPUs, one for each rank, and as much memory of each.
#[derive(Debug)]
pub struct MulticastTeam {
    physical: Physical,
    len_bytes: usize,
}

/// The address that stands for the memory of all GPUs of a team, mapped for one of them.
#[derive(Debug)]
pub struct MulticastMemory {
    // In the order in which they have to go.
    mapping: Mapping,
    _reservation: Reservation,
    _binding: Binding,
}

/// A GPU's memory, as a part of a team's.
#[derive(Debug)]
struct Binding {
    device: Device,
    team: Arc<MulticastTeam>,
    /// The memory, which must stay.
    region: Arc<DeviceRegion>,
}

impl MulticastTeam {
    /// What lengths of memory must be multiples of, for a team of so many GPUs with about this much
    /// memory of each.
    ///
    /// # Errors
    /// [`CudaError::NotSupported`] if the GPU cannot join one; the driver's.
    pub fn granularity(
        context: &Context,
        gpus: usize,
        len_bytes: usize,
    ) -> Result<usize, CudaError> {
        const MINIMUM: sys::CUmulticastGranularity_flags =
            sys::CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_MINIMUM;
        let multicast = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED;
        context.device().require(multicast, "multicast: reducing by an NVSwitch")?;
        let (properties, mut bytes) = (properties(gpus, len_bytes), 0);
        // SAFETY: the driver is loaded, and the pointers valid.
        context.scope(|| unsafe {
            call!(cuMulticastGetGranularity(&raw mut bytes, &raw const properties, MINIMUM))
        })?;
        Ok(bytes.max(1))
    }

    /// A team of so many GPUs, of which none has joined yet, for this much memory of each.
    ///
    /// # Errors
    /// The driver's.
    pub fn create(
        context: &Context,
        gpus: usize,
        len_bytes: usize,
    ) -> Result<MulticastTeam, CudaError> {
        let (properties, mut handle) = (properties(gpus, len_bytes), 0);
        // SAFETY: the driver is loaded, and the pointers valid.
        context.scope(|| unsafe {
            call!(cuMulticastCreate(&raw mut handle, &raw const properties))
        })?;
        Ok(MulticastTeam { physical: Physical { handle, context: context.clone() }, len_bytes })
    }

    /// The team that another process exported.
    pub(crate) fn receive(
        context: &Context,
        file: &OwnedFd,
        len_bytes: usize,
    ) -> Result<MulticastTeam, CudaError> {
        let physical = context.scope(|| Physical::import(context, file))?;
        Ok(MulticastTeam { physical, len_bytes })
    }

    /// A descriptor of the team, for another process.
    pub(crate) fn export(&self) -> Result<OwnedFd, CudaError> {
        self.physical.export()
    }

    /// How much memory each GPU has in it.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Adds a GPU, for good.
    ///
    /// # Errors
    /// The driver's; it refuses a GPU that is in it already.
    pub fn join(&self, context: &Context) -> Result<(), CudaError> {
        let (handle, device) = (self.physical.handle, context.device());
        // SAFETY: a handle of this object.
        context.scope(|| unsafe { call!(cuMulticastAddDevice(handle, device.raw)) })
    }
}

impl MulticastMemory {
    /// Makes a region of the context's GPU a part of the team's memory, and maps that of all. Only
    /// once all GPUs have joined: the driver waits for them.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], and the driver's; it refuses a region that is shorter than the
    /// team's memory.
    pub fn bind(
        context: &Context,
        team: Arc<MulticastTeam>,
        region: Arc<DeviceRegion>,
    ) -> Result<MulticastMemory, CudaError> {
        let (handle, len_bytes, device) = (team.physical.handle, team.len_bytes, context.device());
        let memory = region.handle()?;
        context.scope(|| {
            // SAFETY: both handles are of objects that the binding keeps.
            unsafe { call!(cuMulticastBindMem(handle, 0, memory, 0, len_bytes, 0)) }?;
            let binding = Binding { device, team, region };
            let reservation = Reservation::take(context, len_bytes)?;
            let mapping = Mapping::make(&reservation, &binding.team.physical)?;
            grant(mapping.at, len_bytes, device)?;
            Ok(MulticastMemory { mapping, _reservation: reservation, _binding: binding })
        })
    }

    /// The address, for GPUs to access by multicast accesses alone. Valid until this is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.at as *mut u8
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        let (handle, len_bytes) = (self.team.physical.handle, self.team.len_bytes);
        let device = self.device.raw;
        // SAFETY: bound by this object, and no longer mapped for this GPU; whoever has it mapped
        // for another accesses it no more.
        let unbind = || unsafe { call!(cuMulticastUnbind(handle, device, 0, len_bytes)) };
        self.region.context().give_back(unbind);
    }
}

fn properties(gpus: usize, len_bytes: usize) -> sys::CUmulticastObjectProp {
    sys::CUmulticastObjectProp {
        numDevices: gpus as u32,
        size: len_bytes,
        handleTypes: u64::from(POSIX.0),
        flags: 0,
    }
}
