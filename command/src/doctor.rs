//! `oxccl doctor`: what this machine has, and lacks, for each transport and device.

use std::fs;
use std::time::Duration;

use clap::Args;
use oxccl::{Collectives, Communicator, Config, FabricKind, ReduceOp, UniqueId};
use oxccl_kernels::{HostExecutor, Isa};
use oxccl_transports::{HUGE_PAGE, Region, read_process, tracing_scope};
use serde::Serialize;

use crate::failure::Failure;
use crate::machine::{self, Probe};
use crate::speak;

mod gpu;
mod nccl;
mod rdma;

/// Says what this machine has, and lacks, for each transport and device.
///
/// With --pid it says which libraries a running process takes for NCCL, and nothing else.
#[derive(Args)]
pub(crate) struct DoctorOptions {
    /// A process of this machine.
    #[arg(long)]
    pid: Option<u32>,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// It is there and works.
    Ok,
    /// It works, and could be better.
    Note,
    /// It is not there, and oxccl runs without it.
    Missing,
    /// It is not there, and oxccl cannot run without it.
    Broken,
}

/// One line.
#[derive(Serialize)]
struct Finding {
    what: &'static str,
    state: State,
    detail: String,
    remedy: Option<String>,
}

impl Finding {
    fn new(what: &'static str, state: State, detail: impl Into<String>) -> Finding {
        Finding { what, state, detail: detail.into(), remedy: None }
    }

    fn remedy(self, text: impl Into<String>) -> Finding {
        Finding { remedy: Some(text.into()), ..self }
    }

    fn print(&self) {
        let state = match self.state {
            State::Ok => "ok",
            State::Note => "note",
            State::Missing => "missing",
            State::Broken => "BROKEN",
        };
        println!("  {state:<8} {:<18} {}", self.what, self.detail);
        if let Some(remedy) = &self.remedy {
            println!("  {:<8} {:<18} -> {remedy}", "", "");
        }
    }
}

/// What finds out about one part of the machine.
type Find = fn() -> Vec<Finding>;

/// One part of the machine.
#[derive(Serialize)]
struct Section {
    name: &'static str,
    findings: Vec<Finding>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    /// The process, where one is asked about.
    pid: Option<u32>,
    sections: Vec<Section>,
    /// How many of the findings are broken.
    broken: usize,
}

/// Prints all findings.
///
/// # Errors
/// [`Failure::Unfit`] if something is missing that collectives on the CPU need.
pub(crate) fn main(options: &DoctorOptions) -> Result<(), Failure> {
    if let Some(pid) = options.pid {
        let findings = nccl::of_process(pid)?;
        match options.json {
            true => print_json(Some(pid), vec![Section { name: NCCL, findings }], 0),
            false => findings.iter().for_each(Finding::print),
        }
        return Ok(());
    }
    if !options.json {
        println!("oxccl {}", env!("CARGO_PKG_VERSION"));
    }
    let parts: [(&str, Find); 6] = [
        ("machine", of_machine),
        ("memory", of_memory),
        ("transports", of_transports),
        ("RDMA", rdma::findings),
        ("GPU", gpu::findings),
        (NCCL, nccl::findings),
    ];
    let sections: Vec<Section> = parts
        .into_iter()
        .map(|(name, find)| {
            let section = Section { name, findings: find() };
            // Each as soon as it is there: some take their time.
            if !options.json {
                section.print();
            }
            section
        })
        .collect();
    let all = sections.iter().flat_map(|section| &section.findings);
    let broken = all.filter(|finding| finding.state == State::Broken).count();
    if options.json {
        print_json(None, sections, broken);
    }
    if broken > 0 { Err(Failure::Unfit(broken)) } else { Ok(()) }
}

/// The name of the part about libraries that programs take for NCCL.
const NCCL: &str = "NCCL's programs";

impl Section {
    fn print(&self) {
        println!("\n{}", self.name);
        self.findings.iter().for_each(Finding::print);
    }
}

fn print_json(pid: Option<u32>, sections: Vec<Section>, broken: usize) {
    println!("{}", speak::json(&Report { pid, sections, broken }));
}

fn of_machine() -> Vec<Finding> {
    let cores = machine::usable_cores().len();
    let model = machine::cpu_model();
    let processor = Finding::new("processor", State::Ok, format!("{model}, {cores} usable cores"));
    let best = HostExecutor::detect().isa();
    let others: Vec<_> = Isa::all()
        .into_iter()
        .filter(|isa| *isa != best && HostExecutor::for_isa(*isa).is_some())
        .map(Isa::name)
        .collect();
    let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
    let executor = format!("{}; this processor also runs the builds: {others}", best.name());
    let probe = Probe::measure();
    let speed = if probe.one_way_ns.is_some() {
        Finding::new("speed, just now", State::Ok, probe.to_string())
    } else {
        Finding::new("speed, just now", State::Note, probe.to_string())
            .remedy("ranks share this core and take turns: give the process more cores")
    };
    vec![processor, Finding::new("host executor", State::Ok, executor), speed]
}

fn of_memory() -> Vec<Finding> {
    vec![memory_file(), available_memory(), huge_pages(), private_memory()]
}

fn memory_file() -> Finding {
    let made =
        Region::create("oxccl-doctor", 1 << 20).and_then(|region| region.reserve(0, 1 << 20, None));
    match made {
        Ok(()) => {
            let detail = "memory files work (memfd; /dev/shm is not used, however full it is)";
            Finding::new("shared memory", State::Ok, detail)
        }
        Err(error) => Finding::new("shared memory", State::Broken, error.to_string())
            .remedy("allow memfd_create, and give this process memory"),
    }
}

fn available_memory() -> Finding {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| {
        let kibibytes = line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?;
        kibibytes.trim().parse::<u64>().ok()
    });
    let limit = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok())
        // Version 1 says "no limit" with a number near 2^63.
        .filter(|limit| *limit < 1 << 60);
    let gibibytes = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let limit = limit.map_or("no control-group limit".to_owned(), |limit| {
        format!("control-group limit {:.1} GiB", gibibytes(limit))
    });
    match available {
        Some(kibibytes) => {
            let detail = format!("{:.1} GiB available, {limit}", gibibytes(kibibytes << 10));
            Finding::new("memory", State::Ok, detail)
        }
        None => Finding::new("memory", State::Note, format!("unknown, {limit}"))
            .remedy("mount /proc: without it too large a comm.alloc may end the process"),
    }
}

fn huge_pages() -> Finding {
    let taken = Region::create("oxccl-doctor", HUGE_PAGE)
        .and_then(|region| region.reserve(0, HUGE_PAGE, None).and(region.take_huge(0, HUGE_PAGE)));
    match taken {
        Ok(()) => Finding::new("huge pages", State::Ok, "comm.alloc has them from 2 MiB on"),
        Err(error) => {
            let detail = format!("{error}: large copies and first touches are slower");
            Finding::new("huge pages", State::Note, detail).remedy(
                "Linux 6.1 or newer, where /sys/kernel/mm/transparent_hugepage/shmem_enabled is not deny",
            )
        }
    }
}

/// Who may read whose memory only ranks find out, at their start.
fn private_memory() -> Finding {
    let what = "private memory";
    let through_slots = "messages of private memory go through slots";
    let (own, mut read) = ([1u8; 8], [0; 8]);
    if let Err(error) = read_process(std::process::id(), own.as_ptr() as u64, &mut read) {
        let detail = format!("process_vm_readv: {error}; {through_slots}");
        return Finding::new(what, State::Note, detail).remedy(
            "allow that call of the system, which a container's seccomp profile may forbid",
        );
    }
    match tracing_scope() {
        None | Some(0) => {
            Finding::new(what, State::Ok, "the system reads it among processes of one user")
        }
        Some(1) => {
            Finding::new(what, State::Ok, "the system reads it among processes of one parent")
        }
        Some(scope) => {
            let detail = format!("kernel.yama.ptrace_scope is {scope}; {through_slots}");
            Finding::new(what, State::Note, detail)
                .remedy("sysctl kernel.yama.ptrace_scope=1, or memory of comm.alloc")
        }
    }
}

fn of_transports() -> Vec<Finding> {
    let works = |what, how: Result<(), String>, remedy: &str| match how {
        Ok(()) => Finding::new(what, State::Ok, "an all-reduce over 2 ranks is right"),
        Err(error) => Finding::new(what, State::Broken, error).remedy(remedy),
    };
    vec![
        works("local (threads)", try_local(), "report this as a bug"),
        works(
            "shm (processes)",
            try_shm(),
            "allow loopback TCP, Unix sockets and passing descriptors over them",
        ),
        works(
            "tcp (nodes)",
            try_tcp(),
            "allow TCP between this machine's own addresses; OXCCL_INTERFACE names the network that joins the nodes",
        ),
    ]
}

/// Two parts of this machine stand for nodes.
fn try_tcp() -> Result<(), String> {
    let config = Config { nodes: Some(2), fabric: Some(FabricKind::Tcp), ..impatient() };
    let comms = Communicator::local_with(2, &config).map_err(|error| error.to_string())?;
    all_reduce(comms.into_iter().map(|comm| move || Ok(comm)))
}

fn try_local() -> Result<(), String> {
    let comms = Communicator::local_with(2, &impatient()).map_err(|error| error.to_string())?;
    all_reduce(comms.into_iter().map(|comm| move || Ok(comm)))
}

/// Two threads that meet as processes do: over TCP, with memory passed over a Unix socket.
fn try_shm() -> Result<(), String> {
    let (id, _server) = UniqueId::create().map_err(|error| error.to_string())?;
    all_reduce((0..2).map(|rank| {
        let id = id.clone();
        move || Communicator::connect(&id, rank, 2, &impatient())
    }))
}

fn impatient() -> Config {
    Config { timeout: Duration::from_secs(30), ..Config::default() }
}

fn all_reduce<F>(ranks: impl Iterator<Item = F>) -> Result<(), String>
where
    F: FnOnce() -> Result<Communicator, oxccl::Error> + Send,
{
    let run = |join: F| -> Result<(), oxccl::Error> {
        let comm = join()?;
        let mut buffer = comm.alloc_host::<u64>(1 << 14)?;
        buffer.fill(comm.rank() as u64 + 1);
        comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum)?;
        assert!(buffer.iter().all(|element| *element == 3), "the sum is wrong");
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.map(|join| scope.spawn(move || run(join))).collect();
        // All are joined, so that none can panic unnoticed.
        let results: Vec<Result<(), String>> = threads
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(result) => result.map_err(|error| error.to_string()),
                Err(_) => Err("the sum is wrong".to_owned()),
            })
            .collect();
        results.into_iter().collect()
    })
}
