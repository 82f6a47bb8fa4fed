//! Schedules: read, proven, predicted.

use crate::element::Element;
use crate::error::misuse;
use oxccl::CustomSchedule;
use oxccl::plans::collective::Kind;
use oxccl::plans::msccl::from_xml;
use oxccl::plans::schedule::{Layout, ScheduleFile};
use oxccl::plans::simulate::{Options, Subject, simulate};
use oxccl::plans::topology::{Network, Topology, preset};
use oxccl::plans::tune::Limits;
use oxccl::plans::verify::infer_raw;
use pyo3::prelude::*;
use std::sync::Arc;

/// What each rank does in one collective, proven. `Communicator.local(n, schedule=schedule)` has
/// its collective carried out so.
#[pyclass(frozen, module = "oxccl")]
pub(crate) struct Schedule {
    file: ScheduleFile,
    proven: Arc<CustomSchedule>,
}

impl Schedule {
    /// For communicators.
    pub(crate) fn proven(&self) -> Arc<CustomSchedule> {
        self.proven.clone()
    }

    fn prove(name: &str, mut file: ScheduleFile) -> PyResult<Schedule> {
        infer_raw(&mut file.schedule);
        let proven = CustomSchedule::prove(name, file.clone()).map_err(|violation| {
            let story = violation.story(&file.schedule, &file.notes);
            misuse(format!("{name}: {violation}\n{story}"))
        })?;
        Ok(Schedule { file, proven: Arc::new(proven) })
    }
}

#[pymethods]
impl Schedule {
    #[new]
    #[pyo3(signature = (text, name = "schedule", *, blocks = "merged"))]
    fn parse(text: &str, name: &str, blocks: &str) -> PyResult<Schedule> {
        let blocks = blocks.parse().map_err(|fault| misuse(format!("blocks is {fault}")))?;
        let file = match text.trim_start().starts_with('<') {
            true => from_xml(text, blocks)
                .map_err(|fault| misuse(format!("{name}: {fault}\n{}", fault.story())))?,
            false => {
                ScheduleFile::from_json(text).map_err(|fault| misuse(format!("{name}: {fault}")))?
            }
        };
        Schedule::prove(name, file)
    }

    /// Of a file.
    #[staticmethod]
    #[pyo3(signature = (path, *, blocks = "merged"))]
    fn read(path: std::path::PathBuf, blocks: &str) -> PyResult<Schedule> {
        let text = std::fs::read_to_string(&path)
            .map_err(|error| misuse(format!("{}: {error}", path.display())))?;
        Schedule::parse(&text, &path.display().to_string(), blocks)
    }

    /// Its own name, or that of what it was read from.
    #[getter]
    fn name(&self) -> &str {
        self.file.notes.name.as_deref().unwrap_or_else(|| self.proven.name())
    }

    /// The collective that it carries out.
    #[getter]
    fn collective(&self) -> &'static str {
        self.file.schedule.collective.kind.name()
    }

    /// The number of ranks that it is for.
    #[getter]
    fn world_size(&self) -> usize {
        self.file.schedule.collective.ranks
    }

    /// Whether it works with input and output in one buffer.
    #[getter]
    fn in_place(&self) -> bool {
        self.file.in_place
    }

    /// The text of a file, for `oxccl verify`, `sim`, `explain` and `bench`.
    fn json(&self) -> String {
        self.file.to_json()
    }

    /// What a rank does, step by step. A rank that it has not is an error.
    fn steps(&self, rank: usize) -> PyResult<Vec<String>> {
        let schedule = &self.file.schedule;
        if rank >= schedule.collective.ranks {
            return Err(misuse(format!("there is no rank {rank}")));
        }
        Ok(schedule.steps(rank).map(|(_, instruction)| instruction.to_string()).collect())
    }

    /// Predicted seconds of calls of these sizes in bytes, the larger of a rank's input and output.
    /// The topology is one of `oxccl topo`'s, or a file; one that is unknown or wrong is an error.
    #[pyo3(signature = (topology, sizes, *, dtype = "float32", channels = 1))]
    fn simulate(
        &self,
        py: Python<'_>,
        topology: &str,
        sizes: Vec<usize>,
        dtype: &str,
        channels: usize,
    ) -> PyResult<Vec<f64>> {
        let element = Element::named(dtype)?.data_type;
        let wrong = |error: &dyn std::fmt::Display| misuse(error.to_string());
        let collective = self.file.schedule.collective;
        let mut topology = match topology.ends_with(".toml") {
            true => {
                let text = std::fs::read_to_string(topology)
                    .map_err(|error| misuse(format!("{topology}: {error}")))?;
                Topology::parse(&text, topology).map_err(|error| wrong(&error))?
            }
            false => preset(topology).map_err(|error| wrong(&error))?,
        };
        let devices = topology.devices_per_node();
        topology.nodes = topology.nodes.max(collective.ranks.div_ceil(devices));
        let network = Network::new(&topology, collective.ranks, None).map_err(|e| wrong(&e))?;
        let limits = Limits::of(network.device(0).processor);
        let options = Options {
            element_bytes: element.len_bytes(),
            channels: channels.max(self.proven.needed_channels()),
            tile_bytes: self.proven.tile_bytes(&limits, network.nodes()),
            ..Options::default()
        };
        let subject = Subject::schedule(&self.file.schedule).map_err(|error| wrong(&error))?;
        let (input, output) = subject.chunking();
        let align = (64 / element.len_bytes()).max(1);
        let predict = |bytes: usize| -> Result<f64, String> {
            let whole = bytes / element.len_bytes();
            let count = match collective.kind {
                Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::SendRecv => whole,
                _ => whole / collective.ranks,
            };
            let layout = Layout::even(&collective, input, output, count, align);
            let layout = layout.map_err(|error| error.to_string())?;
            let predicted = simulate(&subject, &layout, &network, &options);
            Ok(predicted.map_err(|error| error.to_string())?.time_ns * 1e-9)
        };
        let predicted: Result<Vec<f64>, String> =
            py.detach(|| sizes.into_iter().map(predict).collect());
        predicted.map_err(misuse)
    }

    fn __repr__(&self) -> String {
        let (kind, ranks) = (self.collective(), self.world_size());
        format!("oxccl.Schedule({:?}, {kind} of {ranks} ranks, proven)", self.name())
    }
}
