//! Hierarchical algorithms: inside of nodes, where links are fast, and between them, on every rail,
//! by turns, so that each byte crosses between nodes as seldom as can be. (BlueConnect, Cho et al.
//! 2019; NCCL and MSCCL++ do likewise.)
//!
//! In windows the ranks of a node use each other's buffers in place: an input is read once, where
//! it is, and a result is stored once where it belongs, by the rank that has it; or a switch that
//! joins them reads all inputs and stores all results at once. Between nodes there are slots all
//! the same. LL128 has none of them: between nodes no link carries its lines whole.
//!
//! A **rail** is the ranks with the same place in their nodes: each rank sends to other nodes only
//! along its own.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod broadcast;
mod gather;
mod grid;
mod place;
pub(super) mod rails;
mod reduce;
mod reduce_scatter;
mod rooted;
mod scatter;

use super::{
    Algorithm, Encoding, Entries, IN_WINDOWS, Inner, Need, Orders, Outer, Request, entries,
};
use crate::collective::Kind;
use crate::collective::Kind::{
    AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use crate::schedule::Schedule;
pub(super) use grid::nodes_of_group;
use place::Place;

const DIRECT: Inner = Inner::Direct;
const RING: Inner = Inner::Ring;
const CHAIN: Inner = Inner::Chain;
const NVLS: Inner = Inner::Nvls;
/// Between nodes there is no LL128.
const BETWEEN_NODES: &[Encoding] = &[Encoding::Ll, Encoding::Slots];
const IN_SLOTS_ALONE: &[Encoding] = &[Encoding::Slots];
const SLOTS_AND_WINDOWS: &[Encoding] = &[Encoding::Slots, Encoding::Windows];
const WITH_WINDOWS: &[Encoding] = &[Encoding::Ll, Encoding::Slots, Encoding::Windows];

pub(super) const ENTRIES: &[Entries] = &[
    row(
        AllReduce,
        DIRECT,
        Outer::Direct,
        BETWEEN_NODES,
        Orders::TreeOfNodes,
        all_reduce::direct_direct,
    ),
    row(AllReduce, DIRECT, Outer::Direct, IN_WINDOWS, Orders::None, all_reduce::direct_direct),
    row(AllReduce, DIRECT, Outer::Ring, WITH_WINDOWS, Orders::None, all_reduce::direct_ring),
    row(
        AllReduce,
        DIRECT,
        Outer::Doubling,
        WITH_WINDOWS,
        Orders::TreeOfNodes,
        all_reduce::direct_doubling,
    ),
    row(AllReduce, DIRECT, Outer::Tree, WITH_WINDOWS, Orders::None, all_reduce::direct_tree),
    row(AllReduce, RING, Outer::Direct, BETWEEN_NODES, Orders::None, all_reduce::ring_direct),
    row(AllReduce, RING, Outer::Ring, BETWEEN_NODES, Orders::None, all_reduce::ring_ring),
    row(AllReduce, RING, Outer::Doubling, BETWEEN_NODES, Orders::None, all_reduce::ring_doubling),
    row(AllReduce, RING, Outer::Tree, BETWEEN_NODES, Orders::None, all_reduce::ring_tree),
    row(AllReduce, DIRECT, Outer::Grid, SLOTS_AND_WINDOWS, Orders::None, grid::all_reduce),
    row(ReduceScatter, DIRECT, Outer::Grid, SLOTS_AND_WINDOWS, Orders::None, grid::reduce_scatter),
    row(AllGather, DIRECT, Outer::Grid, SLOTS_AND_WINDOWS, Orders::All, grid::all_gather),
    row(AllReduce, NVLS, Outer::Direct, IN_WINDOWS, Orders::None, all_reduce::nvls_direct),
    row(AllReduce, NVLS, Outer::Ring, IN_WINDOWS, Orders::None, all_reduce::nvls_ring),
    row(AllReduce, NVLS, Outer::Doubling, IN_WINDOWS, Orders::None, all_reduce::nvls_doubling),
    row(AllReduce, NVLS, Outer::Tree, IN_WINDOWS, Orders::None, all_reduce::nvls_tree),
    row(
        AllReduce,
        DIRECT,
        Outer::CollNet,
        SLOTS_AND_WINDOWS,
        Orders::None,
        all_reduce::direct_collnet,
    ),
    row(AllReduce, RING, Outer::CollNet, IN_SLOTS_ALONE, Orders::None, all_reduce::ring_collnet),
    row(AllReduce, CHAIN, Outer::CollNet, IN_SLOTS_ALONE, Orders::None, all_reduce::chain_collnet),
    row(AllReduce, NVLS, Outer::CollNet, IN_WINDOWS, Orders::None, all_reduce::nvls_collnet),
    row(
        ReduceScatter,
        DIRECT,
        Outer::Direct,
        BETWEEN_NODES,
        Orders::TreeOfNodes,
        reduce_scatter::direct_direct,
    ),
    row(
        ReduceScatter,
        DIRECT,
        Outer::Direct,
        IN_WINDOWS,
        Orders::None,
        reduce_scatter::direct_direct,
    ),
    row(
        ReduceScatter,
        DIRECT,
        Outer::Ring,
        WITH_WINDOWS,
        Orders::None,
        reduce_scatter::direct_ring,
    ),
    row(
        ReduceScatter,
        RING,
        Outer::Direct,
        BETWEEN_NODES,
        Orders::None,
        reduce_scatter::ring_direct,
    ),
    row(ReduceScatter, RING, Outer::Ring, BETWEEN_NODES, Orders::None, reduce_scatter::ring_ring),
    row(AllGather, DIRECT, Outer::Direct, WITH_WINDOWS, Orders::All, all_gather::direct_direct),
    row(AllGather, DIRECT, Outer::Ring, WITH_WINDOWS, Orders::All, all_gather::direct_ring),
    row(AllGather, RING, Outer::Direct, BETWEEN_NODES, Orders::All, all_gather::ring_direct),
    row(AllGather, RING, Outer::Ring, BETWEEN_NODES, Orders::All, all_gather::ring_ring),
    row(AllReduce, RING, Outer::Rails, BETWEEN_NODES, Orders::None, rails::all_reduce),
    row(ReduceScatter, RING, Outer::Rails, BETWEEN_NODES, Orders::None, rails::reduce_scatter),
    row(AllGather, RING, Outer::Rails, BETWEEN_NODES, Orders::All, rails::all_gather),
    row(Broadcast, DIRECT, Outer::Doubling, BETWEEN_NODES, Orders::All, broadcast::doubling),
    row(Broadcast, DIRECT, Outer::Ring, BETWEEN_NODES, Orders::All, broadcast::ring),
    row(Reduce, DIRECT, Outer::Ring, BETWEEN_NODES, Orders::None, reduce::direct_ring),
    row(Reduce, RING, Outer::Ring, BETWEEN_NODES, Orders::None, reduce::ring_ring),
    row(AllToAll, DIRECT, Outer::Direct, BETWEEN_NODES, Orders::All, all_to_all::direct),
    row(Gather, DIRECT, Outer::Direct, WITH_WINDOWS, Orders::All, gather::direct),
    row(Gather, DIRECT, Outer::Doubling, WITH_WINDOWS, Orders::All, gather::doubling),
    row(Scatter, DIRECT, Outer::Direct, WITH_WINDOWS, Orders::All, scatter::direct),
    row(Scatter, DIRECT, Outer::Doubling, WITH_WINDOWS, Orders::All, scatter::doubling),
];

const fn row(
    kind: Kind,
    inner: Inner,
    outer: Outer,
    encodings: &'static [Encoding],
    orders: Orders,
    build: fn(&Request) -> Schedule,
) -> Entries {
    let needs: &[Need] = match (kind, inner, outer) {
        (_, Inner::Nvls, _) => &[Need::Nodes, Need::Beside, Need::Terms],
        (AllReduce, Inner::Direct, Outer::Doubling | Outer::Tree) => {
            &[Need::NodesOfAnySize, Need::Terms]
        }
        (AllGather, _, Outer::Grid) => &[Need::Grid],
        (_, _, Outer::Grid) => &[Need::Grid, Need::Terms],
        (AllReduce | Reduce | ReduceScatter, ..) => &[Need::Nodes, Need::Terms],
        _ => &[Need::Nodes],
    };
    entries(kind, Algorithm::Hierarchical(inner, outer), encodings, true, orders, build)
        .needs(needs)
        .writing_peers()
}
