//! The next batches, made while the current one is being learnt from.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

/// Results of a function of the step, in order, made ahead by threads of their own.
///
/// Thread `i` of `n` makes the steps `i, i + n, i + 2n, …`, and results are taken from the threads in turn: whatever
/// their speed, the order is that of the steps. After an error there is nothing more. Dropping it ends the threads as
/// soon as each is done with its current step.
#[derive(Debug)]
pub(crate) struct Prefetch<T, E> {
    lanes: Vec<Lane<T, E>>,
    /// The lane whose turn it is.
    turn: usize,
    left: u64,
}

/// One thread and what it has made.
#[derive(Debug)]
struct Lane<T, E> {
    results: Receiver<Result<T, E>>,
    thread: JoinHandle<()>,
}

impl<T: Send + 'static, E: Send + 'static> Prefetch<T, E> {
    /// Begins to call `make` for every step.
    ///
    /// About `depth` results wait to be taken, and each thread makes one more.
    pub(crate) fn new<F>(steps: Range<u64>, threads: NonZeroUsize, depth: usize, make: F) -> Self
    where
        F: Fn(u64) -> Result<T, E> + Send + Sync + 'static,
    {
        let make = Arc::new(make);
        let left = steps.end.saturating_sub(steps.start);
        let lanes = (0..threads.get())
            .map(|lane| {
                let (sender, results) = sync_channel(depth.div_ceil(threads.get()));
                let make = Arc::clone(&make);
                let steps = steps.clone().skip(lane).step_by(threads.get());
                let thread = thread::spawn(move || {
                    for step in steps {
                        let result = make(step);
                        let failed = result.is_err();
                        // Nobody listens any more once the receiving side is dropped.
                        if sender.send(result).is_err() || failed {
                            return;
                        }
                    }
                });
                Lane { results, thread }
            })
            .collect();
        Self { lanes, turn: 0, left }
    }
}

impl<T, E> Prefetch<T, E> {
    /// Ends the threads; gives what the first of them panicked with, if one did.
    fn stop(&mut self) -> thread::Result<()> {
        self.left = 0;
        // All receivers go first, so that the threads finish side by side.
        let threads: Vec<JoinHandle<()>> = self.lanes.drain(..).map(|lane| lane.thread).collect();
        let mut outcome = Ok(());
        for thread in threads {
            outcome = outcome.and(thread.join());
        }
        outcome
    }
}

impl<T, E> Iterator for Prefetch<T, E> {
    type Item = Result<T, E>;

    /// The next step's result.
    ///
    /// # Panics
    ///
    /// If making it panicked, with the same message.
    fn next(&mut self) -> Option<Result<T, E>> {
        if self.left == 0 {
            return None;
        }
        match self.lanes[self.turn].results.recv() {
            Ok(result) => {
                self.left = if result.is_ok() { self.left - 1 } else { 0 };
                self.turn = (self.turn + 1) % self.lanes.len();
                Some(result)
            }
            Err(_) => match self.stop() {
                Err(panic) => resume_unwind(panic),
                Ok(()) => None,
            },
        }
    }
}

impl<T, E> Drop for Prefetch<T, E> {
    fn drop(&mut self) {
        // A panic of a step that nobody asked for any more is of no consequence.
        let _ = self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    fn threads(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).unwrap()
    }

    #[test]
    fn results_come_in_order_whatever_the_speed_of_the_threads() {
        let slow_at_times = |step: u64| {
            thread::sleep(Duration::from_micros(step * 7919 % 5 * 200));
            Ok::<u64, ()>(step)
        };
        for count in [1, 2, 3, 7] {
            for depth in [0, 1, 3] {
                let found: Vec<u64> =
                    Prefetch::new(5..30, threads(count), depth, slow_at_times).map(Result::unwrap).collect();
                assert_eq!(found, (5..30).collect::<Vec<_>>(), "{count} threads, depth {depth}");
            }
        }
        assert_eq!(Prefetch::new(3..3, threads(2), 2, slow_at_times).count(), 0);
    }

    #[test]
    fn an_error_comes_in_its_place_and_ends_the_sequence() {
        let make = |step: u64| if step == 4 { Err(step) } else { Ok(step) };
        for count in [1, 2, 3] {
            let found: Vec<_> = Prefetch::new(0..100, threads(count), 2, make).collect();
            assert_eq!(found, [Ok(0), Ok(1), Ok(2), Ok(3), Err(4)], "{count} threads");
        }
    }

    #[test]
    fn no_more_is_made_ahead_than_was_asked_for_and_nothing_after_dropping() {
        let made = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&made);
        let mut ahead = Prefetch::new(0..1_000, threads(2), 4, move |step| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok::<u64, ()>(step)
        });
        assert_eq!(ahead.next(), Some(Ok(0)));
        thread::sleep(Duration::from_millis(50));
        // One taken, four waiting, one in the hands of each thread.
        assert!(made.load(Ordering::SeqCst) <= 7);
        drop(ahead);
        let total = made.load(Ordering::SeqCst);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(made.load(Ordering::SeqCst), total);
    }

    #[test]
    #[should_panic(expected = "step 3 cannot be made")]
    fn a_panic_reaches_whoever_waits() {
        let make = |step: u64| {
            assert_ne!(step, 3, "step 3 cannot be made");
            Ok::<u64, ()>(step)
        };
        assert_eq!(Prefetch::new(0..10, threads(2), 1, make).count(), 10);
    }
}
