//! Every typed call, over buffers of the communicator and over memory of others, blocking, on a
//! stream and in groups; alike on hosts and on GPUs.

use oxccl::memory::{Borrowed, Grouped, Input, Output, Streamed};
use oxccl::{AnyStream, Collectives, Communicator, DeviceBuffer, DeviceSlice, Error, ReduceOp};
use oxccl_transports::cuda::{Context, DeviceMemory, copy_in, copy_out};

const COUNT: usize = 37;
const POISON: i32 = i32::MIN;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    AllReduce,
    AllReduceInPlace,
    ReduceScatter,
    ReduceScatterInPlace,
    ReduceScatterV,
    ReduceScatterVInPlace,
    AllGather,
    AllGatherInPlace,
    AllGatherV,
    AllGatherVInPlace,
    AllToAll,
    AllToAllInPlace,
    AllToAllV,
    Broadcast,
    BroadcastInPlace,
    Reduce,
    ReduceInPlace,
    Gather,
    GatherInPlace,
    Scatter,
    ScatterInPlace,
    Send,
    Recv,
    Barrier,
}

use Method::*;

/// What the calls of a rank are given beside buffers.
struct World {
    n: usize,
    me: usize,
    root: usize,
    counts: Vec<usize>,
    to: Vec<usize>,
    from: Vec<usize>,
}

/// Elements from one rank to another in uneven calls.
fn sent(from: usize, to: usize) -> usize {
    [70, 5, 13, 0][(from * 3 + to) % 4]
}

/// What a rank has from a place on.
fn values(rank: usize, from: usize, len: usize) -> Vec<i32> {
    (from..from + len).map(|at| (rank * 10_000 + at) as i32).collect()
}

impl World {
    fn of(comm: &Communicator) -> World {
        let (n, me) = (comm.world_size(), comm.rank());
        World {
            n,
            me,
            root: n - 1,
            counts: (0..n).map(|rank| sent(rank, 0)).collect(),
            to: (0..n).map(|peer| sent(me, peer)).collect(),
            from: (0..n).map(|peer| sent(peer, me)).collect(),
        }
    }

    fn own(&self, len: usize) -> Vec<i32> {
        values(self.me, 0, len)
    }

    fn sums(&self, from: usize, len: usize) -> Vec<i32> {
        (from..from + len).map(|at| (0..self.n).map(|of| values(of, at, 1)[0]).sum()).collect()
    }

    /// All of this rank's, but for a part.
    fn with(&self, len: usize, at: usize, part: &[i32]) -> Vec<i32> {
        let mut all = self.own(len);
        all[at..][..part.len()].copy_from_slice(part);
        all
    }

    /// Input, output before and output after a call.
    fn case(&self, method: Method) -> [Vec<i32>; 3] {
        let World { n, me, root, counts, .. } = self;
        let (n, me, root) = (*n, *me, *root);
        let none = |len: usize| vec![POISON; len];
        let at_root =
            |found: Vec<i32>, otherwise: Vec<i32>| if me == root { found } else { otherwise };
        let (total, before): (usize, usize) = (counts.iter().sum(), counts[..me].iter().sum());
        let own_count = counts[me];
        let gathered: Vec<i32> = (0..n).flat_map(|of| values(of, 0, COUNT)).collect();
        let uneven: Vec<i32> = (0..n).flat_map(|of| values(of, 0, counts[of])).collect();
        let came: Vec<i32> = (0..n).flat_map(|of| values(of, me * COUNT, COUNT)).collect();
        let place = |len: usize, at: usize, part: usize| {
            let mut all = none(len);
            all[at..][..part].copy_from_slice(&self.own(part));
            all
        };
        match method {
            AllReduce => [self.own(COUNT), none(COUNT), self.sums(0, COUNT)],
            AllReduceInPlace => [vec![], self.own(COUNT), self.sums(0, COUNT)],
            ReduceScatter => [self.own(COUNT * n), none(COUNT), self.sums(me * COUNT, COUNT)],
            ReduceScatterInPlace => {
                let after = self.with(COUNT * n, me * COUNT, &self.sums(me * COUNT, COUNT));
                [vec![], self.own(COUNT * n), after]
            }
            ReduceScatterV => [self.own(total), none(own_count), self.sums(before, own_count)],
            ReduceScatterVInPlace => {
                let after = self.with(total, before, &self.sums(before, own_count));
                [vec![], self.own(total), after]
            }
            AllGather => [self.own(COUNT), none(COUNT * n), gathered],
            AllGatherInPlace => [vec![], place(COUNT * n, me * COUNT, COUNT), gathered],
            AllGatherV => [self.own(own_count), none(total), uneven],
            AllGatherVInPlace => [vec![], place(total, before, own_count), uneven],
            AllToAll => [self.own(COUNT * n), none(COUNT * n), came],
            AllToAllInPlace => [vec![], self.own(COUNT * n), came],
            AllToAllV => {
                let start = |peer: usize| (0..me).map(|before| sent(peer, before)).sum();
                let came = (0..n).flat_map(|peer| values(peer, start(peer), self.from[peer]));
                let (to, from) = (self.to.iter().sum(), self.from.iter().sum());
                [self.own(to), none(from), came.collect()]
            }
            Broadcast => [self.own(COUNT), none(COUNT), values(root, 0, COUNT)],
            BroadcastInPlace => [vec![], self.own(COUNT), values(root, 0, COUNT)],
            Reduce => [self.own(COUNT), none(COUNT), at_root(self.sums(0, COUNT), none(COUNT))],
            ReduceInPlace => {
                [vec![], self.own(COUNT), at_root(self.sums(0, COUNT), self.own(COUNT))]
            }
            Gather => [self.own(COUNT), none(COUNT * n), at_root(gathered, none(COUNT * n))],
            GatherInPlace => {
                let whole = place(COUNT * n, me * COUNT, COUNT);
                [vec![], at_root(whole, self.own(COUNT)), at_root(gathered, self.own(COUNT))]
            }
            Scatter => [self.own(COUNT * n), none(COUNT), values(root, me * COUNT, COUNT)],
            ScatterInPlace => {
                let part = values(root, me * COUNT, COUNT);
                [
                    vec![],
                    at_root(self.own(COUNT * n), none(COUNT)),
                    at_root(self.own(COUNT * n), part),
                ]
            }
            Send => [self.own(COUNT), vec![], vec![]],
            Recv => [vec![], none(COUNT), values((me + n - 1) % n, 0, COUNT)],
            Barrier => [vec![], vec![], vec![]],
        }
    }

    /// All of them; of two ranks that exchange, one receives first.
    fn methods(&self) -> Vec<Method> {
        let messages = if self.me.is_multiple_of(2) { [Send, Recv] } else { [Recv, Send] };
        let messages = if self.n == 1 { &[][..] } else { &messages };
        let others = [
            AllReduce,
            AllReduceInPlace,
            ReduceScatter,
            ReduceScatterInPlace,
            ReduceScatterV,
            ReduceScatterVInPlace,
            AllGather,
            AllGatherInPlace,
            AllGatherV,
            AllGatherVInPlace,
            AllToAll,
            AllToAllInPlace,
            AllToAllV,
            Broadcast,
            BroadcastInPlace,
            Reduce,
            ReduceInPlace,
            Gather,
            GatherInPlace,
            Scatter,
            ScatterInPlace,
            Barrier,
        ];
        [messages, &others].concat()
    }

    fn call<'b, C: Collectives<'b>>(
        &self,
        on: C,
        method: Method,
        input: &'b impl Input<i32, C::Access>,
        output: &'b mut impl Output<i32, C::Access>,
    ) -> Result<C::Done, Error> {
        let World { n, me, root, counts, to, from } = self;
        let (root, sum) = (*root, ReduceOp::Sum);
        match method {
            AllReduce => on.all_reduce(input, output, sum),
            AllReduceInPlace => on.all_reduce_in_place(output, sum),
            ReduceScatter => on.reduce_scatter(input, output, sum),
            ReduceScatterInPlace => on.reduce_scatter_in_place(output, sum),
            ReduceScatterV => on.reduce_scatter_v(input, output, counts, sum),
            ReduceScatterVInPlace => on.reduce_scatter_v_in_place(output, counts, sum),
            AllGather => on.all_gather(input, output),
            AllGatherInPlace => on.all_gather_in_place(output),
            AllGatherV => on.all_gather_v(input, output, counts),
            AllGatherVInPlace => on.all_gather_v_in_place(output, counts),
            AllToAll => on.all_to_all(input, output),
            AllToAllInPlace => on.all_to_all_in_place(output),
            AllToAllV => on.all_to_all_v(input, to, output, from),
            Broadcast => on.broadcast(input, output, root),
            BroadcastInPlace => on.broadcast_in_place(output, root),
            Reduce => on.reduce(input, output, sum, root),
            ReduceInPlace => on.reduce_in_place(output, sum, root),
            Gather => on.gather(input, output, root),
            GatherInPlace => on.gather_in_place(output, root),
            Scatter => on.scatter(input, output, root),
            ScatterInPlace => on.scatter_in_place(output, root),
            Send => on.send(input, (me + 1) % n),
            Recv => on.recv(output, (me + n - 1) % n),
            Barrier => on.barrier(),
        }
    }
}

/// Memory that any call takes.
trait Own: Sized {
    type Lent: Output<i32, Borrowed> + Output<i32, Streamed> + Output<i32, Grouped>;

    fn new(comm: &Communicator, values: &[i32]) -> Self;
    fn lent(&mut self) -> &mut Self::Lent;
    fn read(&self) -> Vec<i32>;
}

impl Own for DeviceBuffer<i32> {
    type Lent = DeviceBuffer<i32>;

    fn new(comm: &Communicator, values: &[i32]) -> Self {
        let mut buffer = comm.alloc(values.len()).unwrap();
        buffer.write(values).unwrap();
        buffer
    }

    fn lent(&mut self) -> &mut Self {
        self
    }

    fn read(&self) -> Vec<i32> {
        let mut found = vec![0; self.len()];
        DeviceBuffer::read(self, &mut found).unwrap();
        found
    }
}

/// Memory that is not the communicator's.
struct Foreign {
    slice: DeviceSlice<i32>,
    on_gpu: Option<(Context, DeviceMemory)>,
    on_host: Vec<i32>,
}

fn bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

impl Own for Foreign {
    type Lent = DeviceSlice<i32>;

    fn new(comm: &Communicator, values: &[i32]) -> Foreign {
        let mut on_host = values.to_vec();
        let on_gpu = comm.context().map(|context| {
            let memory = DeviceMemory::allocate(&context, 4 * values.len().max(1)).unwrap();
            // SAFETY: it has room, and no call uses it.
            unsafe { copy_in(&context, memory.as_ptr(), &bytes(values)) }.unwrap();
            (context, memory)
        });
        let first = match &on_gpu {
            Some((_, memory)) => memory.as_ptr().cast(),
            None => on_host.as_mut_ptr(),
        };
        // SAFETY: the memory lives as long as this, which looks at it only between calls.
        let slice = unsafe { DeviceSlice::from_raw_parts(first, values.len()) };
        Foreign { slice, on_gpu, on_host }
    }

    fn lent(&mut self) -> &mut DeviceSlice<i32> {
        &mut self.slice
    }

    fn read(&self) -> Vec<i32> {
        let Some((context, memory)) = &self.on_gpu else {
            let first = self.slice.as_ptr();
            // SAFETY: as long as the slice, whose calls have ended.
            return unsafe { std::slice::from_raw_parts(first, self.on_host.len()) }.to_vec();
        };
        let mut found = vec![0; 4 * self.slice.len()];
        // SAFETY: as above.
        unsafe { copy_out(context, &mut found, memory.as_ptr()) }.unwrap();
        found.chunks(4).map(|value| i32::from_ne_bytes(value.try_into().unwrap())).collect()
    }
}

/// All of them, in both kinds of memory.
pub fn check<'a>(comm: &'a Communicator, stream: impl Into<AnyStream<'a>>) {
    check_beside(comm, stream, || comm.barrier().unwrap());
}

/// The same, of ranks that have others beside them in their process: all of these `meet` before the
/// first call and behind the last.
pub fn check_beside<'a>(comm: &'a Communicator, stream: impl Into<AnyStream<'a>>, meet: impl Fn()) {
    let stream = stream.into();
    over::<DeviceBuffer<i32>>(comm, stream, &meet);
    over::<Foreign>(comm, stream, &meet);
}

fn over<M: Own>(comm: &Communicator, stream: AnyStream<'_>, meet: &dyn Fn()) {
    let world = World::of(comm);
    let methods = world.methods();
    let make = |method: &Method| {
        let [input, output, after] = world.case(*method);
        (*method, M::new(comm, &input), M::new(comm, &output), [input, after])
    };
    // All is taken before the first call and given back behind the last one: either may wait for
    // all kernels of the context, another rank's too, which may wait for this rank's next call.
    let mut surfaces =
        ["blocking", "on a stream", "in a group", "in a group on a stream"].map(|surface| {
            // Of calls that block, one after the other may differ in its memory alone.
            let times = if surface == "blocking" { 2 } else { 1 };
            let repeated = methods.iter().flat_map(|method| std::iter::repeat_n(method, times));
            (surface, repeated.map(make).collect::<Vec<_>>())
        });
    meet();
    for (surface, made) in &mut surfaces {
        let mut calls = made
            .iter_mut()
            .map(|(method, input, output, _)| (*method, &*input.lent(), output.lent()));
        match *surface {
            "blocking" => {
                calls.for_each(|(method, from, to)| world.call(comm, method, from, to).unwrap());
            }
            "on a stream" => calls.for_each(|(method, from, to)| {
                world.call(comm.on(stream), method, from, to).unwrap().wait().unwrap();
            }),
            "in a group" => comm
                .group(|group| {
                    calls.try_for_each(|(method, from, to)| {
                        world.call(&mut *group, method, from, to).map(drop)
                    })
                })
                .unwrap(),
            _ => {
                let launched = comm.on(stream).group(|group| {
                    calls.try_for_each(|(method, from, to)| {
                        world.call(&mut *group, method, from, to).map(drop)
                    })
                });
                launched.unwrap().0.wait().unwrap();
            }
        }
        for (method, input, output, [before, after]) in &*made {
            assert_eq!(output.read(), *after, "{method:?} {surface} on rank {}", world.me);
            assert_eq!(input.read(), *before, "{method:?} {surface} changed its input");
        }
    }
    meet();
}
