//! Distillation: what a teacher makes of a clean picture, the student is to make of a noisy one.

use burn::tensor::Tensor;

/// Mean over the rows of `‖h(x + z) − h₀(x)‖²`.
///
/// `student` are rows `h(x + z)`, which carry the gradient; `teacher` the rows `h₀(x)` of the same views without noise. No
/// label is looked at.
pub fn distillation_loss(student: Tensor<2>, teacher: Tensor<2>) -> Tensor<1> {
    let rows = student.dims()[0].max(1);
    (student - teacher).powf_scalar(2.0).sum() / rows as f64
}

#[cfg(test)]
mod tests;
