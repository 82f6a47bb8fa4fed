//! Objects behind handles. A handle is a number that names its kind, so one of another kind, or of
//! an object that is gone, is found out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUresult;

pub(crate) struct Registry<T> {
    kind: usize,
    objects: Mutex<BTreeMap<usize, Arc<T>>>,
}

/// Distinct over all kinds, so that a handle never comes again.
static NEXT: AtomicUsize = AtomicUsize::new(1);

impl<T> Registry<T> {
    pub(crate) const fn new(kind: usize) -> Registry<T> {
        Registry { kind, objects: Mutex::new(BTreeMap::new()) }
    }

    pub(crate) fn add(&self, object: Arc<T>) -> usize {
        let handle = self.kind << 48 | NEXT.fetch_add(1, Ordering::Relaxed) << 4;
        lock(&self.objects).insert(handle, object);
        handle
    }

    pub(crate) fn find(&self, handle: usize) -> Result<Arc<T>, CUresult> {
        lock(&self.objects).get(&handle).cloned().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: usize) -> Result<Arc<T>, CUresult> {
        lock(&self.objects).remove(&handle).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        lock(&self.objects).values().cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.objects).len()
    }
}

/// Locks, also after a holder panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
