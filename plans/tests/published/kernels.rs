//! Kernels over peers' memory that others have measured, as schedules: what moves, between which
//! barriers, on how many thread blocks.

use oxccl_plans::algorithms::{Algorithm, Encoding, find};
use oxccl_plans::collective::{Collective, Kind, Order};
use oxccl_plans::schedule::{
    Buffer, Chunking, Layout, MAX_CHANNELS, Operand, RankBuilder, Read, SLOTS, Schedule, Tree,
    Write,
};
use oxccl_plans::simulate::{Options, Subject, simulate};
use oxccl_plans::topology::{Network, Placement, Topology};
use serde::Deserialize;

/// Whose all-reduces they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Library {
    /// `csrc/custom_all_reduce.cuh`: ranks reduce what lies in all buffers, between two barriers.
    /// From 256 KiB on more than four ranks do so for a part each, and fetch the others' parts.
    Vllm,
    /// `allReduceFusionKernels.cu`, in one shot: ranks store their inputs into slots of all peers.
    /// Data are their own flags there; LL128 has 8 bytes of flags beside 120.
    TensorrtLlm,
    /// `allreduce7` of `apps/nccl/src/allreduce.hpp`: packets with flags, in two shots.
    Mscclpp,
}

/// From so many bytes on vLLM's kernel for more than four ranks has two stages.
const TWO_STAGES_BYTES: u64 = 256 << 10;

/// What an all-reduce of floats takes, in us, and how it is done.
pub(crate) fn predict(
    library: Library,
    ranks: usize,
    bytes: u64,
    topology: &Topology,
) -> (f64, String) {
    let by = |algorithm: Algorithm, encoding: Encoding| {
        (catalogued(algorithm, encoding, ranks), format!("{algorithm}/{encoding}"))
    };
    // A schedule, what a thread block takes of the buffer, and how many blocks there are at most.
    let ((schedule, name), block_bytes, most) = match library {
        Library::Vllm if ranks > 4 && bytes >= TWO_STAGES_BYTES => {
            (by(Algorithm::TwoShot, Encoding::Windows), 8 << 10, 36)
        }
        Library::Vllm => ((one_stage(ranks), "one stage".to_owned()), 8 << 10, 36),
        Library::TensorrtLlm => {
            (by(Algorithm::OneShot, Encoding::Ll128), 2 << 10, MAX_CHANNELS as u64)
        }
        Library::Mscclpp => (by(Algorithm::TwoShot, Encoding::Ll), 2 << 10, 28),
    };
    let channels = bytes.div_ceil(block_bytes).clamp(1, most) as usize;
    let network = Network::new(&of_one_schedule(topology), ranks, Some(ranks)).unwrap();
    let (collective, count) = (schedule.collective, bytes as usize / 4);
    let layout = Layout::even(&collective, schedule.input, schedule.output, count, 16).unwrap();
    let options = Options { channels, tile_bytes: 4 << 10, ..Options::default() };
    let subject = Subject::schedule(&schedule).unwrap();
    let prediction = simulate(&subject, &layout, &network, &options).unwrap();
    (prediction.time_ns / 1e3, name)
}

/// The same machine where each kernel is of one schedule.
fn of_one_schedule(topology: &Topology) -> Topology {
    let mut topology = topology.clone();
    for device in topology.devices.values_mut() {
        let hot = device.hot.take().unwrap();
        device.launch_ns = hot.launch_ns;
        device.instruction_ns = hot.instruction_ns;
        device.move_ns = hot.move_ns;
        device.operand_ns = hot.operand_ns;
    }
    topology
}

fn catalogued(algorithm: Algorithm, encoding: Encoding, ranks: usize) -> Schedule {
    let collective = Collective::new(Kind::AllReduce, ranks);
    let entry = find(Kind::AllReduce, algorithm, encoding).unwrap();
    entry.schedule(collective, Placement::one_node(ranks), Order::Any, SLOTS).unwrap()
}

/// Every rank reads all inputs in place.
fn one_stage(ranks: usize) -> Schedule {
    let list = |rank: usize| {
        let peers: Vec<usize> = (1..ranks).map(|by| (rank + by) % ranks).collect();
        let input = |peer: usize| match peer {
            peer if peer == rank => Operand::Input(0),
            peer => Operand::Window { peer, buffer: Buffer::Input, chunk: 0 },
        };
        let inputs: Vec<Read> = (0..ranks).map(|peer| Read::Raw(input(peer))).collect();
        let mut b = RankBuilder::new(rank, SLOTS, Tree::Left);
        b.barrier(&peers);
        b.transfer(&inputs, &[Write::To(Operand::Output(0))], true);
        b.barrier(&peers);
        b.finish()
    };
    Schedule {
        collective: Collective::new(Kind::AllReduce, ranks),
        input: Chunking::Whole,
        output: Chunking::Whole,
        scratch: 0,
        slots: SLOTS,
        lists_per_rank: 1,
        lists: (0..ranks).map(list).collect(),
    }
}
