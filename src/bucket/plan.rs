//! Which parameter lies in which bucket. Pure: equal sizes give equal buckets on every rank.

use crate::error::Error;
use oxccl_plans::length::{Length, TooLong};

/// Where a parameter's gradient lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The bucket: the first has the last parameters.
    pub bucket: usize,
    /// Where it begins in the bucket, in elements.
    pub offset: usize,
    /// Number of elements.
    pub count: usize,
}

/// All buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Each parameter's place.
    pub(super) places: Vec<Place>,
    /// Each bucket's length in elements.
    pub(super) counts: Vec<usize>,
}

impl Plan {
    /// Fills buckets with the parameters in reverse order, each up to the capacity, which only a
    /// single parameter may exceed. Elements have so many bytes.
    ///
    /// # Errors
    /// [`TooLong`], of one parameter or of a bucket.
    pub(super) fn new(
        parameters: &[usize],
        capacity: usize,
        size_bytes: usize,
    ) -> Result<Plan, TooLong> {
        let mut filled: Vec<Length> = Vec::new();
        let mut places = Vec::with_capacity(parameters.len());
        for &count in parameters.iter().rev() {
            let longer = filled.last().and_then(|open| open.plus(count).ok());
            let offset = match (longer.filter(|open| open.count() <= capacity), filled.last_mut()) {
                (Some(longer), Some(open)) => std::mem::replace(open, longer).count(),
                _ => {
                    filled.push(Length::new(count, size_bytes)?);
                    0
                }
            };
            places.push(Place { bucket: filled.len() - 1, offset, count });
        }
        places.reverse();
        let counts = filled.into_iter().map(Length::count).collect();
        Ok(Plan { places, counts })
    }

    /// A parameter's place.
    pub(super) fn place(&self, parameter: usize) -> Result<Place, Error> {
        self.places.get(parameter).copied().ok_or_else(|| Error::Parameter {
            parameter,
            detail: format!("there are {}", self.places.len()),
        })
    }
}

/// Which parameters are not ready yet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    ready: Vec<bool>,
    /// By bucket.
    left: Vec<usize>,
}

impl Pending {
    pub(super) fn new(plan: &Plan) -> Pending {
        let mut left = vec![0; plan.counts.len()];
        plan.places.iter().for_each(|place| left[place.bucket] += 1);
        Pending { ready: vec![false; plan.places.len()], left }
    }

    /// A parameter's place, if it is not ready.
    pub(super) fn place(&self, plan: &Plan, parameter: usize) -> Result<Place, Error> {
        let place = plan.place(parameter)?;
        if self.ready[parameter] {
            let detail = "it has been marked ready in this step before".into();
            return Err(Error::Parameter { parameter, detail });
        }
        Ok(place)
    }

    /// Marks a parameter ready; its bucket, if that is ready now.
    pub(super) fn mark(&mut self, plan: &Plan, parameter: usize) -> Result<Option<usize>, Error> {
        let bucket = self.place(plan, parameter)?.bucket;
        self.ready[parameter] = true;
        self.left[bucket] -= 1;
        Ok((self.left[bucket] == 0).then_some(bucket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_parameters_come_first() {
        let plan = Plan::new(&[5, 3, 200, 0, 60, 40], 100, 4).unwrap();
        assert_eq!(plan.counts, [100, 200, 8]);
        assert_eq!(plan.places[5], Place { bucket: 0, offset: 0, count: 40 });
        assert_eq!(plan.places[4], Place { bucket: 0, offset: 40, count: 60 });
        assert_eq!(plan.places[3], Place { bucket: 0, offset: 100, count: 0 });
        assert_eq!(plan.places[0], Place { bucket: 2, offset: 3, count: 5 });
        assert_eq!(Plan::new(&[], 100, 4), Ok(Plan::default()));
    }

    #[test]
    fn a_bucket_is_never_longer_than_memory() {
        let most = isize::MAX as usize;
        let plan = Plan::new(&[most, 5, 1], usize::MAX, 1).unwrap();
        assert_eq!(plan.counts, [6, most]);
        for too_long in [usize::MAX, most + 1] {
            assert_eq!(Plan::new(&[3, too_long], usize::MAX, 1), Err(TooLong));
        }
    }

    #[test]
    fn a_bucket_is_ready_with_its_last_parameter() {
        let plan = Plan::new(&[10, 20, 30], 50, 4).unwrap();
        let mut pending = Pending::new(&plan);
        assert_eq!(pending.mark(&plan, 1).unwrap(), None);
        assert!(matches!(pending.mark(&plan, 1), Err(Error::Parameter { parameter: 1, .. })));
        assert_eq!(pending.mark(&plan, 0).unwrap(), Some(1));
        assert_eq!(pending.mark(&plan, 2).unwrap(), Some(0));
        assert!(matches!(pending.mark(&plan, 3), Err(Error::Parameter { parameter: 3, .. })));
    }
}
