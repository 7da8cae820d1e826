//! Taints that do not matter.

use serde::{Deserialize, Serialize};

use super::checks::is_label_key;

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TolerationEffect {
    /// New ones are not placed there.
    NoSchedule,
    /// New ones are placed elsewhere where possible.
    PreferNoSchedule,
    /// Those that run there are evicted.
    NoExecute,
}

/// A taint that does not keep the job from a node.
///
/// ```
/// use training_gym::backend::Toleration;
/// let _ = Toleration::of("dedicated").with_value("training");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Toleration {
    /// The taint's key.
    pub key: String,
    /// The taint's value. Unset: any.
    pub value: Option<String>,
    /// The taint's effect. Unset: any.
    pub effect: Option<TolerationEffect>,
}

impl Toleration {
    /// Any taint of this key.
    pub fn of(key: impl Into<String>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }

    /// Of this value only.
    #[must_use]
    pub fn with_value(mut self, value: impl Into<String>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// Of this effect only.
    #[must_use]
    pub fn with_effect(mut self, effect: TolerationEffect) -> Self {
        self.effect = Some(effect);
        self
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        if is_label_key(&self.key) { Ok(()) } else { Err("name the taint's key, such as `nvidia.com/gpu`") }
    }
}
