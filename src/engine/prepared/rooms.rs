//! Which connections the parts of a group use.

use super::plans::Room;
use crate::config::Config;
use crate::error::Error;
use oxccl_plans::collective::Kind;

/// Each channel of a part with one list a rank has the connections of that number. A custom
/// schedule of several lists has them use each other's, so what else is in the group keeps off.
#[derive(Debug)]
pub(super) struct Rooms {
    /// The kind whose schedule has several lists, and their connections, where there are others.
    lists: Option<(Kind, Room)>,
    others: Room,
}

impl Rooms {
    /// Those of a group with collectives of these kinds. Equal on all ranks.
    ///
    /// # Errors
    /// [`Error::NoAlgorithm`]: too few channels.
    pub(super) fn of(
        config: &Config,
        kinds: impl Iterator<Item = Kind> + Clone,
    ) -> Result<Rooms, Error> {
        let alone = Rooms { lists: None, others: 0..config.max_channels };
        let custom = config.schedule.as_ref().filter(|custom| custom.schedule().lists_per_rank > 1);
        let Some(custom) = custom else { return Ok(alone) };
        let kind = custom.schedule().collective.kind;
        let is_mixed = kinds.clone().any(|one| one == kind) && kinds.clone().any(|one| one != kind);
        if !is_mixed {
            return Ok(alone);
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
        Ok(Rooms { lists: Some((kind, first..config.max_channels)), others: 0..first })
    }

    /// Those of parts of a kind.
    pub(super) fn of_kind(&self, kind: Kind) -> &Room {
        match &self.lists {
            Some((of, room)) if *of == kind => room,
            _ => &self.others,
        }
    }
}
