//! How hard a search can look in its time.

use retrievalguard::attack::Mode;

use crate::perturbation::Target;

/// Sizes at which a search looks, as shares of the one that was asked for.
pub(super) const SIZES: [f64; 4] = [0.125, 0.25, 0.5, 1.0];

/// Fewest steps and noisy copies that are worth a search at one size.
const FEWEST: (u32, u32) = (8, 16);

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
pub(super) fn effort(mode: Mode, speed: f64, seconds: f64) -> (u32, u32, u32) {
    let (steps, restarts, noise) = whole_effort(mode);
    // How fast gradients are is not known; the clock ends the search.
    if mode == Mode::WhiteBox || speed <= 0.0 {
        return (steps, restarts, noise);
    }
    let passes = speed * seconds;
    let noise = ((passes / f64::from(FEWEST.0)) as u32).clamp(FEWEST.1, noise).next_multiple_of(2);
    let steps = ((passes / f64::from(noise)) as u32).clamp(FEWEST.0, steps);
    (steps, restarts, noise)
}

/// Passes of a search at every size.
pub(super) fn passes(mode: Mode, target: Target, (steps, restarts, noise): (u32, u32, u32)) -> u64 {
    // The gradient of the plain encoder needs no noise.
    let noise = match (mode, target) {
        (Mode::WhiteBox, Target::Plain) => 1,
        (Mode::WhiteBox, Target::Smoothed) | (Mode::BlackBox, _) => noise,
    };
    SIZES.len() as u64 * u64::from(restarts * (steps + COMPARED) * noise)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_encoder_gets_a_smaller_search_and_a_fast_one_the_whole() {
        assert_eq!(effort(Mode::BlackBox, 1e6, 5.0), whole_effort(Mode::BlackBox));
        assert_eq!(effort(Mode::WhiteBox, 1.0, 5.0), whole_effort(Mode::WhiteBox));
        for speed in [1.0, 20.0, 144.0, 500.0] {
            let (steps, restarts, noise) = effort(Mode::BlackBox, speed, 5.0);
            assert!(steps >= FEWEST.0 && noise >= FEWEST.1 && noise % 2 == 0 && restarts == 1, "{speed}");
            let least = f64::from(FEWEST.0 * FEWEST.1);
            assert!(f64::from(steps * noise) <= (speed * 5.0).max(least) * 1.2, "{speed}: {steps} × {noise}");
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
