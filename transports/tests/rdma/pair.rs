//! Two connected queue pairs in one process, on the devices of two nodes.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use oxccl_transports::rdma::{
    Class, Completion, CompletionQueue, Depth, Device, Domain, MemoryRegion, Outcome, Patience,
    Port, QueuePair, RemoteMemory,
};

use super::links::LIMIT;

pub const DEPTH: Depth = Depth { send: 16, receive: 16, inline_bytes: 64 };

/// One end: everything that a queue pair needs, and 64 KiB of registered memory.
pub struct End {
    pub pair: QueuePair,
    pub completions: Arc<CompletionQueue>,
    pub region: Arc<MemoryRegion>,
    pub domain: Arc<Domain>,
    /// Completions that were polled together with one that was waited for.
    polled: RefCell<VecDeque<Completion>>,
    /// After the registration, which is given back before it.
    memory: Vec<u8>,
}

pub const MEMORY_BYTES: usize = 64 << 10;

impl End {
    pub fn new(port: &Port, depth: Depth) -> End {
        let domain = Domain::new(port.device()).unwrap();
        let completions = CompletionQueue::new(port.device(), 64).unwrap();
        let pair = QueuePair::new(port, &domain, &completions, depth).unwrap();
        let mut memory = vec![0; MEMORY_BYTES];
        // SAFETY: the memory is as large, and given back after the registration.
        let region = unsafe { domain.register(memory.as_mut_ptr(), memory.len()) }.unwrap();
        End { pair, completions, region, domain, polled: RefCell::default(), memory }
    }

    /// All of its memory, for the other end.
    pub fn remote(&self) -> RemoteMemory {
        self.region.remote(self.region.start(), self.region.len_bytes()).unwrap()
    }

    /// Changes its memory, while no transfer is under way.
    pub fn fill(&mut self, with: impl Fn(usize) -> u8) {
        for (index, byte) in self.memory.iter_mut().enumerate() {
            // SAFETY: as above; volatile, since an adapter reads it.
            unsafe { std::ptr::from_mut(byte).write_volatile(with(index)) };
        }
    }

    /// A byte of its memory.
    pub fn byte(&self, index: usize) -> u8 {
        // SAFETY: within the memory; volatile, since an adapter writes it.
        unsafe { (&raw const self.memory[index]).read_volatile() }
    }

    /// The next completion.
    pub fn wait(&self) -> Completion {
        let deadline = Instant::now() + LIMIT;
        let mut polled = self.polled.borrow_mut();
        while polled.is_empty() {
            assert!(Instant::now() < deadline, "no completion comes");
            self.completions.poll(|completion| polled.push_back(completion)).unwrap();
        }
        polled.pop_front().unwrap()
    }

    /// The next completion, which must be a failure, as an error.
    pub fn failure(&self, operation: &'static str) -> String {
        match self.wait().outcome {
            Outcome::Failed(failure) => self.pair.transfer_error(operation, failure).to_string(),
            other => panic!("{other:?} instead of a failure"),
        }
    }
}

/// The port of a node's device.
pub fn port(node: usize) -> Port {
    Port::new(&Device::open(&format!("rxe{node}_0")).unwrap(), 1, None).unwrap()
}

/// Two ends on the devices of two nodes, joined.
pub fn pair() -> [End; 2] {
    pair_in(Class::default())
}

/// The same, whose packets are of a class.
pub fn pair_in(class: Class) -> [End; 2] {
    // Software RoCE takes seven repetitions for any number of them.
    let patience = Patience { retries: 6, ..Patience::default() };
    let [mut a, mut b] = [0, 1].map(|node| End::new(&port(node), DEPTH));
    a.pair.connect(&b.pair.address(), "rank 1", patience, class).unwrap();
    b.pair.connect(&a.pair.address(), "rank 0", patience, class).unwrap();
    [a, b]
}
