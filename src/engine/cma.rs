//! Whether the system reads other ranks' private memory for this one (cross-memory attach), and
//! from which length on that takes less than the way through slots: tried at the start, since only
//! the system knows who may read whom, and the two differ from machine to machine by more than
//! either does from size to size.
//!
//! What is timed is what a message does. Through a slot its bytes are written into lines that the
//! other rank has read last, and read out of lines that the other one has written last. The system
//! reads bytes that the other rank has written last, and takes a time of its own for each call.

use crate::error::Error;
use oxccl_kernels::format::{DataType, Fold, Scale};
use oxccl_kernels::{HostExecutor, Reduction};
use oxccl_plans::tune::SystemReads;
use oxccl_transports::{Bootstrap, Region, read_process, share_memory_with_siblings};
use std::sync::Arc;
use std::time::Instant;

/// Messages that are timed: short ones for what a call of the system takes, long ones for its
/// bytes. Of each the fastest counts, since the others may have lost their core.
const SHORT: Messages = Messages { count: 4, len: 8 << 10 };
const LONG: Messages = Messages { count: 3, len: 32 << 10 };

/// How a rank tells that the system's reads are never faster.
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Messages {
    count: usize,
    len: usize,
}

impl Messages {
    const fn bytes(&self) -> usize {
        self.count * self.len
    }

    /// How long the fastest takes, in ns.
    fn fastest<E>(&self, mut each: impl FnMut(usize) -> Result<(), E>) -> Result<f64, E> {
        let mut fastest = f64::INFINITY;
        for at in (0..self.count).map(|number| number * self.len) {
            let begin = Instant::now();
            each(at)?;
            fastest = fastest.min(begin.elapsed().as_nanos() as f64);
        }
        Ok(fastest)
    }
}

/// The processes of ranks that the system reads for each other, and what that is worth.
#[derive(Clone, Debug)]
pub(super) struct Readers {
    /// By rank.
    pub(super) processes: Arc<[u32]>,
    pub(super) reads: SystemReads,
}

impl Readers {
    /// Some of the ranks, in this order.
    pub(super) fn of_ranks(&self, ranks: &[usize]) -> Readers {
        let processes = ranks.iter().map(|rank| self.processes[*rank]).collect();
        Readers { processes, ..*self }
    }
}

/// What a rank tells of itself: where it has bytes that nobody guesses, and behind them what is
/// read for the time it takes.
struct Probe {
    process: u32,
    address: u64,
    content: [u8; Probe::CONTENT],
}

impl Probe {
    const CONTENT: usize = 16;
    const LEN: usize = 4 + 8 + Probe::CONTENT;

    fn new(memory: &mut [u8]) -> Result<Probe, Error> {
        let content = oxccl_transports::random_bytes()?;
        memory.fill(1);
        memory[..Probe::CONTENT].copy_from_slice(&content);
        Ok(Probe { process: std::process::id(), address: memory.as_ptr() as u64, content })
    }

    fn encode(&self) -> Vec<u8> {
        let (process, address) = (self.process.to_le_bytes(), self.address.to_le_bytes());
        [&process[..], &address, &self.content].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Probe> {
        let bytes: &[u8; Probe::LEN] = bytes.try_into().ok()?;
        let (process, rest) = bytes.split_first_chunk()?;
        let (address, content) = rest.split_first_chunk()?;
        Some(Probe {
            process: u32::from_le_bytes(*process),
            address: u64::from_le_bytes(*address),
            content: content.try_into().ok()?,
        })
    }

    /// Why what it tells of cannot be read, if it cannot.
    fn objection(&self) -> Option<String> {
        let mut found = [0; Probe::CONTENT];
        match read_process(self.process, self.address, &mut found) {
            // Process numbers of another namespace lead to others, or nowhere.
            Ok(()) if found != self.content => Some("its process number is another's here".into()),
            Ok(()) => None,
            Err(error) => Some(error.to_string()),
        }
    }
}

/// What messages take, in ns.
struct Times {
    short_read: f64,
    long_read: f64,
    long_through_slot: f64,
}

impl Times {
    /// From so many bytes on the system's reads take less.
    fn pays_from(&self) -> Option<usize> {
        let byte = (self.long_read - self.short_read).max(0.0) / (LONG.len - SHORT.len) as f64;
        let call = (self.short_read - byte * SHORT.len as f64).max(0.0);
        let spared = self.long_through_slot / LONG.len as f64 - byte;
        // What is reduced is read once more out of a cache.
        let pays = spared > 0.1 * byte && call.is_finite();
        pays.then(|| ((call / spared) as usize).clamp(1, 1 << 30).next_power_of_two())
    }
}

/// The processes of all ranks, or why the system does not read them for each other. All ranks come
/// to the same. Where each has memory that the others map, all zeros and not used yet, both ways
/// are timed; it is all zeros afterwards.
pub(super) fn readers(
    bootstrap: &mut dyn Bootstrap,
    slots: Option<&[Option<Arc<Region>>]>,
    deadline: Instant,
) -> Result<Result<Readers, String>, Error> {
    share_memory_with_siblings();
    let rank = bootstrap.rank();
    let next = (rank + 1) % bootstrap.world();
    let slot = |of: usize| slots.and_then(|slots| slots[of].as_deref()).filter(has_room);
    let slots = slot(rank).zip(slot(next)).filter(|_| next != rank);
    let mut memory = vec![0; SHORT.bytes() + LONG.bytes()];
    let (mut found, zeros) = (memory.clone(), memory.clone());
    let own = Probe::new(&mut memory)?;
    if let Some((own, _)) = slots {
        clear(own, &zeros);
    }
    let told = bootstrap.all_gather(&own.encode(), deadline)?;
    let probes: Vec<Option<Probe>> = told.iter().map(|bytes| Probe::decode(bytes)).collect();
    let objection = |(of, probe): (usize, &Option<Probe>)| {
        let why = probe.as_ref().map_or(Some("it told nothing".into()), Probe::objection)?;
        Some(format!("rank {rank} cannot read the memory of rank {of}: {why}"))
    };
    let objection = probes.iter().enumerate().find_map(objection);
    let timed = slots.zip(probes[next].as_ref()).filter(|_| objection.is_none());
    let timed = timed.map(|((own, theirs), probe)| {
        let read = |begin: usize, messages: Messages, found: &mut [u8]| {
            messages.fastest(|at| {
                let address = probe.address + (begin + at) as u64;
                read_process(probe.process, address, &mut found[at..at + messages.len])
            })
        };
        let out_of_slot = copy_out(theirs, &mut found);
        let long_read = read(0, LONG, &mut found).unwrap_or(f64::INFINITY);
        let short_read = read(LONG.bytes(), SHORT, &mut found).unwrap_or(f64::INFINITY);
        (own, Times { short_read, long_read, long_through_slot: out_of_slot })
    });
    // The memory stays until all have looked.
    let objections = bootstrap.all_gather(objection.unwrap_or_default().as_bytes(), deadline)?;
    drop(memory);
    if let Some(objection) = objections.iter().find(|objection| !objection.is_empty()) {
        return Ok(Err(String::from_utf8_lossy(objection).into_owned()));
    }
    let pays_from = match timed {
        None => SystemReads::default().pays_from,
        Some((own, times)) => {
            let long_through_slot = times.long_through_slot + clear(own, &zeros);
            let times = Times { long_through_slot, ..times };
            let Times { short_read, long_read, .. } = times;
            tracing::debug!(rank, short_read, long_read, long_through_slot, "private messages, ns");
            times.pays_from()
        }
    };
    // Nobody uses the memory before all have told: then all have left it.
    let own = pays_from.map_or(NEVER, |bytes| bytes as u64);
    let told = bootstrap.all_gather(&own.to_le_bytes(), deadline)?;
    let processes = probes.iter().flatten().map(|probe| probe.process).collect();
    Ok(Ok(Readers { processes, reads: SystemReads { pays_from: agreed(&told) } }))
}

fn has_room(region: &&Region) -> bool {
    region.len_bytes() >= LONG.bytes()
}

/// What half of the ranks are told to be right.
fn agreed(told: &[Vec<u8>]) -> Option<usize> {
    let bytes = |told: &Vec<u8>| told[..].try_into().map_or(NEVER, u64::from_le_bytes);
    let mut all: Vec<u64> = told.iter().map(bytes).collect();
    all.sort_unstable();
    let half = all[all.len() / 2];
    usize::try_from(half).ok().filter(|_| half != NEVER)
}

/// Copies zeros to where this rank's slots will be: how long a message takes, in ns.
fn clear(own: &Region, zeros: &[u8]) -> f64 {
    let cleared = LONG.fastest(|at| {
        let from = zeros[at..at + LONG.len].as_ptr();
        // SAFETY: within the region, by `has_room`, which this rank has mapped and nobody uses yet
        // but to read it for the time it takes.
        unsafe { copy(from, own.as_ptr().add(at)) };
        Ok::<_, std::convert::Infallible>(())
    });
    let Ok(fastest) = cleared;
    fastest
}

/// Reads what another rank has cleared: how long a message takes, in ns.
fn copy_out(theirs: &Region, to: &mut [u8]) -> f64 {
    // The first read of a page takes the system longer than a message takes.
    for at in (0..LONG.bytes()).step_by(4096) {
        // SAFETY: as below.
        unsafe { theirs.as_ptr().add(at).read_volatile() };
    }
    let copied = LONG.fastest(|at| {
        let to = to[at..at + LONG.len].as_mut_ptr();
        // SAFETY: within the region, by `has_room`; nobody writes there until all ranks have told
        // that they have looked.
        unsafe { copy(theirs.as_ptr().add(at), to) };
        Ok::<_, std::convert::Infallible>(())
    });
    let Ok(fastest) = copied;
    fastest
}

/// Copies a long message as calls do (`kernels/machine/host/copy.h`): what the C library takes for
/// it depends on the two addresses.
///
/// # Safety
///
/// Both are valid for [`LONG`]'s bytes, and do not overlap.
unsafe fn copy(from: *const u8, to: *mut u8) {
    let copied = Reduction {
        data_type: DataType::U8,
        fold: Fold::Sum,
        scale: Scale::None,
        scale_bits: 0,
        ranks: 1,
        tree: false,
        finish: false,
        stream: false,
    };
    // SAFETY: passed on to the caller.
    unsafe { HostExecutor::detect().reduce(&copied, &[from], &[to], LONG.len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_pay_where_they_spare_more_than_a_call() {
        let times = |short_read, long_read, long_through_slot| Times {
            short_read,
            long_read,
            long_through_slot,
        };
        // Two cores that share much: slots are faster at any length.
        assert_eq!(times(2_300.0, 4_900.0, 2_800.0).pays_from(), None);
        // Two that are far apart.
        assert_eq!(times(2_300.0, 4_900.0, 18_000.0).pays_from(), Some(4 << 10));
        assert_eq!(times(2_300.0, 4_900.0, 4_800.0).pays_from(), Some(64 << 10));
        // A clock that stands, or a read that has failed.
        assert_eq!(times(0.0, 0.0, 0.0).pays_from(), None);
        assert_eq!(times(f64::INFINITY, f64::INFINITY, 18_000.0).pays_from(), None);
    }

    #[test]
    fn half_of_the_ranks_decide() {
        let told =
            |all: &[u64]| all.iter().map(|one| one.to_le_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(agreed(&told(&[4096, 4096])), Some(4096));
        assert_eq!(agreed(&told(&[0, 0])), Some(0));
        assert_eq!(agreed(&told(&[4096, NEVER])), None);
        assert_eq!(agreed(&told(&[4096, NEVER, 8192])), Some(8192));
        assert_eq!(agreed(&told(&[NEVER, NEVER, 8192])), None);
        assert_eq!(agreed(&[vec![1], vec![]]), None);
    }
}
