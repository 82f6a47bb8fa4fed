//! The names of algorithms and encodings.

use crate::schedule::Lane;
use crate::topology::Placement;
use serde::{Serialize, Serializer};

/// The names of algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// Chunks travel around the ring of ranks (Patarasuk and Yuan 2009; NCCL's ring).
    Ring,
    /// All-reduce in one exchange: every rank gets all inputs and reduces them all (MSCCL++'s
    /// one-shot).
    OneShot,
    /// All-reduce in two exchanges: rank r reduces chunk r, then all collect the results
    /// (Rabenseifner 2004, direct form).
    TwoShot,
    /// As two-shot, but rank r writes reduced chunk r into all outputs at once.
    TwoShotPush,
    /// All-reduce in one exchange with a switch: it reduces chunk r out of all inputs for rank r,
    /// and writes the result into all outputs for it (NVLink SHARP; NCCL's NVLS).
    Nvls,
    /// Every rank exchanges with every other, or with the root, directly.
    Direct,
    /// As direct, but every rank writes its input into all outputs at once.
    DirectPush,
    /// As direct, but the others fetch from the root, or the root from them: nobody writes to
    /// another's memory.
    DirectPull,
    /// One rank hands on to the next.
    Chain,
    /// Ranks exchange two by two (the pairwise exchange of all-to-all).
    Pairwise,
    /// In step k rank r tells rank r + 2^k (Hensgen, Finkel and Manber 1988).
    Dissemination,
    /// Two binary trees, each for half of the data, in which no rank has children twice (Sanders,
    /// Speck and Träff 2009).
    Tree,
    /// The binomial tree.
    Binomial,
    /// Blocks of ranks exchange what they have reduced, and become blocks of twice the size.
    RecursiveDoubling,
    /// Recursive halving, recursive doubling, or the one after the other (Rabenseifner 2004;
    /// Thakur, Rabenseifner and Gropp 2005).
    HalvingDoubling,
    /// Blocks travel along the bits of their distance (Bruck, Ho, Kipnis, Upfal and Weathersby
    /// 1997).
    Bruck,
    /// Several rings with different neighbours, each for its part of the data.
    MultiRing,
    /// All-reduce as reduce and broadcast, along the binomial tree.
    ReduceBroadcast,
    /// All-reduce as direct reduce-scatter and the ring's all-gather.
    ReduceScatterAllGather,
    /// Inside of nodes and between them by turns, so that little goes between (as in NCCL, MSCCL++
    /// and BlueConnect, Cho et al. 2019).
    Hierarchical(Inner, Outer),
    /// A custom schedule: not in the catalogue.
    Custom,
}

/// What a hierarchical algorithm does inside of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Inner {
    /// Every rank exchanges with every other.
    Direct,
    /// Chunks travel around the node's ring.
    Ring,
    /// Chunks travel along a chain to the rank that is to have them, and back along it.
    Chain,
    /// A switch reduces and multicasts, as in [`Algorithm::Nvls`].
    Nvls,
}

/// What a hierarchical algorithm does between nodes, on every rail: among the ranks with the same
/// place in their nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outer {
    /// Every node exchanges with every other, or with the root's.
    Direct,
    /// Chunks travel around the ring of nodes.
    Ring,
    /// Blocks of nodes exchange what they have reduced; where there is a root, along the binomial
    /// tree of nodes.
    Doubling,
    /// Two binary trees of nodes.
    Tree,
    /// Nodes of a group exchange, and so do groups: in two dimensions.
    Grid,
    /// The fabric's switches reduce (InfiniBand SHARP; NCCL's CollNet).
    CollNet,
    /// A ring of all ranks for each rail, on which it leaves a node and enters the next.
    Rails,
}

impl Algorithm {
    /// All of the catalogue.
    pub const ALL: [Algorithm; 37] = [
        Algorithm::Ring,
        Algorithm::OneShot,
        Algorithm::TwoShot,
        Algorithm::TwoShotPush,
        Algorithm::Nvls,
        Algorithm::Direct,
        Algorithm::DirectPush,
        Algorithm::DirectPull,
        Algorithm::Chain,
        Algorithm::Pairwise,
        Algorithm::Dissemination,
        Algorithm::Tree,
        Algorithm::Binomial,
        Algorithm::RecursiveDoubling,
        Algorithm::HalvingDoubling,
        Algorithm::Bruck,
        Algorithm::MultiRing,
        Algorithm::ReduceBroadcast,
        Algorithm::ReduceScatterAllGather,
        Algorithm::Hierarchical(Inner::Direct, Outer::Direct),
        Algorithm::Hierarchical(Inner::Direct, Outer::Ring),
        Algorithm::Hierarchical(Inner::Direct, Outer::Doubling),
        Algorithm::Hierarchical(Inner::Direct, Outer::Tree),
        Algorithm::Hierarchical(Inner::Ring, Outer::Direct),
        Algorithm::Hierarchical(Inner::Ring, Outer::Ring),
        Algorithm::Hierarchical(Inner::Ring, Outer::Doubling),
        Algorithm::Hierarchical(Inner::Ring, Outer::Tree),
        Algorithm::Hierarchical(Inner::Ring, Outer::Rails),
        Algorithm::Hierarchical(Inner::Nvls, Outer::Direct),
        Algorithm::Hierarchical(Inner::Nvls, Outer::Ring),
        Algorithm::Hierarchical(Inner::Nvls, Outer::Doubling),
        Algorithm::Hierarchical(Inner::Nvls, Outer::Tree),
        Algorithm::Hierarchical(Inner::Direct, Outer::Grid),
        Algorithm::Hierarchical(Inner::Direct, Outer::CollNet),
        Algorithm::Hierarchical(Inner::Ring, Outer::CollNet),
        Algorithm::Hierarchical(Inner::Chain, Outer::CollNet),
        Algorithm::Hierarchical(Inner::Nvls, Outer::CollNet),
    ];

    /// Whether it has switches reduce and multicast.
    pub fn is_in_network(self) -> bool {
        matches!(self, Algorithm::Nvls | Algorithm::Hierarchical(Inner::Nvls, _))
    }

    /// Whether it has the fabric's switches reduce, which no executor can.
    pub fn is_in_fabric(self) -> bool {
        matches!(self, Algorithm::Hierarchical(_, Outer::CollNet))
    }

    /// How many ranks a switch must join for it, all or those of each node; none where it needs no
    /// switch.
    pub fn switched(self, ranks: usize, placement: Placement) -> Option<usize> {
        match self {
            Algorithm::Nvls => Some(ranks),
            Algorithm::Hierarchical(Inner::Nvls, _) => Some(placement.ranks_per_node()),
            _ => None,
        }
    }

    /// The name in snake case, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Ring => "ring",
            Algorithm::OneShot => "one_shot",
            Algorithm::TwoShot => "two_shot",
            Algorithm::TwoShotPush => "two_shot_push",
            Algorithm::Nvls => "nvls",
            Algorithm::Direct => "direct",
            Algorithm::DirectPush => "direct_push",
            Algorithm::DirectPull => "direct_pull",
            Algorithm::Chain => "chain",
            Algorithm::Pairwise => "pairwise",
            Algorithm::Dissemination => "dissemination",
            Algorithm::Tree => "tree",
            Algorithm::Binomial => "binomial",
            Algorithm::RecursiveDoubling => "recursive_doubling",
            Algorithm::HalvingDoubling => "halving_doubling",
            Algorithm::Bruck => "bruck",
            Algorithm::MultiRing => "multi_ring",
            Algorithm::ReduceBroadcast => "reduce_broadcast",
            Algorithm::ReduceScatterAllGather => "reduce_scatter_all_gather",
            Algorithm::Hierarchical(Inner::Direct, Outer::Direct) => "hierarchical_direct_direct",
            Algorithm::Hierarchical(Inner::Direct, Outer::Ring) => "hierarchical_direct_ring",
            Algorithm::Hierarchical(Inner::Direct, Outer::Doubling) => {
                "hierarchical_direct_doubling"
            }
            Algorithm::Hierarchical(Inner::Direct, Outer::Tree) => "hierarchical_direct_tree",
            Algorithm::Hierarchical(Inner::Ring, Outer::Direct) => "hierarchical_ring_direct",
            Algorithm::Hierarchical(Inner::Ring, Outer::Ring) => "hierarchical_ring_ring",
            Algorithm::Hierarchical(Inner::Ring, Outer::Doubling) => "hierarchical_ring_doubling",
            Algorithm::Hierarchical(Inner::Ring, Outer::Tree) => "hierarchical_ring_tree",
            Algorithm::Hierarchical(Inner::Nvls, Outer::Direct) => "hierarchical_nvls_direct",
            Algorithm::Hierarchical(Inner::Nvls, Outer::Ring) => "hierarchical_nvls_ring",
            Algorithm::Hierarchical(Inner::Nvls, Outer::Doubling) => "hierarchical_nvls_doubling",
            Algorithm::Hierarchical(Inner::Nvls, Outer::Tree) => "hierarchical_nvls_tree",
            Algorithm::Hierarchical(Inner::Direct, Outer::CollNet) => "hierarchical_direct_collnet",
            Algorithm::Hierarchical(Inner::Ring, Outer::CollNet) => "hierarchical_ring_collnet",
            Algorithm::Hierarchical(Inner::Nvls, Outer::CollNet) => "hierarchical_nvls_collnet",
            // No other has chains.
            Algorithm::Hierarchical(Inner::Chain, _) => "hierarchical_chain_collnet",
            Algorithm::Hierarchical(_, Outer::Grid) => "hierarchical_direct_grid",
            Algorithm::Hierarchical(_, Outer::Rails) => "ring_per_rail",
            Algorithm::Custom => "custom",
        }
    }
}

impl Serialize for Algorithm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// How data crosses from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// Through slots in LL encoding: data and flag in one 8-byte word.
    Ll,
    /// Through slots in LL128 encoding: 120 bytes of data and a flag in one line of 128. Between
    /// GPUs only where all of a line crosses at once: on one GPU, and over NVLink.
    Ll128,
    /// Plain, through slots in staging memory.
    Slots,
    /// Plain, in the callers' buffers, which peers reach in place.
    Windows,
}

impl Encoding {
    /// All of them.
    pub const ALL: [Encoding; 4] =
        [Encoding::Ll, Encoding::Ll128, Encoding::Slots, Encoding::Windows];

    /// The name in snake case, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Ll => "ll",
            Encoding::Ll128 => "ll128",
            Encoding::Slots => "slots",
            Encoding::Windows => "windows",
        }
    }

    /// Whether messages announce themselves by flags among their data.
    pub fn has_flags(self) -> bool {
        self.lane().has_flags()
    }

    /// The lane that carries data.
    pub(super) fn lane(self) -> Lane {
        match self {
            Encoding::Ll => Lane::Ll,
            Encoding::Ll128 => Lane::Ll128,
            Encoding::Slots | Encoding::Windows => Lane::Slots,
        }
    }
}

macro_rules! text_by_name {
    ($($type:ty, $what:literal;)*) => {$(
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<$type, String> {
                let wanted = text.replace('-', "_");
                <$type>::ALL.into_iter().find(|one| one.name() == wanted).ok_or_else(|| {
                    let names: Vec<_> = <$type>::ALL.iter().map(|one| one.name()).collect();
                    format!("{text:?} is no {}; there are {}", $what, names.join(", "))
                })
            }
        }
    )*};
}

text_by_name! {
    Algorithm, "algorithm";
    Encoding, "encoding";
}
