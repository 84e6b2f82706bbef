//! Colours, as classes of a style sheet.
//!
//! The palette is that of Okabe and Ito (*Color Universal Design*, 2008), each hue moved until it has a contrast of at
//! least 3 to its background: darker on white, lighter on black. Their yellow cannot be and has become an olive on white.

use std::fmt::Write;

/// Which backgrounds the style sheet knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Theme {
    /// White paper alone, without a media query: for renderers that know none.
    Light,
    /// White, or black where the reader prefers it; always white on paper.
    LightAndDark,
}

/// Colours of a series on white and on black.
pub(super) const PALETTE: [(&str, &str); 8] = [
    ("#0072b2", "#4ba6dd"),
    ("#d55e00", "#f58137"),
    ("#00875f", "#2fc296"),
    ("#b0508a", "#e79cc8"),
    ("#ae7400", "#f2b632"),
    ("#2a8fc9", "#93d4f7"),
    ("#5c5c5c", "#b9b9b9"),
    ("#7c7400", "#ece04f"),
];

/// Everything else: class, property, on white, on black.
const PARTS: [(&str, &str, &str, &str); 5] = [
    ("rg-paper", "fill", "#ffffff", "#15181c"),
    ("rg-ink", "fill", "#1c1f23", "#eceef0"),
    ("rg-muted", "fill", "#575e66", "#a9b1ba"),
    ("rg-grid", "stroke", "#e3e6e9", "#2d3238"),
    ("rg-axis", "stroke", "#7b838c", "#868f99"),
];

/// The class that fills with a series' colour.
pub(super) fn fill(colour: usize) -> String {
    format!("rg-f{}", colour % PALETTE.len())
}

/// The class that strokes with a series' colour.
pub(super) fn stroke(colour: usize) -> String {
    format!("rg-s{}", colour % PALETTE.len())
}

/// The style sheet of a figure.
pub(super) fn style(theme: Theme) -> String {
    let mut sheet = rules(|(light, _)| light);
    if theme == Theme::LightAndDark {
        // Not for print: paper is white whatever the screen is.
        let dark = rules(|(_, dark)| dark);
        let _ = write!(sheet, "@media screen and (prefers-color-scheme:dark){{{dark}}}");
    }
    sheet
}

fn rules(choose: impl Fn((&'static str, &'static str)) -> &'static str) -> String {
    let mut sheet = String::new();
    for (class, property, light, dark) in PARTS {
        let _ = write!(sheet, ".{class}{{{property}:{}}}", choose((light, dark)));
    }
    for (place, &colours) in PALETTE.iter().enumerate() {
        let colour = choose(colours);
        let _ = write!(sheet, ".rg-s{place}{{stroke:{colour}}}.rg-f{place}{{fill:{colour}}}");
    }
    sheet
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance as the Web Content Accessibility Guidelines define it.
    fn luminance(colour: &str) -> f64 {
        let channel = |place: usize| {
            let value = f64::from(u8::from_str_radix(&colour[place..place + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
        one.max(other) / one.min(other)
    }

    #[test]
    fn every_colour_stands_out_from_both_backgrounds() {
        let (_, _, white, black) = PARTS[0];
        for (light, dark) in PALETTE {
            assert!(contrast(light, white) >= 3.0, "{light} {}", contrast(light, white));
            assert!(contrast(dark, black) >= 3.0, "{dark} {}", contrast(dark, black));
        }
        for (class, _, light, dark) in &PARTS[1..3] {
            assert!(contrast(light, white) >= 4.5 && contrast(dark, black) >= 4.5, "text {class}");
        }
    }

    #[test]
    fn only_the_theme_for_both_asks_what_the_reader_prefers() {
        assert!(!style(Theme::Light).contains('@'));
        assert!(style(Theme::LightAndDark).contains("prefers-color-scheme:dark"));
    }
}
