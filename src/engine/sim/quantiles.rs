//! Distributions as tables of quantiles, drawn from in whole numbers: no logarithm or exponential, whose last bits
//! differ from platform to platform, stands between a seed and its requests.

use rand::Rng;
use rand::rngs::Xoshiro256PlusPlus;

use super::tokens::below;

/// Where the quantiles are taken, in thousandths. The tail is finer, since long prompts make most of the blocks.
const AT: [u64; 29] = [
    0, 10, 20, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 550, 600, 650, 700, 750, 800, 850, 900, 930,
    950, 970, 980, 990, 995, 998, 1000,
];

/// A distribution by its values at [`AT`].
#[derive(Debug)]
pub(super) struct Quantiles(pub(super) [u32; AT.len()]);

impl Quantiles {
    /// Draws a value, uniformly between two neighbouring quantiles.
    pub(super) fn draw(&self, rng: &mut Xoshiro256PlusPlus) -> u64 {
        self.at(rng.next_u64())
    }

    /// The value at a place of the distribution, in 2^-64.
    fn at(&self, place: u64) -> u64 {
        /// Steps of a thousandth.
        const STEPS: u64 = 1 << 32;
        let place = below(place, 1000 * STEPS);
        let next = AT.partition_point(|at| at * STEPS <= place).min(AT.len() - 1);
        let (low, high) = (u64::from(self.0[next - 1]), u64::from(self.0[next]));
        if low == high {
            return low;
        }
        let share = u128::from(place - AT[next - 1] * STEPS);
        let width = u128::from((AT[next] - AT[next - 1]) * STEPS);
        low + (u128::from(high - low + 1) * share / width) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_run_from_the_first_quantile_to_the_last_and_never_fall() {
        let table = Quantiles(std::array::from_fn(|index| (index * index) as u32));
        assert_eq!((table.at(0), table.at(u64::MAX)), (0, 28 * 28));
        let values: Vec<u64> = (0..10_000).map(|step| table.at(step * (u64::MAX / 10_000))).collect();
        assert!(values.is_sorted());
        assert_eq!(table.at(u64::MAX / 2 + 1), 12 * 12, "the median stands at 500 thousandths");
    }
}
