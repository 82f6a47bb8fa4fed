//! A schedule as Chakra execution traces (Sridharan et al. 2023), one file a rank, as ASTRA-sim
//! reads them: a node for each send and each receive.
//!
//! A file is a row of protobuf messages, each behind its length: first the metadata, then the
//! nodes. A node that depends on another waits for its end. A send ends when it has been carried,
//! and the executor does not wait for that; so nodes depend on the receives before them alone.

use std::path::{Path, PathBuf};

use prost::Message as _;

use super::messages::Transfer;
use crate::failure::Failure;

/// The schema's version, as Chakra's own tools name it.
const VERSION: &str = "0.0.4";
const SEND: i32 = 5;
const RECEIVE: i32 = 6;

/// The fields of `GlobalMetadata` that are written.
#[derive(Clone, PartialEq, prost::Message)]
struct Metadata {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(message, repeated, tag = "2")]
    attributes: Vec<Attribute>,
}

/// Those of `Node`.
#[derive(Clone, PartialEq, prost::Message)]
struct Node {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(int32, tag = "3")]
    kind: i32,
    #[prost(uint64, repeated, tag = "5")]
    data_dependencies: Vec<u64>,
    #[prost(message, repeated, tag = "10")]
    attributes: Vec<Attribute>,
}

/// Those of `AttributeProto`.
#[derive(Clone, PartialEq, prost::Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(oneof = "Value", tags = "7, 9, 27, 29")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(int32, tag = "7")]
    Int32(i32),
    #[prost(int64, tag = "9")]
    Int64(i64),
    #[prost(bool, tag = "27")]
    Bool(bool),
    #[prost(string, tag = "29")]
    Text(String),
}

fn attribute(name: &str, value: Value) -> Attribute {
    Attribute { name: name.to_owned(), value: Some(value) }
}

/// Writes `PREFIX.RANK.et` for each rank, with the name of the call in the metadata.
///
/// # Errors
/// A file that cannot be written, and numbers that Chakra has no room for.
pub(super) fn write(prefix: &Path, call: &str, ranks: &[Vec<Transfer>]) -> Result<(), Failure> {
    for (rank, transfers) in ranks.iter().enumerate() {
        let mut name = prefix.as_os_str().to_owned();
        name.push(format!(".{rank}.et"));
        let path = PathBuf::from(name);
        let bytes = trace(call, rank, transfers)?;
        std::fs::write(&path, bytes)
            .map_err(Failure::system(format!("writing {}", path.display())))?;
    }
    Ok(())
}

fn trace(call: &str, rank: usize, transfers: &[Transfer]) -> Result<Vec<u8>, Failure> {
    let call = attribute("call", Value::Text(call.to_owned()));
    let metadata = Metadata { version: VERSION.to_owned(), attributes: vec![call] };
    let mut bytes = metadata.encode_length_delimited_to_vec();
    // The receives that each is after, also by way of sends.
    let mut received: Vec<Vec<usize>> = Vec::with_capacity(transfers.len());
    for (id, transfer) in transfers.iter().enumerate() {
        let mut before = Vec::new();
        for one in &transfer.after {
            match transfers[*one].sends {
                true => before.extend(&received[*one]),
                false => before.push(*one),
            }
        }
        before.sort_unstable();
        before.dedup();
        bytes.extend(node(id, rank, transfer, &before)?.encode_length_delimited_to_vec());
        received.push(before);
    }
    Ok(bytes)
}

fn node(id: usize, rank: usize, transfer: &Transfer, before: &[usize]) -> Result<Node, Failure> {
    let Transfer { sends, peer, bytes, tag, .. } = *transfer;
    let (kind, verb, from, to) = match sends {
        true => (SEND, "send", rank, peer),
        false => (RECEIVE, "recv", peer, rank),
    };
    let number = |what: &str, value: usize| {
        let value = i32::try_from(value).map_err(|_| {
            Failure::Usage(format!("--chakra: {what} {value} does not fit Chakra's 32 bits"))
        })?;
        Ok::<_, Failure>(Value::Int32(value))
    };
    let size = i64::try_from(bytes).unwrap_or(i64::MAX);
    Ok(Node {
        id: id as u64,
        name: format!("{verb} {from} to {to} tag {tag}"),
        kind,
        data_dependencies: before.iter().map(|one| *one as u64).collect(),
        attributes: vec![
            attribute("is_cpu_op", Value::Bool(false)),
            attribute("comm_size", Value::Int64(size)),
            attribute("comm_src", number("rank", from)?),
            attribute("comm_dst", number("rank", to)?),
            attribute("comm_tag", number("tag", tag)?),
        ],
    })
}
