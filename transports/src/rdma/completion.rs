//! Completions: what adapters report of requests, and how to sleep until they do.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::device::Device;
use super::{RdmaError, sys};

/// Where requests' completions are reported, with a descriptor to sleep on.
pub struct CompletionQueue {
    device: Arc<Device>,
    raw: NonNull<sys::CompletionQueue>,
    channel: NonNull<sys::CompletionChannel>,
    /// Events that were taken and must be acknowledged before the queue can go.
    unacknowledged: AtomicU32,
}

// SAFETY: libibverbs' objects may be used by several threads at once.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

/// One request's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the request was numbered with.
    pub id: u64,
    /// The number of its queue pair.
    pub queue_pair: u32,
    /// What has happened.
    pub outcome: Outcome,
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A request to send was carried out: its memory may be used again.
    Sent,
    /// A request to receive has been used up by what the peer sent.
    Received {
        /// Bytes that came: of a write with immediate data those written, of a send those in the
        /// receive buffer.
        len_bytes: u32,
        /// The immediate data that came with it.
        immediate: Option<u32>,
    },
    /// It failed, or was given up since an earlier one had: the queue pair is of no use any more.
    Failed(Failure),
}

/// How a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The library's number for it.
    pub status: u32,
    /// What the adapter says besides.
    pub vendor_code: u32,
}

impl Completion {
    /// Whether it was given up because of another one's failure.
    pub fn is_flushed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(failure) if failure.status == sys::WC_WR_FLUSH_ERR)
    }
}

impl CompletionQueue {
    /// A queue for so many completions that have not been polled yet.
    ///
    /// # Errors
    /// [`RdmaError::Limit`] if the device has no room for so many; [`RdmaError::Verbs`].
    pub fn new(device: &Arc<Device>, capacity: u32) -> Result<Arc<CompletionQueue>, RdmaError> {
        let most = device.attributes().max_cqe;
        let entries = i32::try_from(capacity).ok().filter(|&entries| entries <= most);
        let entries = entries.ok_or_else(|| RdmaError::Limit {
            device: device.name().to_owned(),
            limit: format!("takes {most} completions in a queue, {capacity} are asked for"),
        })?;
        let library = device.library;
        // SAFETY: the context is valid.
        let channel = NonNull::new(unsafe { (library.create_comp_channel)(device.context()) })
            .ok_or_else(|| device.error("ibv_create_comp_channel"))?;
        // SAFETY: context and channel are valid.
        let raw = unsafe {
            let context = device.context();
            (library.create_cq)(context, entries, ptr::null_mut(), channel.as_ptr(), 0)
        };
        let Some(raw) = NonNull::new(raw) else {
            let error = device.error("ibv_create_cq");
            // SAFETY: nothing uses the channel.
            unsafe { (library.destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let device = Arc::clone(device);
        let queue =
            Arc::new(CompletionQueue { device, raw, channel, unacknowledged: AtomicU32::new(0) });
        fcntl(queue.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|errno| {
            RdmaError::Verbs {
                function: "fcntl",
                device: queue.device.name().to_owned(),
                source: errno.into(),
            }
        })?;
        Ok(queue)
    }

    /// Takes completions, at most [`POLLED_AT_ONCE`](Self::POLLED_AT_ONCE); it never waits.
    ///
    /// # Errors
    /// [`RdmaError::Device`]: the queue is broken, or has overrun.
    pub fn poll(&self, mut each: impl FnMut(Completion)) -> Result<usize, RdmaError> {
        let mut found = [sys::Completion::default(); Self::POLLED_AT_ONCE];
        let poll = self.device.operations().poll_cq;
        // SAFETY: the queue is valid, and `found` has as many places as are asked for.
        let count = unsafe { poll(self.raw(), found.len() as i32, found.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            let what = "its completion queue cannot be read any more".to_owned();
            return Err(RdmaError::Device { device: self.device.name().to_owned(), what });
        };
        found[..count].iter().for_each(|found| each(Completion::new(found)));
        Ok(count)
    }

    /// How many completions one [`poll`](Self::poll) takes.
    pub const POLLED_AT_ONCE: usize = 16;

    /// Asks for the descriptor to become readable with the next completion. Those that came before
    /// do not count: poll after it.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`].
    pub fn arm(&self) -> Result<(), RdmaError> {
        self.take_events();
        let request = self.device.operations().req_notify_cq;
        // SAFETY: the queue is valid.
        self.device.check("ibv_req_notify_cq", unsafe { request(self.raw(), 0) })
    }

    pub(super) fn raw(&self) -> *mut sys::CompletionQueue {
        self.raw.as_ptr()
    }

    /// Empties the channel, so that its descriptor is readable only by what comes later.
    fn take_events(&self) {
        let library = self.device.library;
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is valid, as are the places for the answers; its descriptor does not
        // block.
        while unsafe {
            (library.get_cq_event)(self.channel.as_ptr(), &raw mut queue, &raw mut context)
        } == 0
        {
            self.unacknowledged.fetch_add(1, Ordering::Relaxed);
        }
        // Acknowledging locks a mutex: now and then is enough.
        if self.unacknowledged.load(Ordering::Relaxed) > 1 << 10 {
            self.acknowledge();
        }
    }

    fn acknowledge(&self) {
        let count = self.unacknowledged.swap(0, Ordering::Relaxed);
        // SAFETY: the queue is valid, and so many events of it were taken.
        unsafe { (self.device.library.ack_cq_events)(self.raw(), count) };
    }
}

/// Becomes readable with a completion, after [`CompletionQueue::arm`].
impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is valid, and keeps its descriptor open.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // Otherwise destroying it would wait for ever.
        self.acknowledge();
        // SAFETY: queue pairs hold the queue, so none is left; the channel goes after it.
        unsafe {
            (self.device.library.destroy_cq)(self.raw());
            (self.device.library.destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("device", &self.device.name())
            .finish_non_exhaustive()
    }
}

impl Completion {
    fn new(found: &sys::Completion) -> Completion {
        let outcome = if found.status != sys::WC_SUCCESS {
            // Without success only the number, the status and the queue pair mean something.
            Outcome::Failed(Failure { status: found.status, vendor_code: found.vendor_err })
        } else if found.opcode & sys::WC_RECV != 0 {
            let immediate =
                (found.wc_flags & sys::WC_WITH_IMM != 0).then_some(u32::from_be(found.imm_data));
            Outcome::Received { len_bytes: found.byte_len, immediate }
        } else {
            Outcome::Sent
        };
        Completion { id: found.wr_id, queue_pair: found.qp_num, outcome }
    }
}
