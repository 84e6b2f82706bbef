//! Work on several threads, each taking the next piece when it has done one.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use retrievalguard_encoder::pipeline::Observer;

use crate::WorkerError;

/// Does pieces `0..count`; `before` others were done already, and the observer hears of all.
///
/// The first failure ends it, and so does the observer.
pub(crate) fn in_turn(
    (before, count): (usize, usize),
    threads: NonZeroUsize,
    observer: &dyn Observer,
    work: impl Fn(usize) -> Result<(), WorkerError> + Sync,
) -> Result<(), WorkerError> {
    let total = before + count;
    let (next, done, failed) = (AtomicUsize::new(0), Mutex::new(before), AtomicBool::new(false));
    observer.advanced(before, total);
    let each = || -> Result<(), WorkerError> {
        loop {
            if failed.load(Ordering::Relaxed) || observer.stop() {
                return Ok(());
            }
            let piece = next.fetch_add(1, Ordering::Relaxed);
            if piece >= count {
                return Ok(());
            }
            work(piece).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            // Told under the lock, so that nobody hears of less after more.
            let mut done = done.lock().expect("no holder of this lock can panic");
            *done += 1;
            observer.advanced(*done, total);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.get().min(count)).map(|_| scope.spawn(each)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    let done = done.into_inner().expect("no holder of this lock can panic");
    if done < total { Err(WorkerError::Stopped { done, total }) } else { Ok(()) }
}
