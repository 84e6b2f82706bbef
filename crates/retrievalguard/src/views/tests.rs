use super::*;

/// A picture whose pixels are all different.
fn picture(channels: usize, height: usize, width: usize) -> Vec<f32> {
    let count = channels * height * width;
    (0..count).map(|place| place as f32 / count as f32).collect()
}

fn only(view: View, shape: [usize; 3]) -> Vec<f32> {
    let set = ViewSet::new("test", vec![view]).unwrap();
    let views = set.for_shape(&shape).unwrap();
    views.of(&picture(shape[0], shape[1], shape[2])).next().unwrap()
}

#[test]
fn whole_pixels_are_copied_and_the_edge_goes_on() {
    let [channels, height, width] = [3, 6, 8];
    let whole = picture(channels, height, width);
    let at = |channel: usize, row: usize, column: usize| whole[(channel * height + row) * width + column];
    let left = |row: usize, column: usize| (row, (column + 2).min(width - 1));
    let up_right = |row: usize, column: usize| ((row + 1).min(height - 1), column.saturating_sub(1));
    let mirrored = |row: usize, column: usize| (row, width - 1 - column);
    let upside_down = |row: usize, column: usize| (height - 1 - row, column);
    let around = |row: usize, column: usize| (height - 1 - row, width - 1 - column);
    type From<'a> = &'a dyn Fn(usize, usize) -> (usize, usize);
    let cases: [(View, From<'_>, f32); 6] = [
        (View::named("as is"), &|row, column| (row, column), 0.0),
        (View { shift: [-0.25, 0.0], ..View::named("left") }, &left, 0.0),
        (View { shift: [0.125, -0.15], ..View::named("up right") }, &up_right, 0.0),
        (View { flip: Some(Flip::Horizontal), ..View::named("mirrored") }, &mirrored, 0.0),
        (View { flip: Some(Flip::Vertical), ..View::named("upside down") }, &upside_down, 0.0),
        (View { rotate: 180.0, ..View::named("around") }, &around, 1e-6),
    ];
    for (view, from, tolerance) in cases {
        let name = view.name.clone();
        let found = only(view, [channels, height, width]);
        for (place, found) in found.iter().enumerate() {
            let (channel, rest) = (place / (height * width), place % (height * width));
            let (row, column) = from(rest / width, rest % width);
            assert!((found - at(channel, row, column)).abs() <= tolerance, "{name}, value {place}");
        }
    }
}

#[test]
fn a_quarter_turn_is_clockwise() {
    // One bright pixel in the upper left corner goes to the upper right.
    let mut corner = vec![0.0; 25];
    corner[0] = 1.0;
    let set = ViewSet::new("turn", vec![View { rotate: 90.0, ..View::named("quarter") }]).unwrap();
    let turned = set.for_shape(&[1, 5, 5]).unwrap().of(&corner).next().unwrap();
    assert!(turned[4] > 0.999 && turned.iter().sum::<f32>() < 1.001, "{turned:?}");
}

#[test]
fn a_crop_shows_the_middle_and_a_shift_brings_it_to_the_corner() {
    // Values are a plane in both directions, which interpolation keeps.
    let whole: Vec<f32> = (0..100).map(|place| (place / 10 * 10 + place % 10) as f32 / 100.0).collect();
    let shown = |view| {
        let set = ViewSet::new("crops", vec![view]).unwrap();
        let found: Vec<f32> = set.for_shape(&[1, 10, 10]).unwrap().of(&whole).next().unwrap();
        [found[0], found[9], found[90], found[99]]
    };
    // Half of each side: from 2.25 to 6.75 in both directions.
    let middle = shown(View { crop: 0.5, ..View::named("middle") });
    let corners = [[2.25, 2.25], [2.25, 6.75], [6.75, 2.25], [6.75, 6.75]];
    for (found, [row, column]) in middle.iter().zip(corners) {
        assert!((f64::from(*found) - (10.0 * row + column) / 100.0).abs() < 1e-6, "{middle:?}");
    }
    let corner = shown(View { crop: 0.5, shift: [0.2, 0.2], ..View::named("upper left") });
    assert!((f64::from(corner[0]) - (10.0 * 0.25 + 0.25) / 100.0).abs() < 1e-6, "{corner:?}");
}

#[test]
fn values_stay_in_range_whatever_the_view_is() {
    let bright: Vec<f32> = (0..3 * 17 * 23).map(|place| (place % 2) as f32).collect();
    for step in 0..60 {
        let turn = f64::from(step) * 6.0 - 180.0;
        let shift = f64::from(step) / 200.0;
        let flip = [None, Some(Flip::Horizontal), Some(Flip::Vertical)][step as usize % 3];
        let view = View { rotate: turn, shift: [shift, -shift], crop: 0.6, flip, ..View::named("any") };
        let set = ViewSet::new("any", vec![view]).unwrap();
        let found = set.for_shape(&[3, 17, 23]).unwrap().of(&bright).next().unwrap();
        assert_eq!(found.len(), bright.len());
        assert!(found.iter().all(|value| (0.0..=1.0).contains(value)), "turned by {turn}");
    }
}

#[test]
fn sets_that_make_no_sense_are_refused_with_the_reason() {
    let as_is = || View::named("as is");
    let moved = |shift| View { shift, ..View::named("moved") };
    let many = (0..65).map(|place| View { rotate: f64::from(place), ..View::named(&place.to_string()) });
    for (views, wanted) in [
        (vec![], "view set `mine` has 0 views, wanted 1 to 64"),
        (many.collect(), "view set `mine` has 65 views, wanted 1 to 64"),
        (
            vec![as_is(), moved([0.1, 0.0]), as_is()],
            "view set `mine` has two views `as is`, wanted a name for each",
        ),
        (
            vec![as_is(), View::named("again")],
            "views `as is` and `again` are the same picture, wanted each once",
        ),
        (vec![View::named(" ")], "the name of a view is \" \", wanted 1 to 64 bytes on one line"),
        (vec![View::named("a\nb")], "the name of a view is \"a\\nb\", wanted 1 to 64 bytes on one line"),
        (
            vec![moved([0.0, -1.0])],
            "shift of view `moved` is -1, wanted less than the whole side, which would leave the picture empty",
        ),
        (
            vec![moved([f64::NAN, 0.0])],
            "shift of view `moved` is NaN, wanted less than the whole side, which would leave the picture empty",
        ),
        (
            vec![View { crop: 0.0, ..as_is() }],
            "crop of view `as is` is 0, wanted a share above 0, which would leave the picture empty, and up to 1",
        ),
        (
            vec![View { crop: 1.5, ..as_is() }],
            "crop of view `as is` is 1.5, wanted a share above 0, which would leave the picture empty, and up to 1",
        ),
        (
            vec![View { rotate: f64::INFINITY, ..as_is() }],
            "rotate of view `as is` is inf, wanted degrees from -180 to 180",
        ),
    ] {
        assert_eq!(ViewSet::new("mine", views).unwrap_err().to_string(), wanted);
    }
    assert!(matches!(ViewSet::new("", vec![as_is()]), Err(ViewError::Name { what: "a view set", .. })));
}

#[test]
fn the_size_of_a_picture_decides_what_is_left_of_it() {
    let set = |view| ViewSet::new("mine", vec![View::named("as is"), view]).unwrap();
    let refused = |view, shape: &[usize]| set(view).for_shape(shape).unwrap_err().to_string();
    let moved = |shift| View { shift, ..View::named("moved") };
    assert_eq!(
        refused(moved([0.6, 0.0]), &[3, 20, 10]),
        "40 % of view `moved` are inside a picture of 10×20 pixels, wanted at least 50 %"
    );
    assert_eq!(
        refused(moved([0.04, 0.0]), &[3, 10, 10]),
        "views `as is` and `moved` are the same picture of 10×10 pixels, wanted each once"
    );
    assert_eq!(
        refused(View { crop: 0.1, ..View::named("tiny") }, &[3, 10, 10]),
        "crop 0.1 of view `tiny` leaves 1.0 pixels of 10, wanted at least 2"
    );
    assert_eq!(
        refused(moved([0.1, 0.0]), &[100]),
        "the encoder takes inputs of shape [100], wanted channels, height and width to make views"
    );
    // A crop that the shift keeps inside loses nothing.
    set(View { crop: 0.5, shift: [0.25, 0.25], ..View::named("corner") }).for_shape(&[3, 20, 20]).unwrap();
}

#[test]
fn a_stored_set_comes_back_or_is_refused() {
    let left = View { shift: [-0.25, 0.0], flip: Some(Flip::Vertical), ..View::named("left") };
    let set = ViewSet::new("mine", vec![View::named("as is"), left]).unwrap();
    let text = serde_json::to_string(&set).unwrap();
    assert!(
        text.contains(r#""views":[{"name":"as is"},{"name":"left","shift":[-0.25,0.0],"flip":"vertical"}]"#)
    );
    assert_eq!(serde_json::from_str::<ViewSet>(&text).unwrap(), set);
    let refused = |text: &str| serde_json::from_str::<ViewSet>(text).unwrap_err().to_string();
    assert!(refused(&text.replace("-0.25", "-0.5")).contains("views of set `mine` have sha256"));
    assert!(refused(&text.replace("shift", "skew")).contains("unknown field `skew`"));
    // The name of the set is not part of what it is.
    assert_eq!(ViewSet::new("yours", set.views().to_vec()).unwrap().digest(), set.digest());
}
