//! Communicators behind handles.

use crate::abi::{Code, CommHandle};
use crate::answer::{Answer, Failure, lock};
use crate::call::{Ends, Request};
use crate::config::{self, Asked};
use crate::factor::{Factors, Op};
use crate::registry;
use crate::scale::Scaler;
use crate::window::Windows;
use oxccl::{AnyStream, Collectives, Communicator, Device, Handle, OpKind, UniqueId, cuda};
use oxccl_transports::Server;
use oxccl_transports::cuda::{Context, Driver};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};

/// A communicator, from the function that makes it on.
#[derive(Default)]
pub(crate) struct Comm {
    inner: Mutex<Option<Communicator>>,
    state: Mutex<State>,
    pub(crate) factors: Factors,
    /// What multiplies by them, once a call does.
    scaler: Mutex<Option<Scaler>>,
    /// What `ncclCommRegister` has handed out.
    pub(crate) registered: Mutex<BTreeSet<usize>>,
    /// What `ncclCommWindowRegister` has.
    windows: Windows,
    /// Its GPU's memory is given back, until it is resumed.
    is_suspended: AtomicBool,
    /// The same on all ranks, and another for each communicator.
    identity: u64,
    /// Parts that were made of it so far.
    parts: AtomicU64,
    /// Functions return before they are done.
    is_nonblocking: bool,
    /// The process that serves the ranks' meeting does so as long as this lives.
    server: Option<Arc<Server>>,
}

#[derive(Clone, Default)]
enum State {
    #[default]
    Starting,
    Ready {
        handle: Handle,
        device: Device,
    },
    Failed(Failure),
}

/// What a start needs.
pub(crate) enum Start {
    Join { id: UniqueId, rank: usize, world: usize, device: Device, asked: Asked },
    Split { parent: Arc<Comm>, color: Option<u32>, key: i64 },
    Shrink { parent: Arc<Comm>, exclude: Vec<usize> },
}

impl Start {
    /// What tells the communicator from others, on all ranks alike.
    fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match self {
            Start::Join { id, .. } => id.to_string().hash(&mut hasher),
            Start::Split { parent, color, .. } => (parent.next_part(), color).hash(&mut hasher),
            Start::Shrink { parent, .. } => (parent.next_part(), "shrink").hash(&mut hasher),
        }
        hasher.finish()
    }
}

/// A start that is to be made.
pub(crate) struct Starting {
    comm: Arc<Comm>,
    handle: CommHandle,
    start: Start,
}

/// The device that communicators of the calling thread take: the host where `OXCCL_DEVICE` says so,
/// otherwise the thread's current GPU.
pub(crate) fn current_device() -> Answer<Device> {
    if config::is_host() {
        return Ok(Device::Host);
    }
    let failed = |error: oxccl_transports::CudaError| {
        let text = format!("{error} (OXCCL_DEVICE=host: calls take host memory)");
        Failure::new(Code::UnhandledCudaError, text)
    };
    let driver = Driver::load().map_err(failed)?;
    match Context::current(driver) {
        Ok(context) => Ok(Device::Cuda(Some(context.device().ordinal()))),
        // A thread that has not touched its GPU yet is on the first, as in CUDA's runtime.
        Err(oxccl_transports::CudaError::NoCurrentContext) => Ok(Device::Cuda(Some(0))),
        Err(error) => Err(failed(error)),
    }
}

impl Starting {
    /// A communicator that is to be started, and its handle.
    pub(crate) fn new(
        start: Start,
        asked: Asked,
        server: Option<Arc<Server>>,
    ) -> (Starting, CommHandle) {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| {
            let unknown = config::unknown_variables();
            if !unknown.is_empty() {
                tracing::info!("variables of NCCL that change nothing: {}", unknown.join(", "));
            }
        });
        let (is_nonblocking, identity) = (asked.is_nonblocking, start.identity());
        let comm = Arc::new(Comm { is_nonblocking, identity, server, ..Comm::default() });
        let handle = registry::add(comm.clone());
        (Starting { comm, handle, start }, handle)
    }

    /// Starts it: here, or where it does not block, in a thread.
    pub(crate) fn run(self) -> Answer {
        if !self.comm.is_nonblocking {
            return self.start();
        }
        let comm = self.comm.clone();
        let thread = std::thread::Builder::new().name("oxccl-start".into());
        match thread.spawn(move || drop(self.start())) {
            Ok(_) => Err(Failure::new(Code::InProgress, "the communicator starts")),
            Err(error) => {
                let failure = Failure::new(Code::SystemError, format!("no thread: {error}"));
                *lock(&comm.state) = State::Failed(failure.clone());
                Err(failure)
            }
        }
    }

    /// Whether it returns before it is done.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.comm.is_nonblocking
    }

    pub(crate) fn handle(&self) -> CommHandle {
        self.handle
    }

    fn start(self) -> Answer {
        let made = match &self.start {
            Start::Join { id, rank, world, device, asked } => config::config(*device, *asked)
                .and_then(|config| Ok(Some(Communicator::connect(id, *rank, *world, &config)?))),
            Start::Split { parent, color, key } => {
                parent.with(|comm| Ok(comm.split(*color, *key)?))
            }
            Start::Shrink { parent, exclude } => {
                parent.with_any(|comm| Ok(Some(comm.shrink(exclude)?)))
            }
        };
        let mut state = lock(&self.comm.state);
        // Who has aborted it meanwhile keeps his answer.
        if let State::Failed(failure) = &*state {
            let failure = failure.clone();
            drop((state, made));
            return Err(failure);
        }
        match made {
            Ok(Some(comm)) => {
                *state = State::Ready { handle: comm.handle(), device: comm.device() };
                *lock(&self.comm.inner) = Some(comm);
                Ok(())
            }
            // This rank is in no part, and its caller has no handle.
            Ok(None) => registry::remove(self.handle).map(drop),
            Err(failure) => {
                *state = State::Failed(failure.clone());
                Err(failure)
            }
        }
    }
}

impl Comm {
    /// Its handle of other threads, once it has started.
    pub(crate) fn ready(&self) -> Answer<(Handle, Device)> {
        match &*lock(&self.state) {
            State::Ready { handle, device } => Ok((handle.clone(), *device)),
            State::Starting => Err(Failure::argument(
                "the communicator still starts: ncclCommGetAsyncError tells when it is ready",
            )),
            State::Failed(failure) => Err(failure.clone()),
        }
    }

    /// What `ncclCommGetAsyncError` says: whether it starts, has failed, or is well.
    pub(crate) fn check(&self) -> Answer {
        match &*lock(&self.state) {
            State::Starting => Err(Failure::new(Code::InProgress, "the communicator starts")),
            State::Failed(failure) => Err(failure.clone()),
            State::Ready { handle, .. } => handle.error().map_or(Ok(()), |error| Err(error.into())),
        }
    }

    /// Does something with the communicator.
    fn with<R>(&self, act: impl FnOnce(&Communicator) -> Answer<R>) -> Answer<R> {
        self.ready()?;
        self.with_any(act)
    }

    /// The same, also after it has failed.
    fn with_any<R>(&self, act: impl FnOnce(&Communicator) -> Answer<R>) -> Answer<R> {
        match &*lock(&self.inner) {
            Some(comm) => act(comm),
            None => Err(Failure::argument("the communicator has not started, or was destroyed")),
        }
    }

    /// What serves the ranks' meeting, for parts of it.
    pub(crate) fn server(&self) -> Option<Arc<Server>> {
        self.server.clone()
    }

    /// What `ncclCommMemStats` says: bytes of the GPU's memory that can be given back, whether they
    /// are, and bytes that cannot.
    pub(crate) fn memory(&self) -> Answer<(u64, bool, u64)> {
        let is_suspended = self.is_suspended.load(Ordering::Acquire);
        self.with(|comm| {
            let used = comm.memory();
            Ok(match comm.device() {
                Device::Host => (0, is_suspended, 0),
                Device::Cuda(_) => {
                    (used.staging_bytes as u64, is_suspended, used.heap_bytes as u64)
                }
            })
        })
    }

    /// Gives the GPU's memory back on all ranks, which all do so. On the host there is none.
    pub(crate) fn suspend(&self) -> Answer {
        self.check_active()?;
        self.with(|comm| match comm.device() {
            Device::Host => Ok(()),
            Device::Cuda(_) => Ok(comm.suspend()?),
        })?;
        self.is_suspended.store(true, Ordering::Release);
        Ok(())
    }

    /// Has it again, on all ranks.
    pub(crate) fn resume(&self) -> Answer {
        if self.check_active().is_ok() {
            return self.ready().map(drop);
        }
        self.with(|comm| match comm.device() {
            Device::Host => Ok(()),
            Device::Cuda(_) => Ok(comm.resume()?),
        })?;
        self.is_suspended.store(false, Ordering::Release);
        Ok(())
    }

    fn check_active(&self) -> Answer {
        match self.is_suspended.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(oxccl::Error::Suspended.into()),
        }
    }

    /// Registers memory with all ranks. The window's handle.
    pub(crate) fn open_window(&self, address: usize, len_bytes: usize) -> Answer<usize> {
        self.with(|comm| self.windows.open(comm, address, len_bytes))
    }

    /// Ends a window.
    pub(crate) fn close_window(&self, handle: usize) -> Answer {
        self.with_any(|comm| self.windows.close(comm, handle))
    }

    /// Where a window's memory is.
    pub(crate) fn window_address(&self, handle: usize) -> Answer<usize> {
        self.windows.address(handle)
    }

    /// The same on all ranks, and another for each communicator.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// What the next part of it is told from others by: all ranks make the same.
    fn next_part(&self) -> (u64, u64) {
        (self.identity, self.parts.fetch_add(1, Ordering::Relaxed))
    }

    /// How many microseconds calls take, one after the other, by a measured table.
    pub(crate) fn predict(&self, requests: &[Request]) -> Answer<f64> {
        self.with(|comm| {
            let of = |request: &Request| {
                // Messages to this rank itself are copies.
                if [Ends::To(comm.rank()), Ends::From(comm.rank())].contains(&request.ends) {
                    return Ok(0.0);
                }
                let plain = match request.op {
                    Op::Scaled(_) => Request { op: Op::Plain(OpKind::Sum), ..request.clone() },
                    Op::Plain(_) => request.clone(),
                };
                let call = plain.call()?;
                let ns = comm.with_options(request.options, || comm.predict(call))??;
                ns.map(|ns| ns as f64 / 1e3).ok_or_else(|| {
                    Failure::usage(format!(
                        "nothing tells how long {} takes: measure this machine by `oxccl tune`, and name the table by OXCCL_TUNING",
                        request.kind
                    ))
                })
            };
            requests.iter().map(of).sum()
        })
    }

    /// Ends every wait of its calls, here and on the other ranks.
    pub(crate) fn abort(&self, reason: &str) {
        let handle = match &mut *lock(&self.state) {
            State::Ready { handle, .. } => Some(handle.clone()),
            state @ State::Starting => {
                let text = format!("{reason} while it started");
                *state = State::Failed(Failure::new(Code::InvalidUsage, text));
                None
            }
            State::Failed(_) => None,
        };
        // It fails where it has ended already.
        let _ = handle.map(|handle| handle.abort(reason));
    }

    /// Gives back what it has, once its calls have ended. The other ranks need not do so now.
    pub(crate) fn destroy(&self) {
        drop(lock(&self.inner).take());
        drop(lock(&self.scaler).take());
    }

    /// Makes calls, which have come in this order: one launch for each stream.
    pub(crate) fn run(&self, requests: &[Request]) -> Answer {
        // What has failed on a GPU would be told when the stream has come so far.
        self.check()?;
        self.check_active()?;
        self.with(|comm| {
            let mut rest: Vec<&Request> = requests.iter().collect();
            while let Some(first) = rest.first() {
                let (stream, options) = (first.stream, first.options);
                let (now, later): (Vec<_>, Vec<_>) = rest
                    .into_iter()
                    .partition(|request| (request.stream, request.options) == (stream, options));
                rest = later;
                comm.with_options(options, || self.launch(comm, stream, &now))??;
            }
            Ok(())
        })
    }

    /// Launches the calls of one stream as one. On the host they have ended when this returns.
    fn launch(&self, comm: &Communicator, stream: usize, requests: &[&Request]) -> Answer {
        let (own, requests) = to_itself(comm.rank(), requests)?;
        let Some(context) = comm.context() else {
            for (from, to, bytes) in own {
                // SAFETY: the caller vouches for both; they may be the same memory.
                unsafe { to.copy_from(from, bytes) };
            }
            let requests = self.scaled(comm, &requests, None)?;
            return match &requests[..] {
                [] => Ok(()),
                // SAFETY: the caller vouches for the memory until the call has ended.
                [one] => Ok(unsafe { comm.run(one.call()?) }?),
                many => Ok(comm.group(|group| {
                    many.iter().try_for_each(|one| {
                        // SAFETY: as above.
                        unsafe { group.run(one.call()?) }.map(drop)
                    })
                })?),
            };
        };
        let raw = std::ptr::with_exposed_provenance_mut(stream);
        // SAFETY: the stream is the caller's, who keeps it until its calls have ended.
        let stream = unsafe { cuda::Stream::foreign(&context, raw) }
            .map_err(oxccl_transports::Error::from)?;
        for (from, to, bytes) in own {
            // SAFETY: the caller vouches for both until the stream has come so far.
            unsafe { cuda::copy(&stream, to, from, bytes) }
                .map_err(oxccl_transports::Error::from)?;
        }
        let requests = self.scaled(comm, &requests, Some(&stream))?;
        let on = comm.on(AnyStream::Cuda(&stream));
        // What goes wrong later is told by ncclCommGetAsyncError, so the work need not be kept.
        match &requests[..] {
            [] => {}
            // SAFETY: the caller vouches for the memory until the stream has come so far.
            [one] => drop(unsafe { on.run(one.call()?) }?),
            many => drop(on.group(|group| {
                many.iter().try_for_each(|one| {
                    // SAFETY: as above.
                    unsafe { group.run(one.call()?) }.map(drop)
                })
            })?),
        }
        Ok(())
    }

    /// The calls, of which those with factors have become sums.
    fn scaled<'r>(
        &self,
        comm: &Communicator,
        requests: &[&'r Request],
        stream: Option<&cuda::Stream>,
    ) -> Answer<Vec<Cow<'r, Request>>> {
        let has_factor = |request: &Request| matches!(request.op, Op::Scaled(_));
        if !requests.iter().any(|request| has_factor(request)) {
            return Ok(requests.iter().map(|request| Cow::Borrowed(*request)).collect());
        }
        let mut scaler = lock(&self.scaler);
        if scaler.is_none() {
            *scaler = Some(Scaler::new(comm)?);
        }
        let Some(scaler) = &mut *scaler else { unreachable!("there is one by now") };
        let place = requests.iter().enumerate();
        place.map(|(place, request)| scaler.scale(place, request, stream).map(Cow::Owned)).collect()
    }
}

/// Where a message to this rank itself is from, where it goes, and its bytes.
type OwnMessage = (*const u8, *mut u8, usize);

/// Messages to this rank itself, in pairs as they have come, and the other calls.
fn to_itself<'r>(
    rank: usize,
    requests: &[&'r Request],
) -> Answer<(Vec<OwnMessage>, Vec<&'r Request>)> {
    let (sends, rest): (Vec<_>, Vec<_>) =
        requests.iter().copied().partition(|request| request.ends == Ends::To(rank));
    let (receives, rest): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|request| request.ends == Ends::From(rank));
    if sends.len() != receives.len() {
        return Err(Failure::usage(format!(
            "rank {rank} sends itself {} messages and receives {} of them in one group: each \
             ncclSend to oneself needs its ncclRecv in the same group and stream",
            sends.len(),
            receives.len()
        )));
    }
    let pair = |(send, receive): (&Request, &Request)| {
        let (sent, received) = (send.message_bytes(), receive.message_bytes());
        if sent != received {
            return Err(Failure::usage(format!(
                "rank {rank} sends itself {sent} bytes and receives {received}"
            )));
        }
        Ok((send.input.address.cast_const(), receive.output.address, sent))
    };
    let own: Answer<Vec<_>> = sends.into_iter().zip(receives).map(pair).collect();
    Ok((own?, rest))
}

/// A device's number, as `ncclCommCuDevice` says it; the host is none.
pub(crate) fn ordinal(device: Device) -> c_int {
    match device {
        Device::Cuda(Some(ordinal)) => ordinal as c_int,
        Device::Cuda(None) | Device::Host => -1,
    }
}
