//! The claim of a certified answer in a sentence, for receipts and for the service.

use retrievalguard::certificate::{CertificateName, Radius, Retriever, round_down};

/// Under what a radius was certified.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances<'a> {
    /// Who answered.
    pub retriever: Retriever,
    /// Channels, height and width of what the encoder gets.
    pub input: [usize; 3],
    /// The failure probability as text; none without noise.
    pub alpha: Option<&'a str>,
    /// Rows that the query did not see.
    pub hidden: &'a [usize],
}

/// What a certified radius says.
///
/// ```
/// use retrievalguard::certificate::{Radius, Retriever};
/// use retrievalguard_encoder::receipt::{Circumstances, statement};
///
/// let under = Circumstances { retriever: Retriever::Vote, input: [3, 32, 32], alpha: Some("0.01"), hidden: &[] };
/// assert_eq!(
///     statement("cat", Radius::Finite(0.123456), &under),
///     "No change of the picture as the encoder gets it (32 × 32, pixels scaled to [0, 1]) with an l2 norm below 0.1234 makes \
///      another label than cat win the vote of all noisy copies, except with probability 0.01 over the noise drawn for this \
///      answer."
/// );
/// ```
pub fn statement(label: &str, radius: Radius, under: &Circumstances<'_>) -> String {
    let [_, height, width] = under.input;
    let norm = match radius {
        Radius::Finite(radius) => format!(" with an l2 norm below {}", shortened(radius)),
        Radius::Unbounded => String::new(),
    };
    let changes = match under.retriever {
        Retriever::Mean | Retriever::Plain => {
            format!("makes the nearest item of this gallery have another label than {label}")
        }
        Retriever::Vote => format!("makes another label than {label} win the vote of all noisy copies"),
        Retriever::Pairwise => {
            format!("keeps {label} from coming before each other label in more than half of all noisy copies")
        }
    };
    let rows: Vec<String> = under.hidden.iter().map(ToString::to_string).collect();
    let hidden = match &rows[..] {
        [] => String::new(),
        rows => format!(" (rows of the gallery hidden from this query: {})", rows.join(", ")),
    };
    let chance = match under.alpha {
        Some(alpha) => format!(", except with probability {alpha} over the noise drawn for this answer."),
        None => ". This holds always: it follows from a bound on the encoder that was verified from its weights, and no \
                 chance is involved."
            .to_owned(),
    };
    format!(
        "No change of the picture as the encoder gets it ({height} × {width}, pixels scaled to [0, 1]){norm} \
         {changes}{hidden}{chance}"
    )
}

/// What every other verdict says.
pub(super) const NOTHING: &str = "Nothing is certified.";

/// The statement of a verdict of this certificate.
pub(super) fn of_verdict(
    certificate: CertificateName,
    certified: Option<(&str, Radius)>,
    under: Circumstances<'_>,
) -> String {
    let under = Circumstances { retriever: Retriever::of(certificate), ..under };
    certified.map_or(NOTHING.to_owned(), |(label, radius)| statement(label, radius, &under))
}

/// A lower bound in four digits or a few more, never above it.
fn shortened(radius: f64) -> String {
    let decimals = if radius >= 0.001 { 4 } else { 9 };
    round_down(radius, decimals)
}
