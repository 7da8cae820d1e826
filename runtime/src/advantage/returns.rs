//! REINFORCE++: a reward at the end of a response, and a penalty along the way (Hu, 2025).

/// γ-discounted sums from each token to the end, of `reward` at the last token that carries loss and
/// `−kl_coef · kl` at each that does.
///
/// # Shapes
/// `kl`, `carries_loss`: `[R]` of one sample → `[R]`. Where no token carries loss all are 0.
///
/// # Panics
/// When the two differ in length.
pub fn discounted_returns(reward: f64, kl: &[f64], carries_loss: &[bool], (kl_coef, gamma): (f64, f64)) -> Vec<f64> {
    assert_eq!(kl.len(), carries_loss.len(), "one mask entry a token");
    let last = carries_loss.iter().rposition(|&carries| carries);
    let mut running = 0.0;
    let mut returns: Vec<f64> = (0..kl.len())
        .rev()
        .map(|token| {
            let penalty = if carries_loss[token] { kl_coef * kl[token] } else { 0.0 };
            let end = if last == Some(token) { reward } else { 0.0 };
            running = end - penalty + gamma * running;
            running
        })
        .collect();
    returns.reverse();
    returns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reward_reaches_back_and_a_penalty_stays_ahead() {
        let returns = discounted_returns(1.0, &[1.0, 5.0, 2.0, 7.0], &[true, false, true, false], (0.1, 0.5));
        let expected = [0.5 * 0.5 * 0.8 - 0.1, 0.5 * 0.8, 0.8, 0.0];
        assert!(returns.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{returns:?}");
        assert_eq!(discounted_returns(1.0, &[1.0], &[false], (0.1, 1.0)), [0.0]);
    }
}
