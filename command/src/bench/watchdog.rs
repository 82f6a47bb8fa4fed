//! Ends the process when nothing goes on any more: what waits inside another library, or in a
//! kernel of its, cannot be told to stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::speak;

/// Exit status of a comparison that hung; that of `timeout`.
const HUNG: i32 = 124;

/// How long the others may go on after one rank has failed: of what fails on all of them, they hear
/// at different times.
const GRACE: Duration = Duration::from_secs(2);

/// Watches that steps follow each other, to the end of the process.
pub struct Watchdog {
    step: Arc<Step>,
}

struct Step {
    /// What may help where nothing goes on.
    remedy: &'static str,
    started: Instant,
    /// Milliseconds from the start to the last step.
    last_ms: AtomicU64,
    doing: Mutex<String>,
    failed: AtomicBool,
}

impl Watchdog {
    /// No step may take longer; the remedy is told where one does.
    pub fn start(patience: Duration, remedy: &'static str) -> Watchdog {
        let last_ms = AtomicU64::new(0);
        let (started, failed) = (Instant::now(), AtomicBool::new(false));
        let step = Arc::new(Step { remedy, started, last_ms, doing: Mutex::default(), failed });
        let watched = step.clone();
        std::thread::spawn(move || watched.watch(patience));
        Watchdog { step }
    }

    /// The next step begins.
    pub fn step(&self, doing: impl Into<String>) {
        *self.step.doing.lock().unwrap_or_else(|broken| broken.into_inner()) = doing.into();
        self.step.last_ms.store(self.step.now_ms(), Ordering::Release);
    }

    /// A rank has failed: only the first is told, since others fail of it. The process ends soon,
    /// whatever the others wait for.
    pub fn failed(&self, why: &str) {
        if !self.step.failed.swap(true, Ordering::AcqRel) {
            speak::complain(why);
            self.step.last_ms.store(self.step.now_ms(), Ordering::Release);
        }
    }

    /// All ranks have agreed to go on without what has failed.
    pub fn recovered(&self) {
        self.step.failed.store(false, Ordering::Release);
    }
}

impl Step {
    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn watch(&self, patience: Duration) {
        loop {
            std::thread::sleep(Duration::from_millis(50));
            let last_ms = self.last_ms.load(Ordering::Acquire);
            let waited = Duration::from_millis(self.now_ms().saturating_sub(last_ms));
            if self.failed.load(Ordering::Acquire) && waited > GRACE {
                end(1);
            }
            if waited > patience {
                let doing = self.doing.lock().unwrap_or_else(|broken| broken.into_inner());
                speak::complain(format_args!(
                    "nothing has happened for {:.1} s while {doing}: {}",
                    waited.as_secs_f64(),
                    self.remedy
                ));
                end(HUNG);
            }
        }
    }
}

/// Ends the process as it stands: what a driver and NCCL do at an exit waits for kernels. Rows were
/// written line by line, so nothing is left in a buffer.
fn end(status: i32) -> ! {
    // SAFETY: it needs nothing.
    unsafe { libc::_exit(status) }
}
