//! The gallery: one thread that writes, and snapshots for everyone who reads.
//!
//! Writes that arrive together go to the disk together, by one sync. A write is answered when it is on the disk and in
//! the snapshot that the next query gets. The plain retriever's gallery, the same items embedded without noise, is part
//! of it.
//!
//! [`GalleryWriter::reload`] puts another gallery in its place while queries run; each of them keeps the snapshot it began with.
//!
//! A gallery that cannot be written to, or shall not be, is read once and served as it is.

mod held;
mod reload;
mod snapshot;
mod thread;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use self::held::Held;
use self::thread::{Command, Message, Shown, WAITING, WriterThread};
use crate::OpenError;
use crate::problem::Problem;

pub(crate) use self::reload::{Fit, Reloaded, Turn};
pub(crate) use self::snapshot::{Recipe, Snapshot};

/// A new item, embedded.
pub(crate) struct Addition {
    pub(crate) identity: String,
    pub(crate) label: String,
    /// As the gallery's own vectors were made, one for each view of an item.
    pub(crate) vector: Vec<f32>,
    /// Of the same views without noise, where the gallery keeps them beside the others.
    pub(crate) plain: Option<Vec<f32>>,
    /// How that was done; a gallery that was replaced meanwhile may want it otherwise.
    pub(crate) recipe: Arc<Recipe>,
    /// As it was sent.
    pub(crate) picture: Vec<u8>,
    /// Extension of its file.
    pub(crate) format: &'static str,
}

/// A write that is on the disk.
pub(crate) struct Written {
    /// Version of the gallery with it.
    pub(crate) version: String,
    /// Rows that are gone.
    pub(crate) rows: usize,
}

/// The gallery, with the thread that writes to it.
pub(crate) struct GalleryWriter {
    shown: Arc<Shown>,
    messages: Mutex<Option<SyncSender<Message>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// As it was named, links included.
    path: PathBuf,
    /// Whether read-only service was asked for.
    read_only: bool,
    /// Held by whoever reloads.
    reloading: Mutex<()>,
}

impl GalleryWriter {
    pub(crate) fn open(directory: &Path, read_only: bool) -> Result<Self, OpenError> {
        let (held, reason) = Held::open(&reload::resolved(directory), read_only)?;
        let shown = Arc::new(Shown::new(Snapshot::new(held.snapshot()), reason));
        let (messages, receiver) = sync_channel(WAITING);
        let writer = WriterThread::new(held, Arc::clone(&shown));
        let thread = Builder::new().name("gallery".to_owned()).spawn(move || writer.run(&receiver));
        Ok(Self {
            shown,
            messages: Mutex::new(Some(messages)),
            thread: Mutex::new(Some(thread.map_err(OpenError::Threads)?)),
            path: directory.to_owned(),
            read_only,
            reloading: Mutex::new(()),
        })
    }

    /// Whether nothing is written.
    pub(crate) fn is_read_only(&self) -> bool {
        self.shown.read_only().is_some()
    }

    /// Refuses writes to a gallery that is served read-only.
    pub(crate) fn check_writable(&self) -> Result<(), Problem> {
        self.shown.read_only().map_or(Ok(()), |reason| Err(reason.problem()))
    }

    /// The gallery as it is at this moment.
    pub(crate) fn current(&self) -> Arc<Snapshot> {
        self.shown.snapshot()
    }

    /// Adds an item; returns when it is on the disk.
    pub(crate) fn add(&self, addition: Addition) -> Result<Written, Problem> {
        self.write(Command::Add(addition))
    }

    /// Removes an item; returns when that is on the disk.
    pub(crate) fn remove(&self, identity: String) -> Result<Written, Problem> {
        self.write(Command::Remove(identity))
    }

    fn write(&self, command: Command) -> Result<Written, Problem> {
        self.ask(|reply| Message::Write(command, reply))
    }

    /// Sends the thread a message and waits for its answer.
    fn ask<T>(&self, message: impl FnOnce(Sender<Result<T, Problem>>) -> Message) -> Result<T, Problem> {
        let (reply, answer) = channel();
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = messages.and_then(|messages| messages.send(message(reply)).ok());
        sent.ok_or_else(Problem::closing)?;
        answer.recv().unwrap_or_else(|_| Err(Problem::internal("the thread that writes the gallery is gone")))
    }

    /// Takes no more writes and gives the gallery's lock back.
    pub(crate) fn close(&self) {
        drop(self.messages.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes the gallery panicked");
        }
    }
}
