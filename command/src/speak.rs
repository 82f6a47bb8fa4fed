//! What the command writes. Lines of several ranks come to one place, so each text is formatted
//! first and written at once.

use std::fmt::Display;
use std::io::Write;

use serde::Serialize;

/// The version of what `--json` prints. It grows when a field goes or changes its meaning, not when
/// one is added.
const FORMAT: u32 = 1;

/// What `--json` prints: an object with the versions of its format and of the command.
#[derive(Serialize)]
struct Document<'a, T> {
    format: u32,
    oxccl: &'static str,
    #[serde(flatten)]
    body: &'a T,
}

/// An object of `--json` on one line.
pub(crate) fn json(body: &impl Serialize) -> String {
    let document = Document { format: FORMAT, oxccl: env!("CARGO_PKG_VERSION"), body };
    // Structures with numbers, names and lists only: this cannot fail.
    serde_json::to_string(&document).unwrap_or_default()
}

/// Says why something failed, or cannot go on.
pub(crate) fn complain(what: impl Display) {
    note(format_args!("oxccl: {what}"));
}

/// Says something beside the results.
pub(crate) fn note(what: impl Display) {
    // Nobody is left to be told if this fails.
    let _ = std::io::stderr().write_all(format!("{what}\n").as_bytes());
}

/// Prints a line of the results, or several. If they cannot be written, as on a full disk or behind
/// `head`, going on is of no use: the process says so and ends, and with it the job of which it is
/// a rank.
pub fn result(text: impl Display) {
    let mut output = std::io::stdout().lock();
    let written = output.write_all(format!("{text}\n").as_bytes()).and_then(|()| output.flush());
    if let Err(error) = written {
        complain(format_args!("cannot write the results to standard output: {error}"));
        std::process::exit(1);
    }
}

/// [`result`] of what is formatted.
macro_rules! say {
    ($($argument:tt)*) => { $crate::speak::result(format_args!($($argument)*)) };
}
pub(crate) use say;
