//! A link as it is wanted for tests and trials: slower than the network, and as unreliable as one
//! may be.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How links behave, beyond what the network does. Nothing of it by default.
///
/// As text: items separated by commas, in any order.
///
/// | item | means |
/// | --- | --- |
/// | `10Gbit` (or `Mbit`, `kbit`) | what all ranks of a node together send a second |
/// | `50us` (or `ns`, `ms`, `s`) | everything arrives so much later |
/// | `jitter=200us` | and by up to so much more, at random, so that messages overtake each other |
/// | `cut=100` | a link breaks after so many messages |
/// | `short=700` | no write is given more bytes than this |
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Conditions {
    /// Bytes a second that leave a node.
    pub bytes_per_s: Option<f64>,
    /// How much later everything arrives.
    pub latency: Duration,
    /// By how much more at most, at random.
    pub jitter: Duration,
    /// Messages after which a link breaks.
    pub cut_after: Option<u64>,
    /// The most bytes of one write, where the fabric writes.
    pub write_limit_bytes: Option<usize>,
}

impl Conditions {
    /// [`Conditions::write_limit_bytes`], as builds without emulation have it, too.
    pub fn write_limit_bytes(&self) -> Option<usize> {
        self.write_limit_bytes
    }

    /// Whether messages have to be held back.
    pub(super) fn slow(&self) -> bool {
        let timed = self.bytes_per_s.is_some() || !self.latency.is_zero();
        timed || !self.jitter.is_zero() || self.cut_after.is_some()
    }
}

/// A text that says no conditions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no bandwidth such as 10Gbit, no latency such as 50us, and none of jitter=, cut= and short="
)]
pub struct BadConditions(String);

impl FromStr for Conditions {
    type Err = BadConditions;

    fn from_str(text: &str) -> Result<Conditions, BadConditions> {
        let mut conditions = Conditions::default();
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let bad = || BadConditions(item.to_owned());
            match item.split_once('=') {
                Some(("jitter", value)) => conditions.jitter = duration(value).ok_or_else(bad)?,
                Some(("cut", value)) => {
                    conditions.cut_after = Some(value.parse().map_err(|_| bad())?);
                }
                Some(("short", value)) => {
                    let limit = value.parse().ok().filter(|limit| *limit > 0);
                    conditions.write_limit_bytes = Some(limit.ok_or_else(bad)?);
                }
                Some(_) => return Err(bad()),
                None => match (rate(item), duration(item)) {
                    (Some(rate), _) => conditions.bytes_per_s = Some(rate),
                    (None, Some(latency)) => conditions.latency = latency,
                    (None, None) => return Err(bad()),
                },
            }
        }
        Ok(conditions)
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut items = Vec::new();
        if let Some(rate) = self.bytes_per_s {
            items.push(format!("{}kbit", rate * 8e-3));
        }
        if !self.latency.is_zero() {
            items.push(format!("{}ns", self.latency.as_nanos()));
        }
        if !self.jitter.is_zero() {
            items.push(format!("jitter={}ns", self.jitter.as_nanos()));
        }
        items.extend(self.cut_after.map(|after| format!("cut={after}")));
        items.extend(self.write_limit_bytes.map(|limit| format!("short={limit}")));
        f.write_str(&items.join(","))
    }
}

fn rate(text: &str) -> Option<f64> {
    let units = [("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3)];
    scaled(text, &units).map(|bits| bits / 8.0)
}

fn duration(text: &str) -> Option<Duration> {
    let units = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    scaled(text, &units).map(Duration::from_secs_f64)
}

/// A positive number before one of these units.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    units.iter().find_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        (number > 0.0 && number < 1e9).then_some(number * factor)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_says_all_of_it() {
        let text = "10Gbit, 50us,jitter=0.2ms,cut=100,short=700";
        let conditions: Conditions = text.parse().unwrap();
        assert_eq!(conditions.bytes_per_s, Some(1.25e9));
        assert_eq!(conditions.latency, Duration::from_micros(50));
        assert_eq!(conditions.jitter, Duration::from_micros(200));
        assert_eq!((conditions.cut_after, conditions.write_limit_bytes), (Some(100), Some(700)));
        assert_eq!(conditions.to_string().parse(), Ok(conditions));
        assert_eq!("".parse(), Ok(Conditions::default()));
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["fast", "10", "-1Gbit", "0us", "jitter=", "cut=x", "short=0", "loss=1"] {
            let refused = text.parse::<Conditions>();
            assert_eq!(refused, Err(BadConditions(text.to_owned())));
        }
    }
}
