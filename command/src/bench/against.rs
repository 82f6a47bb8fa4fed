//! Rows of another run to hold rows against: what nccl-tests has printed, or this command.

use std::path::{Path, PathBuf};

use super::report::{Row, digits};
use super::suite::Timed;
use crate::failure::Failure;

/// A log that was read.
#[derive(Clone, Debug)]
pub(super) struct Log {
    path: PathBuf,
    theirs: Vec<Theirs>,
    /// Times of theirs over ours.
    ratios: Vec<f64>,
}

/// What the log says of a size.
#[derive(Clone, Debug, PartialEq)]
struct Theirs {
    /// The collective, where the log says it.
    op: Option<String>,
    bytes: usize,
    data_type: String,
    redop: String,
    root: i64,
    /// Microseconds, out of place and in place.
    times_us: [Option<f64>; 2],
    wrong: [Option<u64>; 2],
}

impl Log {
    /// Reads a log.
    ///
    /// # Errors
    /// A file that cannot be read, or that has no row.
    pub(super) fn read(path: &Path) -> Result<Log, Failure> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
        let theirs = rows(&text);
        if theirs.is_empty() {
            return Err(Failure::Usage(format!(
                "{} has no row of nccl-tests' table: size, count, type, redop, root, time, …",
                path.display()
            )));
        }
        Ok(Log { path: path.into(), theirs, ratios: Vec::new() })
    }

    /// Says beside a row what the log has of the same call.
    pub(super) fn hold(&mut self, row: &Row) -> Row {
        let of_row = |theirs: &&Theirs| {
            theirs.bytes == row.bytes
                && theirs.op.as_ref().is_none_or(|op| op == row.op)
                && theirs.data_type == row.data_type
                && [row.redop, "none"].contains(&&*theirs.redop)
                && (theirs.root == row.root || theirs.root < 0)
        };
        let times = self.theirs.iter().find(of_row).map_or([None; 2], |theirs| theirs.times_us);
        let against_us = times[usize::from(row.in_place)];
        self.ratios.extend(against_us.map(|theirs| theirs / row.time_us));
        Row { against_us, ..row.clone() }
    }

    /// What all rows come to.
    pub(super) fn summary(&mut self) -> String {
        let path = self.path.display();
        self.ratios.sort_unstable_by(f64::total_cmp);
        let (rows, ahead) =
            (self.ratios.len(), self.ratios.iter().filter(|ratio| **ratio > 1.0).count());
        match self.ratios.get(rows / 2) {
            None => format!("# Against {path} : it has none of these rows"),
            Some(median) => format!(
                "# Against {path} : ahead in {ahead} of {rows} rows, its time is {} times ours (median)",
                digits(*median, 8)
            ),
        }
    }
}

/// What a table's line says of the log, behind the row.
pub(super) fn columns(out_of_place: &Row, in_place: Option<&Row>) -> String {
    pairs(out_of_place, in_place, |row| row.against_us.map(|theirs| (theirs, theirs / row.time_us)))
}

/// A time and a ratio of both rows.
pub(super) fn pairs(
    out_of_place: &Row,
    in_place: Option<&Row>,
    of_row: impl Fn(&Row) -> Option<(f64, f64)>,
) -> String {
    let column = |row: Option<&Row>| match row.and_then(&of_row) {
        None => format!("{:>8} {:>6}", "N/A", "N/A"),
        Some((time, ratio)) => format!("{:>8} {:>6}", digits(time, 8), digits(ratio, 6)),
    };
    format!("  {}  {}", column(Some(out_of_place)), column(in_place))
}

/// The rows of a log that is of one collective.
pub(super) fn timed(text: &str) -> Vec<Timed> {
    let of_row = |row: Theirs| {
        let Theirs { bytes, times_us, wrong, .. } = row;
        [false, true].into_iter().zip(times_us).zip(wrong).filter_map(
            move |((in_place, time), wrong)| Some(Timed { bytes, in_place, time_us: time?, wrong }),
        )
    };
    rows(text).into_iter().flat_map(of_row).collect()
}

/// The rows of a log. A line that is none is passed over, but for one that names the collective.
fn rows(text: &str) -> Vec<Theirs> {
    let (mut op, mut rows) = (None, Vec::new());
    for line in text.lines() {
        if let Some(remark) = line.trim().strip_prefix('#') {
            op = collective(remark).or(op);
        } else if let Some(row) = row(line, op.as_ref()) {
            rows.push(row);
        }
    }
    rows
}

/// The collective that a remark names: nccl-tests' programs, or this command's headings.
fn collective(remark: &str) -> Option<String> {
    let name = remark.trim().rsplit([' ', '/']).next()?;
    let is_all = remark.trim() == name;
    let name = match name.strip_suffix("_perf") {
        Some("alltoall") => "all_to_all",
        Some("sendrecv") => "send_recv",
        Some(name) => name,
        None if is_all => name,
        None => return None,
    };
    oxccl::Kind::ALL.iter().any(|kind| kind.name() == name).then(|| name.to_owned())
}

fn row(line: &str, op: Option<&String>) -> Option<Theirs> {
    let mut words = line.split_whitespace();
    let bytes = words.next()?.parse().ok()?;
    let _count: u64 = words.next()?.parse().ok()?;
    let data_type = words.next()?;
    let data_type = data_type.parse::<oxccl::DataType>().map_or(data_type, |known| known.name());
    let (data_type, redop) = (data_type.to_owned(), words.next()?.to_owned());
    let root = words.next()?.parse().ok()?;
    let words: Vec<&str> = words.collect();
    let time = |at: usize| words.get(at)?.parse::<f64>().ok().filter(|time| *time > 0.0);
    let times_us = [time(0), time(4)];
    times_us[0]?;
    let wrong = [3, 7].map(|at| words.get(at)?.parse().ok());
    Some(Theirs { op: op.cloned(), bytes, data_type, redop, root, times_us, wrong })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As nccl-tests prints, with figures of nobody's.
    const LOG: &str = "\
# nccl-tests version 2.17.6
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 8 maxBytes 1048576 step: 2(factor)
#
# Using devices
#  Rank  0 Group  0 Pid   1234 on       node device  0 [0000:00:00] a GPU
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    20.50    0.00    0.00      0    19.25    0.00    0.00      0
     1048576        524288  bfloat16     sum      -1    33.00   31.78   55.61      0    32.00   32.77   57.34    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 28.2
";

    #[test]
    fn logs_of_nccl_tests_are_read() {
        let rows = rows(LOG);
        let both = [
            ("float", 8, [Some(20.5), Some(19.25)], [Some(0), Some(0)]),
            ("bfloat16", 1 << 20, [Some(33.0), Some(32.0)], [Some(0), None]),
        ];
        assert_eq!(rows.len(), 2);
        for (row, (data_type, bytes, times_us, wrong)) in rows.iter().zip(both) {
            let op = Some("all_reduce".to_owned());
            let (data_type, redop) = (data_type.to_owned(), "sum".to_owned());
            let theirs = Theirs { op, bytes, data_type, redop, root: -1, times_us, wrong };
            assert_eq!(*row, theirs);
        }
    }

    #[test]
    fn collectives_are_known_by_program_and_heading() {
        for (remark, name) in [
            (" Collective test starting: alltoall_perf", Some("all_to_all")),
            (" ./build/sendrecv_perf", Some("send_recv")),
            (" reduce_scatter", Some("reduce_scatter")),
            (" Avg bus bandwidth", None),
            (" of a broadcast", None),
            (" hypercube_perf", None),
            ("", None),
        ] {
            assert_eq!(collective(remark).as_deref(), name, "{remark}");
        }
    }

    #[test]
    fn lines_that_are_no_rows_are_passed_over() {
        for line in
            ["", "8 2 float", "8 2 float sum -1", "8 2 float sum -1 N/A", "x 2 float sum -1 3"]
        {
            assert_eq!(row(line, None), None, "{line}");
        }
        let one = row("  64 16 float none -1 3.5 0.1 0.1 0 N/A N/A N/A N/A", None).unwrap();
        assert_eq!((one.bytes, one.times_us), (64, [Some(3.5), None]));
    }
}
