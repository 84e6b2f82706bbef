//! Pictures of a data set, by one and by several threads.

use std::path::Path;
use std::sync::Mutex;

use super::super::{BrokenPictures, Format, Loader};
use super::{folder, open_guessed};
use crate::picture::PictureError;
use crate::resize::{Interpolation, PassOrder, Preparation, Resize, Size};

const PREPARATION: Preparation = Preparation {
    resize: Resize::Shorter(12),
    interpolation: Interpolation::Bilinear,
    crop: Some(Size { height: 8, width: 8 }),
    order: PassOrder::Cheaper,
};

fn picture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/pictures").join(name)).unwrap()
}

#[test]
fn a_broken_picture_is_fatal_or_skipped_and_named() {
    let whole = picture("edges-97x61-420.jpg");
    let root = folder(&[
        ("one/a.jpg", &whole),
        ("one/b.jpg", &whole[..whole.len() / 2]),
        ("two/c.png", &picture("png-grey-alpha.png")),
        ("two/d.png", b"no picture"),
    ]);
    let dataset = open_guessed(root.path()).unwrap();

    let loader = Loader::new(&dataset.records, PREPARATION, BrokenPictures::Fatal);
    let results: Vec<_> = (&loader).into_iter().collect();
    assert_eq!(results.len(), 2);
    assert_eq!(results[0].as_ref().unwrap().picture.values.len(), 3 * 8 * 8);
    assert!(
        matches!(&results[1], Err(PictureError::Broken { picture, .. }) if picture.ends_with("b.jpg")),
        "{results:?}"
    );
    assert_eq!(loader.skipped_count(), 0);

    let loader = Loader::new(&dataset.records, PREPARATION, BrokenPictures::Skip);
    let positions: Vec<usize> = (&loader).into_iter().map(|loaded| loaded.unwrap().position).collect();
    assert_eq!(positions, [0, 2]);
    let skipped = loader.into_skipped();
    let names: Vec<&str> = skipped.iter().map(|picture| picture.identity.as_str()).collect();
    assert_eq!(names, ["one/b.jpg", "two/d.png"]);
    assert!(matches!(skipped[1].error, PictureError::UnknownFormat { .. }));
}

#[test]
fn threads_share_a_loader_and_get_every_picture_once() {
    let whole = picture("png-colour.png");
    let names: Vec<String> = (0..40).map(|number| format!("class/{number:02}.png")).collect();
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), whole.as_slice())).collect();
    let root = folder(&files);
    let dataset = open_guessed(root.path()).unwrap();
    let loader = Loader::new(&dataset.records, PREPARATION, BrokenPictures::Fatal);
    let expected = loader.load(0).unwrap().picture;
    let positions = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for loaded in &loader {
                    let loaded = loaded.unwrap();
                    assert_eq!(loaded.picture, expected);
                    positions.lock().unwrap().push(loaded.position);
                }
            });
        }
    });
    let mut positions = positions.into_inner().unwrap();
    positions.sort_unstable();
    assert_eq!(positions, (0..40).collect::<Vec<_>>());
}

#[test]
fn pictures_of_every_format_load_from_folders_and_from_a_list() {
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/pictures");
    let names =
        std::fs::read_dir(reference).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut list = String::from("label,path,split,is_query,is_gallery\n");
    let mut files = Vec::new();
    for name in names {
        let Some((class, _)) = name.split_once('-') else { continue };
        let path = format!("test/{class}/{name}");
        list += &format!("{class},{path},test,True,True\n");
        files.push((path, picture(&name)));
    }
    let mut listed: Vec<(&str, &[u8])> =
        files.iter().map(|(path, content)| (path.as_str(), &content[..])).collect();
    listed.push(("labels.csv", list.as_bytes()));
    let root = folder(&listed);
    for (path, format) in [("test", Format::ImageFolder), ("labels.csv", Format::Csv)] {
        let dataset = open_guessed(&root.path().join(path)).unwrap();
        assert_eq!((dataset.format, dataset.records.len()), (format, files.len()), "{path}");
        let loader = Loader::new(&dataset.records, PREPARATION, BrokenPictures::Fatal);
        assert_eq!((&loader).into_iter().filter(Result::is_ok).count(), files.len(), "{path}");
    }
}
