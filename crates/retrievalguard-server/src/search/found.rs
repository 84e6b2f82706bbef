//! What a search has found, and what that shows.

use retrievalguard::attack::Mode;
use serde::Serialize;
use utoipa::ToSchema;

use crate::perturbation::Target;

/// How much was searched
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Searched {
    /// How: `white-box`, with the encoder's gradients, or `black-box`, by its outputs alone
    pub(super) mode: &'static str,
    /// Encoder passes of the search
    pub(super) passes: u64,
    /// About as many as a search takes that is not ended by the clock
    pub(super) whole_passes: u64,
    pub(super) seconds: f64,
    /// Whether there was time for less than a whole search
    pub(super) cut_short: bool,
}

/// What a search has found.
pub(crate) struct Found {
    /// The perturbation that came closest, or that changes the answer.
    pub(crate) shift: Vec<f64>,
    /// The smallest size along it at which the answer was seen to change.
    pub(crate) broken_at: Option<f64>,
    pub(crate) searched: Searched,
}

impl Found {
    /// What this shows, and what it does not.
    pub(crate) fn statement(&self, target: Target) -> String {
        let whom = match target {
            Target::Plain => "plain",
            Target::Smoothed => "smoothed",
        };
        let Searched { mode, passes, whole_passes, seconds, cut_short } = self.searched;
        let short = if cut_short {
            format!(", and in {seconds:.0} s it had time for {passes} of about {whole_passes} passes")
        } else {
            String::new()
        };
        let estimated = match target {
            Target::Plain => "",
            Target::Smoothed => " This is an estimate from few samples.",
        };
        match (self.broken_at, mode == Mode::BlackBox.name()) {
            (Some(0.0), _) => format!("The {whom} retriever gives another answer without any change."),
            (Some(size), _) => format!(
                "The search found a change: at the size {size:.4} the {whom} retriever gives another answer.{estimated} Smaller ones may exist."
            ),
            (None, true) => format!(
                "The search found nothing that changes the {whom} retriever's answer. This proves little: it had only the \
                 encoder's outputs to go by{short}. A search with gradients may find what this one cannot."
            ),
            (None, false) => format!(
                "The search found nothing that changes the {whom} retriever's answer. This is no proof: it followed the \
                 encoder's gradients{short}, and another search may find what this one did not."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_found_is_never_told_as_a_proof() {
        let searched = |mode: Mode, cut_short| Searched {
            mode: mode.name(),
            passes: 2_900,
            whole_passes: 22_528,
            seconds: 20.0,
            cut_short,
        };
        let found = |broken_at, mode, cut_short| {
            Found { shift: vec![1.0], broken_at, searched: searched(mode, cut_short) }
                .statement(Target::Plain)
        };
        let nothing = found(None, Mode::BlackBox, true);
        for words in ["found nothing", "proves little", "only the encoder's outputs", "2900 of about 22528"] {
            assert!(nothing.contains(words), "`{words}` is not in `{nothing}`");
        }
        assert!(found(None, Mode::WhiteBox, false).contains("no proof"));
        let broken = found(Some(0.25), Mode::BlackBox, false);
        assert!(broken.contains("found a change") && broken.contains("0.2500"), "{broken}");
    }
}
