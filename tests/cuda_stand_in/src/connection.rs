//! Connections to a device: its streams share a few, and what stands in one starts in the order in
//! which it came.
//!
//! So an entry that waits (for a value, or for its own stream) keeps back what other streams put
//! into the same connection after it. A kernel that runs keeps nobody back. On a GPU that is what
//! makes ranks of one process wait for each other in a circle when there are more of their streams
//! than connections.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::registry::lock;
use crate::settings::settings;

pub(crate) struct Connection {
    order: Mutex<Order>,
    changed: Condvar,
}

#[derive(Default)]
struct Order {
    /// Entries that came, and those that have started.
    came: u64,
    started: u64,
}

static ALL: Mutex<Vec<Arc<Connection>>> = Mutex::new(Vec::new());

impl Connection {
    /// The connection of a new stream: they take turns.
    pub(crate) fn next(device: i32) -> Arc<Connection> {
        static STREAMS: AtomicUsize = AtomicUsize::new(0);
        let count = settings().connections;
        let turn = STREAMS.fetch_add(1, Ordering::Relaxed) % count;
        let mut all = lock(&ALL);
        while all.len() < count * settings().devices {
            all.push(Arc::new(Connection { order: Mutex::default(), changed: Condvar::new() }));
        }
        all[device as usize * count + turn].clone()
    }

    /// An entry comes; its number.
    pub(crate) fn come(&self) -> u64 {
        let mut order = lock(&self.order);
        order.came += 1;
        order.came - 1
    }

    /// Waits until all entries before it have started.
    pub(crate) fn wait(&self, number: u64) {
        let mut order = lock(&self.order);
        while order.started < number {
            order = self.changed.wait(order).unwrap_or_else(|broken| broken.into_inner());
        }
    }

    /// The entry whose turn it is has started.
    pub(crate) fn start(&self) {
        lock(&self.order).started += 1;
        self.changed.notify_all();
    }
}
