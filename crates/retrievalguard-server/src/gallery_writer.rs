//! The gallery: one thread that writes, and snapshots for everyone who reads.
//!
//! Writes that arrive together go to the disk together, by one sync. A write is answered when it is on the disk and in
//! the snapshot that the next query gets. The plain retriever's gallery, the same items embedded without noise, is kept
//! beside it: an encoder that was trained with noise gives a clean picture another embedding, so held against the stored
//! means the plain retriever would look worse than it is.
//!
//! A gallery that cannot be written to, or shall not be, is read once and served as it is.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use retrievalguard::gallery::{Gallery, NewItem};
use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::live::{self, Edit, EditError, LiveGallery};
use retrievalguard::storage::manifest::{GalleryDirectory, Provenance, StorageError};
use retrievalguard_encoder::dataset::{PictureSource, Record, Role};
use retrievalguard_encoder::pipeline::data_set_digest;

use crate::OpenError;
use crate::problem::Problem;

/// Most writes that wait; further ones wait in their requests.
const WAITING: usize = 64;

/// Largest gallery whose pictures are embedded once more for the plain retriever.
const MOST_PLAIN: usize = 20_000;

/// A pause between writes.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest that the anchor of the journal waits for a pause.
const UNSETTLED: Duration = Duration::from_secs(1);

/// Embeddings of clean pictures, by identity.
type Clean = HashMap<String, Vec<f32>>;

/// The gallery at one moment.
pub(crate) struct Snapshot {
    stored: Arc<live::Snapshot>,
    provenance: Provenance,
    version: String,
    plain: Option<Gallery>,
}

impl Snapshot {
    fn new(stored: Arc<live::Snapshot>, clean: Option<&Clean>) -> Self {
        Self {
            provenance: stored.provenance(),
            version: stored.version().to_string(),
            plain: clean.and_then(|clean| plain_gallery(stored.gallery(), clean)),
            stored,
        }
    }

    /// The vectors with their labels and identities.
    pub(crate) fn gallery(&self) -> &Gallery {
        self.stored.gallery()
    }

    /// A copy in the form that other commands read.
    pub(crate) fn to_directory(&self) -> GalleryDirectory {
        self.stored.to_directory()
    }

    /// How the vectors were made.
    pub(crate) fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// Changes with every write.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    pub(crate) fn is_added(&self, row: usize) -> bool {
        self.stored.is_added(row)
    }

    /// Where the picture of an item is.
    pub(crate) fn picture_path(&self, row: usize) -> Option<PathBuf> {
        self.stored.picture_path(row)
    }

    /// The same items in the same rows, embedded without noise.
    pub(crate) fn plain(&self) -> Option<&Gallery> {
        self.plain.as_ref()
    }
}

/// The same items with their clean embeddings; `None` if one is not known.
fn plain_gallery(gallery: &Gallery, clean: &Clean) -> Option<Gallery> {
    let mut vectors = Vec::with_capacity(gallery.len() * gallery.dimension());
    let (mut identities, mut labels) = (Vec::new(), Vec::new());
    for row in 0..gallery.len() {
        let identity = gallery.identity(row);
        vectors.extend_from_slice(clean.get(identity)?);
        identities.push(identity.to_owned());
        labels.push(gallery.label_name(gallery.label(row)));
    }
    Gallery::new(vectors, gallery.dimension(), identities, &labels, gallery.metric()).ok()
}

/// A new item, embedded.
pub(crate) struct Addition {
    pub(crate) identity: String,
    pub(crate) label: String,
    /// As the gallery's own vectors were made.
    pub(crate) vector: Vec<f32>,
    /// Of the picture without noise.
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

enum Command {
    Add(Addition),
    Remove(String),
    /// Clean embeddings of the items that were there at the start; `None` if they cannot be had.
    Plain(Option<Clean>),
}

type Reply = Sender<Result<Written, Problem>>;

/// What a write does to the clean embeddings.
enum Change {
    Added { identity: String, clean: Vec<f32> },
    Removed { identity: String },
}

/// How the plain retriever's gallery stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PlainState {
    Preparing,
    Own,
    Stored,
}

/// What readers see.
struct Shown {
    snapshot: RwLock<Arc<Snapshot>>,
    plain: Mutex<PlainState>,
}

/// The gallery, with the thread that writes to it.
pub(crate) struct GalleryWriter {
    shown: Arc<Shown>,
    commands: Mutex<Option<SyncSender<(Command, Reply)>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    directory: PathBuf,
    read_only: Option<ReadOnly>,
}

/// Why nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOnly {
    /// It was asked for.
    Asked,
    /// The disk or the directory does not admit it.
    Disk,
    /// There was no room on the disk when the service started.
    Full,
}

/// The gallery as it is held: open for writing, or as it was read.
enum Held {
    Live(Box<LiveGallery>),
    Fixed(Arc<live::Snapshot>),
}

impl Held {
    /// Opens a gallery for writing, if that is wanted and possible.
    fn open(directory: &Path, read_only: bool) -> Result<(Self, Option<ReadOnly>), OpenError> {
        let fixed = || Ok::<_, OpenError>(Self::Fixed(Arc::new(live::Snapshot::read(directory)?)));
        if read_only {
            return Ok((fixed()?, Some(ReadOnly::Asked)));
        }
        match LiveGallery::open(directory) {
            Ok(live) => Ok((Self::Live(Box::new(live)), None)),
            Err(StorageError::Write(error)) => {
                let reason = match error {
                    WriteError::ReadOnly { .. } => ReadOnly::Disk,
                    WriteError::DiskFull { .. } | WriteError::SizeLimit { .. } => ReadOnly::Full,
                    other => return Err(StorageError::Write(other).into()),
                };
                tracing::warn!(cause = %error, "the gallery cannot be written to and is served read-only");
                Ok((fixed()?, Some(reason)))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn snapshot(&self) -> Arc<live::Snapshot> {
        match self {
            Self::Live(live) => live.snapshot(),
            Self::Fixed(stored) => Arc::clone(stored),
        }
    }

    fn store_picture(&self, bytes: &[u8], format: &str) -> Result<String, Problem> {
        match self {
            Self::Live(live) => {
                live.store_picture(bytes, format).map_err(|error| Problem::not_stored(&error))
            }
            Self::Fixed(_) => Err(Problem::read_only("the gallery is served read-only")),
        }
    }

    fn write(&mut self, edits: Vec<Edit>) -> Result<Vec<Result<(), EditError>>, Problem> {
        match self {
            Self::Live(live) => live.write(edits).map_err(|error| Problem::not_stored(&error)),
            Self::Fixed(_) => Err(Problem::read_only("the gallery is served read-only")),
        }
    }

    /// Brings what the journal is held against to the disk.
    fn settle(&mut self) {
        if let Self::Live(live) = self
            && let Err(error) = live.settle()
        {
            tracing::warn!(cause = %error, "the anchor of the writes is behind");
        }
    }
}

impl GalleryWriter {
    pub(crate) fn open(directory: &Path, read_only: bool) -> Result<Self, OpenError> {
        let (held, read_only) = Held::open(directory, read_only)?;
        let snapshot = Arc::new(Snapshot::new(held.snapshot(), None));
        let shown =
            Arc::new(Shown { snapshot: RwLock::new(snapshot), plain: Mutex::new(PlainState::Preparing) });
        let (commands, receiver) = sync_channel(WAITING);
        let plain = PlainState::Preparing;
        let writer = WriterThread { held, clean: Clean::new(), plain, shown: Arc::clone(&shown) };
        let thread =
            std::thread::Builder::new().name("gallery".to_owned()).spawn(move || writer.run(&receiver));
        Ok(Self {
            shown,
            commands: Mutex::new(Some(commands)),
            thread: Mutex::new(Some(thread.map_err(OpenError::Threads)?)),
            directory: directory.to_owned(),
            read_only,
        })
    }

    /// Whether nothing is written, and why.
    pub(crate) fn read_only(&self) -> Option<ReadOnly> {
        self.read_only
    }

    /// Refuses writes to a gallery that is served read-only.
    pub(crate) fn check_writable(&self) -> Result<(), Problem> {
        match self.read_only {
            None => Ok(()),
            Some(ReadOnly::Asked) => {
                Err(Problem::read_only("the gallery is served read-only, as --read-only asks"))
            }
            Some(ReadOnly::Disk) => {
                Err(Problem::read_only("the gallery cannot be written to, so it is served read-only"))
            }
            Some(ReadOnly::Full) => Err(Problem::no_room(
                "the disk had no room when the service started, so the gallery is served read-only; wanted room and a restart",
            )),
        }
    }

    /// The gallery as it is at this moment.
    pub(crate) fn current(&self) -> Arc<Snapshot> {
        Arc::clone(&self.shown.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the plain retriever searches.
    pub(crate) fn plain_state(&self) -> &'static str {
        match *self.shown.plain.lock().unwrap_or_else(PoisonError::into_inner) {
            PlainState::Preparing => "preparing",
            PlainState::Own => "own",
            PlainState::Stored => "stored",
        }
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

    /// Embeds the gallery's pictures by `embed`, if they are still what was indexed; says how many there are.
    pub(crate) fn prepare_plain(&self, embed: impl Fn(&str, &[u8]) -> Option<Vec<f32>>) -> Option<usize> {
        let clean = self.clean(embed);
        let count = clean.as_ref().map(HashMap::len);
        // The service may be ending; then nobody asks for it.
        let kept = self.send(Command::Plain(clean));
        count.filter(|_| kept.is_ok())
    }

    fn clean(&self, embed: impl Fn(&str, &[u8]) -> Option<Vec<f32>>) -> Option<Clean> {
        let snapshot = self.current();
        let gallery = snapshot.gallery();
        let distinct: HashSet<&str> = (0..gallery.len()).map(|row| gallery.identity(row)).collect();
        if gallery.len() > MOST_PLAIN || distinct.len() < gallery.len() || !self.pictures_are_whole() {
            return None;
        }
        let mut clean = Clean::with_capacity(gallery.len());
        for row in 0..gallery.len() {
            let bytes = std::fs::read(snapshot.picture_path(row)?).ok()?;
            let identity = gallery.identity(row);
            clean.insert(identity.to_owned(), embed(identity, &bytes)?);
        }
        Some(clean)
    }

    /// Whether the pictures of the gallery as it was made are whole files that have not changed since.
    fn pictures_are_whole(&self) -> bool {
        let Ok(base) = GalleryDirectory::read_base(&self.directory) else { return false };
        let records: Option<Vec<Record>> = (0..base.gallery.len())
            .map(|row| {
                Some(Record {
                    identity: base.gallery.identity(row).to_owned(),
                    source: PictureSource::File(base.paths.get(row)?.as_deref()?.into()),
                    crop: None,
                    label: base.gallery.label_name(base.gallery.label(row)).to_owned(),
                    category: None,
                    split: None,
                    role: Role::Gallery,
                })
            })
            .collect();
        records.is_some_and(|records| base.manifest.provenance.data_set == Some(data_set_digest(&records)))
    }
}

/// The thread that writes.
struct WriterThread {
    held: Held,
    clean: Clean,
    /// Whether `clean` has all items, will have them, or is not needed.
    plain: PlainState,
    shown: Arc<Shown>,
}

impl WriterThread {
    fn run(mut self, commands: &Receiver<(Command, Reply)>) {
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
                            self.clean.insert(identity.clone(), clean.clone());
                        }
                        (Ok(()), Change::Removed { identity }) => {
                            self.clean.remove(identity);
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

    fn take_clean(&mut self, clean: Option<Clean>, reply: &Reply) {
        let state = match clean {
            Some(clean) => {
                // What was added meanwhile is known already.
                for (identity, vector) in clean {
                    self.clean.entry(identity).or_insert(vector);
                }
                PlainState::Own
            }
            None => {
                self.clean.clear();
                PlainState::Stored
            }
        };
        self.plain = state;
        *self.shown.plain.lock().unwrap_or_else(PoisonError::into_inner) = state;
        answer(reply, Ok(Written { version: self.held.snapshot().version().to_string(), rows: 0 }));
    }

    /// Shows the gallery as it is now.
    fn show(&mut self) {
        let own = self.plain == PlainState::Own;
        let snapshot = Arc::new(Snapshot::new(self.held.snapshot(), own.then_some(&self.clean)));
        if own && snapshot.plain.is_none() {
            self.plain = PlainState::Stored;
            *self.shown.plain.lock().unwrap_or_else(PoisonError::into_inner) = PlainState::Stored;
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
