//! What every algorithm that fits a call would take, by the tuning table, and does take.

use std::time::Duration;

use oxccl::Pin;
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry};
use oxccl::plans::tune::{Plan, Question, Table, offered, predictions};
use serde::Serialize;

use crate::bench::{Case, Comms, Comparison, Turns};
use crate::failure::Failure;

/// How long and how often to measure.
const TURNS: Turns = Turns { rounds: 15, wanted: Duration::from_millis(2) };

/// The entries that fit a call, and their times.
#[derive(Default)]
pub(super) struct Times {
    rows: Vec<Row>,
    /// Why there are no predictions, if there are none.
    lacking: Option<String>,
}

/// What is known of an entry.
#[derive(Serialize)]
pub(super) struct Time {
    algorithm: Algorithm,
    encoding: Encoding,
    predicted_us: Option<f64>,
    measured_us: Option<f64>,
    chosen: bool,
}

struct Row {
    entry: &'static Entry,
    predicted_us: Option<f64>,
    measured_us: Option<f64>,
}

impl Times {
    /// Those that fit, whatever is pinned: the fastest predicted first, those without a prediction
    /// last.
    pub(super) fn predicted(table: Option<&Table>, question: &Question) -> Times {
        let question = Question { pin: Pin::default(), ..*question };
        let (predictions, lacking) = match table.map(|table| predictions(table, &question)) {
            Some(Ok(predictions)) => (predictions, None),
            Some(Err(lacking)) => (Vec::new(), Some(lacking)),
            None => (Vec::new(), Some("OXCCL_TUNING names no tuning table".to_owned())),
        };
        let row = |entry: &'static Entry| {
            let own = |p: &&oxccl::plans::tune::Prediction| {
                (p.algorithm, p.encoding) == (entry.algorithm, entry.encoding)
            };
            let predicted_us = predictions.iter().find(own).map(|p| p.time_us);
            Row { entry, predicted_us, measured_us: None }
        };
        let mut rows: Vec<Row> = offered(&question).into_iter().map(row).collect();
        let key = |row: &Row| row.predicted_us.unwrap_or(f64::INFINITY);
        rows.sort_by(|one, other| key(one).total_cmp(&key(other)));
        Times { rows, lacking }
    }

    /// Measures all of them. All ranks do so together.
    ///
    /// # Errors
    /// As [`Comparison::times`].
    pub(super) fn measure(
        &mut self,
        comms: &mut Comms,
        case: &Case,
        bytes: usize,
        question: &Question,
    ) -> Result<(), Failure> {
        let place = (case.kind, case.root);
        let mut comparison =
            Comparison::new(comms, place, bytes, !question.windows, question.order)?;
        let entries: Vec<&Entry> = self.rows.iter().map(|row| row.entry).collect();
        let times = comparison.times(bytes, &entries, &TURNS)?;
        for (row, taken) in self.rows.iter_mut().zip(times) {
            row.measured_us = Some(taken.median_us());
        }
        Ok(())
    }

    /// What is known of each.
    pub(super) fn all(&self, plan: &Plan) -> Vec<Time> {
        let time = |Row { entry, predicted_us, measured_us }: &Row| Time {
            algorithm: entry.algorithm,
            encoding: entry.encoding,
            predicted_us: *predicted_us,
            measured_us: *measured_us,
            chosen: (plan.algorithm, plan.encoding) == (entry.algorithm, entry.encoding),
        };
        self.rows.iter().map(time).collect()
    }

    /// Why there are no predictions, if there are none.
    pub(super) fn lacking(&self) -> Option<&str> {
        self.lacking.as_deref()
    }

    /// A line for each, or none where nothing is known.
    pub(super) fn lines(&self, plan: &Plan) -> Vec<String> {
        if self.rows.iter().all(|row| row.predicted_us.or(row.measured_us).is_none()) {
            return Vec::new();
        }
        let mut lines = Vec::new();
        if let Some(lacking) = &self.lacking {
            lines.push(format!("no predictions: {lacking}"));
        }
        lines.push(format!("{:<36}  {:>12}  {:>12}", "", "predicted us", "measured us"));
        let time = |time_us: Option<f64>| time_us.map_or("-".to_owned(), |us| format!("{us:.3}"));
        for Time { algorithm, encoding, predicted_us, measured_us, chosen } in self.all(plan) {
            lines.push(format!(
                "{:<36}  {:>12}  {:>12}{}",
                format!("{algorithm} / {encoding}"),
                time(predicted_us),
                time(measured_us),
                if chosen { "  <- choice" } else { "" }
            ));
        }
        lines
    }
}
