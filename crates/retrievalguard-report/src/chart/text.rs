//! How wide words are, as far as one can know before a font is chosen.

/// Wide enough for the usual sans-serif fonts at this size; most are narrower.
///
/// A browser chooses the font of an SVG, so no exact width exists. The average is that of DejaVu Sans, the widest of
/// the common ones.
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(|sign| share(sign) * size).sum()
}

/// Advance of a character in ems.
fn share(sign: char) -> f64 {
    match sign {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' | 'I' | '(' | ')' | '[' | ']' => {
            0.38
        }
        'f' | 'r' | 't' | '-' | '/' => 0.42,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.98,
        'A'..='Z' | '\u{2212}' | '\u{2264}' => 0.72,
        // Signs as wide as they are high, as in Chinese and Japanese.
        '\u{1100}'.. if !('\u{2000}'..='\u{22ff}').contains(&sign) => 1.0,
        _ => 0.62,
    }
}

/// Lines of at most `room`, broken between words; a word that is longer is cut.
pub(super) fn wrap(text: &str, size: f64, room: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let longer = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
        if width(&longer, size) <= room {
            line = longer;
            continue;
        }
        if !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        for sign in word.chars() {
            if !line.is_empty() && width(&line, size) + width(sign.encode_utf8(&mut [0; 4]), size) > room {
                lines.push(std::mem::take(&mut line));
            }
            line.push(sign);
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// The text, or as much of its beginning as has room, with an ellipsis.
pub(super) fn shortened(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = width("…", size);
    for sign in text.chars() {
        used += share(sign) * size;
        if used > room {
            break;
        }
        kept.push(sign);
    }
    kept.push('…');
    kept
}

/// The text without the signs that no XML file may hold.
pub(super) fn printable(text: &str) -> String {
    let allowed = |sign: &char| !sign.is_control() && !matches!(sign, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|sign| if sign.is_whitespace() { ' ' } else { sign }).filter(allowed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_hold_every_word_and_stay_within_their_room() {
        let text = "retrievalguard certify queries --sigma 0.25 --gallery somewhere/quite/far/away/indeed";
        for room in [30.0, 60.0, 120.0, 1_000.0] {
            let lines = wrap(text, 11.0, room);
            assert!(lines.iter().all(|line| width(line, 11.0) <= room), "{room}: {lines:?}");
            let letters = |text: &str| text.chars().filter(|sign| *sign != ' ').collect::<String>();
            assert_eq!(letters(&lines.concat()), letters(text));
        }
    }

    #[test]
    fn a_long_name_ends_in_an_ellipsis_within_its_room() {
        assert_eq!(shortened("paper", 11.0, 100.0), "paper");
        let shown = shortened("a-name-that-goes-on-and-on", 11.0, 60.0);
        assert!(shown.ends_with('…') && width(&shown, 11.0) <= 60.0, "{shown}");
    }

    #[test]
    fn control_characters_never_reach_the_file() {
        assert_eq!(printable("a\u{0}b\tc\u{ffff}\u{1b}"), "ab c");
    }
}
