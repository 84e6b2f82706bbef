//! How a long run shows itself: a bar on a terminal, plain lines elsewhere; and how it is stopped.

#[cfg(feature = "train")]
mod training;

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use retrievalguard_encoder::work::Observer;

#[cfg(feature = "train")]
pub(crate) use self::training::TrainingProgress;

/// Lines appear at most this often where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Says a line on standard error; if it cannot be written, the work continues.
pub(crate) fn tell(words: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{words}");
}

/// Shows progress on standard error and stops the run on the first Ctrl-C; the second ends the process.
pub(crate) struct Progress {
    what: &'static str,
    bar: Option<ProgressBar>,
    lines: Mutex<Lines>,
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
    io::stderr().is_terminal().then(|| {
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
        Self { what, bar, lines, stop }
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
        let mut lines = self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let first = *lines.first.get_or_insert(done);
        let due = lines.last.is_none_or(|last| last.elapsed() >= LINE_EVERY);
        if due || done == total {
            let elapsed = lines.started.elapsed().as_secs_f64();
            let rate = (done - first) as f64 / elapsed.max(1e-9);
            let left = if rate > 0.0 {
                format!(", {:.0} s left", (total - done) as f64 / rate)
            } else {
                String::new()
            };
            tell(format_args!("{} {done}/{total}, {rate:.2} per second{left}", self.what));
            lines.last = Some(Instant::now());
        }
    }

    fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
