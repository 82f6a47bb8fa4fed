//! Who times candidates, and ends the search when its time is over or somebody asks for it.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use oxccl::CustomSchedule;
use oxccl::plans::synth::Judge;

use crate::failure::Failure;
use crate::interrupt;
use crate::sim::Call;

/// The simulator, with a clock.
pub(super) struct Simulator<'a> {
    call: &'a Call,
    end: Option<Instant>,
    /// What the catalogue takes.
    catalogue_us: f64,
    shown: bool,
}

impl<'a> Simulator<'a> {
    /// From here on Ctrl-C ends the search; a second time it ends the process.
    ///
    /// # Errors
    /// The system does not let signals be taken.
    pub(super) fn new(
        call: &'a Call,
        budget: Option<Duration>,
        catalogue_us: f64,
    ) -> Result<Simulator<'a>, Failure> {
        interrupt::take()?;
        let end = budget.map(|budget| Instant::now() + budget);
        Ok(Simulator { call, end, catalogue_us, shown: std::io::stderr().is_terminal() })
    }

    /// Clears the line on which progress was shown.
    pub(super) fn end(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

impl Judge for Simulator<'_> {
    fn time_ns(&mut self, schedule: &CustomSchedule) -> Option<f64> {
        self.call.by(schedule).ok().map(|timed| timed.time_us * 1e3)
    }

    fn goes_on(&mut self, tried: usize, best_ns: Option<f64>) -> bool {
        if self.shown {
            let best = best_ns.map_or(String::new(), |ns| format!(", the best {:.1} us", ns / 1e3));
            let catalogue = self.catalogue_us;
            eprint!("\r\x1b[K# {tried} candidates{best}, the catalogue's {catalogue:.1} us");
        }
        let in_time = self.end.is_none_or(|end| Instant::now() < end);
        in_time && !interrupt::asked()
    }
}
