//! How much is logged.

use std::fmt;
use std::str::FromStr;

/// How much is logged: each level has those before it, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// What has failed, and who is at fault.
    Error,
    /// What is not as it should be, and goes on.
    Warn,
    /// Starts, settings, links, plans and why they were chosen, registrations, ends.
    Info,
    /// What else helps to find a fault.
    Debug,
    /// Every attempt.
    Trace,
}

const NAMES: [(&str, LogLevel); 5] = [
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

impl FromStr for LogLevel {
    type Err = ();

    fn from_str(text: &str) -> Result<LogLevel, ()> {
        NAMES.iter().find(|(name, _)| *name == text).map(|(_, level)| *level).ok_or(())
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, level)| level == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names() {
        for (name, level) in NAMES {
            assert_eq!((name.parse(), level.to_string()), (Ok(level), name.to_owned()));
        }
        assert_eq!("loud".parse::<LogLevel>(), Err(()));
    }
}
