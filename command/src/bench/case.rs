//! What is measured: a collective with its type, operation and root, and what a size means for it.
//!
//! Sizes and bandwidths are nccl-tests': a size is the larger of one rank's input and output, the
//! algorithm bandwidth is the size over the time, and the bus bandwidth is what a link must carry
//! at least (its PERFORMANCE.md).

use oxccl::{DataType, Kind, OpKind};

/// A collective with its type, operation and root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The collective.
    pub kind: Kind,
    /// The element type.
    pub data_type: DataType,
    /// The operation, where values are reduced.
    pub op: OpKind,
    /// The root, where there is one.
    pub root: usize,
}

/// Whether input and output are one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Two buffers.
    OutOfPlace,
    /// One buffer.
    InPlace,
}

/// Lengths in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What the table calls count: the whole buffer, or one rank's part where ranks have parts.
    pub count: usize,
    /// One rank's input.
    pub input: usize,
    /// One rank's output.
    pub output: usize,
}

impl Case {
    /// Whether the collective is offered in place.
    pub fn has_in_place(&self) -> bool {
        !matches!(self.kind, Kind::Gather | Kind::Scatter | Kind::SendRecv | Kind::Barrier)
    }

    /// Whether this rank's input is read.
    pub fn has_input(&self, rank: usize) -> bool {
        match self.kind {
            Kind::Broadcast | Kind::Scatter => rank == self.root,
            kind => kind != Kind::Barrier,
        }
    }

    /// Whether this rank's output is written.
    pub fn has_output(&self, rank: usize) -> bool {
        match self.kind {
            Kind::Reduce | Kind::Gather => rank == self.root,
            kind => kind != Kind::Barrier,
        }
    }

    /// The operation's name, as in the table.
    pub fn op_name(&self) -> &'static str {
        if self.kind.reduces() { self.op.name() } else { "none" }
    }

    /// The root, as in the table: -1 where there is none.
    pub fn root_number(&self) -> i64 {
        if self.kind.is_rooted() { self.root as i64 } else { -1 }
    }

    /// What a size means.
    pub fn shape(&self, ranks: usize, bytes: usize) -> Shape {
        let whole = bytes / self.data_type.len_bytes();
        let part = whole / ranks;
        let (count, input, output) = match self.kind {
            Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::SendRecv => {
                (whole, whole, whole)
            }
            Kind::AllGather | Kind::Gather => (part, part, part * ranks),
            Kind::ReduceScatter | Kind::Scatter => (part, part * ranks, part),
            Kind::AllToAll => (part, part * ranks, part * ranks),
            Kind::Barrier => (0, 0, 0),
        };
        Shape { count, input, output }
    }

    /// Bus bandwidth over algorithm bandwidth.
    pub fn bus_factor(&self, ranks: usize) -> f64 {
        let others = (ranks - 1) as f64 / ranks as f64;
        match self.kind {
            Kind::AllReduce => 2.0 * others,
            Kind::ReduceScatter
            | Kind::AllGather
            | Kind::AllToAll
            | Kind::Gather
            | Kind::Scatter => others,
            Kind::Broadcast | Kind::Reduce | Kind::SendRecv | Kind::Barrier => 1.0,
        }
    }
}

impl Shape {
    /// The one buffer of a call in place: the larger one.
    pub(crate) fn both(&self) -> usize {
        self.input.max(self.output)
    }

    /// The size in bytes that the table shows.
    pub fn bytes(&self, data_type: DataType) -> usize {
        self.input.max(self.output) * data_type.len_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(kind: Kind) -> Case {
        Case { kind, data_type: DataType::F32, op: OpKind::Sum, root: 0 }
    }

    #[test]
    fn a_size_is_the_larger_buffer() {
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Barrier) {
            let shape = case(kind).shape(4, 1 << 20);
            assert_eq!(shape.bytes(DataType::F32), 1 << 20, "{kind}");
        }
        let shape = case(Kind::AllGather).shape(3, 100);
        assert_eq!(shape, Shape { count: 8, input: 8, output: 24 });
        let shape = case(Kind::ReduceScatter).shape(2, 8);
        assert_eq!(shape, Shape { count: 1, input: 2, output: 1 });
    }

    #[test]
    fn bus_bandwidth_follows_nccl_tests() {
        assert_eq!(case(Kind::AllReduce).bus_factor(4), 1.5);
        assert_eq!(case(Kind::AllToAll).bus_factor(4), 0.75);
        assert_eq!(case(Kind::Gather).bus_factor(4), 0.75);
        assert_eq!(case(Kind::Broadcast).bus_factor(4), 1.0);
        assert_eq!(case(Kind::AllReduce).bus_factor(1), 0.0);
    }
}
