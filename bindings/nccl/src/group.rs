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
    calls: Vec<(CommHandle, Arc<Comm>, Vec<Request>)>,
}

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

/// `ncclGroupSimulateEnd`: ends the group without doing anything.
pub(crate) fn discard() -> Answer {
    let Some(group) = take()? else { return Ok(()) };
    for start in &group.starts {
        registry::remove(start.handle())?;
    }
    Ok(())
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
    fn launch(self) -> Answer {
        if let Some(failure) = self.failed {
            for start in self.starts {
                registry::remove(start.handle())?;
            }
            return Err(failure);
        }
        if !self.starts.is_empty() && !self.calls.is_empty() {
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

fn is_host(comm: &Comm) -> bool {
    comm.ready().is_ok_and(|(_, device)| device == oxccl::Device::Host)
}

/// Does all at once, each in a thread.
fn together<T: Send>(all: Vec<T>, act: impl Fn(T) -> Answer + Sync) -> Answer {
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
