//! The book in which values are settled: each is entered once, with where it came from, and what is
//! wrong with it.

use std::time::Duration;

use serde::Serialize;
use training_gym_core::spec::{
    AdvantageEstimator, Divergence, Dtype, KlLossType, LossAggregation, LrDecayStyle, PolicyLoss, ResponseSource,
    SampleWeighting, SelectionRule, TeacherDialect, TokenSelection, ToolFormat, TopK,
};

use super::{Explanation, Model, Origin, Problem, Recipe, Setting};

/// A field of the recipe: its name, and how to read it.
pub(super) struct Field<T> {
    pub(super) name: &'static str,
    pub(super) of: fn(&Recipe) -> Option<T>,
}

/// The [`Field`] of a recipe's field of the same name.
macro_rules! field {
    ($name:ident) => {
        $crate::config::ledger::Field {
            name: stringify!($name),
            of: |recipe: &$crate::config::Recipe| recipe.$name.clone(),
        }
    };
}
pub(super) use field;

/// What is allowed, and what to do where it is not so.
pub(super) type Rule<'a> = (&'a str, &'a str);

pub(super) struct Ledger<'a> {
    recipe: &'a Recipe,
    preset: Option<(Model, Recipe)>,
    pub(super) explanation: Explanation,
    pub(super) problems: Vec<Problem>,
}

impl<'a> Ledger<'a> {
    pub(super) fn new(recipe: &'a Recipe) -> Self {
        let preset = recipe.preset.map(|model| (model, model.recipe()));
        Self { recipe, preset, explanation: Explanation::default(), problems: Vec::new() }
    }

    pub(super) fn recipe(&self) -> &'a Recipe {
        self.recipe
    }

    /// The value as it stands in the recipe, without entering it.
    pub(super) fn given<T: PartialEq>(&self, field: &Field<T>) -> Option<(T, Origin)> {
        let value = (field.of)(self.recipe)?;
        let origin = match &self.preset {
            Some((model, preset)) if (field.of)(preset).as_ref() == Some(&value) => Origin::Preset(*model),
            _ => Origin::Yours,
        };
        Some((value, origin))
    }

    /// The recipe's value, or the default.
    pub(super) fn value<T: PartialEq + Shown>(&mut self, field: Field<T>, default: T) -> T {
        let (value, origin) = self.given(&field).unwrap_or((default, Origin::Default));
        self.enter(field.name, value.shown(), origin);
        value
    }

    /// The recipe's value, or one worked out from others.
    pub(super) fn derived<T: PartialEq + Shown>(&mut self, field: Field<T>, value: T, how: &'static str) -> T {
        let (value, origin) = self.given(&field).unwrap_or((value, Origin::Derived(how)));
        self.enter(field.name, value.shown(), origin);
        value
    }

    /// The recipe's value, or nothing, which is shown as `absent`.
    pub(super) fn optional<T: PartialEq + Shown>(&mut self, field: Field<T>, absent: &str) -> Option<T> {
        let given = self.given(&field);
        let (shown, origin) = match &given {
            Some((value, origin)) => (value.shown(), *origin),
            None => (absent.to_owned(), Origin::Default),
        };
        self.enter(field.name, shown, origin);
        given.map(|(value, _)| value)
    }

    pub(super) fn enter(&mut self, name: &str, value: String, origin: Origin) {
        self.explanation.settings.push(Setting { name: name.to_owned(), value, origin });
    }

    /// Shows the last entry's value as `text` instead: it depends on what is not known yet.
    pub(super) fn show_last_as(&mut self, text: &str) {
        if let Some(setting) = self.explanation.settings.last_mut() {
            text.clone_into(&mut setting.value);
        }
    }

    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.explanation.notes.push(note.into());
    }

    /// Refuses a value of the recipe.
    pub(super) fn refuse(&mut self, name: &str, value: impl Into<Option<String>>, (bound, remedy): Rule<'_>) {
        self.problems.push(Problem {
            field: format!("recipe.{name}"),
            value: value.into(),
            bound: bound.to_owned(),
            remedy: remedy.to_owned(),
        });
    }

    /// Refuses a value of the recipe unless `ok`. A value worked out from others is theirs to be
    /// refused for.
    pub(super) fn need(&mut self, name: &str, value: &impl Shown, ok: bool, rule: Rule<'_>) {
        let typed = !matches!(self.explanation.origin(name), Some(Origin::Derived(_) | Origin::Default));
        if !ok && typed {
            self.refuse(name, value.shown(), rule);
        }
    }
}

/// A value as `explain()` and refusals show it.
pub(super) trait Shown {
    fn shown(&self) -> String;
}

macro_rules! shown {
    ($($type:ty: |$value:ident| $text:expr;)*) => {
        $(impl Shown for $type {
            fn shown(&self) -> String {
                let $value = self;
                $text
            }
        })*
    };
}

shown! {
    u64: |value| value.to_string();
    i64: |value| value.to_string();
    usize: |value| value.to_string();
    bool: |value| value.to_string();
    f64: |value| format!("{value:?}");
    String: |value| value.clone();
    Duration: |value| format!("{value:?}");
    Vec<String>: |value| if value.is_empty() { "none".to_owned() } else { format!("{value:?}") };
    Vec<i64>: |value| if value.is_empty() { "none".to_owned() } else { format!("{value:?}") };
    KlLossType: |value| named(value);
    PolicyLoss: |value| named(value);
    ResponseSource: |value| match value {
        ResponseSource::Column { name } => format!("the dataset's column {name:?}"),
        ResponseSource::Recorded { run_id } => format!("recorded by run {run_id}"),
        other => named(other),
    };
    Divergence: |value| match value {
        Divergence::Jsd { beta } => format!("jsd, beta {beta:?}"),
        Divergence::AdaptiveKl { head } => format!("adaptive_kl, head {head:?}"),
        other => named(other),
    };
    SampleWeighting: |value| match value {
        SampleWeighting::Paced { alpha, beta, .. } => format!("paced, p^{alpha:?} · (1 − p)^{beta:?}"),
        SampleWeighting::HardFilter { low, high, .. } => format!("hard-filter, {low:?} < p < {high:?}"),
        SampleWeighting::Reward { beta } => format!("reward, beta {beta:?}"),
    };
    TopK: |value| {
        let tail = if value.tail { "and a tail" } else { "without a tail" };
        format!("{} tokens {tail}, {}", value.k, value.divergence.shown())
    };
    TokenSelection: |value| {
        let cut = |quantile: &Option<f64>| quantile.map_or("uncut".to_owned(), |at| format!("cut at {at:?}"));
        let rule = match &value.rule {
            SelectionRule::SoftOr { entropy_clip_quantile } => format!("soft-or, entropy {}", cut(entropy_clip_quantile)),
            SelectionRule::Overconfident { entropy_clip_quantile } => {
                format!("overconfident, entropy {}", cut(entropy_clip_quantile))
            }
            SelectionRule::Sampled { entropy_power, jsd_power } => {
                format!("sampled, entropy^{entropy_power:?} · jsd^{jsd_power:?}")
            }
            other => named(other),
        };
        format!("{:?} of the tokens by {rule}", value.ratio)
    };
    LossAggregation: |value| match value {
        LossAggregation::ConstantLength { length } => format!("constant-length, {length} tokens"),
        other => named(other),
    };
    LrDecayStyle: |value| named(value);
    Dtype: |value| named(value);
    TeacherDialect: |value| named(value);
    ToolFormat: |value| named(value);
    AdvantageEstimator: |value| match value {
        AdvantageEstimator::GroupRelative { normalize_std: true } => "group-relative, over the group's std".to_owned(),
        AdvantageEstimator::GroupRelative { normalize_std: false } => "group-relative".to_owned(),
        AdvantageEstimator::ReinforcePlusPlus { gamma } => format!("reinforce-plus-plus, gamma {gamma:?}"),
        other => named(other),
    };
}

/// The name a unit variant has in the spec.
fn named(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        other => format!("{other:?}"),
    }
}
