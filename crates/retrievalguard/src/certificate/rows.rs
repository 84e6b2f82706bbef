//! Samples that were made elsewhere: can they be what a proof needs (theory, section 0)?
//!
//! A proof wants every certifying row to be the embedding of noise of its own, drawn after the gallery and the pilot were
//! fixed. Rows cannot show that this is so, but the usual mistakes show: the pilot given again, a sample made longer by
//! copies of itself, the clean picture embedded many times, a gallery made of the sample. Rows of the pilot may repeat:
//! the pilot proves nothing.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};

use super::{CertificateError, Certifier, SampledQuery, check_alike};
use crate::Samples;

/// What an order of rows has as its probability by chance when it counts as copied.
const COPIED: f64 = 1e-9;

/// What is known of the encoder behind samples that were made elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outputs {
    /// Two noisy copies never have the same embedding, so a row that is there twice was copied.
    #[default]
    Continuous,
    /// Embeddings repeat: signs, hashes, classes, numbers of low precision.
    ///
    /// Whoever says so promises that every row is the embedding of noise of its own. What is still refused is an order
    /// of rows that chance would not give.
    Discrete,
}

/// Which sample a sentence is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleRole {
    /// The sample on which choices are made.
    Pilot,
    /// The sample on which bounds are computed.
    Certifying,
}

impl fmt::Display for SampleRole {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            SampleRole::Pilot => "pilot",
            SampleRole::Certifying => "certifying sample",
        })
    }
}

/// Why rows cannot be independent noisy copies.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RowsError {
    /// One file or array was given twice.
    #[error("the pilot is the certifying sample, {rows} rows in the same order, wanted other noisy copies")]
    SameRows {
        /// Rows of either.
        rows: usize,
    },
    /// Some rows chose and prove.
    #[error(
        "{shared} of {rows} certifying rows are rows of the pilot, row {certifying} is row {pilot} of the pilot, wanted other noisy copies"
    )]
    Shared {
        /// Certifying rows that the pilot has, too.
        shared: usize,
        /// Certifying rows.
        rows: usize,
        /// The first of them.
        certifying: usize,
        /// Where it is in the pilot.
        pilot: usize,
    },
    /// As if no noise had been added.
    #[error("all {rows} certifying rows are the same, wanted embeddings of different noisy copies")]
    Constant {
        /// Certifying rows.
        rows: usize,
    },
    /// A sample that was made longer than it is.
    #[error(
        "{repeated} of {rows} certifying rows repeat an earlier one, row {second} is row {first}, wanted independent noise for each"
    )]
    Repeated {
        /// Rows that were there before.
        repeated: usize,
        /// Certifying rows.
        rows: usize,
        /// The first row that comes again.
        first: usize,
        /// Where it comes again.
        second: usize,
    },
    /// The gallery was made of the sample, so it was not fixed before.
    #[error(
        "{found} of {rows} certifying rows are vectors of the gallery, row {certifying} is item {item}, wanted a gallery that was fixed before the noise was drawn"
    )]
    InGallery {
        /// Certifying rows that the gallery has, too.
        found: usize,
        /// Certifying rows.
        rows: usize,
        /// The first of them.
        certifying: usize,
        /// Its row in the gallery.
        item: usize,
    },
    /// One sample was cut out of the other.
    #[error(
        "the {inner} is rows {start} to {end} of the {outer}, in the same order, wanted other noisy copies"
    )]
    Block {
        /// The shorter sample.
        inner: SampleRole,
        /// The longer one.
        outer: SampleRole,
        /// Where the shorter begins in the longer.
        start: usize,
        /// One past its end.
        end: usize,
    },
    /// The sample is a shorter one, several times.
    #[error("the {rows} certifying rows repeat with period {period}, wanted independent noise for each")]
    Periodic {
        /// Certifying rows.
        rows: usize,
        /// After how many rows it begins again.
        period: usize,
    },
    /// Each row of a shorter sample, several times.
    #[error(
        "each of the {rows} certifying rows occurs {times} times in succession, wanted independent noise for each"
    )]
    Stretched {
        /// Certifying rows.
        rows: usize,
        /// How often each is there.
        times: usize,
    },
}

impl RowsError {
    /// Whether [`Outputs::Discrete`] is the answer, if it is true of the encoder.
    pub fn may_be_discrete(&self) -> bool {
        match self {
            Self::Shared { .. } | Self::Constant { .. } | Self::Repeated { .. } | Self::InGallery { .. } => {
                true
            }
            Self::SameRows { .. } | Self::Block { .. } | Self::Periodic { .. } | Self::Stretched { .. } => {
                false
            }
        }
    }
}

impl Certifier<'_> {
    /// Samples that were made elsewhere, unless they show that they cannot be what a proof needs.
    ///
    /// ```
    /// use retrievalguard::certificate::{Certifier, Outputs};
    /// use retrievalguard::gallery::{Gallery, Metric};
    /// use retrievalguard::{Alpha, Excess, NormBound, Samples, Sigma};
    ///
    /// # let names = vec!["left".to_owned(), "right".to_owned()];
    /// let gallery = Gallery::new(vec![1.0, 0.0, -1.0, 0.0], 2, names.clone(), &names, Metric::Euclidean)?;
    /// let certifier = Certifier::new(&gallery, Sigma::new(0.25)?, Alpha::new(0.01)?);
    /// let rows = |values: &[f32]| Samples::new(values.to_vec(), 2, NormBound::UNIT, Excess::Refuse);
    /// let (pilot, certifying) = (rows(&[0.5, 0.1, 0.6, 0.2])?, rows(&[0.4, 0.3, 0.7, 0.0, 0.5, 0.2])?);
    /// assert!(certifier.sampled(pilot.clone(), certifying.clone(), Outputs::Continuous).is_ok());
    /// let refused = certifier.sampled(certifying.clone(), certifying, Outputs::Continuous).unwrap_err();
    /// assert!(refused.to_string().starts_with("the pilot is the certifying sample, 3 rows"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sampled(
        &self,
        pilot: Samples,
        certifying: Samples,
        outputs: Outputs,
    ) -> Result<SampledQuery, CertificateError> {
        check_alike(&pilot, &certifying)?;
        self.check_dimension(&certifying)?;
        // In this order also for an encoder with few outputs: nobody can tell one file from two equal ones.
        if pilot.values() == certifying.values() {
            return Err(RowsError::SameRows { rows: rows(&certifying) }.into());
        }
        match outputs {
            Outputs::Continuous => {
                refuse_copies(&pilot, &certifying)?;
                self.refuse_rows_of_the_gallery(&certifying)?;
            }
            Outputs::Discrete => refuse_copied_orders(&pilot, &certifying)?,
        }
        Ok(SampledQuery { pilot, certifying })
    }

    fn refuse_rows_of_the_gallery(&self, certifying: &Samples) -> Result<(), CertificateError> {
        let places: HashMap<Row<'_>, usize> =
            (0..rows(certifying)).rev().map(|row| (Row(certifying.row(row)), row)).collect();
        // The first item that a row is, at the first of equal rows.
        let mut items: Vec<Option<usize>> = vec![None; rows(certifying)];
        self.gallery.visit_vectors(|item, vector| {
            if let Some(&place) = places.get(&Row(vector)) {
                items[place].get_or_insert(item);
            }
        })?;
        let mut found = (0..rows(certifying))
            .filter_map(|row| Some((row, items[*places.get(&Row(certifying.row(row)))?]?)));
        let Some((certifying_row, item)) = found.next() else { return Ok(()) };
        let rows = rows(certifying);
        Err(RowsError::InGallery { found: 1 + found.count(), rows, certifying: certifying_row, item }.into())
    }
}

fn rows(samples: &Samples) -> usize {
    samples.count() as usize
}

/// An embedding, compared value by value; samples and galleries hold finite numbers only.
#[derive(Clone, Copy)]
struct Row<'a>(&'a [f32]);

impl PartialEq for Row<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Row<'_> {}

impl Hash for Row<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for value in self.0 {
            // The two zeros are equal.
            (value + 0.0).to_bits().hash(state);
        }
    }
}

/// For continuous outputs: no certifying row is there twice, and none is in the pilot.
fn refuse_copies(pilot: &Samples, certifying: &Samples) -> Result<(), RowsError> {
    let count = rows(certifying);
    let mut places: HashMap<Row<'_>, usize> = HashMap::with_capacity(count);
    let (mut repeated, mut earliest) = (0, None);
    for row in 0..count {
        let first = *places.entry(Row(certifying.row(row))).or_insert(row);
        if first != row {
            repeated += 1;
            earliest.get_or_insert((first, row));
        }
    }
    if count > 1 && places.len() == 1 {
        return Err(RowsError::Constant { rows: count });
    }
    if let Some((first, second)) = earliest {
        return Err(RowsError::Repeated { repeated, rows: count, first, second });
    }
    let mut chosen: HashMap<Row<'_>, usize> = HashMap::with_capacity(rows(pilot));
    for row in 0..rows(pilot) {
        chosen.entry(Row(pilot.row(row))).or_insert(row);
    }
    let mut shared =
        (0..count).filter_map(|row| chosen.get(&Row(certifying.row(row))).map(|&pilot| (row, pilot)));
    match shared.next() {
        None => Ok(()),
        Some((row, pilot)) => {
            Err(RowsError::Shared { shared: 1 + shared.count(), rows: count, certifying: row, pilot })
        }
    }
}

/// For few outputs: no order of rows that independent draws would not give.
fn refuse_copied_orders(pilot: &Samples, certifying: &Samples) -> Result<(), RowsError> {
    let mut known: HashMap<Row<'_>, usize> = HashMap::new();
    let mut counts: Vec<u64> = Vec::new();
    let mut numbered = |row| {
        let next = known.len();
        let number = *known.entry(row).or_insert(next);
        if number == counts.len() {
            counts.push(0);
        }
        counts[number] += 1;
        number
    };
    let chosen: Vec<usize> = (0..rows(pilot)).map(|row| numbered(Row(pilot.row(row)))).collect();
    let proving: Vec<usize> = (0..rows(certifying)).map(|row| numbered(Row(certifying.row(row)))).collect();
    let total = (chosen.len() + proving.len()) as f64;
    // Probability that two independent rows are equal, from how often each embedding was seen.
    let agreement: f64 = counts.iter().map(|&count| (count as f64 / total).powi(2)).sum();
    // Whether some of `ways` orders, each with so many equalities of independent rows, would be a miracle.
    let copied =
        |ways: usize, equal: usize| (ways as f64).ln() + equal as f64 * agreement.min(1.0).ln() < COPIED.ln();
    let (inner, outer, parts) = if chosen.len() <= proving.len() {
        (&chosen, &proving, (SampleRole::Pilot, SampleRole::Certifying))
    } else {
        (&proving, &chosen, (SampleRole::Certifying, SampleRole::Pilot))
    };
    if copied(outer.len() - inner.len() + 1, inner.len())
        && let Some(start) = position(inner, outer)
    {
        let end = start + inner.len();
        return Err(RowsError::Block { inner: parts.0, outer: parts.1, start, end });
    }
    let rows = proving.len();
    let period = rows - borders(&proving).last().copied().unwrap_or(0);
    if 2 * period <= rows && copied(rows, rows - period) {
        return Err(RowsError::Periodic { rows, period });
    }
    let times = proving.chunk_by(|left, right| left == right).map(<[usize]>::len).fold(0, divisor);
    if times > 1 && copied(rows, rows - rows / times) {
        return Err(RowsError::Stretched { rows, times });
    }
    Ok(())
}

/// Greatest common divisor.
fn divisor(left: usize, right: usize) -> usize {
    if right == 0 { left } else { divisor(right, left % right) }
}

/// For every beginning of a list, the length of its longest proper beginning that is also its end (Knuth, Morris and
/// Pratt 1977).
fn borders(list: &[usize]) -> Vec<usize> {
    let mut borders = vec![0; list.len()];
    let mut length = 0;
    for place in 1..list.len() {
        while length > 0 && list[place] != list[length] {
            length = borders[length - 1];
        }
        length += usize::from(list[place] == list[length]);
        borders[place] = length;
    }
    borders
}

/// Where one list occurs in another.
fn position(inner: &[usize], outer: &[usize]) -> Option<usize> {
    let borders = borders(inner);
    let mut length = 0;
    for (place, number) in outer.iter().enumerate() {
        while length > 0 && *number != inner[length] {
            length = borders[length - 1];
        }
        length += usize::from(*number == inner[length]);
        if length == inner.len() {
            return Some(place + 1 - length);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gallery::{Gallery, Metric};
    use crate::{Alpha, Excess, NormBound, Sigma};

    fn samples(rows: impl IntoIterator<Item = [f32; 2]>) -> Samples {
        let values = rows.into_iter().flatten().collect();
        Samples::new(values, 2, NormBound::UNIT, Excess::Refuse).unwrap()
    }

    /// Rows of which no two are equal.
    fn continuous(range: std::ops::Range<u32>) -> Samples {
        samples(range.map(|row| [row as f32 / 8192.0, 0.25]))
    }

    /// Two outputs, the second once in seven rows or so.
    fn two_outputs(seed: u32, count: usize) -> Vec<[f32; 2]> {
        let mut state = seed;
        let mut bit = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16).is_multiple_of(7)
        };
        (0..count).map(|_| if bit() { [0.0, 1.0] } else { [1.0, 0.0] }).collect()
    }

    fn refusal(pilot: Samples, certifying: Samples, outputs: Outputs) -> Option<RowsError> {
        let names = vec!["a".to_owned(), "b".to_owned()];
        let vectors = vec![0.75, 0.25, -0.5, 0.0];
        let gallery = Gallery::new(vectors, 2, names.clone(), &names, Metric::Euclidean).unwrap();
        let certifier = Certifier::new(&gallery, Sigma::new(0.25).unwrap(), Alpha::new(0.01).unwrap());
        match certifier.sampled(pilot, certifying, outputs) {
            Ok(_) => None,
            Err(CertificateError::Rows(error)) => Some(error),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn copies_among_rows_of_a_continuous_encoder_are_refused_by_their_place() {
        let join = |parts: &[&Samples]| {
            let values = parts.iter().flat_map(|part| part.values().to_vec()).collect();
            Samples::new(values, 2, NormBound::UNIT, Excess::Refuse).unwrap()
        };
        let (pilot, certifying) = (continuous(0..100), continuous(100..500));
        let one = continuous(7..8);
        let item = samples([[0.75, 0.25]]);
        let table = [
            ("apart", pilot.clone(), certifying.clone(), None),
            ("the same", certifying.clone(), certifying.clone(), Some(RowsError::SameRows { rows: 400 })),
            (
                "a slice",
                continuous(150..250),
                certifying.clone(),
                Some(RowsError::Shared { shared: 100, rows: 400, certifying: 50, pilot: 0 }),
            ),
            (
                "one row",
                pilot.clone(),
                join(&[&certifying, &one]),
                Some(RowsError::Shared { shared: 1, rows: 401, certifying: 400, pilot: 7 }),
            ),
            (
                "twice",
                pilot.clone(),
                join(&[&certifying, &certifying]),
                Some(RowsError::Repeated { repeated: 400, rows: 800, first: 0, second: 400 }),
            ),
            (
                "no noise",
                pilot.clone(),
                samples(vec![[0.5, 0.5]; 400]),
                Some(RowsError::Constant { rows: 400 }),
            ),
            (
                "a gallery item",
                pilot.clone(),
                join(&[&certifying, &item]),
                Some(RowsError::InGallery { found: 1, rows: 401, certifying: 400, item: 0 }),
            ),
            // The pilot proves nothing, so its rows may be anything but certifying rows.
            ("a constant pilot", samples(vec![[0.75, 0.25]; 100]), certifying.clone(), None),
        ];
        for (case, pilot, certifying, wanted) in table {
            assert_eq!(refusal(pilot, certifying, Outputs::Continuous), wanted, "{case}");
        }
    }

    #[test]
    fn zeros_of_either_sign_are_the_same_number() {
        let found = refusal(samples([[0.0, 0.5]]), samples([[-0.0, 0.5], [0.1, 0.5]]), Outputs::Continuous);
        assert_eq!(found, Some(RowsError::Shared { shared: 1, rows: 2, certifying: 0, pilot: 0 }));
    }

    #[test]
    fn an_encoder_with_few_outputs_may_repeat_them_but_not_an_order_of_them() {
        let rows = |seed, count| samples(two_outputs(seed, count));
        let constant = |count| samples(vec![[1.0, 0.0]; count]);
        let short = two_outputs(5, 250);
        let twice = || samples(short.iter().chain(&short).copied());
        let stretched = || samples(short.iter().flat_map(|row| [*row; 3]));
        let table = [
            ("apart", rows(1, 200), rows(2, 1_000), None),
            ("apart and longer", rows(1, 1_000), rows(2, 200), None),
            // Far from a boundary every noisy copy has the same hash.
            ("constant", constant(200), constant(1_000), None),
            ("nearly constant", samples(two_outputs(1, 20)), constant(30), None),
            ("the same", rows(2, 400), rows(2, 400), Some(RowsError::SameRows { rows: 400 })),
            (
                "a slice",
                samples(two_outputs(2, 1_000)[300..500].iter().copied()),
                rows(2, 1_000),
                Some(RowsError::Block {
                    inner: SampleRole::Pilot,
                    outer: SampleRole::Certifying,
                    start: 300,
                    end: 500,
                }),
            ),
            (
                "a slice of the pilot",
                rows(2, 1_000),
                samples(two_outputs(2, 1_000)[700..].iter().copied()),
                Some(RowsError::Block {
                    inner: SampleRole::Certifying,
                    outer: SampleRole::Pilot,
                    start: 700,
                    end: 1_000,
                }),
            ),
            ("twice", rows(1, 200), twice(), Some(RowsError::Periodic { rows: 500, period: 250 })),
            ("stretched", rows(1, 200), stretched(), Some(RowsError::Stretched { rows: 750, times: 3 })),
        ];
        for (case, pilot, certifying, wanted) in table {
            assert_eq!(refusal(pilot, certifying, Outputs::Discrete), wanted, "{case}");
        }
    }

    #[test]
    fn independent_rows_of_few_outputs_are_not_taken_for_copies() {
        for seed in 0..500 {
            let (pilot, certifying) = (two_outputs(2 * seed + 1, 20), two_outputs(2 * seed + 2, 100));
            let found = refusal(samples(pilot), samples(certifying), Outputs::Discrete);
            assert_eq!(found, None, "seed {seed}");
        }
    }
}
