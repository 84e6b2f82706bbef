//! The gallery: one thread that writes, and snapshots for everyone who reads.
//!
//! Writes that arrive together go to the disk together, by one sync. A write is answered when it is on the disk and in
//! the snapshot that the next query gets. The plain retriever's gallery, the same items embedded without noise, is kept
//! beside it.
//!
//! A gallery that cannot be written to, or shall not be, is read once and served as it is.

mod held;
mod plain;
mod snapshot;
mod thread;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use self::held::{Held, ReadOnly};
use self::plain::CleanEmbeddings;
use self::thread::{Command, Reply, Shown, WAITING, WriterThread};
use crate::OpenError;
use crate::problem::Problem;

pub(crate) use self::snapshot::Snapshot;

/// A new item, embedded.
pub(crate) struct Addition {
    pub(crate) identity: String,
    pub(crate) label: String,
    /// As the gallery's own vectors were made, one for each view of an item.
    pub(crate) vector: Vec<f32>,
    /// Of the same views without noise.
    pub(crate) clean: Vec<f32>,
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
    commands: Mutex<Option<SyncSender<(Command, Reply)>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    directory: PathBuf,
    read_only: Option<ReadOnly>,
}

impl GalleryWriter {
    pub(crate) fn open(directory: &Path, read_only: bool) -> Result<Self, OpenError> {
        let (held, read_only) = Held::open(directory, read_only)?;
        let shown = Arc::new(Shown::new(Snapshot::new(held.snapshot(), None)));
        let (commands, receiver) = sync_channel(WAITING);
        let writer = WriterThread::new(held, Arc::clone(&shown));
        let thread = Builder::new().name("gallery".to_owned()).spawn(move || writer.run(&receiver));
        Ok(Self {
            shown,
            commands: Mutex::new(Some(commands)),
            thread: Mutex::new(Some(thread.map_err(OpenError::Threads)?)),
            directory: directory.to_owned(),
            read_only,
        })
    }

    /// Whether nothing is written.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.is_some()
    }

    /// Refuses writes to a gallery that is served read-only.
    pub(crate) fn check_writable(&self) -> Result<(), Problem> {
        self.read_only.map_or(Ok(()), |reason| Err(reason.problem()))
    }

    /// The gallery as it is at this moment.
    pub(crate) fn current(&self) -> Arc<Snapshot> {
        self.shown.snapshot()
    }

    /// What the plain retriever searches.
    pub(crate) fn plain_state(&self) -> &'static str {
        self.shown.plain_state().name()
    }

    /// Adds an item; returns when it is on the disk.
    pub(crate) fn add(&self, addition: Addition) -> Result<Written, Problem> {
        self.send(Command::Add(addition))
    }

    /// Removes an item; returns when that is on the disk.
    pub(crate) fn remove(&self, identity: String) -> Result<Written, Problem> {
        self.send(Command::Remove(identity))
    }

    fn send(&self, command: Command) -> Result<Written, Problem> {
        let (reply, answer) = channel();
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = commands.and_then(|commands| commands.send((command, reply)).ok());
        sent.ok_or_else(Problem::closing)?;
        answer.recv().unwrap_or_else(|_| Err(Problem::internal("the thread that writes the gallery is gone")))
    }

    /// Takes no more writes and gives the gallery's lock back.
    pub(crate) fn close(&self) {
        drop(self.commands.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes the gallery panicked");
        }
    }

    /// Says that the stored vectors are what the plain retriever searches.
    pub(crate) fn plain_is_stored(&self) {
        // The service may be ending; then nobody asks for it.
        let _ = self.send(Command::Plain(None));
    }

    /// Embeds the gallery's pictures by `embed`, if they are still what was indexed; says how many there are.
    pub(crate) fn prepare_plain(&self, embed: impl Fn(&str, &[u8]) -> Option<Vec<f32>>) -> Option<usize> {
        let clean = CleanEmbeddings::of(&self.current(), &self.directory, embed);
        let count = clean.as_ref().map(|clean| clean.0.len());
        // The service may be ending; then nobody asks for it.
        let kept = self.send(Command::Plain(clean));
        count.filter(|_| kept.is_ok())
    }
}
