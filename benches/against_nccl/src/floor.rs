//! What no call can be faster than: bytes over the bandwidth of a copy, and a kernel that does
//! nothing.

use std::time::{Duration, Instant};

use oxccl::Kind;
use oxccl::cuda::{CaptureMode, EmptyKernel, Graph, Stream, copy, fill};
use oxccl_command::shared::{Case, Shape, median};
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, DeviceMemory};

/// What this GPU can do at best, as measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    /// A large copy inside the GPU, bytes read and written, in 10^9 bytes a second.
    pub(crate) copy_gbps: f64,
    /// A node of a graph that is an empty kernel.
    pub(crate) empty_node_us: f64,
    /// An empty kernel that is launched by itself.
    pub(crate) empty_launch_us: f64,
}

/// Far more than a cache holds.
const COPY_BYTES: usize = 1 << 30;
const NODES: usize = 100;
const REPEATS: usize = 7;
/// How long copies go before time is taken: an idle GPU's clocks are low.
const WARM: Duration = Duration::from_millis(300);

impl Floor {
    /// Measures it, with nothing else on the GPU.
    pub(crate) fn measure(context: &Context, stream: &Stream) -> Result<Floor, CudaError> {
        let kernel = EmptyKernel::load(context)?;
        let launch = || (0..NODES).try_for_each(|_| kernel.launch(stream));
        let graph = Graph::capture(stream, CaptureMode::ThreadLocal, launch)?;
        Ok(Floor {
            // First: it raises the clocks.
            copy_gbps: copy_gbps(context, stream)?,
            // SAFETY: the kernel touches no memory, and outlives the graph.
            empty_node_us: median_us(stream, || unsafe { graph.launch(stream) })? / NODES as f64,
            empty_launch_us: median_us(stream, launch)? / NODES as f64,
        })
    }

    /// The least time that a call can take, in microseconds.
    pub(crate) fn us(&self, case: &Case, shape: Shape, ranks: usize) -> f64 {
        let bytes = least_bytes(case, shape, ranks) as f64;
        (bytes / self.copy_gbps / 1e3).max(self.empty_node_us)
    }
}

/// The fewest bytes that all ranks together read and write: each input once, each output once. An
/// all-reduce in which every rank reduces one part and writes it to all, and no other, moves as
/// few.
pub(crate) fn least_bytes(case: &Case, shape: Shape, ranks: usize) -> usize {
    let (input, output) = match case.kind {
        Kind::Broadcast => (shape.input, ranks * shape.output),
        Kind::Scatter => (shape.input, ranks * shape.output),
        Kind::Reduce | Kind::Gather => (ranks * shape.input, shape.output),
        _ => (ranks * shape.input, ranks * shape.output),
    };
    (input + output) * case.data_type.len_bytes()
}

fn copy_gbps(context: &Context, stream: &Stream) -> Result<f64, CudaError> {
    // A small GPU, or the stand-in, has less.
    let len_bytes = COPY_BYTES.min(context.free_bytes()? / 8);
    let (from, to) =
        (DeviceMemory::allocate(context, len_bytes)?, DeviceMemory::allocate(context, len_bytes)?);
    // SAFETY: memory of this length, until the stream has been waited for.
    unsafe { fill(stream, from.as_ptr(), 0x5a, len_bytes) }?;
    // SAFETY: as above.
    let put = || unsafe { copy(stream, to.as_ptr(), from.as_ptr(), len_bytes) };
    let start = Instant::now();
    while start.elapsed() < WARM {
        put()?;
        stream.synchronize()?;
    }
    let copied = median_us(stream, put)?;
    Ok(2.0 * len_bytes as f64 / copied / 1e3)
}

/// Median of several, each waited for, after two that do not count.
fn median_us(stream: &Stream, put: impl Fn() -> Result<(), CudaError>) -> Result<f64, CudaError> {
    let mut times = Vec::with_capacity(REPEATS);
    for turn in 0..REPEATS + 2 {
        stream.synchronize()?;
        let start = Instant::now();
        put()?;
        stream.synchronize()?;
        if turn >= 2 {
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(median(&times))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl::{DataType, OpKind};

    #[test]
    fn bounds_are_those_of_the_direct_algorithms() {
        const S: usize = 1 << 20;
        let least = |kind| {
            let case = Case { kind, data_type: DataType::F32, op: OpKind::Sum, root: 0 };
            least_bytes(&case, case.shape(8, S), 8)
        };
        assert_eq!(least(Kind::AllReduce), 16 * S);
        assert_eq!(least(Kind::ReduceScatter), 9 * S);
        assert_eq!(least(Kind::AllGather), 9 * S);
        assert_eq!(least(Kind::AllToAll), 16 * S);
        assert_eq!(least(Kind::Broadcast), 9 * S);
        assert_eq!(least(Kind::Reduce), 9 * S);
        assert_eq!(least(Kind::Gather), 2 * S);
        assert_eq!(least(Kind::Scatter), 2 * S);
    }

    #[test]
    fn small_calls_take_a_launch_and_large_ones_their_bytes() {
        let floor = Floor { copy_gbps: 1000.0, empty_node_us: 2.0, empty_launch_us: 3.0 };
        let case =
            Case { kind: Kind::AllReduce, data_type: DataType::F32, op: OpKind::Sum, root: 0 };
        assert_eq!(floor.us(&case, case.shape(8, 8), 8), 2.0);
        assert_eq!(floor.us(&case, case.shape(8, 100_000_000), 8), 1600.0);
    }
}
