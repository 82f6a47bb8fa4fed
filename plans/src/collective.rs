//! What is asked for: the collective, its order of reduction, and how a result is described chunk
//! by chunk.

use serde::Serialize;

/// The kinds of collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Kind {
    /// Every rank gets the reduction of all inputs.
    AllReduce = 0,
    /// Rank r gets the reduction of all ranks' chunk r.
    ReduceScatter = 1,
    /// Every rank gets all inputs, by rank.
    AllGather = 2,
    /// Rank r gets chunk r of every rank's input, by rank.
    AllToAll = 3,
    /// Every rank gets the root's input.
    Broadcast = 4,
    /// The root gets the reduction of all inputs.
    Reduce = 5,
    /// The root gets all inputs, by rank.
    Gather = 6,
    /// Rank r gets chunk r of the root's input.
    Scatter = 7,
    /// One rank's input goes to one other rank's output.
    SendRecv = 8,
    /// No rank leaves before every rank has entered.
    Barrier = 9,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 10] = [
        Kind::AllReduce,
        Kind::ReduceScatter,
        Kind::AllGather,
        Kind::AllToAll,
        Kind::Broadcast,
        Kind::Reduce,
        Kind::Gather,
        Kind::Scatter,
        Kind::SendRecv,
        Kind::Barrier,
    ];

    /// The name in snake case, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all_reduce",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllGather => "all_gather",
            Kind::AllToAll => "all_to_all",
            Kind::Broadcast => "broadcast",
            Kind::Reduce => "reduce",
            Kind::Gather => "gather",
            Kind::Scatter => "scatter",
            Kind::SendRecv => "send_recv",
            Kind::Barrier => "barrier",
        }
    }

    /// Whether all goes to one rank or from it.
    pub fn is_rooted(self) -> bool {
        matches!(self, Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter)
    }

    /// Whether values are reduced.
    pub fn reduces(self) -> bool {
        matches!(self, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce)
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let wanted = text.replace('-', "_");
        Kind::ALL.into_iter().find(|kind| kind.name() == wanted).ok_or_else(|| {
            let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            format!("{text:?} is no collective; there are {}", names.join(", "))
        })
    }
}

/// A collective's structure, without sizes and types: what a schedule is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Collective {
    /// The kind.
    pub kind: Kind,
    /// Number of ranks.
    pub ranks: usize,
    /// Root of a rooted collective; the sender of [`Kind::SendRecv`]; otherwise 0.
    pub root: usize,
    /// The receiver of [`Kind::SendRecv`]; otherwise 0.
    pub receiver: usize,
}

impl Collective {
    /// A collective without a root.
    pub fn new(kind: Kind, ranks: usize) -> Collective {
        Collective { kind, ranks, root: 0, receiver: 0 }
    }

    /// A collective with a root.
    pub fn rooted(kind: Kind, ranks: usize, root: usize) -> Collective {
        Collective { kind, ranks, root, receiver: 0 }
    }

    /// One rank's message to another.
    pub fn send_recv(ranks: usize, sender: usize, receiver: usize) -> Collective {
        Collective { kind: Kind::SendRecv, ranks, root: sender, receiver }
    }

    /// Whether this rank's input buffer is read.
    pub fn has_input(&self, rank: usize) -> bool {
        match self.kind {
            Kind::Broadcast | Kind::Scatter | Kind::SendRecv => rank == self.root,
            Kind::Barrier => false,
            _ => true,
        }
    }

    /// Whether this rank's output buffer is written.
    pub fn has_output(&self, rank: usize) -> bool {
        match self.kind {
            Kind::Reduce | Kind::Gather => rank == self.root,
            Kind::SendRecv => rank == self.receiver,
            Kind::Barrier => false,
            _ => true,
        }
    }
}

/// What is promised about the order of reduction. Ranks must agree on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// No promise: the fastest algorithm's order.
    #[default]
    Any,
    /// The left fold by rank: `((x0 + x1) + x2) + x3`. 8- and 16-bit floats accumulate in f32 and
    /// round once.
    Rank,
    /// The aligned binary tree over the rank index: `(x0 + x1) + (x2 + x3)`; of k ranks, the left
    /// subtree has the largest power of two below k. Sums over 1, 2, 4 … ranks with equal shards,
    /// themselves summed as such a tree, have the same bits.
    Tree,
}

impl Order {
    /// The name in snake case, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Order::Any => "any",
            Order::Rank => "rank",
            Order::Tree => "tree",
        }
    }
}

impl std::str::FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Order, String> {
        let all = [Order::Any, Order::Rank, Order::Tree];
        let found = all.into_iter().find(|order| order.name() == text);
        found.ok_or_else(|| format!("{text:?} is no order; there are any, rank and tree"))
    }
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
