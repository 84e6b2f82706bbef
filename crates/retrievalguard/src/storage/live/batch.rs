//! Several writes to one gallery, each in view of those before it, applied at once.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::anchor::version_after;
use super::{Edit, EditError, NAME_LIMIT, Written, is_stored_picture};
use crate::gallery::{Gallery, GalleryError, NewItem};
use crate::storage::manifest::StorageError;

/// One line of the journal.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Record<'a> {
    Add {
        identity: Cow<'a, str>,
        label: Cow<'a, str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<Cow<'a, str>>,
        /// Hexadecimal digits of the f32 bits, of one view after the other: a vector comes back as it was.
        bits: Cow<'a, str>,
        /// The same of the clean picture, in a gallery that has them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plain: Option<Cow<'a, str>>,
    },
    Remove {
        identity: Cow<'a, str>,
    },
}

/// The journal's text of a change.
pub(super) fn record(edit: &Edit) -> String {
    let record = match edit {
        Edit::Add { item, path } => Record::Add {
            identity: item.identity.as_str().into(),
            label: item.label.as_str().into(),
            path: path.as_deref().map(Into::into),
            bits: digits(&item.vector).into(),
            plain: item.plain.as_deref().map(|vector| digits(vector).into()),
        },
        Edit::Remove { identity } => Record::Remove { identity: identity.as_str().into() },
    };
    serde_json::to_string(&record).expect("text and digits are JSON")
}

fn digits(vector: &[f32]) -> String {
    vector.iter().map(|value| format!("{:08x}", value.to_bits())).collect()
}

fn numbers(digits: &str) -> Result<Vec<f32>, &'static str> {
    let number = |chunk: &[u8]| u32::from_str_radix(str::from_utf8(chunk).ok()?, 16).ok();
    let numbers: Option<Vec<f32>> = match digits.as_bytes().as_chunks::<8>() {
        (chunks, []) => chunks.iter().map(|chunk| number(chunk).map(f32::from_bits)).collect(),
        (_, _) => None,
    };
    numbers.ok_or("its bits are not numbers of 8 hexadecimal digits each")
}

/// The change that a record describes.
fn edit(record: &[u8]) -> Result<Edit, Box<dyn std::error::Error + Send + Sync>> {
    Ok(match serde_json::from_slice(record)? {
        Record::Add { identity, label, path, bits, plain } => {
            let item = NewItem {
                identity: identity.into_owned(),
                label: label.into_owned(),
                vector: numbers(&bits)?,
                plain: plain.as_deref().map(numbers).transpose()?,
            };
            Edit::Add { item, path: path.map(Cow::into_owned) }
        }
        Record::Remove { identity } => Edit::Remove { identity: identity.into_owned() },
    })
}

/// An item that is to be added.
struct Addition {
    item: NewItem,
    path: Option<String>,
}

/// Changes that were accepted but not made yet.
pub(super) struct Batch<'a> {
    gallery: &'a Gallery,
    written: Written,
    removed: BTreeSet<usize>,
    /// Those that were removed again are `None`, with their picture among `dropped`.
    added: Vec<Option<Addition>>,
    place_of: HashMap<String, usize>,
    dropped: Vec<String>,
    rows: usize,
}

impl<'a> Batch<'a> {
    pub(super) fn new(gallery: &'a Gallery, written: Written) -> Self {
        Self {
            gallery,
            written,
            removed: BTreeSet::new(),
            added: Vec::new(),
            place_of: HashMap::new(),
            dropped: Vec::new(),
            rows: gallery.len(),
        }
    }

    /// Checks a change in view of those before it, and scales its vector if the metric asks for it.
    pub(super) fn admit(&self, edit: &mut Edit) -> Result<(), EditError> {
        match edit {
            Edit::Add { item, path } => {
                for (what, name) in [("identity", &item.identity), ("label", &item.label)] {
                    if name.len() > NAME_LIMIT {
                        return Err(EditError::LongName { what, found: name.len() });
                    }
                }
                if self.count(&item.identity) > 0 {
                    return Err(EditError::Exists { identity: item.identity.clone() });
                }
                if let Some(path) = path.as_ref().filter(|path| !is_stored_picture(path)) {
                    let (identity, path) = (item.identity.clone(), path.clone());
                    return Err(EditError::Picture { identity, path });
                }
                self.gallery.admit(item, self.rows)?;
                Ok(())
            }
            Edit::Remove { identity } => match self.count(identity) {
                0 => Err(EditError::Unknown { identity: identity.clone() }),
                count if count == self.rows => Err(EditError::Last { identity: identity.clone() }),
                _ => Ok(()),
            },
        }
    }

    /// Takes a change that was admitted, with its record.
    pub(super) fn take(&mut self, edit: Edit, record: &[u8]) {
        match edit {
            Edit::Add { item, path } => {
                self.rows += self.gallery.views();
                self.place_of.insert(item.identity.clone(), self.added.len());
                self.added.push(Some(Addition { item, path }));
            }
            Edit::Remove { identity } => {
                self.rows -= self.count(&identity);
                match self.place_of.remove(&identity) {
                    Some(place) => {
                        self.dropped.extend(self.added[place].take().and_then(|addition| addition.path));
                    }
                    None => self.removed.extend(self.gallery.rows_of(&identity)),
                }
            }
        }
        self.written.count += 1;
        self.written.version = version_after(self.written.version, record);
    }

    /// Takes the changes of a journal.
    pub(super) fn replay(&mut self, records: &[Vec<u8>], path: &Path) -> Result<(), StorageError> {
        for (number, record) in records.iter().enumerate() {
            let refused =
                |source| StorageError::WriteRecord { path: path.to_owned(), record: number, source };
            let mut edit = edit(record).map_err(refused)?;
            self.admit(&mut edit).map_err(|error| refused(error.into()))?;
            self.take(edit, record);
        }
        Ok(())
    }

    /// Pictures of added items that the changes remove; others may have the same picture.
    pub(super) fn dropped_pictures(&self, paths: &[Option<String>]) -> Vec<String> {
        let rows = self.removed.range(self.written.first_added..);
        rows.filter_map(|&row| paths.get(row)?.clone()).chain(self.dropped.iter().cloned()).collect()
    }

    /// Names of the items that the gallery was made with and that the changes remove.
    pub(super) fn removed_items(&self) -> impl Iterator<Item = String> {
        let rows = self.removed.range(..self.written.first_added);
        rows.map(|&row| self.gallery.identity(row).to_owned())
    }

    /// The gallery after the changes, with its paths.
    pub(super) fn finish(
        self,
        paths: &[Option<String>],
    ) -> Result<(Gallery, Vec<Option<String>>, Written), GalleryError> {
        let kept = paths.iter().enumerate().filter(|(row, _)| !self.removed.contains(row));
        let mut paths: Vec<Option<String>> = kept.map(|(_, path)| path.clone()).collect();
        let mut items = Vec::new();
        for Addition { item, path } in self.added.into_iter().flatten() {
            items.push(item);
            paths.extend(std::iter::repeat_n(path, self.gallery.views()));
        }
        let removed: Vec<usize> = self.removed.into_iter().collect();
        let before = removed.partition_point(|&row| row < self.written.first_added);
        let written = Written { first_added: self.written.first_added - before, ..self.written };
        Ok((self.gallery.edited(&removed, items)?, paths, written))
    }

    /// Rows of one picture.
    fn count(&self, identity: &str) -> usize {
        match self.place_of.get(identity) {
            Some(_) => self.gallery.views(),
            None => {
                let rows = self.gallery.rows_of(identity);
                rows.iter().filter(|row| !self.removed.contains(row)).count()
            }
        }
    }
}
