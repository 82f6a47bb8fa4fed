//! What NCCL has and oxccl has not: each function says so.
#![allow(non_snake_case, reason = "they have NCCL's names")]

use crate::answer::{Failure, answer};
use crate::names::name;
use std::ffi::c_int;

/// Functions that are refused, whatever their arguments are.
macro_rules! refused {
    ($($why:literal: $($name:ident $twin:ident),*;)*) => {
        $($(
            #[unsafe(no_mangle)]
            extern "C" fn $twin() -> c_int {
                answer(stringify!($name), || Err(Failure::usage($why)))
            }

            name!($name $twin);
        )*)*
    };
}

refused! {
    "oxccl has no device API of NCCL's":
        ncclDevCommCreate pncclDevCommCreate,
        ncclDevCommDestroy pncclDevCommDestroy,
        ncclGetLsaMultimemDevicePointer pncclGetLsaMultimemDevicePointer,
        ncclGetMultimemDevicePointer pncclGetMultimemDevicePointer,
        ncclGetLsaDevicePointer pncclGetLsaDevicePointer,
        ncclGetPeerDevicePointer pncclGetPeerDevicePointer,
        ncclGetMultimemDeviceLeInfo pncclGetMultimemDeviceLeInfo,
        ncclGetCftDeviceLeInfo pncclGetCftDeviceLeInfo,
        ncclGetPeerDeviceLeInfo pncclGetPeerDeviceLeInfo,
        ncclLsaBarrierCreateRequirement pncclLsaBarrierCreateRequirement,
        ncclGinBarrierCreateRequirement pncclGinBarrierCreateRequirement,
        ncclGinInboxA2ACreateRequirement pncclGinInboxA2ACreateRequirement,
        ncclGinOutboxCreateRequirement pncclGinOutboxCreateRequirement,
        ncclLLA2ACreateRequirement pncclLLA2ACreateRequirement;
    "oxccl has no one-sided calls":
        ncclPutSignal pncclPutSignal,
        ncclSignal pncclSignal,
        ncclWaitSignal pncclWaitSignal;
    "ranks cannot be added to a communicator: make a new one":
        ncclCommGrow pncclCommGrow,
        ncclCommGetUniqueId pncclCommGetUniqueId;
    "OXCCL_SECRET and OXCCL_INTEGRITY protect links: see docs/security.md":
        ncclSetEncryption pncclSetEncryption;
    "settings are variables that begin with OXCCL_: see docs/configuration.md":
        ncclParamBind pncclParamBind,
        ncclParamGet pncclParamGet,
        ncclParamGetI8 pncclParamGetI8,
        ncclParamGetI16 pncclParamGetI16,
        ncclParamGetI32 pncclParamGetI32,
        ncclParamGetI64 pncclParamGetI64,
        ncclParamGetU8 pncclParamGetU8,
        ncclParamGetU16 pncclParamGetU16,
        ncclParamGetU32 pncclParamGetU32,
        ncclParamGetU64 pncclParamGetU64,
        ncclParamGetStr pncclParamGetStr,
        ncclParamGetParameter pncclParamGetParameter,
        ncclParamGetAllParameterKeys pncclParamGetAllParameterKeys;
}

/// Functions that have no result.
macro_rules! nothing {
    ($($name:ident $twin:ident),*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $twin() {}

            name!($name $twin);
        )*
    };
}

nothing!(ncclResetDebugInit pncclResetDebugInit, ncclParamDumpAll pncclParamDumpAll);

/// The one name that has no twin.
#[unsafe(no_mangle)]
extern "C" fn ncclResetDebugInitInternal() {}

/// Slots of the device API's messages: none.
#[unsafe(no_mangle)]
extern "C" fn pncclLLA2ACalcSlots() -> c_int {
    -1
}

name!(ncclLLA2ACalcSlots pncclLLA2ACalcSlots);
