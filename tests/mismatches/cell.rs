//! What the ranks call in a cell of the matrix, what befalls one of them, and how that must end.

use oxccl::{Collectives, Communicator, Element, Error, HostBuffer, Order, ReduceOp, Stream, Work};
use oxccl_transports::disturb::{Strangers, cut_connections};
use std::time::Duration;

pub(crate) const RANKS: usize = 3;
/// The rank that does otherwise than the others, or that fails.
pub(crate) const ODD: usize = 2;

/// How calls are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    Blocking,
    Stream,
    Group,
}

pub(crate) const WAYS: [Way; 3] = [Way::Blocking, Way::Stream, Way::Group];

/// Where ranks are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Place {
    Threads,
    Processes,
    Nodes,
}

/// How a rank's part ended: the error in words.
pub(crate) type Outcome = Result<(), String>;

/// How every rank's part must end.
#[derive(Debug)]
pub(crate) enum Expected {
    Right,
    /// With an error in which these words are.
    Error(&'static str),
}

impl Expected {
    pub(crate) fn fits(&self, outcome: &Outcome) -> bool {
        match (self, outcome) {
            (Expected::Right, Ok(())) => true,
            (Expected::Error(words), Err(text)) => text.contains(words),
            _ => false,
        }
    }
}

/// One call.
#[derive(Clone, Copy)]
enum Ask {
    AllReduce(usize),
    AllReduceOfFloats,
    Max,
    Scaled(i32),
    /// With memory that peers do not reach.
    Private,
    Broadcast(usize),
    Reduce(usize),
    Scatter(usize),
    Send(usize),
    Recv(usize),
}

use Ask::{
    AllReduce, AllReduceOfFloats, Broadcast, Max, Private, Recv, Reduce, Scaled, Scatter, Send,
};

/// What ranks call, and what differs.
pub(crate) struct Cell {
    pub(crate) name: &'static str,
    /// What this rank calls.
    calls: fn(rank: usize) -> Vec<Ask>,
    /// What the error says.
    says: &'static str,
}

/// What the others call, or else the odd one.
fn odd(rank: usize, others: &[Ask], odd: &[Ask]) -> Vec<Ask> {
    if rank == ODD { odd.to_vec() } else { others.to_vec() }
}

pub(crate) const CELLS: &[Cell] = &[
    Cell {
        name: "kind",
        calls: |rank| odd(rank, &[Broadcast(0)], &[Reduce(0)]),
        says: "the collective differs: rank 2 has reduce, rank ",
    },
    Cell {
        name: "type",
        calls: |rank| odd(rank, &[AllReduce(64)], &[AllReduceOfFloats]),
        says: "the type differs: rank 2 has float, rank ",
    },
    Cell {
        name: "op",
        calls: |rank| odd(rank, &[AllReduce(64)], &[Max]),
        says: "op differs: rank 2 has max, rank ",
    },
    Cell {
        name: "count",
        calls: |rank| odd(rank, &[AllReduce(64)], &[AllReduce(65)]),
        says: "count differs: rank 2 has 65, rank ",
    },
    Cell {
        name: "long",
        calls: |rank| odd(rank, &[AllReduce(200_000)], &[AllReduce(200_001)]),
        says: "count differs: rank 2 has 200001, rank ",
    },
    Cell {
        name: "root",
        calls: |rank| odd(rank, &[Broadcast(0)], &[Broadcast(ODD)]),
        says: "root differs: rank 2 has 2, rank ",
    },
    Cell {
        name: "root-of-scatter",
        calls: |rank| odd(rank, &[Scatter(0)], &[Scatter(ODD)]),
        says: "root differs: rank 2 has 2, rank ",
    },
    Cell {
        name: "factor",
        calls: |rank| odd(rank, &[Scaled(1)], &[Scaled(-2)]),
        says: "the factor differs: rank 2 has -2, rank ",
    },
    Cell {
        name: "order",
        calls: |_| vec![AllReduce(64)],
        says: "order differs: rank 2 has tree, rank ",
    },
    Cell {
        name: "memory",
        calls: |rank| odd(rank, &[AllReduce(64)], &[Private]),
        says: "memory differs: rank 2 has private memory, rank ",
    },
    Cell {
        name: "one-less",
        calls: |rank| odd(rank, &[AllReduce(64), AllReduce(64)], &[AllReduce(64)]),
        says: " differs: rank 2 has ",
    },
    Cell {
        name: "one-more",
        calls: |rank| odd(rank, &[AllReduce(64)], &[AllReduce(64), AllReduce(64)]),
        says: " differs: rank 2 has ",
    },
    Cell {
        name: "skipped",
        calls: |rank| odd(rank, &[Broadcast(0), Broadcast(0)], &[Broadcast(0)]),
        says: " differs: rank 2 has ",
    },
    Cell {
        name: "swapped",
        calls: |rank| odd(rank, &[AllReduce(64), Broadcast(0)], &[Broadcast(0), AllReduce(64)]),
        says: "the collective differs: rank 2 has broadcast, rank ",
    },
    Cell {
        name: "message-for-collective",
        calls: |rank| odd(rank, &[AllReduce(64)], &[Send(0)]),
        says: "rank 2 ",
    },
    Cell {
        name: "moved",
        calls: |_| vec![AllReduce(64), AllReduce(64), Private, Private, AllReduce(64)],
        says: "",
    },
    Cell { name: "late", calls: |_| vec![AllReduce(64)], says: "" },
    Cell {
        name: "never",
        calls: |rank| odd(rank, &[AllReduce(64)], &[]),
        says: "rank 2 has not called ",
    },
    Cell {
        name: "unreceived",
        calls: |rank| if rank == 0 { vec![Send(ODD)] } else { vec![] },
        says: "rank 0 has sent 1 messages to rank 2, which has received 0",
    },
    Cell {
        name: "one-unreceived",
        calls: |rank| match rank {
            0 => vec![Send(ODD), Send(ODD)],
            ODD => vec![Recv(0)],
            _ => vec![],
        },
        says: "rank 0 has sent 2 messages to rank 2, which has received 1",
    },
    Cell { name: DEAD, calls: |_| vec![AllReduce(64)], says: "rank 2 died" },
    Cell { name: STOPPED, calls: |_| vec![AllReduce(64)], says: "rank 2 has " },
    Cell { name: CUT_OFF, calls: |_| vec![AllReduce(64)], says: "rank 2 " },
    Cell { name: STRANGERS, calls: |_| vec![AllReduce(64), AllReduce(200_000)], says: "" },
];

/// The odd one ends: its process, or its thread by a panic.
const DEAD: &str = "dead";
/// Its process is stopped, and goes on once the others have ended.
const STOPPED: &str = "stopped";
/// All its connections break.
const CUT_OFF: &str = "cut-off";
/// Others connect to the ranks' ports, and send random bytes.
const STRANGERS: &str = "strangers";

/// The time-out of ranks that are not to run into it.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// The time-out of ranks that are to run into it.
const SHORT: Duration = Duration::from_millis(700);

impl Cell {
    /// How it must end; `None` where ranks cannot do so.
    pub(crate) fn expected(&self, way: Way, place: Place) -> Option<Expected> {
        Some(match (self.name, way, place) {
            // These befall processes.
            (STOPPED | CUT_OFF | STRANGERS, _, Place::Threads) => return None,
            ("late" | STRANGERS, _, _) | ("moved", Way::Blocking | Way::Group, _) => {
                Expected::Right
            }
            ("moved", Way::Stream, _) => return None,
            // All that streams use is reached, and among threads, all.
            ("memory", Way::Stream, _) => return None,
            ("memory", _, Place::Threads) => Expected::Right,
            // A group ends only when its messages have been received.
            ("unreceived", Way::Group, _) => Expected::Error("rank 2 did not receive bucket 0"),
            ("one-unreceived", Way::Group, _) => {
                Expected::Error("rank 2 has none, rank 0 send of 64 int32 from rank 0 to 2")
            }
            _ => Expected::Error(self.says),
        })
    }

    /// Whether the odd one may end anyhow.
    pub(crate) fn fails(&self) -> bool {
        [DEAD, STOPPED, CUT_OFF].contains(&self.name)
    }

    /// Whether the odd one has to be woken.
    pub(crate) fn stops(&self) -> bool {
        self.name == STOPPED
    }

    /// This rank's part. After an error the others go on without the odd one.
    pub(crate) fn run(&self, mut comm: Communicator, way: Way, place: Place) -> Outcome {
        let rank = comm.rank();
        let error = match self.call(&mut comm, way, place) {
            Ok(()) => return comm.close().map_err(|error| error.to_string()),
            Err(error) => error,
        };
        if rank != ODD {
            assert!(!self.fails() || error.ranks() == [ODD], "{}: {error:?}", self.name);
            go_on(&mut comm).map_err(|after| format!("{after} (after {error})"))?;
        }
        Err(error.to_string())
    }

    /// What befalls the odd one.
    fn befall(&self, place: Place) {
        match (self.name, place) {
            (DEAD, Place::Threads) => std::panic::resume_unwind(Box::new("on purpose")),
            // SAFETY: it ends the process, past everything.
            (DEAD, _) => unsafe { libc::_exit(9) },
            // SAFETY: it sends a signal to this process.
            (STOPPED, _) => drop(unsafe { libc::raise(libc::SIGSTOP) }),
            (CUT_OFF, _) => cut_connections(),
            _ => {}
        }
    }

    fn call(&self, comm: &mut Communicator, way: Way, place: Place) -> Result<(), Error> {
        let rank = comm.rank();
        let strangers = (self.name == STRANGERS).then(|| {
            let mut random = rank as u64;
            Strangers::begin(move || {
                random =
                    random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                random >> 16
            })
        });
        comm.barrier()?;
        match (self.name, rank == ODD) {
            ("order", true) => comm.set_order(Order::Tree)?,
            ("late", true) => std::thread::sleep(Duration::from_millis(200)),
            ("never", true) => std::thread::sleep(5 * SHORT),
            ("never", false) => comm.set_timeout(SHORT)?,
            ("unreceived", _) if rank == 0 && way == Way::Group => comm.set_timeout(SHORT)?,
            // A message has no number among the collectives, so only waiting tells.
            ("message-for-collective", _) if way == Way::Group => comm.set_timeout(SHORT)?,
            (STOPPED, false) => comm.set_timeout(SHORT)?,
            // They have the time to come.
            (STRANGERS, _) => std::thread::sleep(Duration::from_millis(200)),
            _ => {}
        }
        if rank == ODD {
            self.befall(place);
        }
        let calls = (self.calls)(rank);
        match way {
            Way::Blocking => calls.iter().try_for_each(|ask| blocking(comm, *ask))?,
            Way::Stream => on_stream(comm, &calls)?,
            Way::Group => in_group(comm, &calls)?,
        }
        comm.barrier()?;
        if let Some(strangers) = strangers {
            // Within a node only the rendezvous listens, which is with rank 0.
            let came = strangers.end() > 0 || (place == Place::Processes && rank > 0);
            assert!(came, "nobody has come to rank {rank}");
        }
        Ok(())
    }
}

/// What the others do without the odd one.
fn go_on(comm: &mut Communicator) -> Result<(), Error> {
    comm.set_timeout(LONG)?;
    let others = comm.shrink(&[ODD])?;
    let mut values = others.alloc_host::<i32>(3000)?;
    values.fill(others.rank() as i32 + 1);
    others.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
    let sum: i32 = (1..RANKS as i32).sum();
    assert!(values.iter().all(|value| *value == sum), "{:?}", &values[..2]);
    others.close()
}

/// Elements, in memory that peers reach or not.
enum Values<T: Element> {
    Shared(HostBuffer<T>),
    Private(Vec<T>),
}

impl<T: Element> Values<T> {
    fn of(comm: &Communicator, ask: Ask) -> Result<Values<T>, Error> {
        let count = match ask {
            AllReduce(count) => count,
            Scatter(root) if root == comm.rank() => 8 * comm.world_size(),
            Scatter(_) => 8,
            _ => 64,
        };
        let shared = comm.alloc_host::<T>(count)?;
        Ok(match ask {
            Private => Values::Private(shared.to_vec()),
            _ => Values::Shared(shared),
        })
    }

    fn slice(&mut self) -> &mut [T] {
        match self {
            Values::Shared(buffer) => &mut buffer[..],
            Values::Private(values) => values,
        }
    }
}

/// A call's elements, of its type.
enum Buffer {
    Integers(Values<i32>),
    Floats(Values<f32>),
}

impl Buffer {
    fn of(comm: &Communicator, ask: Ask) -> Result<Buffer, Error> {
        Ok(match ask {
            AllReduceOfFloats => Buffer::Floats(Values::of(comm, ask)?),
            _ => Buffer::Integers(Values::of(comm, ask)?),
        })
    }
}

/// Makes a call, of a communicator or in a group, over slices.
macro_rules! make {
    ($target:expr, $ask:expr, $buffer:expr) => {
        match ($ask, $buffer) {
            (AllReduce(_) | Private, Buffer::Integers(values)) => {
                $target.all_reduce_in_place(values.slice(), ReduceOp::Sum).map(drop)
            }
            (Max, Buffer::Integers(values)) => {
                $target.all_reduce_in_place(values.slice(), ReduceOp::Max).map(drop)
            }
            (Scaled(by), Buffer::Integers(values)) => {
                $target.all_reduce_in_place(values.slice(), ReduceOp::PreMulSum(by)).map(drop)
            }
            (Broadcast(root), Buffer::Integers(values)) => {
                $target.broadcast_in_place(values.slice(), root).map(drop)
            }
            (Reduce(root), Buffer::Integers(values)) => {
                $target.reduce_in_place(values.slice(), ReduceOp::Sum, root).map(drop)
            }
            (Scatter(root), Buffer::Integers(values)) => {
                $target.scatter_in_place(values.slice(), root).map(drop)
            }
            (Send(peer), Buffer::Integers(values)) => {
                $target.send(&*values.slice(), peer).map(drop)
            }
            (Recv(peer), Buffer::Integers(values)) => $target.recv(values.slice(), peer).map(drop),
            (_, Buffer::Floats(values)) => {
                $target.all_reduce_in_place(values.slice(), ReduceOp::Sum).map(drop)
            }
            (AllReduceOfFloats, Buffer::Integers(_)) => unreachable!("its elements are floats"),
        }
    };
}

fn blocking(comm: &Communicator, ask: Ask) -> Result<(), Error> {
    let mut buffer = Buffer::of(comm, ask)?;
    if let (AllReduce(_) | Private, Buffer::Integers(values)) = (ask, &mut buffer) {
        values.slice().fill(comm.rank() as i32 + 1);
    }
    make!(comm, ask, &mut buffer)?;
    if let (AllReduce(_) | Private, Buffer::Integers(values)) = (ask, &mut buffer) {
        let sum = (RANKS * (RANKS + 1) / 2) as i32;
        assert!(values.slice().iter().all(|value| *value == sum), "{:?}", values.slice());
    }
    Ok(())
}

fn in_group(comm: &Communicator, calls: &[Ask]) -> Result<(), Error> {
    let mut buffers = Vec::new();
    for ask in calls {
        buffers.push(Buffer::of(comm, *ask)?);
    }
    comm.group(|group| {
        let mut all = calls.iter().zip(&mut buffers);
        all.try_for_each(|(ask, buffer)| make!(group, *ask, buffer))
    })
}

fn on_stream(comm: &Communicator, calls: &[Ask]) -> Result<(), Error> {
    let stream = Stream::new()?;
    let mut works = Vec::new();
    for ask in calls {
        works.push(match Buffer::of(comm, *ask)? {
            Buffer::Integers(Values::Shared(mut values)) => put(comm, &stream, *ask, &mut values)?,
            Buffer::Floats(Values::Shared(mut values)) => {
                comm.on(&stream).all_reduce_in_place(&mut values, ReduceOp::Sum)?
            }
            _ => unreachable!("streams have buffers of the communicator"),
        });
    }
    works.iter().try_for_each(Work::wait)
}

fn put(
    comm: &Communicator,
    stream: &Stream,
    ask: Ask,
    values: &mut HostBuffer<i32>,
) -> Result<Work, Error> {
    let on = comm.on(stream);
    match ask {
        Max => on.all_reduce_in_place(values, ReduceOp::Max),
        Scaled(by) => on.all_reduce_in_place(values, ReduceOp::PreMulSum(by)),
        Broadcast(root) => on.broadcast_in_place(values, root),
        Reduce(root) => on.reduce_in_place(values, ReduceOp::Sum, root),
        Scatter(root) => on.scatter_in_place(values, root),
        Send(peer) => on.send(values, peer),
        Recv(peer) => on.recv(values, peer),
        AllReduce(_) | AllReduceOfFloats | Private => on.all_reduce_in_place(values, ReduceOp::Sum),
    }
}
