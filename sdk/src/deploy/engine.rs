//! Arguments of a deployment's engine.

use serde_json::Value;
use training_gym_core::spec::EngineSpec;

use super::Error;
use crate::config::EngineKey;

/// Limits of a deployment's engine. What is unset has [`EngineSpec::default`]'s value.
///
/// ```
/// use training_gym::deploy::EngineArguments;
/// let _ = EngineArguments { max_running_requests: Some(16), ..EngineArguments::default() }
///     .with("context-length", 4096);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineArguments {
    /// Sequences decoded together, ≥ 1.
    pub max_running_requests: Option<usize>,
    /// Requests that may wait; one more is refused.
    pub max_queued_requests: Option<usize>,
    /// Tokens a sequence may have, prompt and response together, ≥ 2. Unset: the model's own limit.
    pub context_length: Option<usize>,
    /// Tokens prefilled in one pass, ≥ 1.
    pub max_prefill_tokens: Option<usize>,
    /// Arguments by name, as SGLang's command line writes them; these win over the fields.
    pub extra: Vec<(String, Value)>,
}

impl EngineArguments {
    /// Adds an argument by its name: `max_running_requests`, `max-running-requests` and
    /// `--max-running-requests` are one. A name nobody reads is refused at launch.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.push((name.into(), value.into()));
        self
    }

    pub(super) fn spec(&self) -> Result<EngineSpec, Error> {
        let mut spec = EngineSpec::default();
        let fields = [
            (EngineKey::ContextLength, self.context_length),
            (EngineKey::MaxPrefillTokens, self.max_prefill_tokens),
            (EngineKey::MaxQueuedRequests, self.max_queued_requests),
            (EngineKey::MaxRunningRequests, self.max_running_requests),
        ];
        for (key, value) in fields {
            if let Some(value) = value {
                set(&mut spec, key, (key.name(), &value.into()))?;
            }
        }
        for (name, value) in &self.extra {
            let key = EngineKey::of(name).ok_or_else(|| {
                let (near, all) = (EngineKey::nearest(name), EngineKey::names());
                let rule = format!("nobody reads it; the nearest known one is `{near}` (all: {all})");
                Error::Argument { key: name.clone(), given: None, rule }
            })?;
            set(&mut spec, key, (name, value))?;
        }
        Ok(spec)
    }
}

fn set(spec: &mut EngineSpec, key: EngineKey, (name, value): (&str, &Value)) -> Result<(), Error> {
    let refuse = |rule| Error::Argument { key: name.to_owned(), given: Some(value.to_string()), rule };
    key.set(spec, key.read(value).map_err(refuse)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_under_each_spelling() {
        for name in ["max_running_requests", "max-running-requests", "--max-running-requests"] {
            let spec = EngineArguments::default().with(name, 7).spec().unwrap();
            assert_eq!(spec.max_running_requests, 7, "{name}");
        }
        let spec = EngineArguments { context_length: Some(100), ..EngineArguments::default() };
        assert_eq!(spec.spec().unwrap().context_length, Some(100));
        assert_eq!(spec.with("context_length", "200").spec().unwrap().context_length, Some(200));
        assert_eq!(EngineArguments::default().spec().unwrap(), EngineSpec::default());
    }

    #[test]
    fn what_nobody_reads_is_refused_with_the_nearest_name() {
        let error = EngineArguments::default().with("--max-runing-request", 7).spec().unwrap_err().to_string();
        assert!(error.contains("--max-runing-request") && error.contains("`max_running_requests`"), "{error}");
        let error = EngineArguments::default().with("context_length", 1.5).spec().unwrap_err().to_string();
        assert!(error.contains("1.5") && error.contains("whole number"), "{error}");
        let zero = EngineArguments { max_running_requests: Some(0), ..EngineArguments::default() };
        assert!(zero.spec().unwrap_err().to_string().contains("must be a whole number ≥ 1"));
    }
}
