//! What each rank does.

use oxccl::Communicator;
use oxccl::cuda::Stream;
use oxccl_command::shared::Failure;

use crate::buffers::Buffer;
use crate::flush::Flush;
use crate::nccl::Setup;
use crate::own::Own;
use crate::race::Race;
use crate::report::Printer;
use crate::start::Start;

/// One rank's part. What fails is told at once: other ranks may wait where nobody can tell them to
/// stop.
pub(crate) fn run(
    start: &Start,
    control: Communicator,
    own: Communicator,
    stream: Stream,
) -> Result<(), Failure> {
    let ran = start.site.context.scope(|| try_run(start, &control, own, &stream));
    if let Err(failure) = &ran {
        start.site.watchdog.failed(&format!("rank {}: {failure}", control.rank()));
    }
    ran
}

fn try_run(
    start: &Start,
    control: &Communicator,
    own: Communicator,
    stream: &Stream,
) -> Result<(), Failure> {
    let (rank, ranks) = (control.rank(), control.world_size());
    let printer = Printer::of(start.options, rank);
    let floor = start.floor(&printer, (rank, ranks), stream)?;
    let (largest, library) =
        (start.work.largest(ranks), start.nccl.as_ref().map(|it| it.library()));
    let allocate = || Buffer::allocate(start.site.context, library, largest);
    let buffers = [allocate()?, allocate()?];
    printer.fact(&start.own_start);
    let config = start.options.config()?;
    let joined = ranks > 1 && config.advanced.single_launch != Some(false);
    let own = Own::new(own, joined, config.pin);
    let connect = |nccl: &Setup| nccl.connect(&start.site, control, &buffers, &printer);
    let nccl = start.nccl.as_ref().map(connect).transpose()?;
    let flush = start.options.cold.map(|bytes| Flush::new(start.site.context, bytes.0, ranks));
    let (contestants, flush) = ((own, nccl), flush.transpose()?);
    let mut race = Race::new(start, (control, stream), &printer, floor, contestants, flush);
    if let Err(failure) = race.run(buffers) {
        // What waits in a stream for another rank would keep it from going; the process ends soon.
        std::mem::forget(race);
        return Err(failure);
    }
    let (own, wrong) = race.ended();
    // Once more, by now warm: whoever reads the rows takes the best.
    start.floor(&printer, (rank, ranks), stream)?;
    if ranks > 1 {
        start.leaving.measure(&start.site, control, own, buffers, stream, &printer)?;
    }
    start.site.meeting.wait();
    if wrong > 0 { Err(Failure::Wrong { count: wrong }) } else { Ok(()) }
}
