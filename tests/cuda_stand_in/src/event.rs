//! Events: points in streams, or in what a capture records.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use cudarc::driver::sys::{CUevent, CUresult, CUstream};

use crate::call::{Answer, driver_calls, put};
use crate::capture::{self, Capture};
use crate::context;
use crate::registry::{Registry, lock};
use crate::stream::{Operation, Stream, Ticket};

pub(crate) struct Event {
    state: Mutex<State>,
}

enum State {
    /// Never recorded: there is nothing to wait for.
    Fresh,
    At(Ticket, Instant),
    Captured(Arc<Capture>, Vec<usize>),
}

pub(crate) static EVENTS: Registry<Event> = Registry::new(4);

const DISABLE_TIMING: u32 = 2;
const BLOCKING_SYNC: u32 = 1;

impl Event {
    fn record(&self, stream: &Arc<Stream>) -> Answer {
        if let Some(joined) = &*lock(&stream.joined) {
            *lock(&self.state) = State::Captured(joined.capture.clone(), joined.last.clone());
            return Ok(());
        }
        stream.push(Operation::Nothing)?;
        *lock(&self.state) = State::At(stream.tail(), Instant::now());
        Ok(())
    }

    /// Lets a stream wait for the event; an event of a capture makes it part of that.
    pub(crate) fn wait_in(&self, stream: &Arc<Stream>) -> Answer {
        match &*lock(&self.state) {
            State::Fresh => Ok(()),
            State::Captured(capture, last) => capture::join(stream, capture, last),
            State::At(ticket, _) => {
                if let Some(joined) = &*lock(&stream.joined) {
                    return Err(joined.invalidate(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION));
                }
                stream.push(Operation::Behind(ticket.clone()))
            }
        }
    }

    fn ticket(&self) -> Answer<Option<(Ticket, Instant)>> {
        match &*lock(&self.state) {
            State::Fresh => Ok(None),
            State::At(ticket, since) => Ok(Some((ticket.clone(), *since))),
            State::Captured(..) => Err(CUresult::CUDA_ERROR_CAPTURED_EVENT),
        }
    }
}

driver_calls! {
    fn cuEventCreate(out: *mut CUevent, flags: u32) {
        context::current()?;
        // Events of other processes are not used.
        if flags & !(DISABLE_TIMING | BLOCKING_SYNC) != 0 {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        put(out, EVENTS.add(Arc::new(Event { state: Mutex::new(State::Fresh) })) as CUevent)
    }

    fn cuEventDestroy_v2(handle: CUevent) {
        EVENTS.remove(handle as usize).map(drop)
    }

    fn cuEventRecord(handle: CUevent, stream: CUstream) {
        let event = EVENTS.find(handle as usize)?;
        event.record(&Stream::find(stream)?)
    }

    fn cuEventQuery(handle: CUevent) {
        let event = EVENTS.find(handle as usize)?;
        capture::forbid()?;
        if let Ok((_, context)) = context::current() {
            context.enter();
        }
        match event.ticket()? {
            Some((ticket, _)) if !ticket.is_done() => Err(CUresult::CUDA_ERROR_NOT_READY),
            _ => Ok(()),
        }
    }

    fn cuEventSynchronize(handle: CUevent) {
        let event = EVENTS.find(handle as usize)?;
        capture::forbid()?;
        if let Some((ticket, _)) = event.ticket()? {
            ticket.wait();
        }
        context::current().map(drop)
    }

    fn cuEventElapsedTime(out: *mut f32, start: CUevent, end: CUevent) {
        let of = |event: CUevent| EVENTS.find(event as usize)?.ticket();
        let (Some(start), Some(end)) = (of(start)?, of(end)?) else {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        };
        put(out, end.1.saturating_duration_since(start.1).as_secs_f32() * 1e3)
    }
}
