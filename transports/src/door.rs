//! Connections that have not proven the secret, and which of them goes where there are too many.
//!
//! Anybody can connect, say nothing, and hold what a connection takes. So there is room for so many
//! only, and a newcomer takes the place of another: of one that has said nothing, since ranks speak
//! at once; otherwise of one that has had time enough to prove itself. Of those it is one of the
//! address with the most, and of these the oldest. A rank that had to go tries again.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit};

/// How long a connection may take to prove the secret.
pub(crate) const PROOF_TIMEOUT: Duration = Duration::from_secs(2);

/// How long one that has spoken may stay where there are too many: far longer than a network's
/// round trip.
const PROOF_GRACE: Duration = Duration::from_millis(250);

/// The most connections of this kind.
const PLACES_LIMIT: usize = 1024;

/// A connection that has not proven the secret.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest<K> {
    pub(crate) key: K,
    pub(crate) from: IpAddr,
    pub(crate) since: Instant,
    /// It has said something.
    pub(crate) has_spoken: bool,
}

/// How many there may be in this process: they leave most descriptors to others.
pub(crate) fn places() -> usize {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    usize::try_from(soft / 4).unwrap_or(usize::MAX).clamp(16, PLACES_LIMIT)
}

/// Which of these makes room now, if one can.
pub(crate) fn makes_room<K: Copy>(guests: &[Guest<K>], now: Instant) -> Option<K> {
    let may_go = |guest: &&Guest<K>| !guest.has_spoken || now >= guest.since + PROOF_GRACE;
    let mut of_address: HashMap<IpAddr, usize> = HashMap::new();
    guests.iter().for_each(|guest| *of_address.entry(guest.from).or_default() += 1);
    let first = guests
        .iter()
        .filter(may_go)
        .min_by_key(|guest| (guest.has_spoken, usize::MAX - of_address[&guest.from], guest.since));
    first.map(|guest| guest.key)
}

/// When the next of these can make room, if all have spoken.
pub(crate) fn room_from<K>(guests: &[Guest<K>]) -> Option<Instant> {
    guests.iter().map(|guest| guest.since + PROOF_GRACE).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(key: u32, address: u8, age_ms: u64, has_spoken: bool, now: Instant) -> Guest<u32> {
        let since = now - Duration::from_millis(age_ms);
        Guest { key, from: IpAddr::from([10, 0, 0, address]), since, has_spoken }
    }

    #[test]
    fn the_silent_go_first_then_those_of_the_address_with_most_then_the_oldest() {
        let now = Instant::now() + Duration::from_secs(60);
        let mut guests = vec![
            guest(0, 1, 900, true, now),
            guest(1, 1, 800, true, now),
            guest(2, 2, 1000, true, now),
            guest(3, 2, 10, false, now),
            guest(4, 3, 20, false, now),
            guest(5, 1, 5, false, now),
        ];
        let mut gone = Vec::new();
        while let Some(key) = makes_room(&guests, now) {
            guests.retain(|guest| guest.key != key);
            gone.push(key);
        }
        assert_eq!(gone, [5, 3, 4, 0, 2, 1]);
    }

    #[test]
    fn one_that_has_just_spoken_stays() {
        let now = Instant::now() + Duration::from_secs(60);
        let guests = [guest(0, 1, 100, true, now), guest(1, 1, 10, true, now)];
        assert_eq!(makes_room(&guests, now), None);
        let later = room_from(&guests).unwrap();
        assert_eq!(makes_room(&guests, later), Some(0));
    }
}
