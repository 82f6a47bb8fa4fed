//! How a rank starts: agree on the configuration, share memory, set up the tables.

use super::Engine;
use super::group::Groups;
use super::poll::{self, Poll};
use super::prepare::Cache;
use crate::config::Config;
use crate::device::{Control, ControlShape, Heap, Host, StagingShape, Waiting, usable_cores};
use crate::error::Error;
use crate::schedule::SLOTS;
use oxccl_transports::{Bootstrap, Reach, Region, Server};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

/// Polls before a wait yields, where every rank has a core of its own.
const SPINS: u32 = 20_000;

impl Engine {
    /// Sets a rank up. All ranks do so together.
    pub(crate) fn start(
        mut bootstrap: Box<dyn Bootstrap>,
        server: Option<Server>,
        mut config: Config,
    ) -> Result<Engine, Error> {
        config.check()?;
        config.cache_bytes = Some(config.last_level_cache_bytes());
        let (rank, world, reach) = (bootstrap.rank(), bootstrap.world(), bootstrap.reach());
        let deadline = Instant::now() + config.timeout;
        agree(&mut *bootstrap, &config, deadline)?;
        config.place(bootstrap.nodes())?;
        let spins = spins(&mut *bootstrap, deadline)?;
        let shape = StagingShape {
            ranks: world,
            channels: config.max_channels,
            ll_slots: SLOTS.ll,
            ll_slot_bytes: config.ll_slot_bytes,
            slots: SLOTS.slots,
            slot_bytes: config.slot_bytes,
        };
        let control_shape = ControlShape { channels: config.max_channels };
        let own = [
            Arc::new(Region::create("oxccl-control", control_shape.len_bytes())?),
            Arc::new(Region::create("oxccl-staging", shape.len_bytes())?),
            Arc::new(Region::create("oxccl-heap", config.heap_bytes)?),
        ];
        // Connections point into peers' memory: no other way between nodes is there yet.
        bootstrap.nodes().require_one()?;
        let all: Vec<_> = bootstrap.share(&own, deadline)?.into_iter().flatten().collect();
        let regions = |at: usize| all.iter().map(|regions| regions[at].clone()).collect::<Vec<_>>();
        let control = Arc::new(Control::new(control_shape, rank, regions(0)));
        let bases: Vec<*mut u8> = match reach {
            Reach::SameProcess => vec![std::ptr::null_mut(); world],
            Reach::SharedMemory => regions(2).iter().map(|heap| heap.as_ptr()).collect(),
        };
        let liveness = bootstrap.liveness();
        let (channels, timeout) = (config.max_channels, config.timeout);
        let poll = Box::new(Poll::new(liveness.clone(), control.clone(), rank, channels, timeout));
        let waiting = Waiting {
            abort: liveness.abort_word(),
            poll: poll::poll,
            context: std::ptr::from_ref(&*poll).cast_mut().cast(),
            spins: config.spins.unwrap_or(spins),
        };
        let host = Host::new(shape, rank, regions(1), &bases, &control, waiting);
        Ok(Engine {
            rank,
            world,
            config,
            reach,
            cache: Cache::default(),
            groups: Groups::new(world),
            host,
            poll,
            control,
            heap: Arc::new(Heap::new(own[2].clone())),
            _heaps: regions(2),
            liveness,
            ready: None,
            failed: None,
            calls: 0,
            collectives: 0,
            _bootstrap: bootstrap,
            _server: server,
        })
    }
}

/// All ranks must lay out staging memory and choose plans alike.
fn agree(bootstrap: &mut dyn Bootstrap, config: &Config, deadline: Instant) -> Result<(), Error> {
    let pin = config.pin;
    let schedule = config.schedule.as_ref().map(|custom| custom.fingerprint());
    let tuning =
        config.tuning.as_deref().map(|table| format!("table {:016x}", table.fingerprint()));
    let fields: [(&'static str, String); 11] = [
        ("order", config.order.to_string()),
        ("pin", format!("{:?}, {:?}, {:?}", pin.algorithm, pin.encoding, pin.channels)),
        ("nodes", format!("{:?}", config.nodes)),
        ("ranks_per_node", format!("{:?}", config.ranks_per_node)),
        ("schedule", schedule.map_or("none".to_owned(), |print| format!("{print:016x}"))),
        ("max_channels", config.max_channels.to_string()),
        ("heap_bytes", config.heap_bytes.to_string()),
        ("slot_bytes", config.slot_bytes.to_string()),
        ("ll_slot_bytes", config.ll_slot_bytes.to_string()),
        ("tuning", tuning.unwrap_or_else(|| "none".to_string())),
        ("version", env!("CARGO_PKG_VERSION").to_string()),
    ];
    let own: Vec<&str> = fields.iter().map(|(_, value)| value.as_str()).collect();
    let all = bootstrap.all_gather(own.join("\n").as_bytes(), deadline)?;
    for (rank, text) in all.iter().enumerate() {
        let text = String::from_utf8_lossy(text);
        let mut values = text.split('\n');
        for (variable, ours) in &fields {
            let theirs = values.next().unwrap_or("missing");
            if theirs != ours {
                let detail = format!(
                    "is {ours} on this rank and {theirs} on rank {rank}; all ranks need the same"
                );
                return Err(Error::Config { variable, detail });
            }
        }
    }
    Ok(())
}

/// Polls before a wait yields. Spinning pays only while the one waited for can run: where the ranks together may use as
/// many cores as they are. (A launcher that binds each rank to a core leaves each of them one, and all of them enough.)
fn spins(bootstrap: &mut dyn Bootstrap, deadline: Instant) -> Result<u32, Error> {
    let own: Vec<u8> = usable_cores().iter().flat_map(|core| core.to_le_bytes()).collect();
    let all = bootstrap.all_gather(&own, deadline)?;
    let cores: HashSet<&[u8]> = all.iter().flat_map(|cores| cores.chunks_exact(4)).collect();
    Ok(if bootstrap.world() <= cores.len() { SPINS } else { 0 })
}
