//! NCCL as a contestant: communicators of several settings, over the buffers that all contestants
//! use. It is loaded at run time.

mod communicator;
mod error;
mod library;
mod raw;
mod setup;

use oxccl::cuda::Stream;
use oxccl_command::shared::{Failure, Form};

use crate::args::NcclWay;
use crate::contestant::{Contestant, Setting, Task};
use communicator::{Ctas, NcclCommunicator, number_of_op};
pub(crate) use library::NcclLibrary;
pub(crate) use setup::Setup;

/// Blocks that all ranks together may have on a GPU, since NCCL's wait for each other. Half as many
/// as an H200 has multiprocessors: of 96 and more, calls of eight ranks were seen to hang there.
const MOST_BLOCKS: usize = 64;
/// NCCL's own bound on a rank's.
const MOST_CTAS: usize = 64;

/// One way to set NCCL up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    ctas: Ctas,
    way: NcclWay,
}

/// The ways to compare with: each with each number of CTAs.
fn ways(ranks: usize, wished: &[NcclWay], wished_ctas: &[usize]) -> Vec<Way> {
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
    fn setting(&self) -> Setting {
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
    ways: Vec<(Way, NcclCommunicator)>,
}

impl Contestant for Nccl {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn captures_together(&self) -> bool {
        false
    }

    fn settings(&mut self, task: &Task) -> Result<Vec<Setting>, Failure> {
        let op = task.case().op;
        if number_of_op(op).is_none() {
            return Err(Failure::Usage(format!("NCCL has no {op} that is set up alike")));
        }
        Ok(self.ways.iter().map(|(way, _)| way.setting()).collect())
    }

    fn put(&mut self, setting: usize, task: &Task, stream: &Stream) -> Result<(), Failure> {
        let comm = &self.ways[setting].1;
        // SAFETY: the buffers are device memory of the call's shape; they and the stream outlive
        // the measurement, which all ranks make alike.
        let put = || task.calls.iter().try_for_each(|call| unsafe { comm.call(call, stream) });
        Ok(if task.form == Some(Form::Fused) { comm.group(put) } else { put() }?)
    }

    fn ended(&mut self) -> Result<(), Failure> {
        Ok(())
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
                assert!((1..=64).contains(&most) && (most * ranks <= 64 || most == 1), "{ranks}");
            }
        }
        let names = |wished: &[NcclWay], ctas: &[usize]| -> Vec<String> {
            ways(8, wished, ctas).iter().map(|way| way.setting().name).collect()
        };
        assert_eq!(names(&[Default, Symmetric], &[4]), ["default, 4 ctas", "symmetric, 4 ctas"]);
        assert_eq!(names(&[Default], &[]), ["default, up to 8 ctas", "default, 8 ctas"]);
    }
}
