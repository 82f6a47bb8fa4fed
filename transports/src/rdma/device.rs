//! Network adapters: finding, opening, and hearing of their failures.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::library::{Library, text};
use super::{RdmaError, sys};

/// The names of this machine's RDMA devices, in the order of the system.
///
/// # Errors
/// [`RdmaError::NoLibrary`]. A machine without devices is no error: the list is empty.
pub fn device_names() -> Result<Vec<String>, RdmaError> {
    let library = Library::load()?;
    Ok(List::read(library)?.devices().map(|(name, _)| name).collect())
}

/// An open device. It is closed once nothing that was made on it is left.
pub struct Device {
    pub(super) library: &'static Library,
    context: NonNull<sys::Context>,
    name: String,
    attributes: sys::DeviceAttributes,
}

// SAFETY: libibverbs' objects may be used by several threads at once.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// What a device reports of its own accord. After most of these it carries nothing any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceEvent {
    /// The library's text for it.
    pub what: String,
    /// Whether connections over the device are lost.
    pub fatal: bool,
}

impl Device {
    /// Opens a device by its name.
    ///
    /// # Errors
    /// [`RdmaError::NoLibrary`], [`RdmaError::NoDevice`], [`RdmaError::NoSuchDevice`], and
    /// [`RdmaError::Verbs`] if the process may not use it.
    pub fn open(name: &str) -> Result<Arc<Device>, RdmaError> {
        let library = Library::load()?;
        let list = List::read(library)?;
        let found: Vec<String> = list.devices().map(|(name, _)| name).collect();
        let Some((_, device)) = list.devices().find(|(found, _)| found == name) else {
            if found.is_empty() {
                return Err(RdmaError::NoDevice);
            }
            return Err(RdmaError::NoSuchDevice { name: name.to_owned(), found });
        };
        let failed = |function| move || verbs_error(function, name);
        // SAFETY: the list, and with it the device, lives until the end of this function.
        let context = NonNull::new(unsafe { (library.open_device)(device) })
            .ok_or_else(failed("ibv_open_device"))?;
        // SAFETY: all zero is a valid value of these numbers.
        let mut attributes = unsafe { std::mem::zeroed() };
        // SAFETY: both are valid.
        let answer = unsafe { (library.query_device)(context.as_ptr(), &raw mut attributes) };
        let device = Device { library, context, name: name.to_owned(), attributes };
        check("ibv_query_device", &device.name, answer)?;
        // SAFETY: the library keeps the descriptor open as long as the context, and so does
        // `device`.
        let events = unsafe { BorrowedFd::borrow_raw(device.async_fd()) };
        fcntl(events, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|errno| RdmaError::Verbs {
            function: "fcntl",
            device: device.name.clone(),
            source: errno.into(),
        })?;
        Ok(Arc::new(device))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many ports it has; they are numbered from 1 on.
    pub fn port_count(&self) -> u8 {
        self.attributes.phys_port_cnt
    }

    /// What the device has to report, if anything. It never waits.
    pub fn event(&self) -> Option<DeviceEvent> {
        // Whether there is something is asked first: some libraries treat an empty queue as an
        // error worth a message.
        let mut polled = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        if poll(&mut polled, PollTimeout::ZERO) != Ok(1) {
            return None;
        }
        let mut event = sys::AsyncEvent { element: 0, event_type: 0 };
        // SAFETY: context and event are valid.
        if unsafe { (self.library.get_async_event)(self.context(), &raw mut event) } != 0 {
            return None;
        }
        let reported = DeviceEvent {
            what: self.library.event_text(event.event_type),
            fatal: matches!(event.event_type, sys::EVENT_DEVICE_FATAL | sys::EVENT_PORT_ERR),
        };
        // SAFETY: it is the event that has just been taken, acknowledged once.
        unsafe { (self.library.ack_async_event)(&raw mut event) };
        Some(reported)
    }

    pub(super) fn context(&self) -> *mut sys::Context {
        self.context.as_ptr()
    }

    pub(super) fn attributes(&self) -> &sys::DeviceAttributes {
        &self.attributes
    }

    /// The functions of the device's provider.
    pub(super) fn operations(&self) -> &sys::Operations {
        // SAFETY: the context lives as long as `self`, and the provider does not change its table.
        unsafe { &(*self.context.as_ptr()).operations }
    }

    /// The error of a function that has set `errno`.
    pub(super) fn error(&self, function: &'static str) -> RdmaError {
        verbs_error(function, &self.name)
    }

    /// The result of a function that returns an error number.
    pub(super) fn check(&self, function: &'static str, answer: i32) -> Result<(), RdmaError> {
        check(function, &self.name, answer)
    }

    fn async_fd(&self) -> RawFd {
        // SAFETY: the context is valid.
        unsafe { (*self.context.as_ptr()).async_fd }
    }
}

/// Becomes readable with an event.
impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the library keeps the descriptor open as long as the context.
        unsafe { BorrowedFd::borrow_raw(self.async_fd()) }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("events", &self.as_fd().as_raw_fd())
            .finish_non_exhaustive()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: whatever was made on the context holds the device, so nothing of it is left.
        unsafe { (self.library.close_device)(self.context.as_ptr()) };
    }
}

fn check(function: &'static str, device: &str, answer: i32) -> Result<(), RdmaError> {
    match answer {
        0 => Ok(()),
        // Most return the number, some -1 and set `errno`.
        ..=-1 => Err(verbs_error(function, device)),
        errno => Err(RdmaError::Verbs {
            function,
            device: device.to_owned(),
            source: io::Error::from_raw_os_error(errno),
        }),
    }
}

fn verbs_error(function: &'static str, device: &str) -> RdmaError {
    RdmaError::Verbs { function, device: device.to_owned(), source: io::Error::last_os_error() }
}

/// The system's list of devices, while it is looked through.
struct List {
    library: &'static Library,
    first: *mut *mut sys::Device,
    len: usize,
}

impl List {
    fn read(library: &'static Library) -> Result<List, RdmaError> {
        let mut len = 0;
        // SAFETY: the pointer is valid.
        let first = unsafe { (library.get_device_list)(&raw mut len) };
        if first.is_null() {
            // Without the kernel's module there is no list either.
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::ENOSYS) {
                return Err(verbs_error("ibv_get_device_list", "this machine"));
            }
        }
        Ok(List { library, first, len: if first.is_null() { 0 } else { len as usize } })
    }

    fn devices(&self) -> impl Iterator<Item = (String, *mut sys::Device)> {
        (0..self.len).map(|index| {
            // SAFETY: the list has that many entries, each a device with a name, as long as it is
            // not freed.
            unsafe {
                let device = *self.first.add(index);
                (text((self.library.get_device_name)(device)), device)
            }
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: it is the library's list, freed once.
            unsafe { (self.library.free_device_list)(self.first) };
        }
    }
}
