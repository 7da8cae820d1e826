//! Rewards relative to their prompt's group (GRPO: Shao et al., "DeepSeekMath", 2024, §4.1).

/// Added to a group's standard deviation before dividing by it.
const STD_EPSILON: f64 = 1e-6;

/// One advantage a sample.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupAdvantages {
    /// In sample order; ungraded samples have 0.
    pub advantages: Vec<f64>,
    /// Groups with graded samples whose rewards are all equal.
    pub zero_std_groups: u64,
}

/// Subtracts each group's mean; with `normalize_std`, divides by its standard deviation (n − 1)
/// plus 1e-6. Ungraded samples (`None`) are left out of both and get 0. A group of equal rewards,
/// or of one graded sample, gets exactly 0.
///
/// # Shapes
/// `[groups · group_size]` to the same; a last shorter group is a group by itself.
///
/// # Panics
/// When `group_size` is 0.
pub fn group_relative(rewards: &[Option<f64>], group_size: usize, normalize_std: bool) -> GroupAdvantages {
    let mut out = GroupAdvantages { advantages: Vec::with_capacity(rewards.len()), zero_std_groups: 0 };
    for group in rewards.chunks(group_size) {
        let graded: Vec<f64> = group.iter().flatten().copied().collect();
        if all_equal(&graded) {
            out.zero_std_groups += u64::from(!graded.is_empty());
            out.advantages.extend(group.iter().map(|_| 0.0));
            continue;
        }
        let count = graded.len() as f64;
        let mean = graded.iter().sum::<f64>() / count;
        let scale = if normalize_std {
            let variance = graded.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / (count - 1.0);
            1.0 / (variance.sqrt() + STD_EPSILON)
        } else {
            1.0
        };
        out.advantages.extend(group.iter().map(|reward| reward.map_or(0.0, |reward| (reward - mean) * scale)));
    }
    out
}

/// Subtracts the mean of the group's *other* graded rewards (RLOO: Ahmadian et al., 2024, eq. 9).
/// Ungraded samples are left out and get 0; a group of equal rewards, or of one graded sample, gets
/// exactly 0.
///
/// # Shapes
/// As [`group_relative`].
///
/// # Panics
/// When `group_size` is 0.
pub fn leave_one_out(rewards: &[Option<f64>], group_size: usize) -> GroupAdvantages {
    let mut out = group_relative(rewards, group_size, false);
    for (group, advantages) in rewards.chunks(group_size).zip(out.advantages.chunks_mut(group_size)) {
        // r − (Σ − r)/(n − 1) = n/(n − 1) · (r − Σ/n)
        let count = group.iter().flatten().count() as f64;
        advantages.iter_mut().filter(|advantage| **advantage != 0.0).for_each(|a| *a *= count / (count - 1.0));
    }
    out
}

/// Which samples are in a group that tells right from wrong: whose graded rewards differ (DAPO's
/// dynamic sampling: Yu et al., 2025, eq. 11).
///
/// # Shapes
/// As [`group_relative`].
///
/// # Panics
/// When `group_size` is 0.
pub fn informative(rewards: &[Option<f64>], group_size: usize) -> Vec<bool> {
    let differs = |group: &[Option<f64>]| {
        let graded: Vec<f64> = group.iter().flatten().copied().collect();
        vec![!all_equal(&graded); group.len()]
    };
    rewards.chunks(group_size).flat_map(differs).collect()
}

/// The rewards themselves; ungraded samples get 0.
///
/// # Shapes
/// As [`group_relative`].
///
/// # Panics
/// When `group_size` is 0.
pub fn raw(rewards: &[Option<f64>], group_size: usize) -> GroupAdvantages {
    let zero_std = |group: &&[Option<f64>]| {
        let graded: Vec<f64> = group.iter().flatten().copied().collect();
        !graded.is_empty() && all_equal(&graded)
    };
    GroupAdvantages {
        advantages: rewards.iter().map(|reward| reward.unwrap_or(0.0)).collect(),
        zero_std_groups: rewards.chunks(group_size).filter(zero_std).count() as u64,
    }
}

fn all_equal(values: &[f64]) -> bool {
    values.windows(2).all(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ungraded_neither_help_nor_hurt_their_group() {
        let with = group_relative(&[Some(1.0), None, Some(0.0), Some(0.0)], 4, true);
        let without = group_relative(&[Some(1.0), Some(0.0), Some(0.0)], 3, true);
        assert_eq!(with.advantages[1], 0.0);
        assert_eq!([with.advantages[0], with.advantages[2], with.advantages[3]], without.advantages[..]);
        assert!((with.advantages[0] - (2.0 / 3.0) / (1.0 / 3f64.sqrt() + 1e-6)).abs() < 1e-12);
    }

    #[test]
    fn each_reward_is_compared_with_the_others_of_its_group() {
        let out = leave_one_out(&[Some(1.0), None, Some(0.0), Some(0.5), Some(2.0), Some(2.0), None, None], 4);
        let expected = [1.0 - 0.25, 0.0, 0.0 - 0.75, 0.5 - 0.5, 0.0, 0.0, 0.0, 0.0];
        assert!(out.advantages.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{out:?}");
        assert_eq!(out.zero_std_groups, 1);
    }

    #[test]
    fn groups_without_a_difference_are_dropped_whole() {
        let rewards = [
            Some(1.0),
            Some(1.0),
            Some(1.0),
            None,
            Some(0.0),
            Some(1.0),
            None,
            None,
            Some(-1.0),
            Some(-1.0),
            Some(-1.0),
            Some(0.5),
        ];
        let kept = informative(&rewards, 4);
        assert_eq!(kept, [[false; 4], [true; 4], [true; 4]].concat());
    }

    #[test]
    fn equal_groups_are_exactly_zero_and_counted() {
        let out = group_relative(&[Some(0.1), Some(0.1), Some(0.1), None, None, None, Some(7.0), None, None], 3, true);
        assert_eq!(out, GroupAdvantages { advantages: vec![0.0; 9], zero_std_groups: 2 });
    }
}
