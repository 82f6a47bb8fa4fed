//! What is compared.

use oxccl::{Config, Kind};
use oxccl_command::shared::{Case, Failure, Target};

use crate::args::Options;
use crate::group::Group;

/// Tasks, one after the other.
pub(crate) enum Work {
    /// Each collective at each size.
    Calls { cases: Vec<Case>, sizes: Vec<usize> },
    /// Buckets, in every form.
    Group(Group),
}

impl Work {
    /// What the options ask for: a group, or of all collectives those that both know.
    pub(crate) fn of(options: &Options, ranks: usize, config: &Config) -> Result<Work, Failure> {
        if options.target == Target::Group {
            return Ok(Work::Group(Group::of(&options.group, ranks)?));
        }
        let is_known = |case: &Case| !matches!(case.kind, Kind::SendRecv | Kind::Barrier);
        let cases = options.sweep.cases(options.target, ranks, config)?;
        let (known, unknown): (Vec<_>, Vec<_>) = cases.into_iter().partition(is_known);
        match unknown.first() {
            Some(case) if known.is_empty() => {
                let text = format!("{} is not compared: name another collective", case.kind);
                Err(Failure::Usage(text))
            }
            _ => Ok(Work::Calls { cases: known, sizes: options.sweep.sizes()? }),
        }
    }

    /// The longest buffer that is needed.
    pub(crate) fn largest(&self, ranks: usize) -> usize {
        match self {
            Work::Group(group) => group.len_bytes(ranks),
            Work::Calls { cases, sizes } => {
                let lens = cases.iter().flat_map(|case| {
                    sizes.iter().map(|bytes| case.shape(ranks, *bytes).bytes(case.data_type))
                });
                lens.max().unwrap_or(0)
            }
        }
    }
}
