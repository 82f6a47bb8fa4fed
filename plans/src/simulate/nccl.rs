//! What NCCL takes for a call: its algorithms, by schedules that move data as they do, with the
//! costs of its kernels. On one node they are the catalogue's. Over several nodes each channel has
//! a ring or a tree of its own, as NCCL's have (`crate::algorithms::channels`).
//!
//! Which of its algorithms and protocols NCCL chooses is not predicted: the fastest counts. Its
//! kernels' costs are the device's ([`NcclCosts`]), fitted on published measurements, which
//! `plans/tests/published.rs` holds against what is predicted.

use super::{Fold, Noise, Options, Prediction, SimulationError, Subject, simulate};
use crate::algorithms::channels::{RAILS, TREES, rings, trees, trees_of_switches};
use crate::algorithms::{Algorithm, Encoding, Inner, Outer, find};
use crate::collective::{Collective, Kind, Order};
use crate::schedule::{Layout, SLOTS, Schedule, Slots};
use crate::topology::{NcclCosts, Network, Placement, ProtocolCosts};
use serde::Serialize;
use std::fmt;

/// Of so many ranks at most each channel's own part is simulated.
const MOST_RANKS: usize = 128;

/// What NCCL moves at once on a channel.
const TILE_BYTES: usize = 512 << 10;
const LL_TILE_BYTES: usize = 16 << 10;
/// The same of NVLSTree over four nodes and more; over fewer it is twice as much.
const NVLS_TREE_TILE_BYTES: usize = 64 << 10;

/// Sends and receives of up to so many bytes are made by LL (`NCCL_P2P_LL_THRESHOLD`).
const P2P_LL_BYTES: usize = 16 << 10;

/// Trees are for calls of up to so many bytes. By NCCL's tuning model they carry 0.92 of what rings
/// do, and take twice the bytes: longer calls go around rings, whose steps count less then.
const TREE_BYTES: usize = 64 << 20;

/// Of a call's bytes, so many fill the pipeline at most.
const FILL: f64 = 0.8;

/// An algorithm of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NcclAlgorithm {
    /// Rings; a chain where there is a root.
    Ring,
    /// Two binary trees.
    Tree,
    /// NVLink SHARP.
    Nvls,
    /// NVLink SHARP in nodes, trees between them.
    NvlsTree,
    /// Sends and receives.
    P2p,
}

impl NcclAlgorithm {
    /// All of them.
    pub const ALL: [NcclAlgorithm; 5] = [
        NcclAlgorithm::Ring,
        NcclAlgorithm::Tree,
        NcclAlgorithm::Nvls,
        NcclAlgorithm::NvlsTree,
        NcclAlgorithm::P2p,
    ];

    /// The name in snake case.
    pub fn name(self) -> &'static str {
        match self {
            NcclAlgorithm::Ring => "ring",
            NcclAlgorithm::Tree => "tree",
            NcclAlgorithm::Nvls => "nvls",
            NcclAlgorithm::NvlsTree => "nvls_tree",
            NcclAlgorithm::P2p => "p2p",
        }
    }
}

/// How NCCL's messages are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// 4 bytes of data and 4 of flag.
    Ll,
    /// 120 bytes of data and 8 of flag.
    Ll128,
    /// By a counter.
    Simple,
}

impl Protocol {
    const ALL: [Protocol; 3] = [Protocol::Ll, Protocol::Ll128, Protocol::Simple];

    /// The name in snake case.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Ll => "ll",
            Protocol::Ll128 => "ll128",
            Protocol::Simple => "simple",
        }
    }

    fn encoding(self) -> Encoding {
        match self {
            Protocol::Ll => Encoding::Ll,
            Protocol::Ll128 => Encoding::Ll128,
            Protocol::Simple => Encoding::Slots,
        }
    }

    /// Calls that are longer are not faster by it.
    fn most_bytes(self) -> usize {
        match self {
            Protocol::Ll => 16 << 20,
            Protocol::Ll128 => 1 << 30,
            Protocol::Simple => usize::MAX,
        }
    }

    /// The part of its messages that is data.
    fn data(self) -> f64 {
        match self {
            Protocol::Ll => 0.5,
            Protocol::Ll128 => 120.0 / 128.0,
            Protocol::Simple => 1.0,
        }
    }
}

/// One of NCCL's ways to carry a call out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NcclWay {
    /// The algorithm.
    pub algorithm: NcclAlgorithm,
    /// The protocol.
    pub protocol: Protocol,
}

impl NcclWay {
    fn costs(self) -> impl Fn(&NcclCosts) -> ProtocolCosts {
        move |costs| match (self.algorithm, self.protocol) {
            (NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree, _) => costs.nvls,
            (NcclAlgorithm::P2p, Protocol::Simple) => costs.p2p,
            (_, Protocol::Ll) => costs.ll,
            (_, Protocol::Ll128) => costs.ll128,
            (_, Protocol::Simple) => costs.simple,
        }
    }

    /// What a channel moves at once.
    pub fn tile_bytes(self) -> usize {
        match self.protocol {
            Protocol::Simple => TILE_BYTES,
            Protocol::Ll | Protocol::Ll128 => LL_TILE_BYTES,
        }
    }
}

impl fmt::Display for NcclWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.algorithm.name(), self.protocol.name())
    }
}

/// A call of `count` elements, as [`Layout::even`] counts them.
#[derive(Clone, Copy, Debug)]
pub struct NcclCall {
    /// The collective.
    pub collective: Collective,
    /// Elements: of a rank's part where each has one, otherwise in all.
    pub count: usize,
    /// Size of an element.
    pub element_bytes: usize,
    /// Whether one node may stand for all.
    pub fold: Fold,
    /// Steps that take longer by chance.
    pub noise: Option<Noise>,
}

impl NcclCall {
    /// Of how many parts, of `count` elements each, the call is.
    fn parts(&self) -> usize {
        match self.collective.kind {
            Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::SendRecv => 1,
            _ => self.collective.ranks,
        }
    }

    /// The call's size, as nccl-tests counts it.
    fn bytes(&self) -> usize {
        self.count * self.parts() * self.element_bytes
    }

    /// What one rank sends another in a collective of sends and receives.
    fn message_bytes(&self) -> usize {
        self.count * self.element_bytes
    }
}

/// What NCCL takes for a call by the fastest of the ways that `wanted` lets through; nothing where
/// there is none, or where nothing is known of the devices.
///
/// # Errors
/// A call that cannot be simulated, by none of the ways.
pub fn nccl(
    call: &NcclCall,
    network: &Network,
    wanted: impl Fn(NcclWay) -> bool,
) -> Result<Option<(NcclWay, Prediction)>, SimulationError> {
    let mut fastest: Option<(NcclWay, Prediction)> = None;
    let mut too_large = None;
    for (algorithm, schedules) in algorithms(call.collective.kind, network) {
        for protocol in Protocol::ALL {
            let way = NcclWay { algorithm, protocol };
            if !wanted(way) {
                continue;
            }
            for schedule in &schedules {
                let prediction = match predicted(call, network, way, schedule) {
                    Ok(Some(prediction)) => prediction,
                    Ok(None) => continue,
                    Err(error @ SimulationError::TooLarge { .. }) => {
                        too_large = Some(error);
                        continue;
                    }
                    Err(other) => return Err(other),
                };
                let time_ns = prediction.time_ns;
                if fastest.as_ref().is_none_or(|(_, other)| time_ns < other.time_ns) {
                    fastest = Some((way, prediction));
                }
            }
        }
    }
    match (fastest, too_large) {
        (None, Some(error)) => Err(error),
        (fastest, _) => Ok(fastest),
    }
}

/// NCCL's algorithms for a kind, with the schedules that move data as they do.
fn algorithms(kind: Kind, network: &Network) -> Vec<(NcclAlgorithm, Vec<Moves>)> {
    use NcclAlgorithm::{Nvls, NvlsTree, P2p, Ring, Tree};
    let rails = Algorithm::Hierarchical(Inner::Ring, Outer::Rails);
    let by_switch = [Outer::Ring, Outer::Doubling, Outer::Direct];
    let by_switch = by_switch.map(|outer| Algorithm::Hierarchical(Inner::Direct, outer)).to_vec();
    let tree =
        [Inner::Direct, Inner::Ring].map(|inner| Algorithm::Hierarchical(inner, Outer::Tree));
    let mut all = match kind {
        // Its trees are chains inside of a node: no faster there than rings.
        Kind::AllReduce => vec![(Ring, vec![Algorithm::Ring, rails]), (Tree, tree.to_vec())],
        Kind::AllGather | Kind::ReduceScatter => vec![(Ring, vec![Algorithm::Ring, rails])],
        Kind::Broadcast | Kind::Reduce => vec![(Ring, vec![Algorithm::Chain])],
        Kind::Barrier => Vec::new(),
        _ => vec![(P2p, vec![Algorithm::Direct, Algorithm::Pairwise])],
    };
    if network.is_meshed() {
        // Its rings go each another way there, so that all links carry as much as if ranks sent
        // directly.
        let direct = match network.nodes() {
            1 => &[Algorithm::Direct, Algorithm::TwoShot, Algorithm::TwoShotPush][..],
            _ => &by_switch[..],
        };
        let rings = all.iter_mut().filter(|(algorithm, _)| *algorithm == Ring);
        rings.for_each(|(_, schedules)| schedules.extend(direct));
    }
    if kind == Kind::AllReduce && network.switched().is_some() && network.per_node() > 2 {
        all.push(match network.nodes() {
            1 => (Nvls, vec![Algorithm::Nvls]),
            _ => (NvlsTree, by_switch),
        });
    }
    let channels = network.nccl_costs().map_or(0, |costs| costs.channels);
    let has_channels = network.nodes() > 1
        && !network.is_meshed()
        && network.ranks() <= MOST_RANKS
        && channels >= RAILS * TREES;
    let moves = |(algorithm, all): (NcclAlgorithm, Vec<Algorithm>)| {
        let own: Option<OfChannels> = match (algorithm, kind) {
            _ if !has_channels => None,
            (Ring, Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter)
                if network.per_node().is_multiple_of(2) =>
            {
                Some(rings)
            }
            (Tree, _) => Some(trees),
            (NvlsTree, _) => Some(trees_of_switches),
            _ => None,
        };
        let all = match own {
            Some(own) => vec![Moves::Channels(own)],
            None => all.into_iter().map(Moves::Catalogue).collect(),
        };
        (algorithm, all)
    };
    all.into_iter().map(moves).collect()
}

/// A schedule in which each channel has its own part.
type OfChannels = fn(Collective, Placement, Slots) -> Option<Schedule>;

/// What moves data as an algorithm of NCCL does.
#[derive(Clone, Copy)]
enum Moves {
    /// All channels alike.
    Catalogue(Algorithm),
    /// Each channel its own part.
    Channels(OfChannels),
}

/// What a call takes by one schedule, if there is one for these ranks.
fn predicted(
    call: &NcclCall,
    network: &Network,
    way: NcclWay,
    moves: &Moves,
) -> Result<Option<Prediction>, SimulationError> {
    let in_network = matches!(way.algorithm, NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree);
    let of_message = match way.algorithm {
        NcclAlgorithm::P2p if call.message_bytes() <= P2P_LL_BYTES => Protocol::Ll,
        NcclAlgorithm::P2p | NcclAlgorithm::Nvls | NcclAlgorithm::NvlsTree => Protocol::Simple,
        NcclAlgorithm::Tree if call.bytes() > TREE_BYTES => return Ok(None),
        NcclAlgorithm::Ring | NcclAlgorithm::Tree if call.bytes() <= way.protocol.most_bytes() => {
            way.protocol
        }
        NcclAlgorithm::Ring | NcclAlgorithm::Tree => Protocol::Simple,
    };
    if of_message != way.protocol {
        return Ok(None);
    }
    let (collective, several) = (call.collective, network.nodes() > 1);
    // Rings receive and send at once, which slots of direct schedules do by turns.
    let by_mesh = network.is_meshed() && way.algorithm == NcclAlgorithm::Ring;
    let encoding = match way.protocol {
        _ if in_network => Encoding::Windows,
        Protocol::Simple if by_mesh => Encoding::Windows,
        protocol => protocol.encoding(),
    };
    // Messages between nodes have no flags here: their links carry as much less instead.
    let flagless = encoding.has_flags() && several;
    let by_channel = matches!(moves, Moves::Channels(_));
    let data = if flagless { way.protocol.data() } else { 1.0 };
    let is_ring = way.algorithm == NcclAlgorithm::Ring && way.protocol != Protocol::Simple;
    let costs_of = |costs: &NcclCosts| {
        let of_way = way.costs()(costs);
        match costs.ring_step_ns.filter(|_| is_ring && by_channel) {
            Some(step_ns) => ProtocolCosts { across_step_ns: Some(step_ns), ..of_way },
            None => of_way,
        }
    };
    let Some(network) = network.with_protocol(costs_of, data) else { return Ok(None) };
    let placement = Placement::uniform(network.per_node().min(collective.ranks));
    let Some(costs) = network.nccl_costs() else { return Ok(None) };
    match moves {
        Moves::Channels(of_channels) => {
            let Some(schedule) = of_channels(collective, placement, SLOTS) else { return Ok(None) };
            let subject = Subject::of_channels(&schedule, schedule.lists_per_rank);
            // Each of a tree's channels has two lists.
            let per_channel = if way.algorithm == NcclAlgorithm::Ring { 1 } else { 2 };
            let carried = Carried {
                tile_bytes: chunk_bytes(call, &network, way),
                // The pipeline of nodes is simulated; that inside of switches is not.
                fill_bytes: match way.algorithm {
                    NcclAlgorithm::NvlsTree => way.costs()(costs).fill_bytes,
                    _ => 0.0,
                },
                in_network: false,
                bundles: Some(1),
                per_channel,
            };
            simulated(call, &network, &subject, carried)
        }
        Moves::Catalogue(algorithm) => {
            let encoding = if flagless { Encoding::Slots } else { encoding };
            let Some(entry) = find(collective.kind, *algorithm, encoding) else { return Ok(None) };
            let subject = match Subject::entry(entry, collective, placement, Order::Any, SLOTS) {
                Ok(subject) => subject,
                Err(SimulationError::Unavailable(_)) => return Ok(None),
                Err(other) => return Err(other),
            };
            let carried = Carried {
                tile_bytes: way.tile_bytes(),
                fill_bytes: way.costs()(costs).fill_bytes,
                in_network: entry.encoding == Encoding::Windows,
                bundles: None,
                per_channel: 1,
            };
            let mut found = simulated(call, &network, &subject, carried)?;
            if way.algorithm == NcclAlgorithm::P2p
                && let (Some(found), Some(gbps)) = (&mut found, costs.peer_gbps)
                && sends_across(&collective, &network)
            {
                let least = costs.p2p.launch_ns + call.message_bytes() as f64 / gbps;
                found.time_ns = found.time_ns.max(least);
            }
            Ok(found)
        }
    }
}

/// Whether a rank sends to one of another node.
fn sends_across(collective: &Collective, network: &Network) -> bool {
    let node = |rank: usize| rank / network.per_node();
    match collective.kind {
        Kind::SendRecv => node(collective.root) != node(collective.receiver),
        _ => network.nodes() > 1,
    }
}

/// What a channel moves at once where it has a ring or a tree of its own, as NCCL cuts its buffers.
/// Those of LL128 on trees are shorter where a channel would have few of them.
fn chunk_bytes(call: &NcclCall, network: &Network, way: NcclWay) -> usize {
    match (way.algorithm, way.protocol) {
        (NcclAlgorithm::NvlsTree, _) if network.nodes() < 4 => 2 * NVLS_TREE_TILE_BYTES,
        (NcclAlgorithm::NvlsTree, _) => NVLS_TREE_TILE_BYTES,
        (_, Protocol::Ll) => LL_TILE_BYTES,
        (NcclAlgorithm::Tree, Protocol::Ll128) => {
            let (nodes, local) = (network.nodes(), network.per_node());
            let levels = 1.0 + f64::from(nodes.ilog2()) + 0.1 * local as f64;
            let channels = network.nccl_costs().map_or(1, |costs| costs.channels);
            let of_a_channel = call.bytes() as f64 / channels as f64;
            let is_short = |chunk: &usize, of_a_level: f64| {
                of_a_channel / (*chunk as f64) < levels * of_a_level / local as f64
            };
            let mut chunk = TILE_BYTES;
            while (is_short(&chunk, 64.0) && chunk > 128 << 10)
                || (is_short(&chunk, 16.0) && chunk > 32 << 10)
            {
                chunk /= 2;
            }
            chunk
        }
        _ => TILE_BYTES,
    }
}

/// How a call is carried out.
struct Carried {
    /// What a channel moves at once.
    tile_bytes: usize,
    /// What fills a pipeline that is not simulated.
    fill_bytes: f64,
    /// Whether switches reduce what is accessed in place.
    in_network: bool,
    /// Into how many bundles channels that move alike are put.
    bundles: Option<usize>,
    /// Lists of each of NCCL's channels.
    per_channel: usize,
}

fn simulated(
    call: &NcclCall,
    network: &Network,
    subject: &Subject<'_>,
    carried: Carried,
) -> Result<Option<Prediction>, SimulationError> {
    let collective = call.collective;
    let Some(costs) = network.nccl_costs() else { return Ok(None) };
    let options = Options {
        element_bytes: call.element_bytes,
        channels: costs.channels * carried.per_channel,
        tile_bytes: carried.tile_bytes,
        in_network: carried.in_network,
        bundles: carried.bundles,
        hot_kernels: false,
        fold: call.fold,
        noise: call.noise,
        ..Options::default()
    };
    let bytes = call.bytes() as f64;
    let fill = carried.fill_bytes.min(bytes * FILL);
    let count = call.count + (call.count as f64 * fill / bytes.max(1.0)) as usize;
    let align = (64 / call.element_bytes).max(1);
    let (input, output) = subject.chunking();
    let layout = Layout::even(&collective, input, output, count, align)?;
    match simulate(subject, &layout, network, &options) {
        Ok(prediction) => Ok(Some(prediction)),
        Err(SimulationError::WindowAcross { .. } | SimulationError::TooManyLists { .. }) => {
            Ok(None)
        }
        Err(other) => Err(other),
    }
}
