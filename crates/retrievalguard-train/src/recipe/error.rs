//! What can be wrong with a recipe.

use std::io;
use std::path::PathBuf;

/// Why there is no recipe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// No preset has this name.
    #[error("preset is `{found}`, wanted paper, small, lipschitz or distillation")]
    Preset {
        /// The name given.
        found: String,
    },
    /// The file could not be read.
    #[error("recipe `{path}` cannot be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The text is not TOML.
    #[error("recipe `{origin}` is not TOML")]
    Syntax {
        /// The file, or what stands for it.
        origin: String,
        /// Where it goes wrong.
        source: Box<toml::de::Error>,
    },
    /// A single value is not of the form `table.key=value`.
    #[error("`{found}` does not change a recipe, wanted table.key=value, such as schedule.epochs=20")]
    Assignment {
        /// The words given.
        found: String,
    },
    /// A key is unknown or a value has the wrong type.
    #[error("the recipe does not fit together: {message}")]
    Content {
        /// What TOML's reader says: it names the key.
        message: String,
    },
    /// A number is out of its range.
    #[error("`{key}` is {found}, wanted {wanted}")]
    Value {
        /// The key, with its table.
        key: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        wanted: &'static str,
    },
}
