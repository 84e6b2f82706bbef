//! Records whose pictures are digested once, and held against their digests when they are decoded.

use std::borrow::Cow;
use std::ops::Index;
use std::sync::{Arc, OnceLock};

use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::manifest::FileRecord;
use serde_json::json;

use super::{PictureSource, Record};
use crate::picture::{PictureError, PictureLimits, RgbPicture};

/// Records in a fixed order. The digest of a picture is computed when it is first asked for and kept; subsets share it.
#[derive(Clone, Debug, Default)]
pub struct RecordSet(Vec<Arc<Member>>);

#[derive(Debug)]
struct Member {
    record: Record,
    /// None inside if the picture could not be read.
    bytes: OnceLock<Option<FileRecord>>,
}

impl FromIterator<Record> for RecordSet {
    fn from_iter<I: IntoIterator<Item = Record>>(records: I) -> Self {
        let member = |record| Arc::new(Member { record, bytes: OnceLock::new() });
        Self(records.into_iter().map(member).collect())
    }
}

impl From<Vec<Record>> for RecordSet {
    fn from(records: Vec<Record>) -> Self {
        records.into_iter().collect()
    }
}

impl Index<usize> for RecordSet {
    type Output = Record;

    fn index(&self, position: usize) -> &Record {
        &self.0[position].record
    }
}

impl RecordSet {
    /// Number of records.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The records, in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Record> + Clone {
        self.0.iter().map(|member| &member.record)
    }

    /// The records at these positions, in this order.
    ///
    /// # Panics
    ///
    /// If there is no record at one of them.
    pub fn subset(&self, positions: impl IntoIterator<Item = usize>) -> Self {
        Self(positions.into_iter().map(|position| Arc::clone(&self.0[position])).collect())
    }

    /// The records that `keep` wants, in their order.
    pub fn filter(&self, mut keep: impl FnMut(&Record) -> bool) -> Self {
        Self(self.0.iter().filter(|member| keep(&member.record)).map(Arc::clone).collect())
    }

    /// So many records, spread evenly over all of them and thereby over the classes.
    pub fn spread(&self, count: usize) -> Self {
        let count = count.min(self.len());
        self.subset((0..count).map(|place| place * self.len() / count))
    }

    /// Digest of the bytes of a picture; none if they cannot be read.
    pub fn picture_digest(&self, position: usize) -> Option<Digest> {
        self.picture_record(position).map(|record| record.sha256)
    }

    /// The same with the number of bytes.
    pub fn picture_record(&self, position: usize) -> Option<FileRecord> {
        let Member { record, bytes } = &*self.0[position];
        *bytes.get_or_init(|| record.picture_record())
    }

    /// The bytes of a picture, all of them; refused if they are not those that were digested.
    pub fn picture_bytes(&self, position: usize) -> Result<Cow<'_, [u8]>, PictureError> {
        let Member { record, bytes } = &*self.0[position];
        record.bytes_as(bytes.get().copied(), u64::MAX)
    }

    /// Digest of all of it: identities, labels, boxes and the bytes of every picture.
    pub fn digest(&self) -> Digest {
        let described = |position| self[position].described(self.picture_digest(position));
        digest_of_pictures((0..self.len()).map(described))
    }

    /// Decodes a picture and cuts out its box; refuses one whose bytes are not those that were digested.
    pub fn read(&self, position: usize, limits: &PictureLimits) -> Result<RgbPicture, PictureError> {
        let Member { record, bytes } = &*self.0[position];
        record.read_as(bytes.get().copied(), limits)
    }
}

/// Digest of a data set: identities, labels, boxes and the bytes of every picture.
///
/// A file that cannot be read is a broken picture like others: what happens to it is not decided here.
pub fn data_set_digest(records: &[Record]) -> Digest {
    digest_of_pictures(
        records.iter().map(|record| record.described(record.picture_record().map(|bytes| bytes.sha256))),
    )
}

impl Record {
    fn picture_record(&self) -> Option<FileRecord> {
        match &self.source {
            PictureSource::File(path) => FileRecord::of_file(path).ok(),
            PictureSource::Grey { pixels, .. } => Some(FileRecord::of_bytes(pixels)),
        }
    }

    /// What decides the digest of a data set, given the digest of the picture's bytes.
    pub fn described(&self, pixels: Option<Digest>) -> DescribedPicture<'_> {
        let grey = match &self.source {
            PictureSource::File(_) => None,
            PictureSource::Grey { width, height, .. } => Some([*width, *height]),
        };
        let crop = self.crop.map(|crop| [crop.left, crop.top, crop.right, crop.bottom]);
        DescribedPicture { identity: &self.identity, label: &self.label, crop, grey, pixels }
    }
}

/// Everything of a picture that decides what becomes of it.
#[derive(Clone, Copy, Debug)]
pub struct DescribedPicture<'a> {
    /// Its name.
    pub identity: &'a str,
    /// Its label.
    pub label: &'a str,
    /// The part that is used: left, top, right, bottom.
    pub crop: Option<[usize; 4]>,
    /// Width and height, if its bytes are nothing but grey pixels.
    pub grey: Option<[usize; 2]>,
    /// Digest of its bytes; none if they cannot be read.
    pub pixels: Option<Digest>,
}

/// The digest of a data set from what decides each picture.
pub fn digest_of_pictures<'a>(pictures: impl Iterator<Item = DescribedPicture<'a>>) -> Digest {
    let mut text = String::new();
    for DescribedPicture { identity, label, crop, grey, pixels } in pictures {
        let line = match grey {
            // Files know their own sides.
            None => json!([identity, label, crop, pixels]),
            Some(sides) => json!([identity, label, crop, pixels, sides]),
        };
        text.push_str(&line.to_string());
        text.push('\n');
    }
    Digest::of_bytes(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{DatasetOptions, Format, open};
    use super::*;

    fn pictures(folder: &Path) -> RecordSet {
        let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/pictures");
        for (name, picture) in [("a/1.jpg", "edges-97x61-420.jpg"), ("b/2.png", "png-colour.png")] {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::copy(reference.join(picture), path).unwrap();
        }
        open(folder, Format::Auto, DatasetOptions::default()).unwrap().records.into()
    }

    #[test]
    fn a_picture_is_digested_once_for_a_set_and_its_subsets() {
        let folder = tempfile::tempdir().unwrap();
        let all = pictures(folder.path());
        let records: Vec<Record> = all.iter().cloned().collect();
        let second = all.subset([1]);
        let wanted = (data_set_digest(&records), data_set_digest(&records[1..]));
        assert_eq!((all.digest(), second.digest()), wanted);
        // What was read once is not read again.
        std::fs::remove_dir_all(folder.path()).unwrap();
        let kept = all.filter(|record| record.label == "b");
        assert_eq!((all.digest(), second.digest(), kept.digest()), (wanted.0, wanted.1, wanted.1));
        assert_ne!(data_set_digest(&records), wanted.0);
    }

    #[test]
    fn a_picture_that_changed_after_it_was_digested_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let all = pictures(folder.path());
        let limits = PictureLimits::default();
        assert!(all.read(0, &limits).is_ok());
        all.digest();
        assert!(all.read(0, &limits).is_ok() && all.read(1, &limits).is_ok());
        std::fs::copy(folder.path().join("b/2.png"), folder.path().join("a/1.jpg")).unwrap();
        let error = all.read(0, &limits).unwrap_err();
        assert!(
            matches!(&error, PictureError::Changed { picture, .. } if picture.ends_with("1.jpg")),
            "{error}"
        );
        assert!(all.read(1, &limits).is_ok());
        // Without a digest to hold it against, it is a picture like others.
        assert!(all[0].read(&limits).is_ok());
    }

    #[test]
    fn a_picture_that_appears_after_it_was_missing_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let all = pictures(folder.path());
        let path = folder.path().join("a/1.jpg");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(all.picture_digest(0), None);
        let limits = PictureLimits::default();
        assert!(matches!(all.read(0, &limits), Err(PictureError::Read { .. })));
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(all.read(0, &limits), Err(PictureError::Changed { .. })));
    }

    #[test]
    fn a_picture_that_vanishes_or_grows_after_it_was_digested_has_changed_and_is_not_broken() {
        let folder = tempfile::tempdir().unwrap();
        let all = pictures(folder.path());
        let limits = PictureLimits { bytes: 1 << 20, ..PictureLimits::default() };
        let path = folder.path().join("a/1.jpg");
        // Too large from the beginning: a broken picture like others, whose bytes can be had.
        let small = std::fs::read(&path).unwrap();
        let large = vec![7; (1 << 20) + 9];
        std::fs::write(&path, &large).unwrap();
        assert_eq!(all.picture_record(0), Some(FileRecord::of_bytes(&large)));
        assert!(!matches!(all.read(0, &limits), Ok(_) | Err(PictureError::Changed { .. })));
        assert_eq!(*all.picture_bytes(0).unwrap(), large);
        std::fs::write(&path, [&large[..], b"more"].concat()).unwrap();
        assert!(matches!(all.read(0, &limits), Err(PictureError::Changed { .. })));
        std::fs::write(&path, small).unwrap();
        assert!(matches!(all.read(0, &limits), Err(PictureError::Changed { .. })));
        std::fs::remove_file(&path).unwrap();
        let error = all.read(0, &limits).unwrap_err();
        assert!(error.to_string().contains("found nothing that can be read, wanted sha256 "), "{error}");
        assert!(matches!(all.picture_bytes(0), Err(PictureError::Changed { .. })));
    }

    #[test]
    fn records_are_spread_over_the_set() {
        let folder = tempfile::tempdir().unwrap();
        let all = pictures(folder.path()).subset([0, 1, 0, 1, 1]);
        let labels = |set: &RecordSet| set.iter().map(|record| record.label.clone()).collect::<Vec<_>>();
        assert_eq!(labels(&all.spread(2)), ["a", "a"]);
        assert_eq!(labels(&all.spread(99)), labels(&all));
    }
}
