//! How long a call takes to end that waits, in a kernel, for a rank which has left.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use oxccl::cuda::Stream;
use oxccl::{Collectives, Communicator, DataType, Kind, OpKind};
use oxccl_command::shared::{Case, Failure};

use crate::buffers::Buffer;
use crate::contestant::{Contestant, Placed, Task};
use crate::own::Own;
use crate::report::{Left, Printer};
use crate::site::Site;

/// When the first rank left.
#[derive(Default)]
pub(crate) struct Leaving(Mutex<Option<Instant>>);

impl Leaving {
    /// Ends the communicators of all ranks but rank 0 in the middle of a call of its, which it
    /// cannot carry out alone.
    pub(crate) fn measure(
        &self,
        site: &Site,
        control: &Communicator,
        mut own: Own,
        [input, output]: [Buffer; 2],
        stream: &Stream,
        printer: &Printer,
    ) -> Result<(), Failure> {
        let (rank, ranks) = (control.rank(), control.world_size());
        let (kind, data_type, op) = (Kind::AllReduce, DataType::U8, OpKind::Sum);
        let case = Case { kind, data_type, op, root: 0 };
        let shape = case.shape(ranks, 1);
        let task = Task::single(Placed { case, shape, input: input.at, output: output.at });
        site.watchdog.step("a rank goes while another is in a call");
        own.settings(&task)?;
        control.barrier()?;
        site.meeting.wait();
        if rank > 0 {
            // Long enough for the call to wait.
            std::thread::sleep(Duration::from_millis(20));
            self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
            drop(own);
            return Ok(());
        }
        let ended = own.put(0, &task, stream).and_then(|()| own.ended());
        let now = Instant::now();
        let gone = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (Err(Failure::Collective(_)), Some(gone)) = (ended, gone) else {
            return Err(Failure::Usage("a call of one rank alone has ended well".to_owned()));
        };
        let time_ms = now.saturating_duration_since(gone).as_secs_f64() * 1e3;
        printer.fact(&Left { op: "left", contestant: "oxccl", ranks, time_ms });
        Ok(())
    }
}
