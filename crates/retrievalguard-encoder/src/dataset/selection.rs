//! Which pictures of a data set are taken: its layout, a part of it, what they serve for, and how many.

use std::num::NonZeroUsize;
use std::path::Path;

use super::{Boxes, DatasetError, DatasetOptions, Format, NamedSplit, RecordSet, Role, open};

/// How a data set is read, in the terms of the command line and of Python.
#[derive(Clone, Copy, Debug)]
pub struct Selection {
    /// Its layout.
    pub format: Format,
    /// Which boxes are cut out.
    pub boxes: Boxes,
    /// Part of it.
    pub split: Option<NamedSplit>,
    /// Only every N-th picture.
    pub every: NonZeroUsize,
    /// Only the first N of them.
    pub limit: Option<NonZeroUsize>,
}

impl Default for Selection {
    /// Everything there is.
    fn default() -> Self {
        let (format, boxes) = (Format::default(), Boxes::default());
        Self { format, boxes, split: None, every: NonZeroUsize::MIN, limit: None }
    }
}

/// The records of a data set.
#[derive(Clone, Debug)]
pub struct Selected {
    /// All that may serve.
    pub all: RecordSet,
    /// Those that were chosen among them.
    pub chosen: RecordSet,
}

impl Selection {
    /// Reads the records that may serve in `role`; `tell` hears what a person should know about the data set.
    pub fn read(
        &self,
        path: &Path,
        role: Role,
        mut tell: impl FnMut(&str),
    ) -> Result<Selected, DatasetError> {
        let mut data = open(path, self.format, DatasetOptions { boxes: self.boxes })?;
        if data.ignored_files > 0 {
            tell(&format!("{} files in `{}` are not pictures", data.ignored_files, path.display()));
        }
        data.notes.iter().for_each(|note| tell(note));
        if let Some(split) = self.split {
            data = data.select(split)?;
        }
        let serves = |found: Role| [role, Role::Both, Role::Unassigned].contains(&found);
        let all: RecordSet = data.records.into_iter().filter(|record| serves(record.role)).collect();
        if all.is_empty() {
            return Err(DatasetError::NoRole { path: path.to_owned(), role });
        }
        let limit = self.limit.map_or(usize::MAX, NonZeroUsize::get);
        let chosen = all.subset((0..all.len()).step_by(self.every.get()).take(limit));
        Ok(Selected { all, chosen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "label,path,split,is_query,is_gallery\n\
        a,1.png,validation,True,False\na,2.png,validation,False,True\nb,3.png,validation,True,True\n\
        b,4.png,train,,\nb,5.png,validation,True,False\n";

    fn identities(records: &RecordSet) -> Vec<&str> {
        records.iter().map(|record| record.identity.as_str()).collect()
    }

    #[test]
    fn records_are_chosen_among_those_that_may_serve() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.csv");
        std::fs::write(&path, LIST).unwrap();
        let everything = Selection::default();
        let queries = everything.read(&path, Role::Query, |_| ()).unwrap();
        assert_eq!(identities(&queries.all), ["1.png", "3.png", "4.png", "5.png"]);
        assert_eq!(identities(&queries.chosen), identities(&queries.all));
        let gallery = everything.read(&path, Role::Gallery, |_| ()).unwrap();
        assert_eq!(identities(&gallery.all), ["2.png", "3.png", "4.png"]);
        let two = NonZeroUsize::new(2).unwrap();
        let some = Selection { every: two, limit: Some(NonZeroUsize::MIN), ..everything };
        assert_eq!(identities(&some.read(&path, Role::Gallery, |_| ()).unwrap().chosen), ["2.png"]);
        let third = Selection { every: two, ..everything };
        assert_eq!(identities(&third.read(&path, Role::Query, |_| ()).unwrap().chosen), ["1.png", "4.png"]);
    }

    #[test]
    fn a_data_set_without_pictures_for_a_role_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.csv");
        std::fs::write(&path, "label,path,split,is_query,is_gallery\na,1.png,validation,True,False\n")
            .unwrap();
        let refused = |role| Selection::default().read(&path, role, |_| ()).unwrap_err().to_string();
        assert!(refused(Role::Gallery).ends_with("list.csv` marks none of its pictures as gallery items"));
        assert!(refused(Role::Unassigned).ends_with("as queries or gallery items, none for training"));
    }
}
