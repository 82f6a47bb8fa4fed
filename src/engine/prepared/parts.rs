//! How a group's calls become parts. Pure: equal groups give equal parts on every rank.

use crate::call::Signature;
use oxccl_plans::collective::Kind;
use oxccl_plans::length::{Length, TooLong};

use oxccl_kernels::format::SEGMENT_ALIGN;
use oxccl_plans::verify::Span;

/// About so many bytes of virtual buffer are one part, on hosts and on GPUs. A part's buckets are
/// begun and done together, so parts should be small; each costs a synchronisation, so they should
/// not be tiny. On a GPU that is one of all blocks of all ranks: about 18 us on an H200 that ranks
/// share, of which halves of the channels hide some from each other (rooms.rs).
pub(super) const HOST_PART_BYTES: usize = 4 << 20;
pub(super) const GPU_PART_BYTES: usize = 16 << 20;

/// Calls of one class that are carried out as one, in one virtual buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// The calls, by their place in the group.
    pub(super) calls: Vec<usize>,
    /// Where each begins in the virtual buffer, in bytes.
    pub(super) starts: Vec<usize>,
    /// Length of the virtual buffer: of one rank's part of it where ranks have parts.
    pub(super) len_bytes: usize,
    /// That of all parts of its class together.
    pub(super) class_bytes: usize,
}

impl Part {
    /// Whether its buffer is a virtual one. A call alone in its part has its own.
    pub(super) fn is_virtual(&self) -> bool {
        self.calls.len() > 1
    }

    /// Where the buckets lie, by their place among these.
    pub(super) fn spans(&self, buckets: &[Signature]) -> Vec<Span> {
        let pairs = self.calls.iter().zip(&self.starts);
        let span = |(&bucket, &start): (&usize, &usize)| {
            let len_bytes = buckets[bucket].len_bytes();
            Span { bucket, start, len_bytes }
        };
        pairs.map(span).collect()
    }
}

/// Which calls share a part: those that are alike but for their count.
fn class(signature: &Signature) -> Signature {
    Signature { count: 0, ..*signature }
}

/// Divides a group into parts of about so many bytes. Calls of a class keep their order; parts are
/// ordered by their first call.
///
/// # Errors
/// [`TooLong`]: the buckets of one class are together, which they can be where calls read the same
/// memory.
pub(super) fn parts(buckets: &[Signature], part_bytes: usize) -> Result<Vec<Part>, TooLong> {
    let mut parts: Vec<Part> = Vec::new();
    // Each class with its parts, of which the last still takes calls.
    let mut classes: Vec<(Signature, Vec<usize>)> = Vec::new();
    for (call, bucket) in buckets.iter().enumerate() {
        let class = class(bucket);
        let joins = bucket.is_even() && bucket.kind != Kind::Barrier;
        let known = classes.iter().position(|(of, _)| joins && *of == class);
        let known = known.unwrap_or_else(|| {
            classes.push((class, Vec::new()));
            classes.len() - 1
        });
        let of_class = &mut classes[known].1;
        if of_class.last().is_none_or(|last| parts[*last].len_bytes >= part_bytes) {
            of_class.push(parts.len());
            parts.push(Part::default());
        }
        let last = of_class.last().map_or(0, |last| *last);
        let part = &mut parts[last];
        let start = Length::of_bytes(part.len_bytes)?.padded(SEGMENT_ALIGN)?;
        part.calls.push(call);
        part.starts.push(start.bytes());
        part.len_bytes = start.plus(bucket.len_bytes())?.bytes();
    }
    for part in parts.iter_mut().filter(|part| part.is_virtual()) {
        part.len_bytes = Length::of_bytes(part.len_bytes)?.padded(SEGMENT_ALIGN)?.bytes();
    }
    for (_, of_class) in classes {
        let class_bytes = Length::sum(of_class.iter().map(|at| parts[*at].len_bytes), 1)?.bytes();
        of_class.iter().for_each(|at| parts[*at].class_bytes = class_bytes);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Options;
    use oxccl_plans::collective::Order;
    use oxccl_plans::element::{DataType, OpKind};

    fn bucket(kind: Kind, count: u64) -> Signature {
        Signature {
            kind,
            data_type: DataType::F32,
            op: OpKind::Sum,
            order: Order::Any,
            in_place: false,
            windows: true,
            copies: false,
            root: 0,
            receiver: 0,
            options: Options::NONE,
            count,
            counts_hash: 0,
            factor_bits: 0,
        }
    }

    #[test]
    fn calls_of_a_class_lie_behind_one_another() {
        let group = [
            bucket(Kind::AllReduce, 17),
            bucket(Kind::AllGather, 3),
            bucket(Kind::AllReduce, 0),
            bucket(Kind::AllReduce, 16),
        ];
        let parts = parts(&group, HOST_PART_BYTES).unwrap();
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0].calls, [0, 2, 3]);
        assert_eq!(parts[0].starts, [0, 128, 128]);
        assert_eq!(parts[0].len_bytes, 192);
        assert!(parts[0].is_virtual());
        assert_eq!(parts[1].calls, [1]);
        assert_eq!(parts[1].len_bytes, 12);
        assert!(!parts[1].is_virtual());
    }

    #[test]
    fn large_classes_are_divided() {
        let group = [bucket(Kind::AllReduce, 600_000); 16];
        let calls = |part_bytes| -> Vec<usize> {
            let parts = parts(&group, part_bytes).unwrap();
            assert!(parts.iter().all(|part| part.class_bytes == 16 * 2_400_000));
            parts.iter().map(|part| part.calls.len()).collect()
        };
        assert_eq!(calls(HOST_PART_BYTES), [2; 8]);
        assert_eq!(calls(GPU_PART_BYTES), [7, 7, 2]);
    }
}
