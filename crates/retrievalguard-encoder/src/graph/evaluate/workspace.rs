//! Memory that is used again, and threads that share a piece of work.

use super::scalar::{Matrix, Scalar, Target};

/// Multiplications below which a second thread costs more than it does.
const WORTH_A_THREAD: usize = 1 << 22;

/// What an operator may use besides its arguments.
#[derive(Debug)]
pub(super) struct Workspace<S> {
    free: Vec<Vec<S>>,
    /// How many threads it may use; no number depends on it.
    pub(super) threads: usize,
}

impl<S: Scalar> Workspace<S> {
    pub(super) fn new() -> Self {
        Self { free: Vec::new(), threads: 1 }
    }

    /// So many numbers of any value.
    pub(super) fn take(&mut self, length: usize) -> Vec<S> {
        let fitting = self.free.iter().enumerate().filter(|(_, buffer)| buffer.capacity() >= length);
        match fitting.min_by_key(|(_, buffer)| buffer.capacity()).map(|(place, _)| place) {
            Some(place) => {
                let mut buffer = self.free.swap_remove(place);
                buffer.resize(length, S::ZERO);
                buffer
            }
            None => vec![S::ZERO; length],
        }
    }

    /// So many zeros.
    pub(super) fn zeros(&mut self, length: usize) -> Vec<S> {
        let mut buffer = self.take(length);
        buffer.fill(S::ZERO);
        buffer
    }

    /// Takes back what is not needed any longer.
    pub(super) fn give(&mut self, buffer: Vec<S>) {
        self.free.push(buffer);
    }

    /// How many threads so many multiplications are worth.
    pub(super) fn threads_for(&self, multiplications: usize) -> usize {
        if multiplications < WORTH_A_THREAD { 1 } else { self.threads }
    }
}

/// Cuts `out` into pieces of whole units and works on them, one thread each; `work` is told its first unit.
pub(super) fn in_pieces<S: Send, F>(threads: usize, out: &mut [S], unit: usize, work: F)
where
    F: Fn(usize, &mut [S]) + Sync,
{
    let units = out.len() / unit.max(1);
    let share = units.div_ceil(threads.max(1)).max(1);
    if share >= units {
        work(0, out);
        return;
    }
    let work = &work;
    std::thread::scope(|scope| {
        let mut pieces = out.chunks_mut(share * unit).enumerate();
        let first = pieces.next();
        for (place, piece) in pieces {
            scope.spawn(move || work(place * share, piece));
        }
        if let Some((_, piece)) = first {
            work(0, piece);
        }
    });
}

/// A matrix product whose rows are shared among threads; every entry is the same sum in any case.
pub(super) fn product<S: Scalar>(
    threads: usize,
    left: Matrix<'_, S>,
    right: Matrix<'_, S>,
    target: Target,
    out: &mut [S],
) {
    let columns = right.columns();
    in_pieces(threads, out, columns, |first, piece| {
        S::product(left.rows(first, piece.len() / columns), right, target, piece);
    });
}
