//! Views: how one picture of a gallery becomes several stored vectors (theory, section 13).
//!
//! A *view* is a picture moved, mirrored, cut or turned a little; a *view set* is a list of them. Views are made from the
//! encoder's input: the decoded and resized picture, in `[0, 1]`, before noise is added. Queries have none.
//!
//! ```
//! use retrievalguard::views::{View, ViewSet};
//!
//! let left = View { shift: [-0.25, 0.0], ..View::named("left") };
//! let set = ViewSet::new("mine", vec![View::named("as is"), left])?;
//! let views = set.for_shape(&[1, 1, 4])?;
//! let pictures: Vec<Vec<f32>> = views.of(&[0.1, 0.2, 0.3, 0.4]).collect();
//! // What moves in is the edge.
//! assert_eq!(pictures, [[0.1, 0.2, 0.3, 0.4], [0.2, 0.3, 0.4, 0.4]]);
//! # Ok::<(), retrievalguard::views::ViewError>(())
//! ```

use serde::{Deserialize, Serialize};

use crate::storage::digest::Digest;

/// Most views of an item: beyond it a gallery grows faster than what it finds.
pub const MOST_VIEWS: usize = 64;

/// Longest name of a view or of a set, in bytes.
const NAME_LIMIT: usize = 64;

/// Share of a view's pixels that must lie inside the picture.
const LEAST_INSIDE: f64 = 0.5;

/// Fewest pixels to which a side may be cut.
const LEAST_SIDE: f64 = 2.0;

/// Which way a view is mirrored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flip {
    /// Left becomes right.
    Horizontal,
    /// Up becomes down.
    Vertical,
}

/// What a view does to a picture: move it, turn it, cut out the middle, and mirror that, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct View {
    /// What it is called.
    pub name: String,
    /// Where the picture moves: shares of its width, to the right, and of its height, downwards; to whole pixels.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shift: [f64; 2],
    /// By how many degrees it turns, clockwise, about the middle.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rotate: f64,
    /// Which share of each side is kept, in the middle; it is enlarged to the whole size.
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    pub crop: f64,
    /// Which way it is mirrored.
    #[serde(default, skip_serializing_if = "is_default")]
    pub flip: Option<Flip>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn whole() -> f64 {
    1.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_whole(value: &f64) -> bool {
    *value == whole()
}

impl View {
    /// The picture as it is.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), shift: [0.0; 2], rotate: 0.0, crop: whole(), flip: None }
    }

    fn check(&self) -> Result<(), ViewError> {
        check_name("a view", &self.name)?;
        let refused = |field, found: f64, wanted| {
            Err(ViewError::Number { view: self.name.clone(), field, found, wanted })
        };
        for shift in self.shift {
            if shift.is_nan() || shift.abs() >= 1.0 {
                return refused(
                    "shift",
                    shift,
                    "less than the whole side, which would leave the picture empty",
                );
            }
        }
        if self.rotate.is_nan() || self.rotate.abs() > 180.0 {
            return refused("rotate", self.rotate, "degrees from -180 to 180");
        }
        if !(self.crop > 0.0 && self.crop <= 1.0) {
            return refused(
                "crop",
                self.crop,
                "a share above 0, which would leave the picture empty, and up to 1",
            );
        }
        Ok(())
    }
}

fn check_name(what: &'static str, name: &str) -> Result<(), ViewError> {
    let fits = !name.trim().is_empty() && name.len() <= NAME_LIMIT && !name.chars().any(char::is_control);
    if fits { Ok(()) } else { Err(ViewError::Name { what, found: name.to_owned() }) }
}

/// A view set that cannot be used, with the offending value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// A name is empty, long, or not on one line.
    #[error("the name of {what} is {found:?}, wanted 1 to {NAME_LIMIT} bytes on one line")]
    Name {
        /// Of what.
        what: &'static str,
        /// The name.
        found: String,
    },
    /// A number is outside its range.
    #[error("{field} of view `{view}` is {found}, wanted {wanted}")]
    Number {
        /// The view.
        view: String,
        /// Which number.
        field: &'static str,
        /// What was found.
        found: f64,
        /// What would have been accepted.
        wanted: &'static str,
    },
    /// There is no view, or there are too many.
    #[error("view set `{set}` has {found} views, wanted 1 to {MOST_VIEWS}")]
    Count {
        /// The set.
        set: String,
        /// How many views it has.
        found: usize,
    },
    /// Two views have one name.
    #[error("view set `{set}` has two views `{name}`, wanted a name for each")]
    SameName {
        /// The set.
        set: String,
        /// What both are called.
        name: String,
    },
    /// Two views are the same picture.
    #[error("views `{first}` and `{second}` are the same picture{size}, wanted each once")]
    Same {
        /// The one.
        first: String,
        /// The other.
        second: String,
        /// For pictures of which size, if not for all.
        size: String,
    },
    /// A view shows too little of the picture.
    #[error(
        "{inside:.0} % of view `{view}` are inside a picture of {width}×{height} pixels, wanted at least {:.0} %",
        100.0 * LEAST_INSIDE
    )]
    Empty {
        /// The view.
        view: String,
        /// How much of it is inside, in per cent.
        inside: f64,
        /// Width of a picture.
        width: usize,
        /// Height of a picture.
        height: usize,
    },
    /// A view shows too few pixels.
    #[error(
        "crop {crop} of view `{view}` leaves {found:.1} pixels of {side}, wanted at least {LEAST_SIDE:.0}"
    )]
    Crop {
        /// The view.
        view: String,
        /// Its crop.
        crop: f64,
        /// Pixels that are left of the shorter side.
        found: f64,
        /// Pixels of the shorter side.
        side: usize,
    },
    /// The encoder does not take pictures.
    #[error("the encoder takes inputs of shape {found:?}, wanted channels, height and width to make views")]
    Shape {
        /// The shape of its input.
        found: Vec<usize>,
    },
    /// A stored set was changed.
    #[error("views of set `{set}` have sha256 {found:.16}…, wanted {wanted:.16}…")]
    Changed {
        /// The set.
        set: String,
        /// Digest of the views.
        found: Digest,
        /// The digest that is stored.
        wanted: Digest,
    },
}

/// A list of views with a name: every item of a gallery has each of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredSet", into = "StoredSet")]
pub struct ViewSet {
    name: String,
    views: Vec<View>,
}

/// A view set in a manifest.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredSet {
    set: String,
    sha256: Digest,
    views: Vec<View>,
}

impl From<ViewSet> for StoredSet {
    fn from(set: ViewSet) -> Self {
        Self { sha256: set.digest(), set: set.name, views: set.views }
    }
}

impl TryFrom<StoredSet> for ViewSet {
    type Error = ViewError;

    fn try_from(StoredSet { set, sha256, views }: StoredSet) -> Result<Self, ViewError> {
        let set = Self::new(&set, views)?;
        let found = set.digest();
        if found == sha256 {
            Ok(set)
        } else {
            Err(ViewError::Changed { set: set.name, found, wanted: sha256 })
        }
    }
}

impl ViewSet {
    /// Checks the views, as far as that is possible without knowing the size of pictures.
    pub fn new(name: &str, views: Vec<View>) -> Result<Self, ViewError> {
        check_name("a view set", name)?;
        if views.is_empty() || views.len() > MOST_VIEWS {
            return Err(ViewError::Count { set: name.to_owned(), found: views.len() });
        }
        for (place, view) in views.iter().enumerate() {
            view.check()?;
            for other in &views[..place] {
                if other.name == view.name {
                    return Err(ViewError::SameName { set: name.to_owned(), name: view.name.clone() });
                }
                if *view == (View { name: view.name.clone(), ..other.clone() }) {
                    return Err(same(other, view, String::new()));
                }
            }
        }
        Ok(Self { name: name.to_owned(), views })
    }

    /// What the set is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The views, in the order of an item's rows.
    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// Names of the views, in the order of an item's rows.
    pub fn names(&self) -> Vec<String> {
        self.views.iter().map(|view| view.name.clone()).collect()
    }

    /// Stands for the views, whatever the set is called.
    pub fn digest(&self) -> Digest {
        Digest::of_json(&serde_json::json!(self.views))
    }

    /// The views of pictures with this shape: channels, height and width.
    pub fn for_shape(&self, shape: &[usize]) -> Result<PictureViews<'_>, ViewError> {
        let &[_, height, width] = shape else { return Err(ViewError::Shape { found: shape.to_vec() }) };
        let mut sources: Vec<Source> = Vec::with_capacity(self.views.len());
        for view in &self.views {
            let source = Source::new(view, height, width);
            let side = height.min(width);
            let found = view.crop * side as f64;
            if found < LEAST_SIDE.min(side as f64) {
                let (view, crop) = (view.name.clone(), view.crop);
                return Err(ViewError::Crop { view, crop, found, side });
            }
            let inside = source.inside();
            if inside < LEAST_INSIDE {
                return Err(ViewError::Empty {
                    view: view.name.clone(),
                    inside: 100.0 * inside,
                    width,
                    height,
                });
            }
            // Shifts of less than half a pixel move nothing.
            if let Some(place) = sources.iter().position(|other| *other == source) {
                return Err(same(&self.views[place], view, format!(" of {width}×{height} pixels")));
            }
            sources.push(source);
        }
        Ok(PictureViews { set: self, sources, height, width })
    }
}

fn same(first: &View, second: &View, size: String) -> ViewError {
    ViewError::Same { first: first.name.clone(), second: second.name.clone(), size }
}

/// A view set for pictures of one size.
#[derive(Clone, Debug)]
pub struct PictureViews<'a> {
    set: &'a ViewSet,
    sources: Vec<Source>,
    height: usize,
    width: usize,
}

impl<'a> PictureViews<'a> {
    /// The set.
    pub fn set(&self) -> &'a ViewSet {
        self.set
    }

    /// The views of a picture, in their order: planes of the size in question, laid end to end.
    pub fn of(&self, pixels: &[f32]) -> impl Iterator<Item = Vec<f32>> {
        let planes = pixels.chunks_exact(self.height * self.width);
        self.sources
            .iter()
            .map(move |source| planes.clone().flat_map(|plane| source.of_plane(plane)).collect())
    }
}

/// From where in the picture each pixel of a view is taken: `source = matrix · place + offset`, in pixels.
#[derive(Clone, Debug, PartialEq)]
struct Source {
    matrix: [[f64; 2]; 2],
    offset: [f64; 2],
    height: usize,
    width: usize,
}

impl Source {
    fn new(view: &View, height: usize, width: usize) -> Self {
        let (sin, cos) = view.rotate.to_radians().sin_cos();
        let (across, down) = match view.flip {
            None => (view.crop, view.crop),
            Some(Flip::Horizontal) => (-view.crop, view.crop),
            Some(Flip::Vertical) => (view.crop, -view.crop),
        };
        // Backwards: mirrored, enlarged, turned the other way and moved back, about the middle of the picture.
        let matrix = [[cos * across, sin * down], [-sin * across, cos * down]];
        let middle = [(width as f64 - 1.0) / 2.0, (height as f64 - 1.0) / 2.0];
        let shift = [(view.shift[0] * width as f64).round(), (view.shift[1] * height as f64).round()];
        let offset = [0, 1].map(|axis| {
            middle[axis] - shift[axis] - matrix[axis][0] * middle[0] - matrix[axis][1] * middle[1]
        });
        Self { matrix, offset, height, width }
    }

    /// Column and row of the picture that belong to a pixel of the view; the middle of the first pixel is 0.
    fn place(&self, column: usize, row: usize) -> [f64; 2] {
        [0, 1].map(|axis| {
            self.matrix[axis][0] * column as f64 + self.matrix[axis][1] * row as f64 + self.offset[axis]
        })
    }

    fn pixels(&self) -> impl Iterator<Item = [f64; 2]> {
        (0..self.height).flat_map(move |row| (0..self.width).map(move |column| self.place(column, row)))
    }

    /// Share of the view's pixels that lie inside the picture.
    fn inside(&self) -> f64 {
        let within = |place: f64, side: usize| place >= -0.5 && place <= side as f64 - 0.5;
        let inside =
            self.pixels().filter(|place| within(place[0], self.width) && within(place[1], self.height));
        inside.count() as f64 / (self.height * self.width).max(1) as f64
    }

    /// One plane of the view, interpolated between the four pixels around each place; outside, the edge goes on.
    fn of_plane(&self, plane: &[f32]) -> impl Iterator<Item = f32> {
        self.pixels().map(move |[column, row]| {
            let (left, right, across) = between(column, self.width);
            let (above, below, down) = between(row, self.height);
            let value = |row: usize, column: usize| f64::from(plane[row * self.width + column]);
            let mixed = |row| value(row, left) * (1.0 - across) + value(row, right) * across;
            (mixed(above) * (1.0 - down) + mixed(below) * down) as f32
        })
    }
}

/// The two pixels around a place, and how far it is from the first to the second.
fn between(place: f64, side: usize) -> (usize, usize, f64) {
    let place = place.clamp(0.0, (side - 1) as f64);
    let first = place.floor();
    (first as usize, place.ceil() as usize, place - first)
}

#[cfg(test)]
mod tests;
