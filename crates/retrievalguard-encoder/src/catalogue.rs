//! A catalogue of products that draws itself: pictures for trying things out without downloading any.
//!
//! A product (a class) is a pure function of the catalogue's seed and its number: outline, colours, pattern and label
//! (`design`, `silhouette`). A picture is a pure function of seed, class and picture number: pose, light, background,
//! obstacles and the camera's noise (`scene`). Products come in lines of similar ones, and no two pictures of a product
//! are alike, so that telling products apart takes an encoder that has learnt to.
//!
//! Only operations that IEEE 754 rounds the same everywhere are used, and `libm` for the rest, so that the pixels are
//! the same on every machine.
//!
//! ```
//! use retrievalguard_encoder::catalogue::{Catalogue, Part};
//!
//! let catalogue = Catalogue::new(1);
//! let picture = catalogue.picture(7, 0);
//! assert_eq!((picture.width(), picture.height()), (64, 64));
//! assert_eq!(picture, catalogue.picture(7, 0));
//! assert!(Part::Gallery.classes().all(|class| !Part::Train.classes().contains(&class)));
//! ```

mod design;
mod dice;
mod folder;
mod render;
mod scene;
mod silhouette;

use std::ops::Range;

use self::design::Design;
use self::dice::{Dice, Purpose};
pub use self::folder::{CatalogueError, Drawn};
use self::scene::Scene;
use crate::picture::RgbPicture;

/// Width and height of the pictures, unless another size is asked for.
const SIDE: usize = 64;

/// Products that an encoder may be trained on; the others are for testing it.
const TRAIN_CLASSES: u64 = 240;

/// Products for testing.
const TEST_CLASSES: u64 = 60;

/// A part of the catalogue, a folder of its own on disk.
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

/// All products that a seed stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Catalogue {
    seed: u64,
    side: usize,
}

impl Catalogue {
    /// The catalogue of a seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, side: SIDE }
    }

    /// The same with pictures of so many pixels each way, at least 1.
    pub fn side(self, side: usize) -> Self {
        Self { side: side.max(1), ..self }
    }

    /// Draws a picture of a class.
    pub fn picture(&self, class: u64, number: u64) -> RgbPicture {
        let dice = |purpose| Dice::new(self.seed, purpose, class, number);
        let scene = Scene::new(&mut dice(Purpose::Scene));
        let design = Design::new(self.seed, class);
        let pixels = render::render(&design, &scene, self.side, dice(Purpose::Camera));
        RgbPicture::new("catalogue", self.side, self.side, pixels).expect("the renderer fills every pixel")
    }
}

#[cfg(test)]
mod tests;
