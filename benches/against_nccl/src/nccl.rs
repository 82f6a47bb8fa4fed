//! NCCL as a contestant: communicators of several settings, over the buffers that all contestants use.

use std::mem::ManuallyDrop;

use crate::library::{
    Buffers, Ctas, DataType as NcclType, NcclCommunicator, NcclError, NcclLibrary, RedOp, UniqueId,
};
use oxccl::cuda::Stream;
use oxccl::{DataType, Kind, OpKind};
use oxccl_command::shared::{Failure, Form};

use crate::args::NcclWay;
use crate::buffers::Buffer;
use crate::contestant::{Contestant, Placed, Setting, Task};

/// Blocks that all ranks together may have on a GPU: no more are on it at once, and NCCL's wait for each other.
const MOST_BLOCKS: usize = 128;
/// NCCL's own bound on a rank's.
const MOST_CTAS: usize = 64;

/// One way to set NCCL up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    ctas: Ctas,
    way: NcclWay,
}

/// The ways to compare with: each with each number of CTAs.
pub(crate) fn ways(ranks: usize, wished: &[NcclWay], wished_ctas: &[usize]) -> Vec<Way> {
    let fitting = (MOST_BLOCKS / ranks).clamp(1, MOST_CTAS);
    let mut ctas: Vec<Ctas> =
        wished_ctas.iter().map(|count| Ctas { min: Some(*count), max: Some(*count) }).collect();
    if ctas.is_empty() {
        // As NCCL likes, within what fits; and as many as fit.
        ctas = vec![
            Ctas { min: None, max: Some(fitting) },
            Ctas { min: Some(fitting), max: Some(fitting) },
        ];
    }
    let with = |way: &NcclWay| ctas.iter().map(|ctas| Way { ctas: *ctas, way: *way }).collect();
    wished.iter().flat_map(|way| -> Vec<Way> { with(way) }).collect()
}

impl Way {
    /// What it is called.
    pub(crate) fn setting(&self) -> Setting {
        let family = match self.way {
            NcclWay::Default => "default",
            NcclWay::Symmetric => "symmetric",
        };
        let ctas = match self.ctas {
            Ctas { min: Some(min), max: Some(max) } if min == max => format!("{max} ctas"),
            Ctas { max: Some(max), .. } => format!("up to {max} ctas"),
            _ => "any ctas".to_owned(),
        };
        Setting { family, name: format!("{family}, {ctas}"), blocks: None }
    }
}

/// One rank's communicators, one a way.
#[derive(Default)]
pub(crate) struct Nccl {
    ways: Vec<(Way, Joined)>,
}

/// One rank of a communicator. It is never destroyed: that may wait for what never ends, and the process ends anyway.
pub(crate) type Joined = ManuallyDrop<NcclCommunicator>;

impl Way {
    /// Connects all ranks; with windows on these buffers, if it uses some. All ranks do so together.
    pub(crate) fn connect(
        &self,
        library: &NcclLibrary,
        id: &UniqueId,
        (rank, ranks): (usize, usize),
        buffers: [&Buffer; 2],
    ) -> Result<Joined, NcclError> {
        let mut comm = ManuallyDrop::new(library.connect(id, rank, ranks, self.ctas)?);
        if self.way == NcclWay::Symmetric {
            buffers.into_iter().filter_map(Buffer::nccl).try_for_each(|it| comm.register(it))?;
        }
        Ok(comm)
    }
}

impl Nccl {
    /// Adds a way.
    pub(crate) fn add(&mut self, way: Way, comm: Joined) {
        self.ways.push((way, comm));
    }

    /// How many ways there are.
    pub(crate) fn len(&self) -> usize {
        self.ways.len()
    }
}

impl Contestant for Nccl {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn takes(&self, _task: &Task) -> bool {
        true
    }

    fn captures_together(&self) -> bool {
        false
    }

    fn settings(&mut self, task: &Task) -> Result<Vec<Setting>, Failure> {
        op(task.case().op)?;
        Ok(self.ways.iter().map(|(way, _)| way.setting()).collect())
    }

    fn put(&mut self, setting: usize, task: &Task, stream: &Stream) -> Result<(), Failure> {
        let (comm, op) = (&self.ways[setting].1, op(task.case().op)?);
        let put = || task.calls.iter().try_for_each(|call| put(comm, call, op, stream));
        Ok(if task.form == Some(Form::Fused) { comm.group(put) } else { put() }?)
    }

    fn ended(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

fn put(
    comm: &NcclCommunicator,
    call: &Placed,
    op: RedOp,
    stream: &Stream,
) -> Result<(), NcclError> {
    let on = Buffers {
        input: call.input.cast(),
        output: call.output.cast(),
        count: call.shape.count,
        data_type: data_type(call.case.data_type),
        stream: stream.raw().cast(),
    };
    let root = call.case.root;
    // SAFETY: the buffers are device memory of the call's shape; they and the stream outlive the measurement, which all ranks
    // make alike.
    unsafe {
        match call.case.kind {
            Kind::AllReduce => comm.all_reduce(on, op),
            Kind::ReduceScatter => comm.reduce_scatter(on, op),
            Kind::AllGather => comm.all_gather(on),
            Kind::AllToAll => comm.all_to_all(on),
            Kind::Broadcast => comm.broadcast(on, root),
            Kind::Reduce => comm.reduce(on, op, root),
            Kind::Gather => comm.gather(on, root),
            Kind::Scatter => comm.scatter(on, root),
            Kind::SendRecv | Kind::Barrier => unreachable!("refused before"),
        }
    }
}

fn data_type(data_type: DataType) -> NcclType {
    match data_type {
        DataType::I8 => NcclType::I8,
        DataType::U8 => NcclType::U8,
        DataType::I32 => NcclType::I32,
        DataType::U32 => NcclType::U32,
        DataType::I64 => NcclType::I64,
        DataType::U64 => NcclType::U64,
        DataType::F16 => NcclType::F16,
        DataType::BF16 => NcclType::BF16,
        DataType::F32 => NcclType::F32,
        DataType::F64 => NcclType::F64,
        DataType::F8E4M3 => NcclType::F8E4M3,
        DataType::F8E5M2 => NcclType::F8E5M2,
    }
}

fn op(op: OpKind) -> Result<RedOp, Failure> {
    match op {
        OpKind::Sum => Ok(RedOp::Sum),
        OpKind::Prod => Ok(RedOp::Prod),
        OpKind::Min => Ok(RedOp::Min),
        OpKind::Max => Ok(RedOp::Max),
        OpKind::Avg => Ok(RedOp::Avg),
        _ => Err(Failure::Usage(format!("NCCL has no {op} that is set up alike"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use NcclWay::{Default, Symmetric};

    #[test]
    fn blocks_of_all_ranks_fit_on_a_gpu() {
        for ranks in [1, 2, 3, 4, 8, 16, 128, 500] {
            for way in ways(ranks, &[Default, Symmetric], &[]) {
                let most = way.ctas.max.unwrap();
                assert!((1..=64).contains(&most) && (most * ranks <= 128 || most == 1), "{ranks}");
            }
        }
        let names = |wished: &[NcclWay], ctas: &[usize]| -> Vec<String> {
            ways(8, wished, ctas).iter().map(|way| way.setting().name).collect()
        };
        assert_eq!(names(&[Default, Symmetric], &[4]), ["default, 4 ctas", "symmetric, 4 ctas"]);
        assert_eq!(names(&[Default], &[]), ["default, up to 16 ctas", "default, 16 ctas"]);
    }
}
