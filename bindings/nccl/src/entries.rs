//! The functions that C calls, each with its `pnccl` twin.
#![allow(non_snake_case, reason = "they have NCCL's names")]

use crate::abi::{Code, CommHandle, Id, NO_COLOR, StreamHandle, VERSION};
use crate::answer::{Answer, Failure, answer, error_string, last_error, lock};
use crate::call::{Ends, NO_OP, Request, data_type, memory, rank};
use crate::comm::{self, Start, Starting, current_device};
use crate::config::{self, Asked};
use crate::factor::Scalar;
use crate::names::name;
use crate::{group, properties, registry, unique_id, window};
use oxccl::{CallOptions, Device, Kind, Memory};
use std::ffi::{c_char, c_int, c_void};

/// Makes functions and their twins, which answer with a code.
macro_rules! entries {
    ($($name:ident $twin:ident ($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $twin($($argument: $type),*) -> c_int {
                answer(stringify!($name), || $body)
            }

            name!($name $twin);
        )*
    };
}

/// Writes a result to where the caller wants it.
///
/// # Safety
/// It is null, or can be written.
unsafe fn put<T>(argument: &str, to: *mut T, value: T) -> Answer {
    if to.is_null() {
        return Err(Failure::argument(format!("{argument} is NULL")));
    }
    // SAFETY: by this function's contract.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// What is put where before it is known.
fn there<T>(argument: &str, to: *mut T) -> Answer {
    if to.is_null() { Err(Failure::argument(format!("{argument} is NULL"))) } else { Ok(()) }
}

/// A number of ranks.
fn world(nranks: c_int) -> Answer<usize> {
    let found = usize::try_from(nranks).ok().filter(|ranks| *ranks > 0);
    found.ok_or_else(|| Failure::argument(format!("nranks is {nranks}")))
}

/// Starts a rank.
///
/// # Safety
/// `comm` is null or can be written; `settings` is null or a configuration.
unsafe fn join(
    comm: *mut CommHandle,
    nranks: c_int,
    id: Id,
    own: c_int,
    settings: *const u8,
) -> Answer {
    let make = || {
        there("comm", comm)?;
        let world = world(nranks)?;
        let rank = rank("rank", own, world)?;
        // SAFETY: by this function's contract.
        let asked = unsafe { config::read(settings) }?;
        let (device, (id, server)) = (current_device()?, unique_id::read(&id)?);
        Ok(Starting::new(Start::Join { id, rank, world, device, asked }, asked, server))
    };
    // SAFETY: by this function's contract.
    group::start(make, |handle| unsafe { comm.write_unaligned(handle) })
}

/// Makes a call of all ranks, whose buffers have so many parts.
struct Collective {
    kind: Kind,
    data_type: c_int,
    input: (*const c_void, usize, bool),
    output: (*mut c_void, usize, bool),
}

impl Request {
    fn of(
        collective: &Collective,
        comm: &comm::Comm,
        op: Option<c_int>,
        root: Option<c_int>,
        stream: StreamHandle,
    ) -> Answer<Request> {
        let (handle, _) = comm.ready()?;
        let ranks = handle.world_size();
        let data_type = data_type(collective.data_type)?;
        let root = root.map(|root| rank("root", root, ranks)).transpose()?;
        let is_root = root.is_none_or(|root| root == handle.rank());
        let parts = |is_whole: bool| if is_whole { ranks } else { 1 };
        let is_taken = |kinds: &[Kind]| is_root || !kinds.contains(&collective.kind);
        let (from, count, whole) = collective.input;
        let input = match is_taken(&[Kind::Broadcast, Kind::Scatter]) {
            true => memory("sendbuff", from.expose_provenance(), count, parts(whole), data_type)?,
            false => Memory::NONE,
        };
        let (to, count, whole) = collective.output;
        let output = match is_taken(&[Kind::Reduce, Kind::Gather]) {
            true => memory("recvbuff", to.expose_provenance(), count, parts(whole), data_type)?,
            false => Memory::NONE,
        };
        let op = op.map(|op| comm.factors.find(op, data_type)).transpose()?;
        Ok(Request {
            kind: collective.kind,
            data_type,
            op: op.unwrap_or(NO_OP),
            ends: root.map_or(Ends::All, Ends::Root),
            input,
            output,
            stream,
            options: CallOptions::default(),
        })
    }
}

/// A message to or from a peer.
fn message(
    comm: &comm::Comm,
    (argument, buffer): (&str, usize),
    count: usize,
    number: c_int,
    (peer, is_send): (c_int, bool),
    stream: StreamHandle,
) -> Answer<Request> {
    let (handle, _) = comm.ready()?;
    let data_type = data_type(number)?;
    let peer = rank("peer", peer, handle.world_size())?;
    let memory = memory(argument, buffer, count, 1, data_type)?;
    let (ends, input, output) = match is_send {
        true => (Ends::To(peer), memory, Memory::NONE),
        false => (Ends::From(peer), Memory::NONE, memory),
    };
    let kind = Kind::SendRecv;
    Ok(Request {
        kind,
        data_type,
        op: NO_OP,
        ends,
        input,
        output,
        stream,
        options: CallOptions::default(),
    })
}

/// Calls of all ranks: `*Config` variants take the same and a configuration.
macro_rules! collectives {
    ($($name:ident $twin:ident, $with:ident $with_twin:ident:
        $kind:ident($input:ident * $input_parts:literal, $output:ident * $output_parts:literal)
        [$($op:ident)?] [$($root:ident)?];)*) => {
        $(
            entries! {
                $name $twin ($input: *const c_void, $output: *mut c_void, count: usize,
                    number: c_int, $($op: c_int,)? $($root: c_int,)?
                    comm: CommHandle, stream: StreamHandle) {
                    let collective = Collective {
                        kind: Kind::$kind,
                        data_type: number,
                        input: ($input, count, $input_parts),
                        output: ($output, count, $output_parts),
                    };
                    let (op, root) = (optional!($($op)?), optional!($($root)?));
                    group::call(comm, |comm| Request::of(&collective, comm, op, root, stream))
                }

                $with $with_twin ($input: *const c_void, $output: *mut c_void, count: usize,
                    number: c_int, $($op: c_int,)? $($root: c_int,)?
                    comm: CommHandle, stream: StreamHandle, settings: *const u8) {
                    let collective = Collective {
                        kind: Kind::$kind,
                        data_type: number,
                        input: ($input, count, $input_parts),
                        output: ($output, count, $output_parts),
                    };
                    let (op, root) = (optional!($($op)?), optional!($($root)?));
                    group::call(comm, |comm| {
                        // SAFETY: the caller has made it a configuration, or null.
                        let options = unsafe { config::options_of_call(settings) }?;
                        let request = Request::of(&collective, comm, op, root, stream)?;
                        Ok(Request { options, ..request })
                    })
                }
            }
        )*
    };
}

macro_rules! optional {
    () => {
        None
    };
    ($value:ident) => {
        Some($value)
    };
}

collectives! {
    ncclAllReduce pncclAllReduce, ncclAllReduceConfig pncclAllReduceConfig:
        AllReduce(sendbuff * false, recvbuff * false) [op] [];
    ncclReduceScatter pncclReduceScatter, ncclReduceScatterConfig pncclReduceScatterConfig:
        ReduceScatter(sendbuff * true, recvbuff * false) [op] [];
    ncclAllGather pncclAllGather, ncclAllGatherConfig pncclAllGatherConfig:
        AllGather(sendbuff * false, recvbuff * true) [] [];
    ncclAlltoAll pncclAlltoAll, ncclAlltoAllConfig pncclAlltoAllConfig:
        AllToAll(sendbuff * true, recvbuff * true) [] [];
    ncclBroadcast pncclBroadcast, ncclBroadcastConfig pncclBroadcastConfig:
        Broadcast(sendbuff * false, recvbuff * false) [] [root];
    ncclReduce pncclReduce, ncclReduceConfig pncclReduceConfig:
        Reduce(sendbuff * false, recvbuff * false) [op] [root];
    ncclGather pncclGather, ncclGatherConfig pncclGatherConfig:
        Gather(sendbuff * false, recvbuff * true) [] [root];
    ncclScatter pncclScatter, ncclScatterConfig pncclScatterConfig:
        Scatter(sendbuff * true, recvbuff * false) [] [root];
}

entries! {
    ncclBcast pncclBcast (buff: *mut c_void, count: usize, number: c_int, root: c_int,
        comm: CommHandle, stream: StreamHandle) {
        let collective = Collective {
            kind: Kind::Broadcast,
            data_type: number,
            input: (buff, count, false),
            output: (buff, count, false),
        };
        group::call(comm, |comm| Request::of(&collective, comm, None, Some(root), stream))
    }

    ncclSend pncclSend (sendbuff: *const c_void, count: usize, number: c_int, peer: c_int,
        comm: CommHandle, stream: StreamHandle) {
        let buffer = ("sendbuff", sendbuff.expose_provenance());
        group::call(comm, |comm| message(comm, buffer, count, number, (peer, true), stream))
    }

    ncclRecv pncclRecv (recvbuff: *mut c_void, count: usize, number: c_int, peer: c_int,
        comm: CommHandle, stream: StreamHandle) {
        let buffer = ("recvbuff", recvbuff.expose_provenance());
        group::call(comm, |comm| message(comm, buffer, count, number, (peer, false), stream))
    }

    ncclGroupStart pncclGroupStart () {
        group::begin()
    }

    ncclGroupEnd pncclGroupEnd () {
        group::end()
    }

    ncclGetVersion pncclGetVersion (version: *mut c_int) {
        // SAFETY: the caller gives a place, or null.
        unsafe { put("version", version, VERSION) }
    }

    ncclGetUniqueId pncclGetUniqueId (uniqueId: *mut Id) {
        there("uniqueId", uniqueId)?;
        let id = unique_id::make()?;
        // SAFETY: as above.
        unsafe { put("uniqueId", uniqueId, id) }
    }

    ncclCommInitRank pncclCommInitRank (comm: *mut CommHandle, nranks: c_int, id: Id,
        rank: c_int) {
        // SAFETY: the caller gives a place, or null.
        unsafe { join(comm, nranks, id, rank, std::ptr::null()) }
    }

    ncclCommInitRankConfig pncclCommInitRankConfig (comm: *mut CommHandle, nranks: c_int, id: Id,
        rank: c_int, settings: *const u8) {
        // SAFETY: as above, and the configuration is the caller's.
        unsafe { join(comm, nranks, id, rank, settings) }
    }

    ncclCommInitRankScalable pncclCommInitRankScalable (comm: *mut CommHandle, nranks: c_int,
        rank: c_int, nId: c_int, ids: *const Id, settings: *const u8) {
        // SAFETY: as above; of several meetings, all ranks take the first.
        unsafe { join(comm, nranks, unique_id::first(ids, nId)?, rank, settings) }
    }

    ncclCommInitAll pncclCommInitAll (comms: *mut CommHandle, ndev: c_int, devlist: *const c_int) {
        there("comm", comms)?;
        let world = world(ndev)?;
        let (id, asked) = (unique_id::make()?, Asked::default());
        group::begin()?;
        for rank in 0..world {
            let make = || {
                let device = match current_device()? {
                    Device::Host => Device::Host,
                    Device::Cuda(_) if devlist.is_null() => Device::Cuda(Some(rank)),
                    // SAFETY: the caller gives as many as there are ranks.
                    Device::Cuda(_) => match usize::try_from(unsafe { devlist.add(rank).read() }) {
                        Ok(device) => Device::Cuda(Some(device)),
                        Err(_) => return Err(Failure::argument("devlist has a negative number")),
                    },
                };
                let (id, server) = unique_id::read(&id)?;
                Ok(Starting::new(Start::Join { id, rank, world, device, asked }, asked, server))
            };
            // SAFETY: the caller gives as many places as there are ranks.
            let started = group::start(make, |handle| unsafe { comms.add(rank).write(handle) });
            if let Err(failure) = started {
                group::end()?;
                return Err(failure);
            }
        }
        group::end()
    }

    ncclCommSplit pncclCommSplit (comm: CommHandle, color: c_int, key: c_int,
        newcomm: *mut CommHandle, settings: *const u8) {
        let make = || {
            there("newcomm", newcomm)?;
            let parent = registry::get(comm)?;
            parent.ready()?;
            // SAFETY: the configuration is the caller's, or null.
            let asked = unsafe { config::read(settings) }?;
            let color = match color {
                NO_COLOR => None,
                color => Some(u32::try_from(color).map_err(|_| {
                    Failure::argument(format!("color {color} is below 0"))
                })?),
            };
            let (key, server) = (key.into(), parent.server());
            Ok(Starting::new(Start::Split { parent, color, key }, asked, server))
        };
        let tell = |handle: CommHandle| {
            let handle = if color == NO_COLOR { 0 } else { handle };
            // SAFETY: the caller gives a place.
            unsafe { newcomm.write_unaligned(handle) }
        };
        group::start(make, tell)
    }

    ncclCommShrink pncclCommShrink (comm: CommHandle, list: *const c_int, count: c_int,
        newcomm: *mut CommHandle, settings: *const u8, flags: c_int) {
        let make = || {
            there("newcomm", newcomm)?;
            let parent = registry::get(comm)?;
            let (handle, _) = parent.ready()?;
            // SAFETY: the configuration is the caller's, or null.
            let asked = unsafe { config::read(settings) }?;
            let count = usize::try_from(count).ok().filter(|count| *count == 0 || !list.is_null());
            let count = count.ok_or_else(|| Failure::argument("there is no list of ranks"))?;
            // SAFETY: the caller gives so many.
            let numbers = (0..count).map(|place| unsafe { list.add(place).read() });
            let exclude: Answer<Vec<_>> =
                numbers.map(|number| rank("excluded rank", number, handle.world_size())).collect();
            let (exclude, server) = (exclude?, parent.server());
            match flags {
                0 => {}
                1 => parent.abort("ncclCommShrink with NCCL_SHRINK_ABORT"),
                flags => return Err(Failure::argument(format!("shrinkFlags is {flags}"))),
            }
            Ok(Starting::new(Start::Shrink { parent, exclude }, asked, server))
        };
        // SAFETY: the caller gives a place.
        group::start(make, |handle| unsafe { newcomm.write_unaligned(handle) })
    }

    ncclCommFinalize pncclCommFinalize (comm: CommHandle) {
        registry::get(comm)?.ready().map(drop)
    }

    ncclCommDestroy pncclCommDestroy (comm: CommHandle) {
        // NULL is destroyed without a word.
        if comm != 0 {
            registry::remove(comm)?.destroy();
        }
        Ok(())
    }

    ncclCommAbort pncclCommAbort (comm: CommHandle) {
        if comm != 0 {
            let comm = registry::remove(comm)?;
            comm.abort("ncclCommAbort");
            comm.destroy();
        }
        Ok(())
    }

    ncclCommRevoke pncclCommRevoke (comm: CommHandle, flags: c_int) {
        if flags != 0 {
            return Err(Failure::argument(format!("revokeFlags is {flags}, which must be 0")));
        }
        registry::get(comm)?.abort("ncclCommRevoke");
        Ok(())
    }

    ncclCommGetAsyncError pncclCommGetAsyncError (comm: CommHandle, asyncError: *mut c_int) {
        let state = registry::get(comm)?.check();
        let code = state.map_or_else(|failure| failure.code, |()| Code::Success);
        // SAFETY: the caller gives a place, or null.
        unsafe { put("asyncError", asyncError, code as c_int) }
    }

    ncclCommCount pncclCommCount (comm: CommHandle, count: *mut c_int) {
        let (handle, _) = registry::get(comm)?.ready()?;
        // SAFETY: as above.
        unsafe { put("count", count, handle.world_size() as c_int) }
    }

    ncclCommUserRank pncclCommUserRank (comm: CommHandle, rank: *mut c_int) {
        let (handle, _) = registry::get(comm)?.ready()?;
        // SAFETY: as above.
        unsafe { put("rank", rank, handle.rank() as c_int) }
    }

    ncclCommCuDevice pncclCommCuDevice (comm: CommHandle, device: *mut c_int) {
        let (_, found) = registry::get(comm)?.ready()?;
        // SAFETY: as above.
        unsafe { put("device", device, comm::ordinal(found)) }
    }

    ncclCommRegister pncclCommRegister (comm: CommHandle, buff: *mut c_void, size: usize,
        handle: *mut usize) {
        // A hint: nothing is moved, and nobody else is asked.
        let comm = registry::get(comm)?;
        comm.ready()?;
        if buff.is_null() || size == 0 {
            return Err(Failure::argument("there is nothing to register"));
        }
        there("handle", handle)?;
        let mut registered = lock(&comm.registered);
        let own = registered.last().map_or(1, |last| last + 1);
        registered.insert(own);
        // SAFETY: as above.
        unsafe { put("handle", handle, own) }
    }

    ncclCommDeregister pncclCommDeregister (comm: CommHandle, handle: usize) {
        match lock(&registry::get(comm)?.registered).remove(&handle) {
            true => Ok(()),
            false => Err(Failure::argument(format!("{handle:#x} is no registration"))),
        }
    }

    ncclCommWindowRegister pncclCommWindowRegister (comm: CommHandle, buff: *mut c_void,
        size: usize, win: *mut usize, winFlags: c_int) {
        // SAFETY: the caller gives a place, or null.
        unsafe { put("win", win, 0) }?;
        let (address, win) = (buff.expose_provenance(), win.expose_provenance());
        window::check(address, size, winFlags)?;
        group::act(comm, |comm| {
            comm.ready()?;
            Ok(Box::new(move || {
                let handle = comm.open_window(address, size)?;
                let win = std::ptr::with_exposed_provenance_mut(win);
                // SAFETY: the caller's place stays until the group ends.
                unsafe { put("win", win, handle) }
            }))
        })
    }

    ncclCommWindowDeregister pncclCommWindowDeregister (comm: CommHandle, win: usize) {
        let comm = registry::get(comm)?;
        if win == 0 { Ok(()) } else { comm.close_window(win) }
    }

    ncclWinGetUserPtr pncclWinGetUserPtr (comm: CommHandle, win: usize, outUserPtr: *mut usize) {
        let comm = registry::get(comm)?;
        let address = if win == 0 { 0 } else { comm.window_address(win)? };
        // SAFETY: as above.
        unsafe { put("outUserPtr", outUserPtr, address) }
    }

    ncclCommQueryProperties pncclCommQueryProperties (comm: CommHandle, props: *mut u8) {
        // SAFETY: the caller gives a structure, or null.
        unsafe { properties::write(&*registry::get(comm)?, props) }
    }

    ncclCommSuspend pncclCommSuspend (comm: CommHandle, flags: c_int) {
        // NCCL_SUSPEND_MEM is 1; without it nothing is asked for.
        match flags {
            0 => registry::get(comm)?.ready().map(drop),
            1 => group::act(comm, |comm| Ok(Box::new(move || comm.suspend()))),
            flags => Err(Failure::argument(format!("flags is {flags:#x}"))),
        }
    }

    ncclCommResume pncclCommResume (comm: CommHandle) {
        group::act(comm, |comm| Ok(Box::new(move || comm.resume())))
    }

    ncclCommMemStats pncclCommMemStats (comm: CommHandle, stat: c_int, value: *mut u64) {
        let (given, is_suspended, kept) = registry::get(comm)?.memory()?;
        let found = match stat {
            0 => given,
            1 => is_suspended.into(),
            2 => kept,
            3 => given + kept,
            stat => return Err(Failure::argument(format!("{stat} is no ncclCommMemStat_t"))),
        };
        // SAFETY: the caller gives a place, or null.
        unsafe { put("value", value, found) }
    }

    ncclRedOpCreatePreMulSum pncclRedOpCreatePreMulSum (op: *mut c_int, scalar: *const c_void,
        number: c_int, residence: c_int, comm: CommHandle) {
        there("op", op)?;
        let comm = registry::get(comm)?;
        let (_, device) = comm.ready()?;
        let data_type = data_type(number)?;
        if scalar.is_null() {
            return Err(Failure::argument("scalar is NULL"));
        }
        // ncclScalarDevice is 0, ncclScalarHostImmediate 1.
        let factor = match (residence, device) {
            (0, Device::Cuda(_)) => Scalar::At(scalar as usize),
            (0 | 1, _) => {
                let mut bytes = vec![0; data_type.len_bytes()];
                // SAFETY: the caller gives a value of the type.
                unsafe { bytes.as_mut_ptr().copy_from(scalar.cast(), bytes.len()) };
                Scalar::Value(bytes)
            }
            _ => return Err(Failure::argument(format!("residence is {residence}"))),
        };
        // SAFETY: the caller gives a place.
        unsafe { put("op", op, comm.factors.create(data_type, factor)) }
    }

    ncclRedOpDestroy pncclRedOpDestroy (op: c_int, comm: CommHandle) {
        registry::get(comm)?.factors.destroy(op)
    }

    ncclMemAlloc pncclMemAlloc (ptr: *mut usize, size: usize) {
        there("ptr", ptr)?;
        let address = crate::memory::allocate(size)?;
        // SAFETY: the caller gives a place.
        unsafe { put("ptr", ptr, address) }
    }

    ncclMemFree pncclMemFree (ptr: usize) {
        crate::memory::free(ptr)
    }

    ncclGroupSimulateEnd pncclGroupSimulateEnd (simInfo: *mut u8) {
        let predicted = group::simulate();
        // SAFETY: the caller gives a structure, or null.
        unsafe { config::write_estimate(simInfo, predicted?) }
    }
}

#[unsafe(no_mangle)]
extern "C" fn pncclGetErrorString(code: c_int) -> *const c_char {
    error_string(code)
}

name!(ncclGetErrorString pncclGetErrorString);

/// The last text of any communicator: it may be asked for without one.
#[unsafe(no_mangle)]
extern "C" fn pncclGetLastError(_comm: CommHandle) -> *const c_char {
    last_error()
}

name!(ncclGetLastError pncclGetLastError);
