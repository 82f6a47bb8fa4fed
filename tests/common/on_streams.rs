//! Calls on a stream that have parts of their own: uneven ones, those of a root, and those in
//! place; alike on hosts and on GPUs.

use oxccl::{AnyStream, Collectives, Communicator, DeviceBuffer, Error, ReduceOp, Work};

/// A rank, and what it puts calls into.
#[derive(Clone, Copy)]
struct Rank<'a> {
    comm: &'a Communicator,
    stream: AnyStream<'a>,
}

/// Elements for or of a rank in uneven calls.
fn uneven(rank: usize) -> usize {
    [700, 0, 1300, 17][rank % 4]
}

/// What a rank has at a place.
fn value(rank: usize, at: usize) -> i32 {
    (rank * 10_000 + at) as i32
}

impl Rank<'_> {
    fn filled(self, values: &[i32]) -> DeviceBuffer<i32> {
        let mut buffer = self.comm.alloc(values.len()).unwrap();
        buffer.write(values).unwrap();
        buffer
    }

    /// `len` elements of this rank's.
    fn own(self, len: usize) -> DeviceBuffer<i32> {
        self.filled(&values(self.comm.rank(), 0, len))
    }
}

/// What a rank has from a place on.
fn values(rank: usize, from: usize, len: usize) -> Vec<i32> {
    (from..from + len).map(|at| value(rank, at)).collect()
}

fn expect(buffer: &DeviceBuffer<i32>, expected: &[i32], what: &str) {
    let mut found = vec![0; buffer.len()];
    buffer.read(&mut found).unwrap();
    assert!(found == expected, "{what}: {found:?} is not {expected:?}");
}

fn wait(work: Result<Work, Error>) {
    work.and_then(|work| work.wait()).unwrap();
}

/// All of them; several messages long, and short.
pub fn check<'a>(comm: &'a Communicator, stream: impl Into<AnyStream<'a>>) {
    let rank = Rank { comm, stream: stream.into() };
    uneven_parts(rank);
    uneven_exchange(rank);
    for root in [0, comm.world_size() - 1] {
        for count in [0, 3, 900] {
            rooted(rank, root, count);
        }
    }
    even_in_place(rank);
    in_a_group(rank);
    misuse(rank);
}

fn uneven_parts(rank: Rank<'_>) {
    let Rank { comm, stream } = rank;
    let (on, n, me) = (comm.on(stream), comm.world_size(), comm.rank());
    let counts: Vec<usize> = (0..n).map(uneven).collect();
    let (total, before): (usize, usize) = (counts.iter().sum(), counts[..me].iter().sum());
    let gathered: Vec<i32> = (0..n).flat_map(|from| values(from, 0, counts[from])).collect();
    let mut to = rank.filled(&vec![-1; total]);
    wait(on.all_gather_v(&rank.own(counts[me]), &mut to, &counts));
    expect(&to, &gathered, "all_gather_v");
    let mut all = vec![-1; total];
    all[before..][..counts[me]].copy_from_slice(&values(me, 0, counts[me]));
    let mut all = rank.filled(&all);
    wait(on.all_gather_v_in_place(&mut all, &counts));
    expect(&all, &gathered, "all_gather_v_in_place");
    let sum = |at: usize| (0..n).map(|from| value(from, at)).sum::<i32>();
    let sums: Vec<i32> = (before..before + counts[me]).map(sum).collect();
    let mut to = rank.filled(&vec![-1; counts[me]]);
    wait(on.reduce_scatter_v(&rank.own(total), &mut to, &counts, ReduceOp::Sum));
    expect(&to, &sums, "reduce_scatter_v");
    let mut all = rank.own(total);
    wait(on.reduce_scatter_v_in_place(&mut all, &counts, ReduceOp::Sum));
    let mut expected = values(me, 0, total);
    expected[before..][..counts[me]].copy_from_slice(&sums);
    expect(&all, &expected, "reduce_scatter_v_in_place");
}

/// Elements from one rank to another.
fn sent(from: usize, to: usize) -> usize {
    uneven(from * 3 + to)
}

fn uneven_exchange(Rank { comm, stream }: Rank<'_>) {
    let rank = Rank { comm, stream };
    let (n, me) = (comm.world_size(), comm.rank());
    let to: Vec<usize> = (0..n).map(|peer| sent(me, peer)).collect();
    let from: Vec<usize> = (0..n).map(|peer| sent(peer, me)).collect();
    let input = rank.own(to.iter().sum());
    let start = |peer: usize| (0..me).map(|before| sent(peer, before)).sum();
    let expected: Vec<i32> = (0..n).flat_map(|p| values(p, start(p), from[p])).collect();
    for _ in 0..2 {
        let mut output = rank.filled(&vec![-1; from.iter().sum()]);
        let launches = comm.launches();
        wait(comm.on(stream).all_to_all_v(&input, &to, &mut output, &from));
        assert_eq!(comm.launches(), launches + 1, "one launch");
        expect(&output, &expected, "all_to_all_v");
    }
}

fn rooted(rank: Rank<'_>, root: usize, count: usize) {
    let Rank { comm, stream } = rank;
    let (on, n, me) = (comm.on(stream), comm.world_size(), comm.rank());
    let is_root = me == root;
    let gathered: Vec<i32> = (0..n).flat_map(|from| values(from, 0, count)).collect();
    let at_root = |len: usize| if is_root { len } else { 0 };
    let mut to = rank.filled(&vec![-1; at_root(count * n)]);
    wait(on.gather(&rank.own(count), &mut to, root));
    expect(&to, &gathered[..at_root(count * n)], "gather");
    let mut whole = vec![-1; count * n];
    whole[me * count..][..count].copy_from_slice(&values(me, 0, count));
    let mut buffer = if is_root { rank.filled(&whole) } else { rank.own(count) };
    wait(on.gather_in_place(&mut buffer, root));
    let expected = if is_root { gathered } else { values(me, 0, count) };
    expect(&buffer, &expected, "gather_in_place");
    let mut to = rank.filled(&vec![-1; count]);
    wait(on.scatter(&rank.own(at_root(count * n)), &mut to, root));
    expect(&to, &values(root, me * count, count), "scatter");
    let mut buffer = if is_root { rank.own(count * n) } else { rank.filled(&vec![-1; count]) };
    wait(on.scatter_in_place(&mut buffer, root));
    let expected = if is_root { (0, count * n) } else { (me * count, count) };
    expect(&buffer, &values(root, expected.0, expected.1), "scatter_in_place");
    let mut to = rank.filled(&vec![-1; count]);
    wait(on.broadcast(&rank.own(at_root(count)), &mut to, root));
    expect(&to, &values(root, 0, count), "broadcast");
    let mut to = rank.filled(&vec![-1; at_root(count)]);
    wait(on.reduce(&rank.own(count), &mut to, ReduceOp::Max, root));
    expect(&to, &values(n - 1, 0, at_root(count)), "reduce");
}

fn even_in_place(rank: Rank<'_>) {
    const COUNT: usize = 500;
    let Rank { comm, stream } = rank;
    let (on, n, me) = (comm.on(stream), comm.world_size(), comm.rank());
    let mut all = vec![-1; COUNT * n];
    all[me * COUNT..][..COUNT].copy_from_slice(&values(me, 0, COUNT));
    let mut all = rank.filled(&all);
    wait(on.all_gather_in_place(&mut all));
    let gathered: Vec<i32> = (0..n).flat_map(|from| values(from, 0, COUNT)).collect();
    expect(&all, &gathered, "all_gather_in_place");
    let mut all = rank.own(COUNT * n);
    wait(on.reduce_scatter_in_place(&mut all, ReduceOp::Max));
    let mut expected = values(me, 0, COUNT * n);
    expected[me * COUNT..][..COUNT].copy_from_slice(&values(n - 1, me * COUNT, COUNT));
    expect(&all, &expected, "reduce_scatter_in_place");
    let mut all = rank.own(COUNT * n);
    wait(on.all_to_all_in_place(&mut all));
    let came: Vec<i32> = (0..n).flat_map(|from| values(from, me * COUNT, COUNT)).collect();
    expect(&all, &came, "all_to_all_in_place");
}

/// The same in place, as buckets of one group.
fn in_a_group(rank: Rank<'_>) {
    const COUNT: usize = 70;
    let Rank { comm, stream } = rank;
    let (n, me) = (comm.world_size(), comm.rank());
    let counts: Vec<usize> = (0..n).map(uneven).collect();
    let (total, before): (usize, usize) = (counts.iter().sum(), counts[..me].iter().sum());
    let mut parts = vec![-1; total];
    parts[before..][..counts[me]].copy_from_slice(&values(me, 0, counts[me]));
    let [mut parts, mut sums] = [rank.filled(&parts), rank.own(total)];
    let len = if me == 0 { COUNT * n } else { COUNT };
    let [mut gathered, mut scattered] = [(); 2].map(|()| rank.own(len));
    let (work, ()) = comm
        .on(stream)
        .group(|group| {
            group.all_gather_v_in_place(&mut parts, &counts)?;
            group.gather_in_place(&mut gathered, 0)?;
            group.reduce_scatter_v_in_place(&mut sums, &counts, ReduceOp::Max)?;
            group.scatter_in_place(&mut scattered, 0).map(drop)
        })
        .unwrap();
    work.wait().unwrap();
    let all: Vec<i32> = (0..n).flat_map(|from| values(from, 0, counts[from])).collect();
    expect(&parts, &all, "all_gather_v_in_place in a group");
    let mut own = values(me, 0, total);
    own[before..][..counts[me]].copy_from_slice(&values(n - 1, before, counts[me]));
    expect(&sums, &own, "reduce_scatter_v_in_place in a group");
    let others: Vec<i32> = (0..n).flat_map(|from| values(from, 0, COUNT)).collect();
    let expected = if me == 0 { others } else { values(me, 0, COUNT) };
    expect(&gathered, &expected, "gather_in_place in a group");
    let expected = if me == 0 { values(0, 0, len) } else { values(0, me * COUNT, COUNT) };
    expect(&scattered, &expected, "scatter_in_place in a group");
}

/// What this rank can see is wrong: nothing is sent.
fn misuse(rank: Rank<'_>) {
    let Rank { comm, stream } = rank;
    let (on, n) = (comm.on(stream), comm.world_size());
    let [mut buffer, mut other] = [(); 2].map(|()| rank.own(10 * n));
    let counts = vec![10; n];
    let error = on.all_gather_v_in_place(&mut buffer, &counts[1..]).unwrap_err();
    assert!(matches!(error, Error::Length { argument: "counts", .. }), "{error}");
    let error = on.reduce_scatter_v_in_place(&mut buffer, &vec![11; n], ReduceOp::Sum).unwrap_err();
    assert!(matches!(error, Error::Length { argument: "buffer", .. }), "{error}");
    if n > 1 {
        let error = on.all_gather_v(&other, &mut buffer, &counts).unwrap_err();
        assert!(matches!(error, Error::Length { argument: "input", .. }), "{error}");
    }
    let error = on.all_to_all_v(&other, &counts, &mut buffer, &vec![11; n]).unwrap_err();
    assert!(matches!(error, Error::CountsDiffer { .. } | Error::Length { .. }), "{error}");
    let error = on.gather_in_place(&mut buffer, n).unwrap_err();
    assert!(matches!(error, Error::Rank { argument: "root", .. }), "{error}");
    let error = on.all_to_all_v(&other, &counts[1..], &mut buffer, &counts).unwrap_err();
    assert!(matches!(error, Error::Length { argument: "send_counts", .. }), "{error}");
    wait(on.all_to_all_v(&buffer, &counts, &mut other, &counts));
}
