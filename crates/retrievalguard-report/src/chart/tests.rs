use resvg::usvg::{Group, Node, Rect, Tree};

use super::*;

/// A figure with every kind of scale and mark, and with names that are out to do harm.
fn everything() -> Figure {
    let falling = |count: u32| -> Vec<(f64, f64)> {
        (0..count).map(|place| (f64::from(place) * 0.05, 1.0 - f64::from(place) / f64::from(count))).collect()
    };
    let band = |points: &[(f64, f64)]| points.iter().map(|&(_, y)| (y - 0.05, y + 0.05)).collect();
    let marked = |marks| Series::new("both <b>&</b> \"quoted\"", 1, falling(12)).marks(marks);
    let steps = Series::new("steps", 2, falling(12)).marks(Marks::Steps).dash(Dash::Dotted);
    let names =
        ["paper", "paper-repaired", "half-space-mean", "<script>alert(1)</script>"].map(str::to_owned);
    Figure {
        title: "Every mark <script>alert('title')</script> & a title that is longer than one line of it can be, σ".into(),
        note: "retrievalguard report run --out somewhere/report.html · 0123456789abcdef · 1970-01-01".into(),
        panels: vec![
            Panel {
                title: "Lines: ‖δ‖₂ ≤ r, α = 0.01".into(),
                x: Axis::linear("radius r (l2, pixels in [0, 1])"),
                y: Axis::linear("recall@1 at r").range(0.0, 1.0),
                series: vec![
                    marked(Marks::LineAndPoints),
                    steps.clone().band(band(&steps.points)),
                    Series::new("broken", 3, vec![(0.0, f64::NAN), (0.1, 0.2), (f64::INFINITY, 0.3)]),
                    Series::new("empty", 4, vec![]),
                ],
            },
            Panel {
                title: "Logarithmic".into(),
                x: Axis::log10("samples n"),
                y: Axis::log10("radius"),
                series: vec![
                    Series::new("points", 0, vec![(100.0, 0.01), (1e5, 0.5), (0.0, 1.0)]).marks(Marks::Points),
                ],
            },
            Panel {
                title: "Bars".into(),
                x: Axis::linear("share of queries").range(0.0, 1.0),
                y: Axis::names("certificate", names.to_vec()),
                series: (0..3)
                    .map(|part| {
                        let points = (0..4).map(|place| (0.3, f64::from(place))).collect();
                        Series::new(format!("part {part}"), part, points).marks(Marks::Stacked)
                    })
                    .collect(),
            },
            Panel {
                title: "Names below".into(),
                x: Axis::names("certificate", names.to_vec()),
                y: Axis::linear("mean radius"),
                series: (0..2)
                    .map(|part| {
                        let points: Vec<_> = (0..4).map(|place| (f64::from(place), 0.3)).collect();
                        let whiskers = band(&points);
                        Series::new(format!("bar {part}"), part, points).marks(Marks::Bars).band(whiskers)
                    })
                    .collect(),
            },
            Panel { title: String::new(), x: Axis::linear(""), y: Axis::linear(""), series: vec![] },
        ],
    }
}

fn one(series: Vec<Series>) -> Figure {
    let panel = Panel { title: String::new(), x: Axis::linear("x"), y: Axis::linear("y"), series };
    Figure { title: "One".into(), note: String::new(), panels: vec![panel] }
}

/// The boxes of all texts, as the renderer sets them.
fn texts(group: &Group, found: &mut Vec<(String, Rect)>) {
    for node in group.children() {
        match node {
            Node::Group(group) => texts(group, found),
            Node::Text(text) => {
                let content = text.chunks().iter().map(|chunk| chunk.text()).collect();
                found.push((content, text.abs_bounding_box()));
            }
            Node::Path(_) | Node::Image(_) => {}
        }
    }
}

fn boxes(tree: &Tree) -> Vec<(String, Rect)> {
    let mut found = Vec::new();
    texts(tree.root(), &mut found);
    found
}

#[test]
fn the_same_figure_is_the_same_bytes() {
    assert_eq!(everything().svg(), everything().svg());
    assert_eq!(everything().png(1.0).unwrap(), everything().png(1.0).unwrap());
}

#[test]
fn hostile_names_stay_text() {
    let svg = everything().svg();
    assert!(!svg.contains("<script") && svg.contains("&lt;script&gt;"));
    assert!(!svg.contains("<b>") && svg.contains("&lt;b&gt;&amp;"));
    let control = one(vec![Series::new("a\u{0}\u{8}b", 0, vec![(0.0, 1.0)])]);
    assert!(raster::parse(&control.svg()).is_ok());
}

#[test]
fn every_text_is_inside_the_view_and_none_covers_another() {
    for layout in [Layout::NARROW, Layout::usual(1), Layout::usual(5), Layout { width: 700.0, columns: 2 }] {
        let tree = raster::parse(&everything().svg_in(layout)).unwrap();
        let boxes = boxes(&tree);
        assert!(boxes.len() > 40, "{}", boxes.len());
        let size = tree.size();
        for (text, place) in &boxes {
            let inside = place.left() >= 0.0
                && place.top() >= 0.0
                && place.right() <= size.width()
                && place.bottom() <= size.height();
            assert!(inside, "{layout:?}: `{text}` at {place:?} leaves {size:?}");
        }
        for (place, (one, first)) in boxes.iter().enumerate() {
            for (other, second) in &boxes[..place] {
                let apart = first.left() >= second.right()
                    || second.left() >= first.right()
                    || first.top() >= second.bottom() - 1.0
                    || second.top() >= first.bottom() - 1.0;
                // The box of a slanted text is larger than the text.
                let slanted = |place: &Rect| place.height() > 40.0;
                assert!(apart || slanted(first) || slanted(second), "{layout:?}: `{one}` covers `{other}`");
            }
        }
    }
}

#[test]
fn a_picture_decodes_and_is_not_blank() {
    let png = everything().png(2.0).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut pixels).unwrap();
    assert_eq!(frame.width, 2120);
    let colours: std::collections::HashSet<[u8; 3]> =
        pixels.chunks_exact(4).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
    for (name, colour) in
        [("white", [255, 255, 255]), ("blue", [0, 0x72, 0xb2]), ("vermilion", [0xd5, 0x5e, 0])]
    {
        assert!(colours.contains(&colour), "no {name} among {} colours", colours.len());
    }
}

#[test]
fn every_sign_of_the_theory_has_a_glyph() {
    let drawn = |title: &str| {
        let figure = Figure { title: title.to_owned(), note: String::new(), panels: vec![] };
        raster::png(&figure.svg(), 1.0).unwrap()
    };
    // A sign of nobody's: fonts draw the same empty box for everything they lack.
    let (blank, lacking) = (drawn("r"), drawn("r\u{e123}"));
    for sign in "σαδεΦ‖₂≤≥−·×√⁻¹²…–".chars() {
        let picture = drawn(&format!("r{sign}"));
        assert!(picture != blank && picture != lacking, "{sign}");
    }
}

#[test]
fn a_figure_without_anything_is_still_a_file() {
    let nothing = Figure { title: String::new(), note: String::new(), panels: vec![] };
    assert!(raster::parse(&nothing.svg()).is_ok());
    assert!(one(vec![]).svg().contains("nothing to show"));
    let unseen = Series::new("unseen", 0, vec![(f64::NAN, 1.0), (1.0, f64::INFINITY)]);
    assert!(one(vec![unseen]).svg().contains("nothing to show"));
    assert!(!one(vec![Series::new("seen", 0, vec![(1.0, 1.0)])]).svg().contains("nothing to show"));
}

#[test]
fn no_coordinate_is_ever_other_than_a_number() {
    let values =
        [0.0, -0.0, 1.0, -1.0, 1e300, -1e300, 1e-300, f64::MAX, f64::MIN_POSITIVE, f64::NAN, f64::INFINITY];
    let points: Vec<(f64, f64)> = values.iter().flat_map(|&x| values.map(|y| (x, y))).collect();
    for marks in [Marks::Line, Marks::Steps, Marks::Points, Marks::LineAndPoints, Marks::Bars, Marks::Stacked]
    {
        for scale in [Scale::Linear, Scale::Log10, Scale::Names(vec!["a".into(), "b".into()])] {
            let mut figure = one(vec![Series::new("s", 9, points.clone()).marks(marks).band(points.clone())]);
            figure.panels[0].x.scale = scale.clone();
            figure.panels[0].y.scale = scale.clone();
            let svg = figure.svg();
            let svg = &svg[svg.find("</style>").unwrap()..];
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{marks:?} {scale:?}");
        }
    }
}

#[test]
fn a_name_is_in_the_legend_once_and_words_go_to_screen_readers() {
    let mut figure = one(vec![Series::new("half-space", 0, vec![(0.0, 1.0)])]);
    figure.panels.push(figure.panels[0].clone());
    let svg = figure.svg();
    assert_eq!(svg.matches(">half-space</text>").count(), 1);
    assert!(svg.contains("role=\"img\"") && svg.contains("<title>One</title>"));
    assert!(svg.contains("Across: x. Up: y. Shown: half-space (1 points)."));
}

#[test]
fn a_scale_without_a_picture_is_refused() {
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e6] {
        assert!(matches!(everything().png(scale), Err(FigureError::Size { .. })), "{scale}");
    }
}
