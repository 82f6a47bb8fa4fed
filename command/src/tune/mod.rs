//! `oxccl tune`: measures what the catalogue's entries take on this machine, and writes the table
//! that the tuner picks by.

mod points;
mod sweep;
mod verify;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use oxccl::plans::algorithms::{Algorithm, Encoding};
use oxccl::plans::tune::{Curve, Links, Question, SystemReads, Table, TableError};
use oxccl::{Collective, Config, Device, Kind, Order, Pin};
use serde::Serialize;

use crate::bench::{self, Case, Comms, DATA_TYPE, OP, Turns};
use crate::date;
use crate::failure::Failure;
use crate::machine::{self, Probe};
use crate::names;
use crate::options::{self, Size};
use crate::speak::{note, say};
use points::{SMALLEST_BYTES, sizes};
use sweep::Sweep;

/// Measures every algorithm on this machine and writes a table, by which communicators pick.
///
/// Ranks are processes of this machine, or those of a launcher. Each collective is timed with
/// buffers of comm.alloc and with private ones, out of place, with the entries of the catalogue by
/// turns; an entry that has become far slower than the best one is given up. Rows appear as they
/// are measured. Set OXCCL_TUNING to the file that is written.
#[derive(Args)]
pub(crate) struct TuneOptions {
    /// How many ranks to start [default: 2].
    #[arg(long, short = 'g', value_parser = options::positive)]
    ranks: Option<usize>,
    /// So many consecutive ranks count as a node, for hierarchical algorithms [default: all].
    #[arg(long, value_parser = options::positive)]
    per_node: Option<usize>,
    /// The collectives [default: all but barrier, which has one algorithm].
    #[arg(long, value_delimiter = ',', value_parser = names::kind)]
    ops: Vec<Kind>,
    /// The largest size, with K, M or G [default: 64M, with --quick 1M].
    #[arg(long, short = 'e')]
    maxbytes: Option<Size>,
    /// Measures less, in a few seconds.
    #[arg(long)]
    quick: bool,
    /// What the ranks compute on: host or cuda [default: OXCCL_DEVICE].
    #[arg(long, value_parser = options::device)]
    device: Option<Device>,
    /// Kernels are those of this file instead of those built in, for tests.
    #[arg(long, value_name = "FILE", hide = true)]
    image: Option<PathBuf>,
    /// Where the table goes.
    #[arg(long, default_value = "oxccl-tuning.toml")]
    output: PathBuf,
    /// Measures nothing new, but how good the picks of this table are at sizes between its points.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ranks", "per_node", "output"])]
    verify: Option<PathBuf>,
    /// Prints one JSON object a size that is measured.
    #[arg(long)]
    json: bool,
}

/// What is measured, and how.
struct Plan {
    kinds: Vec<Kind>,
    /// In ascending order.
    sizes: Vec<usize>,
    turns: Turns,
    config: Config,
    /// Whether the system reads private memory for other ranks.
    cma: bool,
    json: bool,
}

pub(crate) fn main(options: &TuneOptions) -> Result<(), Failure> {
    let mut plan = options.plan()?;
    match &options.verify {
        Some(file) => {
            let table = read(file)?;
            plan.config.ranks_per_node = Some(table.ranks_per_node);
            let config = plan.config.clone();
            bench::on_ranks(Some(table.ranks), &config, |comms| {
                plan.cma = comms.reads_private_memory();
                verify::verify(comms, &plan, &table)
            })
        }
        None => {
            // Before minutes of measurement, not after them.
            writable(&options.output)?;
            // Before the ranks meet: the others then wait without using a core, and this one is not
            // yet bound to its own.
            let is_first = bench::environment()?.is_some_and(|place| place.rank == 0);
            let probe = is_first.then(Probe::measure);
            let config = plan.config.clone();
            bench::on_ranks(options.ranks, &config, |comms| {
                plan.cma = comms.reads_private_memory();
                let table = measure(comms, &plan, probe)?;
                if comms.rank() == 0 { write(&options.output, &table, plan.json) } else { Ok(()) }
            })
        }
    }
}

impl TuneOptions {
    fn plan(&self) -> Result<Plan, Failure> {
        let mut kinds = self.ops.clone();
        if kinds.is_empty() {
            kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Barrier).collect();
        }
        if kinds.contains(&Kind::Barrier) {
            return Err(Failure::Usage(
                "--ops: barrier has one algorithm, there is nothing to choose".to_owned(),
            ));
        }
        let (step, largest) = (if self.quick { 4 } else { 2 }, self.largest());
        if largest < SMALLEST_BYTES {
            return Err(Failure::Usage(format!("--maxbytes must be at least {SMALLEST_BYTES}")));
        }
        Ok(Plan {
            kinds,
            sizes: sizes(step, largest),
            turns: self.turns(),
            config: self.config()?,
            cma: false,
            json: self.json,
        })
    }

    fn largest(&self) -> usize {
        let usual = if self.quick { 1 << 20 } else { 64 << 20 };
        self.maxbytes.map_or(usual, |size| size.0)
    }

    fn turns(&self) -> Turns {
        match self.quick {
            true => Turns { rounds: 2, wanted: Duration::from_millis(1) },
            false => Turns { rounds: 9, wanted: Duration::from_millis(2) },
        }
    }

    /// The environment's configuration, without a table and without pins: these are what the answer
    /// is for.
    fn config(&self) -> Result<Config, Failure> {
        let mut config = Config::from_lookup(|name| match (self.device, name) {
            (_, "OXCCL_TUNING") => None,
            (Some(device), "OXCCL_DEVICE") => Some(device.to_string().into()),
            _ => std::env::var_os(name),
        })?;
        bench::fit_gpu(&mut config, self.largest(), self.image.as_deref())?;
        config.pin = Pin::default();
        config.order = Order::Any;
        config.ranks_per_node = self.per_node.or(config.ranks_per_node);
        Ok(config)
    }
}

impl Plan {
    /// What the tuner would be asked for a call of this size.
    fn question(&self, kind: Kind, ranks: usize, bytes: usize, windows: bool) -> Question {
        let collective = match kind {
            Kind::SendRecv => Collective::send_recv(ranks, 0, 1),
            kind => Collective::new(kind, ranks),
        };
        let case = Case { kind, data_type: DATA_TYPE, op: OP, root: 0 };
        Question {
            collective,
            total_bytes: case.shape(ranks, bytes).bytes(DATA_TYPE),
            placement: self.config.placement(ranks),
            data_type: DATA_TYPE,
            op: OP,
            order: Order::Any,
            in_place: false,
            windows,
            cma: (self.cma && !windows).then(SystemReads::default),
            nodes: 1,
            ll128: false,
            multicast: None,
            fabric_reduces: false,
            limits: self.config.limits(),
            pin: Pin::default(),
            cache_bytes: self.config.last_level_cache_bytes(),
        }
    }

    /// Says something that is no row.
    fn remark(&self, text: impl Display) {
        remark(self.json, text);
    }

    /// The largest size.
    fn largest(&self) -> usize {
        self.sizes.last().copied().unwrap_or(SMALLEST_BYTES)
    }

    /// The table of these measurements.
    fn table(&self, ranks: usize, curves: Vec<Curve>) -> Table {
        Table {
            machine: machine::cpu_model(),
            device: self.config.device.table_kind(),
            date: date::today(),
            ranks,
            ranks_per_node: self.config.placement(ranks).ranks_per_node(),
            data_type: DATA_TYPE.name().to_owned(),
            op: OP.name().to_owned(),
            links: None,
            curves,
        }
    }

    /// The kinds that so many ranks have.
    fn kinds(&self, ranks: usize) -> impl Iterator<Item = Kind> {
        self.kinds.iter().copied().filter(move |kind| *kind != Kind::SendRecv || ranks > 1)
    }
}

fn measure(comms: &mut Comms, plan: &Plan, probe: Option<Probe>) -> Result<Table, Failure> {
    let ranks = comms.world();
    let mut sweeps = Vec::new();
    for kind in plan.kinds(ranks) {
        for windows in [true, false] {
            sweeps.push(Sweep::run(comms, plan, kind, windows)?);
        }
    }
    if comms.rank() == 0 {
        plan.remark("once more");
    }
    sweeps.iter_mut().try_for_each(|sweep| sweep.repeat(comms))?;
    let curves = sweeps.iter().flat_map(Sweep::curves).collect();
    let links = probe.map(|probe| Links {
        core_to_core_ns: probe.one_way_ns.map(hundredths),
        copy_gbps: hundredths(probe.copy_gbps),
    });
    let table = Table { links, ..plan.table(ranks, curves) };
    Ok(match comms.context() {
        Some(context) => Table { machine: context.device().name()?, ..table },
        None => table,
    })
}

fn read(file: &Path) -> Result<Table, Failure> {
    Table::read(file).map_err(|error: TableError| Failure::Usage(error.to_string()))
}

fn writable(file: &Path) -> Result<(), Failure> {
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    opened.map(drop).map_err(Failure::system(format!("writing {}", file.display())))
}

fn write(file: &Path, table: &Table, json: bool) -> Result<(), Failure> {
    let text = format!("{HEADING}{}", table.to_text());
    std::fs::write(file, text).map_err(Failure::system(format!("writing {}", file.display())))?;
    remark(json, format_args!("wrote {}; to use it: export OXCCL_TUNING={0}", file.display()));
    Ok(())
}

const HEADING: &str = "\
# Written by `oxccl tune`. Communicators pick by it where OXCCL_TUNING names this file, on all ranks.
# points: [bytes of the larger of one rank's input and output, microseconds a call]
# memory: windows (buffers of comm.alloc, which all ranks reach) or private

";

/// Says something that is no row: beside the results where those are data.
fn remark(json: bool, text: impl Display) {
    if json { note(text) } else { say!("\n{text}") }
}

/// More digits are noise.
fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// An entry's name in tables.
fn name(algorithm: Algorithm, encoding: Encoding) -> String {
    format!("{algorithm}/{encoding}")
}

/// What was measured or predicted of an entry, as `--json` prints it.
#[derive(Serialize)]
struct Time {
    algorithm: Algorithm,
    encoding: Encoding,
    time_us: f64,
}

fn memory_name(windows: bool) -> &'static str {
    if windows { "memory of comm.alloc" } else { "private memory" }
}
