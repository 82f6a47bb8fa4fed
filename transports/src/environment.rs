//! A rank's place, as the launcher that started it tells.
//!
//! | launcher | found by | rank and world | where to meet |
//! | --- | --- | --- | --- |
//! | `oxccl run` | `OXCCL_RANK` | `OXCCL_RANK`, `OXCCL_WORLD_SIZE`, `OXCCL_LOCAL_RANK`, `OXCCL_LOCAL_WORLD_SIZE` | `OXCCL_UNIQUE_ID` |
//! | torchrun, Kubernetes | `RANK` with `MASTER_ADDR` | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | `MASTER_ADDR`, the port after `MASTER_PORT` |
//! | Open MPI's mpirun | `OMPI_COMM_WORLD_RANK` | `OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}` | this machine, a port from `PMIX_NAMESPACE` or `OMPI_MCA_ess_base_jobid` |
//! | MPICH's mpiexec (hydra) | `PMI_RANK` with `MPI_LOCALRANKID` | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` | this machine, a port from the parent's process id |
//! | srun | `SLURM_PROCID` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS`, `SLURM_LOCALID`, `SLURM_STEP_TASKS_PER_NODE` | the first of `SLURM_STEP_NODELIST`, a port from `SLURM_JOB_ID` and `SLURM_STEP_ID` |
//!
//! The first that is found counts, in this order. For all but `oxccl run`:
//!
//! - `OXCCL_ADDR=host:port` says where to meet instead. It is needed under mpirun and mpiexec when
//!   ranks are on several machines, since those do not tell where rank 0 is. torchrun's own store
//!   has `MASTER_PORT` itself.
//! - A port that the launcher does not give is one of [`PORTS`], from a hash of the job's id.
//! - Nobody has chosen these ports, so another process may have one: rank 0 then takes the first of
//!   the next fifteen that is free, and the others look for it there. `OXCCL_ADDR` is chosen.
//! - `OXCCL_SECRET` is the job's secret, any bytes. Without it the secret is derived from the job's
//!   id: that keeps jobs from mixing, but whoever knows the id can join. On a network with
//!   strangers, set it.
//! - Rank 0 starts the server: [`Environment::serves`].

use std::ffi::OsString;
use std::fmt;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;

use sha2::{Digest, Sha256};

use crate::unique_id::parse_meeting;
use crate::{Secret, UniqueId, UniqueIdError};

mod slurm;

/// The ports that are taken where the launcher gives none: below the range from which Linux gives
/// ports to connections.
pub const PORTS: RangeInclusive<u16> = 20_000..=29_999;

const LOOPBACK: &str = "127.0.0.1";

/// What started this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// `oxccl run`.
    Oxccl,
    /// torchrun, or a Kubernetes job that sets the same variables.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// MPICH's mpiexec, or another that uses hydra.
    Mpich,
    /// Slurm's srun.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Oxccl => "oxccl run",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "mpirun (Open MPI)",
            Launcher::Mpich => "mpiexec (MPICH)",
            Launcher::Slurm => "srun",
        })
    }
}

/// A rank's place, as its launcher tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// This rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world: usize,
    /// This rank among those of its machine.
    pub local_rank: usize,
    /// How many ranks this machine has.
    pub local_world: usize,
    /// What started this rank.
    pub launcher: Launcher,
    /// Where the ranks meet, and their secret.
    pub unique_id: UniqueId,
    /// Whether the secret was given, not derived from the job's id.
    pub has_secret: bool,
}

/// What is wrong with the launcher's variables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// There are no variables of any launcher.
    #[error(
        "no launcher started this process: start it with `oxccl run --ranks N -- PROGRAM`, \
         torchrun, mpirun or srun"
    )]
    NoLauncher,
    /// A variable is missing.
    #[error("{variable} is not set, though {launcher} seems to have started this process{remedy}")]
    Missing {
        /// The variable.
        variable: &'static str,
        /// What started this rank.
        launcher: Launcher,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A variable has a value that cannot be.
    #[error("{variable} is `{value}`, which is not {expected}")]
    Invalid {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        expected: String,
    },
    /// A variable's value is no text. Of all variables only `OXCCL_SECRET` may be such.
    #[error("{variable} is {value:?}, which is not UTF-8")]
    NotUnicode {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: OsString,
    },
    /// `OXCCL_UNIQUE_ID` cannot be read.
    #[error("OXCCL_UNIQUE_ID cannot be read: {0}")]
    UniqueId(#[from] UniqueIdError),
}

use EnvironmentError as Error;

impl Environment {
    /// Reads a rank's place from the variables that `lookup` gives. `parent` is the id of the
    /// parent process ([`std::os::unix::process::parent_id`]), the only thing that ranks under
    /// MPICH's mpiexec have in common; a shell script between mpiexec and the program must `exec`
    /// it, or `OXCCL_ADDR` must be set.
    ///
    /// # Errors
    /// They name the variable.
    pub fn from_lookup(
        lookup: impl Fn(&str) -> Option<OsString>,
        parent: u32,
    ) -> Result<Environment, EnvironmentError> {
        let has = |variable: &str| lookup(variable).is_some();
        let launcher = if has("OXCCL_RANK") || has("OXCCL_UNIQUE_ID") {
            Launcher::Oxccl
        } else if has("TORCHELASTIC_RUN_ID") || (has("RANK") && has("MASTER_ADDR")) {
            Launcher::Torchrun
        } else if has("OMPI_COMM_WORLD_RANK") {
            Launcher::OpenMpi
        } else if has("PMI_RANK") && has("MPI_LOCALRANKID") {
            Launcher::Mpich
        } else if has("SLURM_PROCID") {
            Launcher::Slurm
        } else {
            return Err(Error::NoLauncher);
        };
        let variables = Variables { lookup: &lookup, launcher };
        match launcher {
            Launcher::Oxccl => oxccl(&variables),
            Launcher::Torchrun => torchrun(&variables),
            Launcher::OpenMpi => open_mpi(&variables),
            Launcher::Mpich => mpich(&variables, parent),
            Launcher::Slurm => slurm::slurm(&variables),
        }
    }

    /// Whether this rank is the one to start the server ([`UniqueId::serve`]): rank 0, except with
    /// `oxccl run`, which serves its ranks itself.
    pub fn serves(&self) -> bool {
        self.rank == 0 && self.launcher != Launcher::Oxccl
    }

    /// What to tell the user if strangers could take a rank: the ranks meet elsewhere than at a
    /// loopback address, and have no secret but what follows from the job's id.
    pub fn warning(&self) -> Option<String> {
        let warns = !self.has_secret && !self.unique_id.is_on_loopback();
        warns.then(|| {
            format!(
                "who reaches {} and guesses the job's id can take a rank: set OXCCL_SECRET to the same random bytes on every rank \
                 (openssl rand -hex 32)",
                self.unique_id.address()
            )
        })
    }
}

fn oxccl(variables: &Variables) -> Result<Environment, Error> {
    let place = Place::read(variables, ["OXCCL_RANK", "OXCCL_WORLD_SIZE"])?;
    let local = ["OXCCL_LOCAL_RANK", "OXCCL_LOCAL_WORLD_SIZE"];
    // Set by hand, the ranks are on one machine unless these say otherwise.
    let place = place.or_local(variables, local, (place.rank, place.world))?;
    let unique_id = variables.require("OXCCL_UNIQUE_ID")?.parse()?;
    Ok(Environment { has_secret: true, ..place.with(variables, unique_id) })
}

fn torchrun(variables: &Variables) -> Result<Environment, Error> {
    let place = Place::read(variables, ["RANK", "WORLD_SIZE"])?;
    // A Kubernetes job has one rank a machine and sets neither.
    let place = place.or_local(variables, ["LOCAL_RANK", "LOCAL_WORLD_SIZE"], (0, 1))?;
    let host = variables.require("MASTER_ADDR")?;
    let master = variables.require("MASTER_PORT")?;
    let port = master.parse::<u16>().ok().filter(|&port| port > 0);
    let port = port.and_then(|port| port.checked_add(1)).ok_or_else(|| {
        variables.invalid("MASTER_PORT", "a port number that has another one after it")
    })?;
    let run = variables.optional("TORCHELASTIC_RUN_ID")?.unwrap_or_default();
    let restart = variables.optional("TORCHELASTIC_RESTART_COUNT")?.unwrap_or_default();
    let job = format!("torchrun {run} {restart} {host} {master}");
    let unique_id = variables.unique_id((host, port), &job)?;
    Ok(place.with(variables, unique_id))
}

fn open_mpi(variables: &Variables) -> Result<Environment, Error> {
    let place = Place::read(variables, ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"])?;
    let local = ["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"];
    let place = place.local(variables, local)?;
    let job = match variables.optional("PMIX_NAMESPACE")? {
        None => variables.optional("OMPI_MCA_ess_base_jobid")?,
        job => job,
    };
    let job = job.ok_or_else(|| variables.missing("PMIX_NAMESPACE", ""))?;
    place.meeting_here(variables, &format!("mpirun {job}"))
}

fn mpich(variables: &Variables, parent: u32) -> Result<Environment, Error> {
    let place = Place::read(variables, ["PMI_RANK", "PMI_SIZE"])?;
    let place = place.local(variables, ["MPI_LOCALRANKID", "MPI_LOCALNRANKS"])?;
    // On several machines the parents differ; those ranks meet at OXCCL_ADDR, which then stands
    // for the job.
    let job = match variables.optional("OXCCL_ADDR")? {
        Some(address) => format!("mpiexec {address}"),
        None => format!("mpiexec {parent}"),
    };
    place.meeting_here(variables, &job)
}

/// The variables of one launcher.
struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
    launcher: Launcher,
}

impl Variables<'_> {
    /// A variable's value. One that is empty counts as not set.
    fn bytes(&self, variable: &str) -> Option<OsString> {
        (self.lookup)(variable).filter(|value| !value.is_empty())
    }

    fn is_set(&self, variable: &str) -> bool {
        self.bytes(variable).is_some()
    }

    fn optional(&self, variable: &'static str) -> Result<Option<String>, Error> {
        let text = self.bytes(variable).map(OsString::into_string).transpose();
        text.map_err(|value| Error::NotUnicode { variable, value })
    }

    fn require(&self, variable: &'static str) -> Result<String, Error> {
        self.optional(variable)?.ok_or_else(|| self.missing(variable, ""))
    }

    fn number(&self, variable: &'static str) -> Result<usize, Error> {
        let value = self.require(variable)?;
        value.trim().parse().map_err(|_| self.invalid(variable, "a number"))
    }

    fn missing(&self, variable: &'static str, remedy: &'static str) -> Error {
        Error::Missing { variable, launcher: self.launcher, remedy }
    }

    fn invalid(&self, variable: &'static str, expected: impl Into<String>) -> Error {
        let value = (self.lookup)(variable).unwrap_or_default();
        let value = value.to_string_lossy().into_owned();
        Error::Invalid { variable, value, expected: expected.into() }
    }

    /// Where to meet: at `OXCCL_ADDR`, or at this place.
    fn unique_id(&self, place: (String, u16), job: &str) -> Result<UniqueId, Error> {
        let secret = match self.bytes("OXCCL_SECRET") {
            Some(given) => Secret::given(given.as_bytes()),
            None => Secret::of_job(job),
        };
        let Some(address) = self.optional("OXCCL_ADDR")? else {
            return Ok(UniqueId::new(place.0, place.1, secret).at_first_free());
        };
        let chosen = parse_meeting(&address);
        let (host, port) =
            chosen.map_err(|detail| self.invalid("OXCCL_ADDR", format!("host:port ({detail})")))?;
        Ok(UniqueId::new(host, port, secret))
    }
}

/// The port of a job whose launcher gives none.
fn port(job: &str) -> u16 {
    let hash = Sha256::digest(format!("oxccl port {job}"));
    let hash = u64::from_le_bytes([
        hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7],
    ]);
    PORTS.start() + (hash % PORTS.len() as u64) as u16
}

/// A rank among all, and among those of its machine.
#[derive(Clone, Copy)]
struct Place {
    rank: usize,
    world: usize,
    local_rank: usize,
    local_world: usize,
}

impl Place {
    fn read(variables: &Variables, names: [&'static str; 2]) -> Result<Place, Error> {
        let (rank, world) = Self::pair(variables, names)?;
        Ok(Place { rank, world, local_rank: 0, local_world: 0 })
    }

    /// A rank and the number of ranks, which must be more.
    fn pair(variables: &Variables, names: [&'static str; 2]) -> Result<(usize, usize), Error> {
        let (rank, world) = (variables.number(names[0])?, variables.number(names[1])?);
        if world == 0 {
            return Err(variables.invalid(names[1], "a number above 0"));
        }
        if rank >= world {
            let expected = format!("a rank below {}={world}", names[1]);
            return Err(variables.invalid(names[0], expected));
        }
        Ok((rank, world))
    }

    fn local(self, variables: &Variables, names: [&'static str; 2]) -> Result<Place, Error> {
        let (local_rank, local_world) = Self::pair(variables, names)?;
        if local_world > self.world {
            let expected = format!("at most the world's {} ranks", self.world);
            return Err(variables.invalid(names[1], expected));
        }
        Ok(Place { local_rank, local_world, ..self })
    }

    /// The same, where both variables may be missing.
    fn or_local(
        self,
        variables: &Variables,
        names: [&'static str; 2],
        (local_rank, local_world): (usize, usize),
    ) -> Result<Place, Error> {
        if !names.iter().any(|name| variables.is_set(name)) {
            return Ok(Place { local_rank, local_world, ..self });
        }
        self.local(variables, names)
    }

    /// Meets on this machine, if all ranks are here, or at `OXCCL_ADDR`.
    fn meeting_here(self, variables: &Variables, job: &str) -> Result<Environment, Error> {
        if self.local_world < self.world && !variables.is_set("OXCCL_ADDR") {
            let remedy = " on several machines: set OXCCL_ADDR=host:port, the address of rank 0's \
                          machine and a free port there, on every rank";
            return Err(variables.missing("OXCCL_ADDR", remedy));
        }
        let unique_id = variables.unique_id((LOOPBACK.to_owned(), port(job)), job)?;
        Ok(self.with(variables, unique_id))
    }

    fn with(self, variables: &Variables, unique_id: UniqueId) -> Environment {
        let Place { rank, world, local_rank, local_world } = self;
        let (launcher, has_secret) = (variables.launcher, variables.is_set("OXCCL_SECRET"));
        Environment { rank, world, local_rank, local_world, launcher, unique_id, has_secret }
    }
}

#[cfg(test)]
mod tests;
