//! Rules for operators that pick some of the numbers.

use super::args::{Args, Outcome};
use super::content::{self, picked, sides, strides};
use super::fact::{Dim, Fact, Fault, Kind, coupled, distinct, place, unknown};

impl<'g> Args<'g> {
    pub(super) fn split(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        let axis = self.int("axis").unwrap_or(0);
        self.apart(fact, &[axis], "it splits the batch")?;
        let axis = place(axis, dims.len())?;
        let parts = self.node.outputs.len();
        self.said_once("split", 1)?;
        if self.int("num_outputs").is_some_and(|wanted| wanted != parts as i64) {
            return unknown("it makes another number of parts than it has outputs");
        }
        let own = self.ints("split").map(<[i64]>::to_vec);
        let lengths: Vec<Dim> = match (own, self.optional(1)) {
            (Some(lengths), _) => lengths.into_iter().map(Dim::Known).collect(),
            (None, Some(lengths)) => match (&lengths.content, lengths.kind) {
                (Some(lengths), _) => lengths.clone(),
                (None, Kind::Constant) => vec![Dim::Open; parts],
                (None, Kind::Sized | Kind::Batched { .. }) => return unknown("its parts cannot be followed"),
            },
            (None, None) => {
                let each = content::binary("Div", dims[axis], Dim::Known(parts as i64));
                vec![each.unwrap_or(Dim::Open); parts]
            }
        };
        if lengths.len() != parts {
            return unknown("it makes another number of parts than it has outputs");
        }
        // After a part of unknown length nobody knows where the next begins.
        let known = lengths.iter().all(|length| matches!(length, Dim::Known(_)));
        let content = fact.content.as_deref().filter(|_| dims.len() == 1 && known);
        let mut start = 0_usize;
        lengths
            .into_iter()
            .map(|length| {
                let mut shape = dims.to_vec();
                shape[axis] = length;
                if let (Some(content), Dim::Known(length)) = (content, length) {
                    let end = start.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
                    let part = content.get(start..end);
                    start = end;
                    return match part {
                        Some(part) => Ok(Fact::numbers(part.to_vec(), Some(shape))),
                        None => unknown("its parts cannot be followed"),
                    };
                }
                match fact.batch() {
                    Some((axis, layout)) => Fact::batched(axis, layout, shape),
                    None => Ok(fact.unbatched(Some(shape))),
                }
            })
            .collect()
    }

    pub(super) fn slice(&self) -> Outcome<'g> {
        let fact = self.input(0)?;
        let dims = fact.dims()?;
        for (name, place) in [("starts", 1), ("ends", 2), ("axes", 3), ("steps", 4)] {
            self.said_once(name, place)?;
        }
        let list = |name: &str, place: usize| -> Result<Option<Vec<Dim>>, Fault> {
            match (self.ints(name), self.optional(place)) {
                (Some(numbers), _) => Ok(Some(numbers.iter().map(|&number| Dim::Known(number)).collect())),
                (None, Some(fact)) => match (&fact.content, fact.kind) {
                    (Some(content), _) => Ok(Some(content.clone())),
                    (None, Kind::Constant) => Ok(None),
                    (None, Kind::Sized | Kind::Batched { .. }) => unknown("its bounds cannot be followed"),
                },
                (None, None) => Ok(None),
            }
        };
        let (starts, ends, steps) = (list("starts", 1)?, list("ends", 2)?, list("steps", 4)?);
        let axes: Vec<i64> = match (self.ints("axes"), self.optional(3)) {
            (Some(axes), _) => axes.to_vec(),
            (None, Some(axes)) => axes.known_numbers()?,
            (None, None) => match &starts {
                Some(starts) => (0..starts.len() as i64).collect(),
                None => return unknown("its axes cannot be followed"),
            },
        };
        let axes = distinct(&axes, dims.len())?;
        let steps_given = steps.is_some() || self.optional(4).is_some();
        let at = |list: &Option<Vec<Dim>>, place: usize| {
            list.as_ref().and_then(|list| list.get(place).copied()).unwrap_or(Dim::Open)
        };
        let mut shape = dims.to_vec();
        let mut chosen: Vec<Option<Steps>> = dims.iter().map(|_| None).collect();
        for (place, &axis) in axes.iter().enumerate() {
            let step = if steps_given { at(&steps, place) } else { Dim::Known(1) };
            let (start, end) = (at(&starts, place), at(&ends, place));
            let whole = start == Dim::Known(0)
                && step == Dim::Known(1)
                && (end == dims[axis] && end != Dim::Open
                    || matches!(end, Dim::Known(end) if end >= i64::from(i32::MAX)));
            if whole {
                continue;
            }
            if fact.batch().is_some_and(|(batch, _)| batch == axis) {
                return coupled("it picks pictures by their places in the batch");
            }
            let bounds = match (dims[axis], start, end, step) {
                (Dim::Known(length), Dim::Known(start), Dim::Known(end), Dim::Known(step)) => {
                    Some(Steps::new(length, start, end, step)?)
                }
                _ => None,
            };
            if [start, end, step].iter().any(|dim| matches!(dim, Dim::Batch(_))) {
                return unknown("its bounds cannot be followed");
            }
            shape[axis] = bounds.as_ref().map_or(Dim::Open, |bounds| Dim::Known(bounds.count));
            chosen[axis] = bounds;
        }
        match fact.batch() {
            Some((axis, layout)) => Ok(vec![Fact::batched(axis, layout, shape)?]),
            None => {
                let content = fact.content.as_ref().and_then(|content| {
                    let sides = sides(dims).filter(|_| !shape.contains(&Dim::Open))?;
                    let apart = strides(&sides);
                    let along: Option<Vec<(usize, Vec<usize>)>> = chosen
                        .iter()
                        .enumerate()
                        .map(|(axis, bounds)| match bounds {
                            Some(bounds) => Some((apart[axis], bounds.places().collect::<Option<_>>()?)),
                            None => Some((apart[axis], (0..sides[axis]).collect())),
                        })
                        .collect();
                    picked(content, &along?)
                });
                match content {
                    Some(content) => Ok(vec![Fact::numbers(content, Some(shape))]),
                    None => Ok(vec![fact.unbatched(Some(shape))]),
                }
            }
        }
    }

    pub(super) fn gather(&self) -> Outcome<'g> {
        let (source, picks) = (self.input(0)?, self.input(1)?);
        let dims = source.dims()?;
        let axis = place(self.int("axis").unwrap_or(0), dims.len())?;
        let wanted = picks.dims()?;
        if let (Some(content), 1) = (&source.content, dims.len())
            && let Ok(numbers) = picks.known_numbers()
        {
            let count = content.len() as i64;
            let picked: Option<Vec<Dim>> = numbers
                .iter()
                .map(|&number| if number < 0 { number.saturating_add(count) } else { number })
                .map(|number| usize::try_from(number).ok().and_then(|number| content.get(number).copied()))
                .collect();
            return match picked {
                Some(picked) => Ok(vec![Fact::numbers(picked, Some(wanted.to_vec()))]),
                None => unknown("it picks beyond the end"),
            };
        }
        let shape: Vec<Dim> = dims[..axis].iter().chain(wanted).chain(&dims[axis + 1..]).copied().collect();
        match (source.batch(), picks.batch()) {
            (Some((batch, _)), None) if batch == axis => {
                coupled("it picks pictures by their places in the batch")
            }
            (Some((batch, layout)), None) => {
                if picks.kind == Kind::Sized {
                    return coupled("it picks by how many pictures there are");
                }
                let batch = if batch < axis { batch } else { batch + wanted.len() - 1 };
                Ok(vec![Fact::batched(batch, layout, shape)?])
            }
            (None, Some((batch, layout))) if source.kind == Kind::Constant => {
                Ok(vec![Fact::batched(axis + batch, layout, shape)?])
            }
            (None, Some(_)) => coupled("it picks from a value that depends on how many pictures there are"),
            (Some(_), Some(_)) => unknown("it picks with the pictures from the pictures"),
            (None, None) => {
                let sized = source.kind == Kind::Sized || picks.kind == Kind::Sized;
                Ok(vec![if sized { Fact::sized(None) } else { Fact::constant(Some(shape)) }])
            }
        }
    }

    pub(super) fn gather_elements(&self) -> Outcome<'g> {
        let (source, picks) = (self.input(0)?, self.input(1)?);
        let axis = self.int("axis").unwrap_or(0);
        self.apart(source, &[axis], "it picks pictures by their places in the batch")?;
        match (source.batch(), picks.batch()) {
            (Some(own), Some(other)) if own == other => Ok(vec![picks.other_numbers()]),
            _ => unknown("it picks with values that are not laid out as the pictures are"),
        }
    }
}

/// The places that a slice takes, by the rules of Python.
struct Steps {
    start: i64,
    step: i64,
    count: i64,
}

impl Steps {
    fn new(length: i64, start: i64, end: i64, step: i64) -> Result<Self, Fault> {
        if length < 0 {
            return unknown("it takes a value of unknown size");
        }
        let from_end = |bound: i64| if bound < 0 { bound.saturating_add(length) } else { bound };
        let (start, end) = (from_end(start), from_end(end));
        let (start, span) = match step {
            0 => return unknown("its step is 0"),
            1.. => {
                let start = start.clamp(0, length);
                (start, end.clamp(0, length) - start)
            }
            _ => {
                let start = start.clamp(-1, length - 1);
                (start, start - end.clamp(-1, length - 1))
            }
        };
        let step_size = step.checked_abs().ok_or_else(|| Fault::Unknown("its step overflows".to_owned()))?;
        let count = if span > 0 { span / step_size + i64::from(span % step_size != 0) } else { 0 };
        Ok(Self { start, step, count })
    }

    fn places(&self) -> impl Iterator<Item = Option<usize>> {
        let (start, step) = (self.start, self.step);
        (0..self.count).map(move |place| {
            let place = place.checked_mul(step).and_then(|offset| start.checked_add(offset))?;
            usize::try_from(place).ok()
        })
    }
}
