//! Rooms: control and staging memory of parts of a communicator, in the file that each rank shares
//! at its start. A part takes one of each of its ranks, so that no memory changes hands when it
//! starts.
//!
//! ```text
//! file:  | the communicator's own | room 1 | room 2 | ... |     sections of one length
//! room:  control memory, staging memory, ..., departures in its last line
//! ```
//!
//! Sections are address space, of which pages exist once touched. A rank takes one of its own rooms
//! and tells the others which, and all map that already. Whoever leaves the part counts itself
//! among the departures; once all have, the owner takes the pages back and may take the room again.
//! A rank that dies does not leave, so its rooms remain as they are.
//!
//! Where a process may not have any number of addresses (`ulimit -v`), there are no rooms.

use super::heaps::ByRank;
use oxccl_transports::{Error, Region};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The name of a file with rooms, which other processes see.
pub(crate) const CONTROLS: &str = "oxccl-controls";
/// Its sections: one for the communicator, the others are rooms.
const SECTIONS: usize = 16;
/// A cache line.
const LINE: usize = 64;

/// What each rank of a part says where it has taken no room.
pub(crate) const NO_ROOM: u32 = 0;

/// The rooms of some ranks, as one of them reaches them. Those of a part are those of the whole.
#[derive(Clone, Debug)]
pub(crate) struct Rooms {
    own: Arc<Own>,
    /// By rank, the files with their rooms.
    files: ByRank<Region>,
}

/// This rank's own.
#[derive(Debug)]
struct Own {
    file: Arc<Region>,
    /// By section, but for the first.
    rooms: Mutex<[Room; SECTIONS - 1]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// All zeros.
    Free,
    /// It has been told to others, or is about to be.
    Told,
    /// So many ranks use it, or have left it.
    Used(u32),
}

impl Rooms {
    /// The length of a file whose sections hold so much each.
    pub(crate) fn len_bytes(section_bytes: usize) -> usize {
        SECTIONS * (section_bytes + LINE).next_multiple_of(oxccl_transports::HUGE_PAGE)
    }

    /// The rooms in these files, of which `own` is this rank's.
    pub(crate) fn new(own: Arc<Region>, files: ByRank<Region>) -> Rooms {
        let rooms = Mutex::new([Room::Free; SECTIONS - 1]);
        Rooms { own: Arc::new(Own { file: own, rooms }), files }
    }

    /// Those of some of the ranks, in this order.
    pub(crate) fn of_ranks(&self, ranks: &[usize]) -> Rooms {
        let files = ranks.iter().map(|rank| self.files[*rank].clone()).collect();
        Rooms { own: self.own.clone(), files }
    }

    /// Takes a room of this rank, to be told to others: its number, or none where all are in use.
    pub(crate) fn take(&self) -> u32 {
        let mut rooms = self.own.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, room) in (1..).zip(rooms.iter_mut()) {
            if self.own.is_left(number, *room) {
                *room = match self.own.clear(number) {
                    Ok(()) => Room::Free,
                    // It is not taken again.
                    Err(_) => Room::Told,
                };
            }
        }
        match (1..).zip(rooms.iter_mut()).find(|(_, room)| **room == Room::Free) {
            Some((number, room)) => {
                *room = Room::Told;
                number
            }
            None => NO_ROOM,
        }
    }

    /// Gives back a room which all know that nobody uses.
    pub(crate) fn give_back(&self, number: u32) {
        self.own.set(number, Room::Free);
    }

    /// Whether a room has so much. Ranks of a node come to the same.
    pub(crate) fn hold(&self, len_bytes: usize) -> bool {
        len_bytes <= section(&self.own.file, 0).len() - LINE
    }

    /// The rooms that these ranks have told, as regions of `len_bytes`, by rank: `None` for ranks
    /// of other nodes. This rank is at `place` among them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]: what was told is no room, or has less.
    pub(crate) fn enter(
        &self,
        place: usize,
        told: &[u32],
        len_bytes: usize,
    ) -> Result<ByRank<Region>, Error> {
        let users = self.files.iter().flatten().count();
        self.own.set(told[place], Room::Used(users as u32));
        let enter = |(file, number): (&Option<Arc<Region>>, &u32)| {
            let Some(file) = file else { return Ok(None) };
            let section = section(file, *number);
            let departures = section.end - LINE;
            if !self.hold(len_bytes) {
                let (offset, region_bytes) = (section.start, section.len());
                return Err(Error::OutOfRange { offset, len_bytes, region_bytes });
            }
            Ok(Some(Arc::new(file.counted(section.start, len_bytes, departures)?)))
        };
        self.files.iter().zip(told).map(enter).collect()
    }
}

impl Own {
    fn set(&self, number: u32, to: Room) {
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = (number as usize).checked_sub(1).and_then(|at| rooms.get_mut(at)) {
            *room = to;
        }
    }

    /// Whether all have left it that used it.
    fn is_left(&self, number: u32, room: Room) -> bool {
        let Room::Used(users) = room else { return false };
        let departures = section(&self.file, number).end - LINE;
        let word = self.file.as_ptr().wrapping_add(departures).cast::<AtomicU32>();
        // SAFETY: within the file, and at a multiple of a line; all access it as an atomic.
        unsafe { (*word).load(Ordering::Acquire) == users }
    }

    fn clear(&self, number: u32) -> Result<(), Error> {
        let section = section(&self.file, number);
        self.file.release(section.start, section.len())
    }
}

/// Whether this process may have as many addresses as it likes.
pub(crate) fn have_addresses() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    answer == 0 && limit.rlim_cur == libc::RLIM_INFINITY
}

/// Where a section lies in a file with rooms.
fn section(file: &Region, number: u32) -> Range<usize> {
    let len_bytes = file.len_bytes() / SECTIONS;
    let start = number as usize * len_bytes;
    start..start + len_bytes
}

/// Where the sections of a file with rooms begin, which has so many bytes.
pub(crate) fn sections(file_bytes: u64) -> impl Iterator<Item = u64> {
    let len_bytes = file_bytes / SECTIONS as u64;
    (0..SECTIONS as u64).map(move |number| number * len_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 100;

    /// The rooms of two ranks.
    fn pair() -> [Rooms; 2] {
        let files = [0; 2]
            .map(|_| Some(Arc::new(Region::create(CONTROLS, Rooms::len_bytes(LEN)).unwrap())));
        let of = |rank: usize| Rooms::new(files[rank].clone().unwrap(), files.to_vec());
        [of(0), of(1)]
    }

    #[test]
    fn a_room_is_taken_again_once_all_have_left() {
        let [one, other] = pair();
        let told = [one.take(), other.take()];
        assert_eq!(told, [1, 1]);
        let mine = one.enter(0, &told, LEN).unwrap();
        let theirs = other.enter(1, &told, LEN).unwrap();
        let [Some(seen), Some(own)] = [&mine[1], &theirs[1]] else { panic!("{mine:?}") };
        assert_eq!(seen.as_ptr(), own.as_ptr(), "one process maps it once");
        // SAFETY: inside the region, and nobody else uses it.
        unsafe { own.as_ptr().write(7) };
        drop(theirs);
        let inner = mine[1].as_ref().unwrap().part(8, 8).unwrap();
        drop(mine);
        assert_eq!((one.take(), other.take()), (1, 2), "a part of it is still there");
        one.give_back(1);
        drop(inner);
        assert_eq!(other.take(), 1);
        let again = other.enter(1, &[one.take(), 1], LEN).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { again[1].as_ref().unwrap().as_ptr().read() }, 0);
    }

    #[test]
    fn there_are_so_many() {
        let [one, _] = pair();
        let all: Vec<u32> = (0..SECTIONS).map(|_| one.take()).collect();
        let expected: Vec<u32> = (1..SECTIONS as u32).chain([NO_ROOM]).collect();
        assert_eq!(all, expected);
        one.give_back(5);
        assert_eq!(one.take(), 5);
    }

    #[test]
    fn what_is_no_room_is_refused() {
        let [one, _] = pair();
        for number in [SECTIONS as u32, u32::MAX] {
            let refused = one.enter(0, &[one.take(), number], LEN);
            assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{refused:?}");
        }
        let long = section(&one.own.file, 1).len();
        assert!(one.enter(0, &[1, 1], long).is_err());
    }
}
