//! How operands are read and written in the abstract execution.

use super::clock::{Event, Stamp};
use super::expect::Place;
use super::machine::{At, Machine, initial};
use super::memory::Conflict;
use super::route::{Route, Segment, Sizes, Traffic};
use super::value::Value;
use super::violation::Violation;
use crate::schedule::{Buffer, Operand, Source};

impl Machine<'_> {
    pub(super) fn read(
        &mut self,
        (rank, step): At,
        operand: Operand,
        brought: &mut Vec<Stamp>,
    ) -> Result<Value, Violation> {
        let undefined = Violation::Undefined { rank, step, operand };
        let value = match operand {
            Operand::Tokens => return Ok(self.values.tokens(rank)),
            Operand::Slot { .. } => return self.receive((rank, step), operand, brought),
            _ => {
                let (owner, buffer, chunk) = self.locate((rank, step), operand)?;
                let place = self.expectation.place(owner, buffer, chunk);
                let clock = &self.ranks[rank].clock;
                let (values, expectation) = (&mut self.values, &self.expectation);
                let value = self.memories[owner]
                    .read(place, || initial(values, expectation, owner, place), clock, clock.now())
                    .map_err(|other| race((rank, step), operand, other))?;
                value.ok_or(undefined)?
            }
        };
        self.check_part((rank, step), operand, value)?;
        Ok(value)
    }

    fn receive(
        &mut self,
        (rank, step): At,
        operand: Operand,
        brought: &mut Vec<Stamp>,
    ) -> Result<Value, Violation> {
        let arrival = Violation::Arrival { rank, step, operand };
        let Operand::Slot { link, message, segment } = operand else { return Err(arrival) };
        let route = Route { from: link.peer, to: rank, lane: link.lane };
        let clock = &self.ranks[rank].clock;
        let traffic = self.routes.entry(route).or_insert_with(Traffic::new);
        match traffic.segment(message, segment) {
            Some(slot) if link.lane.has_flags() || clock.knows(slot.written) => {
                brought.extend(slot.stamp.take());
                slot.read = Some(clock.now());
                let value = slot.value;
                traffic.received += usize::from(is_last(self.sizes, route, message, segment));
                Ok(value)
            }
            _ => Err(arrival),
        }
    }

    pub(super) fn write(
        &mut self,
        at: At,
        operand: Operand,
        value: Value,
        stamp: Option<&Stamp>,
    ) -> Result<(), Violation> {
        let (rank, step) = at;
        match operand {
            Operand::PeerSlot { .. } => self.send(at, operand, value, stamp),
            Operand::PeerTokens(peer) => {
                if value != self.values.tokens(peer) {
                    let value = self.values.text(value.id);
                    return Err(Violation::Misplaced { rank, step, operand, value });
                }
                self.ranks[rank].tokens.insert(peer);
                Ok(())
            }
            _ => {
                self.check_part(at, operand, value)?;
                let (owner, buffer, chunk) = self.locate(at, operand)?;
                let place = self.expectation.place(owner, buffer, chunk);
                let clock = &self.ranks[rank].clock;
                self.memories[owner]
                    .write(place, value, clock, clock.now())
                    .map_err(|other| race(at, operand, other))
            }
        }
    }

    fn send(
        &mut self,
        (rank, step): At,
        operand: Operand,
        value: Value,
        stamp: Option<&Stamp>,
    ) -> Result<(), Violation> {
        let Operand::PeerSlot { link, message, segment } = operand else { return Ok(()) };
        let route = Route { from: rank, to: link.peer, lane: link.lane };
        let clock = &self.ranks[rank].clock;
        let traffic = self.routes.entry(route).or_insert_with(Traffic::new);
        // What the slot held before has been consumed if the head said so, or if some later event of the receiver is known.
        let credit = i64::from(message) + 1 - i64::from(self.schedule.slots.on(link.lane));
        let consumed = match usize::try_from(credit - 1) {
            Ok(previous) => traffic.last_segment(previous).and_then(|segment| segment.read),
            Err(_) => Some(Event::start(link.peer)),
        };
        let known = consumed.is_some_and(|event| clock.knows(event));
        if segment == 0 && traffic.head.awaited < credit && !known {
            return Err(Violation::Credit { rank, step, operand, reader: link.peer, credit });
        }
        let stamp = stamp.filter(|_| link.lane.has_flags()).cloned();
        traffic.push(segment, Segment { value, written: clock.now(), stamp, read: None });
        traffic.sent += usize::from(is_last(self.sizes, route, message, segment));
        if link.lane.has_flags() {
            self.wake(link.peer, route);
        }
        Ok(())
    }

    /// Whose chunk of which buffer a memory operand is; a peer's only once it has said where that lies.
    fn locate(
        &self,
        (rank, step): At,
        operand: Operand,
    ) -> Result<(usize, Buffer, usize), Violation> {
        match operand {
            Operand::Input(chunk) => Ok((rank, Buffer::Input, chunk)),
            Operand::Output(chunk) => Ok((rank, Buffer::Output, chunk)),
            Operand::Window { peer, buffer, chunk } if self.ranks[rank].tokens.contains(&peer) => {
                Ok((peer, buffer, chunk))
            }
            Operand::Window { peer, .. } => Err(Violation::Closed { rank, step, operand, peer }),
            // Slots and tokens are handled before; the structure has been checked.
            _ => Err(Violation::Undefined { rank, step, operand }),
        }
    }

    /// The destinations but for a first one that is the source of a copy: the machine leaves that out, so peers may read there.
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
        Err(Violation::Misplaced { rank, step, operand, value: self.values.text(value.id) })
    }
}

/// Whether a segment is its message's last.
fn is_last(sizes: &Sizes, route: Route, message: u32, segment: u32) -> bool {
    let size = if sizes.is_empty() { None } else { sizes.get(&(route, message)) };
    segment + 1 == size.copied().unwrap_or(1)
}

fn race((rank, step): At, operand: Operand, other: Conflict) -> Violation {
    Violation::Race { rank, step, operand, other }
}
