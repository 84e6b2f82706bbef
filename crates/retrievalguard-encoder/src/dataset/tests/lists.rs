//! Folders and lists of text.

use std::fs;

use super::super::{
    Boxes, DatasetError, DatasetOptions, Format, NamedSplit, PictureSource, Role, Split, open,
};
use super::{folder, identities, labels, open_guessed};
use crate::picture::PixelBox;

#[test]
fn an_image_folder_is_read_in_sorted_order_and_other_files_are_counted() {
    let root = folder(&[
        ("pear/b.JPG", b""),
        ("pear/a.png", b""),
        ("apple/red/deep/1.webp", b""),
        ("apple/notes.txt", b""),
        ("README", b""),
    ]);
    let dataset = open_guessed(root.path()).unwrap();
    assert_eq!(dataset.format, Format::ImageFolder);
    assert_eq!(identities(&dataset), ["apple/red/deep/1.webp", "pear/a.png", "pear/b.JPG"]);
    assert_eq!(labels(&dataset), ["apple", "pear", "pear"]);
    assert_eq!((dataset.ignored_files, dataset.class_count()), (2, 2));
    assert_eq!(dataset.records[1].source, PictureSource::File(root.path().join("pear").join("a.png")));
    let error = dataset.select(NamedSplit::Train).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the data set, in the format image-folder, has no split train: it does not mark any, so all of it is used \
         without one"
    );
}

#[test]
fn a_picture_outside_the_class_folders_is_unlabelled() {
    let root = folder(&[("pear/a.png", b""), ("stray.jpg", b"")]);
    let error = open_guessed(root.path()).unwrap_err();
    assert!(matches!(&error, DatasetError::Unlabelled { path } if path.ends_with("stray.jpg")), "{error:?}");
    assert!(error.to_string().contains("has no label: it is in no class folder"), "{error}");
}

#[test]
fn a_folder_without_pictures_is_empty_and_a_missing_one_is_named() {
    let root = folder(&[("pear/notes.txt", b"")]);
    assert!(matches!(open_guessed(root.path()), Err(DatasetError::Empty { ignored: 1, .. })));
    let missing = root.path().join("nowhere");
    assert!(matches!(open_guessed(&missing), Err(DatasetError::Read { path, .. }) if path == missing));
    let file = root.path().join("pear/notes.txt");
    assert!(matches!(open_guessed(&file), Err(DatasetError::UnknownFormat { .. })));
}

#[cfg(unix)]
#[test]
fn a_circle_of_links_is_refused() {
    let root = folder(&[("pear/notes.txt", b"")]);
    std::os::unix::fs::symlink(root.path().join("pear"), root.path().join("pear/again")).unwrap();
    assert!(matches!(open_guessed(root.path()), Err(DatasetError::Depth { limit: 32, .. })));
}

const LIST: &str = "label,path,split,is_query,is_gallery,category,x_1,x_2,y_1,y_2\n\
    7,a.jpg,train,,,fruit,,,,\n\
    \"8, ripe\",\"sub/b \"\"x\"\".jpg\",validation,True,False,,1.0,10.0,2,20\n\
    9,c.jpg,validation,False,1,,,,,\n\
    9,c.jpg,validation,true,TRUE,,0,5,0,5\n";

#[test]
fn a_list_gives_roles_splits_boxes_and_quoted_fields() {
    let root = folder(&[("list.csv", LIST.as_bytes())]);
    let dataset = open_guessed(&root.path().join("list.csv")).unwrap();
    assert_eq!(identities(&dataset), ["a.jpg", "sub/b \"x\".jpg#1,2,10,20", "c.jpg", "c.jpg#0,0,5,5"]);
    assert_eq!(labels(&dataset), ["7", "8, ripe", "9", "9"]);
    let roles: Vec<Role> = dataset.records.iter().map(|record| record.role).collect();
    assert_eq!(roles, [Role::Unassigned, Role::Query, Role::Gallery, Role::Both]);
    assert_eq!(dataset.records[0].split, Some(Split::Train));
    assert_eq!(dataset.records[0].category.as_deref(), Some("fruit"));
    assert_eq!(dataset.records[1].crop, Some(PixelBox { left: 1, top: 2, right: 10, bottom: 20 }));
    assert_eq!(dataset.records[1].source, PictureSource::File(root.path().join("sub/b \"x\".jpg")));
    assert_eq!(dataset.select(NamedSplit::Validation).unwrap().records.len(), 3);

    // Without their boxes two rows are the same picture.
    let options = DatasetOptions { boxes: Boxes::Ignore };
    let error = open(&root.path().join("list.csv"), Format::Csv, options).unwrap_err();
    assert!(matches!(&error, DatasetError::Duplicate { identity, .. } if identity == "c.jpg"), "{error:?}");
}

#[test]
fn a_list_with_a_fault_is_refused_with_the_line() {
    let header = "label,path,split,is_query,is_gallery\n";
    let boxed = "label,path,split,is_query,is_gallery,x_1,y_1,x_2,y_2\n";
    let cases = [
        (
            header,
            "1,a.jpg,train,,\n2,b.jpg,validation,yes,\n",
            3,
            "is_query is `yes`, wanted True, False or nothing",
        ),
        (header, "1,a.jpg,trian,,\n", 2, "split is `trian`, wanted train, validation or test"),
        (header, "1,a.jpg,train,\n", 2, "4 fields, wanted 5, as in the header"),
        (header, ",a.jpg,train,,\n", 2, "label is ``, wanted some text"),
        (header, "1,\"a\nb.jpg\",train,,\n1,,train,,\n", 4, "path is ``, wanted some text"),
        (boxed, "1,a.jpg,train,,,1,2,,9\n", 2, "x_2 is ``, wanted a number of pixels, 0 or more"),
        (boxed, "1,a.jpg,train,,,-1,2,3,9\n", 2, "x_1 is `-1`, wanted a number of pixels, 0 or more"),
        (
            boxed,
            "1,a.jpg,train,,,5,2,3,9\n",
            2,
            "the box is `(5, 2) to (3, 9)`, wanted x_1 below x_2 and y_1 below y_2",
        ),
    ];
    for (header, rows, expected, words) in cases {
        let root = folder(&[("list.csv", format!("{header}{rows}").as_bytes())]);
        let error = open_guessed(&root.path().join("list.csv")).unwrap_err();
        assert!(matches!(&error, DatasetError::Line { line, .. } if *line == expected), "{rows}: {error:?}");
        assert!(error.to_string().ends_with(words), "{rows}: {error}");
    }
}

#[test]
fn a_list_without_a_column_says_which() {
    let cases = [
        ("label,path,split,is_gallery\n", "is_query"),
        ("path,split,is_query,is_gallery\n", "label"),
        ("label,path,split,is_query,is_gallery,x_1,x_2,y_2\n", "y_1"),
        ("", "label"),
    ];
    for (header, expected) in cases {
        let root = folder(&[("list.csv", header.as_bytes())]);
        let error = open_guessed(&root.path().join("list.csv")).unwrap_err();
        assert!(
            matches!(&error, DatasetError::MissingColumn { column, .. } if column == expected),
            "{header}: {error:?}"
        );
    }
    let marked =
        folder(&[("list.csv", "\u{feff}label,path,split,is_query,is_gallery\n1,a.jpg,test,,\n".as_bytes())]);
    assert_eq!(open_guessed(&marked.path().join("list.csv")).unwrap().records[0].split, Some(Split::Test));
}

#[test]
fn cub_is_split_by_class() {
    let pictures = "1 001.Albatross/a.jpg\n2 100.Gull/b.jpg\n3 101.Pelican/c.jpg\n4 200.Yellowthroat/d.jpg\n";
    let classes = "1 1\n2 100\n3 101\n4 200\n";
    let root = folder(&[("images.txt", pictures.as_bytes()), ("image_class_labels.txt", classes.as_bytes())]);
    let dataset = open_guessed(root.path()).unwrap();
    assert_eq!(dataset.format, Format::Cub);
    let source = root.path().join("images").join("001.Albatross/a.jpg");
    assert_eq!(dataset.records[0].source, PictureSource::File(source));
    assert_eq!(labels(&dataset.select(NamedSplit::CubTrain).unwrap()), ["1", "100"]);
    assert_eq!(
        identities(&dataset.select(NamedSplit::CubTest).unwrap()),
        ["101.Pelican/c.jpg", "200.Yellowthroat/d.jpg"]
    );
    let error = dataset.select(NamedSplit::CarsTest).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the data set, in the format cub, has no split cars/test, wanted one of train, test, cub/train, cub/test"
    );
    let error = dataset.select(NamedSplit::Validation).unwrap_err();
    assert!(matches!(error, DatasetError::NoSuchSplit { split: NamedSplit::Validation, .. }), "{error}");

    for (pictures, classes, expected) in [
        ("1 a.jpg\n", "1 201\n", 1),
        ("1 a.jpg\n", "1 0\n", 1),
        ("1 a.jpg\n2 b.jpg\n", "1 1\n", 2),
        ("one a.jpg\n", "1 1\n", 1),
        ("1\n", "1 1\n", 1),
    ] {
        fs::write(root.path().join("images.txt"), pictures).unwrap();
        fs::write(root.path().join("image_class_labels.txt"), classes).unwrap();
        let error = open_guessed(root.path()).unwrap_err();
        assert!(
            matches!(&error, DatasetError::Line { line, .. } if *line == expected),
            "{pictures}: {error:?}"
        );
    }
    fs::remove_file(root.path().join("images.txt")).unwrap();
    let error = open(root.path(), Format::Cub, DatasetOptions::default()).unwrap_err();
    assert!(matches!(&error, DatasetError::MissingFile { file, .. } if file == "images.txt"), "{error:?}");
}

#[test]
fn online_products_are_read_in_both_layouts_and_the_paper_takes_the_first_thousand_classes() {
    let header = "image_id class_id super_class_id path\n";
    let train =
        format!("{header}1 1 1 bicycle_final/111085122871_0.JPG\n2 1 1 bicycle_final/111085122871_1.JPG\n");
    let mut test = header.to_owned();
    for number in 0..2_004 {
        let class = 11_319 + number / 2;
        test += &format!("{} {class} 2 cabinet_final/{class}_{}.JPG\n", 59_552 + number, number % 2);
    }
    let flat = folder(&[("Ebay_train.txt", train.as_bytes()), ("Ebay_test.txt", test.as_bytes())]);
    let nested = folder(&[
        ("Info_Files/Ebay_train.txt", train.as_bytes()),
        ("Info_Files/Ebay_test.txt", test.as_bytes()),
    ]);
    let dataset = open_guessed(flat.path()).unwrap();
    let same = open_guessed(nested.path()).unwrap();
    assert_eq!((dataset.format, same.format), (Format::OnlineProducts, Format::OnlineProducts));
    assert_eq!(identities(&dataset), identities(&same));
    let path = "bicycle_final/111085122871_0.JPG";
    assert_eq!(dataset.records[0].source, PictureSource::File(flat.path().join(path)));
    assert_eq!(same.records[0].source, PictureSource::File(nested.path().join("images").join(path)));
    assert_eq!(dataset.records[0].category.as_deref(), Some("1"));
    for (split, records, classes) in [
        (NamedSplit::ProductsTrain, 2, 1),
        (NamedSplit::ProductsTest, 2_004, 1_002),
        (NamedSplit::ProductsPaper, 2_000, 1_000),
    ] {
        let part = dataset.select(split).unwrap();
        assert_eq!((part.records.len(), part.class_count()), (records, classes), "{split}");
    }
    for (rows, expected) in
        [("1 1 1 a.jpg\n", 1), (&format!("{header}1 1 a.jpg\n"), 2), (&format!("{header}1 0 1 a.jpg\n"), 2)]
    {
        fs::write(flat.path().join("Ebay_train.txt"), rows).unwrap();
        let error = open_guessed(flat.path()).unwrap_err();
        assert!(matches!(&error, DatasetError::Line { line, .. } if *line == expected), "{rows}: {error:?}");
    }
    fs::remove_file(flat.path().join("Ebay_train.txt")).unwrap();
    assert!(matches!(open_guessed(flat.path()), Err(DatasetError::MissingFile { .. })));
}

#[test]
fn splits_and_formats_are_known_by_their_names() {
    for split in NamedSplit::ALL {
        assert_eq!(split.name().parse::<NamedSplit>().unwrap(), split);
    }
    let error = "cub".parse::<NamedSplit>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "split is `cub`, wanted one of train, validation, test, cub/train, cub/test, cars/train, cars/test, sop/train, \
         sop/test, sop/paper"
    );
    for format in Format::ALL {
        assert_eq!(format.name().parse::<Format>().unwrap(), format);
    }
    let error = "zip".parse::<Format>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "format is `zip`, wanted one of auto, image-folder, csv, cub, cars, sop, idx"
    );
}
