//! A group's messages as launch blocks: one a phase, and one that awaits receipts.

use super::chain::Source;
use super::launch::Block;
use super::make::{Maker, Tables};
use super::messages::{self, Message, Phase, Stretch, Tiles};
use crate::call::Mix;
use crate::engine::backend::Code;
use crate::error::Error;
use oxccl_kernels::format as f;
use oxccl_plans::algorithms::{Pattern, exchange, receipts};
use oxccl_plans::collective::{Kind, Order};
use oxccl_plans::lower::{Lowering, Program, lower_shares, part_bytes};
use oxccl_plans::schedule::{Extent, Lane, Layout, RankLayout};
use oxccl_plans::verify::{Verified, Violation, verify_exchange};

/// The signature of an exchange; what its ranks must agree on is in each pair's own.
const EXCHANGE: u32 = 0x6578_6368;

impl Maker<'_> {
    /// Appends the blocks of all messages.
    pub(super) fn exchange_blocks(
        &mut self,
        messages: &[Message],
        tables: &mut Tables,
    ) -> Result<(), Error> {
        if messages.is_empty() {
            return Ok(());
        }
        let (limits, slot_bytes) = (self.config.limits(), self.slot_bytes());
        let tiles = Tiles {
            slot_bytes,
            channels: limits.message_channels,
            ll_bytes: limits.ll_slot_bytes.min(slot_bytes),
        };
        let links = self.links;
        let share = |a, b| links.is_none_or(|links| links.share(a, b));
        let stretches = messages::stretches(messages, tiles, share)
            .map_err(Error::too_long("group", "messages"))?;
        let hasher = || Box::new(Mix::default()) as Box<dyn std::hash::Hasher>;
        let signatures =
            messages::signatures(&stretches, messages, self.ranks.control.ranks(), hasher);
        let first = tables.sources.len();
        self.push_messages(messages, &stretches, tables);
        let count = tables.sources.len() - first;
        let mut launch = self.blank_block();
        launch.signature = EXCHANGE;
        let block = |code| Block {
            code,
            reduces: false,
            launch,
            digest: None,
            first,
            count,
            is_virtual: true,
            awaits: false,
            completes: false,
        };
        let proven = |found: Result<Verified, Violation>| {
            found.map_err(|violation| Error::NoAlgorithm {
                kind: Kind::SendRecv,
                order: Order::Any,
                detail: violation.to_string(),
            })
        };
        let slots = limits.slots;
        let mut channels = 0;
        for phase in messages::phases(&stretches, tiles) {
            let pattern = self.pattern(&stretches, &phase.active);
            let wanted = |sender, receiver| pattern.lane(sender, receiver).is_some();
            let verified = proven(verify_exchange(exchange(&pattern, slots), wanted))?;
            let layouts = self.layouts(&stretches, &phase, slot_bytes);
            let program = self.exchange_program(&verified, &layouts, &signatures)?;
            debug_assert_eq!(program.rounds(), phase.rounds as u64);
            let block = block(self.load_exchange(program)?);
            // All messages are awaited before a channel's first round.
            tables.blocks.push(Block { awaits: phase.channels > channels, ..block });
            channels = channels.max(phase.channels);
        }
        for (channels, class) in messages::classes(&stretches) {
            let sent = receipts(&self.pattern(&stretches, &class), slots);
            let verified = proven(verify_exchange(sent, |_, _| false))?;
            let nothing = Phase { first_round: 0, rounds: 0, channels, active: Vec::new() };
            let layouts = self.layouts(&stretches, &nothing, slot_bytes);
            let program = self.exchange_program(&verified, &layouts, &signatures)?;
            tables.blocks.push(block(self.load_exchange(program)?));
        }
        // All are done when all have been received. Most channels run the last block.
        if let Some(last) = tables.blocks.last_mut() {
            last.completes = true;
        }
        Ok(())
    }

    fn load_exchange(&mut self, program: Program) -> Result<Code, Error> {
        self.backend.load(program, (f::DataType::U8, f::Fold::Sum), 0, None)
    }

    fn push_messages(&self, messages: &[Message], stretches: &[Stretch], tables: &mut Tables) {
        for stretch in stretches {
            let mut start = stretch.start;
            for message in stretch.messages.iter().map(|at| &messages[*at]) {
                let (sends, receives) =
                    (message.sender == self.ranks.rank, message.receiver == self.ranks.rank);
                let source = Source {
                    call: message.call,
                    input_at: sends.then_some(message.input_at),
                    output_at: receives.then_some(message.output_at),
                };
                tables.push(source, start, message.len_bytes());
                start += message.len_bytes().next_multiple_of(f::SEGMENT_ALIGN);
            }
        }
    }

    fn pattern(&self, stretches: &[Stretch], active: &[usize]) -> Pattern {
        let mut pattern = Pattern::new(self.ranks.control.ranks());
        for stretch in active.iter().map(|at| &stretches[*at]) {
            let (sender, receiver) = (stretch.sender, stretch.receiver);
            let mapped = self.links.is_none_or(|links| links.share(sender, receiver));
            let lane = if mapped { stretch.lane } else { Lane::Slots };
            pattern.add(sender, receiver, lane);
        }
        pattern
    }

    /// Payload of the slots lane's slots.
    fn slot_bytes(&self) -> usize {
        self.config.limits().plain_slot_bytes(1, self.ranks.control.ranks())
    }

    /// Where each channel's share of each stretch is in the phase. Which that is of a stretch does
    /// not depend on phases, which other ranks have other ones of.
    fn layouts(&self, stretches: &[Stretch], phase: &Phase, slot_bytes: usize) -> Vec<Layout> {
        let of_channel = |channel: usize| {
            let mut layout = RankLayout {
                input: vec![Extent::default(); self.ranks.control.ranks()],
                output: vec![Extent::default(); self.ranks.control.ranks()],
            };
            for stretch in phase.active.iter().map(|at| &stretches[*at]) {
                let part = part_bytes(stretch.len_bytes, phase.channels);
                let place = |round: usize| {
                    let at = channel * part + (round * slot_bytes).min(part);
                    at.min(stretch.len_bytes)
                };
                let from = place(phase.first_round);
                let count = place(phase.first_round + phase.rounds) - from;
                let extent = Extent { offset: stretch.start + from, count };
                if stretch.sender == self.ranks.rank {
                    layout.input[stretch.receiver] = extent;
                }
                if stretch.receiver == self.ranks.rank {
                    layout.output[stretch.sender] = extent;
                }
            }
            Layout::of_rank(layout)
        };
        (0..phase.channels).map(of_channel).collect()
    }

    fn exchange_program(
        &self,
        verified: &Verified,
        layouts: &[Layout],
        signatures: &[u32],
    ) -> Result<Program, Error> {
        let channels = layouts.len();
        let lowering = Lowering {
            data_type: f::DataType::U8,
            fold: f::Fold::Sum,
            scale: f::Scale::None,
            channels,
            first_connections: self.config.max_channels,
            most_channels: channels,
            tile_bytes: self.slot_bytes(),
            stream: false,
            cma: false,
            virtual_bytes: None,
        };
        let no_algorithm = |detail: String| {
            let (kind, order) = (Kind::SendRecv, Order::Any);
            Error::NoAlgorithm { kind, order, detail }
        };
        if let Some(links) = self.links {
            links.check(verified.schedule()).map_err(no_algorithm)?;
            links.open(verified.schedule(), &lowering)?;
        }
        lower_shares(verified, self.ranks.rank, layouts, &lowering, signatures)
            .map_err(|refused| no_algorithm(refused.to_string()))
    }
}
