use std::path::PathBuf;

use super::{Format, NamedSplit, Role};

/// Why a data set could not be opened; every variant names the file or folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// A file or folder could not be read.
    #[error("`{}` cannot be read", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The path is none of the formats.
    #[error(
        "`{}` is a file of an unknown kind, wanted a folder of class folders, a .csv list, a .mat list or IDX files",
        path.display()
    )]
    UnknownFormat {
        /// The path.
        path: PathBuf,
    },
    /// The name of a format is not one.
    #[error("format is `{text}`, wanted one of {}", Format::ALL.map(Format::name).join(", "))]
    FormatName {
        /// What was found.
        text: String,
    },
    /// A file that the format needs is not there.
    #[error("data set `{}` has no file `{file}`, which {format} needs", path.display())]
    MissingFile {
        /// The data set.
        path: PathBuf,
        /// The missing file.
        file: String,
        /// The format it belongs to.
        format: Format,
    },
    /// A picture is beside the class folders.
    #[error("picture `{}` has no label: it is in no class folder, wanted root/class/picture", path.display())]
    Unlabelled {
        /// The picture.
        path: PathBuf,
    },
    /// None of its pictures may serve.
    #[error(
        "`{}` {}",
        path.display(),
        match role {
            Role::Query => "marks none of its pictures as queries",
            Role::Gallery | Role::Both => "marks none of its pictures as gallery items",
            Role::Unassigned => "marks all of its pictures as queries or gallery items, none for training",
        }
    )]
    NoRole {
        /// The data set.
        path: PathBuf,
        /// What they should have served for.
        role: Role,
    },
    /// There is no picture.
    #[error("data set `{}` holds no pictures (files of other kinds: {ignored}), wanted at least one", path.display())]
    Empty {
        /// The data set.
        path: PathBuf,
        /// How many files were not pictures.
        ignored: usize,
    },
    /// Folders are nested too deeply, probably in a circle of links.
    #[error("folder `{}` is {depth} levels deep, wanted at most {limit}", path.display())]
    Depth {
        /// The folder.
        path: PathBuf,
        /// How deep it is.
        depth: usize,
        /// How deep it may be.
        limit: usize,
    },
    /// A file name is not Unicode, so that it cannot serve as an identity.
    #[error("file name `{}` is not UTF-8", path.display())]
    Name {
        /// The file.
        path: PathBuf,
    },
    /// A list lacks a column.
    #[error("list `{}` has no column `{column}`, found {found}", file.display())]
    MissingColumn {
        /// The list.
        file: PathBuf,
        /// The missing column.
        column: String,
        /// The columns that are there.
        found: String,
    },
    /// A line of a list cannot be understood.
    #[error("line {line} of `{}`: {found}, wanted {wanted}", file.display())]
    Line {
        /// The list.
        file: PathBuf,
        /// Line, from 1.
        line: u64,
        /// What was found.
        found: String,
        /// What would have been accepted.
        wanted: String,
    },
    /// Two records have the same identity, on which their noise depends.
    #[error("data set `{}` lists picture `{identity}` twice", path.display())]
    Duplicate {
        /// The data set.
        path: PathBuf,
        /// The identity.
        identity: String,
    },
    /// A MAT-file is damaged or of another version.
    #[error("MAT-file `{}`: {reason}", file.display())]
    Mat {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// An IDX file does not hold what it says or should.
    #[error("IDX file `{}` has {found}, wanted {wanted}", file.display())]
    Idx {
        /// The file.
        file: PathBuf,
        /// What was found.
        found: String,
        /// What would have been accepted.
        wanted: String,
    },
    /// The name of a split is not one.
    #[error("split is `{text}`, wanted one of {}", NamedSplit::ALL.map(NamedSplit::name).join(", "))]
    SplitName {
        /// What was found.
        text: String,
    },
    /// The data set has splits, but not this one.
    #[error("the data set, in the format {format}, has no split {split}, wanted one of {splits}")]
    NoSuchSplit {
        /// The split.
        split: NamedSplit,
        /// The data set's format.
        format: Format,
        /// The splits that have pictures.
        splits: String,
    },
    /// The data set marks no splits at all.
    #[error(
        "the data set, in the format {format}, has no split {split}: it does not mark any, so all of it is used \
         without one"
    )]
    NoSplits {
        /// The split.
        split: NamedSplit,
        /// The data set's format.
        format: Format,
    },
}
