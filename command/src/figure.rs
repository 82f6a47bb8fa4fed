//! Figures as SVG that needs nothing else: time over size, a line a series.

use std::fmt::Write as _;

use crate::bench::digits;
use crate::options::Size;

/// Of the whole at least, of the plot inside of it, and of a line of the legend.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 540.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 660.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 480.0;
const LINE: f64 = 18.0;
/// Values that span more than so many times the least are on a logarithmic axis.
const WIDE: f64 = 20.0;
/// Distinguishable also by those who do not see all colours (Okabe and Ito 2008).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4d4d4d"];

/// A series: its points, as bytes and microseconds.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) colour: &'static str,
    pub(crate) dashes: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// The colour of the series of this number.
pub(crate) fn colour(number: usize) -> &'static str {
    COLOURS[number % COLOURS.len()]
}

/// A figure with these lines. `how` is said of each point behind its time.
pub(crate) fn svg(title: &str, lines: &[Line], how: &str) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let x = Axis::of(all().map(|(bytes, _)| *bytes), LEFT, RIGHT);
    let y = Axis::of(all().map(|(_, time_us)| *time_us), BOTTOM, TOP);
    // A long legend makes it higher.
    let height = HEIGHT.max(TOP + (lines.len() + 1) as f64 * LINE);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    text += &label(LEFT, 26.0, "start", title);
    for (at, name) in x.marks(|bytes| Size(bytes as usize).to_string(), 2.0) {
        text += &rule((at, TOP), (at, BOTTOM));
        text += &label(at, BOTTOM + 18.0, "middle", &name);
    }
    for (at, name) in y.marks(duration, 10.0) {
        text += &rule((LEFT, at), (RIGHT, at));
        text += &label(LEFT - 8.0, at + 4.0, "end", &name);
    }
    text += &label((LEFT + RIGHT) / 2.0, BOTTOM + 42.0, "middle", "size of a call (bytes)");
    for (number, line) in lines.iter().enumerate() {
        text += &line.drawn(&x, &y, how);
        text += &line.legend(TOP + 10.0 + number as f64 * LINE);
    }
    text + "</svg>\n"
}

impl Line {
    fn drawn(&self, x: &Axis, y: &Axis, how: &str) -> String {
        let Line { name, colour, dashes, points } = self;
        let places: Vec<(f64, f64)> =
            points.iter().map(|(bytes, time_us)| (x.place(*bytes), y.place(*time_us))).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let mut text = format!(
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" \
             stroke-dasharray=\"{dashes}\" points=\"{}\"/>\n",
            path.join(" ")
        );
        for ((x, y), (bytes, time_us)) in places.iter().zip(points) {
            let (name, bytes) = (escaped(name), Size(*bytes as usize));
            let _ = writeln!(
                text,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\" fill=\"{colour}\">\
                 <title>{name}, {bytes}: {time_us} us{how}</title></circle>"
            );
        }
        text
    }

    fn legend(&self, y: f64) -> String {
        let Line { name, colour, dashes, .. } = self;
        let (from, to) = (RIGHT + 20.0, RIGHT + 50.0);
        format!(
            "<line x1=\"{from}\" x2=\"{to}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" \
             stroke-width=\"1.8\" stroke-dasharray=\"{dashes}\"/>\n"
        ) + &label(to + 8.0, y + 4.0, "start", name)
    }
}

/// How values lie between two ends.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    is_log: bool,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Axis {
        let (low, high) = values
            .fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        let is_log = low > 0.0 && high / low > WIDE;
        // A linear axis begins at 0; one value alone stands at the end.
        Axis { low: if is_log { low } else { 0.0 }, high: high.max(1e-9), from, to, is_log }
    }

    fn place(&self, value: f64) -> f64 {
        let part = match self.is_log {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => value / self.high,
        };
        self.from + (self.to - self.from) * part
    }

    /// Round values, in powers of a base or steps of them, and where they are.
    fn marks(&self, name: impl Fn(f64) -> String, base: f64) -> Vec<(f64, String)> {
        let values: Vec<f64> = if self.is_log {
            let power = |value: f64| value.ln() / base.ln();
            let (first, last) = (power(self.low).ceil(), (power(self.high) + 1e-9).floor());
            let step = ((last - first) / 10.0).ceil().max(1.0);
            let count = ((last - first) / step).max(0.0) as usize;
            (0..=count).map(|at| base.powf(first + at as f64 * step)).collect()
        } else {
            let unit = base.powf(((self.high / 5.0).ln() / base.ln()).floor());
            let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * unit);
            let step = steps.into_iter().find(|step| self.high / step <= 6.0).unwrap_or(unit);
            (0..=(self.high / step) as usize).map(|at| at as f64 * step).collect()
        };
        values.into_iter().map(|value| (self.place(value), name(value))).collect()
    }
}

pub(crate) fn duration(time_us: f64) -> String {
    let short =
        |value: f64| digits(value, 7).trim_end_matches('0').trim_end_matches('.').to_owned();
    match time_us {
        time_us if time_us <= 0.0 => "0".to_owned(),
        time_us if time_us >= 1e6 => format!("{} s", short(time_us / 1e6)),
        time_us if time_us >= 1e3 => format!("{} ms", short(time_us / 1e3)),
        time_us => format!("{} us", short(time_us)),
    }
}

fn rule((x1, y1): (f64, f64), (x2, y2): (f64, f64)) -> String {
    format!(
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#d8dee4\"/>\n"
    )
}

fn label(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>\n", escaped(text))
}

/// As text of XML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_marks() {
        let marks = |axis: &Axis, base: f64| -> Vec<String> {
            axis.marks(|value| format!("{value:.0}"), base)
                .into_iter()
                .map(|(_, name)| name)
                .collect()
        };
        let wide = Axis::of([3.0, 2000.0].into_iter(), 0.0, 100.0);
        assert_eq!(marks(&wide, 10.0), ["10", "100", "1000"]);
        assert_eq!((wide.place(3.0), wide.place(2000.0)), (0.0, 100.0));
        let narrow = Axis::of([30.0, 90.0].into_iter(), 0.0, 90.0);
        assert_eq!(marks(&narrow, 10.0), ["0", "20", "40", "60", "80"]);
        assert_eq!(narrow.place(45.0), 45.0);
        let one = Axis::of([7.0].into_iter(), 0.0, 70.0);
        assert_eq!(one.place(7.0), 70.0);
    }

    #[test]
    fn times_have_their_unit() {
        let all = [0.0, 0.5, 20.0, 1000.0, 250_000.0, 2e6].map(duration);
        assert_eq!(all, ["0", "0.5 us", "20 us", "1 ms", "250 ms", "2 s"]);
    }
}
