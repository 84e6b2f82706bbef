//! A synthetic data set: pictures with labels, for trying things out without downloading any.
//!
//! A product (a class) is a pure function of the data set's seed and its number: outline, colours, pattern and label
//! (`design`, `silhouette`, `pattern`); so is a fabric (`fabric`). A picture is a pure function of seed, class and picture number: pose, light, background,
//! obstacles and the camera's noise (`scene`). Products come in lines of similar ones, and no two pictures of a product
//! are alike, so that telling products apart takes an encoder that has learnt to.
//!
//! Only operations that IEEE 754 rounds the same everywhere are used, and `libm` for the rest, so that the pixels are
//! the same on every machine.
//!
//! ```
//! use retrievalguard_encoder::synthetic::{SyntheticDataset, Part};
//!
//! let dataset = SyntheticDataset::new(1);
//! let picture = dataset.picture(7, 0);
//! assert_eq!((picture.width(), picture.height()), (64, 64));
//! assert_eq!(picture, dataset.picture(7, 0));
//! assert!(Part::Gallery.classes().all(|class| !Part::Train.classes().contains(&class)));
//! ```

mod design;
mod fabric;
mod folder;
mod pattern;
mod render;
mod rng;
mod scene;
mod silhouette;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use self::design::Design;
use self::fabric::{Fabric, Folds};
pub use self::folder::{RenderCounts, SyntheticError};
use self::render::Motif;
use self::rng::{CounterRng, Purpose};
use self::scene::Scene;
use crate::picture::RgbPicture;

/// Width and height of the pictures, unless another size is asked for.
const SIDE: usize = 64;

/// Products that an encoder may be trained on; the others are for testing it.
const TRAIN_CLASSES: u64 = 240;

/// Products for testing.
const TEST_CLASSES: u64 = 60;

/// A part of the data set, a folder of its own on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Pictures to train an encoder on.
    Train,
    /// Pictures of other products, to search among.
    Gallery,
    /// Further pictures of the products in the gallery, to search for.
    Queries,
}

impl Part {
    /// Every part.
    pub const ALL: [Self; 3] = [Self::Train, Self::Gallery, Self::Queries];

    /// Name of its folder.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Gallery => "gallery",
            Self::Queries => "queries",
        }
    }

    /// Numbers of its classes.
    pub fn classes(self) -> Range<u64> {
        match self {
            Self::Train => 0..TRAIN_CLASSES,
            Self::Gallery | Self::Queries => TRAIN_CLASSES..TRAIN_CLASSES + TEST_CLASSES,
        }
    }

    /// Numbers of its pictures of each class.
    pub fn pictures(self) -> Range<u64> {
        match self {
            Self::Train => 0..16,
            Self::Gallery => 0..5,
            Self::Queries => 5..8,
        }
    }

    /// Class and number of each of its pictures.
    fn members(self) -> Vec<(u64, u64)> {
        self.classes().flat_map(|class| self.pictures().map(move |number| (class, number))).collect()
    }
}

impl FromStr for Part {
    type Err = SyntheticError;

    fn from_str(text: &str) -> Result<Self, SyntheticError> {
        let named = Self::ALL.into_iter().find(|part| part.name() == text);
        named.ok_or_else(|| SyntheticError::Part { found: text.to_owned() })
    }
}

/// What the pictures show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Things with an outline before a background.
    #[default]
    Products,
    /// Cloth that fills the picture: colour and texture alone tell one from another.
    Fabrics,
}

impl Subject {
    /// Every subject.
    pub const ALL: [Self; 2] = [Self::Products, Self::Fabrics];

    /// The name as users write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Products => "products",
            Self::Fabrics => "fabrics",
        }
    }

    /// What one class is called.
    fn singular(self) -> &'static str {
        match self {
            Self::Products => "product",
            Self::Fabrics => "fabric",
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl FromStr for Subject {
    type Err = SyntheticError;

    fn from_str(text: &str) -> Result<Self, SyntheticError> {
        let named = Self::ALL.into_iter().find(|subject| subject.as_str() == text);
        named.ok_or_else(|| SyntheticError::Subject { found: text.to_owned() })
    }
}

/// All pictures of all classes of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntheticDataset {
    subject: Subject,
    seed: u64,
    side: usize,
}

impl SyntheticDataset {
    /// The products of a seed.
    pub fn new(seed: u64) -> Self {
        Self { subject: Subject::Products, seed, side: SIDE }
    }

    /// The same seed's pictures of another subject.
    pub fn of(self, subject: Subject) -> Self {
        Self { subject, ..self }
    }

    /// The same with pictures of so many pixels each way, at least 1.
    pub fn side(self, side: usize) -> Self {
        Self { side: side.max(1), ..self }
    }

    /// Renders a picture of a class.
    pub fn picture(&self, class: u64, number: u64) -> RgbPicture {
        let rng = |purpose| CounterRng::new(self.seed, purpose, class, number);
        let scene = Scene::new(&mut rng(Purpose::Scene));
        let motif = match self.subject {
            Subject::Products => Motif::Product(Design::new(self.seed, class)),
            Subject::Fabrics => {
                Motif::Cloth(Fabric::new(self.seed, class), Folds::new(&mut rng(Purpose::Folds)))
            }
        };
        let pixels = render::render(&motif, &scene, self.side, rng(Purpose::Camera));
        RgbPicture::new("synthetic", self.side, self.side, pixels).expect("the renderer fills every pixel")
    }
}

#[cfg(test)]
mod tests;
