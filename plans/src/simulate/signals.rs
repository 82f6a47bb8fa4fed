//! Signals between being given and being asked for: queues in one pool, since most are short and
//! there are millions.

use super::servers::Time;

const NONE: u32 = u32::MAX;

/// What a counter is raised to, and when that is seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signal {
    pub(super) value: i64,
    pub(super) arrival: Time,
    pub(super) event: u32,
}

/// Signals of one counter, in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    first: u32,
    last: u32,
}

impl Queue {
    pub(super) const EMPTY: Queue = Queue { first: NONE, last: NONE };
}

/// All queues' signals, each with the one behind it. Places that have been left are taken again.
#[derive(Clone, Debug)]
pub(super) struct Signals {
    places: Vec<(Signal, u32)>,
    left: u32,
}

impl Default for Signals {
    fn default() -> Signals {
        Signals { places: Vec::new(), left: NONE }
    }
}

impl Signals {
    pub(super) fn push(&mut self, queue: &mut Queue, signal: Signal) {
        let place = match self.left {
            NONE => {
                self.places.push((signal, NONE));
                self.places.len() as u32 - 1
            }
            left => {
                let place = &mut self.places[left as usize];
                self.left = place.1;
                *place = (signal, NONE);
                left
            }
        };
        match queue.last {
            NONE => queue.first = place,
            last => self.places[last as usize].1 = place,
        }
        queue.last = place;
    }

    pub(super) fn pop(&mut self, queue: &mut Queue) -> Option<Signal> {
        let (signal, next) = self.places.get_mut(queue.first as usize)?;
        let left = std::mem::replace(next, self.left);
        let signal = *signal;
        self.left = queue.first;
        *queue = if left == NONE { Queue::EMPTY } else { Queue { first: left, ..*queue } };
        Some(signal)
    }

    pub(super) fn last(&self, queue: Queue) -> Option<Signal> {
        self.places.get(queue.last as usize).map(|(signal, _)| *signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_share_places_and_keep_their_order() {
        let signal = |value| Signal { value, arrival: 0, event: 0 };
        let (mut signals, mut queues) = (Signals::default(), [Queue::EMPTY; 2]);
        for turn in 0..10 {
            for (at, queue) in queues.iter_mut().enumerate() {
                let first = 100 * at as i64 + 3 * turn;
                (first..first + 3).for_each(|value| signals.push(queue, signal(value)));
                assert_eq!(signals.last(*queue).unwrap().value, first + 2);
            }
            for (at, queue) in queues.iter_mut().enumerate() {
                let popped: Vec<i64> =
                    std::iter::from_fn(|| signals.pop(queue)).map(|one| one.value).collect();
                let first = 100 * at as i64 + 3 * turn;
                assert_eq!(popped, [first, first + 1, first + 2]);
                assert!(signals.last(*queue).is_none());
            }
        }
        assert_eq!(signals.places.len(), 6);
    }
}
