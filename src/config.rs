//! All that can be configured, and the only place that reads the environment.

use crate::device::cuda::Image;
use crate::device::{LinkPorts, StagingShape, last_level_cache_bytes};
use crate::error::Error;
use oxccl_plans::collective::Order;
use oxccl_plans::custom::CustomSchedule;
use oxccl_plans::schedule::{MAX_CHANNELS, SLOTS};
use oxccl_plans::topology::Placement;
use oxccl_plans::tune::{DeviceKind, Pin, Table, TableError};
use oxccl_transports::Nodes;
use oxccl_transports::proxy::{BadConditions, Conditions};
use oxccl_transports::silence::LEAST_SILENCE;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// How a communicator is set up. All ranks must use the same values.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What ranks compute on; all of them the same kind. `OXCCL_DEVICE`: host, cuda, or cuda:N; default host.
    pub device: Device,
    /// How long a call may wait for other ranks without progress, or the start. After a failure, it may take as long again, or at
    /// least a second, until ranks of this node have left their calls. `OXCCL_TIMEOUT`, in seconds; default 30.
    pub timeout: Duration,
    /// How long the machine of a rank may be silent, that is acknowledge nothing that it is sent, before it counts as cut off: a break of the
    /// network that is shorter ends nothing. At least 1 s, at most the time-out at the start. Before Linux 6.15 going on takes as long again as the break, so
    /// half of it is sure. `OXCCL_SILENCE`, in seconds; default: the time-out.
    pub silence: Option<Duration>,
    /// The promised order of reduction. `OXCCL_ORDER`: any, rank or tree; default any.
    pub order: Order,
    /// What the tuner must choose. `OXCCL_ALGORITHM`, `OXCCL_ENCODING`, `OXCCL_CHANNELS`; default: its own choice.
    pub pin: Pin,
    /// So many parts of this machine stand for a node each, to which ranks are dealt in blocks; they share no memory. All ranks must be on
    /// one machine. `OXCCL_NODES`; default: nodes are machines.
    pub nodes: Option<usize>,
    /// So many consecutive ranks count as a node, for hierarchical algorithms. `OXCCL_RANKS_PER_NODE`; default: as many as always share
    /// one.
    pub ranks_per_node: Option<usize>,
    /// A schedule of one's own, which carries out the calls of its collective. No variable.
    pub schedule: Option<Arc<CustomSchedule>>,
    /// Most channels a call can use; staging memory is set up for these. `OXCCL_MAX_CHANNELS`; default 4, on a GPU 8, at most 64.
    pub max_channels: usize,
    /// Most channels of a group, so that on a GPU other kernels have room beside it. `OXCCL_GROUP_CHANNELS`; default: `max_channels`.
    pub group_channels: Option<usize>,
    /// The size of this rank's heap, out of which `comm.alloc` takes memory. Address space only: pages exist once allocated.
    /// `OXCCL_HEAP_BYTES`; default 64 GiB. Of a GPU the memory is taken at the start; default 32 MiB.
    pub heap_bytes: usize,
    /// Payload of a slot on the slots lane, in bytes. `OXCCL_SLOT_BYTES`, a multiple of 64; default 65,536.
    pub slot_bytes: usize,
    /// The same where the ranks are on several nodes: what crosses between them is sent in larger pieces. `OXCCL_LINK_SLOT_BYTES`, a
    /// multiple of 64; default 524,288.
    pub link_slot_bytes: usize,
    /// Payload of a slot on the LL lane, and on the LL128 lane, in bytes. `OXCCL_LL_SLOT_BYTES`, a multiple of 64; default 4,096.
    pub ll_slot_bytes: usize,
    /// Polls of a wait before it yields the processor. `OXCCL_SPINS`; default: 20,000 where every rank of this machine has a core of its
    /// own, otherwise 0.
    pub spins: Option<u32>,
    /// Bytes of the last-level cache: calls over more memory than this write their outputs around it. `OXCCL_CACHE_BYTES`; default: what
    /// the machine says.
    pub cache_bytes: Option<usize>,
    /// Kernels leave long copies to the GPU's engine for bulk asynchronous copies, which needs compute capability 9.0: otherwise the start
    /// fails. `OXCCL_BULK_COPIES`: 0 or 1; default 0.
    pub bulk_copies: bool,
    /// Ranks that are threads of one process on one GPU ([`Communicator::local`](crate::Communicator::local)) share one launch for each call or
    /// group that all of them make. So none of their kernels can be kept back by what another rank has put into a stream, whatever
    /// connections the streams share; but the call returns once all ranks have made it, so each needs a thread of its own.
    /// `OXCCL_SINGLE_LAUNCH`: 1, where that cannot be, or a rank captures such a call by itself, it is an error; 0, each rank launches by
    /// itself; default: they share what they can.
    pub single_launch: Option<bool>,
    /// The interface, by name or address, by which ranks of other nodes reach this one. It may differ from rank to rank.
    /// `OXCCL_INTERFACE`; default: that by which the rendezvous was reached.
    pub interface: Option<String>,
    /// How links between nodes are to behave, for tests and trials: slower than the network, and less reliable. `OXCCL_LINK`, such as
    /// `10Gbit,50us`; default: as the network does.
    pub link: Conditions,
    /// What carries links between nodes. `OXCCL_FABRIC`: tcp or rdma; default: RDMA where every rank has an adapter for it, otherwise TCP.
    pub fabric: Option<FabricKind>,
    /// The RDMA devices that this node's ranks share, by name; each gets as many as there are for it, at least one. They may differ from
    /// node to node. `OXCCL_RDMA_DEVICES`, separated by commas; default: the fastest of this network namespace.
    pub rdma_devices: Option<Vec<String>>,
    /// Queue pairs of a link between two ranks on each of its devices. `OXCCL_RDMA_QUEUE_PAIRS`; default 1, devices times queue pairs at
    /// most 8.
    pub rdma_queue_pairs: usize,
    /// Whether adapters read and write messages in a GPU's memory, and how. Ranks may differ. `OXCCL_GPU_DIRECT`: dmabuf, peer (by address,
    /// for which the driver's peer-memory module is needed), each an error where that is not possible, or off; default: the first of
    /// these that every adapter of the rank can do. Off, messages go through pinned memory of the host.
    pub gpu_direct: Option<GpuDirect>,
    /// TCP connections of a link between two ranks; long messages go over all of them. `OXCCL_LINK_SOCKETS`; default 2, at most 16.
    pub link_sockets: usize,
    /// Messages between nodes are sealed by keys that follow from the job's secret: what is changed on its way ends the communicator with
    /// [`Error::Corrupted`], and is never delivered. Links go over TCP then. `OXCCL_INTEGRITY`: 0 or 1; default 0.
    pub integrity: bool,
    /// What `oxccl tune` has measured: the tuner picks by it. `OXCCL_TUNING`, the file; default: none, the tuner picks by thresholds.
    pub tuning: Option<Arc<Table>>,
    /// By how many connections this process' streams reach a GPU. `CUDA_DEVICE_MAX_CONNECTIONS`, which the driver reads, too; default 8.
    pub cuda_connections: usize,
    /// Kernels other than those built in.
    #[doc(hidden)]
    pub image: Option<Image>,
}

/// What ranks compute on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Device {
    /// The host's processors, in host memory.
    #[default]
    Host,
    /// A GPU, by its number in the process; without one, a rank takes its number modulo how many there are.
    Cuda(Option<usize>),
}

impl Device {
    /// What to do about a stream or a call of the other kind.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Device::Host => "its calls go on host streams (oxccl::Stream)",
            Device::Cuda(_) => "its calls go on streams of that GPU (oxccl::cuda::Stream)",
        }
    }

    /// The kind, as tuning tables have it.
    pub fn table_kind(self) -> DeviceKind {
        match self {
            Device::Host => DeviceKind::Host,
            Device::Cuda(_) => DeviceKind::Cuda,
        }
    }

    /// The kind, which all ranks share.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Device::Host => "host",
            Device::Cuda(_) => "cuda",
        }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Cuda(Some(ordinal)) => write!(f, "cuda:{ordinal}"),
            other => f.write_str(other.kind()),
        }
    }
}

impl FromStr for Device {
    type Err = ();

    fn from_str(text: &str) -> Result<Device, ()> {
        match text {
            "host" => Ok(Device::Host),
            "cuda" => Ok(Device::Cuda(None)),
            _ => {
                let ordinal = text.strip_prefix("cuda:").ok_or(())?;
                ordinal.parse().map(|ordinal| Device::Cuda(Some(ordinal))).map_err(drop)
            }
        }
    }
}

/// What carries links between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricKind {
    /// TCP sockets.
    Tcp,
    /// Network adapters that write into the other node's memory.
    Rdma,
}

/// How adapters reach messages of a GPU's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuDirect {
    /// In the GPU's memory, exported as a dmabuf.
    Dmabuf,
    /// In the GPU's memory, registered by its address.
    Peer,
    /// In pinned memory of the host, to which kernels write and from which they read.
    Off,
}

impl fmt::Display for GpuDirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GpuDirect::Dmabuf => "dmabuf",
            GpuDirect::Peer => "peer",
            GpuDirect::Off => "off",
        })
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            device: Device::Host,
            timeout: Duration::from_secs(30),
            silence: None,
            order: Order::Any,
            pin: Pin::default(),
            nodes: None,
            ranks_per_node: None,
            schedule: None,
            max_channels: 4,
            group_channels: None,
            heap_bytes: 64 << 30,
            slot_bytes: 64 << 10,
            link_slot_bytes: 512 << 10,
            ll_slot_bytes: 4 << 10,
            spins: None,
            cache_bytes: None,
            bulk_copies: false,
            single_launch: None,
            interface: None,
            link: Conditions::default(),
            fabric: None,
            rdma_devices: None,
            rdma_queue_pairs: 1,
            gpu_direct: None,
            link_sockets: 2,
            integrity: false,
            tuning: None,
            cuda_connections: 8,
            image: None,
        }
    }
}

impl Config {
    /// The defaults for GPUs: more channels, since a thread block moves less than a core may; and a heap of 32 MiB, since memory of a
    /// GPU is taken at once.
    pub fn cuda() -> Config {
        Config {
            device: Device::Cuda(None),
            max_channels: 8,
            heap_bytes: 32 << 20,
            ..Config::default()
        }
    }

    /// The defaults, changed by the process's environment variables.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable whose value cannot be.
    pub fn from_env() -> Result<Config, Error> {
        Config::from_lookup(|name| std::env::var_os(name))
    }

    /// The defaults, changed by what `lookup` gives for a variable's name.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable whose value cannot be.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Config, Error> {
        let device = read(&lookup, "OXCCL_DEVICE", "host, cuda or cuda:N", |t| t.parse().ok())?;
        let mut config = match device.unwrap_or_default() {
            Device::Host => Config::default(),
            device => Config { device, ..Config::cuda() },
        };
        let seconds = |text: &str| text.parse().ok().filter(|s: &f64| *s > 0.0 && *s < 1e9);
        if let Some(value) = read(&lookup, "OXCCL_TIMEOUT", "seconds above 0", seconds)? {
            config.timeout = Duration::from_secs_f64(value);
        }
        let silence = read(&lookup, "OXCCL_SILENCE", "seconds, at least 1", seconds)?;
        config.silence = silence.map(Duration::from_secs_f64);
        if let Some(order) = read(&lookup, "OXCCL_ORDER", "any, rank or tree", |t| t.parse().ok())?
        {
            config.order = order;
        }
        config.pin.algorithm =
            read(&lookup, "OXCCL_ALGORITHM", "an algorithm", |t| t.parse().ok())?;
        config.pin.encoding =
            read(&lookup, "OXCCL_ENCODING", "ll, ll128, slots or windows", |t| t.parse().ok())?;
        config.pin.channels = read(&lookup, "OXCCL_CHANNELS", "a number", |t| t.parse().ok())?;
        let above_0 = |text: &str| text.parse().ok().filter(|number| *number > 0);
        config.nodes = read(&lookup, "OXCCL_NODES", "a number above 0", above_0)?;
        config.ranks_per_node = read(&lookup, "OXCCL_RANKS_PER_NODE", "a number above 0", above_0)?;
        let number = |name, field: &mut usize| -> Result<(), Error> {
            if let Some(value) = read(&lookup, name, "a number", |t| t.parse().ok())? {
                *field = value;
            }
            Ok(())
        };
        number("OXCCL_MAX_CHANNELS", &mut config.max_channels)?;
        config.group_channels = read(&lookup, "OXCCL_GROUP_CHANNELS", "a number above 0", above_0)?;
        number("OXCCL_HEAP_BYTES", &mut config.heap_bytes)?;
        number("OXCCL_SLOT_BYTES", &mut config.slot_bytes)?;
        number("OXCCL_LINK_SLOT_BYTES", &mut config.link_slot_bytes)?;
        number("OXCCL_LL_SLOT_BYTES", &mut config.ll_slot_bytes)?;
        number("CUDA_DEVICE_MAX_CONNECTIONS", &mut config.cuda_connections)?;
        config.cache_bytes = read(&lookup, "OXCCL_CACHE_BYTES", "a number", |t| t.parse().ok())?;
        let switch = |text: &str| ["0", "1"].iter().position(|choice| *choice == text);
        config.bulk_copies = read(&lookup, "OXCCL_BULK_COPIES", "0 or 1", switch)? == Some(1);
        config.single_launch =
            read(&lookup, "OXCCL_SINGLE_LAUNCH", "0 or 1", switch)?.map(|choice| choice == 1);
        config.spins = read(&lookup, "OXCCL_SPINS", "a number", |t| t.parse().ok())?;
        config.interface = text(&lookup, "OXCCL_INTERFACE")?.filter(|name| !name.is_empty());
        if let Some(text) = text(&lookup, "OXCCL_LINK")? {
            let bad = |error: BadConditions| Error::Config {
                variable: "OXCCL_LINK",
                detail: error.to_string(),
            };
            config.link = text.parse().map_err(bad)?;
        }
        let fabric = |text: &str| match text {
            "tcp" => Some(FabricKind::Tcp),
            "rdma" => Some(FabricKind::Rdma),
            _ => None,
        };
        config.fabric = read(&lookup, "OXCCL_FABRIC", "tcp or rdma", fabric)?;
        config.rdma_devices = text(&lookup, "OXCCL_RDMA_DEVICES")?
            .map(|names| names.split(',').map(|name| name.trim().to_owned()).collect());
        number("OXCCL_RDMA_QUEUE_PAIRS", &mut config.rdma_queue_pairs)?;
        let direct = |text: &str| match text {
            "dmabuf" => Some(GpuDirect::Dmabuf),
            "peer" => Some(GpuDirect::Peer),
            "off" => Some(GpuDirect::Off),
            _ => None,
        };
        config.gpu_direct = read(&lookup, "OXCCL_GPU_DIRECT", "dmabuf, peer or off", direct)?;
        number("OXCCL_LINK_SOCKETS", &mut config.link_sockets)?;
        config.integrity = read(&lookup, "OXCCL_INTEGRITY", "0 or 1", switch)? == Some(1);
        let table = text(&lookup, "OXCCL_TUNING")?;
        config.tuning = table.map(|file| read_table(&file)).transpose()?;
        config.check()?;
        Ok(config)
    }

    /// [`Config::cache_bytes`], or what the machine says.
    pub fn last_level_cache_bytes(&self) -> usize {
        self.cache_bytes.unwrap_or_else(last_level_cache_bytes)
    }

    /// [`Config::silence`] within its bounds.
    pub(crate) fn granted_silence(&self) -> Duration {
        self.silence.unwrap_or(self.timeout).min(self.timeout).max(LEAST_SILENCE)
    }

    /// Which of so many ranks share a node, as far as it is said here: by `ranks_per_node`, or by `nodes`.
    pub fn placement(&self, ranks: usize) -> Placement {
        let per_part = |nodes| Nodes::blocks(ranks, nodes).ranks_per_block();
        let per_node = self.ranks_per_node.or(self.nodes.map(per_part));
        Placement::uniform(per_node.unwrap_or(ranks))
    }

    /// Memory that the connections to one rank of another node take; RDMA pins it.
    pub fn link_memory_bytes(&self) -> usize {
        let shape = self.staging(1);
        LinkPorts::len_bytes(&StagingShape { slot_bytes: self.link_slot_bytes, ..shape })
    }

    /// How so many ranks lay out staging memory.
    pub(crate) fn staging(&self, ranks: usize) -> StagingShape {
        StagingShape {
            ranks,
            channels: self.max_channels,
            ll_slots: SLOTS.ll,
            ll128_slots: SLOTS.ll128,
            ll_slot_bytes: self.ll_slot_bytes,
            slots: SLOTS.slots,
            slot_bytes: self.slot_bytes,
        }
    }

    /// Checks what is said of nodes against where the ranks are, and fills in what is not said.
    pub(crate) fn place(&mut self, nodes: &Nodes) -> Result<(), Error> {
        let fail = |variable, detail: String| Err(Error::Config { variable, detail });
        if let Some(wanted) = self.nodes.filter(|wanted| *wanted != nodes.count()) {
            let detail = format!(
                "is {wanted}, but the ranks are on {}: set it only where all are on one machine",
                nodes.count()
            );
            return fail("nodes", detail);
        }
        if nodes.count() == 1 {
            return Ok(());
        }
        self.slot_bytes = self.link_slot_bytes;
        let most = nodes.ranks_per_block();
        match self.ranks_per_node {
            Some(ranks) if !most.is_multiple_of(ranks) => {
                let detail =
                    format!("is {ranks}, but only {most} consecutive ranks always share a node");
                fail("ranks_per_node", detail)
            }
            _ => {
                self.ranks_per_node.get_or_insert(most);
                Ok(())
            }
        }
    }

    /// Checks what no type can.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let fail = |variable, detail: String| Err(Error::Config { variable, detail });
        if self.timeout.is_zero() {
            return fail("timeout", "must be above 0".into());
        }
        if let Some(silence) = self.silence.filter(|silence| *silence < LEAST_SILENCE) {
            return fail("silence", format!("{silence:?} is less than {LEAST_SILENCE:?}"));
        }
        if self.max_channels == 0 || self.max_channels > MAX_CHANNELS {
            return fail(
                "max_channels",
                format!("{} is not in 1 to {MAX_CHANNELS}", self.max_channels),
            );
        }
        if self.group_channels.is_some_and(|c| c == 0 || c > self.max_channels) {
            return fail(
                "group_channels",
                format!("must be 1 to max_channels, which is {}", self.max_channels),
            );
        }
        if self.pin.channels.is_some_and(|c| c == 0 || c > self.max_channels) {
            return fail(
                "channels",
                format!("must be 1 to max_channels, which is {}", self.max_channels),
            );
        }
        if self.heap_bytes == 0 || self.heap_bytes > isize::MAX as usize {
            let detail = format!(
                "{} is not in 1 to {} (OXCCL_HEAP_BYTES; by default 64 GiB on a host, of which memory is taken only as it is allocated, \
                 and 32 MiB on a GPU)",
                self.heap_bytes,
                isize::MAX
            );
            return fail("heap_bytes", detail);
        }
        if self.device == Device::Host && self.single_launch == Some(true) {
            return fail("single_launch", "is for ranks on a GPU: set OXCCL_DEVICE=cuda".into());
        }
        if let Some(table) = &self.tuning
            && table.device != self.device.table_kind()
        {
            let detail = format!(
                "is a table for {}, but the ranks compute on {}",
                table.device.name(),
                self.device
            );
            return fail("tuning", detail);
        }
        if self.integrity && self.fabric == Some(FabricKind::Rdma) {
            let detail =
                "is for links over TCP, and OXCCL_FABRIC asks for rdma: leave one of them out";
            return fail("integrity", detail.into());
        }
        if !(1..=16).contains(&self.link_sockets) {
            return fail("link_sockets", format!("{} is not in 1 to 16", self.link_sockets));
        }
        if !(1..=8).contains(&self.rdma_queue_pairs) {
            return fail("rdma_queue_pairs", format!("{} is not in 1 to 8", self.rdma_queue_pairs));
        }
        for (name, bytes) in [
            ("slot_bytes", self.slot_bytes),
            ("link_slot_bytes", self.link_slot_bytes),
            ("ll_slot_bytes", self.ll_slot_bytes),
        ] {
            if bytes < 64 || bytes % 64 != 0 || bytes > 1 << 30 {
                return fail(name, format!("{bytes} is no multiple of 64 in 64 bytes to 1 GiB"));
            }
        }
        Ok(())
    }
}

fn read_table(file: &str) -> Result<Arc<Table>, Error> {
    let wrong = |e: TableError| Error::Config { variable: "OXCCL_TUNING", detail: e.to_string() };
    Table::read(Path::new(file)).map(Arc::new).map_err(wrong)
}

/// A variable's value, or an error that says what it should be.
fn read<T>(
    lookup: &impl Fn(&str) -> Option<OsString>,
    variable: &'static str,
    wanted: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, Error> {
    let Some(text) = text(lookup, variable)? else { return Ok(None) };
    match parse(text.trim()) {
        Some(value) => Ok(Some(value)),
        None => Err(Error::Config { variable, detail: format!("{text:?} is not {wanted}") }),
    }
}

/// A variable's value, which must be UTF-8.
fn text(
    lookup: &impl Fn(&str) -> Option<OsString>,
    variable: &'static str,
) -> Result<Option<String>, Error> {
    let text = lookup(variable).map(OsString::into_string).transpose();
    text.map_err(|value| Error::Config { variable, detail: format!("{value:?} is not UTF-8") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn a_wrong_value_names_its_variable() {
        let error = Config::from_lookup(|name| (name == "OXCCL_TIMEOUT").then(|| "soon".into()));
        assert!(error.unwrap_err().to_string().starts_with("OXCCL_TIMEOUT: \"soon\""));
        let error = Config::from_lookup(|name| (name == "OXCCL_SLOT_BYTES").then(|| "100".into()));
        assert!(error.unwrap_err().to_string().contains("slot_bytes"));
        let error =
            Config::from_lookup(|name| (name == "OXCCL_TUNING").then(|| "none.toml".into()));
        assert!(error.unwrap_err().to_string().starts_with("OXCCL_TUNING: none.toml: No such"));
    }

    #[test]
    fn a_value_that_is_no_text_names_its_variable() {
        let asked = RefCell::new(Vec::new());
        Config::from_lookup(|name| {
            asked.borrow_mut().push(name.to_owned());
            None
        })
        .unwrap();
        let asked = asked.into_inner();
        assert!(asked.len() >= 25, "{asked:?}");
        for variable in asked {
            let bytes = || OsString::from_vec(b"1\xff".to_vec());
            let error = Config::from_lookup(|name| (name == variable).then(bytes)).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with(&variable) && text.contains("not UTF-8"), "{text}");
        }
    }

    #[test]
    fn the_silence_is_as_long_as_the_timeout_at_most() {
        let granted = |silence: Option<f64>, timeout| {
            let silence = silence.map(Duration::from_secs_f64);
            let config = Config { silence, timeout, ..Config::default() };
            config.check().map(|()| config.granted_silence().as_secs_f64())
        };
        let s = Duration::from_secs;
        assert_eq!(granted(None, s(30)).unwrap(), 30.0);
        assert_eq!(granted(Some(5.0), s(30)).unwrap(), 5.0);
        assert_eq!(granted(Some(90.0), s(30)).unwrap(), 30.0);
        assert_eq!(granted(None, Duration::from_millis(10)).unwrap(), 1.0);
        assert!(granted(None, Duration::MAX).is_ok());
        let refused = granted(Some(0.5), s(30)).unwrap_err().to_string();
        assert!(refused.contains("silence"), "{refused}");
    }

    #[test]
    fn nodes_are_found_or_checked() {
        let place = |nodes, ranks_per_node, ranks| {
            let mut config = Config { nodes, ranks_per_node, ..Config::default() };
            config.place(&ranks).map(|()| config.ranks_per_node)
        };
        let two = || Nodes::blocks(8, 2);
        assert_eq!(place(None, None, Nodes::one(8)).unwrap(), None);
        assert_eq!(place(None, Some(3), Nodes::one(8)).unwrap(), Some(3));
        assert_eq!(place(Some(2), None, two()).unwrap(), Some(4));
        assert_eq!(place(None, Some(2), two()).unwrap(), Some(2));
        assert_eq!(place(None, None, Nodes::blocks(5, 2)).unwrap(), Some(1));
        let placement = |nodes, ranks_per_node| {
            Config { nodes, ranks_per_node, ..Config::default() }.placement(8).ranks_per_node()
        };
        assert_eq!(placement(None, None), 8);
        assert_eq!((placement(Some(2), None), placement(Some(3), None)), (4, 1));
        assert_eq!(placement(Some(2), Some(2)), 2);
        let error = place(None, Some(8), two()).unwrap_err().to_string();
        assert!(error.contains("only 4 consecutive ranks"), "{error}");
        let error = place(Some(4), None, two()).unwrap_err().to_string();
        assert!(error.contains("is 4, but the ranks are on 2"), "{error}");
    }

    #[test]
    fn integrity_is_not_for_rdma() {
        let config =
            Config { integrity: true, fabric: Some(FabricKind::Rdma), ..Config::default() };
        let error = config.check().unwrap_err().to_string();
        assert!(error.starts_with("integrity: ") && error.contains("OXCCL_FABRIC"), "{error}");
        Config { fabric: Some(FabricKind::Tcp), ..config }.check().unwrap();
    }

    #[test]
    fn values_are_taken() {
        let config = Config::from_lookup(|name| match name {
            "OXCCL_ORDER" => Some("tree".into()),
            "OXCCL_ALGORITHM" => Some("two_shot".into()),
            "OXCCL_TIMEOUT" => Some("0.5".into()),
            "OXCCL_SILENCE" => Some("7".into()),
            _ => None,
        })
        .unwrap();
        assert_eq!(config.silence, Some(Duration::from_secs(7)));
        assert_eq!(config.order, Order::Tree);
        assert_eq!(config.pin.algorithm, Some(oxccl_plans::algorithms::Algorithm::TwoShot));
        assert_eq!(config.timeout, Duration::from_millis(500));
    }
}
