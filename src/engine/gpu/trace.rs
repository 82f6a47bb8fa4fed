//! Traces of a GPU's steps: all ranks begin and end them together, since traced kernels are loaded
//! first, and a driver that loads may wait for all kernels of the context.

use super::GpuBackend;
use crate::device::cuda::Kernel;
use crate::engine::prepared::Prepared;
use crate::error::Error;
use oxccl_kernels::StepTrace;
use oxccl_transports::cuda::beside_captures;
use oxccl_transports::{Bootstrap, Cause, CudaError, Error as Transport, deadline_in};
use serde::{Deserialize, Serialize};
use std::ffi::c_void;

/// What a rank tells all, before and after it has loaded.
#[derive(Serialize, Deserialize)]
struct Told {
    traces: bool,
    /// Why it cannot.
    refused: Option<String>,
}

impl GpuBackend {
    /// [`Backend::set_trace`](super::Backend::set_trace).
    pub(super) fn switch_trace(
        &mut self,
        bootstrap: &mut dyn Bootstrap,
        steps: Option<usize>,
    ) -> Result<(), Error> {
        self.watch.wait();
        self.ranks.check()?;
        let driver = self.gpu.context().device().driver();
        beside_captures(driver, || self.switch_together(bootstrap, steps))?;
        self.traces = steps.is_some();
        tracing::info!(rank = self.ranks.rank, traces = self.traces, "traces of steps");
        Ok(())
    }

    fn switch_together(
        &mut self,
        bootstrap: &mut dyn Bootstrap,
        steps: Option<usize>,
    ) -> Result<(), Error> {
        // Whoever replays a graph tells nobody, and it runs the kernels that it was captured with.
        let has_captured = steps.is_some() && !self.captured.is_empty();
        let refused = has_captured.then(|| {
            "it has captured calls, whose replays would not be traced: trace before captures, by a \
             communicator of its own"
                .to_owned()
        });
        // Once all have told, no kernel of theirs runs, and until all have loaded none is launched.
        self.tell(bootstrap, &Told { traces: steps.is_some(), refused })?;
        let loaded = steps.map_or(Ok(()), |steps| self.gpu.prepare_trace(steps));
        let refused = loaded.err().map(|error| error.to_string());
        self.tell(bootstrap, &Told { traces: steps.is_some(), refused })
    }

    /// Tells all ranks, and hears from all. Fails if one of them cannot trace; any other error ends
    /// the communicator.
    fn tell(&self, bootstrap: &mut dyn Bootstrap, told: &Told) -> Result<(), Error> {
        let heard = self.try_tell(bootstrap, told);
        let all = heard.inspect_err(|error| {
            self.ranks.end(error, self.ranks.last_entered());
        })?;
        let mut refused = all.into_iter().enumerate();
        match refused.find_map(|(rank, told)| Some((rank, told.refused?))) {
            Some((rank, reason)) => Err(Error::NotTraced { rank, reason }),
            None => Ok(()),
        }
    }

    fn try_tell(&self, bootstrap: &mut dyn Bootstrap, told: &Told) -> Result<Vec<Told>, Error> {
        let mismatch = |rank, detail| {
            Transport::Stopped(Cause::Mismatch { rank, detail, ranks: Vec::new() }).into()
        };
        let unreadable = |rank, error: &serde_json::Error| {
            mismatch(rank, format!("what it tells of its trace cannot be read ({error})"))
        };
        let bytes =
            serde_json::to_vec(told).map_err(|error| unreadable(self.ranks.rank, &error))?;
        let deadline = deadline_in(self.ranks.poll.timeout());
        let all = bootstrap.all_gather(&bytes, deadline).map_err(|error| match error {
            Transport::Stopped(cause) => Error::from_cause(cause, "set_trace".to_owned()),
            other => other.into(),
        })?;
        let read = |(rank, bytes): (usize, Vec<u8>)| {
            let theirs: Told =
                serde_json::from_slice(&bytes).map_err(|error| unreadable(rank, &error))?;
            if theirs.traces == told.traces {
                return Ok(theirs);
            }
            let asks = |told: &Told| if told.traces { "begins" } else { "ends" };
            let (its, own) = (asks(&theirs), asks(told));
            Err(mismatch(rank, format!("it {its} a trace, this rank {own} one")))
        };
        all.into_iter().enumerate().map(read).collect()
    }

    /// The steps that have been written, of all launches so far.
    pub(super) fn take_steps(&mut self) -> Result<StepTrace, Error> {
        if !self.traces {
            return Ok(StepTrace::default());
        }
        self.watch.wait();
        Ok(self.gpu.traced().map_or_else(|| Ok(StepTrace::default()), |traced| traced.take())?)
    }

    /// The kernel that a launch gets in place of this one, and where it writes its steps, if it is
    /// traced.
    pub(super) fn traced(
        &mut self,
        prepared: &Prepared,
        kernel: Kernel,
        is_captured: bool,
    ) -> Result<(Kernel, *mut c_void), CudaError> {
        match self.gpu.traced().filter(|_| self.traces) {
            None => Ok((kernel, std::ptr::null_mut())),
            Some(_) if is_captured => Err(CudaError::TracedCapture),
            Some(traced) => {
                let reduces = prepared.blocks.iter().any(|block| block.reduces);
                Ok((traced.pick(kernel, reduces)?, traced.ring()))
            }
        }
    }
}
