//! What is seen of ranks, in words: for `oxccl status`, which looks at them, and `oxccl blame`,
//! which reads what they have left.

mod table;
mod verdict;

use oxccl::status::Snapshot;
pub(crate) use table::{ranks, stragglers};
pub(crate) use verdict::{Verdict, verdict};

/// The snapshots of each communicator, the job's before its parts.
pub(crate) fn by_communicator(mut all: Vec<Snapshot>) -> Vec<Vec<Snapshot>> {
    let of = |one: &Snapshot| (one.job.clone(), one.is_part(), one.communicator.clone());
    all.sort_by_key(|one| (of(one), one.seen.rank));
    all.chunk_by(|one, next| of(one) == of(next)).map(<[_]>::to_vec).collect()
}

/// A communicator's name.
pub(crate) fn name(one: &Snapshot) -> String {
    match one.is_part() {
        false => format!("job {}", one.job),
        true => format!("part {} of job {}", one.communicator, one.job),
    }
}

/// A time in its unit.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} us", 1e6 * s),
        s if s < 1.0 => format!("{:.1} ms", 1e3 * s),
        s => format!("{s:.1} s"),
    }
}

/// Ranks in a sentence.
pub(crate) fn listed(ranks: &[usize]) -> String {
    match ranks {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(ToString::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_people() {
        let listed = [&[][..], &[3], &[0, 2], &[1, 2, 3]].map(listed);
        assert_eq!(listed, ["no rank", "rank 3", "ranks 0 and 2", "ranks 1, 2 and 3"]);
        let times = [2e-7, 0.0201, 12.34].map(time);
        assert_eq!(times, ["0.2 us", "20.1 ms", "12.3 s"]);
    }
}
