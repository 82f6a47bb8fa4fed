//! The steps are those of the lowered program.

use super::*;
use crate::lower::{LowerError, Lowering, Program, lower};
use crate::verify::verify;
use oxccl_format as f;

#[test]
fn lengths_channels_and_rounds_are_those_of_the_lowered_program() {
    for (ranks, count, channels, tile) in
        [(3, 1000, 1, 64), (4, 100_000, 3, 4096), (5, 77, 2, 128), (2, 40_000, 4, 1024)]
    {
        let kinds = [Kind::AllReduce, Kind::AllToAll];
        for entry in catalogue().filter(|entry| kinds.contains(&entry.kind)) {
            let (collective, placement) =
                (Collective::new(entry.kind, ranks), Placement::uniform(2));
            let Ok(schedule) = entry.schedule(collective, placement, Order::Any, SLOTS) else {
                continue;
            };
            let layout =
                Layout::even(&collective, schedule.input, schedule.output, count, 16).unwrap();
            let verified = verify(schedule.clone(), Order::Any, entry.in_place).unwrap();
            let lowering = Lowering {
                data_type: f::DataType::F32,
                fold: f::Fold::Sum,
                scale: f::Scale::None,
                channels,
                first_connections: 0,
                most_channels: channels,
                tile_bytes: tile,
                stream: false,
                cma: false,
                virtual_bytes: None,
            };
            let options = Options {
                channels,
                tile_bytes: tile,
                trace: true,
                bundles: Some(64),
                ..Options::default()
            };
            let network = Network::new(&preset("dgx-h100").unwrap(), ranks, None).unwrap();
            let subject = Subject::schedule(&schedule).unwrap();
            let prediction = match simulate(&subject, &layout, &network, &options) {
                Ok(prediction) => prediction,
                Err(SimulationError::SlotTooSmall(too_small)) => {
                    let refused = lower(&verified, 0, &layout, &lowering).unwrap_err();
                    assert_eq!(refused, LowerError::SlotTooSmall(too_small), "{entry:?}");
                    continue;
                }
                Err(SimulationError::FabricDoesNotReduce { .. }) => {
                    let refused = lower(&verified, 0, &layout, &lowering).unwrap_err();
                    assert_eq!(refused, LowerError::InFabric, "{entry:?}");
                    continue;
                }
                Err(other) => panic!("{entry:?}: {other}"),
            };
            let trace = prediction.trace.unwrap();
            for rank in 0..ranks {
                let program = lower(&verified, rank, &layout, &lowering).unwrap();
                assert_eq!(program.rounds(), prediction.rounds, "{entry:?}");
                compare(&program, &trace, rank);
            }
        }
    }
}

/// Every reduce-copy of a lowered program is in the trace, as long and in the same order.
fn compare(program: &Program, trace: &Trace, rank: usize) {
    let base = program.header().cast::<u8>();
    // SAFETY: the lowering has just written these tables at these offsets, aligned and within the
    // program.
    let (header, channels, instructions) = unsafe {
        let header = &*program.header();
        let table = |offset: u32| base.add(offset as usize);
        (
            header,
            std::slice::from_raw_parts(
                table(header.channels_offset).cast::<f::ChannelEntry>(),
                header.channels as usize,
            ),
            table(header.instructions_offset).cast::<f::Instruction>(),
        )
    };
    assert_eq!(header.channels as usize, program.channels());
    for (channel, entry) in channels.iter().enumerate() {
        let mut expected = Vec::new();
        for round in 0..entry.rounds {
            for at in 0..entry.instructions {
                // SAFETY: within the channel's instructions.
                let instruction =
                    unsafe { *instructions.add((entry.first_instruction + at) as usize) };
                let moves = instruction.opcode == f::Opcode::ReduceCopy as u8;
                let len_bytes = if moves { instruction.len_bytes } else { 0 };
                let left = len_bytes.saturating_sub(round * entry.tile_bytes);
                expected.push((round, instruction.step as usize, left.min(entry.tile_bytes)));
            }
        }
        let events = trace.events.iter().filter(|e| e.rank == rank && e.channel == channel);
        let mut found: Vec<_> = events.map(|e| (e.round, e.step, e.bytes)).collect();
        // Channels without data are left out.
        if found.is_empty() {
            assert!(expected.iter().all(|(_, _, bytes)| *bytes <= 16), "{expected:?}");
            continue;
        }
        found.sort_unstable();
        assert_eq!(found, expected, "rank {rank} channel {channel}");
    }
}
