//! Machines whose figures are published.
//!
//! Bandwidths are one direction's. What of them is left for data is stated once a kind of link:
//!
//! - **NVLink, 128 / 160.** A 128-byte write travels behind a 16-byte header, and each is
//!   acknowledged by 16 bytes on the way back, where as much data flows: 128 of 160 bytes are data.
//!   (NCCL's authors say the same: 25 GB/s a link become about 20 with 128 bytes of payload,
//!   nccl-tests #149.)
//! - **Infinity Fabric, 46.2 / 64.** Copies in both directions at once carry 46.2 GB/s each way
//!   over a link of MI300X, one way alone 48.4 (AMD's acceptance tests, ROCm/system-acceptance-docs
//!   058057f6, `docs/performance-bench/mi300x.rst`); with all links busy the slowest carries 45.2
//!   (ROCm blogs, "Understanding RCCL Bandwidth and xGMI Performance on AMD Instinct MI300X",
//!   2025-03). Collectives use links in both directions.
//! - **PCIe, 256 / 282.** A packet has up to 256 bytes of data and 26 of header, sequence number
//!   and checksums (PCI Express Base Specification; 128b/130b encoding is in the published 31.5 and
//!   63 GB/s).
//! - **InfiniBand, 4096 / 4162.** A packet of 4,096 bytes has headers and checksums of up to 66.
//! - **Ethernet with TCP, 1448 / 1538.** A frame of 1,500 bytes carries 1,448, and takes 1,538 with
//!   preamble and gap.
//! - **UPI, 8 / 9.** A cache line is eight flits of data behind one of header.
//!
//! What instructions cost on a GPU comes of counting them: `InstructionCosts` below says how. What
//! a launch takes is fitted. Latencies are estimates out of published microbenchmarks; no kernel of
//! ours has been measured on these machines. All matter for small messages, not for large ones.

use super::draft::Draft;
use super::{
    DeviceKind, HotCosts, LinkKind, NcclCosts, Processor, ProtocolCosts, Role, Topology,
    TopologyError,
};

/// The presets' names and what they are.
pub const PRESETS: [(&str, &str); 9] = [
    ("dgx-a100", "8 A100 80GB, 12 NVLink 3 each to NVSwitch, 8 HDR adapters"),
    ("dgx-h100", "8 H100, 18 NVLink 4 each to NVSwitch, 8 NDR adapters"),
    ("dgx-h200", "8 H200, 18 NVLink 4 each to NVSwitch, 8 NDR adapters"),
    ("dgx-b200", "8 B200, 18 NVLink 5 each to NVSwitch, 8 NDR adapters"),
    ("gb200-nvl72", "72 Blackwell GPUs, 18 NVLink 5 each to NVSwitch, 72 NDR adapters"),
    ("mi300x", "8 MI300X, an Infinity Fabric link from each to each, 8 NDR adapters"),
    ("pcie-box", "2 sockets with 4 A100 PCIe each behind two PCIe 4 switches a socket"),
    ("ethernet-pair", "2 hosts, one rank each, with 25 Gb/s Ethernet"),
    ("host", "one socket with 64 cores, a rank each"),
];

/// The preset of this name, on one node (ethernet-pair: two). `NAME x N` has N nodes.
///
/// # Errors
/// No such preset.
pub fn preset(name: &str) -> Result<Topology, TopologyError> {
    let unknown = || TopologyError::NoPreset {
        name: name.to_string(),
        known: PRESETS.map(|(name, _)| name).join(", "),
    };
    let (base, nodes) = match name.rsplit_once(" x ") {
        Some((base, count)) => {
            let count = count.trim().parse().ok().filter(|count: &usize| *count > 0);
            (base.trim(), Some(count.ok_or_else(unknown)?))
        }
        None => (name.trim(), None),
    };
    let topology = match base {
        "dgx-a100" => dgx("dgx-a100", a100(2039.0), (3, nvlink(300.0)), hdr(), pcie(31.5)),
        "dgx-h100" => dgx("dgx-h100", h100(3350.0), (4, nvlink(450.0)), ndr(), pcie(63.0)),
        "dgx-h200" => dgx("dgx-h200", h100(4800.0), (4, nvlink(450.0)), ndr(), pcie(63.0)),
        "dgx-b200" => dgx("dgx-b200", b200(), (5, nvlink(900.0)), ndr(), pcie(63.0)),
        "gb200-nvl72" => nvl72(),
        "mi300x" => mi300x(),
        "pcie-box" => pcie_box(),
        "ethernet-pair" => ethernet_pair(),
        "host" => host(),
        _ => return Err(unknown()),
    };
    Ok(match nodes {
        Some(nodes) => topology.with_nodes(nodes),
        None => topology,
    })
}

/// What a thread block takes for instructions, in nanoseconds. Counted, not measured: the
/// executor's machine code for sm_90 was run in an interpreter (`tools/gpu-model`) over programs of
/// calls, with a scoreboard of published latencies of instructions, L2 and fences at 1.755 GHz.
/// Calls of 2, 4 and 8 ranks whose messages were there took, in us: one_shot/ll of 8 B 5.1, 5.2,
/// 5.4; two_shot/ll of 32 KiB 7.0, 7.6, 8.4; two_shot_push/windows of 64 KiB with its tokens 8.4,
/// 9.3, 9.2. These four figures give each of them within 8 %: a test keeps that. The scoreboard's
/// own constants are uncertain by 30 %.
#[derive(Clone, Copy, Debug)]
struct InstructionCosts {
    /// From the kernel's begin to the first instruction, and from the last to its end.
    kernel: f64,
    /// Waits that follow one another, or signals: threads of the block take them at once.
    run: f64,
    /// A reduce-copy, or short copies that follow one another: warps of the block make them side by
    /// side.
    reduce_copy: f64,
    /// Each of its operands.
    operand: f64,
}

/// At the clock of an H100 SXM.
const INSTRUCTION_COSTS: InstructionCosts =
    InstructionCosts { kernel: 1800.0, run: 250.0, reduce_copy: 1500.0, operand: 25.0 };

/// The same in kernels of one schedule. The same calls took 1.42, 1.44, 1.62; 2.33, 2.38, 2.47;
/// 4.97, 3.96, 3.73 us, which these give within 18 %, but for the 4.97: of two ranks, fewer loads
/// are under way than of more.
const HOT_COSTS: InstructionCosts =
    InstructionCosts { kernel: 150.0, run: 30.0, reduce_copy: 600.0, operand: 13.0 };

impl InstructionCosts {
    /// In a kernel whose clock is so many times slower, behind a launch.
    fn hot(self, launch_ns: f64, slower: f64) -> HotCosts {
        HotCosts {
            launch_ns: launch_ns + slower * self.kernel,
            instruction_ns: slower * self.run,
            move_ns: slower * self.reduce_copy,
            operand_ns: slower * self.operand,
        }
    }
}

/// A protocol of NCCL: launch, step and message in nanoseconds, fill in bytes.
const fn protocol(launch: f64, step: f64, message: f64, fill: f64) -> ProtocolCosts {
    ProtocolCosts {
        launch_ns: launch,
        step_ns: step,
        message_ns: message,
        fill_bytes: fill,
        across_gbps: None,
        across_step_ns: None,
    }
}

/// The same, with what a channel reads and writes across nodes.
const fn across(gbps: f64, costs: ProtocolCosts) -> ProtocolCosts {
    ProtocolCosts { across_gbps: Some(gbps), ..costs }
}

/// The same, with what a step takes there.
const fn across_step(step_ns: f64, costs: ProtocolCosts) -> ProtocolCosts {
    ProtocolCosts { across_step_ns: Some(step_ns), ..costs }
}

/// What NCCL's kernels take, fitted on those published measurements that `plans/tests/published`
/// says are (`fit` in `plans/tests/published.rs`). Steps that cost nothing are within what their
/// messages take of links. What is of several nodes alone was fitted after the rest, with that
/// held. B200 have the H100's: theirs were not measured.
const NCCL_H100: NcclCosts = NcclCosts {
    channels: 24,
    ll: across_step(500.0, across(10.4, protocol(5400.0, 70.0, 2670.0, 0.0))),
    ll128: across(39.0, protocol(6000.0, 500.0, 3770.0, 0.0)),
    simple: protocol(5700.0, 1960.0, 6000.0, 4.1e6),
    nvls: protocol(11_400.0, 4000.0, 14_800.0, 33.6e6),
    p2p: protocol(9400.0, 0.0, 6000.0, 130e3),
    peer_gbps: Some(39.6),
    ring_step_ns: Some(2900.0),
};
const NCCL_B200: NcclCosts = NcclCosts {
    channels: 32,
    ll: across_step(500.0, across(10.4, protocol(7700.0, 370.0, 2670.0, 0.0))),
    ll128: across(39.0, protocol(15_700.0, 600.0, 3770.0, 0.0)),
    simple: protocol(10_800.0, 380.0, 6000.0, 7.1e6),
    nvls: protocol(16_500.0, 5280.0, 10_000.0, 56e6),
    p2p: protocol(12_100.0, 0.0, 6000.0, 270e3),
    peer_gbps: None,
    ring_step_ns: Some(2900.0),
};
const NCCL_A100: NcclCosts = NcclCosts {
    channels: 24,
    ll: across_step(1200.0, across(10.0, protocol(9800.0, 220.0, 2150.0, 0.0))),
    ll128: across(18.0, protocol(17_600.0, 900.0, 770.0, 0.0)),
    simple: protocol(25_000.0, 10_000.0, 6000.0, 11.2e6),
    nvls: protocol(16_000.0, 4000.0, 10_000.0, 28e6),
    p2p: protocol(11_300.0, 160.0, 25_000.0, 7.8e6),
    peer_gbps: None,
    ring_step_ns: Some(1200.0),
};
/// RCCL's, fitted on the all-reduces of one node that AMD published: the mean error is 3 %. No
/// other collectives were published: sends and receives are priced as rings are, messages to other
/// nodes as on H100. There is no switch that reduces.
const RCCL_MI300X: NcclCosts = NcclCosts {
    channels: 32,
    ll: across(6.0, protocol(12_000.0, 0.0, 2900.0, 0.0)),
    ll128: across(50.0, protocol(12_700.0, 0.0, 2000.0, 0.0)),
    simple: protocol(14_000.0, 0.0, 6000.0, 8e6),
    nvls: protocol(0.0, 0.0, 0.0, 0.0),
    p2p: protocol(14_000.0, 0.0, 6000.0, 8e6),
    peer_gbps: None,
    ring_step_ns: None,
};

/// A launch out of a graph, or out of a stream that is fed, before the kernel begins. Fitted, one
/// figure a generation, on all-reduces of others over four GPUs (`launches_are_those_that_fit` in
/// `plans/tests/published.rs`). An empty kernel takes 741 ns in a graph of an H200.
pub(super) const HOPPER_LAUNCH_NS: f64 = 900.0;
const AMPERE_LAUNCH_NS: f64 = 2200.0;
const BLACKWELL_LAUNCH_NS: f64 = 3200.0;

/// A100 SXM: the L2 cache gives 5,120 bytes a clock to 108 multiprocessors at 1.41 GHz, 66 GB/s
/// each (NVIDIA A100 white paper), and 64 float lanes of 4 bytes fold 361 GB/s.
pub(super) fn a100(memory_gbps: f64) -> DeviceKind {
    // Its clock is 1.41 GHz.
    let (costs, slower) = (INSTRUCTION_COSTS, 1.755 / 1.41);
    DeviceKind {
        processor: Processor::Gpu,
        launch_ns: AMPERE_LAUNCH_NS + slower * costs.kernel,
        instruction_ns: slower * costs.run,
        move_ns: slower * costs.reduce_copy,
        operand_ns: slower * costs.operand,
        channel_gbps: 66.0,
        reduce_gbps: 361.0,
        memory_gbps,
        hot: Some(HOT_COSTS.hot(AMPERE_LAUNCH_NS, slower)),
        nccl: Some(NCCL_A100),
    }
}

/// H100 SXM: as A100 with 132 multiprocessors at 1.755 GHz (68 GB/s each) and 128 float lanes
/// (NVIDIA H100 white paper).
pub(super) fn h100(memory_gbps: f64) -> DeviceKind {
    let costs = INSTRUCTION_COSTS;
    DeviceKind {
        launch_ns: HOPPER_LAUNCH_NS + costs.kernel,
        instruction_ns: costs.run,
        move_ns: costs.reduce_copy,
        operand_ns: costs.operand,
        channel_gbps: 68.0,
        reduce_gbps: 898.0,
        hot: Some(HOT_COSTS.hot(HOPPER_LAUNCH_NS, 1.0)),
        nccl: Some(NCCL_H100),
        ..a100(memory_gbps)
    }
}

/// B200: 148 multiprocessors, whose instructions are taken to cost what an H100's do.
pub(super) fn b200() -> DeviceKind {
    DeviceKind {
        launch_ns: BLACKWELL_LAUNCH_NS + INSTRUCTION_COSTS.kernel,
        hot: Some(HOT_COSTS.hot(BLACKWELL_LAUNCH_NS, 1.0)),
        nccl: Some(NCCL_B200),
        ..h100(8000.0)
    }
}

/// MI300X: the Infinity Cache gives 17.2 TB/s to 304 compute units, 57 GB/s each, and 128 float
/// lanes of 4 bytes fold 1,075 GB/s at 2.1 GHz (AMD CDNA 3 white paper). What instructions cost
/// there is taken to be as on an H100: no executor of ours runs there, and nothing was counted.
fn cdna3() -> DeviceKind {
    DeviceKind { channel_gbps: 57.0, reduce_gbps: 1075.0, nccl: Some(RCCL_MI300X), ..h100(5300.0) }
}

/// A core of a server: bandwidths of one thread beyond its caches, as measured for this project's
/// host executor.
fn core() -> DeviceKind {
    DeviceKind {
        processor: Processor::Cpu,
        launch_ns: 50.0,
        instruction_ns: 10.0,
        move_ns: 10.0,
        operand_ns: 0.0,
        channel_gbps: 40.0,
        reduce_gbps: 40.0,
        memory_gbps: 40.0,
        hot: None,
        nccl: None,
    }
}

/// What is left of NVLink's rate for what its switches reduce and multicast: by what NCCL's tuning
/// model multiplies the bandwidth of NVLink SHARP (`nvlsEfficiency` in its tuning source), for
/// Hopper's generation and for Blackwell's.
pub(super) fn reduce_efficiency(nvlink_generation: u32) -> f64 {
    match nvlink_generation {
        4 => 0.85,
        5.. => 0.74,
        // They cannot.
        _ => 1.0,
    }
}

/// NVLink of all lanes of a GPU together: 12 x 25 GB/s (A100), 18 x 25 (H100), 18 x 50 (Blackwell),
/// by NVIDIA's data sheets. To the switch or from it takes about 250 ns.
pub(super) fn nvlink(gbps: f64) -> LinkKind {
    LinkKind { gbps, efficiency: 128.0 / 160.0, latency_ns: 250.0 }
}

/// PCIe with 16 lanes.
pub(super) fn pcie(gbps: f64) -> LinkKind {
    LinkKind { gbps, efficiency: 256.0 / 282.0, latency_ns: 150.0 }
}

/// InfiniBand HDR, 200 Gb/s.
pub(super) fn hdr() -> LinkKind {
    LinkKind { gbps: 25.0, efficiency: 4096.0 / 4162.0, latency_ns: 500.0 }
}

/// InfiniBand NDR, 400 Gb/s.
fn ndr() -> LinkKind {
    LinkKind { gbps: 50.0, ..hdr() }
}

/// Between two sockets: three UPI links of 11.2 GT/s.
pub(super) fn upi() -> LinkKind {
    LinkKind { gbps: 67.2, efficiency: 8.0 / 9.0, latency_ns: 200.0 }
}

/// Eight GPUs at one switch (really four or six, over which every GPU's lanes are dealt evenly), in
/// two sockets, an adapter a GPU.
fn dgx(
    name: &str,
    gpu: DeviceKind,
    (generation, nvlink): (u32, LinkKind),
    nic: LinkKind,
    pcie: LinkKind,
) -> Topology {
    let mut draft = Draft::new(name);
    draft.device_kind("gpu", gpu);
    draft.link_kind("nvlink", nvlink).link_kind("pcie", pcie).link_kind("ib", nic);
    draft.link_kind("upi", upi());
    draft.nvswitch(generation);
    for socket in 0..2 {
        draft.part(&format!("numa{socket}"), Role::Numa);
    }
    draft.connect("numa0", "numa1", "upi", 1);
    for gpu in 0..8 {
        let (device, bridge, nic) =
            (format!("gpu{gpu}"), format!("plx{}", gpu / 2), format!("nic{gpu}"));
        if gpu % 2 == 0 {
            draft.part(&bridge, Role::Bridge);
            draft.connect(&bridge, &format!("numa{}", gpu / 4), "pcie", 1);
        }
        draft.device(&device, "gpu");
        draft.part(&nic, Role::Nic);
        draft.connect(&device, "nvswitch", "nvlink", 1);
        draft.connect(&device, &bridge, "pcie", 1).connect(&nic, &bridge, "pcie", 1);
    }
    draft.fabric("ib", 1000.0);
    draft.topology
}

/// One NVLink domain is one node here: 18 trays of 4 GPUs and 2 processors (NVIDIA GB200 NVL72 data
/// sheet).
fn nvl72() -> Topology {
    let mut draft = Draft::new("gb200-nvl72");
    draft.device_kind("gpu", b200());
    draft.link_kind("nvlink", nvlink(900.0)).link_kind("pcie", pcie(63.0)).link_kind("ib", ndr());
    draft.nvswitch(5);
    for gpu in 0..72 {
        let (device, bridge, nic) =
            (format!("gpu{gpu}"), format!("numa{}", gpu / 2), format!("nic{gpu}"));
        if gpu % 2 == 0 {
            draft.part(&bridge, Role::Numa);
        }
        draft.device(&device, "gpu");
        draft.part(&nic, Role::Nic);
        draft.connect(&device, "nvswitch", "nvlink", 1);
        draft.connect(&device, &bridge, "pcie", 1).connect(&nic, &bridge, "pcie", 1);
    }
    draft.fabric("ib", 1000.0);
    draft.topology
}

/// Each GPU has a link to each other (AMD Instinct MI300X platform data sheet), and its adapter
/// behind a switch of its own.
fn mi300x() -> Topology {
    let mut draft = Draft::new("mi300x");
    draft.device_kind("gpu", cdna3());
    let fabric = LinkKind { gbps: 64.0, efficiency: 46.2 / 64.0, latency_ns: 500.0 };
    draft.link_kind("infinity-fabric", fabric).link_kind("pcie", pcie(63.0));
    draft.link_kind("ib", ndr()).link_kind("upi", upi());
    for socket in 0..2 {
        draft.part(&format!("numa{socket}"), Role::Numa);
    }
    draft.connect("numa0", "numa1", "upi", 1);
    for gpu in 0..8 {
        let (device, bridge, nic) = (format!("gpu{gpu}"), format!("plx{gpu}"), format!("nic{gpu}"));
        draft.part(&bridge, Role::Bridge).part(&nic, Role::Nic).device(&device, "gpu");
        draft.connect(&bridge, &format!("numa{}", gpu / 4), "pcie", 1);
        draft.connect(&device, &bridge, "pcie", 1).connect(&nic, &bridge, "pcie", 1);
        for peer in 0..gpu {
            draft.connect(&device, &format!("gpu{peer}"), "infinity-fabric", 1);
        }
    }
    draft.fabric("ib", 1000.0);
    draft.topology
}

fn pcie_box() -> Topology {
    let mut draft = Draft::new("pcie-box");
    draft.device_kind("gpu", a100(1935.0));
    draft.link_kind("pcie", pcie(31.5)).link_kind("upi", upi()).link_kind("ib", hdr());
    for socket in 0..2 {
        draft.part(&format!("numa{socket}"), Role::Numa);
    }
    draft.connect("numa0", "numa1", "upi", 1);
    for gpu in 0..8 {
        let (device, bridge) = (format!("gpu{gpu}"), format!("plx{}", gpu / 2));
        if gpu % 2 == 0 {
            draft.part(&bridge, Role::Bridge);
            draft.connect(&bridge, &format!("numa{}", gpu / 4), "pcie", 1);
        }
        draft.device(&device, "gpu").connect(&device, &bridge, "pcie", 1);
        if gpu % 4 == 0 {
            let nic = format!("nic{}", gpu / 4);
            draft.part(&nic, Role::Nic);
            draft.connect(&nic, &bridge, "pcie", 1);
        }
    }
    draft.fabric("ib", 1000.0);
    draft.topology
}

fn ethernet_pair() -> Topology {
    let ethernet = LinkKind { gbps: 25.0 / 8.0, efficiency: 1448.0 / 1538.0, latency_ns: 5000.0 };
    let mut draft = Draft::new("ethernet-pair");
    draft.device_kind("core", core());
    draft.link_kind("ethernet", ethernet).link_kind("pcie", pcie(15.75));
    draft.device("core0", "core");
    draft.part("numa0", Role::Numa);
    draft.part("nic0", Role::Nic);
    draft.link_kind("mesh", LinkKind { gbps: 60.0, efficiency: 1.0, latency_ns: 50.0 });
    draft.connect("core0", "numa0", "mesh", 1).connect("nic0", "numa0", "pcie", 1);
    draft.fabric("ethernet", 10_000.0);
    draft.topology.with_nodes(2)
}

/// One way from core to core takes about 100 ns, and a core writes about 10 GB/s into lines that
/// another holds.
fn host() -> Topology {
    let mut draft = Draft::new("host");
    draft.device_kind("core", core());
    draft.link_kind("mesh", LinkKind { gbps: 20.0, efficiency: 1.0, latency_ns: 50.0 });
    draft.part("numa0", Role::Numa);
    for at in 0..64 {
        let name = format!("core{at}");
        draft.device(&name, "core").connect(&name, "numa0", "mesh", 1);
    }
    draft.topology
}
