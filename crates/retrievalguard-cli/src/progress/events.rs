//! `--progress json`: one JSON object per line on standard error. Their keys are described in `docs/operation.md`.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

use super::{RUNNING, Running, Style};

/// Events of progress appear at most this often; the first and the last always do.
pub(super) const EVERY: Duration = Duration::from_millis(500);

/// What every line has, and what its kind adds.
#[derive(Serialize)]
struct Line<'a, T> {
    event: &'static str,
    command: &'a str,
    /// Seconds since the command began.
    elapsed: f64,
    #[serde(flatten)]
    facts: T,
}

#[derive(Serialize)]
struct Begun {
    version: &'static str,
}

#[derive(Serialize)]
struct Note<'a> {
    message: &'a str,
}

/// How far a part of the work is.
#[derive(Serialize)]
pub(super) struct Step {
    pub(super) phase: &'static str,
    pub(super) done: usize,
    pub(super) total: usize,
    /// Of `done`, per second since this process began with the part.
    pub(super) rate: f64,
    /// Seconds that are left at this rate.
    pub(super) eta: Option<f64>,
    /// Of `done`, how many queries have a certificate; null where there are none.
    pub(super) certified: Option<usize>,
}

#[derive(Serialize)]
struct Ended<'a> {
    outcome: &'static str,
    status: u8,
    /// What went wrong, and why, the nearest cause first.
    errors: &'a [String],
    hint: Option<&'a str>,
}

/// A number that is told, in digits that say something.
pub(super) fn thousandths(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// Writes a line if events are wanted; `false` if they are not.
fn emit(event: &'static str, facts: impl Serialize) -> bool {
    let Some(Running { style: Style::Json, command, started }) = RUNNING.get() else { return false };
    let elapsed = thousandths(started.elapsed().as_secs_f64());
    let mut line = serde_json::to_vec(&Line { event, command, elapsed, facts }).unwrap_or_default();
    line.push(b'\n');
    // In one piece, so that threads do not write into each other's lines; if it cannot be written, the work continues.
    let _ = io::stderr().lock().write_all(&line);
    true
}

pub(super) fn begun() {
    emit("begin", Begun { version: env!("CARGO_PKG_VERSION") });
}

pub(super) fn noted(words: fmt::Arguments<'_>) -> bool {
    emit("note", Note { message: &words.to_string() })
}

pub(super) fn stepped(step: &Step) -> bool {
    emit("progress", step)
}

#[cfg(feature = "train")]
pub(super) fn trained(facts: impl Serialize) -> bool {
    emit("progress", facts)
}

#[cfg(feature = "train")]
pub(super) fn evaluated(facts: impl Serialize) -> bool {
    emit("evaluation", facts)
}

pub(super) fn ended(outcome: &'static str, status: u8, errors: &[String], hint: Option<&str>) -> bool {
    emit("end", Ended { outcome, status, errors, hint })
}
