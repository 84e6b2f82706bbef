//! An answer without noise: one embedding in double precision, and a bound on the encoder.

use std::time::Instant;

use retrievalguard_encoder::pipeline::{Answered, PlainAnswered, PlainCertifier, nearest_items};
use retrievalguard_encoder::run::LipschitzBounded;

use super::{QueryExecution, QueryRequest};
use crate::answer::{Answer, BoundFacts, Item};
use crate::problem::Problem;

impl QueryExecution<'_> {
    /// The answer to a picture, given its embedding.
    pub(crate) fn bounded(
        &self,
        bounded: &LipschitzBounded,
        request: &QueryRequest,
        embedding: Vec<f64>,
        started: Instant,
    ) -> Result<Answer, Problem> {
        let query = self.query();
        let gallery = self.snapshot.gallery();
        let promise = match &request.receipt {
            Some(_) => {
                let asked = self.asked(request, &query)?;
                let promise = self.premises()?.without_noise(asked, gallery.into(), bounded);
                Some(promise.map_err(Problem::internal)?)
            }
            None => None,
        };
        let _permit = self.permits.take();
        let certifier = PlainCertifier::new(bounded, gallery.into(), gallery.largest_norm());
        let found = certifier.answer(&query, &request.picture.pixels, embedding)?;
        let receipt =
            promise.map(|promise| promise.keep_bounded(gallery.into(), &found, self.key).to_value());
        let PlainAnswered { answered, bound } = found;
        let Answered { label, outcomes, mean, .. } = answered;
        let outcome = outcomes.into_iter().next();
        let outcome = outcome.ok_or_else(|| Problem::internal("a query has no certificate"))?;
        let items = Item::list(self.snapshot, &nearest_items(gallery.into(), &mean, request.top_k, &[])?);
        let certified = (outcome.verdict, self.label_name(label));
        let answer = self.answer(request, started, certified, None, (items, None));
        Ok(Answer { lipschitz: Some(BoundFacts::from(bound)), receipt, ..answer })
    }
}
