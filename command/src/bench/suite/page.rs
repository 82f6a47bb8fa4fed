//! A suite's page: figures and tables, with all that they need.

use std::fmt::Write as _;

use super::{Measured, Report, Row};
use crate::bench::digits;
use crate::figure::{self, Line, escaped};
use crate::options::Size;

const STYLE: &str = "body{font-family:sans-serif;margin:1rem auto;max-width:62rem;padding:0 1rem;\
color:#1f2328}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}dt{font-weight:600}\
dd{margin:0 0 .4rem 0;overflow-wrap:anywhere}.wide{overflow-x:auto}svg{max-width:100%;height:auto}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #d8dee4;white-space:nowrap}\
th:first-child,td:first-child{text-align:left}.bad{color:#b42318;font-weight:600}";

/// The page of what has been measured so far.
pub(super) fn page(report: &Report) -> String {
    let name = escaped(&report.suite);
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{name}</h1>\n<dl>\n"
    );
    let machine = &report.machine;
    for (term, what) in [
        ("Machine", format!("{}, {} cores, {}", machine.processor, machine.cores, machine.system)),
        ("Its cores and memory", machine.probe.clone()),
        ("Date", report.date.clone()),
        ("Commit", report.commit.clone().unwrap_or("no repository".to_owned())),
        ("Command", report.command.clone()),
        ("Version", format!("oxccl {}", env!("CARGO_PKG_VERSION"))),
        ("Rounds", format!("{}, in which contestants take turns", report.rounds)),
    ] {
        let _ = writeln!(text, "<dt>{term}</dt><dd>{}</dd>", escaped(&what));
    }
    text += "</dl>\n";
    for run in &report.runs {
        text += &section(report, run);
    }
    text + "</body>\n</html>\n"
}

fn section(report: &Report, run: &Measured) -> String {
    let title = run.title();
    let mut text = format!("<h2>{}</h2>\n", escaped(&title));
    for (in_place, how) in [(false, "out of place"), (true, "in place")] {
        let rows: Vec<&Row> = run.rows.iter().filter(|row| row.in_place == in_place).collect();
        if rows.is_empty() {
            continue;
        }
        let title = format!("{title}, {how}");
        let _ = write!(text, "<div class=\"wide\">\n{}</div>\n", drawn(report, &title, &rows));
        let _ = write!(text, "<div class=\"wide\">\n{}</div>\n", table(report, &rows));
    }
    for failed in &run.failures {
        let said =
            escaped(&format!("{}, round {}: {}", failed.contestant, failed.round, failed.why));
        let _ = writeln!(text, "<p class=\"bad\">{said}</p>");
    }
    text
}

/// Medians over sizes, a line a contestant.
fn drawn(report: &Report, title: &str, rows: &[&Row]) -> String {
    let line = |(number, contestant): (usize, &super::Contestant)| {
        let name = &contestant.name;
        let point = |row: &&Row| {
            let result = row.results.iter().find(|result| result.contestant == *name)?;
            Some((row.bytes as f64, result.median_us))
        };
        let points = rows.iter().filter_map(point).collect();
        Line { name: name.clone(), colour: figure::colour(number), dashes: "none", points }
    };
    let lines: Vec<Line> = report.contestants.iter().enumerate().map(line).collect();
    figure::svg(&format!("Median time of {title}"), &lines, ", median")
}

fn table(report: &Report, rows: &[&Row]) -> String {
    let mut text = "<table>\n<tr><th>size</th>".to_owned();
    for (number, contestant) in report.contestants.iter().enumerate() {
        let name = escaped(&contestant.name);
        let _ = write!(text, "<th>{name} (us)</th><th>least</th><th>GB/s</th>");
        if number > 0 {
            text += "<th>ratio</th>";
        }
    }
    text += "</tr>\n";
    for row in rows {
        let _ = write!(text, "<tr><td>{}</td>", Size(row.bytes));
        for (number, contestant) in report.contestants.iter().enumerate() {
            let result = row.results.iter().find(|result| result.contestant == contestant.name);
            let Some(result) = result else {
                text += if number > 0 {
                    "<td></td><td></td><td></td><td></td>"
                } else {
                    "<td></td><td></td><td></td>"
                };
                continue;
            };
            let wrong = result.wrong.filter(|wrong| *wrong > 0);
            let wrong = wrong.map_or(String::new(), |wrong| {
                format!(" <span class=\"bad\">{wrong} wrong</span>")
            });
            let [median, least, rate] = [result.median_us, result.least_us, result.busbw_gbps]
                .map(|value| digits(value, 8));
            let _ = write!(text, "<td>{median}{wrong}</td><td>{least}</td><td>{rate}</td>");
            if number > 0 {
                let ratio = result.ratio.map_or(String::new(), |ratio| digits(ratio, 6));
                let _ = write!(text, "<td>{ratio}</td>");
            }
        }
        text += "</tr>\n";
    }
    text + "</table>\n"
}
