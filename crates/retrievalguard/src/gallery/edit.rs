//! A gallery with a few items more or less, made without looking at the others again.

use std::collections::HashMap;

use super::{Gallery, GalleryError, Label, admit};

/// An item that is to join a gallery.
#[derive(Clone, Debug, PartialEq)]
pub struct NewItem {
    /// Name of the picture.
    pub identity: String,
    /// Name of its label.
    pub label: String,
    /// Its vector; those of all its views, laid end to end, if the gallery has views.
    pub vector: Vec<f32>,
    /// The same of the clean picture, for a gallery [with plain vectors](Gallery::with_plain) and for no other.
    pub plain: Option<Vec<f32>>,
}

impl Gallery {
    /// The gallery without some rows and with items behind the others: what [`Gallery::new`] makes of that list, bit for bit.
    ///
    /// Kept vectors are copied as they are and the sorted indexes are merged, so that an edit costs little more than a copy.
    pub(crate) fn edited(&self, removed: &[usize], added: Vec<NewItem>) -> Result<Self, GalleryError> {
        let mut keeps = vec![true; self.len()];
        for &row in removed {
            *keeps.get_mut(row).ok_or(GalleryError::NoSuchRow { row, items: self.len() })? = false;
        }
        let parted = |&&row: &&usize| self.item_rows(self.item(row)).any(|view| keeps[view]);
        if let Some(&row) = removed.iter().find(parted) {
            return Err(GalleryError::PartOfItem { row, identity: self.identities[row].clone() });
        }
        let kept: Vec<usize> = (0..self.len()).filter(|&row| keeps[row]).collect();
        let (items, limit) = (kept.len() + added.len() * self.views(), u32::MAX as usize);
        if items == 0 {
            return Err(GalleryError::Empty);
        }
        if items > limit {
            return Err(GalleryError::TooManyItems { found: items, limit });
        }

        let mut vectors = Vec::with_capacity(items * self.dimension);
        for run in kept.chunk_by(|left, right| left + 1 == *right) {
            let (first, end) = (run[0], run[0] + run.len());
            vectors.extend_from_slice(&self.vectors[first * self.dimension..end * self.dimension]);
        }
        let plain = match &self.plain {
            None => None,
            Some(plain) => {
                let added = added.iter().enumerate().map(|(place, item)| {
                    let row = kept.len() + place * self.views();
                    let vector = item.plain.clone().ok_or_else(|| plain_missing(item, row))?;
                    Ok(NewItem {
                        identity: item.identity.clone(),
                        label: item.label.clone(),
                        vector,
                        plain: None,
                    })
                });
                Some(Box::new(plain.edited(removed, added.collect::<Result<_, GalleryError>>()?)?))
            }
        };
        let mut squared_norms = Vec::with_capacity(items);
        squared_norms.extend(kept.iter().map(|&row| self.squared_norms[row]));
        let mut identities = Vec::with_capacity(items);
        identities.extend(kept.iter().map(|&row| self.identities[row].clone()));
        let mut interner = Interner::new(self);
        let mut labels = Vec::with_capacity(items);
        labels.extend(kept.iter().map(|&row| interner.known(self.labels[row])));
        for mut item in added {
            squared_norms.extend(self.admit(&mut item, identities.len())?);
            vectors.extend_from_slice(&item.vector);
            let label = interner.named(item.label);
            for _ in 0..self.views() {
                labels.push(label);
                identities.push(item.identity.clone());
            }
        }

        let (label_names, labels_by_name) = interner.finish();
        // Kept rows stay in their order, so the sorted index needs new numbers and nothing else.
        let mut places = vec![0_u32; self.len()];
        for (place, &row) in (0..).zip(&kept) {
            places[row] = place;
        }
        let old = self.rows_by_identity.iter().map(|&row| row as usize).filter(|&row| keeps[row]);
        let old: Vec<u32> = old.map(|row| places[row]).collect();
        let key = |&row: &u32| (identities[row as usize].as_str(), row);
        let mut new: Vec<u32> = (kept.len() as u32..items as u32).collect();
        new.sort_unstable_by(|left, right| key(left).cmp(&key(right)));
        let rows_by_identity = merged(&old, new, key);

        Ok(Self {
            vectors,
            dimension: self.dimension,
            metric: self.metric,
            labels,
            label_names,
            labels_by_name,
            identities,
            rows_by_identity,
            squared_norms,
            view_names: self.view_names.clone(),
            plain,
        })
    }

    /// Checks an item that is to begin at this row, scales its vectors, plain ones too, if the metric asks for it, and
    /// returns the squared norm of each.
    pub(crate) fn admit(&self, item: &mut NewItem, row: usize) -> Result<Vec<f64>, GalleryError> {
        let dimension = self.dimension * self.views();
        if item.vector.len() != dimension {
            let (identity, found) = (item.identity.clone(), item.vector.len());
            return Err(GalleryError::Dimension { identity, row, found, dimension });
        }
        match (&self.plain, &mut item.plain) {
            (None, None) => {}
            (Some(_), Some(vector)) => {
                if vector.len() != dimension {
                    let (identity, found) = (item.identity.clone(), vector.len());
                    return Err(GalleryError::Dimension { identity, row, found, dimension });
                }
                for (vector, row) in vector.chunks_exact_mut(self.dimension).zip(row..) {
                    admit(vector, row, &item.identity, self.metric)?;
                }
            }
            (Some(_), None) => return Err(plain_missing(item, row)),
            (None, Some(_)) => {
                return Err(GalleryError::PlainUnwanted { identity: item.identity.clone(), row });
            }
        }
        let views = item.vector.chunks_exact_mut(self.dimension).zip(row..);
        views.map(|(vector, row)| admit(vector, row, &item.identity, self.metric)).collect()
    }
}

fn plain_missing(item: &NewItem, row: usize) -> GalleryError {
    GalleryError::PlainMissing { identity: item.identity.clone(), row }
}

/// Numbers labels in order of first appearance; most of them are known by their old numbers.
struct Interner<'a> {
    old: &'a Gallery,
    numbers: Vec<Option<Label>>,
    unknown: HashMap<String, Label>,
    names: Vec<String>,
}

impl<'a> Interner<'a> {
    fn new(old: &'a Gallery) -> Self {
        let numbers = vec![None; old.label_count()];
        Self { old, numbers, unknown: HashMap::new(), names: Vec::with_capacity(old.label_count()) }
    }

    fn known(&mut self, label: Label) -> Label {
        *self.numbers[label.index()].get_or_insert_with(|| {
            self.names.push(self.old.label_names[label.index()].clone());
            // At most one label per item, and items are numbered with 32 bits.
            Label((self.names.len() - 1) as u32)
        })
    }

    fn named(&mut self, name: String) -> Label {
        if let Some(label) = self.old.label_named(&name) {
            return self.known(label);
        }
        if let Some(&label) = self.unknown.get(&name) {
            return label;
        }
        let label = Label(self.names.len() as u32);
        self.names.push(name.clone());
        self.unknown.insert(name, label);
        label
    }

    /// The names, and the labels in the order of their names.
    fn finish(self) -> (Vec<String>, Vec<Label>) {
        let Self { old, numbers, unknown, names } = self;
        let known: Vec<Label> =
            old.labels_by_name.iter().filter_map(|label| numbers[label.index()]).collect();
        let mut new: Vec<Label> = unknown.into_values().collect();
        new.sort_unstable_by_key(|label| names[label.index()].as_str());
        let labels_by_name = merged(&known, new, |label| names[label.index()].as_str());
        (names, labels_by_name)
    }
}

/// Two ascending sequences as one; made for a long left one and a short right one.
fn merged<T: Copy, K: Ord>(left: &[T], right: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let mut rest = left;
    for value in right {
        let before = rest.partition_point(|other| key(other) < key(&value));
        merged.extend_from_slice(&rest[..before]);
        merged.push(value);
        rest = &rest[before..];
    }
    merged.extend_from_slice(rest);
    merged
}
