//! View sets by name and from files: what `index --views` takes.
//!
//! A set is a TOML file, and so are those that the program brings along.
//!
//! ```toml
//! name = "shop"
//!
//! [[views]]
//! name = "as is"
//!
//! [[views]]
//! name = "closer"
//! crop = 0.9              # share of each side that is kept, in the middle
//! shift = [0.05, 0.0]     # shares of width and height, to the right and downwards
//! rotate = -3             # degrees, clockwise
//! flip = "horizontal"     # or "vertical"
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use retrievalguard::views::{View, ViewError, ViewSet};
use serde::Deserialize;

/// The sets that the program brings along, with their texts.
const BUILT_IN: [(&str, &str); 5] = [
    ("shifts", include_str!("../views/shifts.toml")),
    ("flips", include_str!("../views/flips.toml")),
    ("crops", include_str!("../views/crops.toml")),
    ("rotations", include_str!("../views/rotations.toml")),
    ("all", include_str!("../views/all.toml")),
];

/// Largest file that is read: 64 views are a few thousand bytes.
const LARGEST: u64 = 1 << 16;

/// Why there is no such view set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewSetError {
    /// It is neither one of ours nor a file.
    #[error("there is no view set `{name}`, wanted {} or a TOML file", built_in_names().join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The file cannot be read.
    #[error("view set `{}` cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is larger than any view set.
    #[error("view set `{}` has {found} bytes, wanted at most {LARGEST}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
    },
    /// The file is not TOML, or not of this shape.
    #[error("view set `{}` is not usable", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// The views make no sense.
    #[error("view set `{}` is not usable", path.display())]
    Views {
        /// The file.
        path: PathBuf,
        /// What is wrong with them.
        source: ViewError,
    },
}

/// A set as a file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetFile {
    name: String,
    #[serde(default)]
    views: Vec<View>,
}

/// Names of the sets that the program brings along.
pub fn built_in_names() -> Vec<&'static str> {
    BUILT_IN.iter().map(|(name, _)| *name).collect()
}

/// The set that the program brings along under a name, or the one in the file at that path.
///
/// ```
/// use retrievalguard_encoder::views::view_set;
///
/// assert_eq!(view_set("shifts")?.views().len(), 9);
/// # Ok::<(), retrievalguard_encoder::views::ViewSetError>(())
/// ```
pub fn view_set(name_or_path: &str) -> Result<ViewSet, ViewSetError> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
        return parse(Path::new(name), text);
    }
    let path = Path::new(name_or_path);
    let failed = |source| ViewSetError::Read { path: path.to_owned(), source };
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.extension().is_none() => {
            Err(ViewSetError::Unknown { name: name_or_path.to_owned() })
        }
        Err(error) => Err(failed(error)),
        Ok(found) if found.len() > LARGEST => {
            Err(ViewSetError::TooLarge { path: path.to_owned(), found: found.len() })
        }
        Ok(_) => parse(path, &fs::read_to_string(path).map_err(failed)?),
    }
}

fn parse(path: &Path, text: &str) -> Result<ViewSet, ViewSetError> {
    let SetFile { name, views } = toml::from_str(text)
        .map_err(|source| ViewSetError::Toml { path: path.to_owned(), source: Box::new(source) })?;
    ViewSet::new(&name, views).map_err(|source| ViewSetError::Views { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_in_is_usable_and_begins_with_the_picture_as_it_is() {
        for (name, views) in [("shifts", 9), ("flips", 2), ("crops", 6), ("rotations", 5), ("all", 19)] {
            let set = view_set(name).unwrap();
            assert_eq!((set.name(), set.views().len()), (name, views));
            assert_eq!(set.views()[0], View::named("as is"), "{name}");
            // For pictures of every size that encoders take.
            for side in [16, 28, 32, 64, 224, 384] {
                set.for_shape(&[3, side, side]).unwrap();
            }
        }
        assert_eq!(built_in_names(), ["shifts", "flips", "crops", "rotations", "all"]);
    }

    #[test]
    fn the_largest_set_has_every_view_of_the_others() {
        let all = view_set("all").unwrap();
        for name in ["shifts", "flips", "crops", "rotations"] {
            for view in view_set(name).unwrap().views() {
                assert!(all.views().contains(view), "{name}: {}", view.name);
            }
        }
    }

    #[test]
    fn files_are_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        let chain = |error: ViewSetError| {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            format!("{error}: {cause}")
        };
        let name = "name = \"mine\"\n";
        for (text, wanted) in [
            (format!("{name}[[views]]\nname = \"a\"\nskew = 1\n"), "unknown field `skew`"),
            (format!("{name}sigma = 1\n"), "unknown field `sigma`"),
            (name.to_owned(), "has 0 views"),
            ("[[views]]\nname = \"a\"\n".to_owned(), "missing field `name`"),
            (format!("{name}[[views]]\nname = \"a\"\nshift = [1.0, 0]\n"), "leave the picture empty"),
            (format!("{name}[[views]]\nname = \"a\"\nshift = [0.5]\n"), "invalid length 1"),
            (format!("{name}[[views]]\nname = \"a\"\nflip = \"sideways\"\n"), "unknown variant `sideways`"),
            ("no toml".to_owned(), "expected"),
            (" ".repeat(1 << 17), "131072 bytes, wanted at most 65536"),
        ] {
            fs::write(&path, &text).unwrap();
            let found = chain(view_set(path.to_str().unwrap()).unwrap_err());
            assert!(found.contains(wanted), "{found}");
        }
        assert_eq!(
            view_set("shift").unwrap_err().to_string(),
            "there is no view set `shift`, wanted shifts, flips, crops, rotations, all or a TOML file"
        );
        assert!(matches!(view_set("missing.toml"), Err(ViewSetError::Read { .. })));
        fs::write(&path, format!("{name}[[views]]\nname = \"a\"\nrotate = 5\nflip = \"vertical\"\n"))
            .unwrap();
        assert_eq!(view_set(path.to_str().unwrap()).unwrap().views()[0].rotate, 5.0);
    }
}
