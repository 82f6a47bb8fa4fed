//! `ncclCommQueryProperties`, and the teams that follow from what it says: there is no device API,
//! so each rank is a team of its own for loads and stores.

use crate::abi::{CommHandle, MAGIC, Team};
use crate::answer::{Answer, Failure};
use crate::comm::{Comm, ordinal};
use crate::names::name;
use crate::registry;
use std::ffi::c_int;
use std::panic::catch_unwind;

/// `ncclCommProperties_t` as 2.32 has it; versions only add at its end.
#[derive(Clone, Copy)]
#[repr(C)]
struct Properties {
    size: usize,
    magic: u32,
    version: u32,
    rank: c_int,
    ranks: c_int,
    cuda_device: c_int,
    nvml_device: c_int,
    device_api: bool,
    multimem: bool,
    gin_type: c_int,
    lsa_teams: c_int,
    host_rma: bool,
    railed_gin_type: c_int,
    comm_hash: u64,
    gin_min_stride: c_int,
    gin_connection_type: c_int,
    gin_types: [bool; 64],
    dev_comm_bytes: usize,
    cft: bool,
    cft_multicast: bool,
    cft_counted: bool,
}

const _: () = assert!(size_of::<Properties>() == 152);

/// Up to `nLsaTeams`, which the first version had.
const SMALLEST: usize = 44;

/// Writes a communicator's properties, as far as the caller's structure goes.
///
/// # Safety
/// It is null, or as long as its first field says.
pub(crate) unsafe fn write(comm: &Comm, to: *mut u8) -> Answer {
    if to.is_null() {
        return Err(Failure::argument("props is NULL"));
    }
    // SAFETY: by this function's contract; no version is shorter than the header of three fields.
    let (size, magic, version) = unsafe {
        let size = to.cast::<usize>().read_unaligned();
        (size, to.add(8).cast::<u32>().read_unaligned(), to.add(12).cast::<u32>().read_unaligned())
    };
    if magic != MAGIC {
        return Err(Failure::usage(
            "props was not made by NCCL_COMM_PROPERTIES_INITIALIZER: its magic is wrong",
        ));
    }
    if size < SMALLEST {
        return Err(Failure::argument(format!("props.size is {size}, which no NCCL has had")));
    }
    let (handle, device) = comm.ready()?;
    let properties = Properties {
        size,
        magic,
        version,
        rank: handle.rank() as c_int,
        ranks: handle.world_size() as c_int,
        cuda_device: ordinal(device),
        // Which GPU of NVML's this is, nobody here has asked.
        nvml_device: -1,
        device_api: false,
        multimem: false,
        gin_type: 0,
        lsa_teams: handle.world_size() as c_int,
        host_rma: false,
        railed_gin_type: 0,
        comm_hash: comm.identity(),
        gin_min_stride: 0,
        gin_connection_type: 0,
        gin_types: [false; 64],
        dev_comm_bytes: 0,
        cft: false,
        cft_multicast: false,
        cft_counted: false,
    };
    // SAFETY: both have so many bytes, and the caller's are his to be written.
    unsafe { to.copy_from((&raw const properties).cast(), size.min(size_of::<Properties>())) };
    Ok(())
}

/// All ranks, or this one alone; of no communicator, nobody.
fn team(comm: CommHandle, of: fn(c_int, c_int) -> Team) -> Team {
    let found = catch_unwind(|| {
        let (handle, _) = registry::get(comm).and_then(|comm| comm.ready()).ok()?;
        Some(of(handle.rank() as c_int, handle.world_size() as c_int))
    });
    found.ok().flatten().unwrap_or(Team { ranks: 0, rank: 0, stride: 1 })
}

/// Functions that answer with a team.
macro_rules! teams {
    ($($name:ident $twin:ident ($of:expr);)*) => {
        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "it has NCCL's name")]
            extern "C" fn $twin(comm: CommHandle) -> Team {
                team(comm, $of)
            }

            name!($name $twin);
        )*
    };
}

fn all(rank: c_int, ranks: c_int) -> Team {
    Team { ranks, rank, stride: 1 }
}

fn alone(_: c_int, _: c_int) -> Team {
    Team { ranks: 1, rank: 0, stride: 1 }
}

teams! {
    ncclTeamWorld pncclTeamWorld (all);
    ncclTeamRail pncclTeamRail (all);
    ncclTeamLsa pncclTeamLsa (alone);
    ncclTeamCft pncclTeamCft (alone);
    ncclTeamCftMultimem pncclTeamCftMultimem (alone);
}

/// Where a team's rank is, from this rank on.
fn steps(team: Team, rank: c_int) -> c_int {
    rank.wrapping_sub(team.rank).wrapping_mul(team.stride)
}

/// A rank of a team, as a rank of the communicator.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "it has NCCL's name")]
extern "C" fn pncclTeamRankToWorld(comm: CommHandle, of: Team, rank: c_int) -> c_int {
    let all = team(comm, all);
    if all.ranks == 0 { -1 } else { all.rank.wrapping_add(steps(of, rank)) }
}

name!(ncclTeamRankToWorld pncclTeamRankToWorld);

/// A rank of a team, as a rank of this one's team for loads and stores.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "it has NCCL's name")]
extern "C" fn pncclTeamRankToLsa(comm: CommHandle, of: Team, rank: c_int) -> c_int {
    if team(comm, all).ranks == 0 { -1 } else { steps(of, rank) }
}

name!(ncclTeamRankToLsa pncclTeamRankToLsa);
