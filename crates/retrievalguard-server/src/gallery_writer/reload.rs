//! Another gallery in the place of the one that is served, without a restart.
//!
//! What is in the directory is read beside the gallery in service, every digest checked, and takes its place only if it fits
//! the encoder and has every write that was acknowledged. Otherwise the old one stays. The order of writes and reload is
//! that in which the writing thread gets them: a write is answered from the gallery that it went to.
//!
//! A gallery that this service has open for writing cannot be opened twice. If its files were changed in place all the
//! same, it is given back first; should it then not open, what was served goes on being served, read-only.

use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};

use retrievalguard::gallery::Metric;
use retrievalguard::storage::journal::JournalError;
use retrievalguard::storage::live;
use retrievalguard::storage::manifest::{GalleryDirectory, QuerySide, StorageError};

use super::GalleryWriter;
use super::held::{Held, ReadOnly};
use super::snapshot::Snapshot;
use super::thread::{Message, WriterThread};
use crate::OpenError;
use crate::problem::Problem;

/// What a gallery must be to be searched by the queries of this service.
#[derive(Clone)]
pub(crate) struct Fit {
    /// Name of the gallery in messages.
    pub(crate) name: String,
    pub(crate) queries: QuerySide,
}

/// What to do if another reload is running.
#[derive(Clone, Copy)]
pub(crate) enum Turn {
    /// Wait for its end.
    Wait,
    /// Leave it at that.
    Refuse,
}

/// What a reload did.
pub(crate) struct Reloaded {
    /// Version of the gallery before it.
    pub(crate) before: String,
    /// The gallery that is served after it.
    pub(crate) after: Arc<Snapshot>,
    pub(crate) read_only: bool,
}

/// What a reload found in the directory, for the writing thread.
pub(super) struct Reload {
    found: Found,
    directory: PathBuf,
    fit: Fit,
}

enum Found {
    /// A gallery of which nobody held the lock, or that is only read.
    Other(Held, Option<ReadOnly>),
    /// One that is open for writing, as it is on the disk.
    InUse(Box<live::Snapshot>, JournalError),
}

/// A path without links; one that leads nowhere is refused by whoever opens it.
pub(super) fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

impl GalleryWriter {
    /// Serves what is in the gallery's directory by now, if that fits.
    pub(crate) fn reload(&self, fit: &Fit, turn: Turn) -> Result<Reloaded, Problem> {
        let _turn = self.take_turn(turn)?;
        let directory = resolved(&self.path);
        let found = self.look(&directory, fit).map_err(|error| refused(&error))?;
        let reload = Box::new(Reload { found, directory, fit: fit.clone() });
        self.ask(|reply| Message::Reload(reload, reply))
    }

    fn take_turn(&self, turn: Turn) -> Result<MutexGuard<'_, ()>, Problem> {
        match (turn, self.reloading.try_lock()) {
            (_, Ok(turn)) => Ok(turn),
            (_, Err(TryLockError::Poisoned(error))) => Ok(error.into_inner()),
            (Turn::Wait, Err(TryLockError::WouldBlock)) => {
                Ok(self.reloading.lock().unwrap_or_else(PoisonError::into_inner))
            }
            (Turn::Refuse, Err(TryLockError::WouldBlock)) => {
                Err(Problem::busy("another reload is running", 1))
            }
        }
    }

    /// Reads what is in the directory, while writes go on.
    fn look(&self, directory: &Path, fit: &Fit) -> Result<Found, Unfit> {
        // Before anything else, because opening a gallery for writing begins its journal.
        let manifest = GalleryDirectory::read_manifest(directory)?;
        manifest.check_against(&fit.name, &fit.queries)?;
        match Held::open(directory, self.read_only) {
            Ok((held, read_only)) => Ok(Found::Other(held, read_only)),
            Err(OpenError::Gallery(StorageError::Journal(error @ JournalError::InUse { .. }))) => {
                Ok(Found::InUse(Box::new(live::Snapshot::read(directory)?), error))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl WriterThread {
    /// Puts what was found in the place of what is held, or says why not.
    pub(super) fn reload(&mut self, reload: Reload) -> Result<Reloaded, Problem> {
        let before = self.shown.snapshot();
        let Reload { found, directory, fit } = reload;
        match found {
            Found::Other(held, read_only) => {
                self.check(&held.snapshot(), &before, &fit).map_err(|error| refused(&error))?;
                self.take_over(held, read_only);
            }
            Found::InUse(_, error) if !self.held.is_in(&directory) => {
                return Err(refused(&StorageError::from(error).into()));
            }
            // The lock is held here, so whatever was written to it since is what this thread wrote.
            Found::InUse(read, _) if read.made() == before.stored().made() => {}
            Found::InUse(read, _) => {
                self.check(&read, &before, &fit).map_err(|error| refused(&error))?;
                self.open_again(&directory, &before, &fit).map_err(|error| {
                    self.shown.replace(Snapshot::new(self.held.snapshot()), Some(ReadOnly::Parted));
                    refused(&error)
                })?;
            }
        }
        let read_only = self.shown.read_only().is_some();
        Ok(Reloaded { before: before.version().to_owned(), after: self.shown.snapshot(), read_only })
    }

    /// Gives the gallery back and opens what is in its directory.
    fn open_again(&mut self, directory: &Path, before: &Snapshot, fit: &Fit) -> Result<(), Unfit> {
        let parted = Held::Parted(self.held.snapshot());
        drop(std::mem::replace(&mut self.held, parted));
        let (held, read_only) = Held::open(directory, false)?;
        self.check(&held.snapshot(), before, fit)?;
        self.take_over(held, read_only);
        Ok(())
    }

    fn take_over(&mut self, held: Held, read_only: Option<ReadOnly>) {
        self.shown.replace(Snapshot::new(held.snapshot()), read_only);
        self.held = held;
    }

    /// Whether a gallery may take the place of the one that is held.
    fn check(&self, new: &live::Snapshot, before: &Snapshot, fit: &Fit) -> Result<(), Unfit> {
        new.check_against(&fit.name, &fit.queries)?;
        let (old, new_made) = (before.provenance(), new.provenance());
        let unfit = |what: &str, found: String, wanted: String| {
            let gallery = fit.name.clone();
            Err(Unfit::Other { gallery, what: what.to_owned(), found, wanted })
        };
        let clean = |samples: Option<u32>| if samples == Some(0) { "clean pictures" } else { "noisy copies" };
        let (found, wanted) = (clean(new_made.samples), clean(old.samples));
        if found != wanted {
            return unfit("its vectors are of", found.to_owned(), wanted.to_owned());
        }
        if new_made.sigma != old.sigma {
            let shown = |sigma: Option<retrievalguard::Sigma>| {
                sigma.map_or_else(|| "unknown".to_owned(), |sigma| sigma.to_string())
            };
            return unfit("its sigma is", shown(new_made.sigma), shown(old.sigma));
        }
        let metric = |metric: Metric| match metric {
            Metric::Euclidean => "euclidean".to_owned(),
            Metric::Cosine => "cosine".to_owned(),
        };
        let (found, wanted) = (new.gallery().metric(), before.gallery().metric());
        if found != wanted {
            return unfit("its metric is", metric(found), metric(wanted));
        }
        // What cannot be compared may be another: the gallery before it said these things.
        let known = old.gaps();
        for gap in ["model", "model config"] {
            if new_made.gaps().contains(&gap) && !known.contains(&gap) {
                return unfit(
                    &format!("its {gap} is"),
                    "unknown".to_owned(),
                    "the same as before".to_owned(),
                );
            }
        }
        self.held.check_kept_by(new).map_err(Unfit::Writes)
    }
}

/// Why a gallery does not take the place of another.
#[derive(Debug, thiserror::Error)]
enum Unfit {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Read(#[from] StorageError),
    #[error(transparent)]
    Mismatch(#[from] retrievalguard::storage::manifest::Mismatch),
    #[error("gallery `{gallery}` is of another kind: {what} {found}, wanted {wanted}")]
    Other { gallery: String, what: String, found: String, wanted: String },
    #[error(
        "{0}; wanted a gallery with every write that was acknowledged, or a restart, which serves what is there"
    )]
    Writes(live::MissingWrite),
}

/// The refusal with every cause, for whoever may change the gallery.
fn refused(error: &Unfit) -> Problem {
    let mut causes: Vec<String> = Vec::new();
    let chain = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    for text in chain.map(ToString::to_string) {
        // Transparent wrappers repeat what they wrap.
        if causes.last() != Some(&text) {
            causes.push(text);
        }
    }
    Problem::not_reloaded(&causes.join(": "))
}

#[cfg(test)]
mod tests;
