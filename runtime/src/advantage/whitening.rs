//! Whitening of a step's advantages.

/// Added to the variance before its root is taken.
const VARIANCE_EPSILON: f64 = 1e-8;

/// Shifts and scales all values to mean 0 and variance 1, both taken over the tokens that carry
/// loss: variance with n − 1, plus 1e-8. Values that carry no loss move with the others. Fewer
/// than two loss tokens have no variance: they are only shifted.
///
/// # Shapes
/// `rows` and `carries_loss`: `[R]` a sample.
///
/// # Panics
/// When the shapes differ.
pub fn whiten(rows: &mut [Vec<f64>], carries_loss: &[Vec<bool>]) {
    assert_eq!(rows.len(), carries_loss.len(), "one mask a sample");
    let mut kept = Vec::new();
    for (row, mask) in rows.iter().zip(carries_loss) {
        assert_eq!(row.len(), mask.len(), "one mask entry a token");
        kept.extend(row.iter().zip(mask).filter(|(_, carries)| **carries).map(|(value, _)| *value));
    }
    let count = kept.len() as f64;
    if kept.is_empty() {
        return;
    }
    let mean = kept.iter().sum::<f64>() / count;
    let scale = if kept.len() < 2 {
        1.0
    } else {
        let variance = kept.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
        1.0 / (variance + VARIANCE_EPSILON).sqrt()
    };
    for value in rows.iter_mut().flatten() {
        *value = (*value - mean) * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_and_no_token_stay_finite() {
        let mut rows = vec![vec![3.0, 5.0]];
        whiten(&mut rows, &[vec![true, false]]);
        assert_eq!(rows, [vec![0.0, 2.0]]);
        whiten(&mut rows, &[vec![false, false]]);
        assert_eq!(rows, [vec![0.0, 2.0]]);
    }
}
