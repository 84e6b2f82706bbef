use super::*;
use crate::loss::reference::Reference;

const GAMMA: f64 = 0.2;

/// Value and gradients of the definition, one triplet at a time in `f64`.
struct Naive {
    value: f64,
    gradient: Vec<f64>,
    beta_gradient: f64,
    active: [usize; 2],
}

fn naive(embeddings: &[f64], dimension: usize, triplets: &Triplets, beta: f64, average: Average) -> Naive {
    let row = |at: usize| &embeddings[at * dimension..][..dimension];
    let mut sum =
        Naive { value: 0.0, gradient: vec![0.0; embeddings.len()], beta_gradient: 0.0, active: [0; 2] };
    for at in 0..triplets.len() {
        let anchor = triplets.anchors[at];
        for (kind, other, sign) in [(0, triplets.positives[at], 1.0), (1, triplets.negatives[at], -1.0)] {
            let squared: f64 =
                row(anchor).iter().zip(row(other)).map(|(left, right)| (left - right).powi(2)).sum();
            let distance = squared.sqrt();
            let loss = sign * (distance - beta) + GAMMA;
            if loss > 0.0 {
                sum.value += loss;
                sum.beta_gradient -= sign;
                sum.active[kind] += 1;
                for axis in 0..dimension {
                    let slope = sign * (row(anchor)[axis] - row(other)[axis]) / distance;
                    sum.gradient[anchor * dimension + axis] += slope;
                    sum.gradient[other * dimension + axis] -= slope;
                }
            }
        }
    }
    let divisor = match average {
        Average::Triplets => triplets.len(),
        Average::ActivePairs => (sum.active[0] + sum.active[1]).max(1),
    } as f64;
    sum.value /= divisor;
    sum.beta_gradient /= divisor;
    sum.gradient.iter_mut().for_each(|value| *value /= divisor);
    sum
}

/// What the module says, and its gradients.
fn differentiated(
    embeddings: &[f32],
    dimension: usize,
    triplets: &Triplets,
    beta: f64,
    average: Average,
) -> (f64, Vec<f64>, f64, [usize; 2]) {
    let device = Device::flex().autodiff();
    let loss = MarginLoss::new(beta, GAMMA, average, &device);
    let shape = [embeddings.len() / dimension, dimension];
    let rows = Tensor::<2>::from_data(TensorData::new(embeddings.to_vec(), shape), &device).require_grad();
    let parts = loss.forward(rows.clone(), triplets);
    let gradients = parts.total.backward();
    let numbers = |tensor: TensorData| -> Vec<f64> { tensor.iter::<f64>().collect() };
    let gradient = numbers(rows.grad(&gradients).unwrap().into_data());
    let beta_gradient = numbers(loss.beta.val().grad(&gradients).unwrap().into_data())[0];
    let active =
        [parts.active_positives, parts.active_negatives].map(|count| count.into_scalar::<i64>() as usize);
    (f64::from(parts.total.into_scalar::<f32>()), gradient, beta_gradient, active)
}

fn close(found: &[f64], wanted: &[f64], tolerance: f64, place: &str) {
    assert_eq!(found.len(), wanted.len(), "{place}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() <= tolerance, "{place}: {found} for {wanted}");
    }
}

fn triplets(list: &[[usize; 3]]) -> Triplets {
    let mut triplets = Triplets::default();
    for &[anchor, positive, negative] in list {
        triplets.push(anchor, positive, negative);
    }
    triplets
}

#[test]
fn value_and_gradients_are_those_of_pytorch_metric_learning_and_of_the_double_loop() {
    let mut compared = 0;
    for case in &Reference::read().cases {
        let embeddings = case.embeddings();
        let exact: Vec<f64> = embeddings.iter().map(|&value| f64::from(value)).collect();
        let triplets = triplets(&case.triplets);
        for losses in &case.losses {
            for (average, wanted) in
                [(Average::Triplets, &losses.triplets), (Average::ActivePairs, &losses.active_pairs)]
            {
                let place = format!("{} dimensions, beta {}, {average:?}", case.dimension, losses.beta);
                let naive = naive(&exact, case.dimension, &triplets, losses.beta, average);
                close(&[naive.value], &[wanted.value], 1e-12, &place);
                close(&[naive.beta_gradient], &[wanted.beta_gradient], 1e-12, &place);
                close(&naive.gradient, &wanted.gradient, 1e-8, &place);
                let (value, gradient, beta_gradient, active) =
                    differentiated(&embeddings, case.dimension, &triplets, losses.beta, average);
                close(&[value], &[wanted.value], 3e-7, &place);
                close(&[beta_gradient], &[wanted.beta_gradient], 3e-7, &place);
                close(&gradient, &wanted.gradient, 3e-7, &place);
                assert_eq!(active, naive.active, "{place}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 8);
}

#[test]
fn gradients_are_the_slopes_of_the_loss() {
    let case = Reference::read().cases.into_iter().find(|case| case.dimension == 3).unwrap();
    let triplets = triplets(&case.triplets);
    let mut exact: Vec<f64> = case.embeddings().iter().map(|&value| f64::from(value)).collect();
    let (_, gradient, beta_gradient, _) =
        differentiated(&case.embeddings(), 3, &triplets, 0.9, Average::Triplets);
    let step = 1e-6;
    for at in 0..exact.len() {
        let here = exact[at];
        let [above, below] = [here + step, here - step].map(|moved| {
            exact[at] = moved;
            naive(&exact, 3, &triplets, 0.9, Average::Triplets).value
        });
        exact[at] = here;
        let slope = (above - below) / (2.0 * step);
        assert!((gradient[at] - slope).abs() < 1e-6, "value {at}: {} for {slope}", gradient[at]);
    }
    let [above, below] =
        [0.9 + step, 0.9 - step].map(|beta| naive(&exact, 3, &triplets, beta, Average::Triplets).value);
    let slope = (above - below) / (2.0 * step);
    assert!((beta_gradient - slope).abs() < 1e-6, "beta: {beta_gradient} for {slope}");
}

#[test]
fn embeddings_that_meet_have_finite_gradients() {
    let embeddings = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0];
    let (value, gradient, beta_gradient, active) =
        differentiated(&embeddings, 2, &triplets(&[[0, 1, 2]]), 0.1, Average::Triplets);
    // (0 − 0.1 + 0.2) + (0.1 − 0 + 0.2): the slopes of β cancel.
    assert!((value - 0.4).abs() < 1e-6, "{value}");
    assert_eq!((gradient, beta_gradient, active), (vec![0.0; 6], 0.0, [1, 1]));
}

#[test]
fn nothing_to_learn_from_is_a_loss_of_zero() {
    let embeddings = [1.0, 0.0, 1.0, 0.0, -1.0, 0.0];
    for (list, average) in [
        (vec![[0, 1, 2]], Average::ActivePairs),
        (vec![[0, 1, 2]], Average::Triplets),
        (vec![], Average::ActivePairs),
        (vec![], Average::Triplets),
    ] {
        let found = differentiated(&embeddings, 2, &triplets(&list), 1.2, average);
        assert_eq!(found, (0.0, vec![0.0; 6], 0.0, [0, 0]), "{list:?} {average:?}");
    }
}
