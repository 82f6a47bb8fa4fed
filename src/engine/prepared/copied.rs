//! Calls that a GPU's copy engines carry out, where [`zero_sm`](crate::Advanced::zero_sm) is set.

use super::chain::Source;
use super::launch::{Block, Identity, Parts, Prepared};
use super::make::{Maker, Tables};
use super::plans::{Whose, digest};
use crate::call::{CheckedCall, Counts, Record, What};
use crate::config::Config;
use crate::error::Error;
use oxccl_plans::algorithms::Algorithm;
use oxccl_plans::collective::Kind;

/// By which algorithm copy engines carry a call out; none if they do not. All ranks say the same.
pub(in crate::engine) fn algorithm(call: &CheckedCall, config: &Config) -> Option<Algorithm> {
    let is_free = config.pin.algorithm.is_none()
        && config.pin.encoding.is_none()
        && config.schedule.is_none()
        && call.options.algorithm().is_none()
        && call.options.encoding().is_none();
    // Who has no input knows of none that peers read.
    let all_have_some = match call.counts.as_deref() {
        None => call.count > 0,
        Some(Counts::PerRank(counts)) => counts.iter().all(|count| *count > 0),
        Some(Counts::Matrix(rows)) => rows.iter().all(|row| row.iter().any(|count| *count > 0)),
        Some(Counts::Own { .. }) => false,
    };
    let is_one = config.advanced.zero_sm && is_free && all_have_some && call.collective.ranks > 1;
    match call.collective.kind {
        _ if !is_one => None,
        Kind::AllGather | Kind::Scatter => Some(Algorithm::Direct),
        Kind::AllToAll if !call.in_place => Some(Algorithm::Pairwise),
        Kind::Broadcast | Kind::Gather => Some(Algorithm::DirectPull),
        _ => None,
    }
}

impl Maker<'_> {
    /// One call by itself, by copy engines.
    pub(super) fn copied(
        &mut self,
        call: &CheckedCall,
        identity: Identity,
    ) -> Result<Prepared, Error> {
        let signature = identity.signatures[0];
        let Some(plan) = self.plans.plan_of_copies(self.config, call) else {
            unreachable!("it has been looked at")
        };
        crate::log::planned(self.ranks.rank, call, &plan, "a call");
        let steps = self.plans.copies(self.config, self.ranks.rank, call, &plan)?;
        let digest = digest(&signature, &plan);
        let code = self.backend.load_copies(steps);
        let mut tables = Tables::default();
        let source = Source { call: 0, input_at: Some(0), output_at: Some(0) };
        tables.push(source, 0, signature.len_bytes());
        let launch = self.blank_block();
        let block = Block::of_collective(code, (launch, digest), false, (0, 1), Whose::Own);
        tables.blocks.push(block);
        let parts = Parts { collectives: vec![0], messages: Vec::new(), records: None };
        self.finish(identity, (Record::new(What::Call(signature)), digest), tables, parts)
    }
}
