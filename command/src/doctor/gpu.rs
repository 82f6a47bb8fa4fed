//! The GPU part: kernels, driver, and what each device can do.

use super::{Finding, State};
use crate::options::Size;
use oxccl::cuda::{Image, Kernels};
use oxccl_kernels::image;
use oxccl_transports::CudaError;
use oxccl_transports::cuda::{Context, Device, DeviceRegion, Driver};
use oxccl_transports::rdma::{GpuWay, Port, RdmaFabric, Settings, usable_ports};
use std::path::PathBuf;

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![kernels()];
    match Driver::load() {
        Ok(driver) => {
            let detail = format!("it serves CUDA {}", driver.version());
            findings.push(Finding::new("driver", State::Ok, detail));
            findings.extend(devices(driver));
        }
        Err(error) => findings.push(failed("driver", State::Missing, &error)),
    }
    findings
}

fn kernels() -> Finding {
    match image::FATBIN {
        Some(bytes) => {
            let targets: Vec<_> =
                image::TARGETS.iter().map(|target| format!("sm_{target}")).collect();
            let size = Size(bytes.len() >> 10 << 10);
            let detail = format!("{} and PTX embedded, {size}", targets.join(", "));
            Finding::new("kernels", State::Ok, detail)
        }
        None => Finding::new("kernels", State::Missing, "built without GPU kernels")
            .remedy("run tools/setup-nvcc, or set NVCC or CUDA_HOME, and build again"),
    }
}

/// An error says what helps behind its first colon.
fn failed(what: &'static str, state: State, error: &CudaError) -> Finding {
    let text = error.to_string();
    match text.split_once("; ").or_else(|| text.split_once(": ")) {
        Some((detail, remedy)) => Finding::new(what, state, detail).remedy(remedy),
        None => Finding::new(what, state, text),
    }
}

fn devices(driver: Driver) -> Vec<Finding> {
    let all = match driver.devices() {
        Ok(all) if all.is_empty() => {
            return vec![failed("device", State::Missing, &CudaError::NoDevice)];
        }
        Ok(all) => all,
        Err(error) => return vec![failed("device", State::Missing, &error)],
    };
    all.iter()
        .flat_map(|device| {
            let facts = [facts(device, &all), usable(*device), shared(*device)];
            let facts = facts
                .map(|found| found.unwrap_or_else(|error| failed("device", State::Note, &error)));
            facts.into_iter().chain(adapters(*device))
        })
        .collect()
}

fn facts(device: &Device, all: &[Device]) -> Result<Finding, CudaError> {
    let (major, minor) = device.capability()?;
    let unreached: Vec<_> = all
        .iter()
        .filter(|other| !device.reaches(other).unwrap_or(false))
        .map(|other| other.ordinal().to_string())
        .collect();
    let peers = match (all.len(), unreached.is_empty()) {
        (1, _) => String::new(),
        (_, true) => "; reaches all others".to_owned(),
        (_, false) => format!("; cannot reach GPU {}", unreached.join(", ")),
    };
    let detail = format!(
        "GPU {}: {}, compute capability {major}.{minor}, {:.1} GiB, {} multiprocessors, {}{peers}",
        device.ordinal(),
        device.name()?,
        device.memory_bytes()? as f64 / f64::from(1 << 30),
        device.multiprocessors()?,
        device.uuid()?,
    );
    Ok(Finding::new("device", State::Ok, detail))
}

/// Whether the kernels can be loaded, and memory be shared.
fn usable(device: Device) -> Result<Finding, CudaError> {
    let context = Context::primary(device)?;
    let loaded = Image::embedded(device).and_then(|image| Kernels::load(&context, image));
    if let Err(error) = loaded {
        return Ok(failed("", State::Missing, &error));
    }
    if let Err(error) = DeviceRegion::create(&context, 1) {
        return Ok(failed("", State::Note, &error));
    }
    Ok(Finding::new(
        "",
        State::Ok,
        "the kernels can be loaded, and its memory be shared with other processes",
    ))
}

/// How several processes get on on it.
fn shared(device: Device) -> Result<Finding, CudaError> {
    let daemon = mps();
    if let (true, None) = (device.is_exclusive()?, &daemon) {
        let detail = "one process at a time may use it (compute mode EXCLUSIVE_PROCESS)";
        return Ok(Finding::new("", State::Note, detail)
            .remedy("for several: nvidia-smi -c DEFAULT, or start MPS"));
    }
    Ok(match daemon {
        Some(folder) => {
            let folder = folder.display();
            let detail = format!("processes run on it side by side: MPS is started ({folder})");
            Finding::new("", State::Ok, detail)
        }
        None => {
            let detail = "processes that share it take turns, so that calls between them take \
                          milliseconds: MPS is not started";
            Finding::new("", State::Note, detail).remedy(
                "where ranks share it: nvidia-cuda-mps-control -d, or ranks that are threads of \
                 one process",
            )
        }
    })
}

/// Where the daemon of NVIDIA's Multi-Process Service that this process would find listens.
fn mps() -> Option<PathBuf> {
    let folder = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY");
    let folder = folder.map_or_else(|| PathBuf::from("/tmp/nvidia-mps"), PathBuf::from);
    let pid = std::fs::read_to_string(folder.join("nvidia-cuda-mps-control.pid")).ok()?;
    let process = PathBuf::from("/proc").join(pid.trim());
    (!pid.trim().is_empty() && process.exists()).then_some(folder)
}

/// Which adapters reach its memory.
fn adapters(device: Device) -> Vec<Finding> {
    let (Ok(ports), Ok(context)) = (usable_ports(None, None), Context::primary(device)) else {
        return Vec::new();
    };
    ports.into_iter().map(|port| adapter(port, &context)).collect()
}

fn adapter(port: Port, context: &Context) -> Finding {
    let name = port.device().name().to_owned();
    let tried = RdmaFabric::new(vec![port], Settings::default())
        .and_then(|fabric| fabric.with_gpu(context.clone(), &GpuWay::ALL).try_gpu());
    match tried {
        Ok(way) => Finding::new("", State::Ok, format!("{name} reaches its memory {way}")),
        Err(error) => Finding::new("", State::Note, error.to_string()).remedy(
            "messages to other nodes go through memory of the host; for less, load nvidia-peermem, or use a kernel and drivers \
             that pass dmabufs",
        ),
    }
}
