//! Every setting, once: its field, its default, its variable, what that accepts, its check, whether
//! ranks compare it, and its documentation, of which `docs/configuration.md` is made, too.

use super::table::Ranks::{Alike, AlikeIn, MayDiffer};
use super::table::{Setting, Variable, settings};
use super::value::{
    Shown, above_0, conditions, folder, image, name, names, parsed, seconds, switch, table,
};
use super::{FabricKind, GpuDirect, LogLevel};
use crate::device::cuda::Image;
use crate::target::Device;

use oxccl_plans::algorithms::{Algorithm, Encoding};
use oxccl_plans::collective::Order;
use oxccl_plans::custom::CustomSchedule;
use oxccl_plans::schedule::{MAX_CHANNELS, SLOTS};
use oxccl_plans::tune::{Limits, Pin, Table};
use oxccl_transports::proxy::Conditions;
use oxccl_transports::silence::LEAST_SILENCE;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const MAX_SLOTS: u32 = 64;
const MAX_PARTS: usize = 64;

settings! {
    /// How a communicator is set up. What few users change is in [`Config::advanced`].
    ///
    /// All ranks need the same values of most settings; they compare them when they start.
    Config, of which config, in config, listed in SETTINGS;

    /// What ranks compute on; all of them the same kind. `cuda`: the ranks of a node take turns
    /// with its GPUs.
    device: Device = Device::Host, {
        "OXCCL_DEVICE" => device, "host, cuda or cuda:N", parsed::<Device>;
        ranks AlikeIn(|config| config.device.kind().to_owned());
    }

    /// How long a call may wait for other ranks without progress, or the start. After a failure, it
    /// may take as long again, or at least a second, until ranks of this node have left their
    /// calls. With [`Duration::MAX`] calls wait without end, unless a rank fails; what must end at
    /// some time then takes at most 30 seconds.
    timeout: Duration = Duration::from_secs(30), {
        "OXCCL_TIMEOUT" => timeout, "seconds above 0, or none", seconds;
        ranks MayDiffer;
        check |config| require(!config.timeout.is_zero(), || "must be above 0".into());
    }

    /// The promised order of reduction.
    order: Order = Order::Any, {
        "OXCCL_ORDER" => order, "any, rank or tree", parsed::<Order>;
        ranks Alike;
    }

    /// What the tuner must choose. An algorithm or encoding that does not exist for a call is an
    /// error that lists what there is. Channels are the threads of a rank, or thread blocks of its
    /// GPU, that share a call.
    pin: Pin = Pin::default(), {
        "OXCCL_ALGORITHM" => pin.algorithm, "an algorithm, as `oxccl verify all` lists them", parsed::<Algorithm>;
        "OXCCL_ENCODING" => pin.encoding, "ll, ll128, slots or windows", parsed::<Encoding>;
        "OXCCL_CHANNELS" => pin.channels, "a number", parsed::<usize>;
        unset "the tuner's choice";
        ranks Alike;
        check |config| require(
            config.pin.channels.is_none_or(|c| (1..=config.max_channels).contains(&c)),
            || format!("channels must be 1 to max_channels, which is {}", config.max_channels),
        );
    }

    /// So many parts of this machine stand for a node each. Ranks are dealt to them in blocks, and
    /// share no memory across. All ranks must be on one machine.
    nodes: Option<usize> = None, {
        "OXCCL_NODES" => nodes, "a number above 0", above_0;
        unset "nodes are machines";
        ranks Alike;
    }

    /// So many consecutive ranks count as a node, for hierarchical algorithms.
    ranks_per_node: Option<usize> = None, {
        "OXCCL_RANKS_PER_NODE" => ranks_per_node, "a number above 0", above_0;
        unset "as many as always share one, or each node's own number of ranks if that is one alone";
        ranks Alike;
    }

    /// A custom schedule, which carries out the calls of its collective. `oxccl bench --schedule`
    /// reads one from a file.
    schedule: Option<Arc<CustomSchedule>> = None, {
        unset "the tuner's choice of the catalogue";
        ranks Alike;
    }

    /// The file that `oxccl tune` has written: the tuner chooses by what was measured.
    tuning: Option<Arc<Table>> = None, {
        "OXCCL_TUNING" => tuning, "a table of `oxccl tune`", table;
        unset "the tuner chooses by thresholds";
        ranks Alike;
        check |config| {
            let other = config.tuning.as_ref().filter(|t| t.device != config.device.table_kind());
            require(other.is_none(), || format!(
                "is a table for {}, but the ranks compute on {}",
                other.map_or("", |table| table.device.name()),
                config.device
            ))
        };
    }

    /// Most channels a call can use, at most 64; staging memory is set up for these.
    max_channels: usize = Limits::HOST.max_channels, {
        "OXCCL_MAX_CHANNELS" => max_channels, "a number", parsed::<usize>;
        ranks Alike;
        check |config| require((1..=MAX_CHANNELS).contains(&config.max_channels), || {
            format!("{} is not in 1 to {MAX_CHANNELS}", config.max_channels)
        });
    }

    /// The size of this rank's heap, out of which `comm.alloc` takes memory. On a host it is
    /// address space, whose pages exist once allocated; on a GPU memory, which is taken at the
    /// start.
    heap_bytes: usize = 64 << 30, {
        "OXCCL_HEAP_BYTES" => heap_bytes, "a number", parsed::<usize>;
        ranks Alike;
        check |config| require((1..=isize::MAX as usize).contains(&config.heap_bytes), || format!(
            "{} is not in 1 to {} (OXCCL_HEAP_BYTES; by default 64 GiB on a host, of which memory is taken only as it is \
             allocated, and 8 MiB on a GPU)",
            config.heap_bytes,
            isize::MAX
        ));
    }

    /// What carries links between nodes.
    fabric: Option<FabricKind> = None, {
        "OXCCL_FABRIC" => fabric, "tcp or rdma", parsed::<FabricKind>;
        unset "rdma where every rank has an adapter for it, otherwise tcp";
        ranks Alike;
    }

    /// The interface, by name or address, by which ranks of other nodes reach this one.
    interface: Option<String> = None, {
        "OXCCL_INTERFACE" => interface, "a name or an address", name;
        unset "that by which the rendezvous was reached";
        ranks MayDiffer;
    }

    /// Messages between nodes are sealed by keys that follow from the job's secret. What is changed
    /// on its way ends the communicator with `Error::Corrupted`, and is never delivered. Links go
    /// over TCP then.
    integrity: bool = false, {
        "OXCCL_INTEGRITY" => integrity, "0 or 1", switch;
        ranks Alike;
        check |config| require(!config.integrity || config.fabric != Some(FabricKind::Rdma), || {
            "is for links over TCP, and OXCCL_FABRIC asks for rdma: leave one of them out".into()
        });
    }

    /// How much this process logs to standard error; each level has those before it. `info` shows
    /// starts, settings that differ from the defaults, links, plans and their reasons,
    /// registrations, ends and failures. Also where a program makes its `Config` without the
    /// environment, the variable is asked when the first communicator starts. A program with a
    /// global `tracing` subscriber gets the events there instead.
    log: Option<LogLevel> = None, {
        "OXCCL_LOG" => log, "error, warn, info, debug or trace", parsed::<LogLevel>;
        unset "nothing is logged";
        ranks MayDiffer;
    }

    /// A folder in which each rank leaves a file when its communicator fails: its last calls, what
    /// it waited for, and what it saw of the others. It is made if it is not there.
    /// `oxccl blame FILE…` reads the files of a job and names the culprit.
    flight_recorder: Option<PathBuf> = None, {
        "OXCCL_FLIGHT_RECORDER" => flight_recorder, "a folder, or none", folder;
        ranks MayDiffer;
    }

    /// SIGUSR1 makes a process leave the same file of each of its ranks, and go on. A program that
    /// handles the signal itself, or ignores it, gets an error.
    flight_signal: bool = false, {
        "OXCCL_FLIGHT_SIGNAL" => flight_signal, "0 or 1", switch;
        ranks MayDiffer;
        check |config| require(!config.flight_signal || config.flight_recorder.is_some(), || {
            "needs a folder for the files (OXCCL_FLIGHT_RECORDER)".into()
        });
    }

    /// The times of calls are kept, which takes two looks at the clock for each: for
    /// `Communicator::call_times`, and the table of stragglers that `oxccl status` prints. For
    /// calls on a host alone.
    call_times: bool = false, {
        "OXCCL_CALL_TIMES" => call_times, "0 or 1", switch;
        ranks Alike;
        check |config| require(!config.call_times || config.device == Device::Host, || {
            "is for calls on a host: those of a GPU have no times yet".into()
        });
    }

    besides {
        /// The settings that few users change.
        advanced: Advanced
    }
}

settings! {
    /// Settings that few users change: of memory, waiting, links and GPUs.
    Advanced, of which config.advanced, in config, listed in ADVANCED;

    /// How long the machine of a rank may be silent, that is acknowledge nothing that it is sent,
    /// before it counts as cut off. A shorter break of the network ends nothing. Before Linux 6.15
    /// going on takes as long again as the break, so half of it is sure; RDMA links bear 34 s at
    /// most. It is at most the time-out at the start.
    silence: Option<Duration> = None, {
        "OXCCL_SILENCE" => silence, "seconds, at least 1", seconds;
        unset "the time-out";
        ranks MayDiffer;
        check |config| {
            let short = config.advanced.silence.filter(|silence| *silence < LEAST_SILENCE);
            require(short.is_none(), || {
                format!("{:?} is less than {LEAST_SILENCE:?}", short.unwrap_or_default())
            })
        };
    }

    /// Channels that carry messages from rank to rank through slots: send/recv, alone and in
    /// groups, and all-to-alls of uneven parts. What is read in place on one node has
    /// `max_channels`.
    message_channels: Option<usize> = None, {
        "OXCCL_MESSAGE_CHANNELS" => message_channels, "a number above 0", above_0;
        unset "1; on GPUs 4, or `max_channels` if that is less";
        ranks Alike;
        check |config| require(
            config.advanced.message_channels.is_none_or(|c| (1..=config.max_channels).contains(&c)),
            || format!("must be 1 to max_channels, which is {}", config.max_channels),
        );
    }

    /// Most channels of a group, so that on a GPU other kernels have room beside it.
    group_channels: Option<usize> = None, {
        "OXCCL_GROUP_CHANNELS" => group_channels, "a number above 0", above_0;
        unset "`max_channels`";
        ranks Alike;
        check |config| require(
            config.advanced.group_channels.is_none_or(|c| (1..=config.max_channels).contains(&c)),
            || format!("must be 1 to max_channels, which is {}", config.max_channels),
        );
    }

    /// About so many bytes of a group are begun and done together: buckets up to that size wait for
    /// those beside them.
    group_part_bytes: Option<usize> = None, {
        "OXCCL_GROUP_PART_BYTES" => group_part_bytes, "a number above 0", above_0;
        unset "4 MiB, on GPUs 16 MiB";
        ranks Alike;
        check |config| require(config.advanced.group_part_bytes != Some(0), || "must be above 0".into());
    }

    /// Payload of a slot on the slots lane, in bytes, a multiple of 64. A link to a rank of the
    /// same node takes 4 slots for each of `max_channels`.
    slot_bytes: Option<usize> = None, {
        "OXCCL_SLOT_BYTES" => slot_bytes, "a number", parsed::<usize>;
        unset "65,536; on GPUs 524,288 for 2 ranks, 262,144 for 3, 131,072 for 4 and 5";
        ranks Alike;
        check |config| config.advanced.slot_bytes.map_or(Ok(()), multiple_of_64);
    }

    /// Slots of a connection: so many messages of a channel may be on their way, which is how deep
    /// calls are pipelined. Memory of slots grows with it.
    slots: u32 = SLOTS.slots, {
        "OXCCL_SLOTS" => slots, "a number", parsed::<u32>;
        ranks Alike;
        check |config| require((SLOTS.slots..=MAX_SLOTS).contains(&config.advanced.slots), || {
            format!("{} is not in {} to {MAX_SLOTS}", config.advanced.slots, SLOTS.slots)
        });
    }

    /// Parts of a buffer that are on their way at once along trees and chains, and in hierarchical
    /// all-reduces, where one crosses between nodes while another is reduced inside. In place these
    /// have at most half as many as there are slots.
    pipeline: Option<usize> = None, {
        "OXCCL_PIPELINE" => pipeline, "a number above 0", above_0;
        unset "chains 8, trees 4, hierarchies 2";
        ranks Alike;
        check |config| require(
            config.advanced.pipeline.is_none_or(|parts| (1..=MAX_PARTS).contains(&parts)),
            || format!("must be 1 to {MAX_PARTS}"),
        );
    }

    /// The same where ranks are on several nodes. A link to a rank of another node takes 8 slots
    /// for each of `max_channels` and of `message_channels`: 20 MiB, on a GPU 40 MiB. Where there
    /// are more than 32 nodes, that is a quarter. They are memory once the link is used. Smaller
    /// slots or fewer channels make that less.
    link_slot_bytes: Option<usize> = None, {
        "OXCCL_LINK_SLOT_BYTES" => link_slot_bytes, "a number", parsed::<usize>;
        unset "524,288, and 131,072 where ranks are on more than 32 nodes; with more than 8 channels half of that";
        ranks Alike;
        check |config| config.advanced.link_slot_bytes.map_or(Ok(()), multiple_of_64);
    }

    /// Payload of a slot on the LL lane, and on the LL128 lane, in bytes, a multiple of 64.
    ll_slot_bytes: usize = Limits::HOST.ll_slot_bytes, {
        "OXCCL_LL_SLOT_BYTES" => ll_slot_bytes, "a number", parsed::<usize>;
        ranks Alike;
        check |config| multiple_of_64(config.advanced.ll_slot_bytes);
    }

    /// Most polls of a wait before it yields the processor. A wait polls less where somebody else
    /// has wanted its core.
    spins: Option<u32> = None, {
        "OXCCL_SPINS" => spins, "a number", parsed::<u32>;
        unset "20,000 where every rank of this machine has a core of its own, otherwise 0";
        ranks MayDiffer;
    }

    /// Whether the system reads private memory of other processes on this machine for a rank
    /// (cross-memory attach, `process_vm_readv`), which spares the way through slots from some size
    /// on. 1: from 32 or 64 KiB on, whatever is faster; where it does not read, the start fails and
    /// says why. 0: private memory goes through slots.
    cma: Option<bool> = None, {
        "OXCCL_CMA" => cma, "0 or 1", switch;
        unset "where the ranks of the machine may read each other, from the size on at which that is \
               faster, by a measurement at the start";
        ranks Alike;
    }

    /// Bytes of the last-level cache: calls over more memory than this write their outputs with
    /// streaming stores. So do calls from 2 MiB on whose output has left the cache since it was
    /// last written.
    cache_bytes: Option<usize> = None, {
        "OXCCL_CACHE_BYTES" => cache_bytes, "a number", parsed::<usize>;
        unset "what the machine says";
        ranks MayDiffer;
    }

    /// Kernels leave long copies to the GPU's engine for bulk asynchronous copies. It needs compute
    /// capability 9.0: otherwise the start fails.
    bulk_copies: bool = false, {
        "OXCCL_BULK_COPIES" => bulk_copies, "0 or 1", switch;
        ranks Alike;
    }

    /// Calls of one node whose schedules have kernels of their own are carried out by these, where
    /// they are short: see `docs/gpu.md`. 0: all calls are interpreted. Results are the same.
    hot_kernels: bool = true, {
        "OXCCL_HOT_KERNELS" => hot_kernels, "0 or 1", switch;
        ranks MayDiffer;
    }

    /// A GPU's copy engines carry out all-gathers, all-to-alls, broadcasts, gathers and scatters of
    /// one node, and no kernel. So the multiprocessors are free for others. What peers read has to
    /// lie at the same place of all ranks' heaps (`comm.alloc`, called alike by all), or of what
    /// they have registered. So has what is written in a broadcast or scatter. Kernels move what is
    /// in other memory. An algorithm, an encoding or a schedule that is asked for goes first.
    zero_sm: bool = false, {
        "OXCCL_ZERO_SM" => zero_sm, "0 or 1", switch;
        ranks Alike;
        check |config| require(config.device != Device::Host || !config.advanced.zero_sm, || {
            "is for ranks on a GPU: set OXCCL_DEVICE=cuda".into()
        });
    }

    /// Ranks that are threads of one process on one GPU (`Communicator::local`) share one launch
    /// for each call or group that all of them make. So none of their kernels can be kept back by
    /// what another rank has put into a stream, whatever connections the streams share. The call
    /// returns once all ranks have made it, so each needs a thread. 1: where that cannot be, or a
    /// rank captures such a call by itself, it is an error. 0: each rank launches by itself.
    single_launch: Option<bool> = None, {
        "OXCCL_SINGLE_LAUNCH" => single_launch, "0 or 1", switch;
        unset "they share what they can";
        ranks Alike;
        check |config| require(
            config.device != Device::Host || config.advanced.single_launch != Some(true),
            || "is for ranks on a GPU: set OXCCL_DEVICE=cuda".into(),
        );
    }

    /// By how many connections this process' streams reach a GPU. The driver reads the variable,
    /// too. With fewer than streams, a stream is not let wait for buckets whose marks it may keep
    /// back. Ranks that are threads and launch by themselves need one each for every stream of
    /// theirs.
    cuda_connections: usize = 8, {
        "CUDA_DEVICE_MAX_CONNECTIONS" => cuda_connections, "a number", parsed::<usize>;
        ranks MayDiffer;
    }

    /// Steps that each channel of a GPU keeps of traced calls (`Communicator::set_trace`), a power
    /// of two. Of more than that the last ones stay, and how many are lost is told.
    trace_steps: usize = 8192, {
        "OXCCL_TRACE_STEPS" => trace_steps, "a number", parsed::<usize>;
        ranks MayDiffer;
        check |config| {
            let steps = config.advanced.trace_steps;
            require(steps.is_power_of_two() && steps <= 1 << 20, || {
                format!("{steps} is no power of two, or more than {}", 1 << 20)
            })
        };
    }

    /// Whether adapters read and write messages in a GPU's memory, and how. `dmabuf`, and `peer`
    /// (by address, for which the driver's peer-memory module is needed), are errors where that is
    /// not possible. `off`: messages go through pinned memory of the host.
    gpu_direct: Option<GpuDirect> = None, {
        "OXCCL_GPU_DIRECT" => gpu_direct, "dmabuf, peer or off", parsed::<GpuDirect>;
        unset "the first of these that every adapter of the rank can do";
        ranks MayDiffer;
    }

    /// The RDMA devices that this node's ranks share, by name, separated by commas. Each rank gets
    /// as many as there are for it, at least one: with a GPU those nearest to it on the PCI bus.
    rdma_devices: Option<Vec<String>> = None, {
        "OXCCL_RDMA_DEVICES" => rdma_devices, "names", names;
        unset "the fastest of this network namespace";
        ranks MayDiffer;
    }

    /// Which of an RDMA port's GIDs packets are sent from. `oxccl doctor` lists them.
    rdma_gid_index: Option<u8> = None, {
        "OXCCL_RDMA_GID_INDEX" => rdma_gid_index, "a number", parsed::<u8>;
        unset "of InfiniBand the first; of RoCE v2 an IPv4 address, or else one that routers know";
        ranks MayDiffer;
    }

    /// The traffic class of RDMA packets, where a network has one for them: over RoCE four times
    /// the DSCP, such as 104 for DSCP 26.
    rdma_traffic_class: u8 = 0, {
        "OXCCL_RDMA_TRAFFIC_CLASS" => rdma_traffic_class, "a number", parsed::<u8>;
        ranks Alike;
    }

    /// The service level of RDMA packets: InfiniBand's, or the priority in RoCE's VLANs.
    rdma_service_level: u8 = 0, {
        "OXCCL_RDMA_SERVICE_LEVEL" => rdma_service_level, "a number", parsed::<u8>;
        ranks Alike;
        check |config| require(config.advanced.rdma_service_level < 16, || {
            format!("{} is not in 0 to 15", config.advanced.rdma_service_level)
        });
    }

    /// Queue pairs of a link between two ranks on each of its devices; devices times queue pairs
    /// are at most 8.
    rdma_queue_pairs: usize = 1, {
        "OXCCL_RDMA_QUEUE_PAIRS" => rdma_queue_pairs, "a number", parsed::<usize>;
        ranks Alike;
        check |config| require((1..=8).contains(&config.advanced.rdma_queue_pairs), || {
            format!("{} is not in 1 to 8", config.advanced.rdma_queue_pairs)
        });
    }

    /// TCP connections of a link between two ranks, at most 16; long messages go over all of them.
    link_sockets: usize = 2, {
        "OXCCL_LINK_SOCKETS" => link_sockets, "a number", parsed::<usize>;
        ranks Alike;
        check |config| require((1..=16).contains(&config.advanced.link_sockets), || {
            format!("{} is not in 1 to 16", config.advanced.link_sockets)
        });
    }

    /// How links between nodes are to behave, for tests and trials: slower than the network, and
    /// less reliable, such as `10Gbit,50us`. It needs the feature `emulation`, which the `oxccl`
    /// command has. Also `jitter=200us`, `cut=100` (messages until a link breaks) and `short=700`
    /// (bytes of a write).
    link: Conditions = Conditions::default(), {
        "OXCCL_LINK" => link, "conditions", conditions;
        unset "as the network does";
        ranks Alike;
    }

    /// A file with a GPU's kernels, a fat binary of this release, in the place of those that were
    /// built in. Whoever names it vouches for it.
    image: Option<Image> = None, {
        "OXCCL_IMAGE" => image, "a file", image;
        unset "those that were built in";
        ranks MayDiffer;
    }
}

/// All settings, the device first.
pub(super) fn all() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().chain(ADVANCED)
}

fn require(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn multiple_of_64(bytes: usize) -> Result<(), String> {
    require(bytes.is_multiple_of(64) && (64..=1 << 30).contains(&bytes), || {
        format!("{bytes} is no multiple of 64 in 64 bytes to 1 GiB")
    })
}
