//! How each part of a node reaches each other, in the words of `nvidia-smi topo -m`.

use super::{Connection, Role, Topology};
use std::collections::VecDeque;

/// How two parts are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relation {
    /// They are the same.
    Itself,
    /// Links of this kind, directly or through one switch.
    Linked(String),
    /// One PCIe switch or bridge.
    Pix,
    /// Several PCIe switches, without the processor.
    Pxb,
    /// Through the processor that both hang on.
    Node,
    /// From processor to processor.
    Sys,
    /// Nothing joins them.
    Nothing,
}

/// Each device and adapter of a node against each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// The devices, then the adapters.
    pub names: Vec<String>,
    /// The processor nearest to each, if it is known.
    pub numa: Vec<Option<String>>,
    /// Row by row.
    pub relations: Vec<Vec<Relation>>,
}

impl Topology {
    /// How devices and adapters of a node reach each other.
    pub fn matrix(&self) -> Matrix {
        let of = |role: Role| {
            (0..self.parts.len()).filter(move |&at| self.parts[at].role == role).collect::<Vec<_>>()
        };
        let rows = [of(Role::Device), of(Role::Nic)].concat();
        let relations = rows.iter().map(|&from| {
            let ways = self.ways(from);
            rows.iter().map(|&to| self.relation(from, to, &ways)).collect()
        });
        Matrix {
            relations: relations.collect(),
            numa: rows.iter().map(|&from| self.nearest_numa(from)).collect(),
            names: rows.iter().map(|&at| self.parts[at].name.clone()).collect(),
        }
    }

    /// For each part the part before it on the way with the fewest links, and the connection
    /// between.
    fn ways(&self, from: usize) -> Vec<Option<(usize, usize)>> {
        let mut before = vec![None; self.parts.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            if at != from && matches!(self.parts[at].role, Role::Device | Role::Nic) {
                continue;
            }
            for (number, connection) in self.connections.iter().enumerate() {
                let Some(next) = self.other_end(connection, at) else { continue };
                if next != from && before[next].is_none() {
                    before[next] = Some((at, number));
                    queue.push_back(next);
                }
            }
        }
        before
    }

    fn other_end(&self, connection: &Connection, at: usize) -> Option<usize> {
        let [a, b] = &connection.between;
        let name = &self.parts[at].name;
        let other = if a == name {
            b
        } else if b == name {
            a
        } else {
            return None;
        };
        self.parts.iter().position(|part| part.name == *other)
    }

    fn relation(&self, from: usize, to: usize, ways: &[Option<(usize, usize)>]) -> Relation {
        if from == to {
            return Relation::Itself;
        }
        let (mut at, mut roles, mut first) = (to, Vec::new(), None);
        while at != from {
            let Some((before, connection)) = ways[at] else { return Relation::Nothing };
            first = Some(connection);
            at = before;
            roles.push(self.parts[at].role);
        }
        roles.pop();
        let count = |role: Role| roles.iter().filter(|other| **other == role).count();
        match (count(Role::Numa), count(Role::Bridge)) {
            (0, 0) => {
                let kind = first.map(|at| self.connections[at].link.clone()).unwrap_or_default();
                Relation::Linked(kind)
            }
            (0, 1) => Relation::Pix,
            (0, _) => Relation::Pxb,
            (1, _) => Relation::Node,
            _ => Relation::Sys,
        }
    }

    fn nearest_numa(&self, from: usize) -> Option<String> {
        let ways = self.ways(from);
        let length = |mut at: usize| {
            let mut links = 0;
            while at != from {
                at = ways[at]?.0;
                links += 1;
            }
            Some(links)
        };
        let numas = (0..self.parts.len()).filter(|&at| self.parts[at].role == Role::Numa);
        let (_, nearest) = numas.filter_map(|at| Some((length(at)?, at))).min()?;
        Some(self.parts[nearest].name.clone())
    }
}

impl std::fmt::Display for Relation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Relation::Itself => f.pad("X"),
            Relation::Linked(kind) => f.pad(kind),
            Relation::Pix => f.pad("PIX"),
            Relation::Pxb => f.pad("PXB"),
            Relation::Node => f.pad("NODE"),
            Relation::Sys => f.pad("SYS"),
            Relation::Nothing => f.pad("-"),
        }
    }
}

impl std::fmt::Display for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = self.names.iter().map(String::len).max().unwrap_or(0).max(6);
        write!(f, "{:width$}", "")?;
        for name in &self.names {
            write!(f, "  {name:>width$}")?;
        }
        writeln!(f, "  NUMA")?;
        for ((name, row), numa) in self.names.iter().zip(&self.relations).zip(&self.numa) {
            write!(f, "{name:width$}")?;
            for relation in row {
                write!(f, "  {relation:>width$}")?;
            }
            writeln!(f, "  {}", numa.as_deref().unwrap_or("-"))?;
        }
        Ok(())
    }
}
