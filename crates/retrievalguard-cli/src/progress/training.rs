//! How training shows itself.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use indicatif::ProgressBar;
use retrievalguard_train::trainer::{EvaluationReport, StepReport, TrainObserver};

use super::{LINE_EVERY, Style, bar_on_terminal, events, heard, stop_on_interrupt, style, tell};

/// A step of training as an event: what every step of work has, and what training says of it.
#[derive(serde::Serialize)]
struct Trained<'a> {
    phase: &'static str,
    done: u64,
    total: u64,
    rate: f64,
    eta: Option<f64>,
    certified: Option<usize>,
    #[serde(rename = "training")]
    report: &'a StepReport,
}

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
        let every = match style() {
            Style::Auto => LINE_EVERY,
            Style::Json => events::EVERY,
            Style::None => return,
        };
        let due = last.is_none_or(|last| last.elapsed() >= every) || step == steps;
        if self.bar.is_none() && due {
            let done = step.saturating_sub(first);
            let per_second = done as f64 / started.elapsed().as_secs_f64().max(1e-9);
            let left = (done > 0).then(|| (steps - step) as f64 / per_second);
            *last = Some(Instant::now());
            let (phase, certified) = ("training", None);
            let (steps_rate, eta) = (events::thousandths(per_second), left.map(events::thousandths));
            let facts = Trained { phase, done: step, total: steps, rate: steps_rate, eta, certified, report };
            if events::trained(&facts) {
                return;
            }
            let left = left.map_or_else(String::new, |left| format!(", {left:.0} s left"));
            tell(format_args!(
                "epoch {epoch}, step {step}/{steps}, loss {loss:.4}{}, {rate:.1} pictures per second{left}",
                further(", ")
            ));
        }
    }

    fn evaluated(&self, report: &EvaluationReport) {
        if !events::evaluated(report) {
            self.say(format_args!("after {} epochs: {report}", report.epochs));
        }
    }

    fn note(&self, words: &str) {
        self.say(format_args!("note: {words}"));
    }

    fn stop(&self) -> bool {
        heard(&self.stop)
    }
}
