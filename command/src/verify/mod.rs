//! `oxccl verify`: proves schedules of the catalogue, and says what that means.

mod large;

use std::path::Path;
use std::time::Instant;

use clap::Args;
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry, catalogue};
use oxccl::plans::schedule::{SLOTS, Schedule, Slots};
use oxccl::plans::topology::Placement;
use oxccl::plans::verify::{Symmetric, Verified};
use oxccl::{Collective, CustomError, CustomSchedule, Kind, Order};

use crate::failure::Failure;
use crate::options::{self, Choice, Subject};

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
    #[arg(long)]
    algorithm: Option<Algorithm>,
    /// Only this encoding.
    #[arg(long)]
    encoding: Option<Encoding>,
    /// Only this order.
    #[arg(long)]
    order: Option<Order>,
    /// Whether a few ranks may stand for all.
    #[arg(long, value_enum, default_value = "auto")]
    symmetry: UseSymmetry,
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
        Subject::File(path) => prove_file(path),
        Subject::Op(kinds) => prove_kinds(options, kinds),
    }
}

/// Reads and proves a file's schedule, or tells why it is wrong.
fn prove_file(path: &Path) -> Result<(), Failure> {
    let start = Instant::now();
    match CustomSchedule::read(path) {
        Ok(custom) => {
            let (schedule, took) = (custom.schedule(), start.elapsed());
            println!(
                "proven   {}: {} over {} ranks, order {}, {} instructions, {took:.0?}",
                custom.name(),
                schedule.collective.kind,
                schedule.collective.ranks,
                custom.order(),
                instructions(schedule),
            );
            for (label, said) in
                [("name", &custom.notes().name), ("comment", &custom.notes().comment)]
            {
                if let Some(said) = said {
                    println!("         {label:<8} {said}");
                }
            }
            Proven::from(&**custom.verified()).explain();
            Ok(())
        }
        Err(CustomError::Refused { path, violation, story }) => {
            println!("REFUSED  {}: {violation}", path.display());
            print!("{story}");
            Err(Failure::Unproven { count: 1 })
        }
        Err(CustomError::Msccl { path, fault }) if fault.is_wrong() => {
            println!("REFUSED  {}: {fault}", path.display());
            print!("{}", fault.story());
            Err(Failure::Unproven { count: 1 })
        }
        Err(other) => Err(other.into()),
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
        Placement::uniform(self.per_node.unwrap_or(self.ranks))
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
    fn report(self, options: &VerifyOptions) -> Result<(), Failure> {
        let Tally { proven, refused, unproven, absent } = self;
        if proven + refused + unproven == 0 {
            let why = match absent.first() {
                Some(why) => why.clone(),
                None => "no algorithm has this name, encoding and order".to_owned(),
            };
            return Err(Failure::Usage(why));
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
        match refused + unproven {
            0 => Ok(()),
            count => Err(Failure::Unproven { count }),
        }
    }
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
    let collective = options.collective(entry.kind);
    let schedule = match entry.schedule(collective, options.placement(), order, SLOTS) {
        Ok(schedule) => schedule,
        Err(unavailable) => {
            tally.absent.push(unavailable.to_string());
            return false;
        }
    };
    let built = start.elapsed();
    let name = name(entry, order);
    let start = Instant::now();
    match oxccl::plans::verify::verify(schedule, order, entry.in_place) {
        Ok(verified) => {
            tally.proven += 1;
            println!(
                "proven   {name:<60} {:>9} instructions, built in {built:.0?}, proven in {:.0?}",
                instructions(verified.schedule()),
                start.elapsed()
            );
            if options.algorithm.is_some() {
                Proven::from(&verified).explain();
            }
        }
        Err(violation) => {
            tally.refused += 1;
            println!("REFUSED  {name:<60} {violation}");
        }
    }
    true
}

fn name(entry: &Entry, order: Order) -> String {
    format!("{} {} {} order {order}", entry.kind, entry.algorithm, entry.encoding)
}

fn instructions(schedule: &Schedule) -> usize {
    schedule.ranks.iter().map(Vec::len).sum()
}

/// What has been proven, of all ranks or of those that stand for all.
struct Proven<'a> {
    schedule: &'a Schedule,
    promise: Order,
    single_rounding: bool,
    in_place: bool,
}

impl<'a> From<&'a Verified> for Proven<'a> {
    fn from(verified: &'a Verified) -> Proven<'a> {
        Proven {
            schedule: verified.schedule(),
            promise: verified.promise(),
            single_rounding: verified.single_rounding(),
            in_place: verified.in_place(),
        }
    }
}

impl<'a> From<&'a Symmetric<'_>> for Proven<'a> {
    fn from(proof: &'a Symmetric<'_>) -> Proven<'a> {
        Proven {
            schedule: proof.first(),
            promise: proof.promise(),
            single_rounding: proof.single_rounding(),
            in_place: proof.in_place(),
        }
    }
}

impl Proven<'_> {
    /// What a proof says.
    fn explain(&self) {
        let collective = self.schedule.collective;
        let values = match (collective.kind.reduces(), self.promise) {
            (false, _) => "every output chunk is the input chunk that it should be",
            (true, Order::Any) => "every output chunk has each rank's contribution once",
            (true, Order::Rank) => "every output chunk is the left fold by rank",
            (true, Order::Tree) => "every output chunk is the aligned tree over ranks",
        };
        let rounding = match (collective.kind.reduces(), self.single_rounding) {
            (false, _) => "",
            (true, true) => ", rounded once",
            (true, false) => ", of partial results that are rounded",
        };
        let segments = self.schedule.most_segments().into_iter().map(|(_, most)| most).max();
        let Slots { ll, ll128, slots } = self.schedule.slots;
        println!("         values   {values}{rounding}");
        println!("         order    every rank ends, however they are interleaved: no deadlock");
        println!(
            "         slots    none is overwritten before it is read, with {ll} on the ll lane, {ll128} on the ll128 lane \
             and {slots} on the slots lane; up to {} segments a message",
            segments.unwrap_or(0)
        );
        println!("         links    all drained at the end, so that rounds and calls can follow");
        println!(
            "         memory   no race between ranks, or with a user before or after the call; {}",
            if self.in_place { "apart and in place" } else { "with separate buffers" }
        );
    }
}
