//! What the runtime tells of itself (`OXCCL_LOG`): a subscriber of `tracing` that writes lines to
//! standard error.
//!
//! A program that has a subscriber of its own gets the events there, and nothing is written here.

use crate::call::CheckedCall;
use crate::config::{Config, LogLevel};
use crate::error::Error;
use oxccl_plans::tune::Plan;
use std::fmt::{self, Write};
use std::sync::Once;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> LevelFilter {
        match level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        }
    }
}

/// Starts logging, once a process, if it is asked for and nobody else listens.
pub(crate) fn begin(config: &Config) -> Result<(), Error> {
    static BEGUN: Once = Once::new();
    let Some(level) = config.granted_log()? else { return Ok(()) };
    BEGUN.call_once(|| {
        let lines = tracing_subscriber::fmt::layer().event_format(Line);
        let lines = lines.with_writer(std::io::stderr);
        let own = Targets::new().with_target("oxccl", level);
        let subscriber = tracing_subscriber::registry().with(lines.with_filter(own));
        // Refused where the program has a subscriber: that one gets the events.
        let _ = tracing::subscriber::set_global_default(subscriber);
    });
    Ok(())
}

/// Tells of a new plan of a call, or of calls of a group.
pub(crate) fn planned(rank: usize, call: &CheckedCall, plan: &Plan, within: &'static str) {
    tracing::info!(
        rank,
        kind = %call.collective.kind,
        data_type = call.data_type.name(),
        count = call.common_count(),
        algorithm = %plan.algorithm,
        encoding = %plan.encoding,
        channels = plan.channels,
        tile_bytes = plan.tile_bytes,
        reason = plan.reason,
        "planned {within}"
    );
}

/// Settings, as one text.
pub(crate) fn listed(settings: &[(&'static str, String)]) -> String {
    let settings: Vec<_> =
        settings.iter().map(|(field, value)| format!("{field}={value}")).collect();
    if settings.is_empty() { "default".to_owned() } else { settings.join(" ") }
}

/// An event as a line: time, process, rank, level, message, and what else it has.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        SystemTime.format_time(&mut writer)?;
        write!(writer, " oxccl[{}]", std::process::id())?;
        if !fields.rank.is_empty() {
            write!(writer, " rank {}", fields.rank)?;
        }
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        writeln!(writer, " {level}: {}{}", fields.message, fields.others)
    }
}

/// An event's fields, as text without line ends.
#[derive(Default)]
struct Fields {
    rank: String,
    message: String,
    others: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}").replace('\n', " ");
        match field.name() {
            "rank" => self.rank = value,
            "message" => self.message = value,
            // Writing to a string cannot fail.
            name => drop(write!(self.others, " {name}={value}")),
        }
    }
}
