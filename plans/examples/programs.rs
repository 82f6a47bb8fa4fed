//! Writes programs as the machine takes them, for tools that read them (`tools/gpu-model`).
//!
//! ```text
//! programs FOLDER KIND/ALGORITHM/ENCODING/RANKS/BYTES/CHANNELS ...
//! ```
//!
//! Each becomes a file of the folder, named like its argument with dashes: the program of rank 0
//! for a sum of f32, lowered from the schedule that the verifier has accepted. `format.h` beside
//! them says how they are laid out. BYTES are those of an all-reduce's buffer, of a rank's part
//! elsewhere.

use oxccl_format::{DataType, Fold, Scale};
use oxccl_plans::algorithms::{Encoding, find};
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::lower::{Lowering, Program, lower};
use oxccl_plans::schedule::{Layout, MAX_CHANNELS, SLOTS};
use oxccl_plans::topology::Placement;
use oxccl_plans::verify::verify;
use std::error::Error;
use std::path::Path;

/// Payload of a slot, and of one with flags: the runtime's defaults on one node.
const SLOT_BYTES: usize = 64 << 10;
const LL_SLOT_BYTES: usize = 4 << 10;

fn program(name: &str) -> Result<Program, Box<dyn Error>> {
    let words: Vec<&str> = name.split('/').collect();
    let &[kind, algorithm, encoding, ranks, bytes, channels] = words.as_slice() else {
        return Err("KIND/ALGORITHM/ENCODING/RANKS/BYTES/CHANNELS is expected".into());
    };
    let (kind, ranks): (Kind, usize) = (kind.parse()?, ranks.parse()?);
    let (algorithm, encoding): (_, Encoding) = (algorithm.parse()?, encoding.parse()?);
    let entry = find(kind, algorithm, encoding).ok_or("it is not in the catalogue")?;
    let placement = Placement::one_node(ranks);
    let schedule = entry.schedule(Collective::new(kind, ranks), placement, Order::Any, SLOTS)?;
    let verified = verify(schedule, Order::Any, true)?;
    let (data_type, schedule) = (DataType::F32, verified.schedule());
    let layout = Layout::even(
        &schedule.collective,
        schedule.input,
        schedule.output,
        bytes.parse::<usize>()? / data_type.len_bytes(),
        64 / data_type.len_bytes(),
    )?;
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
        virtual_bytes: None,
    };
    Ok(lower(&verified, 0, &layout, &lowering)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, names @ ..] = arguments.as_slice() else {
        return Err(
            "usage: programs FOLDER KIND/ALGORITHM/ENCODING/RANKS/BYTES/CHANNELS ...".into()
        );
    };
    let folder = Path::new(folder);
    std::fs::write(folder.join("format.h"), oxccl_format::header())?;
    for name in names {
        let program = program(name).map_err(|error| format!("{name}: {error}"))?;
        let bytes: Vec<u8> = program.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        std::fs::write(folder.join(name.replace('/', "-")), bytes)?;
    }
    Ok(())
}
