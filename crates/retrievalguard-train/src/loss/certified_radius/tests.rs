use serde::Deserialize;

use super::*;

/// Values of PyTorch, made by `tests/reference/make_lipschitz.py`.
#[derive(Deserialize)]
struct Reference {
    labels: Vec<u32>,
    alone: Alone,
}

#[derive(Deserialize)]
struct Alone {
    rho: f64,
    tau: f64,
    rows: Vec<i32>,
    loss: f64,
    gradient: Vec<f64>,
}

fn loss_of(
    rows: &[f32],
    dimension: usize,
    labels: &[u32],
    loss: CertifiedRadiusLoss,
) -> (f64, Vec<f32>, f64) {
    let device = Device::flex().autodiff();
    let data = TensorData::new(rows.to_vec(), [labels.len(), dimension]);
    let rows = Tensor::<2>::from_data(data, &device).require_grad();
    let parts = loss.forward(rows.clone(), labels);
    let value = parts.total.clone().into_data().iter::<f64>().sum();
    let gradient = rows.grad(&parts.total.backward()).unwrap().into_data().iter::<f32>().collect();
    (value, gradient, parts.active)
}

#[test]
fn value_and_gradient_are_those_of_pytorch() {
    let Reference { labels, alone } =
        serde_json::from_str(include_str!("../../../tests/reference/lipschitz.json")).unwrap();
    let rows: Vec<f32> = alone.rows.iter().map(|&value| value as f32 / 64.0).collect();
    let loss = CertifiedRadiusLoss { rho: alone.rho, tau: alone.tau };
    let (value, gradient, _) = loss_of(&rows, 4, &labels, loss);
    assert!((value - alone.loss).abs() < 1e-5, "{value}, wanted {}", alone.loss);
    for (place, (found, wanted)) in gradient.iter().zip(&alone.gradient).enumerate() {
        assert!((f64::from(*found) - wanted).abs() < 2e-5, "{place}: {found}, wanted {wanted}");
    }
}

#[test]
fn with_a_small_width_it_is_what_the_radius_lacks() {
    // Two classes on a line: the bisector of 1 and −1 is 1 away from the first row, that of 1 and −3 is 2 away.
    let rows = [1.0, 0.0, 1.0, 0.5, -1.0, 0.0, -1.0, 0.5];
    let labels = [0, 0, 1, 1];
    let loss = CertifiedRadiusLoss { rho: 1.5, tau: 0.01 };
    let (value, _, active) = loss_of(&rows, 2, &labels, loss);
    // Each of the four is nearest to the bisector of its positive and the negative beside it or across.
    let squared = |a: [f64; 2], b: [f64; 2]| (a[0] - b[0]).powi(2) + (a[1] - b[1]).powi(2);
    let reach = |h, a, b| (squared(h, b) - squared(h, a)) / (2.0 * squared(a, b).sqrt());
    let radius = reach([1.0, 0.0], [1.0, 0.5], [-1.0, 0.0]).min(reach([1.0, 0.0], [1.0, 0.5], [-1.0, 0.5]));
    assert!((value - (1.5 - radius)).abs() < 0.02, "{value}, wanted {}", 1.5 - radius);
    assert_eq!(active, 1.0);
    let far = CertifiedRadiusLoss { rho: 0.1, tau: 0.01 };
    let (value, _, active) = loss_of(&rows, 2, &labels, far);
    assert!(value < 1e-6 && active == 0.0, "{value} {active}");
}

#[test]
fn rows_without_a_companion_have_no_part_in_it() {
    let rows = [1.0, 0.0, 1.0, 0.5, -1.0, 0.0, -4.0, 3.0];
    let loss = CertifiedRadiusLoss { rho: 1.0, tau: 0.25 };
    let (alone, gradient, _) = loss_of(&rows, 2, &[0, 1, 2, 3], loss);
    assert_eq!(alone, 0.0);
    assert!(gradient.iter().all(|value| *value == 0.0));
    let equal = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0];
    let (value, gradient, _) = loss_of(&equal, 2, &[0, 0, 1, 1], loss);
    assert!(value.is_finite() && gradient.iter().all(|value| value.is_finite()));
}
