//! How training shows itself.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use indicatif::ProgressBar;
use retrievalguard_train::trainer::{EvaluationReport, StepReport, TrainObserver};

use super::{LINE_EVERY, bar_on_terminal, stop_on_interrupt, tell};

/// Shows how training goes and stops it on the first Ctrl-C.
pub(crate) struct TrainingProgress {
    bar: Option<ProgressBar>,
    last: Mutex<Option<Instant>>,
    first: Mutex<Option<(u64, Instant)>>,
    stop: Arc<AtomicBool>,
}

impl TrainingProgress {
    pub(crate) fn new() -> Self {
        let bar = bar_on_terminal("training [{bar:30}] {pos}/{len}  {msg}  ETA {eta}");
        Self { bar, last: Mutex::new(None), first: Mutex::new(None), stop: stop_on_interrupt() }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn say(&self, words: fmt::Arguments<'_>) {
        match &self.bar {
            Some(bar) => bar.suspend(|| tell(words)),
            None => tell(words),
        }
    }
}

impl TrainObserver for TrainingProgress {
    fn stepped(&self, report: &StepReport) {
        let StepReport { epoch, step, steps, loss, pictures_per_second: rate, .. } = *report;
        let named = |name: &str, value: Option<f64>, between: &str| {
            value.map_or_else(String::new, |value| format!("{between}{name} {value:.3}"))
        };
        let further = |between: &str| {
            named("beta", report.beta, between) + &named("distillation", report.distillation, between)
        };
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = &self.bar {
            if first.is_none() {
                bar.set_length(steps);
                bar.set_position(step);
                bar.reset_eta();
            }
            bar.set_position(step);
            bar.set_message(format!("epoch {epoch}  loss {loss:.4}{}  {rate:.1} pictures/s", further("  ")));
        }
        let (first, started) = *first.get_or_insert((step, Instant::now()));
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| last.elapsed() >= LINE_EVERY) || step == steps;
        if self.bar.is_none() && due {
            let left = if step > first {
                let each = started.elapsed().as_secs_f64() / (step - first) as f64;
                format!(", {:.0} s left", each * (steps - step) as f64)
            } else {
                String::new()
            };
            tell(format_args!(
                "epoch {epoch}, step {step}/{steps}, loss {loss:.4}{}, {rate:.1} pictures per second{left}",
                further(", ")
            ));
            *last = Some(Instant::now());
        }
    }

    fn evaluated(&self, report: &EvaluationReport) {
        self.say(format_args!("after {} epochs: {report}", report.epochs));
    }

    fn note(&self, words: &str) {
        self.say(format_args!("note: {words}"));
    }

    fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
