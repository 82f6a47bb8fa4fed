//! Writes programs as the machine takes them, for tools that read them (`tools/gpu-model`).
//!
//! ```text
//! programs FOLDER KIND/ALGORITHM/ENCODING/RANKS/BYTES/CHANNELS[/BUCKETS][@RANK] ...
//! ```
//!
//! Each becomes a file of the folder, named like its argument with dashes: the program of RANK, or
//! of rank 0, for a sum of f32, lowered from the schedule that the verifier has accepted. Roots are
//! rank 0. Where it is one that has a hot kernel, a file `NAME.hot` has that kernel's name and the
//! numbers of `oxccl_format::Extents`. `format.h` beside them says how programs are laid out.
//!
//! BYTES are those of an all-reduce's buffer, of a rank's part elsewhere. With BUCKETS it is a
//! group of so many, of one length, and BYTES are those of all together.

use oxccl_format::{DataType, Extents, Fold, Scale};
use oxccl_plans::algorithms::{Encoding, find};
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::hot::{self, Work};
use oxccl_plans::lower::{Lowering, Program, lower};
use oxccl_plans::schedule::{Layout, MAX_CHANNELS, SLOTS};
use oxccl_plans::topology::Placement;
use oxccl_plans::verify::verify;
use std::error::Error;
use std::path::Path;

/// Payload of a slot, and of one with flags: the runtime's defaults on one node.
const SLOT_BYTES: usize = 64 << 10;
const LL_SLOT_BYTES: usize = 4 << 10;

/// A hot kernel's name, and how its buffers are divided.
type Hot = (&'static str, Extents);

fn program(name: &str) -> Result<(Program, Option<Hot>), Box<dyn Error>> {
    let (call, rank) = name.split_once('@').unwrap_or((name, "0"));
    let words: Vec<&str> = call.split('/').collect();
    let (words, buckets) = match words.as_slice() {
        [words @ .., buckets] if words.len() == 6 => (words, Some(buckets.parse::<usize>()?)),
        words => (words, None),
    };
    let &[kind, algorithm, encoding, ranks, bytes, channels] = words else {
        return Err(
            "KIND/ALGORITHM/ENCODING/RANKS/BYTES/CHANNELS[/BUCKETS][@RANK] is expected".into()
        );
    };
    let (kind, ranks): (Kind, usize) = (kind.parse()?, ranks.parse()?);
    let rank: usize = rank.parse()?;
    if rank >= ranks {
        return Err(format!("there is no rank {rank} of {ranks}").into());
    }
    let (algorithm, encoding): (_, Encoding) = (algorithm.parse()?, encoding.parse()?);
    let entry = find(kind, algorithm, encoding).ok_or("it is not in the catalogue")?;
    let placement = Placement::one_node(ranks);
    let schedule = entry.schedule(Collective::new(kind, ranks), placement, Order::Any, SLOTS)?;
    let verified = verify(schedule, Order::Any, entry.in_place)?;
    let (data_type, schedule) = (DataType::F32, verified.schedule());
    let bytes = bytes.parse::<usize>()?;
    let (count, align) = (bytes / data_type.len_bytes(), 64 / data_type.len_bytes());
    let divided = if buckets.is_some() { Layout::of_virtual } else { Layout::even };
    let layout = divided(&schedule.collective, schedule.input, schedule.output, count, align)?;
    let lowering = Lowering {
        data_type,
        fold: Fold::Sum,
        scale: Scale::None,
        channels: channels.parse()?,
        first_connections: 0,
        most_channels: MAX_CHANNELS,
        tile_bytes: match encoding {
            Encoding::Ll | Encoding::Ll128 => LL_SLOT_BYTES,
            _ => SLOT_BYTES,
        },
        stream: false,
        cma: false,
        virtual_bytes: buckets.map(|_| bytes),
    };
    let program = lower(&verified, rank, &layout, &lowering)?;
    let work = Work {
        data_type,
        fold: Fold::Sum,
        scale: Scale::None,
        channels: program.channels(),
        rounds: program.rounds(),
        buckets,
    };
    let hot = hot::kernel(schedule, rank, &layout, &work);
    Ok((program, hot))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, names @ ..] = arguments.as_slice() else {
        return Err(
            "usage: programs FOLDER KIND/ALGORITHM/ENCODING/RANKS/BYTES/CHANNELS[/BUCKETS][@RANK] ..."
                .into(),
        );
    };
    let folder = Path::new(folder);
    std::fs::write(folder.join("format.h"), oxccl_format::header())?;
    for name in names {
        let (program, hot) = program(name).map_err(|error| format!("{name}: {error}"))?;
        let bytes: Vec<u8> = program.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        let file = name.replace('/', "-");
        if let Some((kernel, extents)) = hot {
            let Extents { total_bytes, chunk_bytes, part_bytes, shorter_part_bytes } = extents;
            let text =
                format!("{kernel} {total_bytes} {chunk_bytes} {part_bytes} {shorter_part_bytes}\n");
            std::fs::write(folder.join(format!("{file}.hot")), text)?;
        }
        std::fs::write(folder.join(file), bytes)?;
    }
    Ok(())
}
