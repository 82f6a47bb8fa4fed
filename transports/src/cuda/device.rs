//! A GPU and what it can do.

use std::ffi::c_char;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::driver::call;
use super::sys::{self, CUdevice_P2PAttribute, CUdevice_attribute};
use super::{CudaError, Driver};

/// What tells a GPU from all others, in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU-")?;
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if [4, 6, 8, 10].contains(&at) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// A GPU of this process.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    driver: Driver,
    ordinal: usize,
    pub(super) raw: sys::CUdevice,
}

impl Device {
    pub(super) fn new(driver: Driver, ordinal: usize) -> Result<Device, CudaError> {
        let mut raw = 0;
        // SAFETY: the driver is loaded, and the pointer valid.
        unsafe { call!(cuDeviceGet(&raw mut raw, ordinal as i32)) }?;
        Ok(Device { driver, ordinal, raw })
    }

    /// Its number in this process.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// The driver it belongs to.
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// What it is called.
    ///
    /// # Errors
    /// The driver's.
    pub fn name(&self) -> Result<String, CudaError> {
        let mut name = [0 as c_char; 256];
        // SAFETY: the driver is loaded, and writes at most that many bytes.
        unsafe { call!(cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, self.raw)) }?;
        let bytes = name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
        Ok(String::from_utf8(bytes).unwrap_or_default())
    }

    /// What tells it from all others.
    ///
    /// # Errors
    /// The driver's.
    pub fn uuid(&self) -> Result<Uuid, CudaError> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the driver is loaded, and the pointer valid.
        unsafe { call!(cuDeviceGetUuid_v2(&raw mut uuid, self.raw)) }?;
        Ok(Uuid(uuid.bytes.map(|byte| byte as u8)))
    }

    /// Its address on the PCI bus, as the system writes it.
    ///
    /// # Errors
    /// The driver's.
    pub fn pci_address(&self) -> Result<String, CudaError> {
        use CUdevice_attribute::*;
        let domain = self.attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = self.attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        let device = self.attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        Ok(format!("{domain:04x}:{bus:02x}:{device:02x}.0"))
    }

    /// Whether what an adapter has written to its memory is seen in that order by its kernels.
    ///
    /// # Errors
    /// The driver's.
    pub fn orders_adapters_writes(&self) -> Result<bool, CudaError> {
        let ordering = self
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)?;
        let owner = sys::CUGPUDirectRDMAWritesOrdering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
        Ok(ordering >= owner as i32)
    }

    /// Its memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory_bytes(&self) -> Result<usize, CudaError> {
        let mut bytes = 0;
        // SAFETY: the driver is loaded, and the pointer valid.
        unsafe { call!(cuDeviceTotalMem_v2(&raw mut bytes, self.raw)) }?;
        Ok(bytes)
    }

    /// Its compute capability: major and minor.
    ///
    /// # Errors
    /// The driver's.
    pub fn capability(&self) -> Result<(u32, u32), CudaError> {
        use CUdevice_attribute::*;
        let major = self.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((major as u32, minor as u32))
    }

    /// How many multiprocessors it has.
    ///
    /// # Errors
    /// The driver's.
    pub fn multiprocessors(&self) -> Result<usize, CudaError> {
        let count = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        Ok(count.try_into().unwrap_or(0))
    }

    /// Whether only one process at a time may use it (compute mode `EXCLUSIVE_PROCESS`).
    ///
    /// # Errors
    /// The driver's.
    pub fn is_exclusive(&self) -> Result<bool, CudaError> {
        const EXCLUSIVE_PROCESS: i32 = 3;
        let mode = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)?;
        Ok(mode == EXCLUSIVE_PROCESS)
    }

    /// Whether it can reduce through an NVSwitch.
    ///
    /// # Errors
    /// The driver's.
    pub fn has_multicast(&self) -> Result<bool, CudaError> {
        Ok(self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED)? != 0)
    }

    /// Whether it reaches the other's memory: always its own.
    ///
    /// # Errors
    /// The driver's.
    pub fn reaches(&self, other: &Device) -> Result<bool, CudaError> {
        if self.raw == other.raw {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: the driver is loaded, and the pointer valid.
        unsafe { call!(cuDeviceCanAccessPeer(&raw mut can, self.raw, other.raw)) }?;
        Ok(can != 0)
    }

    /// Whether stores of 128 bytes reach the other's memory whole: always on the same GPU, and over
    /// NVLink. The driver tells NVLink from PCIe by whether atomic operations pass.
    ///
    /// # Errors
    /// The driver's.
    pub fn stores_lines_at(&self, other: &Device) -> Result<bool, CudaError> {
        if self.raw == other.raw {
            return Ok(true);
        }
        let atomics = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        let mut value = 0;
        // SAFETY: the driver is loaded, and the pointer valid.
        unsafe { call!(cuDeviceGetP2PAttribute(&raw mut value, atomics, self.raw, other.raw)) }?;
        Ok(value != 0)
    }

    /// The same for a GPU by its number. False for one that this process does not see, about which
    /// the driver cannot be asked.
    ///
    /// # Errors
    /// The driver's.
    pub fn stores_lines_at_peer(&self, peer: Uuid) -> Result<bool, CudaError> {
        for other in self.driver.devices()? {
            if other.uuid()? == peer {
                return self.stores_lines_at(&other);
            }
        }
        Ok(false)
    }

    /// Whether it finds registered host memory under the host's addresses.
    ///
    /// # Errors
    /// The driver's.
    pub fn has_host_addresses(&self) -> Result<bool, CudaError> {
        use CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        Ok(self.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)? != 0)
    }

    /// Fails if it cannot reach the memory of a GPU that this process sees. One that it does not
    /// see cannot be asked about: the driver answers when the memory is imported.
    ///
    /// # Errors
    /// [`CudaError::NoPeerAccess`], and the driver's.
    pub fn check_reach(&self, peer: Uuid) -> Result<(), CudaError> {
        for other in self.driver.devices()? {
            if other.uuid()? == peer && !self.reaches(&other)? {
                return Err(CudaError::NoPeerAccess { ordinal: self.ordinal, peer });
            }
        }
        Ok(())
    }

    pub(super) fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, CudaError> {
        let mut value = 0;
        // SAFETY: the driver is loaded, and the pointer valid.
        unsafe { call!(cuDeviceGetAttribute(&raw mut value, attribute, self.raw)) }?;
        Ok(value)
    }

    /// Fails if an attribute that says what it supports is 0.
    pub(super) fn require(
        &self,
        attribute: CUdevice_attribute,
        what: &'static str,
    ) -> Result<(), CudaError> {
        match self.attribute(attribute)? {
            0 => Err(CudaError::NotSupported { ordinal: self.ordinal, what }),
            _ => Ok(()),
        }
    }
}
