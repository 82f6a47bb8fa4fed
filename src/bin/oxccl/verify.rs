//! `oxccl verify`: proves every schedule that there is for a collective.

use std::time::Instant;

use clap::Args;
use oxccl::algorithms::{Entry, catalogue};
use oxccl::schedule::SLOTS;
use oxccl::{Collective, Kind, Order};

use crate::failure::Failure;
use crate::options::{self, Choice};

/// Proves every schedule that there is for a collective, for every order that it promises.
///
/// A proof covers values and their order, deadlocks, slots, and races: see the verify module.
#[derive(Args)]
pub(crate) struct VerifyOptions {
    /// The collective, or all.
    #[arg(value_name = "OP", value_parser = options::kinds)]
    kind: Choice<Kind>,
    /// How many ranks.
    #[arg(long, short = 'g', default_value = "2", value_parser = options::positive)]
    ranks: usize,
    /// The root of a rooted collective; the sender of send_recv.
    #[arg(long, short = 'r', default_value_t = 0)]
    root: usize,
}

pub(crate) fn main(options: &VerifyOptions) -> Result<(), Failure> {
    let ranks = options.ranks;
    if options.root >= ranks {
        let last = ranks - 1;
        return Err(Failure::Usage(format!(
            "--root is {}, there are ranks 0 to {last}",
            options.root
        )));
    }
    if options.kind == Choice::One(Kind::SendRecv) && ranks == 1 {
        return Err(Failure::Usage("send_recv needs at least 2 ranks".to_owned()));
    }
    let (mut accepted, mut refused) = (0, 0);
    for kind in options.kind.of(&Kind::ALL) {
        if kind == Kind::SendRecv && ranks == 1 {
            continue;
        }
        let collective = match kind {
            Kind::SendRecv => {
                Collective::send_recv(ranks, options.root, (options.root + 1) % ranks)
            }
            Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter => {
                Collective::rooted(kind, ranks, options.root)
            }
            _ => Collective::new(kind, ranks),
        };
        for entry in catalogue().filter(|entry| entry.kind == kind) {
            for order in orders(entry) {
                match verify(entry, collective, order) {
                    true => accepted += 1,
                    false => refused += 1,
                }
            }
        }
    }
    println!("{accepted} schedules proven, {refused} refused, {ranks} ranks");
    if refused > 0 { Err(Failure::Unproven { count: refused }) } else { Ok(()) }
}

/// The orders that an entry promises; those mean nothing where nothing is reduced.
fn orders(entry: &Entry) -> Vec<Order> {
    match entry.kind.reduces() && entry.ordered {
        true => vec![Order::Any, Order::Rank, Order::Tree],
        false => vec![Order::Any],
    }
}

fn verify(entry: &Entry, collective: Collective, order: Order) -> bool {
    let name = format!("{} {} {} order {order}", entry.kind, entry.algorithm, entry.encoding);
    let schedule = entry.schedule(collective, order, SLOTS);
    let steps: usize = schedule.ranks.iter().map(Vec::len).sum();
    let start = Instant::now();
    match oxccl::verify::verify(schedule, order, entry.in_place) {
        Ok(_) => {
            println!("proven   {name:<44} {steps:>8} instructions, {:.0?}", start.elapsed());
            true
        }
        Err(violation) => {
            println!("REFUSED  {name:<44} {violation}");
            false
        }
    }
}
