//! Which buckets wait for a buffer that is not ready.

use crate::work::Flight;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The buckets that wait for a buffer.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    buckets: Mutex<Buckets>,
}

/// Most often it is one.
#[derive(Debug, Default)]
struct Buckets {
    first: Option<(Arc<Flight>, usize)>,
    others: Vec<(Arc<Flight>, usize)>,
}

impl Marks {
    /// One bucket more.
    pub(crate) fn add(&self, flight: &Arc<Flight>, bucket: usize) {
        let bucket = (flight.clone(), bucket);
        let mut buckets = self.lock();
        match &buckets.first {
            None => buckets.first = Some(bucket),
            Some(_) => buckets.others.push(bucket),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        let buckets = self.lock();
        usize::from(buckets.first.is_some()) + buckets.others.len()
    }

    pub(crate) fn take(self) -> impl Iterator<Item = (Arc<Flight>, usize)> {
        let buckets = self.buckets.into_inner().unwrap_or_else(PoisonError::into_inner);
        buckets.first.into_iter().chain(buckets.others)
    }
}
