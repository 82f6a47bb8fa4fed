//! Traces of steps on a GPU. The stand-in runs traced kernels by their own source, whatever else it
//! does.

use crate::calls::stream;
use crate::processes::{line_up, on_hardware};
use oxccl::cuda::{CaptureMode, Graph};
use oxccl::plans::algorithms::{Algorithm, Encoding, find};
use oxccl::plans::lower::{Lowering, Program, lower};
use oxccl::plans::schedule::{Layout, SLOTS};
use oxccl::plans::topology::Placement;
use oxccl::plans::tune::Plan;
use oxccl::plans::verify::verify;
use oxccl::{
    Collective, Collectives, Communicator, DataType, Error, Kind, OpKind, Order, Pin, ReduceOp,
    StepTrace, TracedStep,
};
use oxccl_cuda_stand_in::control::Control;
use oxccl_kernels::format as f;
use oxccl_kernels::{Fold, Scale};
use oxccl_transports::{CudaError, Error as Transport};

const COUNT: usize = 6144;

const PINS: [(Algorithm, Encoding, usize); 4] = [
    (Algorithm::Ring, Encoding::Slots, 2),
    (Algorithm::OneShot, Encoding::Ll, 1),
    (Algorithm::TwoShot, Encoding::Ll128, 2),
    (Algorithm::TwoShotPush, Encoding::Windows, 2),
];

/// Steps of a channel: their rounds and numbers.
type Steps = Vec<(u64, u32)>;

/// What a rank's program of an all-reduce of floats has for each channel.
fn expected(comm: &Communicator, plan: &Plan, max_channels: usize) -> Vec<Steps> {
    let collective = Collective::new(Kind::AllReduce, comm.world_size());
    let entry = find(Kind::AllReduce, plan.algorithm, plan.encoding).unwrap();
    let nodes = Placement::one_node(comm.world_size());
    let schedule = entry.schedule(collective, nodes, Order::Any, SLOTS).unwrap();
    let (input, output) = (schedule.input, schedule.output);
    let verified = verify(schedule, Order::Any, entry.in_place).unwrap();
    let layout = Layout::even(&collective, input, output, COUNT, 16).unwrap();
    let lowering = Lowering {
        data_type: DataType::F32,
        fold: Fold::Sum,
        scale: Scale::None,
        channels: plan.channels,
        first_connections: 0,
        most_channels: max_channels,
        tile_bytes: plan.tile_bytes,
        stream: false,
        cma: false,
        virtual_bytes: None,
    };
    steps_of(&lower(&verified, comm.rank(), &layout, &lowering).unwrap())
}

fn steps_of(program: &Program) -> Vec<Steps> {
    let base = program.header().cast::<u8>();
    // SAFETY: the lowering has written these tables at these offsets, aligned and within the
    // program.
    let (channels, instructions) = unsafe {
        let header = &*program.header();
        let table = |offset: u32| base.add(offset as usize);
        let channels = table(header.channels_offset).cast::<f::ChannelEntry>();
        (
            std::slice::from_raw_parts(channels, header.channels as usize),
            table(header.instructions_offset).cast::<f::Instruction>(),
        )
    };
    let of_round = |entry: &f::ChannelEntry| {
        // SAFETY: within the channel's instructions.
        let step = |at| unsafe { (*instructions.add(at as usize)).step };
        (entry.first_instruction..entry.first_instruction + entry.instructions)
            .map(step)
            .collect::<Vec<_>>()
    };
    let all = |entry: &f::ChannelEntry| {
        let steps = of_round(entry);
        (0..entry.rounds).flat_map(|round| steps.iter().map(move |step| (round, *step))).collect()
    };
    channels.iter().map(all).collect()
}

/// Each channel's steps, whose times must be in order.
fn by_channel(trace: &StepTrace) -> Vec<Steps> {
    let channels = trace.steps.iter().map(|step| step.channel + 1).max().unwrap_or(0);
    let of = |channel| {
        let steps: Vec<&TracedStep> =
            trace.steps.iter().filter(|step| step.channel == channel).collect();
        assert!(steps.iter().all(|step| step.start_ns <= step.end_ns), "{steps:?}");
        for pair in steps.windows(2) {
            // Steps that threads of a block take at once have the same times.
            let at_once = (pair[0].start_ns, pair[0].end_ns) == (pair[1].start_ns, pair[1].end_ns);
            assert!(at_once || pair[1].start_ns >= pair[0].end_ns, "{pair:?}");
        }
        steps.iter().map(|step| (step.round, step.step)).collect()
    };
    (0..channels).map(of).collect()
}

fn launches() -> u64 {
    if on_hardware() { 0 } else { Control::attach().unwrap().traced() }
}

fn sum(comm: &Communicator) {
    let mut buffer = comm.alloc::<f32>(COUNT).unwrap();
    buffer.write(&[comm.rank() as f32 + 1.0; COUNT]).unwrap();
    comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
    let mut found = vec![0.0; COUNT];
    buffer.read(&mut found).unwrap();
    let n = comm.world_size();
    assert!(found.iter().all(|found| *found == (n * (n + 1) / 2) as f32));
}

/// A trace has the steps of the program, of no other calls, and calls that are not traced run in
/// kernels that write nothing.
pub(crate) fn steps(mut comm: Communicator) {
    let max_channels = crate::calls::config().max_channels;
    let before = launches();
    for (algorithm, encoding, channels) in PINS {
        let pin =
            Pin { algorithm: Some(algorithm), encoding: Some(encoding), channels: Some(channels) };
        comm.set_pin(pin).unwrap();
        sum(&comm);
        assert_eq!(comm.take_trace().unwrap(), StepTrace::default(), "nothing is traced yet");
        comm.set_trace(true).unwrap();
        assert_eq!(comm.take_trace().unwrap(), StepTrace::default(), "nothing was called");
        sum(&comm);
        let plan = comm.plan::<f32>(Kind::AllReduce, OpKind::Sum, COUNT, 0, true, true).unwrap();
        let expected = expected(&comm, &plan, max_channels);
        assert!(expected.len() == channels && expected.iter().all(|steps| steps.len() > 2));
        if encoding == Encoding::Slots {
            assert!(expected[0].iter().any(|(round, _)| *round > 1), "{plan:?}");
        }
        let trace = comm.take_trace().unwrap();
        assert_eq!((by_channel(&trace), trace.lost), (expected.clone(), 0), "{plan:?}");
        // Two calls are twice that, and nothing comes twice.
        sum(&comm);
        sum(&comm);
        let twice = by_channel(&comm.take_trace().unwrap());
        assert!(twice.iter().zip(&expected).all(|(twice, once)| *twice == once.repeat(2)));
        assert_eq!(comm.take_trace().unwrap(), StepTrace::default());
        sum(&comm);
        comm.set_trace(false).unwrap();
        // What a rank launches by itself in the meantime is not traced, either.
        let traced = launches();
        sum(&comm);
        comm.barrier().unwrap();
        assert_eq!(launches(), traced, "untraced calls run in untraced kernels");
        assert_eq!(comm.take_trace().unwrap(), StepTrace::default(), "the trace has ended");
    }
    assert!(on_hardware() || launches() > before);
}

/// Other types, copies, streams and groups.
pub(crate) fn calls(mut comm: Communicator) {
    let n = comm.world_size();
    comm.set_trace(true).unwrap();
    let steps = |comm: &mut Communicator| {
        let trace = comm.take_trace().unwrap();
        assert!(by_channel(&trace).concat().len() > 1, "{trace:?}");
    };
    // Nothing is reduced: any type.
    let (part, mut all) = (comm.alloc::<f64>(100).unwrap(), comm.alloc::<f64>(100 * n).unwrap());
    comm.all_gather(&part, &mut all).unwrap();
    steps(&mut comm);
    let mut halves = comm.alloc::<oxccl::bf16>(1000).unwrap();
    halves.write(&[oxccl::bf16::from_f32(2.0); 1000]).unwrap();
    comm.all_reduce_in_place(&mut halves, ReduceOp::Sum).unwrap();
    let mut found = vec![oxccl::bf16::ZERO; 1000];
    halves.read(&mut found).unwrap();
    assert!(found.iter().all(|found| found.to_f32() == 2.0 * n as f32));
    steps(&mut comm);
    // There are no kernels for these; the communicator is as before.
    let mut numbers = comm.alloc::<i32>(100).unwrap();
    let error = comm.all_reduce_in_place(&mut numbers, ReduceOp::Max).unwrap_err();
    assert!(
        matches!(&error, Error::Transport(Transport::Cuda(CudaError::NotTraced { what, .. })) if what.contains("max")),
        "{error}"
    );
    assert!(error.is_misuse());
    sum(&comm);
    steps(&mut comm);
    // Groups: of one kind, and of several.
    let stream = stream(&comm);
    let mut buffers = [comm.alloc::<f32>(900).unwrap(), comm.alloc::<f32>(700).unwrap()];
    buffers.iter_mut().for_each(|buffer| buffer.write(&vec![1.0; buffer.len()]).unwrap());
    for several in [false, true] {
        let group = comm.on(&stream).group(|group| {
            for buffer in &mut buffers {
                group.all_reduce_in_place(buffer, ReduceOp::Sum)?;
            }
            if several {
                group.all_reduce_in_place(&mut numbers, ReduceOp::Max)?;
            }
            Ok::<(), Error>(())
        });
        group.unwrap().0.wait().unwrap();
        steps(&mut comm);
    }
    let mut found = vec![0.0; 700];
    buffers[1].read(&mut found).unwrap();
    assert!(found.iter().all(|found| *found == (n * n) as f32));
    comm.set_trace(false).unwrap();
}

/// Of more steps than there is room for, the last stay, and the others are counted.
/// `OXCCL_TRACE_STEPS` is 4.
pub(crate) fn overflow(mut comm: Communicator) {
    let (algorithm, encoding) = (Some(Algorithm::Ring), Some(Encoding::Slots));
    comm.set_pin(Pin { algorithm, encoding, channels: Some(2) }).unwrap();
    sum(&comm);
    comm.set_trace(true).unwrap();
    let plan = comm.plan::<f32>(Kind::AllReduce, OpKind::Sum, COUNT, 0, true, true).unwrap();
    let expected = expected(&comm, &plan, crate::calls::config().max_channels);
    for _ in 0..2 {
        sum(&comm);
        let trace = comm.take_trace().unwrap();
        let last: Vec<Steps> =
            expected.iter().map(|steps| steps[steps.len() - 4..].to_vec()).collect();
        assert_eq!(by_channel(&trace), last);
        let all: usize = expected.iter().map(Vec::len).sum();
        assert_eq!(trace.lost, all as u64 - 8);
    }
    comm.set_trace(false).unwrap();
}

/// Captured calls are not traced, and say so.
pub(crate) fn captured(mut comm: Communicator) {
    let stream = stream(&comm);
    let mut buffer = comm.alloc::<f32>(COUNT).unwrap();
    let mut capture = |comm: &Communicator| {
        Graph::capture(&stream, CaptureMode::ThreadLocal, || {
            comm.on(&stream).all_reduce_in_place(&mut buffer, ReduceOp::Sum).map(drop)
        })
    };
    comm.set_trace(true).unwrap();
    sum(&comm);
    let error = capture(&comm).unwrap_err();
    assert!(
        matches!(error, Error::Transport(Transport::Cuda(CudaError::TracedCapture))),
        "{error}"
    );
    sum(&comm);
    assert!(!comm.take_trace().unwrap().steps.is_empty());
    comm.set_trace(false).unwrap();
    let graph = capture(&comm).unwrap();
    line_up();
    match comm.set_trace(true).unwrap_err() {
        Error::NotTraced { rank: 0, reason } => assert!(reason.contains("captured"), "{reason}"),
        error => panic!("{error}"),
    }
    sum(&comm);
    assert_eq!(comm.take_trace().unwrap(), StepTrace::default());
    drop(graph);
}

/// All ranks begin a trace, or none does.
pub(crate) fn apart(mut comm: Communicator) {
    let error = comm.set_trace(comm.rank() == 0).unwrap_err();
    assert!(error.is_fatal() && error.to_string().contains("trace"), "{error}");
}
