//! How a command shows itself on standard error: a bar on a terminal, plain lines elsewhere, events for programs; and how
//! it is stopped.

mod events;
#[cfg(feature = "train")]
mod training;

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use retrievalguard_encoder::work::Observer;

#[cfg(feature = "train")]
pub(crate) use self::training::TrainingProgress;

/// How work shows itself
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Style {
    /// A bar on a terminal, a line now and then elsewhere
    Auto,
    /// One JSON object per line, notes and errors included
    Json,
    /// Nothing but notes and errors
    None,
}

/// The command that is running; a process has one.
struct Running {
    style: Style,
    command: &'static str,
    started: Instant,
}

static RUNNING: OnceLock<Running> = OnceLock::new();

/// Whether somebody asked the run to stop, and it heard.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Says which command runs, and how it shows itself from here on.
pub(crate) fn begin(style: Style, command: &'static str) {
    let _ = RUNNING.set(Running { style, command, started: Instant::now() });
    events::begun();
}

/// Says that the command ended well.
pub(crate) fn succeeded() {
    events::ended("succeeded", 0, &[], None);
}

/// Says why the command ended; `false` if that is left to words.
pub(crate) fn failed(status: u8, causes: &[String], hint: Option<&str>) -> bool {
    let outcome = if STOPPED.load(Ordering::Relaxed) { "stopped" } else { "failed" };
    events::ended(outcome, status, causes, hint)
}

fn style() -> Style {
    RUNNING.get().map_or(Style::Auto, |running| running.style)
}

/// Lines appear at most this often where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Says a line on standard error; if it cannot be written, the work continues.
pub(crate) fn tell(words: fmt::Arguments<'_>) {
    if events::noted(words) {
        return;
    }
    let _ = writeln!(io::stderr().lock(), "{words}");
}

/// Shows progress on standard error and stops the run on the first Ctrl-C; the second ends the process.
pub(crate) struct Progress {
    what: &'static str,
    bar: Option<ProgressBar>,
    lines: Mutex<Lines>,
    /// Queries with a certificate, and whether anybody counts them.
    certified: AtomicUsize,
    counted: AtomicBool,
    stop: Arc<AtomicBool>,
}

struct Lines {
    started: Instant,
    first: Option<usize>,
    last: Option<Instant>,
}

/// Set by the first Ctrl-C; the second ends the process.
fn stop_on_interrupt() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    {
        use signal_hook::consts::SIGINT;
        use signal_hook::flag;

        let registered = flag::register_conditional_default(SIGINT, Arc::clone(&stop))
            .and_then(|_| flag::register(SIGINT, Arc::clone(&stop)));
        if let Err(error) = registered {
            log::warn!("Ctrl-C will end this process at once: {error}");
        }
    }
    stop
}

/// A bar of this form, where there is a terminal to draw it on.
fn bar_on_terminal(template: &str) -> Option<ProgressBar> {
    (style() == Style::Auto && io::stderr().is_terminal()).then(|| {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template(template);
        bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    })
}

impl Progress {
    pub(crate) fn new(what: &'static str) -> Self {
        let stop = stop_on_interrupt();
        let bar = bar_on_terminal("{msg} [{bar:30}] {pos}/{len}  {per_sec}  ETA {eta}");
        if let Some(bar) = &bar {
            bar.set_message(what);
        }
        let lines = Mutex::new(Lines { started: Instant::now(), first: None, last: None });
        let (certified, counted) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { what, bar, lines, certified, counted, stop }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Observer for Progress {
    fn advanced(&self, done: usize, total: usize) {
        if let Some(bar) = &self.bar {
            if bar.length() != Some(total as u64) {
                bar.set_length(total as u64);
                bar.set_position(done as u64);
                bar.reset_eta();
            }
            bar.set_position(done as u64);
            return;
        }
        let every = match style() {
            Style::Auto => LINE_EVERY,
            Style::Json => events::EVERY,
            Style::None => return,
        };
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        // A run of several parts counts each of them from its beginning.
        let first = *lines.first.get_or_insert(done);
        let due = lines.last.is_none_or(|last| last.elapsed() >= every);
        if !due && done != total {
            return;
        }
        let elapsed = lines.started.elapsed().as_secs_f64();
        let rate = done.saturating_sub(first) as f64 / elapsed.max(1e-9);
        let left = (rate > 0.0).then(|| (total - done) as f64 / rate);
        lines.last = Some(Instant::now());
        let certified = self.counted.load(Ordering::Relaxed).then(|| self.certified.load(Ordering::Relaxed));
        let (phase, eta) = (self.what, left.map(events::thousandths));
        let step = events::Step { phase, done, total, rate: events::thousandths(rate), eta, certified };
        if !events::stepped(&step) {
            let left = left.map_or_else(String::new, |left| format!(", {left:.0} s left"));
            tell(format_args!("{} {done}/{total}, {rate:.2} per second{left}", self.what));
        }
    }

    fn judged(&self, certified: bool) {
        self.counted.store(true, Ordering::Relaxed);
        self.certified.fetch_add(usize::from(certified), Ordering::Relaxed);
    }

    fn stop(&self) -> bool {
        heard(&self.stop)
    }
}

/// Whether the run is asked to stop; its outcome will say so.
fn heard(stop: &AtomicBool) -> bool {
    let stop = stop.load(Ordering::Relaxed);
    STOPPED.fetch_or(stop, Ordering::Relaxed);
    stop
}
