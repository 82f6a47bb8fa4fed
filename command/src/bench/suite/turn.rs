//! One contestant's turn: a process, and the rows that it prints.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;

use super::super::against;

/// How often it is looked whether a process has ended, and how long one may take that is told to.
const PAUSE: Duration = Duration::from_millis(10);
const GRACE: Duration = Duration::from_secs(10);

/// A row that a contestant has printed.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::bench) struct Timed {
    pub(in crate::bench) bytes: usize,
    pub(in crate::bench) in_place: bool,
    pub(in crate::bench) time_us: f64,
    /// None where results were not checked.
    pub(in crate::bench) wrong: Option<u64>,
}

/// A row of `oxccl bench --json`.
#[derive(Deserialize)]
struct Object {
    bytes: usize,
    in_place: bool,
    time_us: f64,
    wrong: Option<u64>,
}

/// Runs a program, and reads its rows.
///
/// # Errors
/// Why it did not end well, or that it printed no row.
pub(super) fn turn(command: &mut Command, limit: Duration) -> Result<Vec<Timed>, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    let (out, err) = (collected(child.stdout.take()), collected(child.stderr.take()));
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() >= deadline => {
                end(&mut child);
                return Err(format!("{program} did not end within {} s", limit.as_secs()));
            }
            Ok(None) => std::thread::sleep(PAUSE),
            Err(error) => return Err(format!("waiting for {program}: {error}")),
        }
    };
    // What the program has started may hold its output open for longer.
    let text = |from: Receiver<Vec<u8>>| {
        let bytes = from.recv_timeout(GRACE).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (out, err) = (text(out), text(err));
    let rows = rows(&out);
    let last = err.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    // One that has found wrong elements says how many in its rows.
    let found_wrong = rows.iter().any(|row| row.wrong.is_some_and(|wrong| wrong > 0));
    if !status.success() && !found_wrong {
        return Err(format!("{program} ended with {status}: {last}"));
    }
    match rows.is_empty() {
        true => Err(format!("{program} printed no row: {last}")),
        false => Ok(rows),
    }
}

/// All that comes out of a pipe.
fn collected(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error counts.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        let _ = sender.send(bytes);
    });
    receiver
}

/// Asks a process to end, and ends it.
fn end(child: &mut Child) {
    let deadline = Instant::now() + GRACE;
    // It may have ended meanwhile.
    let _ = i32::try_from(child.id()).map(|id| kill(Pid::from_raw(id), Signal::SIGTERM));
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(PAUSE);
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Rows of this command's objects, or else of nccl-tests' table.
fn rows(text: &str) -> Vec<Timed> {
    let objects = text.lines().filter(|line| line.starts_with('{'));
    let objects = objects.filter_map(|line| serde_json::from_str::<Object>(line).ok());
    let rows: Vec<Timed> = objects
        .map(|Object { bytes, in_place, time_us, wrong }| Timed { bytes, in_place, time_us, wrong })
        .collect();
    if rows.is_empty() { against::timed(text) } else { rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<Vec<Timed>, String> {
        turn(Command::new("sh").args(["-c", script]), limit)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn rows_are_those_of_either_form() {
        let row = |bytes, in_place, time_us, wrong| Timed { bytes, in_place, time_us, wrong };
        let object = r#"echo '{"bytes":8,"in_place":true,"time_us":1.5,"wrong":null,"more":1}'"#;
        assert_eq!(shell(object, LONG).unwrap(), [row(8, true, 1.5, None)]);
        let table = "echo '# x'; echo '8 2 float sum -1 20.5 0.0 0.0 0 19.25 0.0 0.0 3'; exit 1";
        let rows = [row(8, false, 20.5, Some(0)), row(8, true, 19.25, Some(3))];
        assert_eq!(shell(table, LONG).unwrap(), rows, "a program that found wrong elements");
    }

    #[test]
    fn what_goes_wrong_is_said() {
        let error = shell("echo so >&2; exit 3", LONG).unwrap_err();
        assert!(error.contains("sh ended with exit status: 3: so"), "{error}");
        let error = shell("echo nothing", LONG).unwrap_err();
        assert!(error.contains("sh printed no row"), "{error}");
        let error = shell("sleep 60", Duration::from_secs(1)).unwrap_err();
        assert!(error.contains("sh did not end within 1 s"), "{error}");
        let error = turn(&mut Command::new("/missing/program"), LONG).unwrap_err();
        assert!(error.contains("/missing/program: "), "{error}");
    }
}
