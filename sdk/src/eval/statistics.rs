//! Means over rows, with what sampling the rows leaves uncertain.

use std::fmt;

use serde::Serialize;

/// A mean over rows and its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean of the rows' values; NaN (`null` in JSON) where there is no row.
    pub value: f64,
    /// √(Σ(xᵢ − x̄)² / (m(m − 1))) over the m rows' values xᵢ; `None` for fewer than two rows.
    ///
    /// A row's value is the mean of its own samples, so with several samples a row this is the
    /// standard error clustered by row (Miller, "Adding Error Bars to Evals", 2024, section 2.2):
    /// samples of one row are not independent, and more of them do not make more rows.
    pub standard_error: Option<f64>,
    /// Rows it is the mean of.
    pub rows: usize,
}

impl Estimate {
    /// The mean of one value a row.
    pub(super) fn of(values: &[f64]) -> Self {
        let m = values.len() as f64;
        let value = values.iter().sum::<f64>() / m;
        let squares: f64 = values.iter().map(|x| (x - value).powi(2)).sum();
        let standard_error = (values.len() > 1).then(|| (squares / (m * (m - 1.0))).sqrt());
        Self { value, standard_error, rows: values.len() }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = out.precision().unwrap_or(3);
        write!(out, "{:.digits$}", self.value)?;
        match self.standard_error {
            Some(error) => write!(out, " ± {error:.digits$}"),
            None => Ok(()),
        }
    }
}

/// The unbiased estimate of the chance that at least one of k samples is right, from n samples of
/// which c are: 1 − C(n − c, k) / C(n, k) (Chen et al., "Evaluating Large Language Models Trained on
/// Code", 2021, equation 1), in its stable product form. Needs k ≤ n.
pub(super) fn pass_at_k(n: usize, c: usize, k: usize) -> f64 {
    if n - c < k {
        return 1.0;
    }
    1.0 - (n - c + 1..=n).map(|i| 1.0 - k as f64 / i as f64).product::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pass_at_k_is_the_share_of_subsets_with_a_right_one() {
        for n in 1..=7_u32 {
            for c in 0..=n {
                for k in 1..=n {
                    // The first c of n samples are right; count the k-subsets that touch them.
                    let subsets: Vec<u32> = (0..1 << n).filter(|set: &u32| set.count_ones() == k).collect();
                    let passing = subsets.iter().filter(|&&set| set & ((1 << c) - 1) != 0).count();
                    let expected = passing as f64 / subsets.len() as f64;
                    let found = pass_at_k(n as usize, c as usize, k as usize);
                    assert!((found - expected).abs() < 1e-12, "n {n} c {c} k {k}: {found} is not {expected}");
                }
            }
        }
    }

    #[test]
    fn the_standard_error_is_that_of_the_mean() {
        // numpy: np.std([1, 2, 4], ddof=1) / np.sqrt(3)
        let estimate = Estimate::of(&[1.0, 2.0, 4.0]);
        assert!((estimate.value - 7.0 / 3.0).abs() < 1e-12);
        assert!((estimate.standard_error.unwrap() - 0.881_917_103_688_196_7).abs() < 1e-12);
        assert_eq!(Estimate::of(&[1.0]).standard_error, None);
        assert_eq!(format!("{:.1}", Estimate::of(&[1.0, 3.0])), "2.0 ± 1.0");
    }
}
