//! Results, computed again from all ranks' inputs.
//!
//! Inputs are functions of (seed, rank, index), so every rank knows all of them; they repeat after
//! [`PERIOD`] elements, so that knowing them takes little time and memory. Integers, minima
//! and maxima, copies, and everything under a promised order are compared bit by bit; under
//! `Order::Any` a float may differ from the exact result by what roundings in any order allow.

use oxccl::{Kind, OpKind, Order};

use super::case::{Case, Shape};
use super::sample::{Accumulator, Sample};

/// Elements after which an input repeats: a prime, so that what was put somewhere else, by parts of
/// a length that programs come to, is found.
pub const PERIOD: usize = 65_521;

/// What a call was made with.
#[derive(Clone, Copy, Debug)]
pub struct Inputs {
    /// What was called.
    pub case: Case,
    /// Its lengths.
    pub shape: Shape,
    /// Number of ranks.
    pub ranks: usize,
    /// The promised order.
    pub order: Order,
    /// Another one for every call.
    pub seed: u64,
}

/// What an element of an output must be.
enum Origin {
    /// An element of a rank's input.
    Copy { rank: usize, index: usize },
    /// The reduction of all ranks' elements.
    Reduced { index: usize },
}

/// What a rank's output must be, worked out once for many calls with the same inputs: as far as it
/// does not repeat.
pub enum Expected<T: Sample> {
    /// It has none.
    Nothing,
    /// These bits.
    Exactly(Vec<T>),
    /// Values, and how far roundings may lead away from each.
    Near(Vec<(f64, f64)>),
}

impl<T: Sample> Expected<T> {
    /// How many elements are wrong of a part of the output, which begins with element `first`, a
    /// multiple of [`PERIOD`].
    pub fn wrong(&self, first: usize, part: &[T]) -> u64 {
        match self {
            Expected::Nothing => 0,
            Expected::Exactly(all) => unlike(all, first, part, |is, found| is.same(found)),
            Expected::Near(all) => unlike(all, first, part, |is, found| is_near(found, is)),
        }
    }
}

/// How many elements of a part are not as they are to be; what is not longer than the period
/// repeats.
fn unlike<E: Copy, T: Copy>(
    all: &[E],
    first: usize,
    part: &[T],
    alike: impl Fn(E, T) -> bool,
) -> u64 {
    let from = if all.len() > PERIOD { &all[first..] } else { all };
    let pairs = from.iter().cycle().zip(part);
    pairs.filter(|(expected, found)| !alike(**expected, **found)).count() as u64
}

fn is_near<T: Sample>(found: T, (expected, tolerance): (f64, f64)) -> bool {
    (found.widen().approximate() - expected).abs() <= tolerance
}

impl Inputs {
    /// What a rank's output must be.
    pub fn expected<T: Sample>(&self, rank: usize) -> Expected<T> {
        if !self.case.has_output(rank) || self.shape.output == 0 {
            return Expected::Nothing;
        }
        let outputs = 0..match self.case.kind {
            // They change at the end of each rank's part.
            Kind::AllGather | Kind::Gather | Kind::AllToAll => self.shape.output,
            _ => self.shape.output.min(PERIOD),
        };
        let reduced = |place| match self.origin(rank, place) {
            Origin::Reduced { index } => index,
            Origin::Copy { .. } => unreachable!("all elements of an output are of one origin"),
        };
        let exact = |place| match self.origin(rank, place) {
            Origin::Copy { rank, index } => self.value(rank, index),
            Origin::Reduced { index } => self.reduction(index),
        };
        match self.origin(rank, 0) {
            Origin::Reduced { .. } if !self.is_exact::<T>() => {
                Expected::Near(outputs.map(|place| self.estimate::<T>(reduced(place))).collect())
            }
            _ => Expected::Exactly(outputs.map(exact).collect()),
        }
    }

    /// An element of a rank's input.
    pub fn value<T: Sample>(&self, rank: usize, index: usize) -> T {
        let stream = self.seed.wrapping_add((rank as u64).wrapping_mul(0xd1b5_4a32_d192_ed03));
        let place = ((index % PERIOD) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        T::draw(mix(stream.wrapping_add(place)), self.case.op)
    }

    /// How many elements of a rank's output are wrong.
    pub fn wrong<T: Sample>(&self, rank: usize, output: &[T]) -> u64 {
        if !self.case.has_output(rank) {
            return 0;
        }
        let wrong = |(index, found): &(usize, &T)| match self.origin(rank, *index) {
            Origin::Copy { rank, index } => !self.value::<T>(rank, index).same(**found),
            Origin::Reduced { index } => !self.is_reduction(index, **found),
        };
        output.iter().enumerate().filter(wrong).count() as u64
    }

    /// How many elements of a rank's input are not what they were.
    pub fn changed<T: Sample>(&self, rank: usize, input: &[T]) -> u64 {
        if !self.case.has_input(rank) {
            return 0;
        }
        let changed = |(i, found): &(usize, &T)| !self.value::<T>(rank, *i).same(**found);
        input.iter().enumerate().filter(changed).count() as u64
    }

    fn origin(&self, rank: usize, index: usize) -> Origin {
        let count = self.shape.count;
        match self.case.kind {
            Kind::AllReduce | Kind::Reduce => Origin::Reduced { index },
            Kind::ReduceScatter => Origin::Reduced { index: rank * count + index },
            Kind::AllGather | Kind::Gather => {
                Origin::Copy { rank: index / count, index: index % count }
            }
            Kind::AllToAll => {
                Origin::Copy { rank: index / count, index: rank * count + index % count }
            }
            Kind::Broadcast => Origin::Copy { rank: self.case.root, index },
            Kind::Scatter => Origin::Copy { rank: self.case.root, index: rank * count + index },
            Kind::SendRecv => Origin::Copy { rank: (rank + self.ranks - 1) % self.ranks, index },
            Kind::Barrier => unreachable!("a barrier has no output"),
        }
    }

    fn is_reduction<T: Sample>(&self, index: usize, found: T) -> bool {
        match self.is_exact::<T>() {
            true => self.reduction::<T>(index).same(found),
            false => is_near(found, self.estimate::<T>(index)),
        }
    }

    /// Whether a reduction has one right result, whatever is reduced first.
    fn is_exact<T: Sample>(&self) -> bool {
        let ordered = T::ROUNDOFF == 0.0 || matches!(self.case.op, OpKind::Min | OpKind::Max);
        ordered || self.order != Order::Any
    }

    /// The reduction in the promised order (by rank, where none is), rounded once.
    fn reduction<T: Sample>(&self, index: usize) -> T {
        let all = match self.order {
            Order::Tree => self.tree::<T>(0, self.ranks, index),
            Order::Any | Order::Rank => (1..self.ranks)
                .fold(self.term::<T>(0, index), |sum, rank| {
                    sum.fold(self.term::<T>(rank, index), self.case.op)
                }),
        };
        if self.case.op != OpKind::Avg {
            return T::narrow(all);
        }
        // Integers average the sum as it wraps in their own width.
        let sum = if T::ROUNDOFF == 0.0 { T::narrow(all).widen() } else { all };
        T::narrow(sum.divided_by(self.ranks))
    }

    /// The aligned binary tree over ranks `first` to `first + count - 1`.
    fn tree<T: Sample>(&self, first: usize, count: usize, index: usize) -> T::Accumulator {
        if count == 1 {
            return self.term::<T>(first, index);
        }
        let left = (count.next_power_of_two() / 2).max(1);
        self.tree::<T>(first, left, index)
            .fold(self.tree::<T>(first + left, count - left, index), self.case.op)
    }

    /// What a rank contributes.
    fn term<T: Sample>(&self, rank: usize, index: usize) -> T::Accumulator {
        let value = self.value::<T>(rank, index).widen();
        if self.case.op == OpKind::PreMulSum { value.times(T::FACTOR.widen()) } else { value }
    }

    /// The exact result, nearly, and how far roundings in any order can lead away from it: each of
    /// at most 2 n + 2 roundings by half a unit in the last place of the largest partial result.
    fn estimate<T: Sample>(&self, index: usize) -> (f64, f64) {
        let terms = (0..self.ranks).map(|rank| self.term::<T>(rank, index).approximate());
        let roundings = (2 * self.ranks + 2) as f64;
        let (value, size) = match self.case.op {
            OpKind::Prod => {
                let product: f64 = terms.product();
                (product, product.abs() * (1.0 + roundings * T::ROUNDOFF))
            }
            op => {
                let (sum, size) =
                    terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
                let count = if op == OpKind::Avg { self.ranks as f64 } else { 1.0 };
                (sum / count, size / count)
            }
        };
        (value, roundings * (size * T::ROUNDOFF + T::SMALLEST))
    }
}

/// SplitMix64's output function.
fn mix(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl::{DataType, bf16};

    fn inputs(kind: Kind, op: OpKind, order: Order, ranks: usize) -> Inputs {
        let case = Case { kind, data_type: DataType::F32, op, root: 1 };
        Inputs { case, shape: case.shape(ranks, 4 * 60), ranks, order, seed: 7 }
    }

    fn sums<T: Sample>(inputs: &Inputs) -> Vec<T> {
        (0..inputs.shape.output).map(|index| inputs.reduction::<T>(index)).collect()
    }

    #[test]
    fn right_results_are_accepted_and_each_wrong_element_counted() {
        for op in OpKind::ALL.into_iter().filter(|op| op.applies_to(DataType::F32)) {
            for order in [Order::Any, Order::Rank, Order::Tree] {
                let inputs = inputs(Kind::AllReduce, op, order, 5);
                let mut output = sums::<f32>(&inputs);
                assert_eq!(inputs.wrong(0, &output), 0, "{op} {order}");
                output[3] = 17.0;
                output[59] = f32::POISON;
                assert_eq!(inputs.wrong(0, &output), 2, "{op} {order}");
            }
        }
    }

    #[test]
    fn what_is_worked_out_once_finds_the_same() {
        for kind in [Kind::AllReduce, Kind::AllGather, Kind::AllToAll, Kind::Broadcast] {
            for order in [Order::Any, Order::Rank] {
                let inputs = inputs(kind, OpKind::Sum, order, 3);
                let expected = inputs.expected::<f32>(2);
                let mut output: Vec<f32> = (0..inputs.shape.output)
                    .map(|place| match inputs.origin(2, place) {
                        Origin::Copy { rank, index } => inputs.value(rank, index),
                        Origin::Reduced { index } => inputs.reduction(index),
                    })
                    .collect();
                assert_eq!(expected.wrong(0, &output), 0, "{kind} {order}");
                output[7] = f32::POISON;
                let wrong = (expected.wrong(0, &output), inputs.wrong(2, &output));
                assert_eq!(wrong, (1, 1), "{kind}");
            }
        }
        let rooted = inputs(Kind::Gather, OpKind::Sum, Order::Any, 3);
        let wrong = rooted.expected::<f32>(0).wrong(0, &[f32::POISON; 60]);
        assert_eq!(wrong, 0, "no root, no output");
    }

    #[test]
    fn long_outputs_are_looked_at_in_parts() {
        for kind in [Kind::AllReduce, Kind::ReduceScatter, Kind::AllGather, Kind::Broadcast] {
            let case = Case { kind, data_type: DataType::I32, op: OpKind::Sum, root: 0 };
            let shape = case.shape(2, 4 * 5 * PERIOD);
            let inputs = Inputs { case, shape, ranks: 2, order: Order::Any, seed: 3 };
            let expected = inputs.expected::<i32>(1);
            let mut output: Vec<i32> = (0..shape.output)
                .map(|place| match inputs.origin(1, place) {
                    Origin::Copy { rank, index } => inputs.value(rank, index),
                    Origin::Reduced { index } => inputs.reduction(index),
                })
                .collect();
            let wrong = |output: &[i32]| -> u64 {
                let parts = output.chunks(PERIOD).enumerate();
                parts.map(|(number, part)| expected.wrong(number * PERIOD, part)).sum()
            };
            assert_eq!(wrong(&output), 0, "{kind}");
            // A part too far, as long as parts are.
            let last = shape.output - 1024;
            output.copy_within(last - 4096..last - 4096 + 1024, last);
            assert!(wrong(&output) > 1000, "{kind}");
        }
    }

    #[test]
    fn one_bit_counts_under_a_promised_order_and_not_without() {
        let promised = inputs(Kind::AllReduce, OpKind::Sum, Order::Tree, 3);
        let mut output = sums::<f32>(&promised);
        output[0] = f32::from_bits(output[0].to_bits() ^ 1);
        assert_eq!(promised.wrong(0, &output), 1);
        let free = Inputs { order: Order::Any, ..promised };
        assert_eq!(free.wrong(0, &output), 0);
    }

    #[test]
    fn a_missing_contribution_is_wrong_also_in_low_precision() {
        let inputs = inputs(Kind::AllReduce, OpKind::Sum, Order::Any, 4);
        let without = |index| {
            let sum = (0..3).map(|r| inputs.value::<bf16>(r, index).to_f32()).sum::<f32>();
            bf16::from_f32(sum)
        };
        let output: Vec<bf16> = (0..60).map(without).collect();
        assert!(inputs.wrong(0, &output) > 50);
    }

    #[test]
    fn trees_are_aligned() {
        let inputs = inputs(Kind::AllReduce, OpKind::Sum, Order::Tree, 3);
        let x = |rank| inputs.value::<f32>(rank, 4);
        assert_eq!(inputs.reduction::<f32>(4), (x(0) + x(1)) + x(2));
        let inputs = Inputs { ranks: 7, ..inputs };
        let x = |rank| inputs.value::<f32>(rank, 4);
        let expected = ((x(0) + x(1)) + (x(2) + x(3))) + ((x(4) + x(5)) + x(6));
        assert_eq!(inputs.reduction::<f32>(4), expected);
    }

    #[test]
    fn integers_average_what_has_wrapped() {
        let mut inputs = inputs(Kind::AllReduce, OpKind::Avg, Order::Any, 4);
        inputs.case.data_type = DataType::I8;
        let wrapped = |i| (0..4).fold(0i8, |sum, r| sum.wrapping_add(inputs.value::<i8>(r, i)));
        assert!((0..60).all(|i| inputs.reduction::<i8>(i) == wrapped(i) / 4));
    }

    #[test]
    fn moved_elements_come_from_their_place() {
        let all_to_all = inputs(Kind::AllToAll, OpKind::Sum, Order::Any, 3);
        let count = all_to_all.shape.count;
        let output: Vec<f32> =
            (0..3 * count).map(|i| all_to_all.value(i / count, 2 * count + i % count)).collect();
        assert_eq!(all_to_all.wrong(2, &output), 0);
        assert_eq!(all_to_all.wrong(1, &output), 3 * count as u64);
        let input: Vec<f32> = (0..3 * count).map(|i| all_to_all.value(0, i)).collect();
        assert_eq!(
            (all_to_all.changed(0, &input), all_to_all.changed(1, &input)),
            (0, 3 * count as u64)
        );
    }
}
