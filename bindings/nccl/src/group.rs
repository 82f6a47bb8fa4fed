//! `ncclGroupStart` to `ncclGroupEnd`: a thread's calls and starts, which happen together at the
//! outermost end.

use crate::abi::{Code, CommHandle};
use crate::answer::{Answer, Failure};
use crate::call::Request;
use crate::comm::{Comm, Starting};
use crate::registry;
use std::cell::Cell;
use std::sync::Arc;

/// What a thread has collected.
#[derive(Default)]
struct Group {
    depth: usize,
    /// Why it cannot be launched any more.
    failed: Option<Failure>,
    starts: Vec<Starting>,
    acts: Vec<(CommHandle, Vec<Act>)>,
    calls: Vec<(CommHandle, Arc<Comm>, Vec<Request>)>,
}

/// What all ranks of a communicator do together, beside its calls and before them.
pub(crate) type Act = Box<dyn FnOnce() -> Answer + Send>;

thread_local! {
    /// The group that this thread is making, or null. It is a plain pointer, so that a thread's end
    /// runs nothing.
    static GROUP: Cell<*mut Group> = const { Cell::new(std::ptr::null_mut()) };
}

/// The thread's group. Nothing else may have it while the reference is used.
fn current() -> Option<&'static mut Group> {
    let group = GROUP.get();
    // SAFETY: it is null or a box of this thread, which `end` alone frees; no caller keeps it
    // across a function that could ask again.
    unsafe { group.as_mut() }
}

/// `ncclGroupStart`.
pub(crate) fn begin() -> Answer {
    match current() {
        Some(group) => group.depth += 1,
        None => GROUP.set(Box::into_raw(Box::new(Group { depth: 1, ..Group::default() }))),
    }
    Ok(())
}

/// `ncclGroupEnd`.
pub(crate) fn end() -> Answer {
    take()?.map_or(Ok(()), Group::launch)
}

/// `ncclGroupSimulateEnd`: ends the group without doing anything. How long it would take, in
/// microseconds; nothing of what is no outermost end.
pub(crate) fn simulate() -> Answer<Option<f64>> {
    take()?.map(Group::predict).transpose()
}

/// Ends one level; the group, if it was the outermost.
fn take() -> Answer<Option<Group>> {
    let Some(group) = current() else {
        return Err(Failure::usage("there was no ncclGroupStart in this thread"));
    };
    group.depth -= 1;
    if group.depth > 0 {
        return Ok(None);
    }
    let group = GROUP.replace(std::ptr::null_mut());
    // SAFETY: it came from `begin`, and the thread has it no longer.
    Ok(Some(*unsafe { Box::from_raw(group) }))
}

/// Does something now, or at the end of the thread's group. What is wrong with it spoils the group.
fn now_or_later<T>(
    make: impl FnOnce() -> Answer<T>,
    later: impl FnOnce(&mut Group, T),
    now: impl FnOnce(T) -> Answer,
) -> Answer {
    match (make(), current()) {
        (Ok(made), None) => now(made),
        (Ok(made), Some(group)) => {
            later(group, made);
            Ok(())
        }
        (Err(failure), group) => {
            if let Some(group) = group {
                group.failed.get_or_insert_with(|| failure.clone());
            }
            Err(failure)
        }
    }
}

/// Makes a call.
pub(crate) fn call(handle: CommHandle, make: impl FnOnce(&Comm) -> Answer<Request>) -> Answer {
    let made = || {
        let comm = registry::get(handle)?;
        let request = make(&comm)?;
        Ok((comm, request))
    };
    let later = |group: &mut Group, (comm, request)| match group
        .calls
        .iter_mut()
        .find(|(of, ..)| *of == handle)
    {
        Some((_, _, requests)) => requests.push(request),
        None => group.calls.push((handle, comm, vec![request])),
    };
    now_or_later(made, later, |(comm, request)| comm.run(&[request]))
}

/// Does what all ranks of a communicator do together.
pub(crate) fn act(handle: CommHandle, make: impl FnOnce(Arc<Comm>) -> Answer<Act>) -> Answer {
    let later = |group: &mut Group, act| match group.acts.iter_mut().find(|(of, _)| *of == handle) {
        Some((_, acts)) => acts.push(act),
        None => group.acts.push((handle, vec![act])),
    };
    now_or_later(|| make(registry::get(handle)?), later, |act: Act| act())
}

/// Starts a communicator, and says its handle.
pub(crate) fn start(
    make: impl FnOnce() -> Answer<(Starting, CommHandle)>,
    tell: impl Fn(CommHandle),
) -> Answer {
    let later = |group: &mut Group, (starting, handle)| {
        tell(handle);
        group.starts.push(starting);
    };
    let now = |(starting, handle): (Starting, CommHandle)| {
        tell(handle);
        let done = starting.run();
        if done.as_ref().is_err_and(|failure| failure.code != Code::InProgress) {
            tell(0);
            let _ = registry::remove(handle);
        }
        done
    };
    now_or_later(make, later, now)
}

impl Group {
    /// How long its calls would take: of the communicator that takes longest.
    fn predict(self) -> Answer<f64> {
        forget(&self.starts)?;
        if let Some(failure) = self.failed {
            return Err(failure);
        }
        let mut times = self.calls.iter().map(|(_, comm, requests)| comm.predict(requests));
        times.try_fold(0.0, |longest, time| Ok(f64::max(longest, time?)))
    }

    fn launch(self) -> Answer {
        if let Some(failure) = self.failed {
            forget(&self.starts)?;
            return Err(failure);
        }
        let has_work = !self.calls.is_empty() || !self.acts.is_empty();
        if !self.starts.is_empty() && has_work {
            return Err(Failure::usage(
                "a group starts communicators or makes calls, not both at once",
            ));
        }
        let blocking = self.starts.iter().any(|start| !start.is_nonblocking());
        let started = match blocking {
            true => together(self.starts, Starting::run),
            false => first(self.starts.into_iter().map(Starting::run).collect()),
        };
        started?;
        // One communicator's in their order, beside other communicators'.
        together(self.acts, |(_, acts)| acts.into_iter().try_for_each(|act| act()))?;
        match &self.calls[..] {
            [] => Ok(()),
            [(_, comm, requests)] => comm.run(requests),
            // The host's calls block, so each communicator needs a thread.
            _ if self.calls.iter().any(|(_, comm, _)| is_host(comm)) => {
                together(self.calls, |(_, comm, requests)| comm.run(&requests))
            }
            many => many.iter().try_for_each(|(_, comm, requests)| comm.run(requests)),
        }
    }
}

/// Starts that will not happen.
fn forget(starts: &[Starting]) -> Answer {
    starts.iter().try_for_each(|start| registry::remove(start.handle()).map(drop))
}

fn is_host(comm: &Comm) -> bool {
    comm.ready().is_ok_and(|(_, device)| device == oxccl::Device::Host)
}

/// Does all at once, each in a thread.
fn together<T: Send>(all: Vec<T>, act: impl Fn(T) -> Answer + Sync) -> Answer {
    if all.len() < 2 {
        return all.into_iter().try_for_each(act);
    }
    let act = &act;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || act(one))).collect();
        let panicked = || Failure::new(Code::InternalError, "a defect of oxccl: it panicked");
        first(
            threads.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(panicked()))).collect(),
        )
    })
}

/// The first failure; one that is in progress counts where nothing has failed.
fn first(done: Vec<Answer>) -> Answer {
    let failures: Vec<Failure> = done.into_iter().filter_map(Result::err).collect();
    let real = failures.iter().find(|failure| failure.code != Code::InProgress);
    real.or(failures.first()).cloned().map_or(Ok(()), Err)
}
