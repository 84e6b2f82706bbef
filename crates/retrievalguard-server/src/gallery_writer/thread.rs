//! The thread that writes the gallery.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use retrievalguard::gallery::NewItem;
use retrievalguard::storage::live::{Edit, EditError};

use super::held::{Held, ReadOnly};
use super::reload::{Reload, Reloaded};
use super::snapshot::Snapshot;
use super::{Addition, Written};
use crate::problem::Problem;

/// Most writes that wait; further ones wait in their requests.
pub(super) const WAITING: usize = 64;

/// A pause between writes.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest that the anchor of the journal waits for a pause.
const UNSETTLED: Duration = Duration::from_secs(1);

/// A change of the gallery.
pub(super) enum Command {
    Add(Addition),
    Remove(String),
}

pub(super) type Reply = Sender<Result<Written, Problem>>;

/// What the thread is asked to do.
pub(super) enum Message {
    Write(Command, Reply),
    /// Serve another gallery, or say why not.
    Reload(Box<Reload>, Sender<Result<Reloaded, Problem>>),
}

/// What readers see.
pub(super) struct Shown(RwLock<(Arc<Snapshot>, Option<ReadOnly>)>);

impl Shown {
    pub(super) fn new(snapshot: Snapshot, read_only: Option<ReadOnly>) -> Self {
        Self(RwLock::new((Arc::new(snapshot), read_only)))
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner).0)
    }

    pub(super) fn read_only(&self) -> Option<ReadOnly> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).1
    }

    pub(super) fn replace(&self, snapshot: Snapshot, read_only: Option<ReadOnly>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = (Arc::new(snapshot), read_only);
    }
}

/// The thread that writes.
pub(super) struct WriterThread {
    pub(super) held: Held,
    pub(super) shown: Arc<Shown>,
}

impl WriterThread {
    pub(super) fn new(held: Held, shown: Arc<Shown>) -> Self {
        Self { held, shown }
    }

    /// Writes until nobody can ask for it any more.
    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        let mut settled = Instant::now();
        loop {
            let first = match messages.recv_timeout(PAUSE) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => {
                    // The writes are on the disk and answered; what they are held against follows when nobody waits.
                    self.held.settle();
                    settled = Instant::now();
                    let Ok(first) = messages.recv() else { return };
                    first
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // Whatever else has come meanwhile goes to the disk by the same sync.
            let (mut together, mut next) = (Vec::new(), Some(first));
            while let Some(message) = next.take() {
                match message {
                    Message::Write(command, reply) => together.push((command, reply)),
                    Message::Reload(reload, reply) => {
                        // What was asked for before it is written before it.
                        self.carry_out(std::mem::take(&mut together));
                        // Whoever asked may be gone; the reload stands.
                        let _ = reply.send(self.reload(*reload));
                    }
                }
                if together.len() < WAITING {
                    next = messages.try_recv().ok();
                }
            }
            self.carry_out(together);
            if settled.elapsed() > UNSETTLED {
                self.held.settle();
                settled = Instant::now();
            }
        }
    }

    fn carry_out(&mut self, together: Vec<(Command, Reply)>) {
        let (mut edits, mut asked) = (Vec::new(), Vec::new());
        let current = self.shown.snapshot();
        for (command, reply) in together {
            match command {
                Command::Add(addition) if addition.recipe != *current.recipe() => {
                    answer(&reply, Err(Problem::embedded_otherwise()));
                }
                Command::Add(addition) => match self.held.store_picture(&addition.picture, addition.format) {
                    Ok(path) => {
                        let Addition { identity, label, vector, plain, .. } = addition;
                        asked.push((reply, 0));
                        let item = NewItem { identity, label, vector, plain };
                        edits.push(Edit::Add { item, path: Some(path) });
                    }
                    Err(problem) => answer(&reply, Err(problem)),
                },
                Command::Remove(identity) => {
                    let rows = self.held.snapshot().gallery().rows_of(&identity).len();
                    asked.push((reply, rows));
                    edits.push(Edit::Remove { identity });
                }
            }
        }
        if edits.is_empty() {
            return;
        }
        match self.held.write(edits) {
            Ok(outcomes) => {
                self.show();
                let version = self.held.snapshot().version().to_string();
                for (outcome, (reply, rows)) in outcomes.into_iter().zip(asked) {
                    let written = || Written { version: version.clone(), rows };
                    answer(&reply, outcome.map(|()| written()).map_err(refused));
                }
            }
            Err(problem) => asked.iter().for_each(|(reply, _)| answer(reply, Err(problem.clone()))),
        }
    }

    /// Shows the gallery as it is now.
    fn show(&self) {
        self.shown.replace(Snapshot::new(self.held.snapshot()), self.shown.read_only());
    }
}

fn answer(reply: &Reply, written: Result<Written, Problem>) {
    // A client that left does not wait for it; the write stands.
    let _ = reply.send(written);
}

fn refused(error: EditError) -> Problem {
    match error {
        EditError::Exists { .. } | EditError::Last { .. } => Problem::conflict(error.to_string()),
        EditError::Unknown { .. } => Problem::not_found(error.to_string()),
        other => Problem::unprocessable(other.to_string()),
    }
}
