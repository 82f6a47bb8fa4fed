//! `oxccl verify`: proves schedules of the catalogue, and says what that means.

mod large;
mod outcome;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry, catalogue};
use oxccl::plans::msccl::Blocks;
use oxccl::plans::schedule::{SLOTS, Schedule};
use oxccl::plans::topology::Placement;
use oxccl::{Collective, CustomError, CustomSchedule, Kind, Order};

use crate::failure::Failure;
use crate::options::{self, Choice, Subject};
use crate::{names, speak};
use outcome::{Outcome, Proof, Verdict};

/// Proves the schedules that there are for a collective, for every order that they keep, or the
/// schedule of a file.
///
/// A proof covers values and their order, deadlocks, slots, and races: see the verify module. In
/// worlds of more than 512 ranks, that are symmetric, the first ranks
/// are proven and every other is compared with them.
#[derive(Args)]
pub(crate) struct VerifyOptions {
    /// The collective, or all; or a file with a custom schedule: JSON
    /// (examples/schedule.schema.json describes it), or MSCCL's XML.
    #[arg(value_name = "OP|FILE", value_parser = subject)]
    subject: Subject<Choice<Kind>>,
    /// How many ranks.
    #[arg(long, short = 'g', default_value = "2", value_parser = options::positive)]
    ranks: usize,
    /// So many consecutive ranks share a node [default: all].
    #[arg(long, value_parser = options::positive)]
    per_node: Option<usize>,
    /// The root of a rooted collective; the sender of send_recv.
    #[arg(long, short = 'r', default_value_t = 0)]
    root: usize,
    /// Only this algorithm.
    #[arg(long, value_parser = names::algorithm)]
    algorithm: Option<Algorithm>,
    /// Only this encoding.
    #[arg(long, value_parser = names::encoding)]
    encoding: Option<Encoding>,
    /// Only this order.
    #[arg(long, value_parser = names::order)]
    order: Option<Order>,
    /// Whether a few ranks may stand for all.
    #[arg(long, value_enum, default_value = "auto")]
    symmetry: UseSymmetry,
    /// What becomes of the thread blocks of MSCCL's XML: merged to one list of each rank, or lists
    /// that run side by side, each on a channel of its own.
    #[arg(long, value_name = "merged|lists", default_value = "merged")]
    blocks: Blocks,
    /// Prints one JSON object a schedule.
    #[arg(long)]
    json: bool,
}

/// Whether a few ranks may stand for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum UseSymmetry {
    /// In worlds of more than 512 ranks, where they are alike.
    Auto,
    /// Never: all ranks are executed.
    Never,
    /// In any world: what has ranks that are not alike is not proven.
    Always,
}

fn subject(text: &str) -> Result<Subject<Choice<Kind>>, String> {
    Subject::parse(text, options::kinds)
}

pub(crate) fn main(options: &VerifyOptions) -> Result<(), Failure> {
    match &options.subject {
        Subject::File(path) => prove_file(path, options),
        Subject::Op(kinds) => prove_kinds(options, kinds),
    }
}

/// Reads and proves a file's schedule, or tells why it is wrong.
fn prove_file(path: &Path, options: &VerifyOptions) -> Result<(), Failure> {
    let (start, json) = (Instant::now(), options.json);
    match CustomSchedule::read_with(path, options.blocks) {
        Ok(custom) => {
            let outcome = Outcome {
                instructions: Some(instructions(custom.schedule())),
                seconds: Some(start.elapsed().as_secs_f64()),
                proof: Some(Proof::from(&**custom.verified())),
                ..Outcome::of_file(&custom, path.to_owned())
            };
            print(json, &outcome, || file_lines(&custom, start.elapsed()));
            Ok(())
        }
        Err(CustomError::Refused { path, violation, story }) => {
            refuse(json, path, violation.to_string(), story)
        }
        Err(CustomError::Msccl { path, fault }) if fault.is_wrong() => {
            refuse(json, path, fault.to_string(), fault.story())
        }
        Err(CustomError::Plan { path, fault }) if fault.is_wrong() => {
            refuse(json, path, fault.to_string(), fault.story())
        }
        Err(other) => Err(other.into()),
    }
}

/// What a file has that is right.
fn file_lines(custom: &CustomSchedule, took: Duration) -> String {
    let schedule = custom.schedule();
    let mut text = format!(
        "proven   {}: {} over {} ranks, order {}, {} instructions, {took:.0?}\n",
        custom.name(),
        schedule.collective.kind,
        schedule.collective.ranks,
        custom.order(),
        instructions(schedule),
    );
    for (label, said) in [("name", &custom.notes().name), ("comment", &custom.notes().comment)] {
        if let Some(said) = said {
            text += &format!("         {label:<8} {said}\n");
        }
    }
    if schedule.lists_per_rank > 1 {
        text += &format!(
            "         lists    {} of each rank, which need {} channels\n",
            schedule.lists_per_rank,
            custom.needed_channels()
        );
    }
    text + &Proof::from(&**custom.verified()).lines()
}

fn refuse(json: bool, path: PathBuf, why: String, story: String) -> Result<(), Failure> {
    let text = format!("REFUSED  {}: {why}\n{story}", path.display());
    print(json, &Outcome::refused_file(path, why, story), || text);
    Err(Failure::Unproven { count: 1 })
}

/// Prints what came of one schedule.
fn print(json: bool, outcome: &Outcome, text: impl FnOnce() -> String) {
    match json {
        true => println!("{}", speak::json(outcome)),
        false => println!("{}", text().trim_end()),
    }
}

fn prove_kinds(options: &VerifyOptions, kinds: &Choice<Kind>) -> Result<(), Failure> {
    options.check(kinds)?;
    let mut tally = Tally::default();
    for kind in kinds.of(&Kind::ALL) {
        if kind == Kind::SendRecv && options.ranks == 1 {
            continue;
        }
        for entry in catalogue().filter(|entry| entry.kind == kind && options.picks(entry)) {
            prove_entry(options, entry, &mut tally);
        }
    }
    tally.report(options)
}

impl VerifyOptions {
    fn check(&self, kinds: &Choice<Kind>) -> Result<(), Failure> {
        if self.root >= self.ranks {
            let last = self.ranks - 1;
            let text = format!("--root is {}, there are ranks 0 to {last}", self.root);
            return Err(Failure::Usage(text));
        }
        if *kinds == Choice::One(Kind::SendRecv) && self.ranks == 1 {
            return Err(Failure::Usage("send_recv needs at least 2 ranks".to_owned()));
        }
        Ok(())
    }

    fn placement(&self) -> Placement {
        Placement::filled(self.ranks, self.per_node.unwrap_or(self.ranks))
    }

    fn picks(&self, entry: &Entry) -> bool {
        self.algorithm.is_none_or(|algorithm| algorithm == entry.algorithm)
            && self.encoding.is_none_or(|encoding| encoding == entry.encoding)
    }

    fn collective(&self, kind: Kind) -> Collective {
        let (ranks, root) = (self.ranks, self.root);
        match kind {
            Kind::SendRecv => Collective::send_recv(ranks, root, (root + 1) % ranks),
            Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter => {
                Collective::rooted(kind, ranks, root)
            }
            _ => Collective::new(kind, ranks),
        }
    }

    /// The orders that an entry keeps; those mean nothing where nothing is reduced.
    fn orders(&self, entry: &Entry) -> Vec<Order> {
        let all = [Order::Any, Order::Rank, Order::Tree];
        let kept = |order: &Order| match entry.kind.reduces() {
            true => entry.keeps_unrounded(*order, self.placement()),
            false => *order == Order::Any,
        };
        let wanted = |order: &Order| self.order.is_none_or(|wanted| wanted == *order);
        all.into_iter().filter(kept).filter(wanted).collect()
    }
}

/// What has come out.
#[derive(Default)]
struct Tally {
    proven: usize,
    refused: usize,
    /// Nothing is known of these.
    unproven: usize,
    /// Why algorithms don't exist for these ranks.
    absent: Vec<String>,
}

impl Tally {
    /// Counts and prints what came of one schedule. What does not exist is printed at the end.
    fn tell(&mut self, options: &VerifyOptions, outcome: &Outcome, text: impl FnOnce() -> String) {
        match outcome.verdict {
            Verdict::Proven => self.proven += 1,
            Verdict::Refused => self.refused += 1,
            Verdict::NotProven => self.unproven += 1,
            Verdict::Unavailable => {
                self.absent.extend(outcome.why.clone());
                if !options.json {
                    return;
                }
            }
        }
        print(options.json, outcome, text);
    }

    fn report(self, options: &VerifyOptions) -> Result<(), Failure> {
        let Tally { proven, refused, unproven, absent } = self;
        if proven + refused + unproven == 0 {
            let why = match absent.first() {
                Some(why) => why.clone(),
                None => "no algorithm has this name, encoding and order".to_owned(),
            };
            return Err(Failure::Usage(why));
        }
        if options.json {
            return unproven_is_failure(refused + unproven);
        }
        if !absent.is_empty() {
            println!("not there for these ranks:");
            absent.iter().for_each(|why| println!("  {why}"));
        }
        print!("{proven} schedules proven, {refused} refused, ");
        if unproven > 0 {
            print!("{unproven} not proven, ");
        }
        println!("{} ranks", options.ranks);
        unproven_is_failure(refused + unproven)
    }
}

fn unproven_is_failure(count: usize) -> Result<(), Failure> {
    if count == 0 { Ok(()) } else { Err(Failure::Unproven { count }) }
}

/// Proves an algorithm for the orders that it keeps, in the way that fits the size of the world.
fn prove_entry(options: &VerifyOptions, entry: &Entry, tally: &mut Tally) {
    for order in options.orders(entry) {
        let proven = match options.symmetry {
            UseSymmetry::Never => prove_whole(options, entry, order, tally),
            UseSymmetry::Auto if options.ranks <= large::RANK_BY_RANK => {
                prove_whole(options, entry, order, tally)
            }
            _ => large::prove(options, entry, order, tally),
        };
        if !proven {
            return;
        }
    }
}

/// Proves it rank by rank; whether it exists.
fn prove_whole(options: &VerifyOptions, entry: &Entry, order: Order, tally: &mut Tally) -> bool {
    let start = Instant::now();
    let of = |verdict: Verdict| Outcome::of(options, entry, order, verdict);
    let collective = options.collective(entry.kind);
    let schedule = match entry.schedule(collective, options.placement(), order, SLOTS) {
        Ok(schedule) => schedule,
        Err(unavailable) => {
            let outcome = of(Verdict::Unavailable).because(unavailable);
            tally.tell(options, &outcome, String::new);
            return false;
        }
    };
    let built = start.elapsed();
    let name = name(entry, order);
    let start = Instant::now();
    match oxccl::plans::verify::verify(schedule, order, entry.in_place) {
        Ok(verified) => {
            let (took, count) = (start.elapsed(), instructions(verified.schedule()));
            let proof = Proof::from(&verified);
            let mut text = format!(
                "proven   {name:<60} {count:>9} instructions, built in {built:.0?}, proven in {took:.0?}"
            );
            if options.algorithm.is_some() {
                text += &format!("\n{}", proof.lines());
            }
            let outcome = Outcome {
                instructions: Some(count),
                seconds: Some((built + took).as_secs_f64()),
                proof: Some(proof),
                ..of(Verdict::Proven)
            };
            tally.tell(options, &outcome, || text);
        }
        Err(violation) => {
            let text = format!("REFUSED  {name:<60} {violation}");
            tally.tell(options, &of(Verdict::Refused).because(violation), || text);
        }
    }
    true
}

fn name(entry: &Entry, order: Order) -> String {
    format!("{} {} {} order {order}", entry.kind, entry.algorithm, entry.encoding)
}

fn instructions(schedule: &Schedule) -> usize {
    schedule.lists.iter().map(Vec::len).sum()
}
