//! What clients see of a job.

use serde::Serialize;
use utoipa::ToSchema;

use super::job::JobState;
use crate::answer::Answer;

/// A job without its answers
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct JobSummary {
    pub(crate) id: String,
    pub(crate) state: JobState,
    /// How many pictures it has
    pub(crate) pictures: usize,
    /// How many of them are answered
    pub(crate) done: usize,
    /// Seconds since 1970
    pub(crate) created: u64,
    /// Why it failed, or what is damaged
    pub(crate) error: Option<String>,
}

/// How far a job is
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct JobProgress {
    pub(crate) state: JobState,
    pub(crate) done: usize,
    pub(crate) pictures: usize,
    /// Encoder passes so far, pilots and pictures without noise included; without noise one for each picture
    pub(crate) samples_drawn: u64,
    /// Most encoder passes that the job can take
    pub(crate) samples_asked: u64,
    /// The radius certified so far, picture by picture
    pub(crate) radii: Vec<Option<f64>>,
}

/// A job with its answers
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct JobReport {
    pub(crate) id: String,
    pub(crate) created: u64,
    #[serde(flatten)]
    pub(crate) progress: JobProgress,
    /// One per picture, null until it is there
    pub(crate) answers: Vec<Option<Answer>>,
    /// Why it failed
    pub(crate) error: Option<String>,
}

impl JobSummary {
    /// What is known of a damaged job.
    pub(super) fn damaged(id: &str, error: &str) -> Self {
        Self {
            id: id.to_owned(),
            state: JobState::Damaged,
            pictures: 0,
            done: 0,
            created: 0,
            error: Some(error.to_owned()),
        }
    }
}

impl JobReport {
    /// What is known of a damaged job.
    pub(super) fn damaged(id: &str, error: String) -> Self {
        let progress = JobProgress {
            state: JobState::Damaged,
            done: 0,
            pictures: 0,
            samples_drawn: 0,
            samples_asked: 0,
            radii: Vec::new(),
        };
        Self { id: id.to_owned(), created: 0, progress, answers: Vec::new(), error: Some(error) }
    }
}
