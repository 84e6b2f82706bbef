//! What is known about one value of a graph.

use crate::graph::{ElementType, Tensor, Values};

/// Length of an axis, or a number that computes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dim {
    /// This number.
    Known(i64),
    /// So many times the number of pictures.
    Batch(i64),
    /// Some number that the number of pictures has no part in.
    Open,
}

/// What the numbers of a value depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Neither on the pictures nor on how many there are.
    Constant,
    /// On how many pictures there are.
    Sized,
    /// On the pictures: they lie along `axis`, and what lies in the places of a picture is a function of that picture
    /// alone, the same for all.
    Batched { axis: usize, layout: BatchLayout },
}

/// How the pictures of a batch of `B` lie along an axis of length `outer · B · inner`: place `(p·B + b)·inner + q` is one
/// of picture `b`, for every `p < outer` and `q < inner`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchLayout {
    pub(super) outer: i64,
    pub(super) inner: i64,
}

impl BatchLayout {
    /// One place for each picture.
    pub(super) const ONE: Self = Self { outer: 1, inner: 1 };

    /// So many places for each picture, side by side.
    pub(super) fn beside(inner: i64) -> Self {
        Self { outer: 1, inner }
    }
}

/// Integers that shapes are computed from are followed up to this many; shapes have fewer axes.
const MOST_NUMBERS: usize = 64;

/// Values with more axes than this are not followed; stored ones have no more either.
pub(super) const MOST_AXES: usize = 64;

/// What is known about one value.
#[derive(Clone, Debug)]
pub(super) struct Fact<'g> {
    pub(super) kind: Kind,
    /// Its shape, if that is known; of a batched value always.
    pub(super) shape: Option<Vec<Dim>>,
    /// Its numbers, if they are few and integers, as those that shapes are computed from.
    pub(super) content: Option<Vec<Dim>>,
    /// The stored constant that it is.
    pub(super) tensor: Option<&'g Tensor>,
}

/// Why a rule has no fact to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Coupled(String),
    Unknown(String),
    Random,
}

impl Fault {
    /// Which of several faults is told: what is refused before what is slow.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::Unknown(_) => 0,
            Self::Coupled(_) => 1,
            Self::Random => 2,
        }
    }
}

pub(super) fn coupled<T>(why: &str) -> Result<T, Fault> {
    Err(Fault::Coupled(why.to_owned()))
}

pub(super) fn unknown<T>(why: &str) -> Result<T, Fault> {
    Err(Fault::Unknown(why.to_owned()))
}

impl<'g> Fact<'g> {
    pub(super) fn constant(shape: Option<Vec<Dim>>) -> Self {
        Self { kind: Kind::Constant, shape, content: None, tensor: None }
    }

    pub(super) fn sized(shape: Option<Vec<Dim>>) -> Self {
        Self { kind: Kind::Sized, shape, content: None, tensor: None }
    }

    /// The input of the graph.
    pub(super) fn pictures(shape: Vec<Dim>) -> Self {
        let kind = Kind::Batched { axis: 0, layout: BatchLayout::ONE };
        Self { kind, shape: Some(shape), content: None, tensor: None }
    }

    /// A value with the pictures along an axis; no other length may grow with their number.
    pub(super) fn batched(axis: usize, layout: BatchLayout, shape: Vec<Dim>) -> Result<Self, Fault> {
        let grows = |(place, dim): (usize, &Dim)| place != axis && matches!(dim, Dim::Batch(_));
        let negative = |dim: &Dim| matches!(dim, Dim::Known(side) if *side < 0);
        if axis >= shape.len()
            || layout.inner <= 0
            || shape.iter().enumerate().any(grows)
            || shape.iter().any(negative)
        {
            return unknown("its shape cannot be followed");
        }
        Ok(Self { kind: Kind::Batched { axis, layout }, shape: Some(shape), content: None, tensor: None })
    }

    /// A list of integers, or a single one.
    pub(super) fn numbers(content: Vec<Dim>, shape: Option<Vec<Dim>>) -> Self {
        let sized = content.iter().any(|dim| matches!(dim, Dim::Batch(_)));
        let kind = if sized { Kind::Sized } else { Kind::Constant };
        let content = (content.len() <= MOST_NUMBERS).then_some(content);
        Self { kind, shape, content, tensor: None }
    }

    /// A stored constant.
    pub(super) fn of_tensor(tensor: &'g Tensor) -> Self {
        let shape = Some(tensor.shape.iter().map(|&side| Dim::Known(side as i64)).collect());
        let followed = [ElementType::INT64, ElementType::INT32, ElementType::BOOL].contains(&tensor.element)
            && tensor.count().is_some_and(|count| count <= MOST_NUMBERS);
        let content = match followed.then(|| tensor.values()) {
            Some(Ok(Values::Integers(numbers))) => Some(numbers.into_iter().map(Dim::Known).collect()),
            _ => None,
        };
        Self { kind: Kind::Constant, shape, content, tensor: Some(tensor) }
    }

    /// The same, but for its numbers.
    pub(super) fn other_numbers(&self) -> Self {
        Self { kind: self.kind, shape: self.shape.clone(), content: None, tensor: None }
    }

    /// A fact of the same kind with another shape, for values that are not batched.
    pub(super) fn unbatched(&self, shape: Option<Vec<Dim>>) -> Self {
        let grows = |shape: &Vec<Dim>| shape.iter().any(|dim| matches!(dim, Dim::Batch(_)));
        if shape.as_ref().is_some_and(grows) {
            return Self::sized(None);
        }
        Self { kind: self.kind, shape, content: None, tensor: None }
    }

    pub(super) fn batch(&self) -> Option<(usize, BatchLayout)> {
        match self.kind {
            Kind::Batched { axis, layout } => Some((axis, layout)),
            Kind::Constant | Kind::Sized => None,
        }
    }

    /// The shape, where a rule cannot go on without.
    pub(super) fn dims(&self) -> Result<&[Dim], Fault> {
        self.shape.as_deref().ok_or_else(|| Fault::Unknown("it takes a value of unknown shape".to_owned()))
    }

    /// Its numbers, where a rule cannot go on without.
    pub(super) fn known_numbers(&self) -> Result<Vec<i64>, Fault> {
        let numbers = self.content.as_ref().and_then(|content| {
            content
                .iter()
                .map(|dim| if let Dim::Known(number) = dim { Some(*number) } else { None })
                .collect()
        });
        numbers.ok_or_else(|| Fault::Unknown("it takes its axes from a computed value".to_owned()))
    }

    /// Whether it is a single number, whatever its rank.
    pub(super) fn is_single(&self) -> bool {
        self.shape.as_ref().is_some_and(|shape| shape.iter().all(|&dim| dim == Dim::Known(1)))
    }

    pub(super) fn is_one_row_per_picture(&self) -> bool {
        self.batch() == Some((0, BatchLayout::ONE))
    }
}

/// Axes as places, none of them named twice.
pub(super) fn distinct(axes: &[i64], rank: usize) -> Result<Vec<usize>, Fault> {
    let mut found = Vec::new();
    for &axis in axes {
        let place = place(axis, rank)?;
        if found.contains(&place) {
            return unknown("it names an axis twice");
        }
        found.push(place);
    }
    Ok(found)
}

/// An axis as a place; negative ones count from the end.
pub(super) fn place(axis: i64, rank: usize) -> Result<usize, Fault> {
    let counted = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    let found = usize::try_from(counted).ok().filter(|&place| place < rank);
    found.ok_or_else(|| Fault::Unknown(format!("it names axis {axis} of a value with {rank}")))
}
