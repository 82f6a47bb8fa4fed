//! What is wrong with a topology.

use thiserror::Error;

/// What is wrong with a topology, where, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The text is no topology.
    #[error("{source_name}: {detail}")]
    Text {
        /// The file, or whatever the text came from.
        source_name: String,
        /// Line, key and what is expected.
        detail: String,
    },
    /// A value cannot be.
    #[error("{key} {problem}; {remedy}")]
    Value {
        /// The key.
        key: String,
        /// What is wrong with it.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// No such preset.
    #[error(
        "{name:?} is no topology; there are {known}, or the path of a file that ends with .toml, or of NCCL with .xml"
    )]
    NoPreset {
        /// What was asked for.
        name: String,
        /// All there are.
        known: String,
    },
    /// More ranks than devices.
    #[error(
        "{ranks} ranks do not fit on {name}: {nodes} nodes with {per_node} ranks each; have more nodes, or fewer ranks"
    )]
    TooManyRanks {
        /// The topology.
        name: String,
        /// How many ranks.
        ranks: usize,
        /// How many nodes.
        nodes: usize,
        /// Ranks that a node takes.
        per_node: usize,
    },
    /// Two devices that nothing joins.
    #[error("nothing joins {from} and {to} in {name}; add connections between them")]
    NoRoute {
        /// The topology.
        name: String,
        /// One part.
        from: String,
        /// The other.
        to: String,
    },
}

impl TopologyError {
    pub(super) fn wrong(
        key: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> TopologyError {
        TopologyError::Value { key: key.into(), problem: problem.into(), remedy: remedy.into() }
    }

    pub(super) fn unknown(key: String, what: &str, name: &str, known: String) -> TopologyError {
        let problem = format!("names the {what} {name:?}, which is not defined");
        TopologyError::wrong(key, problem, format!("define it, or use one of: {known}"))
    }

    /// The same error, of this file.
    pub fn of(self, source_name: &str) -> TopologyError {
        match self {
            TopologyError::Text { detail, .. } => {
                TopologyError::Text { source_name: source_name.to_string(), detail }
            }
            other => TopologyError::Text {
                source_name: source_name.to_string(),
                detail: other.to_string(),
            },
        }
    }
}
