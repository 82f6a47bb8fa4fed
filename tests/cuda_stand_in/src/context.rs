//! Contexts: one primary for each device, and others that some library may have made.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use cudarc::driver::sys::{CUcontext, CUdevice, CUresult};

use crate::call::{Answer, driver_calls, put};
use crate::registry::{Registry, lock};
use crate::settings::settings;
use crate::{capture, device, stream};

pub(crate) struct Context {
    pub(crate) device: CUdevice,
    /// What ended it: an error that every later call gets.
    error: AtomicU32,
    /// Contexts whose memory it may access.
    peers: Mutex<Vec<usize>>,
    /// Taken by calls that wait for all kernels, as they take the driver's lock: whoever asks about
    /// events waits for them.
    draining: RwLock<()>,
}

pub(crate) static CONTEXTS: Registry<Context> = Registry::new(1);
/// For each device: how often its primary context is retained, and its handle.
static PRIMARY: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

thread_local! {
    /// Contexts of the calling thread, the current one last.
    static STACK: Stack = const { Stack::new() };
}

/// Handles of contexts. It has no destructor: programs give back what they have from static
/// destructors, when those of thread-locals have run.
struct Stack {
    len: Cell<usize>,
    handles: [Cell<usize>; Stack::MOST],
}

impl Stack {
    const MOST: usize = 64;

    const fn new() -> Stack {
        Stack { len: Cell::new(0), handles: [const { Cell::new(0) }; Stack::MOST] }
    }

    fn last(&self) -> Option<usize> {
        Some(self.handles[self.len.get().checked_sub(1)?].get())
    }

    fn push(&self, handle: usize) -> Answer {
        let len = self.len.get();
        let place = self.handles.get(len).ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        place.set(handle);
        self.len.set(len + 1);
        Ok(())
    }

    fn pop(&self) -> Option<usize> {
        let last = self.last()?;
        self.len.set(self.len.get() - 1);
        Some(last)
    }

    fn remove(&self, handle: usize) {
        let held: Vec<_> = std::iter::from_fn(|| self.pop()).filter(|one| *one != handle).collect();
        for (place, one) in self.handles.iter().zip(held.iter().rev()) {
            place.set(*one);
        }
        self.len.set(held.len());
    }
}

impl Context {
    fn new(device: CUdevice) -> Context {
        let (error, peers, draining) = Default::default();
        Context { device, error, peers, draining }
    }

    /// Ends the context.
    pub(crate) fn fail(&self, code: CUresult) {
        self.error.store(code as u32, Ordering::Release);
    }

    /// Waits for what is in the context's streams, with the driver's lock.
    pub(crate) fn drain(&self, handle: usize) {
        let _alone = self.draining.write().unwrap_or_else(PoisonError::into_inner);
        stream::drain(handle);
    }

    /// Waits for the driver's lock.
    pub(crate) fn enter(&self) {
        drop(self.draining.read().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn check(&self) -> Answer {
        match self.error.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(crate::call::codes()
                .get(&code)
                .map_or(CUresult::CUDA_ERROR_UNKNOWN, |(code, _)| *code)),
        }
    }
}

/// The calling thread's context and its handle.
pub(crate) fn current() -> Answer<(usize, Arc<Context>)> {
    let none = CUresult::CUDA_ERROR_INVALID_CONTEXT;
    let handle = STACK.with(Stack::last).ok_or(none)?;
    let context = CONTEXTS.find(handle).map_err(|_| none)?;
    context.check()?;
    Ok((handle, context))
}

/// Of calls that need not wait for kernels, and on some drivers do.
pub(crate) fn may_wait() -> Answer {
    if settings().drains {
        let (handle, context) = current()?;
        context.drain(handle);
    }
    Ok(())
}

fn named(context: CUcontext) -> Answer<Arc<Context>> {
    CONTEXTS.find(context as usize).map_err(|_| CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// Times that primary contexts are retained.
pub(crate) fn retained() -> usize {
    lock(&PRIMARY).iter().map(|(count, _)| count).sum()
}

driver_calls! {
    fn cuDevicePrimaryCtxRetain(out: *mut CUcontext, dev: CUdevice) {
        device::check(dev)?;
        let mut primary = lock(&PRIMARY);
        let devices = primary.len().max(dev as usize + 1);
        primary.resize(devices, (0, 0));
        let (count, handle) = &mut primary[dev as usize];
        if *count == 0 {
            *handle = CONTEXTS.add(Arc::new(Context::new(dev)));
        }
        put(out, *handle as CUcontext)?;
        *count += 1;
        Ok(())
    }

    fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) {
        device::check(dev)?;
        let mut primary = lock(&PRIMARY);
        let Some((count, handle)) = primary.get_mut(dev as usize).filter(|(count, _)| *count > 0)
        else {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        };
        *count -= 1;
        if *count == 0 {
            let handle = std::mem::take(handle);
            drop(primary);
            stream::end_all(handle);
            CONTEXTS.remove(handle)?;
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut u32, active: *mut i32) {
        device::check(dev)?;
        let count = lock(&PRIMARY).get(dev as usize).map_or(0, |(count, _)| *count);
        put(flags, 0)?;
        put(active, i32::from(count > 0))
    }

    fn cuCtxCreate_v2(out: *mut CUcontext, _flags: u32, dev: CUdevice) {
        device::check(dev)?;
        let handle = CONTEXTS.add(Arc::new(Context::new(dev)));
        STACK.with(|stack| stack.push(handle))?;
        put(out, handle as CUcontext)
    }

    fn cuCtxDestroy_v2(ctx: CUcontext) {
        named(ctx)?;
        stream::end_all(ctx as usize);
        CONTEXTS.remove(ctx as usize)?;
        STACK.with(|stack| stack.remove(ctx as usize));
        Ok(())
    }

    fn cuCtxGetCurrent(out: *mut CUcontext) {
        put(out, STACK.with(Stack::last).unwrap_or(0) as CUcontext)
    }

    fn cuCtxSetCurrent(ctx: CUcontext) {
        if !ctx.is_null() {
            named(ctx)?;
        }
        STACK.with(|stack| {
            stack.pop();
            if ctx.is_null() { Ok(()) } else { stack.push(ctx as usize) }
        })
    }

    fn cuCtxPushCurrent_v2(ctx: CUcontext) {
        named(ctx)?;
        STACK.with(|stack| stack.push(ctx as usize))
    }

    fn cuCtxPopCurrent_v2(out: *mut CUcontext) {
        let popped = STACK.with(Stack::pop).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        if out.is_null() { Ok(()) } else { put(out, popped as CUcontext) }
    }

    fn cuCtxGetDevice(out: *mut CUdevice) {
        put(out, current()?.1.device)
    }

    fn cuCtxSynchronize() {
        let (handle, context) = current()?;
        capture::forbid()?;
        stream::drain(handle);
        context.check()
    }

    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32) {
        let (_, context) = current()?;
        let other = named(peer)?;
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if !device::reaches(context.device, other.device) {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let mut peers = lock(&context.peers);
        if peers.contains(&(peer as usize)) {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
        }
        peers.push(peer as usize);
        Ok(())
    }
}
