//! What is printed: one table of all entries, comma-separated values, or one JSON object a row. All
//! of it says that it is predicted.

use serde::Serialize;

use oxccl::plans::schedule::SLOTS;
use oxccl::plans::simulate::{Band, Class, NcclWay, Whose};

use super::args::Study;
use super::sweep::{Point, Sweep};
use crate::bench::{CSV_COLUMNS, Row, csv_line, digits};
use crate::options::Size;
use crate::speak;

/// A row of bench, and what makes it a prediction.
#[derive(Serialize)]
struct Predicted<'a> {
    #[serde(flatten)]
    row: &'a Row,
    predicted: bool,
    topology: &'a str,
    in_network: bool,
    /// The busiest link.
    link: Option<&'a str>,
    /// The part of the time in which it carries data.
    utilisation: Option<f64>,
    /// Bytes that a channel handles per chunk and round.
    tile_bytes: usize,
    /// Whether the runtime would choose it.
    chosen: bool,
    /// Four fifths of what has been measured of the class are within so many percent.
    error_percent: Option<u32>,
    error_class: Option<Class>,
}

/// How results are printed: what comes before them, rows as they come or a size's as soon as they
/// are there, and what comes behind them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// A table for people.
    Table(Shown),
    /// Comma-separated values.
    Csv,
    /// An object a row.
    Json,
}

impl Form {
    /// Before anything of a world is simulated: what is, and what cannot be.
    pub(super) fn head(self, study: &Study, sweep: &Sweep, is_first: bool) -> String {
        match self {
            Form::Table(_) if is_first => table_head(study, sweep),
            Form::Table(_) => format!("\n{}", table_head(study, sweep)),
            Form::Csv if !is_first => String::new(),
            Form::Csv => {
                let columns = "predicted,topology,tile_bytes,error_percent";
                format!("{},{columns}\n", CSV_COLUMNS.join(","))
            }
            Form::Json => String::new(),
        }
    }

    /// The row of a candidate at a size, where rows are printed as they come: those of tables are
    /// sorted first.
    pub(super) fn row(
        self,
        study: &Study,
        sweep: &Sweep,
        (at, size): (usize, usize),
    ) -> Option<String> {
        let point = sweep.point(at, size)?;
        match self {
            Form::Table(_) => None,
            Form::Csv => Some(csv_row(study, point, None)),
            Form::Json => {
                Some(json(study, point, study.choice(study.sizes[size]) == Some(at), None))
            }
        }
    }

    /// What follows the rows of a size: of a table, all of it.
    pub(super) fn end_of_size(self, study: &Study, sweep: &Sweep, size: usize) -> String {
        let found = sweep.nccl.get(size).and_then(Option::as_ref);
        match (self, found) {
            (Form::Table(shown), _) => table_rows(study, sweep, size, shown),
            (Form::Csv, Some((way, point))) => csv_row(study, point, Some(*way)),
            (Form::Json, Some((way, point))) => json(study, point, false, Some(*way)),
            (_, None) => String::new(),
        }
    }

    /// All that was predicted at a size.
    fn rows(self, study: &Study, sweep: &Sweep, size: usize) -> String {
        let row = |at| self.row(study, sweep, (at, size));
        let rows: String = (0..study.candidates.len()).filter_map(row).collect();
        rows + &self.end_of_size(study, sweep, size)
    }

    /// When all has been simulated, or all that will be: how. `said` of those that are left out
    /// have been named.
    pub(super) fn tail(self, sweep: &Sweep, said: usize, interrupted: bool) -> String {
        let Form::Table(shown) = self else { return String::new() };
        let mut text = String::new();
        let predicted = sweep.columns.iter().flatten().count();
        if let Shown::Best(most) = shown
            && most < predicted
        {
            text +=
                &format!("# the best {most} of {predicted} at each size; --all shows the others\n");
        }
        text += &left_out(&sweep.left_out[said..]);
        if interrupted {
            return text + "# interrupted: this is not all\n";
        }
        text + &wrapped(&format!("simulated {} in {:.1} s", sweep.statement(), sweep.seconds))
    }
}

/// All comma-separated values of a world.
pub(super) fn csv(study: &Study, sweep: &Sweep, is_first: bool) -> String {
    let rows = (0..study.sizes.len()).map(|size| Form::Csv.rows(study, sweep, size));
    Form::Csv.head(study, sweep, is_first) + &rows.collect::<String>()
}

fn csv_row(study: &Study, point: &Point, way: Option<NcclWay>) -> String {
    let line = csv_line(&point.row);
    let mut values: Vec<&str> = line.split(',').collect();
    let [algorithm, protocol] = way.map(nccl_names).unwrap_or_default();
    for (column, value) in [("algorithm", &algorithm), ("encoding", &protocol)] {
        if let (true, Some(at)) =
            (way.is_some(), CSV_COLUMNS.iter().position(|name| *name == column))
        {
            values[at] = value;
        }
    }
    let error = point.band.map_or("N/A".to_owned(), |band| band.percent.to_string());
    let (row, name) = (values.join(","), &study.topology.name);
    format!("{row},true,{name},{},{error}\n", point.tile_bytes)
}

/// What stands for algorithm and encoding.
fn nccl_names(way: NcclWay) -> [String; 2] {
    [format!("nccl_{}", way.algorithm.name()), way.protocol.name().to_owned()]
}

fn json(study: &Study, point: &Point, chosen: bool, way: Option<NcclWay>) -> String {
    let predicted = Predicted {
        row: &point.row,
        predicted: true,
        topology: &study.topology.name,
        in_network: study.in_network,
        link: point.links.first().map(|link| link.name.as_str()),
        utilisation: point.links.first().map(|link| link.utilisation),
        tile_bytes: point.tile_bytes,
        chosen,
        error_percent: point.band.map(|band| band.percent),
        error_class: point.band.map(|band| band.class),
    };
    let Some(way) = way else { return speak::json(&predicted) + "\n" };
    let mut named = serde_json::to_value(&predicted).unwrap_or_default();
    let [algorithm, protocol] = nccl_names(way);
    named["algorithm"] = algorithm.into();
    named["encoding"] = protocol.into();
    speak::json(&named) + "\n"
}

fn table_head(study: &Study, sweep: &Sweep) -> String {
    // What stands above channels is longer than they are.
    let narrow = width(study) - 1;
    header(study)
        + &left_out(&sweep.left_out)
        + &format!(
            "#\n#{:>6} {:<narrow$} {:>8} {:>8} {:>3} {:>6} {:>6} {:>7} busiest\n\
             #{:>6} {:<narrow$} {:>8} {:>8} {:>3} {:>6} {:>6}\n",
            "size",
            "  algorithm",
            "channels",
            "time",
            "±",
            "algbw",
            "busbw",
            "slower",
            "(B)",
            "",
            "x tile",
            "(us)",
            "(%)",
            "(GB/s)",
            "(GB/s)"
        )
}

/// Of the column with names.
fn width(study: &Study) -> usize {
    let named = study.candidates.iter().map(|candidate| candidate.name().chars().count());
    // The longest of NCCL's.
    let nccl = if study.nccl { NCCL.len() + " nvls_tree/simple".len() } else { 0 };
    2 + named.max().unwrap_or(0).max("algorithm".len()).max(nccl)
}

/// The best at a size, with what else there is to know of them.
fn table_rows(study: &Study, sweep: &Sweep, size: usize, shown: Shown) -> String {
    let (width, chosen) = (width(study), study.choice(study.sizes[size]));
    let best = sweep.best(size).and_then(|at| Some(sweep.point(at, size)?.row.time_us));
    let mut text = String::new();
    for (place, at) in ranking(study, sweep, size, shown).into_iter().enumerate() {
        let Some(point) = sweep.point(at, size) else { continue };
        let bytes = Size(study.sizes[size]).to_string();
        let bytes = if place == 0 { bytes } else { String::new() };
        let mark = if chosen == Some(at) { '*' } else { ' ' };
        let name = format!("{mark} {}", study.candidates[at].name());
        text += &format!(" {bytes:>6} {name:<width$} {}\n", figures(point, best));
    }
    if let Some((way, point)) = sweep.nccl.get(size).and_then(Option::as_ref) {
        let name = format!("  {NCCL} {way}");
        text += &format!(" {:>6} {name:<width$} {}\n", "", figures(point, best));
    }
    text
}

/// What a row of NCCL begins with.
pub(super) const NCCL: &str = "NCCL";

/// How many are shown at each size.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shown {
    /// All.
    All,
    /// So many of the fastest.
    Best(usize),
}

/// Those that are shown at a size, the fastest first; a custom schedule always.
fn ranking(study: &Study, sweep: &Sweep, size: usize, shown: Shown) -> Vec<usize> {
    let mut ranking = sweep.ranking(size);
    if let Shown::Best(most) = shown {
        let own = ranking.iter().copied().skip(most).find(|at| study.candidates[*at].is_custom());
        ranking.truncate(most);
        ranking.extend(own);
    }
    ranking
}

/// Those that are shown at any size, the fastest of the smallest first.
pub(super) fn shown_ever(study: &Study, sweep: &Sweep, shown: Shown) -> Vec<usize> {
    let sizes = 0..study.sizes.len();
    let mut all: Vec<usize> = Vec::new();
    for at in sizes.flat_map(|size| ranking(study, sweep, size, shown)) {
        if !all.contains(&at) {
            all.push(at);
        }
    }
    all
}

fn figures(point: &Point, best: Option<f64>) -> String {
    let time = point.row.time_us;
    let slower = best.filter(|best| *best > 0.0 && time != *best).map_or(String::new(), |best| {
        let percent = (time / best - 1.0) * 100.0;
        if percent < 1000.0 { format!("{percent:.1} %") } else { format!("{:.0} x", time / best) }
    });
    let figures = format!(
        "{:>7} {:>8} {:>3} {:>6} {:>6} {slower:>7} {}",
        format!("{}x{}", point.row.channels, Size(point.tile_bytes)),
        digits(time, 8),
        point.band.map_or("?".to_owned(), |band| band.percent.to_string()),
        digits(point.row.algbw_gbps, 6),
        digits(point.row.busbw_gbps, 6),
        point.links.first().map_or(String::new(), |link| {
            format!("{} {:.0} %", kind_of(&link.name), link.utilisation * 100.0)
        }),
    );
    figures.trim_end().to_owned()
}

/// A link's kind: where nodes are alike, which of its kind it is says little.
fn kind_of(name: &str) -> &str {
    match name.rsplit_once(' ') {
        Some((_, kind)) => kind,
        None => name.rsplit_once('>').map_or(name, |(_, to)| to),
    }
}

/// Those that cannot be simulated here, together where the reason is the same.
fn left_out(left_out: &[(String, String)]) -> String {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, why) in left_out {
        match reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, names)) => names.push(name),
            None => reasons.push((why, vec![name])),
        }
    }
    let line = |(why, names): &(&str, Vec<&str>)| {
        wrapped(&format!("left out {}: {why}", names.join(", ")))
    };
    reasons.iter().map(line).collect()
}

/// A remark in lines that fit a terminal.
fn wrapped(text: &str) -> String {
    const WIDTH: usize = 98;
    let (mut lines, mut line) = (String::new(), "#".to_owned());
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH && line.len() > 3 {
            lines += &format!("{line}\n");
            line = "#  ".to_owned();
        }
        line += &format!(" {word}");
    }
    format!("{lines}{line}\n")
}

/// What each link carries at the largest size of the first candidate.
pub(super) fn links(study: &Study, sweep: &Sweep) -> String {
    let last = sweep.columns.iter().flatten().filter_map(|points| points.last()).next();
    let (Some(point), Some(bytes)) = (last, study.sizes.last()) else { return String::new() };
    let mut text = format!(
        "#\n# links at {}, PREDICTED, of the simulated ranks\n# {:>16}  {:>11}  link\n",
        Size(*bytes),
        "bytes",
        "utilisation"
    );
    for link in &point.links {
        text +=
            &format!("  {:>16}  {:>9.1} %  {}\n", link.bytes, link.utilisation * 100.0, link.name);
    }
    text
}

/// What the column of errors says.
fn errors(study: &Study) -> String {
    let classes = [Whose::Own, Whose::Nccl].into_iter().filter(|whose| match whose {
        Whose::Own => true,
        Whose::Nccl => study.nccl,
    });
    let bytes = || study.sizes.iter().map(|bytes| *bytes as u64);
    let mut bands: Vec<Band> = classes
        .flat_map(|whose| bytes().map(move |bytes| (whose, bytes)))
        .filter_map(|(whose, bytes)| Class::of(whose, &study.network, bytes)?.band())
        .collect();
    bands.sort_by_key(|band| band.class as usize);
    bands.dedup();
    if bands.is_empty() {
        return "±: ? has not been measured".to_owned();
    }
    let said = |band: &Band| format!("{} % of {}", band.percent, band.rows);
    let bands: Vec<String> = bands.iter().map(said).collect();
    format!(
        "±: four fifths of published measurements are within ({}); ? has not been measured",
        bands.join(", ")
    )
}

fn header(study: &Study) -> String {
    let network = &study.network;
    let switches = if study.in_network { ", switches reduce" } else { "" };
    let limits = study.limits();
    let about = format!(
        "topology {}, {} ranks on {} node(s), order {}{switches}",
        study.topology.name,
        study.ranks(),
        network.nodes(),
        study.order,
    );
    let mut slots = match limits.slots.slots {
        usual if usual == SLOTS.slots => String::new(),
        slots => format!(" {slots} slots,"),
    };
    if let Some(parts) = limits.pipeline_parts {
        slots += &format!(" pipelines of {parts} parts,");
    }
    let limits = format!(
        "up to {} channels,{slots} tiles of up to {}, in LL and LL128 {}; * is the runtime's choice",
        limits.max_channels,
        Size(limits.plain_slot_bytes(network.nodes(), study.ranks())),
        Size(limits.ll_slot_bytes),
    );
    let chance = study.chance.in_words().map_or(String::new(), |said| wrapped(&said));
    format!(
        "# oxccl {} sim: PREDICTED times of {}, nothing was run\n{}{}{chance}{}",
        env!("CARGO_PKG_VERSION"),
        study.case.kind,
        wrapped(&about),
        wrapped(&limits),
        wrapped(&errors(study)),
    )
}
