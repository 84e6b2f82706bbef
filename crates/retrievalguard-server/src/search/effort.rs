//! How hard a search can look in its time.

use retrievalguard::attack::Mode;

use crate::perturbation::Target;

/// Sizes at which a search looks, as shares of the one that was asked for.
///
/// A search with gradients finds by itself how small a change can be; one without looks at the smallest size first.
pub(super) fn sizes(mode: Mode) -> &'static [f64] {
    match mode {
        Mode::WhiteBox => &[1.0],
        Mode::BlackBox => &[0.125, 0.25, 0.5, 1.0],
    }
}

/// Fewest steps and noisy copies that are worth a search at one size.
fn fewest(mode: Mode) -> (u32, u32) {
    match mode {
        Mode::WhiteBox => (16, 8),
        Mode::BlackBox => (8, 16),
    }
}

/// Moments of a restart at which candidates are compared.
const COMPARED: u32 = 4;

/// Steps, restarts and noisy copies per step of a search at one size that has all the time it wants.
pub(super) fn whole_effort(mode: Mode) -> (u32, u32, u32) {
    match mode {
        Mode::WhiteBox => (40, 3, 32),
        Mode::BlackBox => (40, 1, 128),
    }
}

/// Steps, restarts and noisy copies for which there is time, at so many passes per second.
pub(super) fn effort(mode: Mode, target: Target, speed: f64, seconds: f64) -> (u32, u32, u32) {
    let (steps, restarts, noise) = whole_effort(mode);
    if speed <= 0.0 {
        return (steps, restarts, noise);
    }
    let passes = speed * seconds;
    let (fewest_steps, fewest_copies) = fewest(mode);
    let copies = |noise: u32| f64::from(copies(mode, target, noise));
    // First fewer restarts, then fewer copies, then fewer steps.
    let affordable = passes / (f64::from(steps + COMPARED) * copies(noise));
    if affordable >= 1.0 {
        return (steps, (affordable as u32).clamp(1, restarts), noise);
    }
    let noise = ((passes / f64::from(fewest_steps)) as u32).clamp(fewest_copies, noise).next_multiple_of(2);
    let steps = ((passes / copies(noise)) as u32).clamp(fewest_steps, steps);
    (steps, 1, noise)
}

/// Passes of one step: the gradient of the plain encoder needs no noise.
fn copies(mode: Mode, target: Target, noise: u32) -> u32 {
    match (mode, target) {
        (Mode::WhiteBox, Target::Plain) => 1,
        (Mode::WhiteBox, Target::Smoothed) | (Mode::BlackBox, _) => noise,
    }
}

/// Passes of a search at every size.
pub(super) fn passes(mode: Mode, target: Target, (steps, restarts, noise): (u32, u32, u32)) -> u64 {
    sizes(mode).len() as u64 * u64::from(restarts * (steps + COMPARED) * copies(mode, target, noise))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_encoder_gets_a_smaller_search_and_a_fast_one_the_whole() {
        for (mode, target) in [
            (Mode::BlackBox, Target::Plain),
            (Mode::BlackBox, Target::Smoothed),
            (Mode::WhiteBox, Target::Plain),
            (Mode::WhiteBox, Target::Smoothed),
        ] {
            assert_eq!(effort(mode, target, 1e6, 5.0), whole_effort(mode));
            let (fewest_steps, fewest_copies) = fewest(mode);
            for speed in [1.0, 20.0, 144.0, 500.0] {
                let (steps, restarts, noise) = effort(mode, target, speed, 5.0);
                let case = format!("{mode:?} {target:?} at {speed}: {steps} × {restarts} × {noise}");
                assert!(steps >= fewest_steps && noise >= fewest_copies && noise % 2 == 0, "{case}");
                let least = fewest_steps * copies(mode, target, fewest_copies);
                let taken = restarts * steps * copies(mode, target, noise);
                assert!(f64::from(taken) <= (speed * 5.0).max(f64::from(least)) * 1.2, "{case}");
            }
        }
    }

    #[test]
    fn a_gradient_of_the_plain_encoder_takes_one_pass_where_others_take_many() {
        let whole = |mode, target| passes(mode, target, whole_effort(mode));
        let (plain, smoothed) =
            (whole(Mode::WhiteBox, Target::Plain), whole(Mode::WhiteBox, Target::Smoothed));
        assert_eq!(smoothed, 32 * plain);
        assert_eq!(whole(Mode::BlackBox, Target::Plain), whole(Mode::BlackBox, Target::Smoothed));
    }
}
