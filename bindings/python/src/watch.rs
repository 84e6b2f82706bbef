//! Long work beside a Python thread that stays responsive: it shows progress and hears Ctrl-C.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use pyo3::prelude::*;
use retrievalguard_encoder::pipeline::Observer;

/// How often signals and progress are looked at.
const INTERVAL: Duration = Duration::from_millis(50);

/// How far the work is, and whether it is to stop.
#[derive(Default)]
pub(crate) struct Watch {
    done: AtomicUsize,
    total: AtomicUsize,
    stop: AtomicBool,
    ended: AtomicBool,
}

impl Observer for Watch {
    fn advanced(&self, done: usize, total: usize) {
        self.total.store(total, Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
    }

    fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Wakes the waiting thread when the work ends, also by a panic.
struct Bell<'a>(&'a Watch, Thread);

impl Drop for Bell<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// Does `work` on another thread without the interpreter lock; `progress` is called with how much is done and the total.
///
/// After Ctrl-C, or an exception of `progress`, the work is told to stop and waited for; then the exception is raised.
pub(crate) fn watched<T: Send>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Watch) -> T + Send,
) -> PyResult<T> {
    let watch = Watch::default();
    let waiting = thread::current();
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let _bell = Bell(&watch, waiting);
            work(&watch)
        });
        let mut interrupted = None;
        loop {
            let ended = py.detach(|| {
                if !watch.ended.load(Ordering::Acquire) {
                    thread::park_timeout(INTERVAL);
                }
                watch.ended.load(Ordering::Acquire)
            });
            if interrupted.is_none() {
                let heard = py.check_signals().and_then(|()| tell(progress, &watch));
                if let Err(error) = heard {
                    watch.stop.store(true, Ordering::Relaxed);
                    interrupted = Some(error);
                }
            }
            if ended {
                break;
            }
        }
        let result = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
        interrupted.map_or(Ok(result), Err)
    })
}

fn tell(progress: Option<&Bound<'_, PyAny>>, watch: &Watch) -> PyResult<()> {
    let total = watch.total.load(Ordering::Relaxed);
    if let Some(progress) = progress.filter(|_| total > 0) {
        progress.call1((watch.done.load(Ordering::Relaxed), total))?;
    }
    Ok(())
}
