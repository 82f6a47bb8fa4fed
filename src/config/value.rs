//! How values are read from variables, and shown.

use super::table::Refused;
use super::{FabricKind, GpuDirect, LogLevel};
use crate::device::cuda::Image;
use crate::target::Device;

use oxccl_plans::collective::Order;
use oxccl_plans::custom::CustomSchedule;
use oxccl_plans::tune::{Pin, Table};
use oxccl_transports::proxy::{BadConditions, Conditions};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) fn parsed<T: FromStr>(text: &str) -> Result<T, Refused> {
    text.trim().parse().map_err(|_| Refused::NotAccepted)
}

pub(super) fn above_0(text: &str) -> Result<usize, Refused> {
    parsed(text).and_then(|number| if number > 0 { Ok(number) } else { Err(Refused::NotAccepted) })
}

pub(super) fn seconds(text: &str) -> Result<Duration, Refused> {
    if text.trim() == "none" {
        return Ok(Duration::MAX);
    }
    let seconds: f64 = parsed(text)?;
    let is_possible = seconds > 0.0 && seconds < 1e9;
    if is_possible { Ok(Duration::from_secs_f64(seconds)) } else { Err(Refused::NotAccepted) }
}

pub(super) fn switch(text: &str) -> Result<bool, Refused> {
    match text.trim() {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(Refused::NotAccepted),
    }
}

/// No text is no name.
pub(super) fn name(text: &str) -> Result<Option<String>, Refused> {
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

/// No text is no folder, either.
pub(super) fn folder(text: &str) -> Result<Option<PathBuf>, Refused> {
    Ok((!["", "none"].contains(&text)).then(|| text.into()))
}

pub(super) fn names(text: &str) -> Result<Vec<String>, Refused> {
    Ok(text.split(',').map(|name| name.trim().to_owned()).collect())
}

pub(super) fn table(file: &str) -> Result<Arc<Table>, Refused> {
    let table = Table::read(Path::new(file)).map(Arc::new);
    table.map_err(|error| Refused::Because(error.to_string()))
}

/// The file is read once a process: kernels that have been loaded refer to it.
pub(super) fn image(file: &str) -> Result<Option<Image>, Refused> {
    static READ: Mutex<BTreeMap<PathBuf, Image>> = Mutex::new(BTreeMap::new());
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    let path = PathBuf::from(file);
    if let Some(image) = read.get(&path) {
        return Ok(Some(*image));
    }
    let bytes =
        std::fs::read(&path).map_err(|error| Refused::Because(format!("{file}: {error}")))?;
    // SAFETY: whoever sets the variable vouches for the file.
    let image = unsafe { Image::from_bytes(bytes.leak()) };
    read.insert(path, image);
    Ok(Some(image))
}

pub(super) fn conditions(text: &str) -> Result<Conditions, Refused> {
    text.parse().map_err(|error: BadConditions| Refused::Because(error.to_string()))
}

/// A value as ranks compare it, and as logs and documents have it.
pub(super) trait Shown {
    fn shown(&self) -> String;
}

/// Those that are shown as they are displayed.
macro_rules! displayed {
    ($($type:ty),+) => {
        $(impl Shown for $type {
            fn shown(&self) -> String {
                let shown: &dyn Display = self;
                shown.to_string()
            }
        })+
    };
}

displayed!(Device, Order, FabricKind, GpuDirect, Conditions, LogLevel, String, u8, u32, usize);

impl<T: Shown> Shown for Option<T> {
    fn shown(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), Shown::shown)
    }
}

impl Shown for bool {
    fn shown(&self) -> String {
        u8::from(*self).to_string()
    }
}

impl Shown for Duration {
    fn shown(&self) -> String {
        match *self {
            Duration::MAX => "none".to_owned(),
            some => some.as_secs_f64().to_string(),
        }
    }
}

impl Shown for Vec<String> {
    fn shown(&self) -> String {
        self.join(",")
    }
}

impl Shown for PathBuf {
    fn shown(&self) -> String {
        self.display().to_string()
    }
}

impl Shown for Pin {
    fn shown(&self) -> String {
        let parts = [
            self.algorithm.map(|algorithm| format!("algorithm {algorithm}")),
            self.encoding.map(|encoding| format!("encoding {encoding}")),
            self.channels.map(|channels| format!("channels {channels}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
    }
}

impl Shown for Arc<CustomSchedule> {
    fn shown(&self) -> String {
        format!("{:016x}", self.fingerprint())
    }
}

impl Shown for Arc<Table> {
    fn shown(&self) -> String {
        format!("table {:016x}", self.fingerprint())
    }
}

impl Shown for Image {
    fn shown(&self) -> String {
        "other kernels".to_owned()
    }
}
