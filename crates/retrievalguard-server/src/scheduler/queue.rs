//! Whose passes are run next.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::task::{Portion, Task};

/// Passes after which a ticket sinks by one level; each further level is four times as wide.
const FIRST_LEVEL: u64 = 2_048;

/// The lowest level.
const LEVELS: u32 = 5;

/// Turns after which the order of turns begins again.
const ROUND: u64 = 4;

/// Which turn of a round is the oldest ticket's, and which the oldest background ticket's.
const OLDEST: u64 = 0;
const OLDEST_BACKGROUND: u64 = 2;

/// Fewest passes worth a batch of their own while other threads are idle.
const FEWEST: usize = 8;

/// What is known about a ticket.
pub(super) struct Account {
    number: u64,
    background: bool,
    /// Passes that were run, or are being run.
    pub(super) served: AtomicU64,
    /// Microseconds between asking for passes and the first of them.
    pub(super) waited: AtomicU64,
    pub(super) cancelled: AtomicBool,
}

impl Account {
    pub(super) fn new(number: u64, background: bool) -> Self {
        Self {
            number,
            background,
            served: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
        }
    }

    fn level(&self) -> u32 {
        if self.background {
            return LEVELS + 1;
        }
        let quotas = self.served.load(Ordering::Relaxed) / FIRST_LEVEL;
        if quotas == 0 { 0 } else { (1 + quotas.ilog2() / 2).min(LEVELS) }
    }
}

/// Queue order: level, ticket, task.
type QueueKey = (u32, u64, u64);

/// The tasks of all tickets that have passes left to run.
#[derive(Default)]
pub(super) struct Queue {
    tasks: BTreeMap<QueueKey, Task>,
    turn: u64,
    next_task: u64,
    closed: bool,
}

impl Queue {
    pub(super) fn push(&mut self, task: Task) {
        let key = (task.account.level(), task.account.number, self.next_task);
        self.next_task += 1;
        self.tasks.insert(key, task);
    }

    /// Takes the tasks of a ticket out.
    pub(super) fn remove(&mut self, account: &Arc<Account>) -> Vec<Task> {
        let own = |_: &QueueKey, task: &mut Task| Arc::ptr_eq(&task.account, account);
        self.tasks.extract_if(.., own).map(|(_, task)| task).collect()
    }

    /// Takes no more tasks and gives back those that are left.
    pub(super) fn close(&mut self) -> Vec<Task> {
        self.closed = true;
        std::mem::take(&mut self.tasks).into_values().collect()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Passes that nobody has taken.
    pub(super) fn backlog(&self) -> usize {
        self.tasks.values().map(Task::left).sum()
    }

    /// Takes the passes to run next, from one ticket or several, for one of so many threads.
    pub(super) fn take(&mut self, batch: usize, threads: NonZeroUsize) -> Vec<Portion> {
        // A lone query is spread over all threads.
        let mut room = batch.min(self.backlog().div_ceil(threads.get()).max(FEWEST));
        self.turn += 1;
        let mut portions = Vec::new();
        if let Some(key) = self.oldest_of_the_turn() {
            self.take_from(key, &mut room, &mut portions);
        }
        while room > 0
            && let Some((&key, _)) = self.tasks.first_key_value()
        {
            self.take_from(key, &mut room, &mut portions);
        }
        portions
    }

    /// The oldest task of those to whom this turn belongs, whatever their level.
    fn oldest_of_the_turn(&self) -> Option<QueueKey> {
        let turn = self.turn % ROUND;
        let keys = self.tasks.keys().copied().filter(|&(level, ..)| match turn {
            OLDEST => level <= LEVELS,
            OLDEST_BACKGROUND => level > LEVELS,
            _ => false,
        });
        keys.min_by_key(|&(_, ticket, task)| (ticket, task))
    }

    /// Moves up to `room` passes of a task into portions and puts the rest where it belongs now.
    fn take_from(&mut self, key: QueueKey, room: &mut usize, portions: &mut Vec<Portion>) {
        let Some(mut task) = self.tasks.remove(&key) else { return };
        let portion = task.take(*room);
        *room -= portion.range.len();
        portions.push(portion);
        if task.left() > 0 {
            let (_, ticket, number) = key;
            self.tasks.insert((task.account.level(), ticket, number), task);
        }
    }
}
