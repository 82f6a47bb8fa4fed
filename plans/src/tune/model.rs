//! The cost model: how long a call takes with each entry of the catalogue, out of the tuning
//! table's points.
//!
//! Between two points a call takes a latency and a time per byte, those of the line through them:
//! each range of sizes has a latency and a bandwidth of its own, since cores change caches and
//! protocols change steps from range to range. Below the first point a call takes as long as there
//! (latency is all of it), and beyond the last one each byte takes as long as in the last range.
//!
//! Only additions, multiplications and one division: equal tables give equal bits, and equal picks,
//! on every rank and machine.

use super::table::{Curve, Point, Table};
use super::{Offered, Question};
use crate::algorithms::{Algorithm, Encoding};
use std::cmp::Ordering;

/// What an entry would take for a question.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The encoding.
    pub encoding: Encoding,
    /// Time of a call in microseconds.
    pub time_us: f64,
}

/// What each of these entries would take, the fastest first; equally fast ones in the catalogue's
/// order.
///
/// # Errors
/// Says why the table cannot tell: for other ranks, or without this kind.
pub(super) fn predict(
    table: &Table,
    question: &Question,
    offered: &Offered,
) -> Result<Vec<Prediction>, String> {
    let (ranks, placement) = (question.collective.ranks, question.placement);
    if table.ranks != ranks || table.placement() != placement {
        return Err(format!(
            "the tuning table is for {} ranks with {} on a node, not for {ranks} with {}",
            table.ranks,
            table.placement().ranks_per_node(),
            placement.ranks_per_node()
        ));
    }
    let curves: Vec<&Curve> = table.curves_of(question.collective.kind, question.windows).collect();
    let last_bytes = curves.iter().map(|curve| curve.last_bytes()).max().unwrap_or(0);
    let mut predictions: Vec<Prediction> = offered
        .iter()
        .filter_map(|entry| {
            let curve = curves.iter().find(|curve| curve.is_of(entry))?;
            // One that ends earlier was given up there: it was far slower than others.
            let given_up = question.total_bytes > curve.last_bytes();
            (!given_up || curve.last_bytes() == last_bytes).then(|| Prediction {
                algorithm: entry.algorithm,
                encoding: entry.encoding,
                time_us: time_us(&curve.points, question.total_bytes),
            })
        })
        .collect();
    if predictions.is_empty() {
        return Err(format!("the tuning table has no such {}", question.collective.kind));
    }
    predictions
        .sort_by(|one, other| one.time_us.partial_cmp(&other.time_us).unwrap_or(Ordering::Equal));
    Ok(predictions)
}

/// The time of a call over so many bytes, in microseconds. Points are in order of their bytes, and
/// there is at least one.
fn time_us(points: &[Point], bytes: usize) -> f64 {
    let after = points.partition_point(|point| point.bytes < bytes);
    match (points, after) {
        ([], _) => f64::INFINITY,
        ([first, ..], 0) => first.time_us,
        ([only], _) => only.time_us * (bytes as f64 / only.bytes.max(1) as f64),
        (points, after) => {
            let end = after.min(points.len() - 1);
            let (low, high) = (points[end - 1], points[end]);
            let slope = (high.time_us - low.time_us) / (high.bytes - low.bytes) as f64;
            // Beyond the last point no call gets faster by being longer, whatever noise says.
            let slope = if end == after { slope } else { slope.max(0.0) };
            let (from, more) = match bytes > high.bytes {
                true => (high.time_us, bytes - high.bytes),
                false => (low.time_us, bytes - low.bytes),
            };
            from + more as f64 * slope
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(points: &[(usize, f64)]) -> Vec<Point> {
        points.iter().copied().map(Point::from).collect()
    }

    #[test]
    fn between_points_time_is_a_latency_and_a_bandwidth() {
        let points = points(&[(8, 1.0), (1000, 2.0), (2000, 4.0)]);
        for (bytes, time) in [(0, 1.0), (8, 1.0), (504, 1.5), (1000, 2.0), (1500, 3.0), (2000, 4.0)]
        {
            assert_eq!(time_us(&points, bytes), time, "{bytes} bytes");
        }
    }

    #[test]
    fn beyond_the_last_point_bytes_take_as_long_as_before_it() {
        let rising = points(&[(1000, 2.0), (2000, 4.0)]);
        assert_eq!(time_us(&rising, 3000), 6.0);
        let noisy = points(&[(1000, 2.0), (2000, 1.5)]);
        assert_eq!(time_us(&noisy, 1 << 30), 1.5);
        let single = points(&[(1000, 2.0)]);
        assert_eq!((time_us(&single, 10), time_us(&single, 3000)), (2.0, 6.0));
    }
}
