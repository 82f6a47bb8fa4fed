//! The ways to start a communicator.

use super::Communicator;
use crate::config::Config;
use crate::engine::{Beginning, Engine, Joint};
use crate::error::Error;
use crate::target::Device;
use oxccl_transports::{
    Bootstrap, Cancel, Cause, Environment, Nodes, Seat, Server, UniqueId, deadline_in, local_on,
    shm,
};
use std::sync::Arc;

impl Communicator {
    /// All ranks in this process, in rank order, configured by the environment's `OXCCL_`
    /// variables. Give each to a thread.
    ///
    /// Ranks reach all of each other's memory in place.
    ///
    /// # Errors
    /// As [`local_with`](Communicator::local_with).
    pub fn local(world: usize) -> Result<Vec<Communicator>, Error> {
        Communicator::local_with(world, &Config::from_env()?)
    }

    /// All ranks in this process, in rank order.
    ///
    /// # Errors
    /// [`Error::Config`] for a configuration, or a number of ranks, that cannot be;
    /// [`Error::Transport`] without memory.
    pub fn local_with(world: usize, config: &Config) -> Result<Vec<Communicator>, Error> {
        if world == 0 {
            return Err(Error::Config {
                variable: "world",
                detail: "there must be at least one rank".into(),
            });
        }
        crate::log::begin(config)?;
        let is_strict = config.advanced.single_launch == Some(true);
        let may_join =
            config.advanced.single_launch.unwrap_or(config.device != Device::Host && world > 1);
        let joint = may_join.then(|| Arc::new(Joint::new(world, is_strict)));
        // Starting is collective, so every rank needs a thread of its own for it.
        std::thread::scope(|scope| {
            let starting: Vec<_> = local_on(&Nodes::blocks(world, config.nodes.unwrap_or(1)))
                .into_iter()
                .map(|bootstrap| {
                    let joint = joint.clone();
                    scope.spawn(move || start(Box::new(bootstrap), None, config, joint))
                })
                .collect();
            starting
                .into_iter()
                .map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }

    /// This process's rank, as torchrun, mpirun, mpiexec, srun or `oxccl run` tells it in the
    /// environment, configured by the `OXCCL_` variables. Where strangers could take a rank
    /// ([`Environment::warning`]), rank 0 says so on standard error.
    ///
    /// # Errors
    /// [`Error::Environment`] names the variable that is missing; otherwise as
    /// [`connect`](Communicator::connect).
    pub fn from_env() -> Result<Communicator, Error> {
        Communicator::from_env_with(&Config::from_env()?)
    }

    /// As [`from_env`](Communicator::from_env), with this configuration.
    ///
    /// # Errors
    /// As [`from_env`](Communicator::from_env).
    pub fn from_env_with(config: &Config) -> Result<Communicator, Error> {
        join(Place::from_env(config)?, config, &Cancel::default())
    }

    /// One rank of a set whose ranks all have the same id, each in a process of its own.
    ///
    /// # Errors
    /// [`Error::Transport`]: a wrong secret, a rank that joined already or does not exist, ranks
    /// that did not come before the time-out. [`Error::ConfigDiffers`] if ranks are configured
    /// differently.
    pub fn connect(
        id: &UniqueId,
        rank: usize,
        world: usize,
        config: &Config,
    ) -> Result<Communicator, Error> {
        let place = Place { id: id.clone(), rank, world, server: None };
        join(place, config, &Cancel::default())
    }
}

/// A rank's place among those that are to meet.
pub(super) struct Place {
    pub(super) id: UniqueId,
    pub(super) rank: usize,
    pub(super) world: usize,
    /// Where this rank serves the rendezvous.
    pub(super) server: Option<Server>,
}

impl Place {
    /// As the environment tells it.
    pub(super) fn from_env(config: &Config) -> Result<Place, Error> {
        crate::log::begin(config)?;
        let environment = Environment::from_lookup(
            |name| std::env::var_os(name),
            std::os::unix::process::parent_id(),
        )?;
        if let Some(warning) = environment.warning().filter(|_| environment.serves()) {
            eprintln!("oxccl: warning: {warning}");
        }
        let server = if environment.serves() { Some(environment.unique_id.serve()?) } else { None };
        let Environment { rank, world, unique_id: id, .. } = environment;
        Ok(Place { id, rank, world, server })
    }
}

/// Meets the other ranks, and starts with them, unless it is given up.
pub(super) fn join(
    Place { id, rank, world, server }: Place,
    config: &Config,
    cancel: &Cancel,
) -> Result<Communicator, Error> {
    crate::log::begin(config)?;
    config.check()?;
    if config.advanced.single_launch == Some(true) {
        let detail = "is for ranks that are threads of one process (Communicator::local)".into();
        return Err(Error::Config { variable: "single_launch", detail });
    }
    let seat = match config.nodes {
        None => Seat::here(rank, world),
        Some(nodes) => Seat::on_part(rank, world, nodes),
    };
    let met = shm::connect_unless(&id, seat, deadline_in(config.timeout), cancel);
    let met = met.map_err(Error::from);
    let bootstrap = met.inspect_err(|error| not_started(rank, error))?;
    let liveness = bootstrap.liveness();
    cancel.on_cancel(move |reason| {
        let reason = reason.to_owned();
        liveness.abort(Cause::Aborted { rank, reason });
    });
    bootstrap.set_silence(config.granted_silence())?;
    let started = start(Box::new(bootstrap), server, config, None);
    // From here on it is the communicator's handle that ends it.
    cancel.on_cancel(|_| ());
    started
}

fn start(
    bootstrap: Box<dyn Bootstrap>,
    server: Option<Server>,
    config: &Config,
    joint: Option<Arc<Joint>>,
) -> Result<Communicator, Error> {
    let rank = bootstrap.rank();
    let (server, config) = (server.map(Arc::new), config.clone());
    let (inherited, heap) = (None, None);
    let engine = Engine::start(Beginning { bootstrap, server, config, joint, inherited, heap });
    let engine = engine.inspect_err(|error| not_started(rank, error))?;
    Ok(Communicator::from_engine(engine))
}

pub(super) fn not_started(rank: usize, error: &Error) {
    tracing::error!(rank, %error, culprits = ?error.ranks(), "the communicator does not start");
}
