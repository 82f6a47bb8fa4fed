//! Values on the command line that several commands share.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use oxccl::{DataType, Kind, OpKind};
use oxccl_transports::rendezvous::WORLD_LIMIT;

use crate::failure::Failure;
use crate::names;

/// A number of bytes, with K, M or G for powers of 1,024 (nccl-tests' sizes; `KiB`, `MB` and so on
/// mean the same).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong =
            || format!("{text:?} is no size: a number of bytes, or one with K, M or G behind");
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            _ => return Err(wrong()),
        };
        let scale = 1usize << shift;
        if number.bytes().all(|digit| digit.is_ascii_digit()) && !number.is_empty() {
            let bytes = number.parse().ok().and_then(|whole: usize| whole.checked_mul(scale));
            let addressable = bytes.filter(|bytes| *bytes <= isize::MAX as usize);
            return addressable.map(Size).ok_or_else(|| {
                format!(
                    "{text:?} is more than {} bytes, the most that a buffer can have",
                    isize::MAX
                )
            });
        }
        let part: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = part * scale as f64;
        if shift > 0 && bytes < 1e18 { Ok(Size(bytes as usize)) } else { Err(wrong()) }
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = [(30, "G"), (20, "M"), (10, "K")];
        let fits = units.iter().find(|(shift, _)| self.0 != 0 && self.0.is_multiple_of(1 << shift));
        match fits {
            Some((shift, unit)) => f.pad(&format!("{}{unit}", self.0 >> shift)),
            None => f.pad(&self.0.to_string()),
        }
    }
}

/// Whoever has closed the pipe (as `head` does) wants no more.
pub(crate) fn unless_closed<T: Default>(
    what: &'static str,
) -> impl Fn(std::io::Error) -> Result<T, Failure> {
    move |error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Ok(T::default()),
        _ => Err(Failure::system(what)(error)),
    }
}

/// One of several values, or `all` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<T> {
    /// All that apply.
    All,
    /// This one.
    One(T),
}

impl<T: Copy> Choice<T> {
    /// The chosen ones of these.
    pub(crate) fn of(&self, all: &[T]) -> Vec<T> {
        match self {
            Choice::All => all.to_vec(),
            Choice::One(one) => vec![*one],
        }
    }
}

/// What `oxccl bench` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Collectives, one by one.
    Kinds(Choice<Kind>),
    /// Buckets in a group.
    Group,
}

/// Reads a collective's name, `all`, or `group`.
pub fn target(text: &str) -> Result<Target, String> {
    match text {
        "group" => Ok(Target::Group),
        "all" => Ok(Target::Kinds(Choice::All)),
        _ => names::kind_or(text, &["all", "group"]).map(|kind| Target::Kinds(Choice::One(kind))),
    }
}

/// What a verb is about: a collective, or a file with a custom schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject<T> {
    /// What is called.
    Op(T),
    /// A file.
    File(PathBuf),
}

impl<T: Clone> Subject<T> {
    /// A file's name, or else what this reads.
    pub(crate) fn parse(
        text: &str,
        op: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Subject<T>, String> {
        if is_schedule(text) { Ok(Subject::File(text.into())) } else { op(text).map(Subject::Op) }
    }

    /// What is called, and the file, of which one alone is there: `also` is a file of another flag.
    ///
    /// # Errors
    /// Two files.
    pub(crate) fn divide(
        subject: Option<&Subject<T>>,
        also: Option<&Path>,
    ) -> Result<(Option<T>, Option<PathBuf>), Failure> {
        match (subject, also) {
            (Some(Subject::File(one)), Some(other)) => Err(Failure::Usage(format!(
                "there are two schedules: {} and {}",
                one.display(),
                other.display()
            ))),
            (Some(Subject::File(path)), None) => Ok((None, Some(path.clone()))),
            (Some(Subject::Op(op)), also) => Ok((Some(op.clone()), also.map(Path::to_owned))),
            (None, also) => Ok((None, also.map(Path::to_owned))),
        }
    }
}

/// Whether it is the name of a file with a custom schedule.
fn is_schedule(text: &str) -> bool {
    text.ends_with(".json") || text.ends_with(".xml") || text.contains('/')
}

/// Reads a collective's name, or `all`.
pub(crate) fn kinds(text: &str) -> Result<Choice<Kind>, String> {
    choice(text, names::kind_or)
}

/// Reads an element type's name, or `all`.
pub(crate) fn data_types(text: &str) -> Result<Choice<DataType>, String> {
    choice(text, names::data_type_or)
}

/// Reads an operation's name, or `all`.
pub(crate) fn ops(text: &str) -> Result<Choice<OpKind>, String> {
    choice(text, names::op_or)
}

/// Reads `all`, or else what this reads.
fn choice<T>(
    text: &str,
    one: impl FnOnce(&str, &[&str]) -> Result<T, String>,
) -> Result<Choice<T>, String> {
    if text == "all" { Ok(Choice::All) } else { one(text, &["all"]).map(Choice::One) }
}

/// Reads an element type's name: nccl-tests', or Rust's.
pub(crate) fn data_type(text: &str) -> Result<DataType, String> {
    names::data_type_or(text, &[])
}

/// Reads an operation's name.
pub(crate) fn op(text: &str) -> Result<OpKind, String> {
    names::op_or(text, &[])
}

/// A device.
pub(crate) fn device(text: &str) -> Result<oxccl::Device, String> {
    text.parse().map_err(|()| format!("{text:?} is not host, cuda or cuda:N"))
}

/// Reads a number that is at least 1.
pub fn positive(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("{text:?} is no number above 0"))
}

/// Reads a number of ranks.
pub(crate) fn ranks(text: &str) -> Result<usize, String> {
    match positive(text)? {
        ranks if ranks > WORLD_LIMIT => Err(format!("there are {WORLD_LIMIT} ranks at most")),
        ranks => Ok(ranks),
    }
}

/// Reads a time in seconds, above 0.
pub fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds = text.parse().ok().filter(|s: &f64| *s > 0.0 && *s < 1e9);
    let seconds = seconds.ok_or_else(|| format!("{text:?} is no number of seconds above 0"))?;
    Ok(std::time::Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes() {
        for (text, bytes) in [
            ("8", 8),
            ("4K", 4 << 10),
            ("1.5M", 3 << 19),
            ("64MiB", 64 << 20),
            ("2g", 2 << 30),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "K", "-1", "1.5", "8Q", "1e3"] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("is no size"), "{error}");
        }
        let error = "99999999999G".parse::<Size>().unwrap_err();
        assert!(error.contains("the most that a buffer can have"), "{error}");
        assert_eq!(Size(64 << 20).to_string(), "64M");
        assert_eq!(Size(1025).to_string(), "1025");
        assert_eq!(Size(0).to_string(), "0");
    }

    #[test]
    fn every_name_is_read_back() {
        for data_type_ in DataType::ALL {
            assert_eq!(data_type(data_type_.name()), Ok(data_type_));
        }
        for op_ in OpKind::ALL {
            assert_eq!(op(op_.name()), Ok(op_));
        }
        for kind in Kind::ALL {
            assert_eq!(kinds(kind.name()), Ok(Choice::One(kind)));
        }
        assert_eq!(data_type("f32"), Ok(DataType::F32));
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        assert!(kinds("all_reduc").unwrap_err().contains("all_reduce, reduce_scatter"));
        assert!(kinds("x").unwrap_err().ends_with("barrier, and all"));
        assert!(target("x").unwrap_err().ends_with("barrier, and all, and group"));
        assert!(data_type("f33").unwrap_err().contains("bfloat16, float, double"));
        assert!(op("plus").unwrap_err().contains("sum, prod"));
    }
}
