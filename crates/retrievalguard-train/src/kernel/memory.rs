//! Buffers that tensors gave back, for the next tensors of the same size.
//!
//! A step of training makes and drops the same hundreds of megabytes as the step before. Handed to the operating system and
//! back, every page would be cleared and mapped anew.

#![expect(
    unsafe_code,
    reason = "burn takes a buffer of another's only as a view of bytes that may be uninitialised"
)]

use std::collections::BTreeMap;
use std::mem::{MaybeUninit, take};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::{DType, Shape};
use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty, Bytes};

/// Values below which a buffer is not worth keeping.
const SMALL: usize = 1 << 14;

static STORE: Mutex<Store> = Mutex::new(Store::EMPTY);

/// Idle buffers by their length, never more than were in use at once.
struct Store {
    idle: BTreeMap<usize, Vec<Vec<f32>>>,
    idle_values: usize,
    used: usize,
    most: usize,
}

impl Store {
    const EMPTY: Self = Self { idle: BTreeMap::new(), idle_values: 0, used: 0, most: 0 };

    /// Counts a buffer of this length as in use; an idle one if there is one.
    fn lend(&mut self, length: usize) -> Option<Vec<f32>> {
        self.used += length;
        self.most = self.most.max(self.used);
        let idle = self.idle.get_mut(&length)?.pop()?;
        self.idle_values -= length;
        Some(idle)
    }

    fn give_back(&mut self, buffer: Vec<f32>) {
        let length = buffer.len();
        self.used = self.used.saturating_sub(length);
        if self.idle_values + length > self.most {
            // Sizes that nobody asks for any more must not keep the others out.
            self.idle.clear();
            self.idle_values = 0;
        }
        self.idle_values += length;
        self.idle.entry(length).or_default().push(buffer);
    }
}

fn store() -> MutexGuard<'static, Store> {
    STORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer of this length with any values, to be overwritten; [`tensor`] takes care of giving it back.
pub(super) fn buffer(length: usize) -> Vec<f32> {
    let idle = if length < SMALL { None } else { store().lend(length) };
    let mut buffer = idle.unwrap_or_else(|| vec![0.0; length]);
    if cfg!(test) {
        // Whoever does not overwrite everything is found out.
        buffer.fill(f32::NAN);
    }
    buffer
}

/// A tensor in such a buffer.
pub(super) fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    let shape = shape.into();
    assert_eq!(values.len(), shape.num_elements(), "as many values as the shape {shape:?} has");
    let bytes = size_of_val(values.as_slice());
    // SAFETY: a vector's values are all initialised, and `bytes` is what they take.
    let bytes = unsafe { Bytes::from_controller(Box::new(Lent(values)), bytes) };
    FlexTensor::new(bytes, Layout::contiguous(shape), DType::F32)
}

/// A buffer that a tensor holds.
struct Lent(Vec<f32>);

impl Drop for Lent {
    fn drop(&mut self) {
        if self.0.len() >= SMALL {
            store().give_back(take(&mut self.0));
        }
    }
}

impl AllocationController for Lent {
    fn alloc_align(&self) -> usize {
        align_of::<f32>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let bytes = size_of_val(self.0.as_slice());
        // SAFETY: the same memory, as many bytes as its values take, borrowed as long as the vector; bytes need no
        // alignment, and the caller promises to write nothing uninitialised.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), bytes) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let bytes = size_of_val(self.0.as_slice());
        // SAFETY: the same memory, as many bytes as its values take, borrowed as long as the vector; bytes need no alignment.
        Ok(unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_given_back_is_lent_again() {
        let mut store = Store::EMPTY;
        assert_eq!(store.lend(3), None);
        store.give_back(vec![1.0, 2.0, 3.0]);
        assert_eq!(store.lend(2), None);
        assert_eq!(store.lend(3), Some(vec![1.0, 2.0, 3.0]));
        assert_eq!(store.lend(3), None);
    }

    #[test]
    fn no_more_lies_idle_than_was_in_use_at_once() {
        let mut store = Store::EMPTY;
        for length in 1..100 {
            store.lend(length);
            store.give_back(vec![0.0; length]);
            assert!(store.idle_values <= store.most, "{} idle of {}", store.idle_values, store.most);
            assert_eq!(store.idle_values, store.idle.values().flatten().map(Vec::len).sum::<usize>());
        }
    }

    #[test]
    fn a_tensor_shows_the_values_it_was_given() {
        let values: Vec<f32> = (0..100).map(|value| value as f32).collect();
        let mut tensor = tensor(values.clone(), [100]);
        assert_eq!(tensor.as_slice::<f32>(), Some(values.as_slice()));
        tensor.storage_mut::<f32>()[7] = -1.0;
        let copy = tensor.clone();
        tensor.storage_mut::<f32>()[7] = -2.0;
        assert_eq!(copy.storage::<f32>()[7].to_bits(), (-1.0_f32).to_bits());
    }
}
