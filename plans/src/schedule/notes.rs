//! What the author of a schedule says of it. It is printed, and changes nothing.

use std::collections::BTreeMap;

/// A schedule's name, and comments on it and its steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// What it is called.
    pub name: Option<String>,
    /// What it is about.
    pub comment: Option<String>,
    /// What its steps are for, by rank and step.
    pub steps: BTreeMap<(usize, usize), String>,
}

impl Notes {
    /// The comment on a rank's step.
    pub fn step(&self, rank: usize, step: usize) -> Option<&str> {
        self.steps.get(&(rank, step)).map(String::as_str)
    }
}
