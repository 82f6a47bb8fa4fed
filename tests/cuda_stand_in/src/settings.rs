//! The environment, read once.

use std::sync::OnceLock;

pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) memory_bytes: usize,
    pub(crate) multiprocessors: usize,
    pub(crate) capability: u32,
    pub(crate) driver: i32,
    pub(crate) compute_mode: i32,
    pub(crate) connections: usize,
    pub(crate) peers: bool,
    pub(crate) nvlink: bool,
    /// The first so many devices are joined by a switch that reduces.
    pub(crate) multicast: usize,
    pub(crate) virtual_memory: bool,
    /// What some driver lets wait for all kernels of the context waits.
    pub(crate) drains: bool,
    /// The driver's own kernels are there from the start.
    pub(crate) eager: bool,
    /// Blocks run from the kernels' own source.
    pub(crate) emulate: bool,
    /// The library that keeps account of memory order while they do.
    pub(crate) memory_order: Option<String>,
    pub(crate) fail: Option<String>,
}

pub(crate) fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| Settings {
        devices: number("OXCCL_STAND_IN_DEVICES", 1),
        memory_bytes: number("OXCCL_STAND_IN_MEMORY", 1 << 30),
        multiprocessors: number("OXCCL_STAND_IN_MULTIPROCESSORS", 132),
        capability: number("OXCCL_STAND_IN_CAPABILITY", 90),
        driver: number("OXCCL_STAND_IN_DRIVER", 13000),
        compute_mode: number("OXCCL_STAND_IN_COMPUTE_MODE", 0),
        connections: number::<usize>("CUDA_DEVICE_MAX_CONNECTIONS", 8).clamp(1, 32),
        peers: number("OXCCL_STAND_IN_PEERS", 1) != 0,
        nvlink: number("OXCCL_STAND_IN_NVLINK", 1) != 0,
        multicast: number("OXCCL_STAND_IN_MULTICAST", 0),
        virtual_memory: number("OXCCL_STAND_IN_VIRTUAL_MEMORY", 1) != 0,
        drains: number("OXCCL_STAND_IN_DRAINS", 0) != 0,
        eager: std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER"),
        emulate: number("OXCCL_STAND_IN_EMULATE", 0) != 0 || memory_order().is_some(),
        memory_order: memory_order(),
        fail: std::env::var("OXCCL_STAND_IN_FAIL").ok(),
    })
}

fn memory_order() -> Option<String> {
    if number("OXCCL_STAND_IN_MEMORY_ORDER", 0) == 0 {
        return None;
    }
    let built = option_env!("OXCCL_ORDERED_LIBRARY").unwrap_or("no library");
    Some(std::env::var("OXCCL_STAND_IN_MEMORY_ORDER_LIBRARY").unwrap_or_else(|_| built.to_owned()))
}

fn number<N: std::str::FromStr>(name: &str, default: N) -> N {
    let Ok(text) = std::env::var(name) else { return default };
    // A test that set it wrongly must not run with something else.
    text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number"))
}
