//! The thread that writes the gallery.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use retrievalguard::gallery::NewItem;
use retrievalguard::storage::live::{Edit, EditError};

use super::held::Held;
use super::plain::{CleanEmbeddings, PlainState};
use super::snapshot::Snapshot;
use super::{Addition, Written};
use crate::problem::Problem;

/// Most writes that wait; further ones wait in their requests.
pub(super) const WAITING: usize = 64;

/// A pause between writes.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest that the anchor of the journal waits for a pause.
const UNSETTLED: Duration = Duration::from_secs(1);

/// What the thread is asked to do.
pub(super) enum Command {
    Add(Addition),
    Remove(String),
    /// Clean embeddings of the items that were there at the start; `None` if they cannot be had.
    Plain(Option<CleanEmbeddings>),
}

pub(super) type Reply = Sender<Result<Written, Problem>>;

/// What a write does to the clean embeddings.
enum Change {
    Added { identity: String, clean: Vec<f32> },
    Removed { identity: String },
}

/// What readers see.
pub(super) struct Shown {
    snapshot: RwLock<Arc<Snapshot>>,
    plain: Mutex<PlainState>,
}

impl Shown {
    pub(super) fn new(snapshot: Snapshot) -> Self {
        Self { snapshot: RwLock::new(Arc::new(snapshot)), plain: Mutex::new(PlainState::Preparing) }
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn plain_state(&self) -> PlainState {
        *self.plain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_plain_state(&self, state: PlainState) {
        *self.plain.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// The thread that writes.
pub(super) struct WriterThread {
    held: Held,
    clean: CleanEmbeddings,
    /// Whether `clean` has all items, will have them, or is not needed.
    plain: PlainState,
    shown: Arc<Shown>,
}

impl WriterThread {
    pub(super) fn new(held: Held, shown: Arc<Shown>) -> Self {
        Self { held, clean: CleanEmbeddings::default(), plain: PlainState::Preparing, shown }
    }

    /// Writes until nobody can ask for it any more.
    pub(super) fn run(mut self, commands: &Receiver<(Command, Reply)>) {
        let mut settled = Instant::now();
        loop {
            let first = match commands.recv_timeout(PAUSE) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => {
                    // The writes are on the disk and answered; what they are held against follows when nobody waits.
                    self.held.settle();
                    settled = Instant::now();
                    let Ok(first) = commands.recv() else { return };
                    first
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // Whatever else has come meanwhile goes to the disk by the same sync.
            let mut together = vec![first];
            while together.len() < WAITING
                && let Ok(next) = commands.try_recv()
            {
                together.push(next);
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
        for (command, reply) in together {
            match command {
                Command::Plain(clean) => self.take_clean(clean, &reply),
                Command::Add(addition) => match self.held.store_picture(&addition.picture, addition.format) {
                    Ok(path) => {
                        let Addition { identity, label, vector, clean, .. } = addition;
                        asked.push((reply, 0, Change::Added { identity: identity.clone(), clean }));
                        let item = NewItem { identity, label, vector };
                        edits.push(Edit::Add { item, path: Some(path) });
                    }
                    Err(problem) => answer(&reply, Err(problem)),
                },
                Command::Remove(identity) => {
                    let rows = self.held.snapshot().gallery().rows_of(&identity).len();
                    asked.push((reply, rows, Change::Removed { identity: identity.clone() }));
                    edits.push(Edit::Remove { identity });
                }
            }
        }
        if edits.is_empty() {
            return self.show();
        }
        match self.held.write(edits) {
            Ok(outcomes) => {
                for (outcome, (_, _, change)) in outcomes.iter().zip(&asked) {
                    match (outcome, change) {
                        (Ok(()), Change::Added { identity, clean }) if self.plain != PlainState::Stored => {
                            self.clean.0.insert(identity.clone(), clean.clone());
                        }
                        (Ok(()), Change::Removed { identity }) => {
                            self.clean.0.remove(identity);
                        }
                        (Ok(()) | Err(_), Change::Added { .. } | Change::Removed { .. }) => {}
                    }
                }
                self.show();
                let version = self.held.snapshot().version().to_string();
                for (outcome, (reply, rows, _)) in outcomes.into_iter().zip(asked) {
                    let written = || Written { version: version.clone(), rows };
                    answer(&reply, outcome.map(|()| written()).map_err(refused));
                }
            }
            Err(problem) => asked.iter().for_each(|(reply, ..)| answer(reply, Err(problem.clone()))),
        }
    }

    fn take_clean(&mut self, clean: Option<CleanEmbeddings>, reply: &Reply) {
        let state = match clean {
            Some(clean) => {
                // What was added meanwhile is known already.
                for (identity, vector) in clean.0 {
                    self.clean.0.entry(identity).or_insert(vector);
                }
                PlainState::Own
            }
            None => {
                self.clean.0.clear();
                PlainState::Stored
            }
        };
        self.plain = state;
        self.shown.set_plain_state(state);
        answer(reply, Ok(Written { version: self.held.snapshot().version().to_string(), rows: 0 }));
    }

    /// Shows the gallery as it is now.
    fn show(&mut self) {
        let own = self.plain == PlainState::Own;
        let snapshot = Arc::new(Snapshot::new(self.held.snapshot(), own.then_some(&self.clean)));
        if own && snapshot.plain().is_none() {
            self.plain = PlainState::Stored;
            self.shown.set_plain_state(PlainState::Stored);
        }
        *self.shown.snapshot.write().unwrap_or_else(PoisonError::into_inner) = snapshot;
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
