//! What is compared, and on what recipe.

use training_gym::config::LrDecayStyle;
use training_gym::prelude::*;
use training_gym::scorers::score_answer;

/// Seeds of every row.
pub(crate) const SEEDS: [u64; 3] = [1, 2, 3];

/// 1 for the right answer, −1 for a wrong one.
#[training_gym::reward]
pub(crate) async fn right(sample: &mut Sample) -> Result<f64, RewardError> {
    Ok(score_answer(&sample.response, &sample.label))
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Its name, which names its runs too.
    pub(crate) name: &'static str,
    /// As a person reads it.
    pub(crate) title: &'static str,
    /// Which table it is in.
    pub(crate) table: Table,
    pub(crate) method: Method,
}

/// Rows that differ in one thing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Table {
    Divergence,
    Tokens,
    Problems,
    Stages,
}

impl Table {
    pub(crate) const ALL: [Self; 4] = [Self::Divergence, Self::Tokens, Self::Problems, Self::Stages];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Divergence => "What is minimised",
            Self::Tokens => "Which tokens are taught (TIP)",
            Self::Problems => "Which problems count (PACED), and rewards as weights",
            Self::Stages => "Sparse-to-dense, with each stage removed",
        }
    }

    /// The row that others of the table are compared with.
    pub(crate) fn baseline(self) -> &'static str {
        match self {
            Self::Divergence | Self::Tokens | Self::Problems => "reverse-kl",
            Self::Stages => "s2d",
        }
    }

    /// The model that a row of the table begins with.
    pub(crate) fn says(self) -> &'static str {
        match self {
            Self::Divergence => {
                "On-policy distillation of the student from the teacher, on whole distributions but for the first row."
            }
            Self::Tokens => "Reverse KL, and the same with half of each response's tokens. Full reverse KL is 100 %.",
            Self::Problems => {
                "Reverse KL, weighed by the pass rate of eight graded responses, or by rewards. Full reverse KL is uniform."
            }
            Self::Stages => {
                "The teacher here is an early one, which a reward can still improve. It sees the labels of 500 problems; \
                 the student's last stage those of 500 others."
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Method {
    /// From a teacher behind a URL.
    Sampled,
    /// From a co-resident teacher.
    Whole {
        divergence: Divergence,
        selection: Option<(SelectionRule, f64)>,
        weighting: Option<SampleWeighting>,
    },
    Stages(Stages),
}

/// Which stages there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stages {
    pub(crate) teacher_rl: bool,
    pub(crate) warm_up: bool,
    pub(crate) opd: bool,
    pub(crate) last: Option<Last>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Last {
    StudentRl,
    Replay,
}

const WHOLE: Method = Method::Whole { divergence: Divergence::ReverseKl, selection: None, weighting: None };

const fn minimised(divergence: Divergence) -> Method {
    Method::Whole { divergence, selection: None, weighting: None }
}

const fn selected(rule: SelectionRule) -> Method {
    Method::Whole { divergence: Divergence::ReverseKl, selection: Some((rule, 0.5)), weighting: None }
}

const fn weighed(weighting: SampleWeighting) -> Method {
    Method::Whole { divergence: Divergence::ReverseKl, selection: None, weighting: Some(weighting) }
}

const PASS: PassRate = PassRate { pass_above: 0.0, laplace: false };
const ALL: Stages = Stages { teacher_rl: true, warm_up: true, opd: true, last: None };

const fn row(name: &'static str, title: &'static str, table: Table, method: Method) -> Row {
    Row { name, title, table, method }
}

/// The whole table.
pub(crate) const ROWS: &[Row] = &[
    row("sampled-reverse-kl", "reverse KL of the sampled token, over HTTP", Table::Divergence, Method::Sampled),
    row("reverse-kl", "full reverse KL", Table::Divergence, WHOLE),
    row("forward-kl", "full forward KL", Table::Divergence, minimised(Divergence::ForwardKl)),
    row("jsd", "full JSD, β ½", Table::Divergence, minimised(Divergence::Jsd { beta: 0.5 })),
    row("tip-50", "50 % by Soft-OR", Table::Tokens, selected(SelectionRule::SOFT_OR)),
    row("random-50", "50 % at random", Table::Tokens, selected(SelectionRule::Random)),
    row(
        "paced",
        "PACED, p·(1 − p)",
        Table::Problems,
        weighed(SampleWeighting::Paced { alpha: 1.0, beta: 1.0, pass_rate: PASS }),
    ),
    row(
        "hard-filter",
        "hard filter, 0.2 < p < 0.8",
        Table::Problems,
        weighed(SampleWeighting::HardFilter { low: 0.2, high: 0.8, pass_rate: PASS }),
    ),
    row("reward-weighted", "reward-weighted, β 1", Table::Problems, weighed(SampleWeighting::Reward { beta: 1.0 })),
    row("s2d", "stages 1, 2a, 2b", Table::Stages, Method::Stages(ALL)),
    row("s2d-without-1", "without 1 (teacher RL)", Table::Stages, Method::Stages(Stages { teacher_rl: false, ..ALL })),
    row("s2d-without-2a", "without 2a (warm-up)", Table::Stages, Method::Stages(Stages { warm_up: false, ..ALL })),
    row("s2d-without-2b", "without 2b (OPD)", Table::Stages, Method::Stages(Stages { opd: false, ..ALL })),
    row(
        "s2d-direct",
        "the student's RL alone",
        Table::Stages,
        Method::Stages(Stages { teacher_rl: false, warm_up: false, opd: false, last: Some(Last::StudentRl) }),
    ),
    row(
        "s2d-student-rl",
        "and 3 (student RL)",
        Table::Stages,
        Method::Stages(Stages { last: Some(Last::StudentRl), ..ALL }),
    ),
    row(
        "s2d-replay",
        "and the replay control",
        Table::Stages,
        Method::Stages(Stages { last: Some(Last::Replay), ..ALL }),
    ),
];

/// Rollout steps of a row of one run.
pub(crate) const STEPS: u64 = 300;

/// Rollout steps of stages 1, 2a, 2b and 3: 2a and 2b together are a row of one run.
pub(crate) const STAGE_STEPS: [u64; 4] = [100, 80, 220, 80];

/// Eight responses to each of eight problems, which is what a pass rate needs.
pub(crate) fn recipe(steps: u64, seed: u64) -> Recipe {
    Recipe {
        num_rollout: Some(steps),
        rollout_batch_size: Some(8),
        n_samples_per_prompt: Some(8),
        rollout_max_response_len: Some(48),
        lr: Some(2e-3),
        lr_warmup_iters: Some(steps / 10),
        lr_decay_style: Some(LrDecayStyle::Cosine),
        min_lr: Some(1e-4),
        weight_decay: Some(0.0),
        shuffle: Some(true),
        seed: Some(seed),
        ..Recipe::default()
    }
}

/// Reinforcement learning moves by a smaller step, and sees more problems in each.
pub(crate) fn rewarded(recipe: Recipe) -> Recipe {
    let rewarded = Some(RIGHT);
    Recipe { custom_rm_function: rewarded, lr: Some(1e-4), min_lr: Some(1e-5), rollout_batch_size: Some(16), ..recipe }
}
