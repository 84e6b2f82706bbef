//! The tasks of a run, and which worker does which.

use std::ops::Range;

use retrievalguard::noise::Stage;

use crate::RunManifest;

/// One task of a run: a whole query, or some samples of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Index of the task in the run.
    pub number: usize,
    /// Index of the query in the run.
    pub query: usize,
    /// What it makes.
    pub kind: TaskKind,
}

/// What a task makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// The query's answer.
    Answer,
    /// The embeddings of some noisy copies.
    Samples {
        /// What the noise is for.
        stage: Stage,
        /// Which copies.
        range: Range<u32>,
    },
}

impl Task {
    /// All tasks of a run, in order.
    pub fn all(manifest: &RunManifest) -> impl Iterator<Item = Self> + use<'_> {
        (0..Self::count(manifest)).map(|number| Self::new(manifest, number))
    }

    /// Number of tasks of a run.
    pub fn count(manifest: &RunManifest) -> usize {
        manifest.queries.len() * Self::per_query(manifest)
    }

    /// One for a whole query; with chunks one for the pilot and one for each of them.
    pub(crate) fn per_query(manifest: &RunManifest) -> usize {
        match manifest.chunk {
            None => 1,
            Some(chunk) => 1 + manifest.counts().1.div_ceil(chunk.get()) as usize,
        }
    }

    pub(crate) fn new(manifest: &RunManifest, number: usize) -> Self {
        let per_query = Self::per_query(manifest);
        let (query, index) = (number / per_query, number % per_query);
        let kind = match (manifest.chunk, index) {
            (None, _) => TaskKind::Answer,
            (Some(_), 0) => TaskKind::Samples { stage: Stage::Pilot, range: 0..manifest.counts().0 },
            (Some(chunk), index) => {
                // At most the number of samples, which is a u32.
                let start = (index as u32 - 1) * chunk.get();
                let end = start.saturating_add(chunk.get()).min(manifest.counts().1);
                TaskKind::Samples { stage: Stage::Certify, range: start..end }
            }
        };
        Self { number, query, kind }
    }

    /// The task's part in the folder of parts.
    pub(crate) fn part_name(&self, manifest: &RunManifest) -> String {
        format!("{:06}-{:03}", self.query, self.number % Self::per_query(manifest))
    }

    /// The task in words.
    pub(crate) fn in_words(&self, manifest: &RunManifest) -> String {
        let identity = &manifest.queries[self.query].identity;
        match &self.kind {
            TaskKind::Answer => format!("query `{identity}`"),
            TaskKind::Samples { stage: Stage::Pilot, .. } => format!("the pilot of query `{identity}`"),
            TaskKind::Samples { range, .. } => {
                format!("samples {} to {} of query `{identity}`", range.start, range.end)
            }
        }
    }
}

/// Which tasks a worker does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// Every one that is left.
    All,
    /// Those with these numbers.
    Numbers(Range<usize>),
    /// One of so many equal shares.
    Share {
        /// Which, from zero.
        index: usize,
        /// Of how many.
        of: usize,
    },
}

/// An assignment that names nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssignmentError {
    /// Shares are counted from zero.
    #[error("share {index} of {of} was asked for, wanted a share from 0 to {}", of.saturating_sub(1))]
    Share {
        /// Which share.
        index: usize,
        /// Of how many.
        of: usize,
    },
    /// Not a range.
    #[error("`{0}` is not a range of tasks, wanted for instance 0..100")]
    Range(String),
    /// A variable of a scheduler is not a number.
    #[error("{name} is `{found}`, wanted a whole number")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What it holds.
        found: String,
    },
    /// A scheduler says which, but not of how many.
    #[error("{name} says that this is share {index}, wanted --of with the number of shares")]
    HowMany {
        /// The variable.
        name: &'static str,
        /// Which share.
        index: usize,
    },
}

impl Assignment {
    /// A share that exists.
    pub fn share(index: usize, of: usize) -> Result<Self, AssignmentError> {
        if index < of { Ok(Self::Share { index, of }) } else { Err(AssignmentError::Share { index, of }) }
    }

    /// `7..19`.
    pub fn range(text: &str) -> Result<Self, AssignmentError> {
        let wrong = || AssignmentError::Range(text.to_owned());
        let (start, end) = text.split_once("..").ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
        let range = number(start)?..number(end)?;
        if range.is_empty() { Err(wrong()) } else { Ok(Self::Numbers(range)) }
    }

    /// What a scheduler of array jobs says: Slurm by `SLURM_ARRAY_TASK_ID`, Kubernetes by `JOB_COMPLETION_INDEX`.
    ///
    /// Slurm also says of how many (`SLURM_ARRAY_TASK_COUNT`, counted from `SLURM_ARRAY_TASK_MIN` by
    /// `SLURM_ARRAY_TASK_STEP`); Kubernetes does not, so
    /// `of` must.
    pub fn from_scheduler(
        variable: impl Fn(&str) -> Option<String>,
        of: Option<usize>,
    ) -> Result<Option<Self>, AssignmentError> {
        let number = |name: &'static str| {
            let Some(found) = variable(name) else { return Ok(None) };
            found.trim().parse::<usize>().map(Some).map_err(|_| AssignmentError::Variable { name, found })
        };
        if let Some(id) = number("SLURM_ARRAY_TASK_ID")? {
            let first = number("SLURM_ARRAY_TASK_MIN")?.unwrap_or(0);
            let step = number("SLURM_ARRAY_TASK_STEP")?.unwrap_or(1).max(1);
            let index = id.saturating_sub(first) / step;
            let of = of.map_or_else(|| number("SLURM_ARRAY_TASK_COUNT"), |of| Ok(Some(of)))?;
            let of = of.ok_or(AssignmentError::HowMany { name: "SLURM_ARRAY_TASK_ID", index })?;
            return Self::share(index, of).map(Some);
        }
        if let Some(index) = number("JOB_COMPLETION_INDEX")? {
            let of = of.ok_or(AssignmentError::HowMany { name: "JOB_COMPLETION_INDEX", index })?;
            return Self::share(index, of).map(Some);
        }
        Ok(None)
    }

    /// The numbers of the tasks, of so many in all.
    ///
    /// Shares are cut where queries end if there are enough of them, so that a picture is read by one worker alone.
    pub(crate) fn numbers(&self, total: usize, per_query: usize) -> Range<usize> {
        match self {
            Self::All => 0..total,
            Self::Numbers(range) => range.start.min(total)..range.end.min(total),
            Self::Share { index, of } => {
                let unit = if total / per_query.max(1) >= *of { per_query.max(1) } else { 1 };
                let units = total / unit;
                let cut = |share: usize| (units as u128 * share as u128 / *of as u128) as usize * unit;
                cut(*index)..cut(index + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_disjoint_and_leave_nothing_out() {
        for (total, per_query) in [(0, 1), (7, 1), (30, 3), (30, 10), (12, 12), (1_000, 5)] {
            for of in [1, 2, 3, 7, 40] {
                let mut next = 0;
                for index in 0..of {
                    let range = Assignment::share(index, of).unwrap().numbers(total, per_query);
                    assert_eq!(range.start, next, "{index} of {of}, {total} tasks");
                    next = range.end;
                }
                assert_eq!(next, total, "{of} shares of {total} tasks");
            }
        }
        assert_eq!(Assignment::share(2, 2), Err(AssignmentError::Share { index: 2, of: 2 }));
    }

    #[test]
    fn schedulers_say_which_share_is_whose() {
        let slurm = |name: &str| {
            let value = match name {
                "SLURM_ARRAY_TASK_ID" => "13",
                "SLURM_ARRAY_TASK_MIN" => "10",
                "SLURM_ARRAY_TASK_COUNT" => "8",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let share = |index, of| Ok(Some(Assignment::Share { index, of }));
        assert_eq!(Assignment::from_scheduler(slurm, None), share(3, 8));
        assert_eq!(Assignment::from_scheduler(slurm, Some(20)), share(3, 20));
        let stepped = |name: &str| if name.ends_with("STEP") { Some("3".to_owned()) } else { slurm(name) };
        assert_eq!(Assignment::from_scheduler(stepped, None), share(1, 8));
        let kubernetes = |name: &str| (name == "JOB_COMPLETION_INDEX").then(|| "4".to_owned());
        assert_eq!(Assignment::from_scheduler(kubernetes, Some(5)), share(4, 5));
        assert_eq!(
            Assignment::from_scheduler(kubernetes, None),
            Err(AssignmentError::HowMany { name: "JOB_COMPLETION_INDEX", index: 4 })
        );
        assert_eq!(
            Assignment::from_scheduler(kubernetes, Some(4)),
            Err(AssignmentError::Share { index: 4, of: 4 })
        );
        let odd = |name: &str| (name == "SLURM_ARRAY_TASK_ID").then(|| "x".to_owned());
        assert!(matches!(Assignment::from_scheduler(odd, None), Err(AssignmentError::Variable { .. })));
        assert_eq!(Assignment::from_scheduler(|_| None, None), Ok(None));
    }

    #[test]
    fn ranges_are_read_or_refused() {
        assert_eq!(Assignment::range("3..9"), Ok(Assignment::Numbers(3..9)));
        for text in ["", "3", "3..", "9..3", "3..3", "a..b", "-1..2"] {
            assert_eq!(Assignment::range(text), Err(AssignmentError::Range(text.to_owned())), "{text}");
        }
    }
}
