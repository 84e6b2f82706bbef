//! Work on several threads: each takes the next piece when it has done one, and somebody watches.

use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Hears how a run is going and may stop it.
pub trait Observer: Sync {
    /// `done` of `total` pieces are done, and on disk where the run keeps them there.
    fn advanced(&self, done: usize, total: usize);

    /// A query was answered, by this run or by the one that it continues: whether any of its certificates holds.
    fn judged(&self, _certified: bool) {}

    /// Whether to stop after the current pieces.
    fn stop(&self) -> bool {
        false
    }
}

/// The observer of work that nobody watches.
#[derive(Clone, Copy, Debug)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn advanced(&self, _done: usize, _total: usize) {}
}

/// The observer has ended the work before its last piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped after {done} of {total}")]
pub struct Stopped {
    /// Pieces done.
    pub done: usize,
    /// Pieces in all.
    pub total: usize,
}

/// Pieces of work that threads take one after the other, from the first to the last.
#[derive(Clone, Copy)]
pub struct WorkQueue<'a> {
    /// How many pieces there are to do.
    pub pieces: usize,
    /// How many others were done before; the observer hears of all.
    pub before: usize,
    /// How many threads work.
    pub threads: NonZeroUsize,
    /// Who hears of every piece that is done, and may stop the work.
    pub observer: &'a dyn Observer,
}

impl WorkQueue<'_> {
    /// Does every piece; the first failure ends the work after the current pieces, and so does the observer.
    ///
    /// Of several failures that of the first piece is returned, so the error does not depend on the threads.
    pub fn run<E>(&self, work: impl Fn(usize) -> Result<(), E> + Sync) -> Result<(), E>
    where
        E: From<Stopped> + Send,
    {
        let total = self.before + self.pieces;
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let done = Mutex::new(self.before);
        let take_turns = || -> Result<(), (usize, E)> {
            while !failed.load(Ordering::Relaxed) && !self.observer.stop() {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece >= self.pieces {
                    break;
                }
                work(piece).map_err(|error| {
                    failed.store(true, Ordering::Relaxed);
                    (piece, error)
                })?;
                // Told under the lock, so that nobody hears of less after more.
                let mut done = done.lock().expect("no holder of this lock can panic");
                *done += 1;
                self.observer.advanced(*done, total);
            }
            Ok(())
        };
        let failures = thread::scope(|scope| {
            let count = self.threads.get().min(self.pieces);
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(take_turns)).collect();
            let ends =
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            ends.filter_map(Result::err).collect::<Vec<_>>()
        });
        if let Some((_, error)) = failures.into_iter().min_by_key(|(piece, _)| *piece) {
            return Err(error);
        }
        let done = done.into_inner().expect("no holder of this lock can panic");
        if done < total { Err(Stopped { done, total }.into()) } else { Ok(()) }
    }

    /// Does every piece and returns the result of each, in the order of the pieces.
    pub fn collect<T, E>(&self, work: impl Fn(usize) -> Result<T, E> + Sync) -> Result<Vec<T>, E>
    where
        T: Send,
        E: From<Stopped> + Send,
    {
        let results: Mutex<Vec<Option<T>>> = Mutex::new((0..self.pieces).map(|_| None).collect());
        self.run(|piece| {
            let result = work(piece)?;
            results.lock().expect("no holder of this lock can panic")[piece] = Some(result);
            Ok::<(), E>(())
        })?;
        let results = results.into_inner().expect("no holder of this lock can panic");
        Ok(results.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Ended {
        Stopped(Stopped),
        Failed(usize),
    }

    impl From<Stopped> for Ended {
        fn from(stopped: Stopped) -> Self {
            Self::Stopped(stopped)
        }
    }

    fn queue(pieces: usize, threads: usize, observer: &dyn Observer) -> WorkQueue<'_> {
        WorkQueue { pieces, before: 0, threads: NonZeroUsize::new(threads).unwrap(), observer }
    }

    /// Keeps what it hears, and stops the work after so many pieces.
    struct Heard {
        stop_after: usize,
        steps: Mutex<Vec<(usize, usize)>>,
    }

    impl Observer for Heard {
        fn advanced(&self, done: usize, total: usize) {
            self.steps.lock().unwrap().push((done, total));
        }

        fn stop(&self) -> bool {
            self.steps.lock().unwrap().len() >= self.stop_after
        }
    }

    fn heard(stop_after: usize) -> Heard {
        Heard { stop_after, steps: Mutex::default() }
    }

    #[test]
    fn every_piece_is_done_once_and_comes_back_in_its_place() {
        for threads in [1, 3, 50] {
            let calls = AtomicUsize::new(0);
            let squares = queue(40, threads, &Unobserved).collect(|piece| {
                calls.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Ended>(piece * piece)
            });
            assert_eq!(squares.unwrap(), (0..40).map(|piece| piece * piece).collect::<Vec<_>>());
            assert_eq!(calls.into_inner(), 40, "{threads} threads");
        }
        assert_eq!(queue(0, 3, &Unobserved).collect(|piece| Err::<(), _>(Ended::Failed(piece))), Ok(vec![]));
    }

    #[test]
    fn the_observer_hears_of_every_piece_and_of_those_done_before() {
        let observer = heard(usize::MAX);
        let queue = WorkQueue { before: 5, ..queue(8, 3, &observer) };
        queue.run(|_| Ok::<(), Ended>(())).unwrap();
        let wanted: Vec<(usize, usize)> = (6..=13).map(|done| (done, 13)).collect();
        assert_eq!(observer.steps.into_inner().unwrap(), wanted);
    }

    #[test]
    fn an_observer_that_stops_ends_the_work_with_what_is_done() {
        let observer = heard(3);
        let queue = WorkQueue { before: 2, ..queue(20, 1, &observer) };
        let ended = queue.run(|_| Ok::<(), Ended>(()));
        assert_eq!(ended, Err(Ended::Stopped(Stopped { done: 5, total: 22 })));
    }

    #[test]
    fn the_first_failure_ends_the_others_and_does_not_depend_on_the_threads() {
        for threads in [1, 2, 4] {
            let last = AtomicUsize::new(0);
            let ended = queue(100_000, threads, &Unobserved).run(|piece| {
                last.fetch_max(piece, Ordering::Relaxed);
                // The later of two failures comes first.
                if piece == 7 {
                    thread::sleep(std::time::Duration::from_millis(20));
                }
                if [7, 8].contains(&piece) { Err(Ended::Failed(piece)) } else { Ok(()) }
            });
            assert_eq!(ended, Err(Ended::Failed(7)), "{threads} threads");
            assert!(last.into_inner() < 99_999, "{threads} threads did all pieces after the failure");
        }
    }
}
