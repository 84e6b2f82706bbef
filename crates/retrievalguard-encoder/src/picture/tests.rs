use std::path::{Path, PathBuf};

use super::{PictureError, PictureFormat, PictureLimits, PixelBox, RgbPicture};

fn reference(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/pictures")
}

fn decode(bytes: &[u8]) -> Result<RgbPicture, PictureError> {
    RgbPicture::from_bytes("shelf/one", bytes, &PictureLimits::default())
}

/// A PNG file that says it has the given size and holds next to nothing.
fn png_of(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = reference("png-colour.png");
    bytes[16..20].copy_from_slice(&width.to_be_bytes());
    bytes[20..24].copy_from_slice(&height.to_be_bytes());
    let mut sum = flate2::Crc::new();
    sum.update(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&sum.sum().to_be_bytes());
    bytes
}

#[test]
fn a_decompression_bomb_is_refused_by_its_header() {
    let error = decode(&png_of(60_000, 60_000)).unwrap_err();
    assert!(matches!(error, PictureError::PixelCount { width: 60_000, height: 60_000, .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        "picture `shelf/one` claims 60000 × 60000 pixels, wanted between 1 and 100000000"
    );
    let mut jpeg = reference("edges-45x67-422-progressive.jpg");
    let frame = jpeg.windows(2).position(|pair| pair == [0xFF, 0xC2]).unwrap();
    jpeg[frame + 5..frame + 9].fill(0xFF);
    assert!(matches!(decode(&jpeg), Err(PictureError::PixelCount { width: 65_535, height: 65_535, .. })));
    jpeg[frame + 5..frame + 9].fill(0);
    assert!(matches!(decode(&jpeg), Err(PictureError::PixelCount { width: 0, height: 0, .. })));
}

#[test]
fn more_pixels_than_the_file_can_hold_are_refused_before_memory_is_taken() {
    let error = decode(&png_of(9_000, 9_000)).unwrap_err();
    let found = reference("png-colour.png").len();
    assert_eq!(
        error.to_string(),
        format!(
            "picture `shelf/one` is a broken PNG file: its header announces 9000x9000 pixels, which take at least \
             235465 bytes, and it has {found}"
        )
    );
    for (name, frame) in [("edges-45x67-422-progressive.jpg", 0xC2), ("noise-17x15-420.jpg", 0xC0)] {
        let mut jpeg = reference(name);
        let frame = jpeg.windows(2).position(|pair| pair == [0xFF, frame]).unwrap();
        jpeg[frame + 5..frame + 9].copy_from_slice(&[9_000_u16.to_be_bytes(); 2].concat());
        let error = decode(&jpeg).unwrap_err().to_string();
        assert!(
            error.contains("its header announces 9000x9000 pixels, which take at least"),
            "{name}: {error}"
        );
    }
}

#[test]
fn a_frame_larger_than_its_canvas_is_refused_before_memory_is_taken() {
    let mut webp = reference("webp-lossy-alpha.webp");
    let start = webp.windows(3).position(|code| code == [0x9D, 0x01, 0x2A]).unwrap();
    webp[start + 3..start + 7].fill(0xFF);
    let error = decode(&webp).unwrap_err().to_string();
    assert!(error.contains("its frame has 16383x16383 pixels on a canvas of "), "{error}");
}

#[test]
fn a_picture_that_needs_too_much_memory_is_refused() {
    for name in ["edges-131x47-420-progressive.jpg", "png-colour.png", "webp-lossy.webp"] {
        let bytes = reference(name);
        let limits = PictureLimits { bytes: bytes.len() as u64 + 1, ..PictureLimits::default() };
        let error = RgbPicture::from_bytes(name, &bytes, &limits).unwrap_err();
        assert!(matches!(error, PictureError::Memory { .. }), "{name}: {error:?}");
        let limits = PictureLimits { bytes: bytes.len() as u64 - 1, ..PictureLimits::default() };
        let error = RgbPicture::from_path(&folder().join(name), &limits).unwrap_err();
        assert!(matches!(error, PictureError::Memory { .. }), "{name}: {error:?}");
    }
}

#[test]
fn a_picture_cut_anywhere_is_an_error_that_names_it() {
    for name in
        ["noise-17x15-420.jpg", "noise-16x16-420.jpg", "noise-1x40-422-progressive.jpg", "webp-lossy.webp"]
    {
        let bytes = reference(name);
        // A sequential JPEG that lacks nothing but its end marker is whole.
        let tolerated = if name.ends_with("420.jpg") { 2 } else { 0 };
        for length in 0..bytes.len() - tolerated {
            let error = decode(&bytes[..length]).map(|_| ()).expect_err(&format!("{name}, {length} bytes"));
            assert!(error.to_string().contains("`shelf/one`"), "{error}");
        }
    }
    let bytes = reference("png-colour.png");
    let pixels_end = bytes.windows(4).position(|name| name == b"IEND").unwrap() - 8;
    for length in 0..pixels_end - 4 {
        assert!(decode(&bytes[..length]).is_err(), "PNG, {length} bytes");
    }
    let jpeg = reference("edges-97x61-420.jpg");
    let error = decode(&jpeg[..jpeg.len() / 2]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "picture `shelf/one` is a broken JPEG file: its compressed pixels end early"
    );
}

#[test]
fn damaged_bytes_never_cause_a_panic() {
    let names = [
        "noise-33x47-420.jpg",
        "noise-49x35-420-progressive.jpg",
        "stripes-43x43-420-progressive.jpg",
        "stripes-39x51-422.jpg",
        "cmyk-45x31.jpg",
        "turned-6.jpg",
        "png-palette.png",
        "png-grey-16.png",
        "webp-lossy-alpha.webp",
        "webp-lossless.webp",
    ];
    let limits = PictureLimits { pixels: 1 << 16, ..PictureLimits::default() };
    for name in names {
        let bytes = reference(name);
        let mut state = 1_u64;
        for _ in 0..1_000 {
            let mut damaged = bytes.clone();
            for _ in 0..3 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % damaged.len();
                damaged[at] = (state >> 24) as u8;
            }
            let _ = RgbPicture::from_bytes(name, &damaged, &limits);
        }
    }
}

#[test]
fn bytes_of_another_kind_are_named() {
    let cases: [(&[u8], &str); 3] = [
        (b"", "nothing (it is empty)"),
        (b"GIF89a", "bytes 47 49 46 38 39 61"),
        (b"<html><body>", "bytes 3c 68 74 6d 6c 3e 3c 62"),
    ];
    for (bytes, words) in cases {
        let error = decode(bytes).unwrap_err();
        assert!(matches!(&error, PictureError::UnknownFormat { found, .. } if found == words), "{error}");
    }
    let missing = RgbPicture::from_path(Path::new("no/such.jpg"), &PictureLimits::default()).unwrap_err();
    assert!(matches!(missing, PictureError::Read { .. }), "{missing:?}");
}

#[test]
fn arithmetic_coding_and_twelve_bits_are_refused_by_name() {
    let bytes = reference("noise-16x16-420.jpg");
    let frame = bytes.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    for (at, value, words) in [(frame + 1, 0xC9, "arithmetic coding"), (frame + 4, 12, "12 bits per sample")]
    {
        let mut changed = bytes.clone();
        changed[at] = value;
        let error = decode(&changed).unwrap_err();
        assert!(matches!(&error, PictureError::Unsupported { feature, .. } if feature == words), "{error}");
    }
}

#[test]
fn a_box_is_cut_off_at_the_edges_and_refused_outside() {
    let picture = RgbPicture::from_grey("grid", 3, 2, &[0, 1, 2, 10, 11, 12]).unwrap();
    let part = picture.cropped("grid", PixelBox { left: 1, top: 1, right: 9, bottom: 9 }).unwrap();
    assert_eq!((part.width(), part.height()), (2, 1));
    assert_eq!(part.pixels(), [11, 11, 11, 12, 12, 12]);
    for (left, top, right, bottom) in [(3, 0, 4, 1), (0, 2, 1, 3), (1, 0, 1, 2), (2, 0, 1, 2)] {
        let error = picture.cropped("grid", PixelBox { left, top, right, bottom }).unwrap_err();
        assert!(matches!(error, PictureError::Box { .. }), "{error:?}");
    }
    assert!(matches!(RgbPicture::from_grey("grid", 3, 3, &[0; 8]), Err(PictureError::PixelBytes { .. })));
}

#[test]
fn picture_names_end_like_pictures() {
    for (name, expected) in
        [("a.JPG", true), ("b.jpeg", true), ("c.webp", true), ("d.txt", false), ("png", false)]
    {
        assert_eq!(PictureFormat::has_picture_name(Path::new(name)), expected, "{name}");
    }
}
