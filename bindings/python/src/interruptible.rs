//! Long work in the background of a Python thread, which shows progress and reacts to Ctrl-C.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;

use pyo3::prelude::*;
use retrievalguard_encoder::work::Observer;

/// How often signals and progress are checked.
const INTERVAL: Duration = Duration::from_millis(50);

/// How far the work is, and whether it is to stop.
#[derive(Default)]
pub(crate) struct Background {
    done: AtomicUsize,
    total: AtomicUsize,
    stop: AtomicBool,
    ended: AtomicBool,
}

impl Observer for Background {
    fn advanced(&self, done: usize, total: usize) {
        self.total.store(total, Ordering::Relaxed);
        self.done.store(done, Ordering::Relaxed);
    }

    fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Wakes the waiting thread when the work ends, also by a panic.
struct WakeOnDrop<'a>(&'a Background, Thread);

impl Drop for WakeOnDrop<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        self.1.unpark();
    }
}

/// Does `work` on another thread without the interpreter lock; `progress` is called with how much is done and the total.
///
/// After Ctrl-C, or an exception of `progress`, the work is asked to stop and waited for; then the exception is raised.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    progress: Option<&Bound<'_, PyAny>>,
    work: impl FnOnce(&Background) -> T + Send,
) -> PyResult<T> {
    let background = Background::default();
    let waiting = thread::current();
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let _wake = WakeOnDrop(&background, waiting);
            work(&background)
        });
        let mut interrupted = None;
        loop {
            let ended = py.detach(|| {
                if !background.ended.load(Ordering::Acquire) {
                    thread::park_timeout(INTERVAL);
                }
                background.ended.load(Ordering::Acquire)
            });
            if interrupted.is_none() {
                let heard = py.check_signals().and_then(|()| report(progress, &background));
                if let Err(error) = heard {
                    background.stop.store(true, Ordering::Relaxed);
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

fn report(progress: Option<&Bound<'_, PyAny>>, background: &Background) -> PyResult<()> {
    let total = background.total.load(Ordering::Relaxed);
    if let Some(progress) = progress.filter(|_| total > 0) {
        progress.call1((background.done.load(Ordering::Relaxed), total))?;
    }
    Ok(())
}
