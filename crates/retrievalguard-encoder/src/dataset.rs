//! Labelled pictures in the layouts that users already have.
//!
//! [`open`] reads a data set's own lists into [`Record`]s without touching the pictures; [`Record::read`]
//! decodes them later. A record's identity is the path as the data set's own list writes it (below the root for folders), so
//! that it does not change when the data set moves: the noise depends on it.

mod cars;
mod csv_list;
mod cub;
mod error;
mod idx;
mod image_folder;
mod loading;
mod mat;
mod online_products;
mod record_set;
mod selection;
mod split;

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use self::error::DatasetError;
pub use self::loading::BrokenPictures;
pub use self::record_set::{DescribedPicture, RecordSet, data_set_digest, digest_of_pictures};
pub use self::selection::{Selected, Selection};
pub use self::split::{NamedSplit, Split};
use crate::picture::PixelBox;

/// How a data set is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Whichever of the others the files look like.
    #[default]
    Auto,
    /// `root/class/picture`, folders below the class allowed.
    ImageFolder,
    /// open-metric-learning's list: `label,path,split,is_query,is_gallery`, and optionally `category` and a box
    /// `x_1,y_1,x_2,y_2`; paths are relative to the list.
    Csv,
    /// CUB-200-2011: `images.txt`, `image_class_labels.txt`, `images/`; split by class, 1–100 and 101–200.
    Cub,
    /// CARS196: `cars_annos.mat`, or `devkit/cars_train_annos.mat` and `cars_test_annos_withlabels.mat`, and the
    /// pictures they name; split by class, 1–98 and 99–196.
    Cars,
    /// Stanford Online Products: `Ebay_train.txt` and `Ebay_test.txt`, at the root or in `Info_Files/`.
    OnlineProducts,
    /// The MNIST family: `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the two of `t10k`, plain or gzipped.
    Idx,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 7] =
        [Self::Auto, Self::ImageFolder, Self::Csv, Self::Cub, Self::Cars, Self::OnlineProducts, Self::Idx];

    /// The name as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::ImageFolder => "image-folder",
            Self::Csv => "csv",
            Self::Cub => "cub",
            Self::Cars => "cars",
            Self::OnlineProducts => "sop",
            Self::Idx => "idx",
        }
    }

    /// The format that the path looks like.
    fn guess(path: &Path) -> Result<Self, DatasetError> {
        let metadata =
            std::fs::metadata(path).map_err(|source| DatasetError::Read { path: path.to_owned(), source })?;
        if metadata.is_dir() {
            return Ok(if idx::looks_like(path) {
                Self::Idx
            } else if path.join(cub::PICTURES).is_file() && path.join(cub::LABELS).is_file() {
                Self::Cub
            } else if cars::looks_like(path) {
                Self::Cars
            } else if online_products::lists(path).is_some() {
                Self::OnlineProducts
            } else {
                Self::ImageFolder
            });
        }
        let ends_with =
            |ending: &str| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending));
        if ends_with("csv") {
            Ok(Self::Csv)
        } else if ends_with("mat") {
            Ok(Self::Cars)
        } else {
            Err(DatasetError::UnknownFormat { path: path.to_owned() })
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = DatasetError;

    fn from_str(text: &str) -> Result<Self, DatasetError> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| DatasetError::FormatName { text: text.to_owned() })
    }
}

/// Where a record's pixels are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PictureSource {
    /// In a file.
    File(PathBuf),
    /// In the record, one byte per pixel.
    Grey {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Row by row.
        pixels: Vec<u8>,
    },
}

/// What a record is for in retrieval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It is searched for.
    Query,
    /// It is searched among.
    Gallery,
    /// Both, as in leave-one-out evaluation.
    Both,
    /// The data set does not say.
    Unassigned,
}

/// One labelled picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Name that is unique in the data set and the same wherever it is.
    pub identity: String,
    /// The pixels, or where they are.
    pub source: PictureSource,
    /// The part of the picture to use; of an upright picture.
    pub crop: Option<PixelBox>,
    /// What the picture shows.
    pub label: String,
    /// The kind of thing, coarser than the label.
    pub category: Option<String>,
    /// The part of the data set it belongs to.
    pub split: Option<Split>,
    /// What it is for.
    pub role: Role,
}

/// Which of a data set's boxes are cut out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Boxes {
    /// As is usual: those of a CSV list are, those of CARS196 are not.
    #[default]
    Usual,
    /// Wherever there is one.
    Crop,
    /// None.
    Ignore,
}

impl Boxes {
    /// Every rule.
    pub const ALL: [Self; 3] = [Self::Usual, Self::Crop, Self::Ignore];

    /// The rule in a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Crop => "crop",
            Self::Ignore => "ignore",
        }
    }

    /// The rule of a word.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|boxes| boxes.name() == word)
    }
}

/// How a data set is to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatasetOptions {
    /// Which boxes are cut out.
    pub boxes: Boxes,
}

/// A data set's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataset {
    /// Its layout, never [`Format::Auto`].
    pub format: Format,
    /// In a fixed order: folders sorted by identity, lists as they are.
    pub records: Vec<Record>,
    /// How many files in its folders are not pictures.
    pub ignored_files: usize,
    /// What a person should know about what was read.
    pub notes: Vec<String>,
}

impl Dataset {
    /// The splits that have pictures.
    pub fn splits(&self) -> impl Iterator<Item = NamedSplit> {
        let marked: HashSet<Split> = self.records.iter().filter_map(|record| record.split).collect();
        NamedSplit::ALL.into_iter().filter(move |split| {
            marked.contains(&split.split()) && split.format().is_none_or(|format| format == self.format)
        })
    }

    /// The records of a split, in their order.
    pub fn select(&self, split: NamedSplit) -> Result<Self, DatasetError> {
        let missing = || {
            let splits: Vec<&str> = self.splits().map(NamedSplit::name).collect();
            let format = self.format;
            if splits.is_empty() {
                DatasetError::NoSplits { split, format }
            } else {
                DatasetError::NoSuchSplit { split, format, splits: splits.join(", ") }
            }
        };
        if split.format().is_some_and(|format| format != self.format) {
            return Err(missing());
        }
        let mut classes = HashSet::new();
        let most_classes = match split {
            NamedSplit::ProductsPaper => online_products::PAPER_CLASSES,
            _ => usize::MAX,
        };
        let records: Vec<Record> = self
            .records
            .iter()
            .filter(|record| record.split == Some(split.split()))
            .filter(|record| {
                classes.contains(record.label.as_str())
                    || (classes.len() < most_classes && classes.insert(record.label.as_str()))
            })
            .cloned()
            .collect();
        if records.is_empty() {
            return Err(missing());
        }
        Ok(Self {
            format: self.format,
            records,
            ignored_files: self.ignored_files,
            notes: self.notes.clone(),
        })
    }

    /// How many different labels there are.
    pub fn class_count(&self) -> usize {
        self.records.iter().map(|record| record.label.as_str()).collect::<HashSet<_>>().len()
    }
}

/// Reads the lists of a data set, or walks its folders.
pub fn open(path: &Path, format: Format, options: DatasetOptions) -> Result<Dataset, DatasetError> {
    let format = match format {
        Format::Auto => Format::guess(path)?,
        given => given,
    };
    let (mut ignored_files, mut notes) = (0, Vec::new());
    let records = match format {
        Format::Auto | Format::ImageFolder => {
            let (records, ignored) = image_folder::read(path)?;
            ignored_files = ignored;
            records
        }
        Format::Csv => csv_list::read(path, options.boxes)?,
        Format::Cub => cub::read(path)?,
        Format::Cars => {
            let read = cars::read(path, options.boxes)?;
            notes = read.notes;
            read.records
        }
        Format::OnlineProducts => online_products::read(path)?,
        Format::Idx => idx::read(path)?,
    };
    if records.is_empty() {
        return Err(DatasetError::Empty { path: path.to_owned(), ignored: ignored_files });
    }
    let mut identities = HashSet::with_capacity(records.len());
    if let Some(record) = records.iter().find(|record| !identities.insert(record.identity.as_str())) {
        let identity = record.identity.clone();
        return Err(DatasetError::Duplicate { path: path.to_owned(), identity });
    }
    Ok(Dataset { format, records, ignored_files, notes })
}

/// The most that a compressed file of so many bytes may unfold to: lists and pictures shrink to a fifth or a twentieth,
/// a bomb to a thousandth. A small file may unfold to 32 MiB, whatever it holds.
fn unfolded_limit(stored: u64) -> u64 {
    stored.saturating_mul(100).max(32 << 20)
}

/// Reads a text file of a data set, which must be there.
fn read_text(root: &Path, file: &str, format: Format) -> Result<String, DatasetError> {
    let path = root.join(file);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            Err(DatasetError::MissingFile { path: root.to_owned(), file: file.to_owned(), format })
        }
        Err(source) => Err(DatasetError::Read { path, source }),
    }
}

#[cfg(test)]
mod tests;
