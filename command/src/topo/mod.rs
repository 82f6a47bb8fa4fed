//! `oxccl topo`: how the devices of a topology, or of this machine, reach each other.

mod machine;
mod measure;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use oxccl::plans::topology::{
    LinkKind, Matrix, Network, PRESETS, Processor, Relation, Topology, TopologyError, preset,
};
use oxccl::{Config, Device};
use oxccl_transports::cuda::{NVML, nvlinks};
use serde::Serialize;

use crate::failure::Failure;
use crate::{names, options, speak};

/// Prints how the devices of a topology, or of this machine, reach each other.
#[derive(Args)]
pub(crate) struct TopoOptions {
    /// A preset, a file that ends with .toml, a file of NCCL (NCCL_TOPO_DUMP_FILE) that ends with
    /// .xml, or "this" machine. With --measure, what is measured is compared with it.
    #[arg(value_name = "TOPOLOGY", default_value = "this")]
    topology: String,
    /// Lists the presets.
    #[arg(long)]
    list: bool,
    /// Prints the topology as a file's text, to be changed and used with --topology.
    #[arg(long, conflicts_with_all = ["list", "measure"])]
    toml: bool,
    /// Measures latency and bandwidth between every two ranks of this machine: alone, and all pairs
    /// at once. With OXCCL_NODES, ranks of different parts are joined by links: its adapters.
    #[arg(long, conflicts_with = "list")]
    measure: bool,
    /// Ranks to measure with [default: one a core, at most 16; one a GPU].
    #[arg(long, short = 'g', value_parser = options::positive, requires = "measure")]
    ranks: Option<usize>,
    /// What the ranks are on: host or cuda [default: OXCCL_DEVICE].
    #[arg(long, value_parser = options::device, requires = "measure")]
    device: Option<Device>,
    /// Kernels are those of this file instead of those built in, for tests.
    #[arg(long, value_name = "FILE", hide = true)]
    image: Option<PathBuf>,
    /// Prints one JSON object.
    #[arg(long, conflicts_with = "toml")]
    json: bool,
}

/// A topology as `--json` prints it.
#[derive(Serialize)]
struct Described<'a> {
    name: &'a str,
    nodes: usize,
    /// The devices of a node, then its adapters.
    parts: &'a [String],
    /// The processor nearest to each.
    numa: &'a [Option<String>],
    /// How each reaches each, row by row, in the words of the legend.
    relations: Vec<Vec<String>>,
    links: BTreeMap<&'a str, Rates>,
    farthest: Option<Farthest>,
    notes: &'a [String],
}

/// A kind of link, one direction.
#[derive(Serialize)]
struct Rates {
    gbps: f64,
    /// What of it is left for data.
    data_gbps: f64,
    latency_ns: f64,
}

/// The way between the first and the last device.
#[derive(Serialize)]
struct Farthest {
    from: String,
    to: String,
    latency_ns: f64,
    gbps: f64,
    links: Vec<String>,
}

/// What `--list` prints.
#[derive(Serialize)]
struct Presets {
    presets: Vec<Preset>,
}

#[derive(Serialize)]
struct Preset {
    name: &'static str,
    what: &'static str,
}

impl Presets {
    fn all() -> Presets {
        let this = ("this", "this machine, as sysfs and NVML describe it");
        let all = PRESETS.into_iter().chain([this]);
        Presets { presets: all.map(|(name, what)| Preset { name, what }).collect() }
    }
}

pub(crate) fn main(options: &TopoOptions) -> Result<(), Failure> {
    if options.list {
        list(options.json);
        return Ok(());
    }
    if options.measure {
        return measure::main(options);
    }
    let (topology, notes) = load_with_notes(&options.topology)?;
    if options.toml {
        print!("{}", topology.to_text()?);
        return Ok(());
    }
    match options.json {
        true => {
            println!("{}", speak::json(&Described::new(&topology, &topology.matrix(), &notes)?))
        }
        false => print_text(&topology, &notes)?,
    }
    Ok(())
}

fn list(json: bool) {
    let all = Presets::all();
    if json {
        println!("{}", speak::json(&all));
        return;
    }
    all.presets.iter().for_each(|Preset { name, what }| println!("{name:<14} {what}"));
}

impl<'a> Described<'a> {
    fn new(
        topology: &'a Topology,
        matrix: &'a Matrix,
        notes: &'a [String],
    ) -> Result<Described<'a>, Failure> {
        let rates = |kind: &LinkKind| Rates {
            gbps: kind.gbps,
            data_gbps: kind.data_gbps(),
            latency_ns: kind.latency_ns,
        };
        let row = |row: &Vec<Relation>| row.iter().map(ToString::to_string).collect();
        Ok(Described {
            name: &topology.name,
            nodes: topology.nodes,
            parts: &matrix.names,
            numa: &matrix.numa,
            relations: matrix.relations.iter().map(row).collect(),
            links: topology.links.iter().map(|(name, kind)| (name.as_str(), rates(kind))).collect(),
            farthest: farthest(topology)?,
            notes,
        })
    }
}

fn print_text(topology: &Topology, notes: &[String]) -> Result<(), Failure> {
    println!("{}: {} node(s)\n", topology.name, topology.nodes);
    let matrix = topology.matrix();
    print!("{matrix}");
    println!("\n{LEGEND}");
    let kinds: Vec<&str> = topology.links.keys().map(String::as_str).collect();
    let named = |relation: &Relation| matches!(relation, Relation::Linked(_));
    if matrix.relations.iter().flatten().any(named) {
        println!(
            "  other  a link of this kind, directly or through a switch: {}",
            kinds.join(", ")
        );
    }
    println!("\nlinks, one direction, without contention");
    for (name, kind) in &topology.links {
        println!(
            "  {name:<10} {:>8.2} GB/s, {:>6.2} of them for data, {:>6.0} ns",
            kind.gbps,
            kind.data_gbps(),
            kind.latency_ns
        );
    }
    match farthest(topology)? {
        Some(farthest) => println!("\n{farthest}"),
        None => println!("\none device"),
    }
    notes.iter().for_each(|note| println!("note: {note}"));
    Ok(())
}

const LEGEND: &str = "  X      itself
  PIX    one PCIe switch or bridge
  PXB    several PCIe switches, without the processor
  NODE   through the processor that both hang on
  SYS    from processor to processor
  -      nothing joins them";

/// The topology of this name.
///
/// # Errors
/// No such preset, a file that cannot be read or that is wrong.
pub(crate) fn load(name: &str) -> Result<Topology, Failure> {
    Ok(load_with_notes(name)?.0)
}

fn load_with_notes(name: &str) -> Result<(Topology, Vec<String>), Failure> {
    if name == "this" {
        let found = machine::read(Path::new("/sys"), || nvlinks(Path::new(NVML)));
        found.topology.check()?;
        return Ok((found.topology, found.notes));
    }
    let is_of_nccl = name.ends_with(".xml");
    if !name.ends_with(".toml") && !is_of_nccl {
        return Ok((preset(name).map_err(|error| unknown(error, name))?, Vec::new()));
    }
    let text = fs::read_to_string(name).map_err(|error| TopologyError::Text {
        source_name: name.to_owned(),
        detail: format!("cannot be read: {error}"),
    })?;
    match is_of_nccl {
        true => Ok(Topology::parse_nccl(&text, name)?),
        false => Ok((Topology::parse(&text, name)?, Vec::new())),
    }
}

/// Of a preset that there is not, which was probably meant.
fn unknown(error: TopologyError, name: &str) -> Failure {
    let (base, _) = name.rsplit_once(" x ").unwrap_or((name, ""));
    match error {
        TopologyError::NoPreset { .. } => {
            let presets = PRESETS.map(|(name, _)| name).into_iter().chain(["this"]);
            Failure::Usage(names::unknown(error, base, presets))
        }
        other => other.into(),
    }
}

/// A topology with as many nodes as the ranks need, and the ranks on its devices.
///
/// # Errors
/// As [`load`], and ranks that do not fit.
pub(crate) fn with_ranks(
    name: &str,
    nodes: Option<usize>,
    ranks: Option<usize>,
    per_node: Option<usize>,
) -> Result<(Topology, Network), Failure> {
    let mut topology = load(name)?;
    let devices = topology.devices_per_node();
    let local = per_node.unwrap_or(devices);
    if local > devices {
        return Err(Failure::Usage(format!(
            "--per-node is {local}, but a node of {} has {devices} devices",
            topology.name
        )));
    }
    topology.nodes = match (nodes, ranks) {
        (Some(nodes), _) => nodes,
        (None, Some(ranks)) => topology.nodes.max(ranks.div_ceil(local)),
        (None, None) => topology.nodes,
    };
    let ranks = ranks.unwrap_or(topology.nodes * local);
    let network = Network::new(&topology, ranks, per_node)?;
    Ok((topology, network))
}

/// The settings of communicators on a network's devices: the defaults of their kind, changed by the
/// environment. Measured tables are of other machines, and left away.
///
/// # Errors
/// A variable whose value cannot be.
pub(crate) fn config(network: &Network) -> Result<Config, Failure> {
    let device = match network.device(0).processor {
        Processor::Cpu => Device::Host,
        Processor::Gpu => Device::Cuda(None),
    };
    let lookup = |name: &str| match name {
        "OXCCL_DEVICE" => Some(device.to_string().into()),
        "OXCCL_TUNING" => None,
        _ => std::env::var_os(name),
    };
    Ok(Config::from_lookup(lookup)?)
}

/// What the way between the first and the last device is like; none where there is one device.
fn farthest(topology: &Topology) -> Result<Option<Farthest>, Failure> {
    let ranks = topology.nodes * topology.devices_per_node();
    if ranks < 2 {
        return Ok(None);
    }
    let network = Network::new(topology, ranks, None)?;
    let route = network.route(0, ranks - 1);
    let gbps = route.links.iter().map(|link| network.link(*link).gbps);
    Ok(Some(Farthest {
        from: network.device_name(0),
        to: network.device_name(ranks - 1),
        latency_ns: route.latency_ns,
        gbps: gbps.fold(f64::INFINITY, f64::min),
        links: route.links.iter().map(|link| network.link(*link).name.clone()).collect(),
    }))
}

impl std::fmt::Display for Farthest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Farthest { from, to, latency_ns, gbps, links } = self;
        let links = links.join(", ");
        write!(f, "from {from} to {to}: {latency_ns:.0} ns, {gbps:.2} GB/s, over {links}")
    }
}
