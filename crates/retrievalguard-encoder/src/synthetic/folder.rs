//! The synthetic data set on disk: `PART/product-NNN/NN.png` (or `fabric-NNN`), as image-folder readers want it.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use retrievalguard::storage::atomic::{self, WriteError};

use super::{Part, SyntheticDataset};
use crate::picture::{PictureLimits, RgbPicture};
use crate::work::{Observer, Stopped, WorkQueue};

/// Why a part of the data set is not on disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyntheticError {
    /// There is no such subject.
    #[error("subject is `{found}`, wanted products or fabrics")]
    Subject {
        /// What was asked for.
        found: String,
    },
    /// There is no such part.
    #[error("part is `{found}`, wanted train, gallery or queries")]
    Part {
        /// What was asked for.
        found: String,
    },
    /// Something else is in the folder.
    #[error("`{}` is no picture of this data set, wanted a folder without other files", path.display())]
    Foreign {
        /// What was found.
        path: PathBuf,
    },
    /// A picture has the right name and other pixels.
    #[error("`{}` is not the picture that this seed gives", path.display())]
    Altered {
        /// The picture.
        path: PathBuf,
    },
    /// The folder could not be looked through.
    #[error("folder `{}` cannot be read", path.display())]
    Read {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A picture could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Rendering was told to stop; finished pictures stay.
    #[error("stopped after {done} of {total} pictures; the same command continues from there")]
    Stopped {
        /// How many are there.
        done: usize,
        /// How many there are.
        total: usize,
    },
}

impl From<Stopped> for SyntheticError {
    fn from(Stopped { done, total }: Stopped) -> Self {
        Self::Stopped { done, total }
    }
}

/// How many pictures of a part were made, and how many were there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenderCounts {
    /// Rendered and written.
    pub rendered: usize,
    /// Found on disk with the right pixels.
    pub kept: usize,
}

impl SyntheticDataset {
    /// Writes a part to `folder/PART/product-NNN/NN.png`, leaving pictures that are there already.
    ///
    /// Refuses a folder with anything else in it, before anything is written.
    pub fn write(
        &self,
        folder: &Path,
        part: Part,
        threads: NonZeroUsize,
        observer: &dyn Observer,
    ) -> Result<RenderCounts, SyntheticError> {
        let root = folder.join(part.name());
        refuse_strangers(&root, part, part.classes().map(|class| self.class_name(class)).collect())?;
        for class in part.classes() {
            let class_folder = root.join(self.class_name(class));
            fs::create_dir_all(&class_folder).map_err(|error| WriteError::new(&class_folder, error))?;
        }
        let members = part.members();
        let queue = WorkQueue { pieces: members.len(), before: 0, threads, observer };
        let found = queue.collect(|piece| {
            let (class, number) = members[piece];
            let path = root.join(self.class_name(class)).join(picture_name(number));
            self.keep_or_render(&path, class, number)
        })?;
        let kept = found.iter().filter(|found| **found).count();
        Ok(RenderCounts { rendered: found.len() - kept, kept })
    }

    fn class_name(&self, class: u64) -> String {
        format!("{}-{class:03}", self.subject.singular())
    }

    /// Whether the picture was on disk already; renders and writes it if not.
    fn keep_or_render(&self, path: &Path, class: u64, number: u64) -> Result<bool, SyntheticError> {
        let picture = self.picture(class, number);
        if path.exists() {
            // By pixels, not bytes: another version of the PNG writer may compress otherwise.
            return match RgbPicture::from_path(path, &PictureLimits::default()) {
                Ok(found) if found == picture => Ok(true),
                Ok(_) | Err(_) => Err(SyntheticError::Altered { path: path.to_owned() }),
            };
        }
        atomic::write(path, &png_bytes(&picture).map_err(|error| WriteError::new(path, error))?)?;
        Ok(false)
    }
}

fn picture_name(number: u64) -> String {
    format!("{number:02}.png")
}

fn png_bytes(picture: &RgbPicture) -> io::Result<Vec<u8>> {
    let side = |pixels: usize| u32::try_from(pixels).map_err(io::Error::other);
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, side(picture.width())?, side(picture.height())?);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(picture.pixels())?;
    writer.finish()?;
    Ok(bytes)
}

/// Looks through a part's folder for anything that does not belong there.
fn refuse_strangers(root: &Path, part: Part, classes: HashSet<String>) -> Result<(), SyntheticError> {
    let pictures: HashSet<String> = part.pictures().map(picture_name).collect();
    for class_folder in entries(root)? {
        if !is_named(&class_folder, &classes) || !class_folder.is_dir() {
            return Err(SyntheticError::Foreign { path: class_folder });
        }
        for picture in entries(&class_folder)? {
            // A run that was killed leaves one unfinished file per thread.
            let unfinished = picture.extension().is_some_and(|ending| ending == "partial");
            if !unfinished && !is_named(&picture, &pictures) {
                return Err(SyntheticError::Foreign { path: picture });
            }
        }
    }
    Ok(())
}

fn is_named(path: &Path, names: &HashSet<String>) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| names.contains(name))
}

/// The contents of a folder, sorted; nothing if it is not there.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, SyntheticError> {
    let failed = |source| SyntheticError::Read { path: folder.to_owned(), source };
    let listing = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut paths: Vec<PathBuf> =
        listing.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(failed)?;
    paths.sort();
    Ok(paths)
}
