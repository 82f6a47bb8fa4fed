//! Programs of this repository, run to their ends, and what they say.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Far more than any command here needs, also on a busy machine.
const DEADLINE: Duration = Duration::from_secs(600);

/// What a command ended with.
#[derive(Debug)]
pub(crate) struct Said {
    /// Its exit status.
    pub(crate) status: ExitStatus,
    /// Its standard output.
    pub(crate) out: String,
    /// Its standard error.
    pub(crate) err: String,
}

impl Said {
    /// The same, if it succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Said {
        assert!(self.status.success(), "{self:#?}");
        self
    }

    /// The same, if it failed with this exit status.
    #[track_caller]
    pub(crate) fn failed(self, status: i32) -> Said {
        assert_eq!(self.status.code(), Some(status), "{self:#?}");
        self
    }
}

/// A program, without what the environment of the tests says to it.
pub(crate) fn plain(program: &str) -> Command {
    let mut command = Command::new(program);
    let ours = |name: &str| name.starts_with("OXCCL_");
    for (name, _) in std::env::vars().filter(|(name, _)| ours(name)) {
        command.env_remove(name);
    }
    command
}

/// Starts a command whose output is kept.
pub(crate) fn start(command: &mut Command) -> Child {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the command starts")
}

/// Says that a test was skipped, past the harness, which would keep it to itself.
pub(crate) fn skip(name: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

/// Waits for a command's end, and kills it if there is none. What it says is taken where that is
/// piped.
pub(crate) fn finish(mut child: Child) -> Said {
    let out = child.stdout.take().map(collect);
    let err = child.stderr.take().map(collect);
    let text = |reader: Option<JoinHandle<String>>| {
        reader.map_or_else(String::new, |reader| reader.join().expect("reading does not panic"))
    };
    let deadline = Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().expect("it still runs");
            child.wait().expect("it was killed");
            panic!("the command hangs; it said {:?} {:?}", text(out), text(err));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Said { status, out: text(out), err: text(err) }
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
