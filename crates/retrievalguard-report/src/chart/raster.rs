//! From SVG to PNG, with fonts that the program brings along.

use std::sync::{Arc, LazyLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::{Options, Tree, fontdb};

/// The most pixels of a side.
const MOST_PIXELS: f32 = 16_000.0;

/// Why a figure could not be turned into pixels.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FigureError {
    /// No picture has that size.
    #[error(
        "a figure of {width} by {height} units at scale {scale} cannot be rendered, wanted sides from 1 to {MOST_PIXELS} pixels"
    )]
    Size {
        /// Units across.
        width: f32,
        /// Units down.
        height: f32,
        /// Pixels per unit that were asked for.
        scale: f32,
    },
    /// The renderer refused the drawing.
    #[error("the figure is not an SVG that can be rendered")]
    Drawing(#[from] resvg::usvg::Error),
    /// The pixels could not be written as PNG.
    #[error("the figure could not be encoded as PNG: {0}")]
    Encoding(String),
}

/// Ubuntu has letters and Greek; Hack has the few signs that it lacks, such as ‖.
static FONTS: LazyLock<Arc<fontdb::Database>> = LazyLock::new(|| {
    let mut fonts = fontdb::Database::new();
    for font in [epaint_default_fonts::UBUNTU_LIGHT, epaint_default_fonts::HACK_REGULAR] {
        fonts.load_font_source(fontdb::Source::Binary(Arc::new(font)));
    }
    fonts.set_sans_serif_family("Ubuntu");
    Arc::new(fonts)
});

/// The drawing as the renderer understands it.
pub(super) fn parse(svg: &str) -> Result<Tree, FigureError> {
    let options = Options { fontdb: Arc::clone(&FONTS), ..Options::default() };
    Ok(Tree::from_str(svg, &options)?)
}

/// Renders a drawing with `scale` pixels per unit.
pub(super) fn png(svg: &str, scale: f32) -> Result<Vec<u8>, FigureError> {
    let tree = parse(svg)?;
    let (width, height) = (tree.size().width(), tree.size().height());
    let refused = || FigureError::Size { width, height, scale };
    let sides = [width * scale, height * scale].map(f32::ceil);
    if !sides.iter().all(|side| (1.0..=MOST_PIXELS).contains(side)) {
        return Err(refused());
    }
    let mut pixels = Pixmap::new(sides[0] as u32, sides[1] as u32).ok_or_else(refused)?;
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| FigureError::Encoding(error.to_string()))
}
