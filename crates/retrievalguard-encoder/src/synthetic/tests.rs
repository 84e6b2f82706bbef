use std::collections::HashSet;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use retrievalguard::storage::digest::Digest;

use super::design::{Design, LINE};
use super::silhouette::{Family, Point, Silhouette};
use super::{Part, RenderCounts, Subject, SyntheticDataset, SyntheticError};
use crate::dataset::{DatasetOptions, Format, open};
use crate::picture::RgbPicture;
use crate::work::Observer;

/// Small pictures, which are rendered quickly.
fn small() -> SyntheticDataset {
    SyntheticDataset::new(1).side(8)
}

/// Stops a run after so many pictures.
struct Patience {
    left: usize,
    seen: AtomicUsize,
}

impl Patience {
    fn new(left: usize) -> Self {
        Self { left, seen: AtomicUsize::new(0) }
    }
}

impl Observer for Patience {
    fn advanced(&self, _: usize, _: usize) {
        self.seen.fetch_add(1, Ordering::Relaxed);
    }

    fn stop(&self) -> bool {
        self.seen.load(Ordering::Relaxed) >= self.left
    }
}

fn write(
    dataset: SyntheticDataset,
    folder: &Path,
    part: Part,
    left: usize,
) -> Result<RenderCounts, SyntheticError> {
    dataset.write(folder, part, NonZeroUsize::new(2).unwrap(), &Patience::new(left))
}

/// Mean absolute difference of two pictures, in 1/255.
fn difference(one: &RgbPicture, other: &RgbPicture) -> f64 {
    let pairs = one.pixels().iter().zip(other.pixels());
    pairs.map(|(&one, &other)| f64::from(one.abs_diff(other))).sum::<f64>() / one.pixels().len() as f64
}

#[test]
fn a_picture_is_a_pure_function_of_seed_class_and_number() {
    let dataset = SyntheticDataset::new(1);
    let picture = dataset.picture(3, 2);
    assert_eq!(picture, dataset.picture(3, 2));
    for (what, other) in [
        ("seed", SyntheticDataset::new(2).picture(3, 2)),
        ("class", dataset.picture(4, 2)),
        ("number", dataset.picture(3, 3)),
    ] {
        assert!(difference(&picture, &other) > 5.0, "{what}");
    }
}

#[test]
fn pictures_have_the_pixels_that_they_always_had() {
    let dataset = SyntheticDataset::new(1);
    let found: Vec<String> = [(0, 0), (17, 3), (250, 5), (299, 7)]
        .into_iter()
        .map(|(class, number)| format!("{:.16}", Digest::of_bytes(dataset.picture(class, number).pixels())))
        .collect();
    assert_eq!(found, ["2f80bab3550e0150", "89e2131e116f1f2c", "9e906d451dacaf80", "99d368513c3af699"]);
}

#[test]
fn fabrics_are_drawn_under_names_of_their_own() {
    let fabrics = SyntheticDataset::new(1).of(Subject::Fabrics);
    assert_eq!(fabrics.picture(3, 2), fabrics.picture(3, 2));
    assert!(difference(&fabrics.picture(3, 2), &fabrics.picture(3, 3)) > 5.0);
    assert!(difference(&fabrics.picture(3, 2), &SyntheticDataset::new(1).picture(3, 2)) > 5.0);
    let folder = tempfile::tempdir().unwrap();
    write(fabrics.side(8), folder.path(), Part::Queries, usize::MAX).unwrap();
    let class = Part::Queries.classes().start;
    assert!(folder.path().join(format!("queries/fabric-{class}/05.png")).is_file());
    let error = write(small(), folder.path(), Part::Queries, usize::MAX).unwrap_err();
    assert!(matches!(error, SyntheticError::Foreign { .. }), "{error}");
}

#[test]
fn every_outline_has_an_inside_and_stays_within_the_picture() {
    for family in Family::ALL {
        for corner in 0..16_u32 {
            let proportions = [0, 1, 2, 3].map(|bit| f64::from(corner >> bit & 1));
            let silhouette = Silhouette { family, proportions };
            let (mut inside, mut outside_frame) = (0, 0);
            for row in -30..=30 {
                for column in -30..=30 {
                    let point = Point::new(f64::from(column) / 25.0, f64::from(row) / 25.0);
                    if silhouette.distance(point) < 0.0 {
                        inside += 1;
                        outside_frame += u32::from(point.x.abs() > 1.08 || point.y.abs() > 1.08);
                    }
                }
            }
            // A product covers a tenth of its square at least.
            assert!(inside > 250, "{family:?} {proportions:?}: {inside} points");
            assert_eq!(outside_frame, 0, "{family:?} {proportions:?}");
        }
    }
}

#[test]
fn products_of_a_line_have_one_kind_of_outline_and_lines_differ() {
    let family = |class: u64| Design::new(1, class).silhouette.family;
    let lines = 40;
    for line in 0..lines {
        assert!((1..LINE).all(|member| family(line * LINE) == family(line * LINE + member)));
    }
    let families: Vec<Family> = (0..lines).map(|line| family(line * LINE)).collect();
    assert!(Family::ALL.iter().filter(|family| families.contains(family)).count() >= 10, "{families:?}");
}

#[test]
fn training_and_test_parts_share_no_class_and_no_line() {
    let lines = |part: Part| part.classes().map(|class| class / LINE).collect::<HashSet<_>>();
    assert!(lines(Part::Train).is_disjoint(&lines(Part::Gallery)));
    assert_eq!(Part::Gallery.classes(), Part::Queries.classes());
    let pictures = |part: Part| part.members().into_iter().collect::<HashSet<_>>();
    assert!(pictures(Part::Gallery).is_disjoint(&pictures(Part::Queries)));
}

#[test]
fn a_written_part_is_an_image_folder_with_the_pictures_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let counts = write(small(), folder.path(), Part::Queries, usize::MAX).unwrap();
    let records = open(&folder.path().join("queries"), Format::Auto, DatasetOptions::default()).unwrap();
    assert_eq!(records.records.len(), counts.rendered);
    assert_eq!(records.class_count() as u64, Part::Queries.classes().end - Part::Queries.classes().start);
    assert_eq!(records.ignored_files, 0);
    let class = Part::Queries.classes().start;
    let path = folder.path().join(format!("queries/product-{class}/05.png"));
    assert_eq!(RgbPicture::from_path(&path, &Default::default()).unwrap(), small().picture(class, 5));
}

#[test]
fn a_stopped_drawing_goes_on_and_a_finished_one_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let error = write(small(), folder.path(), Part::Gallery, 10).unwrap_err();
    let SyntheticError::Stopped { done, total } = error else { panic!("{error}") };
    assert!((10..=12).contains(&done), "{done}");
    // What a killed run leaves behind is not in the way.
    let class = Part::Gallery.classes().start;
    fs::write(folder.path().join(format!("gallery/product-{class}/.00.png.7-0.partial")), b"half").unwrap();
    let counts = write(small(), folder.path(), Part::Gallery, usize::MAX).unwrap();
    assert_eq!(counts, RenderCounts { rendered: total - done, kept: done });
    let counts = write(small(), folder.path(), Part::Gallery, usize::MAX).unwrap();
    assert_eq!(counts, RenderCounts { rendered: 0, kept: total });
}

#[test]
fn foreign_and_altered_files_are_named_and_left_as_they_are() {
    let class = Part::Queries.classes().start;
    for name in ["holiday.jpg", "product-0/05.png", &format!("product-{class}/05.jpg")] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queries").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, b"mine").unwrap();
        let error = write(small(), folder.path(), Part::Queries, usize::MAX).unwrap_err();
        assert!(
            matches!(&error, SyntheticError::Foreign { path: found } if path.starts_with(found)),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }
    let folder = tempfile::tempdir().unwrap();
    write(small(), folder.path(), Part::Queries, usize::MAX).unwrap();
    let path = folder.path().join(format!("queries/product-{class}/06.png"));
    fs::write(&path, b"mine").unwrap();
    let error = write(small(), folder.path(), Part::Queries, usize::MAX).unwrap_err();
    assert!(matches!(&error, SyntheticError::Altered { path: found } if *found == path), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"mine");
}
