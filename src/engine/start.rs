//! How a rank starts: agree on the configuration, share memory, set up the tables.

use super::group::Groups;
use super::prepare::Cache;
use super::{Engine, LaunchTables, poll};
use crate::config::Config;
use crate::device::{Channels, Heap, Staging, StagingShape, usable_cores};
use crate::error::Error;
use crate::schedule::SLOTS;
use oxccl_kernels::{HostExecutor, format as f};
use oxccl_transports::{Bootstrap, Reach, Region, Server};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

/// Polls before a wait yields, where every rank has a core of its own.
const SPINS: u32 = 20_000;
/// Yields before it sleeps.
const YIELDS: u32 = 2_000;

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
        let spins = spins(&mut *bootstrap, deadline)?;
        let shape = StagingShape {
            ranks: world,
            channels: config.max_channels,
            ll_slots: SLOTS.ll,
            ll_slot_bytes: config.ll_slot_bytes,
            slots: SLOTS.slots,
            slot_bytes: config.slot_bytes,
        };
        let own = [
            Arc::new(Region::create("oxccl-staging", shape.len_bytes())?),
            Arc::new(Region::create("oxccl-heap", config.heap_bytes)?),
        ];
        let all = bootstrap.share(&own, deadline)?;
        let bases: Vec<*mut u8> = all.iter().map(|regions| regions[1].as_ptr()).collect();
        let heaps: Vec<Arc<Region>> = all.iter().map(|regions| regions[1].clone()).collect();
        let staging = all.into_iter().map(|mut regions| regions.swap_remove(0)).collect();
        let staging = Arc::new(Staging::new(shape, rank, staging, heaps));
        let liveness = bootstrap.liveness();
        let poll = Box::new(poll::Poll::new(
            liveness.clone(),
            staging.clone(),
            rank,
            config.max_channels,
            config.timeout,
        ));
        let window = |base| f::Window { base, tokens: f::Tokens::default() };
        let bases =
            if reach == Reach::SameProcess { vec![std::ptr::null_mut(); world] } else { bases };
        let mut connections = staging.connections().into_boxed_slice();
        let mut windows: Box<[f::Window]> =
            (0..config.max_channels).flat_map(|_| bases.iter().map(|base| window(*base))).collect();
        let mut statuses = vec![f::Status::default(); config.max_channels].into_boxed_slice();
        let launch = Box::new(f::Launch {
            program: std::ptr::null(),
            connections: connections.as_mut_ptr(),
            windows: windows.as_mut_ptr(),
            progress: staging.progress_table(),
            statuses: statuses.as_mut_ptr(),
            doorbells: staging.doorbells(),
            abort: std::ptr::from_ref(liveness.abort_word()).cast(),
            poll: Some(poll::poll),
            poll_context: std::ptr::from_ref(&*poll).cast_mut().cast(),
            input: std::ptr::null(),
            output: std::ptr::null_mut(),
            tokens: f::Tokens::default(),
            scale_bits: 0,
            call: 0,
            signature: 0,
            ranks: world as u32,
            spins: config.spins.unwrap_or(spins),
            yields: YIELDS,
            next: std::ptr::null(),
            segments: std::ptr::null(),
            ready: std::ptr::null(),
            done: std::ptr::null_mut(),
            segments_count: 0,
            bucket: 0,
            done_stride: 0,
            reserved: 0,
        });
        Ok(Engine {
            rank,
            world,
            config,
            reach,
            cache: Cache::default(),
            groups: Groups::new(world),
            channels: Channels::new(HostExecutor::detect()),
            launch,
            tables: LaunchTables { _connections: connections, _windows: windows, statuses },
            poll,
            staging,
            heap: Arc::new(Heap::new(own[1].clone())),
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
    let fields: [(&'static str, String); 10] = [
        ("order", config.order.to_string()),
        ("pin", format!("{:?}, {:?}, {:?}", pin.algorithm, pin.encoding, pin.channels)),
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
