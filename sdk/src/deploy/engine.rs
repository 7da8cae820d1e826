//! Arguments of a deployment's engine.

use serde_json::Value;
use training_gym_core::spec::EngineSpec;

use super::Error;

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

/// The arguments our engine reads.
const KNOWN: [&str; 4] = ["context_length", "max_prefill_tokens", "max_queued_requests", "max_running_requests"];

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
            ("context_length", self.context_length),
            ("max_prefill_tokens", self.max_prefill_tokens),
            ("max_queued_requests", self.max_queued_requests),
            ("max_running_requests", self.max_running_requests),
        ];
        for (key, value) in fields {
            if let Some(value) = value {
                set(&mut spec, key, value)?;
            }
        }
        for (name, value) in &self.extra {
            let key = name.trim_start_matches('-').replace('-', "_");
            if !KNOWN.contains(&key.as_str()) {
                let near = nearest(&key);
                let rule = format!("nobody reads it; the nearest known one is `{near}` (all: {})", KNOWN.join(", "));
                return Err(Error::Argument { key: name.clone(), given: None, rule });
            }
            // A command line writes numbers as text.
            let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok());
            let number = number.and_then(|number| usize::try_from(number).ok()).ok_or_else(|| Error::Argument {
                key: name.clone(),
                given: Some(value.to_string()),
                rule: "must be a whole number".to_owned(),
            })?;
            set(&mut spec, &key, number)?;
        }
        Ok(spec)
    }
}

fn set(spec: &mut EngineSpec, key: &str, value: usize) -> Result<(), Error> {
    let least = match key {
        "context_length" => 2,
        "max_queued_requests" => 0,
        _ => 1,
    };
    if value < least {
        let rule = format!("must be ≥ {least}");
        return Err(Error::Argument { key: key.to_owned(), given: Some(value.to_string()), rule });
    }
    match key {
        "context_length" => spec.context_length = Some(value),
        "max_prefill_tokens" => spec.max_prefill_tokens = value,
        "max_queued_requests" => spec.max_queued_requests = value,
        _ => spec.max_running_requests = value,
    }
    Ok(())
}

fn nearest(key: &str) -> &'static str {
    crate::config::nearest(key, &KNOWN).unwrap_or(KNOWN[0])
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
        assert!(zero.spec().unwrap_err().to_string().contains("must be ≥ 1"));
    }
}
