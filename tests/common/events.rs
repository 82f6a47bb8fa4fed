//! What the runtime tells a subscriber of the program's own.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The events of this process, a line each: the message, and what else it has.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    /// Collects them from here on, in a process where nobody else does.
    pub fn collect() -> Events {
        let events = Events::default();
        tracing::subscriber::set_global_default(events.clone()).unwrap();
        events
    }

    /// What has come.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Asserts that there are so many events with this message, and that each has these parts.
    pub fn has(&self, count: usize, message: &str, parts: &[&str]) {
        let lines = self.lines();
        let found: Vec<_> = lines.iter().filter(|line| line.starts_with(message)).collect();
        assert_eq!(found.len(), count, "{message}: {lines:#?}");
        for line in found {
            let missing: Vec<_> = parts.iter().filter(|part| !line.contains(**part)).collect();
            assert!(missing.is_empty(), "{missing:?} are missing: {line}");
        }
    }
}

impl Subscriber for Events {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.lock().unwrap().push(format!("{}{}", line.message, line.others));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    others: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => write!(self.others, " {name}={value:?}").unwrap(),
        }
    }
}
