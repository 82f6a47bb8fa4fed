//! Calls in random order from several threads, right and wrong: answers, never a crash or a hang.
#![allow(clippy::unwrap_used, non_snake_case)]

use nccl as _;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

type Comm = usize;

/// A structure that goes by value.
#[derive(Clone, Copy)]
#[repr(C)]
struct Words<const COUNT: usize>([c_int; COUNT]);

unsafe extern "C" {
    fn ncclCommInitAll(comms: *mut Comm, count: c_int, devices: *const c_int) -> c_int;
    fn ncclCommDestroy(comm: Comm) -> c_int;
    fn ncclCommAbort(comm: Comm) -> c_int;
    fn ncclCommGetAsyncError(comm: Comm, code: *mut c_int) -> c_int;
    fn ncclCommSplit(comm: Comm, color: c_int, key: c_int, to: *mut Comm, c: *const u8) -> c_int;
    fn ncclGroupStart() -> c_int;
    fn ncclGroupEnd() -> c_int;
    fn ncclGetLastError(comm: Comm) -> *const i8;
    fn ncclRedOpCreatePreMulSum(
        op: *mut c_int,
        factor: *const f32,
        data_type: c_int,
        residence: c_int,
        comm: Comm,
    ) -> c_int;
    fn ncclRedOpDestroy(op: c_int, comm: Comm) -> c_int;
    fn ncclCommDeregister(comm: Comm, handle: usize) -> c_int;
    fn ncclCommWindowRegister(
        comm: Comm,
        at: *mut c_void,
        bytes: usize,
        window: *mut usize,
        flags: c_int,
    ) -> c_int;
    fn ncclCommWindowDeregister(comm: Comm, window: usize) -> c_int;
    fn ncclWinGetUserPtr(comm: Comm, window: usize, at: *mut usize) -> c_int;
    fn ncclCommSuspend(comm: Comm, flags: c_int) -> c_int;
    fn ncclCommResume(comm: Comm) -> c_int;
    fn ncclCommMemStats(comm: Comm, stat: c_int, value: *mut u64) -> c_int;
    fn ncclCommQueryProperties(comm: Comm, properties: *mut u64) -> c_int;
    fn ncclTeamRankToWorld(comm: Comm, team: Words<3>, rank: c_int) -> c_int;
    fn ncclGroupSimulateEnd(info: *mut u64) -> c_int;
    fn ncclSignal(peer: c_int, index: c_int, context: c_int) -> c_int;
    fn ncclAllReduce(
        input: *const c_void,
        output: *mut c_void,
        count: usize,
        data_type: c_int,
        op: c_int,
        comm: Comm,
        stream: usize,
    ) -> c_int;
    fn ncclAllGather(
        input: *const c_void,
        output: *mut c_void,
        count: usize,
        data_type: c_int,
        comm: Comm,
        stream: usize,
    ) -> c_int;
    fn ncclBroadcast(
        input: *const c_void,
        output: *mut c_void,
        count: usize,
        data_type: c_int,
        root: c_int,
        comm: Comm,
        stream: usize,
    ) -> c_int;
    fn ncclSend(
        input: *const c_void,
        count: usize,
        data_type: c_int,
        peer: c_int,
        comm: Comm,
        stream: usize,
    ) -> c_int;
    fn ncclRecv(
        output: *mut c_void,
        count: usize,
        data_type: c_int,
        peer: c_int,
        comm: Comm,
        stream: usize,
    ) -> c_int;
}

/// A generator of numbers: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// What threads share: communicators, some of which have ended.
static COMMS: Mutex<Vec<Comm>> = Mutex::new(Vec::new());
static CALLS: AtomicUsize = AtomicUsize::new(0);
static DONE: AtomicUsize = AtomicUsize::new(0);

fn any_comm(random: &mut Random) -> Comm {
    let comms = COMMS.lock().unwrap();
    match random.below(8) {
        0 => random.of(&[0, 1, usize::MAX, 0x6f78_0000_0001]),
        _ if comms.is_empty() => 0,
        _ => random.of(&comms),
    }
}

/// One step. Memory is always as long as a call that is accepted needs it: counts are small, or
/// more than memory can have.
fn step(random: &mut Random, memory: &mut [u64]) {
    let at: *mut c_void = memory.as_mut_ptr().cast();
    let input = random.of(&[at.cast_const(), std::ptr::null(), at.cast_const()]);
    let output = random.of(&[at.wrapping_byte_add(8192), std::ptr::null_mut(), at]);
    let count = random.of(&[0, 1, 7, 64, usize::MAX, usize::MAX / 2, 1 << 62, 1 << 63]);
    let data_type = random.of(&[0, 2, 7, 7, 8, 11, 12, -1, c_int::MAX]);
    let op = random.of(&[0, 0, 1, 4, 5, 6, -1, c_int::MAX]);
    let rank = random.of(&[0, 0, 1, 1, 2, -1, c_int::MIN]);
    let comm = any_comm(random);
    // SAFETY: what is accepted is valid; what is not, is not followed.
    let code = unsafe {
        match random.below(27) {
            0..4 => ncclAllReduce(input, output, count, data_type, op, comm, 0),
            4..6 => ncclAllGather(input, output, count, data_type, comm, 0),
            6..8 => ncclBroadcast(input, output, count, data_type, rank, comm, 0),
            8 | 9 => ncclSend(input, count, data_type, rank, comm, 0),
            10 | 11 => ncclRecv(output, count, data_type, rank, comm, 0),
            12 | 13 => ncclGroupStart(),
            14..17 => ncclGroupEnd(),
            17 => {
                let mut made = 0;
                ncclRedOpCreatePreMulSum(&raw mut made, &0.5, data_type, 1, comm)
            }
            18 => ncclRedOpDestroy(op, comm),
            19 => ncclCommDeregister(comm, random.below(4) as usize),
            20 => ncclSignal(rank, 0, 0),
            21 => {
                let mut state = 0;
                ncclCommGetAsyncError(comm, &raw mut state)
            }
            22 if random.below(20) == 0 => ncclCommAbort(comm),
            22 if random.below(20) == 0 => ncclCommDestroy(comm),
            22 => 0,
            24 => {
                let mut window = 0;
                let code = ncclCommWindowRegister(
                    comm,
                    output,
                    count,
                    &raw mut window,
                    random.of(&[0, 1, 9]),
                );
                match random.below(2) {
                    0 => ncclWinGetUserPtr(comm, window, &raw mut window),
                    _ => code.max(ncclCommWindowDeregister(comm, window)),
                }
            }
            25 => match random.below(8) {
                0 => ncclCommSuspend(comm, data_type),
                _ => ncclCommResume(comm),
            },
            26 => {
                let header = |magic: u64| magic | 23203 << 32;
                let mut words = [0u64; 19];
                (words[0], words[1]) = (random.of(&[24, 48, 152]), header(0xcafe_beef));
                let mut info = [24, header(0x7468_5283), 0];
                ncclTeamRankToWorld(comm, Words([rank, op, count as c_int]), rank);
                match random.below(3) {
                    0 => ncclCommMemStats(comm, data_type, words.as_mut_ptr()),
                    1 => ncclCommQueryProperties(comm, words.as_mut_ptr()),
                    _ => ncclGroupSimulateEnd(info.as_mut_ptr()),
                }
            }
            _ => {
                let mut part = 0;
                let code = ncclCommSplit(comm, -2, 0, &raw mut part, std::ptr::null());
                assert_ne!(code, 0, "a color below 0");
                code
            }
        }
    };
    CALLS.fetch_add(1, Ordering::Relaxed);
    assert!((0..8).contains(&code), "{code}");
    if code == 0 {
        DONE.fetch_add(1, Ordering::Relaxed);
    } else {
        // SAFETY: it is a text.
        assert_ne!(unsafe { *ncclGetLastError(comm) }, 0);
    }
}

#[test]
fn random_calls_are_answered() {
    // SAFETY: no thread runs yet.
    unsafe {
        std::env::set_var("OXCCL_DEVICE", "host");
        std::env::set_var("OXCCL_TIMEOUT", "0.2");
        std::env::set_var("NCCL_SOCKET_IFNAME", "lo");
    }
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    let until = Instant::now() + Duration::from_secs(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_mul(2 * thread + 1));
                let mut memory = vec![0u64; 4096];
                while Instant::now() < until {
                    step(&mut random, &mut memory);
                }
                // SAFETY: it takes nothing.
                while unsafe { ncclGroupEnd() } != 5 {}
            });
        }
        while Instant::now() < until {
            let mut comms = [0; 2];
            // SAFETY: there are as many places.
            let code = unsafe { ncclCommInitAll(comms.as_mut_ptr(), 2, std::ptr::null()) };
            if code == 0 {
                let ended = std::mem::replace(&mut *COMMS.lock().unwrap(), comms.to_vec());
                std::thread::sleep(Duration::from_millis(150));
                for comm in ended {
                    // SAFETY: a handle, which may have ended.
                    unsafe { ncclCommAbort(comm) };
                }
            }
        }
    });
    let (calls, done) = (CALLS.load(Ordering::Relaxed), DONE.load(Ordering::Relaxed));
    println!("{calls} calls, {done} done");
    assert!(calls > 1000 && done > 100, "{calls} calls, {done} done");
}

/// Every function that the library has, and its twin, without any argument: no thread's calls
/// crash, whatever another's do.
#[test]
fn every_function_stands_nothing() {
    let path = std::env::current_exe().unwrap().with_file_name("libnccl.so");
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: a library of this project, which stays.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    let library = library as usize;
    let names: Vec<_> = include_str!("../names.txt").lines().collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let names = &names;
            scope.spawn(move || {
                let mut random = Random(0x9e37_79b9_7f4a_7c15 + thread);
                for _ in 0..1000 {
                    let name = random.of(names);
                    let has_twin = name != "ncclResetDebugInitInternal";
                    let twin = if has_twin && random.below(2) == 1 { "p" } else { "" };
                    let code = call_with_nothing(library, &format!("{twin}{name}"));
                    let has_code = !["String", "LastError", "Team", "Slots", "Reset", "DumpAll"]
                        .iter()
                        .any(|other| name.contains(other));
                    assert!(!has_code || code < 8, "{name}: {code:#x}");
                }
            });
        }
    });
}

/// Calls a function of the library, all of whose arguments are 0.
fn call_with_nothing(library: usize, name: &str) -> u32 {
    /// Numbers and pointers in registers, and an id of 128 bytes behind them.
    type Any = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, Words<32>) -> u32;
    let symbol = std::ffi::CString::new(name).unwrap();
    let library = std::ptr::with_exposed_provenance_mut(library);
    // SAFETY: the library is loaded, and the name ends with a zero.
    let found = unsafe { libc::dlsym(library, symbol.as_ptr()) };
    assert!(!found.is_null(), "{name}");
    // SAFETY: in C, a function that takes fewer arguments leaves the others alone.
    unsafe {
        let call: Any = std::mem::transmute(found);
        call(0, 0, 0, 0, 0, 0, Words([0; 32]))
    }
}
