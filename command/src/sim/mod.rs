//! `oxccl sim`: predicts how long every algorithm takes on a topology. Nothing is run; every figure
//! is predicted.

mod args;
mod candidate;
mod page;
mod report;
mod small;
mod sweep;

use std::fs;

use crate::failure::Failure;
pub(crate) use args::SimOptions;
use sweep::Sweep;

/// Predicts and prints.
///
/// # Errors
/// Options that do not fit together, a topology that is wrong, a file that cannot be written, or
/// nothing that can be simulated.
pub(crate) fn main(options: &SimOptions) -> Result<(), Failure> {
    let study = options.study()?;
    let sweep = Sweep::run(&study)?;
    let print = |text: String| -> Result<(), Failure> {
        use std::io::Write;
        // Whoever has closed the pipe (as `head` does) wants no more.
        writeln!(std::io::stdout(), "{}", text.trim_end()).or_else(|error| match error.kind() {
            std::io::ErrorKind::BrokenPipe => Ok(()),
            _ => Err(Failure::system("writing the table")(error)),
        })
    };
    if options.json {
        print(report::json(&study, &sweep))?;
    } else if options.csv {
        print(report::csv(&study, &sweep))?;
    } else {
        print(report::table(&study, &sweep, options.shown()))?;
    }
    if options.links {
        print(report::links(&study, &sweep))?;
    }
    if let Some(path) = &options.trace {
        let text = small::trace(&study)?;
        fs::write(path, text)
            .map_err(Failure::system(format!("writing the trace {}", path.display())))?;
    }
    if let Some(path) = &options.html {
        let text = page::page(&study, &sweep)?;
        fs::write(path, text)
            .map_err(Failure::system(format!("writing the page {}", path.display())))?;
    }
    Ok(())
}
