//! Medians and quartiles.

use serde::Serialize;

/// The middle half of a set of figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Quartiles {
    pub(crate) q1: f64,
    pub(crate) median: f64,
    pub(crate) q3: f64,
}

impl Quartiles {
    /// Of at least one figure; NaN of none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self { q1: quantile(&values, 0.25), median: quantile(&values, 0.5), q3: quantile(&values, 0.75) }
    }
}

pub(crate) fn median(values: &[f64]) -> f64 {
    Quartiles::of(values.iter().copied()).median
}

/// Of sorted values, linear between neighbours.
fn quantile(sorted: &[f64], at: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = at * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (place - place.floor())
}

/// The smallest value that at least this share of the sorted values does not exceed; 0 of none.
pub(crate) fn percentile(sorted: &[u64], share: f64) -> u64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_neighbours() {
        let quartiles = Quartiles::of([4.0, 1.0, 3.0, 2.0]);
        assert_eq!(quartiles, Quartiles { q1: 1.75, median: 2.5, q3: 3.25 });
        assert!(Quartiles::of([]).median.is_nan());
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let sorted: Vec<u64> = (1..=200).collect();
        assert_eq!((percentile(&sorted, 0.5), percentile(&sorted, 0.99)), (100, 198));
        assert_eq!((percentile(&[7], 0.99), percentile(&[], 0.99)), (7, 0));
    }
}
