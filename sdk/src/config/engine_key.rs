//! The limits of an engine by name: one table and one parser for recipes and deployments.

use serde_json::Value;
use training_gym_core::spec::EngineSpec;

use super::distance;

/// A limit of an engine that a person may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineKey {
    MaxRunningRequests,
    MaxQueuedRequests,
    ContextLength,
    MaxPrefillTokens,
}

impl EngineKey {
    /// All of them, in the order messages name them.
    pub(crate) const ALL: [Self; 4] =
        [Self::MaxRunningRequests, Self::MaxQueuedRequests, Self::ContextLength, Self::MaxPrefillTokens];

    /// Its name in a spec.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MaxRunningRequests => "max_running_requests",
            Self::MaxQueuedRequests => "max_queued_requests",
            Self::ContextLength => "context_length",
            Self::MaxPrefillTokens => "max_prefill_tokens",
        }
    }

    /// The key of a name: `max_running_requests`, `max-running-requests` and
    /// `--max-running-requests` are one.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let name = spelt(name);
        Self::ALL.into_iter().find(|key| key.name() == name)
    }

    /// The names of all, as a message lists them.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The key a misspelt name was probably meant to be.
    pub(crate) fn nearest(name: &str) -> &'static str {
        let names = Self::ALL.map(Self::name);
        distance::nearest(&spelt(name), &names).unwrap_or(names[0])
    }

    /// The least value it can have: a context holds a prompt's token and a response's, and a queue
    /// may have no place.
    fn least(self) -> usize {
        match self {
            Self::ContextLength => 2,
            Self::MaxQueuedRequests => 0,
            Self::MaxRunningRequests | Self::MaxPrefillTokens => 1,
        }
    }

    /// Reads a value: a whole number, or its text, since a command line writes numbers as text.
    ///
    /// # Errors
    /// What is allowed.
    pub(crate) fn read(self, value: &Value) -> Result<usize, String> {
        let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
        let number = number.and_then(|number| usize::try_from(number).ok());
        number
            .filter(|number| *number >= self.least())
            .ok_or_else(|| format!("must be a whole number ≥ {}", self.least()))
    }

    /// Puts a value that was read into a spec.
    pub(crate) fn set(self, spec: &mut EngineSpec, value: usize) {
        match self {
            Self::MaxRunningRequests => spec.max_running_requests = value,
            Self::MaxQueuedRequests => spec.max_queued_requests = value,
            Self::ContextLength => spec.context_length = Some(value),
            Self::MaxPrefillTokens => spec.max_prefill_tokens = value,
        }
    }
}

fn spelt(name: &str) -> String {
    name.trim_start_matches('-').replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_key_is_read_under_each_spelling_and_goes_to_its_own_field() {
        let mut spec = EngineSpec::default();
        for (value, key) in (2..).zip(EngineKey::ALL) {
            let dashed = format!("--{}", key.name().replace('_', "-"));
            assert_eq!((EngineKey::of(key.name()), EngineKey::of(&dashed)), (Some(key), Some(key)));
            assert_eq!(key.read(&json!(value.to_string())), Ok(value));
            assert!(key.least() == 0 || key.read(&json!(key.least() - 1)).unwrap_err().contains("≥"));
            key.set(&mut spec, value);
        }
        let expected = EngineSpec {
            max_running_requests: 2,
            max_queued_requests: 3,
            context_length: Some(4),
            max_prefill_tokens: 5,
        };
        assert_eq!(spec, expected);
        assert_eq!(EngineKey::of("max_runing_requests"), None);
        assert_eq!(EngineKey::nearest("--max-runing-requests"), "max_running_requests");
        for value in [json!(1.5), json!(-1), json!("many"), json!(null)] {
            assert!(EngineKey::MaxQueuedRequests.read(&value).is_err(), "{value}");
        }
    }
}
