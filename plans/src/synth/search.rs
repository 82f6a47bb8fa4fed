//! The search: a list of recipes, and then changes of the best.

use super::recipe::{Larder, Recipe};
use super::{Goal, SynthError};
use crate::collective::Order;
use crate::custom::CustomSchedule;
use crate::random::Random;
use crate::schedule::{Notes, ScheduleFile};

/// So many of the best are changed.
const KEPT: usize = 4;
/// After so many changes in a row that had been tried, there are taken to be no others.
const KNOWN: usize = 200;

/// Who says how long a candidate takes, and when the search ends.
pub trait Judge {
    /// How long the call takes by this schedule, which is proven; none if it cannot be said.
    fn time_ns(&mut self, schedule: &CustomSchedule) -> Option<f64>;

    /// Whether another candidate is to be tried: `tried` have been, and the best takes so long.
    fn goes_on(&mut self, tried: usize, best_ns: Option<f64>) -> bool;
}

/// A schedule that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// What is written into a file.
    pub file: ScheduleFile,
    /// How long it takes, as the judge says.
    pub time_ns: f64,
    /// What it is made of.
    pub recipe: String,
}

/// What a search has come to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The fastest candidate; none if there was no time for any.
    pub best: Option<Found>,
    /// Candidates that were proven and timed.
    pub timed: usize,
    /// Recipes that came to no schedule: their ranks come to a standstill.
    pub stalled: usize,
    /// Candidates that the verifier has refused, or of which the judge could say nothing.
    pub refused: usize,
}

impl Outcome {
    /// Candidates that were tried.
    pub fn tried(&self) -> usize {
        self.timed + self.stalled + self.refused
    }
}

/// Searches for a fast schedule until the judge ends it, the goal's number of candidates has been
/// tried, or there are no others. The best so far is kept whenever it ends.
///
/// # Errors
/// [`SynthError`] says what is not searched for.
pub fn synthesize(goal: &Goal<'_>, judge: &mut impl Judge) -> Result<Outcome, SynthError> {
    goal.check()?;
    let mut search = Search {
        larder: Larder::new(goal),
        goal,
        judge,
        known: Vec::new(),
        kept: Vec::new(),
        outcome: Outcome::default(),
    };
    search.run();
    Ok(search.outcome)
}

struct Search<'a, J> {
    goal: &'a Goal<'a>,
    larder: Larder,
    judge: &'a mut J,
    known: Vec<Recipe>,
    /// The best, the fastest first.
    kept: Vec<(f64, Recipe)>,
    outcome: Outcome,
}

impl<J: Judge> Search<'_, J> {
    fn run(&mut self) {
        for recipe in self.larder.firsts() {
            if !self.goes_on() {
                return;
            }
            self.attempt(recipe);
        }
        let mut random = Random::new(self.goal.seed);
        let mut in_a_row = 0;
        while in_a_row < KNOWN && !self.kept.is_empty() && self.goes_on() {
            // The better, the more often.
            let most = 1 + random.below(self.kept.len());
            let from = self.kept[random.below(most)].1;
            let changed = self.larder.changed(&from, &mut random);
            in_a_row = if self.attempt(changed) { 0 } else { in_a_row + 1 };
        }
    }

    fn goes_on(&mut self) -> bool {
        let tried = self.outcome.tried();
        let best = self.kept.first().map(|(time, _)| *time);
        self.goal.candidates.is_none_or(|most| tried < most) && self.judge.goes_on(tried, best)
    }

    /// Makes, proves and times a candidate; false if it has been tried.
    fn attempt(&mut self, recipe: Recipe) -> bool {
        if self.known.contains(&recipe) {
            return false;
        }
        self.known.push(recipe);
        let Some(schedule) = self.larder.schedule(&recipe) else {
            self.outcome.stalled += 1;
            return true;
        };
        let mut file = ScheduleFile::new(schedule, Order::Any, true);
        file.notes = Notes {
            name: Some(format!("synthesized {}", self.goal.kind)),
            comment: Some(recipe.to_string()),
            ..Notes::default()
        };
        let proven = CustomSchedule::prove("candidate", file.clone()).ok();
        let Some(time_ns) = proven.and_then(|proven| self.judge.time_ns(&proven)) else {
            self.outcome.refused += 1;
            return true;
        };
        self.outcome.timed += 1;
        let place = self.kept.partition_point(|(time, _)| *time <= time_ns);
        self.kept.insert(place, (time_ns, recipe));
        self.kept.truncate(KEPT);
        if place == 0 {
            self.outcome.best = Some(Found { file, time_ns, recipe: recipe.to_string() });
        }
        true
    }
}
