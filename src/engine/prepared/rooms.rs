//! Which channels the parts of a group use, and their connections.

use super::plans::Room;
use crate::config::Config;
use crate::error::Error;
use crate::target::Device;
use oxccl_plans::collective::Kind;

/// Each channel of a part with one list a rank has the connections of that number.
///
/// On a GPU two halves of the channels take parts by turns: what one waits for, where a part begins
/// and ends, costs nothing while the other moves data. A part as long as all others together has
/// all channels, as all parts have on a host.
///
/// A custom schedule of several lists has them use each other's connections, so what else is in the
/// group keeps off.
#[derive(Debug)]
pub(super) struct Rooms {
    /// The kind whose schedule has several lists, and their connections, where there are others.
    lists: Option<(Kind, Room)>,
    others: Room,
    /// The bytes of each half so far, where there are halves.
    halves: Option<[usize; 2]>,
}

impl Rooms {
    /// Those of a group with collectives of these kinds and with parts of so many bytes. Equal on
    /// all ranks.
    ///
    /// # Errors
    /// [`Error::NoAlgorithm`]: too few channels.
    pub(super) fn of(
        config: &Config,
        kinds: impl Iterator<Item = Kind> + Clone,
        parts: impl Iterator<Item = usize> + Clone,
    ) -> Result<Rooms, Error> {
        let channels = config.advanced.group_channels.unwrap_or(config.max_channels);
        let (total, longest) = (parts.clone().sum::<usize>(), parts.max().unwrap_or(0));
        let halves = config.device != Device::Host && channels > 1 && longest <= total / 2;
        let halves = halves.then_some([0, 0]);
        let alone = Rooms { lists: None, others: 0..channels, halves };
        let custom = config.schedule.as_ref().filter(|custom| custom.schedule().lists_per_rank > 1);
        let Some(custom) = custom else { return Ok(alone) };
        let kind = custom.schedule().collective.kind;
        let is_mixed = kinds.clone().any(|one| one == kind) && kinds.clone().any(|one| one != kind);
        if !is_mixed {
            let halves = alone.halves.filter(|_| !kinds.clone().any(|one| one == kind));
            return Ok(Rooms { halves, ..alone });
        }
        // The lists run once, so that channels are left.
        let needed = custom.needed_channels();
        if needed >= config.max_channels {
            let (order, name) = (config.order, custom.name());
            let detail = format!(
                "the schedule {name} takes {needed} channels in a group, and calls of other kinds \
                 one more: set OXCCL_MAX_CHANNELS={}",
                needed + 1
            );
            return Err(Error::NoAlgorithm { kind, order, detail });
        }
        let first = config.max_channels - needed;
        let others = 0..first.min(channels);
        Ok(Rooms { lists: Some((kind, first..config.max_channels)), others, halves: None })
    }

    /// Those of the next part, which is of a kind, has so many bytes, and would use so many
    /// channels.
    pub(super) fn of_part(&mut self, kind: Kind, len_bytes: usize, wanted: usize) -> Room {
        if let Some((_, room)) = self.lists.as_ref().filter(|(of, _)| *of == kind) {
            return room.clone();
        }
        let Some(halves) = &mut self.halves else { return self.others.clone() };
        let which = usize::from(halves[1] < halves[0]);
        halves[which] += len_bytes;
        let width = wanted.min(self.others.len() / 2);
        which * width..(which + 1) * width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(device: Device, parts: &[usize], wanted: usize) -> Vec<Room> {
        let config = Config { device, max_channels: 16, ..Config::default() };
        let kinds = std::iter::once(Kind::AllReduce);
        let mut rooms = Rooms::of(&config, kinds, parts.iter().copied()).unwrap();
        parts.iter().map(|len| rooms.of_part(Kind::AllReduce, *len, wanted)).collect()
    }

    #[test]
    fn parts_on_a_gpu_share_its_channels_by_their_bytes() {
        assert_eq!(rooms(Device::Host, &[4, 4], 16), [0..16, 0..16]);
        assert_eq!(rooms(Device::Cuda(None), &[4, 1], 16), [0..16, 0..16]);
        assert_eq!(rooms(Device::Cuda(None), &[8, 4, 2], 16), [0..16, 0..16, 0..16]);
        assert_eq!(rooms(Device::Cuda(None), &[4, 4], 16), [0..8, 8..16]);
        assert_eq!(rooms(Device::Cuda(None), &[4, 3, 1, 4], 6), [0..6, 6..12, 6..12, 0..6]);
    }
}
