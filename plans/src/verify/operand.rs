//! How operands are read and written in the abstract execution.

use super::clock::{Event, Knowledge, Seen};
use super::expect::Place;
use super::machine::{At, Machine, initial};
use super::memory::Conflict;
use super::route::{Route, Segment};
use super::value::Value;
use super::violation::Violation;
use crate::schedule::{Buffer, Distance, Operand, Source};

impl<K: Knowledge> Machine<'_, K> {
    pub(super) fn read(
        &mut self,
        (rank, step): At,
        operand: Operand,
        brought: &mut Vec<K::Stamp>,
    ) -> Result<Value, Violation> {
        let undefined = Violation::Undefined { rank, step, operand };
        let value = match operand {
            Operand::Tokens => return Ok(self.values.tokens(rank)),
            Operand::Slot { .. } => return self.receive((rank, step), operand, brought),
            Operand::Scratch(chunk) => {
                let owner = self.rank_of(rank);
                return self.scratch[owner]
                    .read((Buffer::Input, chunk), || None, &self.ranks[rank].clock)
                    .map_err(|other| race((rank, step), operand, other))?
                    .ok_or(undefined);
            }
            _ => {
                let location = self.locate((rank, step), operand)?;
                let (owner, by) = self.symmetry.home(location.0);
                let (_, buffer, chunk) = self.turned(location, self.symmetry.back(by));
                let place = self.expectation.place(owner, buffer, chunk);
                let (values, expectation, symmetry) =
                    (&self.values, &self.expectation, &self.symmetry);
                let seen = Seen { of: &self.ranks[rank].clock, symmetry, by };
                let memory = &mut self.memories[owner];
                let value = memory
                    .read(place, || initial(values, expectation, owner, place), &seen)
                    .map_err(|other| race((rank, step), operand, symmetry.rank(other, by)))?
                    .ok_or(undefined)?;
                if buffer == Buffer::Input {
                    let twin = expectation.twin(owner, chunk).map(|chunk| (Buffer::Output, chunk));
                    let there = twin.and_then(|twin| memory.value(twin)?);
                    self.differs_in_place |= there.is_some_and(|there| there != value);
                }
                value.turned(symmetry, by)
            }
        };
        self.check_part((rank, step), operand, value)?;
        Ok(value)
    }

    fn receive(
        &mut self,
        (rank, step): At,
        operand: Operand,
        brought: &mut Vec<K::Stamp>,
    ) -> Result<Value, Violation> {
        let arrival = Violation::Arrival { rank, step, operand };
        let Operand::Slot { link, message, segment } = operand else { return Err(arrival) };
        let route = Route::from(link, rank, self.schedule.lists_per_rank);
        let clock = &self.ranks[rank].clock;
        let (number, by) = self.routes.number(route);
        let (first, segments) = self.routes.segments(number, message);
        let symmetry = &self.symmetry;
        let traffic = &mut self.traffic[number];
        // A tail is raised when a message's last segment has been written.
        let announced = link.lane.has_flags() || traffic.tail.awaited > i64::from(message);
        match traffic.segments.get_mut(first + segment as usize) {
            Some(slot)
                if segment < segments
                    && (announced || clock.knows(slot.written.turned(symmetry, by))) =>
            {
                brought.extend(slot.stamp.take().map(|stamp| K::turned(&stamp, symmetry, by)));
                slot.read = Some(clock.now().turned(symmetry, symmetry.back(by)));
                traffic.received += usize::from(segment + 1 == segments);
                Ok(slot.value.turned(symmetry, by))
            }
            _ => Err(arrival),
        }
    }

    pub(super) fn write(
        &mut self,
        at: At,
        operand: Operand,
        value: Value,
        stamp: Option<&K::Stamp>,
    ) -> Result<(), Violation> {
        let (rank, step) = at;
        match operand {
            Operand::PeerSlot { .. } => self.send(at, operand, value, stamp),
            Operand::Contribution { rail, .. } => self.contribute(at, operand, rail, value),
            // A chunk of any part, but no tokens.
            Operand::Scratch(chunk) if self.values.part(value).is_some() => {
                if self.schedule.lists_per_rank > 1 {
                    self.scratch_writers.insert((chunk, rank));
                }
                let owner = self.rank_of(rank);
                self.scratch[owner]
                    .write((Buffer::Input, chunk), value, &self.ranks[rank].clock)
                    .map_err(|other| race(at, operand, other))
            }
            Operand::Scratch(_) => {
                let value = self.values.text(value);
                Err(Violation::Misplaced { rank, step, operand, value })
            }
            Operand::PeerTokens(peer) => {
                if value != self.values.tokens(peer) {
                    let value = self.values.text(value);
                    return Err(Violation::Misplaced { rank, step, operand, value });
                }
                self.ranks[rank].tokens.insert(peer);
                Ok(())
            }
            _ => {
                self.check_part(at, operand, value)?;
                let location = self.locate(at, operand)?;
                let symmetry = &self.symmetry;
                let (owner, by) = symmetry.home(location.0);
                let (_, buffer, chunk) = self.turned(location, symmetry.back(by));
                let place = self.expectation.place(owner, buffer, chunk);
                let seen = Seen { of: &self.ranks[rank].clock, symmetry, by };
                self.memories[owner]
                    .write(place, value.turned(symmetry, symmetry.back(by)), &seen)
                    .map_err(|other| race(at, operand, symmetry.rank(other, by)))
            }
        }
    }

    fn send(
        &mut self,
        (rank, step): At,
        operand: Operand,
        value: Value,
        stamp: Option<&K::Stamp>,
    ) -> Result<(), Violation> {
        let Operand::PeerSlot { link, message, segment } = operand else { return Ok(()) };
        let route = Route::to(link, rank, self.schedule.lists_per_rank);
        let clock = &self.ranks[rank].clock;
        // What is noted of a route is what its sender sees, and this rank is it.
        let (number, _) = self.routes.number(route);
        let (_, segments) = self.routes.segments(number, message);
        let traffic = &mut self.traffic[number];
        // What the slot held before has been consumed if the head said so, or if some later event
        // of the receiver is known.
        let credit = i64::from(message) + 1 - i64::from(self.schedule.slots.on(link.lane));
        let consumed = match usize::try_from(credit - 1) {
            Ok(previous) => {
                let (first, segments) = self.routes.segments(number, previous as u32);
                let last = traffic.segments.get(first + segments as usize - 1);
                last.and_then(|segment| segment.read)
            }
            Err(_) => Some(Event::start(route.to)),
        };
        let known = consumed.is_some_and(|event| clock.knows(event));
        if segment == 0 && traffic.head.awaited < credit && !known {
            return Err(Violation::Credit { rank, step, operand, reader: link.peer, credit });
        }
        let stamp = stamp.filter(|_| link.lane.has_flags()).cloned();
        traffic.segments.push(Segment { value, written: clock.now(), stamp, read: None });
        traffic.sent += usize::from(segment + 1 == segments);
        if link.lane.has_flags() {
            self.wake(route.to, route);
        }
        Ok(())
    }

    /// Whose a list is.
    fn rank_of(&self, list: usize) -> usize {
        list / self.schedule.lists_per_rank
    }

    /// Whose chunk of which buffer a memory operand is; a peer's only once it has said where that
    /// lies.
    fn locate(
        &self,
        (rank, step): At,
        operand: Operand,
    ) -> Result<(usize, Buffer, usize), Violation> {
        match operand {
            Operand::Input(chunk) => Ok((self.rank_of(rank), Buffer::Input, chunk)),
            Operand::Output(chunk) => Ok((self.rank_of(rank), Buffer::Output, chunk)),
            Operand::Window { peer, buffer, chunk } if self.ranks[rank].tokens.contains(&peer) => {
                Ok((peer, buffer, chunk))
            }
            Operand::Window { peer, .. } => Err(Violation::Closed { rank, step, operand, peer }),
            // Scratch, slots and tokens are handled before; the structure has been checked.
            _ => Err(Violation::Undefined { rank, step, operand }),
        }
    }

    /// Where a chunk comes to lie when ranks are turned.
    fn turned(
        &self,
        (owner, buffer, chunk): (usize, Buffer, usize),
        by: Distance,
    ) -> (usize, Buffer, usize) {
        (self.symmetry.rank(owner, by), buffer, self.symmetry.chunk(buffer, chunk, by))
    }

    /// The destinations but for a first one that is the source of a copy: the machine leaves that
    /// out, so peers may read there.
    pub(super) fn without_itself<'b>(
        &self,
        at: At,
        sources: &[Source],
        destinations: &'b [Operand],
        finish: bool,
    ) -> &'b [Operand] {
        let (&[Source { operand, raw: false }], [first, rest @ ..]) = (sources, destinations)
        else {
            return destinations;
        };
        let place = self.place(at, operand);
        if !finish && place.is_some() && place == self.place(at, *first) {
            rest
        } else {
            destinations
        }
    }

    /// The memory of an operand, if it is memory.
    fn place(&self, at: At, operand: Operand) -> Option<(usize, Place)> {
        let (owner, buffer, chunk) = self.locate(at, operand).ok()?;
        Some((owner, self.expectation.place(owner, buffer, chunk)))
    }

    fn check_part(&self, at: At, operand: Operand, value: Value) -> Result<(), Violation> {
        let (rank, step) = at;
        let (owner, buffer, chunk) = self.locate(at, operand)?;
        if self.values.part(value) == Some(self.expectation.part(owner, buffer, chunk)) {
            return Ok(());
        }
        Err(Violation::Misplaced { rank, step, operand, value: self.values.text(value) })
    }
}

fn race((rank, step): At, operand: Operand, other: Conflict) -> Violation {
    Violation::Race { rank, step, operand, other }
}
