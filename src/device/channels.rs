//! Runs a program's channels: the first in the calling thread, each other in a thread of its own.

use oxccl_kernels::{HostExecutor, TracedStep, format as f};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The threads behind channels 1 and up, started when first needed.
#[derive(Debug)]
pub(crate) struct Channels {
    executor: HostExecutor,
    helpers: Vec<Helper>,
    /// Where steps are kept, while they are traced.
    trace: Option<Steps>,
}

/// The steps of all channels so far.
type Steps = Arc<Mutex<Vec<TracedStep>>>;

#[derive(Debug)]
struct Helper {
    jobs: Option<Sender<Job>>,
    done: Receiver<f::Outcome>,
    thread: Option<JoinHandle<()>>,
}

struct Job(*const f::Launch, Option<Steps>);
// SAFETY: the launch block and all it points to outlive the job: `run` waits for every helper
// before it returns.
unsafe impl Send for Job {}

impl Channels {
    /// No threads yet.
    pub(crate) fn new(executor: HostExecutor) -> Channels {
        Channels { executor, helpers: Vec::new(), trace: None }
    }

    /// Keeps the steps of calls from here on, or no longer.
    pub(crate) fn set_trace(&mut self, on: bool) {
        self.trace = on.then(Steps::default);
    }

    /// The steps that have been kept, of all channels.
    pub(crate) fn take_trace(&mut self) -> Vec<TracedStep> {
        let steps = self.trace.as_ref().map(|steps| {
            std::mem::take(&mut *steps.lock().unwrap_or_else(PoisonError::into_inner))
        });
        steps.unwrap_or_default()
    }

    /// Runs all channels of a launch and returns the first outcome that is not
    /// [`f::Outcome::Done`].
    ///
    /// # Safety
    ///
    /// `launch` is complete and valid for `channels` channels, as `HostExecutor::execute` requires
    /// for each.
    #[inline]
    pub(crate) unsafe fn run(&mut self, launch: &f::Launch, channels: usize) -> f::Outcome {
        if channels == 1 {
            // SAFETY: by this function's contract.
            return unsafe { execute(&self.executor, launch, 0, self.trace.as_ref()) };
        }
        // SAFETY: by this function's contract.
        unsafe { self.run_several(launch, channels) }
    }

    /// Runs more channels than one.
    ///
    /// # Safety
    ///
    /// As for [`Channels::run`].
    #[inline(never)]
    unsafe fn run_several(&mut self, launch: &f::Launch, channels: usize) -> f::Outcome {
        self.grow(channels - 1);
        for helper in &self.helpers[..channels - 1] {
            if let Some(jobs) = &helper.jobs {
                // A helper ends only when its sender is dropped.
                let _ = jobs.send(Job(launch, self.trace.clone()));
            }
        }
        // SAFETY: by this function's contract.
        let mut outcome = unsafe { execute(&self.executor, launch, 0, self.trace.as_ref()) };
        for helper in &self.helpers[..channels - 1] {
            let other = helper.done.recv().unwrap_or(f::Outcome::Aborted);
            if outcome == f::Outcome::Done {
                outcome = other;
            }
        }
        outcome
    }

    fn grow(&mut self, helpers: usize) {
        while self.helpers.len() < helpers {
            let number = self.helpers.len() as u32 + 1;
            let (jobs, inbox) = channel::<Job>();
            let (outbox, done) = channel();
            let executor = self.executor;
            let thread = std::thread::Builder::new().name(format!("oxccl-channel-{number}")).spawn(
                move || {
                    for job in inbox {
                        // SAFETY: `Channels::run`'s caller vouches for all channels of the launch.
                        let outcome = unsafe { execute(&executor, job.0, number, job.1.as_ref()) };
                        if outbox.send(outcome).is_err() {
                            break;
                        }
                    }
                },
            );
            // Without a thread the channel reports an abort instead of hanging: `done` is closed.
            self.helpers.push(Helper { jobs: Some(jobs), done, thread: thread.ok() });
        }
    }
}

/// Runs a channel, and keeps its steps if that is wanted.
///
/// # Safety
///
/// As for `HostExecutor::execute`.
#[inline]
unsafe fn execute(
    executor: &HostExecutor,
    launch: *const f::Launch,
    channel: u32,
    trace: Option<&Steps>,
) -> f::Outcome {
    match trace {
        // SAFETY: by this function's contract.
        None => unsafe { executor.execute(launch, channel) },
        // SAFETY: as above.
        Some(kept) => unsafe { execute_traced(executor, launch, channel, kept) },
    }
}

/// The same, and keeps its steps. Apart, so that a call that is not traced has nothing of it.
///
/// # Safety
///
/// As for `HostExecutor::execute`.
#[cold]
#[inline(never)]
unsafe fn execute_traced(
    executor: &HostExecutor,
    launch: *const f::Launch,
    channel: u32,
    kept: &Steps,
) -> f::Outcome {
    // SAFETY: by this function's contract.
    let (outcome, steps) = unsafe { executor.execute_traced(launch, channel) };
    kept.lock().unwrap_or_else(PoisonError::into_inner).extend(steps);
    outcome
}

impl Drop for Channels {
    fn drop(&mut self) {
        for helper in &mut self.helpers {
            helper.jobs = None;
            if let Some(thread) = helper.thread.take() {
                // The helper is idle: `run` waited for it.
                let _ = thread.join();
            }
        }
    }
}
