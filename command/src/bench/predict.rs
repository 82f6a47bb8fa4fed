//! Predictions to hold rows against: what `oxccl sim` says of the same calls, by the same plans, on
//! a topology.

use oxccl::plans::algorithms::{Pipeline, find};
use oxccl::plans::schedule::Layout;
use oxccl::plans::simulate::{Band, Class, Options, Subject, Whose, simulate};
use oxccl::plans::topology::{Network, Placement};
use oxccl::plans::tune::Plan;
use oxccl::{Collective, Config, CustomSchedule, Kind, Order};
use std::sync::Arc;

use super::case::Case;
use super::report::{Row, digits};
use crate::failure::Failure;
use crate::topo;

/// Where nothing has been measured of their class, rows are off that take more than so many times
/// what is predicted, or less than its inverse.
const OFF: f64 = 2.0;

/// A topology with the ranks that are measured on its devices.
#[derive(Clone, Debug)]
pub(super) struct Model {
    name: String,
    network: Network,
    order: Order,
    custom: Option<Arc<CustomSchedule>>,
    pipeline: Pipeline,
    /// Measured times over predicted ones.
    ratios: Vec<Ratio>,
    /// How many rows cannot be predicted, and why the first cannot.
    without: Option<(usize, String)>,
}

/// A row's measured time over the predicted one.
#[derive(Clone, Debug)]
struct Ratio {
    row: String,
    ratio: f64,
    /// How far predictions of its class are off.
    band: Option<Band>,
}

impl Ratio {
    fn is_off(&self) -> bool {
        let most = self.band.map_or(OFF, |band| 1.0 + f64::from(band.percent) / 100.0);
        !(1.0 / most..=most).contains(&self.ratio)
    }
}

impl Model {
    /// # Errors
    /// A topology that is not known or wrong, or has too few devices.
    pub(super) fn new(
        name: &str,
        ranks: usize,
        per_node: Option<usize>,
        config: &Config,
    ) -> Result<Model, Failure> {
        let (_, network) = topo::with_ranks(name, None, Some(ranks), per_node)?;
        let (name, ratios) = (name.to_owned(), Vec::new());
        let (order, custom) = (config.order, config.schedule.clone());
        let pipeline = config.limits().pipeline();
        Ok(Model { name, network, order, custom, pipeline, ratios, without: None })
    }

    /// Says beside a row, of a call by this plan, what is predicted.
    pub(super) fn hold(&mut self, row: &Row, case: &Case, plan: &Plan) -> Row {
        match self.predicted_ns(row, case, plan) {
            Ok(ns) => {
                let in_place = if row.in_place { " in place" } else { "" };
                let name = format!("{} {} B{in_place}", row.op, row.bytes);
                let class = Class::of(Whose::Own, &self.network, row.bytes as u64);
                let (ratio, band) = (row.time_us * 1e3 / ns, class.and_then(Class::band));
                self.ratios.push(Ratio { row: name, ratio, band });
                Row { predicted_us: Some(super::rounded(ns / 1e3)), ..row.clone() }
            }
            Err(why) => {
                self.without.get_or_insert((0, why)).0 += 1;
                row.clone()
            }
        }
    }

    fn predicted_ns(&self, row: &Row, case: &Case, plan: &Plan) -> Result<f64, String> {
        if plan.cma {
            return Err("the system's reads of private memory are not modelled".to_owned());
        }
        let ranks = row.ranks;
        if case.kind == Kind::SendRecv && ranks > 2 {
            return Err("each rank sends to the next, and one message is simulated".to_owned());
        }
        let collective = match case.kind {
            Kind::SendRecv => Collective::send_recv(ranks, 0, 1 % ranks),
            kind if kind.is_rooted() => Collective::rooted(kind, ranks, case.root),
            kind => Collective::new(kind, ranks),
        };
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let placement = Placement::filled(ranks, self.network.per_node());
        let order = if case.kind.reduces() { self.order } else { Order::Any };
        let subject = match (find(case.kind, plan.algorithm, plan.encoding), &self.custom) {
            (Some(entry), _) => Subject::entry(entry, collective, placement, order, self.pipeline),
            (None, Some(custom)) => Subject::schedule(custom.schedule()),
            (None, None) => return Err(format!("{} is in no catalogue", plan.algorithm)),
        };
        let subject = subject.map_err(|error| text(&error))?;
        let element_bytes = case.data_type.len_bytes();
        let ((input, output), align) = (subject.chunking(), (64 / element_bytes).max(1));
        let layout = Layout::even(&collective, input, output, row.count, align);
        let layout = layout.map_err(|error| text(&error))?;
        let options = Options {
            element_bytes,
            channels: plan.channels,
            tile_bytes: plan.tile_bytes,
            in_network: self.network.switched() == Some(self.network.ranks()),
            ..Options::default()
        };
        let prediction = simulate(&subject, &layout, &self.network, &options);
        Ok(prediction.map_err(|error| text(&error))?.time_ns)
    }

    /// What all rows come to, and those that are off.
    pub(super) fn summary(&mut self) -> String {
        self.ratios.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
        let name = &self.name;
        let mut text = match self.ratios.get(self.ratios.len() / 2) {
            None => format!("# Predicted on {name} : none of these rows"),
            Some(median) => format!(
                "# Predicted on {name} : {} rows, measured times are {} times that (median)",
                self.ratios.len(),
                digits(median.ratio, 8)
            ),
        };
        let off = self.ratios.iter().rev().filter(|ratio| ratio.is_off());
        let off: Vec<String> =
            off.map(|of| format!("{} ({})", of.row, digits(of.ratio, 8))).collect();
        if !off.is_empty() {
            let limit = match self.ratios.iter().find_map(|ratio| ratio.band) {
                None => format!("{OFF} times"),
                Some(_) => "four fifths of their class".to_owned(),
            };
            text += &format!("\n# Off by more than {limit} : {}", off.join(", "));
        }
        if let Some((rows, why)) = &self.without {
            text += &format!("\n# Not predicted : {rows} rows ({why})");
        }
        text
    }
}

/// What a table's line says of the prediction, behind the row.
pub(super) fn columns(out_of_place: &Row, in_place: Option<&Row>) -> String {
    super::against::pairs(out_of_place, in_place, |row| {
        row.predicted_us.map(|predicted| (predicted, row.time_us / predicted))
    })
}
