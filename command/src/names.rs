//! Names on the command line: of collectives, algorithms, encodings, orders, types and operations.
//! Of one that is not known it is said which was probably meant.

use std::fmt::Display;
use std::str::FromStr;

use oxccl::plans::algorithms::{Algorithm, Encoding};
use oxccl::{DataType, Kind, OpKind, Order};

/// Names are alike from here on, where 1 is equal (Jaro's measure; clap draws the line there, too).
const ALIKE: f64 = 0.7;

/// What nccl-tests, Rust and others call element types.
const OTHER_TYPES: [(&str, &str); 22] = [
    ("char", "int8"),
    ("i8", "int8"),
    ("u8", "uint8"),
    ("int", "int32"),
    ("i32", "int32"),
    ("uint", "uint32"),
    ("u32", "uint32"),
    ("i64", "int64"),
    ("u64", "uint64"),
    ("f16", "half"),
    ("float16", "half"),
    ("bf16", "bfloat16"),
    ("f32", "float"),
    ("float32", "float"),
    ("f64", "double"),
    ("float64", "double"),
    ("fp8-e4m3", "f8e4m3"),
    ("fp8_e4m3", "f8e4m3"),
    ("float8_e4m3", "f8e4m3"),
    ("fp8-e5m2", "f8e5m2"),
    ("fp8_e5m2", "f8e5m2"),
    ("float8_e5m2", "f8e5m2"),
];

/// What is wrong with a name, and which was probably meant.
pub(crate) fn unknown<'a>(
    error: impl Display,
    text: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> String {
    let written = text.to_ascii_lowercase().replace('-', "_");
    let likeness = |name: &'a str| (strsim::jaro(&written, &name.replace('-', "_")), name);
    let all = names.into_iter().map(likeness).filter(|(likeness, _)| *likeness > ALIKE);
    match all.max_by(|one, other| one.0.total_cmp(&other.0)) {
        Some((_, name)) => format!("{error}. Did you mean {name}?"),
        None => error.to_string(),
    }
}

/// Reads a value by its name. Those of `also` are read elsewhere, and named here.
fn read<T: FromStr<Err = String>>(text: &str, names: &[&str], also: &[&str]) -> Result<T, String> {
    text.parse().map_err(|error| {
        let more: String = also.iter().map(|name| format!(", and {name}")).collect();
        let all = names.iter().chain(also).copied();
        unknown(format_args!("{error}{more}"), text, all)
    })
}

/// Reads a collective's name.
pub(crate) fn kind(text: &str) -> Result<Kind, String> {
    kind_or(text, &[])
}

/// Reads a collective's name, which could have been one of `also` instead.
pub(crate) fn kind_or(text: &str, also: &[&str]) -> Result<Kind, String> {
    read(text, &Kind::ALL.map(Kind::name), also)
}

/// Reads an algorithm's name.
pub(crate) fn algorithm(text: &str) -> Result<Algorithm, String> {
    read(text, &Algorithm::ALL.map(Algorithm::name), &[])
}

/// Reads an encoding's name.
pub(crate) fn encoding(text: &str) -> Result<Encoding, String> {
    read(text, &Encoding::ALL.map(Encoding::name), &[])
}

/// Reads an order's name.
pub(crate) fn order(text: &str) -> Result<Order, String> {
    read(text, &[Order::Any, Order::Rank, Order::Tree].map(Order::name), &[])
}

/// Reads an operation's name, which could have been one of `also` instead.
pub(crate) fn op_or(text: &str, also: &[&str]) -> Result<OpKind, String> {
    read(text, &OpKind::ALL.map(OpKind::name), also)
}

/// Reads an element type's name, nccl-tests' or Rust's, which could have been one of `also`
/// instead.
pub(crate) fn data_type_or(text: &str, also: &[&str]) -> Result<DataType, String> {
    let other = OTHER_TYPES.into_iter().find(|(other, _)| *other == text);
    if let Some((_, name)) = other {
        return name.parse();
    }
    let names: Vec<&str> = DataType::ALL.iter().map(|one| one.name()).collect();
    let all: Vec<&str> = names.into_iter().chain(OTHER_TYPES.map(|(other, _)| other)).collect();
    read(text, &all, also)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_named() {
        let meant = |error: String| {
            let end = error.rsplit_once(". Did you mean ").map(|(_, end)| end.to_owned());
            end.and_then(|end| end.strip_suffix('?').map(str::to_owned))
        };
        assert_eq!(meant(algorithm("rign").unwrap_err()).as_deref(), Some("ring"));
        assert_eq!(
            meant(algorithm("Halving-Dubling").unwrap_err()).as_deref(),
            Some("halving_doubling")
        );
        assert_eq!(meant(encoding("LL128").unwrap_err()).as_deref(), Some("ll128"));
        assert_eq!(meant(kind("allreduce").unwrap_err()).as_deref(), Some("all_reduce"));
        assert_eq!(meant(order("ranks").unwrap_err()).as_deref(), Some("rank"));
        assert_eq!(meant(op_or("summ", &["all"]).unwrap_err()).as_deref(), Some("sum"));
        assert_eq!(meant(data_type_or("f33", &[]).unwrap_err()).as_deref(), Some("f32"));
        assert_eq!(meant(kind_or("grupp", &["group"]).unwrap_err()).as_deref(), Some("group"));
        assert_eq!(meant(algorithm("xyz").unwrap_err()), None);
    }
}
