//! NVSwitch multicast: these devices have none.

use cudarc::driver::sys::{
    CUmemGenericAllocationHandle, CUmulticastGranularity_flags, CUmulticastObjectProp, CUresult,
};

use crate::call::driver_calls;

driver_calls! {
    fn cuMulticastCreate(_out: *mut CUmemGenericAllocationHandle, _prop: *const CUmulticastObjectProp) {
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }

    fn cuMulticastGetGranularity(
        _out: *mut usize,
        _prop: *const CUmulticastObjectProp,
        _option: CUmulticastGranularity_flags,
    ) {
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }
}
