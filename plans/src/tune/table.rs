//! The tuning table: what `oxccl tune` has measured, in a TOML file that people read and edit.

use crate::algorithms::{self, Algorithm, Encoding, Entry};
use crate::collective::Kind;
use crate::topology::Placement;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Deserialize as DeriveDeserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Measured times of calls on one machine, with one number of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The machine's name, for people.
    pub machine: String,
    /// The day of the measurement, for people.
    pub date: String,
    /// What the ranks computed on. Communicators on another kind of device refuse the table.
    #[serde(default)]
    pub device: DeviceKind,
    /// Number of ranks. Calls of other numbers do not use the table.
    pub ranks: usize,
    /// So many consecutive ranks shared a node.
    pub ranks_per_node: usize,
    /// The element type that was measured, for people. Calls of all types use the table.
    #[serde(rename = "type")]
    pub data_type: String,
    /// The operation that was measured, for people. Calls of all operations use the table.
    pub op: String,
    /// What the machine's links did meanwhile, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub links: Option<Links>,
    /// One for each kind, memory, algorithm and encoding.
    #[serde(default, rename = "curve")]
    pub curves: Vec<Curve>,
}

/// A kind of device, for which a table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, DeriveDeserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The host's processors.
    #[default]
    Host,
    /// GPUs.
    Cuda,
}

/// What a machine's links can do at best.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// One cache line from core to core, one way, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_to_core_ns: Option<f64>,
    /// A large copy by one core, in 10^9 bytes a second.
    pub copy_gbps: f64,
}

/// How long calls take with one entry of the catalogue, by size.
#[derive(Clone, Debug, PartialEq, Serialize, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// The kind.
    #[serde(deserialize_with = "by_name")]
    pub kind: Kind,
    /// Whose buffers.
    pub memory: MemoryKind,
    /// The algorithm.
    #[serde(deserialize_with = "by_name")]
    pub algorithm: Algorithm,
    /// The encoding.
    #[serde(deserialize_with = "by_name")]
    pub encoding: Encoding,
    /// Sizes and times, in order of their sizes.
    pub points: Vec<Point>,
}

/// Who reaches a call's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, DeriveDeserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// All ranks, in place.
    Windows,
    /// Each rank its own.
    Private,
}

/// How long a call of one size takes; in the file, `[bytes, time_us]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, DeriveDeserialize)]
#[serde(from = "(usize, f64)", into = "(usize, f64)")]
pub struct Point {
    /// The larger of one rank's input and output.
    pub bytes: usize,
    /// Time of a call in microseconds.
    pub time_us: f64,
}

/// Why a tuning table cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}; `oxccl tune` writes a table that fits this version", file.display())]
pub struct TableError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong, and at which key.
    pub detail: String,
}

impl Table {
    /// Reads a file.
    ///
    /// # Errors
    /// [`TableError`] names the file and the key.
    pub fn read(file: &Path) -> Result<Table, TableError> {
        let error = |detail: String| TableError { file: file.to_owned(), detail };
        let text = std::fs::read_to_string(file).map_err(|e| error(e.to_string()))?;
        Table::parse(&text).map_err(error)
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// Says what is wrong, and at which key.
    pub fn parse(text: &str) -> Result<Table, String> {
        let table: Table = toml::from_str(text).map_err(|error| error.to_string())?;
        table.check()?;
        Ok(table)
    }

    /// A file's text, which [`Table::parse`] reads back.
    pub fn to_text(&self) -> String {
        // Names and numbers only: this cannot fail.
        toml::to_string(self).unwrap_or_default()
    }

    /// A number that differs where tables differ, whatever their comments and blanks.
    pub fn fingerprint(&self) -> u64 {
        // FNV-1a.
        self.to_text().bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    /// Which ranks shared a node.
    pub fn placement(&self) -> Placement {
        Placement::uniform(self.ranks_per_node)
    }

    /// The curves of a kind, over memory that peers reach or not.
    pub(super) fn curves_of(&self, kind: Kind, windows: bool) -> impl Iterator<Item = &Curve> {
        let memory = MemoryKind::of(windows);
        self.curves.iter().filter(move |curve| curve.kind == kind && curve.memory == memory)
    }

    /// Checks what no type can.
    fn check(&self) -> Result<(), String> {
        if self.ranks == 0 || self.ranks_per_node == 0 {
            return Err("ranks and ranks_per_node must be above 0".to_owned());
        }
        let mut seen = HashSet::new();
        for (index, curve) in self.curves.iter().enumerate() {
            let Curve { kind, algorithm, encoding, .. } = curve;
            let place = format!("curve {} ({kind} {algorithm}/{encoding})", index + 1);
            if algorithms::find(*kind, *algorithm, *encoding).is_none() {
                return Err(format!("{place}: algorithm: {kind} has no {algorithm}/{encoding}"));
            }
            if !seen.insert((*kind, curve.memory == MemoryKind::Windows, *algorithm, *encoding)) {
                return Err(format!("{place}: it is there twice"));
            }
            curve.check_points().map_err(|wrong| format!("{place}: points: {wrong}"))?;
        }
        Ok(())
    }
}

impl Curve {
    /// Bytes of the last point.
    pub(super) fn last_bytes(&self) -> usize {
        self.points.last().map_or(0, |point| point.bytes)
    }

    /// Whether it is this entry's; kind and memory are looked at elsewhere.
    pub(super) fn is_of(&self, entry: &Entry) -> bool {
        (self.algorithm, self.encoding) == (entry.algorithm, entry.encoding)
    }

    fn check_points(&self) -> Result<(), String> {
        if self.points.is_empty() {
            return Err("there is none".to_owned());
        }
        if !self.points.is_sorted_by(|one, next| one.bytes < next.bytes) {
            return Err("bytes must grow from point to point".to_owned());
        }
        match self.points.iter().find(|p| !(p.time_us > 0.0 && p.time_us.is_finite())) {
            Some(p) => Err(format!("{} us for {} bytes is no time above 0", p.time_us, p.bytes)),
            None => Ok(()),
        }
    }
}

impl DeviceKind {
    /// As in tables.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Host => "host",
            DeviceKind::Cuda => "cuda",
        }
    }
}

impl MemoryKind {
    /// Memory that peers reach in place, or not.
    pub fn of(windows: bool) -> MemoryKind {
        if windows { MemoryKind::Windows } else { MemoryKind::Private }
    }
}

impl From<(usize, f64)> for Point {
    fn from((bytes, time_us): (usize, f64)) -> Point {
        Point { bytes, time_us }
    }
}

impl From<Point> for (usize, f64) {
    fn from(point: Point) -> (usize, f64) {
        (point.bytes, point.time_us)
    }
}

/// A value by the name that the command line has for it.
fn by_name<'de, D: Deserializer<'de>, T: FromStr<Err = String>>(from: D) -> Result<T, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}
