//! The buckets of a group, in device memory.

use oxccl::{DataType, Kind, OpKind};
use oxccl_command::shared::{Case, Failure, Form, GroupOptions, Shape};

use crate::contestant::{Copies, Placed, Task};

/// Buckets begin at multiples of so many bytes, as allocations do; so they do not lie together.
const ALIGN_BYTES: usize = 512;

/// What is grouped: all-reduces of floats.
pub(crate) struct Group {
    pub(crate) case: Case,
    /// One a bucket.
    pub(crate) shapes: Vec<Shape>,
    /// The file that they come from, by its name.
    pub(crate) source: Option<String>,
}

impl Group {
    /// As the options say.
    pub(crate) fn of(options: &GroupOptions, ranks: usize) -> Result<Group, Failure> {
        let (kind, data_type, op) = (Kind::AllReduce, DataType::F32, OpKind::Sum);
        let case = Case { kind, data_type, op, root: 0 };
        let len = data_type.len_bytes();
        if options.bucket_op != kind {
            let op = options.bucket_op;
            let error = format!("groups of {kind} are compared, not of {op}");
            return Err(Failure::Usage(error));
        }
        let shapes =
            options.counts(ranks)?.iter().map(|count| case.shape(ranks, count * len)).collect();
        let name = |path: &std::path::PathBuf| {
            path.file_name().map(|name| name.to_string_lossy().into_owned())
        };
        Ok(Group { case, shapes, source: options.buckets_from.as_ref().and_then(name) })
    }

    /// All buckets as one call.
    pub(crate) fn whole(&self, ranks: usize) -> Shape {
        self.case.shape(ranks, self.shapes.iter().map(|shape| self.bytes(*shape)).sum())
    }

    /// Length of a buffer that holds the buckets, and behind them as much once more, in one piece.
    pub(crate) fn len_bytes(&self, ranks: usize) -> usize {
        self.flat_at() + self.bytes(self.whole(ranks))
    }

    /// The task of carrying out all buckets so.
    pub(crate) fn task(
        &self,
        form: Form,
        ranks: usize,
        (input, output): (*mut u8, *mut u8),
    ) -> Task {
        let at = |offset: usize, shape: Shape| Placed {
            case: self.case,
            shape,
            input: input.wrapping_add(offset).cast_const(),
            output: output.wrapping_add(offset),
        };
        let buckets: Vec<Placed> =
            self.offsets().zip(&self.shapes).map(|(offset, shape)| at(offset, *shape)).collect();
        let flat = at(self.flat_at(), self.whole(ranks));
        let (calls, copies, checked) = match form {
            Form::Fused | Form::OneByOne => (buckets.clone(), None, buckets),
            Form::Ideal => (vec![flat], None, vec![flat]),
            Form::Flatten => (vec![flat], Some(self.copies(&buckets, &flat)), buckets),
        };
        Task { form: Some(form), calls, copies, checked }
    }

    fn copies(&self, buckets: &[Placed], flat: &Placed) -> Copies {
        let (mut copies, mut at) = (Copies::default(), 0);
        for bucket in buckets {
            let len = self.bytes(bucket.shape);
            copies.before.push((bucket.input, flat.input.wrapping_add(at).cast_mut(), len));
            copies.behind.push((flat.output.wrapping_add(at).cast_const(), bucket.output, len));
            at += len;
        }
        copies
    }

    fn bytes(&self, shape: Shape) -> usize {
        shape.bytes(self.case.data_type)
    }

    /// Where each bucket begins.
    fn offsets(&self) -> impl Iterator<Item = usize> {
        self.shapes.iter().scan(0, |next, shape| {
            let at = *next;
            *next += self.bytes(*shape).next_multiple_of(ALIGN_BYTES) + ALIGN_BYTES;
            Some(at)
        })
    }

    /// Where the piece behind the buckets begins.
    fn flat_at(&self) -> usize {
        let ends = self.offsets().zip(&self.shapes).map(|(at, shape)| at + self.bytes(*shape));
        ends.max().unwrap_or(0).next_multiple_of(ALIGN_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_do_not_overlap_and_copies_cover_them() {
        let case =
            Case { kind: Kind::AllReduce, data_type: DataType::F32, op: OpKind::Sum, root: 0 };
        let shapes = [4, 4096, 20].map(|bytes| case.shape(2, bytes)).to_vec();
        let group = Group { case, shapes, source: None };
        let base = std::ptr::null_mut::<u8>();
        let task = group.task(Form::Flatten, 2, (base, base));
        let copies = task.copies.unwrap();
        let mut end = 0;
        for ((from, to, len), (back, out, _)) in copies.before.iter().zip(&copies.behind) {
            assert!(*from as usize >= end, "buckets lie apart");
            end = *from as usize + len;
            assert_eq!((*to as usize, *from as usize), (*back as usize, *out as usize));
        }
        let flat = task.calls[0];
        assert!(flat.input as usize >= end);
        assert_eq!(group.len_bytes(2), flat.input as usize + 4120);
        assert_eq!(copies.before.iter().map(|(_, _, len)| len).sum::<usize>(), 4120);
    }
}
