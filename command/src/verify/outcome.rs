//! What came of one schedule: a line for people, or an object of `--json`.

use std::path::PathBuf;

use oxccl::plans::algorithms::{Algorithm, Encoding, Entry};
use oxccl::plans::schedule::{Schedule, Slots};
use oxccl::plans::verify::{Symmetric, Verified};
use oxccl::{Collective, CustomSchedule, Kind, Order};
use serde::Serialize;

use super::VerifyOptions;

/// What came of one schedule.
#[derive(Serialize)]
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// None of a file that was refused: what it claims to be is worth nothing.
    pub(super) op: Option<Kind>,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) encoding: Option<Encoding>,
    pub(super) order: Option<Order>,
    pub(super) ranks: Option<usize>,
    pub(super) file: Option<PathBuf>,
    /// Of all ranks.
    pub(super) instructions: Option<usize>,
    /// Those that stand for all, where not all ranks were executed.
    pub(super) firsts: Option<usize>,
    pub(super) seconds: Option<f64>,
    /// Why it is not proven.
    pub(super) why: Option<String>,
    /// The steps that lead to what is wrong.
    pub(super) story: Option<String>,
    pub(super) proof: Option<Proof>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Proven,
    Refused,
    /// Nothing is known of it.
    NotProven,
    /// It does not exist for these ranks.
    Unavailable,
}

impl Outcome {
    fn unnamed(verdict: Verdict) -> Outcome {
        Outcome {
            verdict,
            op: None,
            algorithm: None,
            encoding: None,
            order: None,
            ranks: None,
            file: None,
            instructions: None,
            firsts: None,
            seconds: None,
            why: None,
            story: None,
            proof: None,
        }
    }

    /// Of an algorithm of the catalogue.
    pub(super) fn of(
        options: &VerifyOptions,
        entry: &Entry,
        order: Order,
        verdict: Verdict,
    ) -> Outcome {
        Outcome {
            op: Some(entry.kind),
            algorithm: Some(entry.algorithm),
            encoding: Some(entry.encoding),
            order: Some(order),
            ranks: Some(options.ranks),
            ..Outcome::unnamed(verdict)
        }
    }

    /// Of a file whose schedule is right.
    pub(super) fn of_file(custom: &CustomSchedule, file: PathBuf) -> Outcome {
        let Collective { kind, ranks, .. } = custom.schedule().collective;
        Outcome {
            op: Some(kind),
            algorithm: Some(Algorithm::Custom),
            encoding: Some(custom.encoding()),
            order: Some(custom.order()),
            ranks: Some(ranks),
            file: Some(file),
            ..Outcome::unnamed(Verdict::Proven)
        }
    }

    /// Of a file whose schedule is wrong.
    pub(super) fn refused_file(file: PathBuf, why: String, story: String) -> Outcome {
        Outcome {
            file: Some(file),
            why: Some(why),
            story: Some(story),
            ..Outcome::unnamed(Verdict::Refused)
        }
    }

    /// Not proven, and why.
    pub(super) fn because(self, why: impl ToString) -> Outcome {
        Outcome { why: Some(why.to_string()), ..self }
    }
}

/// What has been proven, of all ranks or of those that stand for all.
#[derive(Serialize)]
pub(super) struct Proof {
    #[serde(skip)]
    kind: Kind,
    #[serde(skip)]
    promise: Order,
    single_rounding: bool,
    in_place: bool,
    /// Segments of a message, at most.
    segments: usize,
    ll_slots: u32,
    ll128_slots: u32,
    slots: u32,
}

impl Proof {
    fn new(schedule: &Schedule, promise: Order, single_rounding: bool, in_place: bool) -> Proof {
        let segments = schedule.most_segments().into_iter().map(|(_, most)| most).max();
        let Slots { ll, ll128, slots } = schedule.slots;
        Proof {
            kind: schedule.collective.kind,
            promise,
            single_rounding,
            in_place,
            segments: segments.unwrap_or(0),
            ll_slots: ll,
            ll128_slots: ll128,
            slots,
        }
    }

    /// The same in lines.
    pub(super) fn lines(&self) -> String {
        let values = match (self.kind.reduces(), self.promise) {
            (false, _) => "every output chunk is the input chunk that it should be",
            (true, Order::Any) => "every output chunk has each rank's contribution once",
            (true, Order::Rank) => "every output chunk is the left fold by rank",
            (true, Order::Tree) => "every output chunk is the aligned tree over ranks",
        };
        let rounding = match (self.kind.reduces(), self.single_rounding) {
            (false, _) => "",
            (true, true) => ", rounded once",
            (true, false) => ", of partial results that are rounded",
        };
        let Proof { ll_slots, ll128_slots, slots, segments, .. } = self;
        let buffers = if self.in_place { "apart and in place" } else { "with separate buffers" };
        format!(
            "         values   {values}{rounding}\n         \
             order    every rank ends, however they are interleaved: no deadlock\n         \
             slots    none is overwritten before it is read, with {ll_slots} on the ll lane, \
             {ll128_slots} on the ll128 lane and {slots} on the slots lane; \
             up to {segments} segments a message\n         \
             links    all drained at the end, so that rounds and calls can follow\n         \
             memory   no race between ranks, or with a user before or after the call; {buffers}"
        )
    }
}

impl From<&Verified> for Proof {
    fn from(verified: &Verified) -> Proof {
        let (promise, once) = (verified.promise(), verified.single_rounding());
        Proof::new(verified.schedule(), promise, once, verified.in_place())
    }
}

impl From<&Symmetric<'_>> for Proof {
    fn from(proof: &Symmetric<'_>) -> Proof {
        let (promise, once) = (proof.promise(), proof.single_rounding());
        Proof::new(proof.first(), promise, once, proof.in_place())
    }
}
