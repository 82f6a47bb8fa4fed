//! Runs a program's channels: the first in the calling thread, each other in a thread of its own.

use oxccl_kernels::{HostExecutor, format as f};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// The threads behind channels 1 and up, started when first needed.
#[derive(Debug)]
pub(crate) struct Channels {
    executor: HostExecutor,
    helpers: Vec<Helper>,
}

#[derive(Debug)]
struct Helper {
    jobs: Option<Sender<Job>>,
    done: Receiver<f::Outcome>,
    thread: Option<JoinHandle<()>>,
}

struct Job(*const f::Launch);
// SAFETY: the launch block and all it points to outlive the job: `run` waits for every helper before it returns.
unsafe impl Send for Job {}

impl Channels {
    /// No threads yet.
    pub(crate) fn new(executor: HostExecutor) -> Channels {
        Channels { executor, helpers: Vec::new() }
    }

    /// Runs all channels of a launch and returns the first outcome that is not [`f::Outcome::Done`].
    ///
    /// # Safety
    ///
    /// `launch` is complete and valid for `channels` channels, as `HostExecutor::execute` requires for each.
    #[inline]
    pub(crate) unsafe fn run(&mut self, launch: &f::Launch, channels: usize) -> f::Outcome {
        if channels == 1 {
            // SAFETY: by this function's contract.
            return unsafe { self.executor.execute(launch, 0) };
        }
        self.grow(channels - 1);
        for helper in &self.helpers[..channels - 1] {
            if let Some(jobs) = &helper.jobs {
                // A helper ends only when its sender is dropped.
                let _ = jobs.send(Job(launch));
            }
        }
        // SAFETY: by this function's contract.
        let mut outcome = unsafe { self.executor.execute(launch, 0) };
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
                        let outcome = unsafe { executor.execute(job.0, number) };
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
