//! How a request wants its tokens drawn.

use std::path::Path;

use training_gym_core::spec::SamplingSpec;

use super::error::ApiError;
use super::fields::{Bounds, Fields};

/// Stop texts a request may have, and responses a prompt.
const MOST_STOPS: usize = 16;
const MOST_RESPONSES: i64 = 128;

/// What a request's sampling fields come to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sampling {
    pub(super) spec: SamplingSpec,
    /// `None` is as many as the context holds.
    pub(super) max_new_tokens: Option<usize>,
    pub(super) stop: Vec<String>,
    pub(super) stop_token_ids: Vec<i64>,
    pub(super) ignore_eos: bool,
    pub(super) skip_special_tokens: bool,
    pub(super) n: usize,
    pub(super) seed: Option<u64>,
}

/// What a model's `generation_config.json` recommends: the OpenAI routes' defaults, as in vLLM and
/// SGLang. `/generate` has SGLang's fixed defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingDefaults {
    spec: SamplingSpec,
}

impl SamplingDefaults {
    /// Reads `temperature`, `top_p`, `top_k` and `min_p`; what is absent or impossible is OpenAI's
    /// default (temperature 1, nothing cut). A `repetition_penalty` is not applied: a warning says so.
    pub fn from_folder(folder: &Path) -> Self {
        let file = std::fs::read(folder.join("generation_config.json")).unwrap_or_default();
        let config: serde_json::Value = serde_json::from_slice(&file).unwrap_or_default();
        let number = |name: &str, low: f64, high: f64| {
            config.get(name).and_then(serde_json::Value::as_f64).filter(|value| (low..=high).contains(value))
        };
        let plain = SamplingSpec::default();
        let spec = SamplingSpec {
            temperature: number("temperature", 0.0, f64::MAX).unwrap_or(plain.temperature),
            top_p: number("top_p", f64::MIN_POSITIVE, 1.0).unwrap_or(plain.top_p),
            top_k: number("top_k", 1.0, 1e9).map_or(plain.top_k, |k| k as i64),
            min_p: number("min_p", 0.0, 1.0).unwrap_or(plain.min_p),
        };
        if number("repetition_penalty", f64::MIN, f64::MAX).is_some_and(|penalty| penalty != 1.0) {
            tracing::warn!("the model's generation_config.json has a repetition_penalty, which is not applied");
        }
        tracing::info!(?spec, "sampling defaults of the OpenAI routes");
        Self { spec }
    }
}

impl Sampling {
    /// The fields of OpenAI's routes with our extensions (`top_k`, `min_p`, `stop_token_ids`,
    /// `ignore_eos`, `skip_special_tokens`). `max_new_tokens` is the route's default.
    pub(super) fn openai(
        fields: &Fields,
        defaults: &SamplingDefaults,
        max_new_tokens: Option<usize>,
    ) -> Result<Self, ApiError> {
        refuse_what_is_not_done(fields)?;
        let spec = SamplingSpec {
            temperature: fields.number("temperature", Bounds::closed(0.0, 2.0))?.unwrap_or(defaults.spec.temperature),
            ..cuts(fields, &defaults.spec)?
        };
        let limit = match fields.integer("max_completion_tokens", 1..=i64::MAX)? {
            Some(limit) => Some(limit),
            None => fields.integer("max_tokens", 1..=i64::MAX)?,
        };
        let max_new_tokens = limit.map(|limit| limit as usize).or(max_new_tokens);
        Self { spec, max_new_tokens, seed: fields.seed("seed")?, ..Self::plain() }.with_stops(fields)
    }

    /// SGLang's `sampling_params`.
    pub(super) fn sglang(fields: &Fields) -> Result<Self, ApiError> {
        refuse_what_is_not_done(fields)?;
        let plain = SamplingSpec::default();
        let spec = SamplingSpec {
            temperature: fields.number("temperature", Bounds::closed(0.0, f64::INFINITY))?.unwrap_or(plain.temperature),
            ..cuts(fields, &plain)?
        };
        let max_new_tokens = fields.integer("max_new_tokens", 0..=i64::MAX)?.unwrap_or(128) as usize;
        let seed = fields.seed("sampling_seed")?;
        Self { spec, max_new_tokens: Some(max_new_tokens), seed, ..Self::plain() }.with_stops(fields)
    }

    fn plain() -> Self {
        Self {
            spec: SamplingSpec::default(),
            max_new_tokens: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            skip_special_tokens: true,
            n: 1,
            seed: None,
        }
    }

    fn with_stops(self, fields: &Fields) -> Result<Self, ApiError> {
        let stop = fields.texts("stop")?.unwrap_or_default();
        if stop.len() > MOST_STOPS {
            return Err(fields.refuse("stop", &format!("must have at most {MOST_STOPS} texts")));
        }
        // vLLM and OpenAI refuse it too: it could only mean "stop at once" or nothing.
        if stop.iter().any(String::is_empty) {
            return Err(fields.refuse("stop", "an empty text stops nothing; leave it out"));
        }
        Ok(Self {
            stop,
            stop_token_ids: fields.ids("stop_token_ids")?.unwrap_or_default(),
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            skip_special_tokens: fields.flag("skip_special_tokens")?.unwrap_or(true),
            n: fields.integer("n", 1..=MOST_RESPONSES)?.unwrap_or(1) as usize,
            ..self
        })
    }
}

/// Everything but the temperature.
fn cuts(fields: &Fields, defaults: &SamplingSpec) -> Result<SamplingSpec, ApiError> {
    let top_k = match fields.integer("top_k", -1..=1_000_000_000)? {
        // 0 is "all" with vLLM and transformers, −1 with SGLang.
        Some(0) => -1,
        Some(top_k) => top_k,
        None => defaults.top_k,
    };
    Ok(SamplingSpec {
        temperature: defaults.temperature,
        top_p: fields.number("top_p", Bounds::open_below(0.0, 1.0))?.unwrap_or(defaults.top_p),
        top_k,
        min_p: fields.number("min_p", Bounds::closed(0.0, 1.0))?.unwrap_or(defaults.min_p),
    })
}

/// Says whether a value changes nothing.
type Neutral<'a> = &'a dyn Fn(&serde_json::Value) -> bool;

/// Fields that would change the answer and that the engine does not do: refused unless neutral.
fn refuse_what_is_not_done(fields: &Fields) -> Result<(), ApiError> {
    use serde_json::Value;
    let neutral_number = |neutral: f64| move |value: &Value| value.as_f64() == Some(neutral);
    let empty = |value: &Value| {
        value.as_object().is_some_and(serde_json::Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
    };
    let no = |value: &Value| value.as_bool() == Some(false) || value.as_str() == Some("");
    let checks: [(&str, Neutral<'_>); 12] = [
        ("frequency_penalty", &neutral_number(0.0)),
        ("presence_penalty", &neutral_number(0.0)),
        ("repetition_penalty", &neutral_number(1.0)),
        ("min_new_tokens", &neutral_number(0.0)),
        ("min_tokens", &neutral_number(0.0)),
        ("logit_bias", &empty),
        ("response_format", &|value| value.get("type").and_then(Value::as_str) == Some("text")),
        ("json_schema", &no),
        ("regex", &no),
        ("echo", &no),
        ("suffix", &no),
        ("best_of", &|value| value.as_i64() == fields.get("n").map_or(Some(1), Value::as_i64)),
    ];
    for (field, neutral) in checks {
        if fields.get(field).is_some_and(|value| !neutral(value)) {
            return Err(fields.refuse(field, "is not supported by this server; leave it out"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: serde_json::Value) -> Fields {
        Fields::parse(json.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_models_own_defaults_hold_where_a_field_is_absent() {
        let folder = tempfile::tempdir().unwrap();
        let config = r#"{"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05}"#;
        std::fs::write(folder.path().join("generation_config.json"), config).unwrap();
        let defaults = SamplingDefaults::from_folder(folder.path());
        let given = fields(serde_json::json!({"top_p": 1, "max_tokens": 5, "stop": "x", "seed": -1}));
        let sampling = Sampling::openai(&given, &defaults, None).unwrap();
        assert_eq!(sampling.spec, SamplingSpec { temperature: 0.6, top_p: 1.0, top_k: 20, min_p: 0.0 });
        assert_eq!((sampling.max_new_tokens, sampling.seed), (Some(5), Some(u64::MAX)));
        assert_eq!(sampling.stop, ["x"]);
        let plain = Sampling::sglang(&fields(serde_json::json!({}))).unwrap();
        assert_eq!((plain.spec, plain.max_new_tokens), (SamplingSpec::default(), Some(128)));
        let none = SamplingDefaults::from_folder(std::path::Path::new("/nowhere"));
        assert_eq!(none.spec, SamplingSpec::default());
    }

    #[test]
    fn what_is_not_done_is_refused_unless_neutral() {
        let neutral = serde_json::json!({"frequency_penalty": 0, "logit_bias": {}, "response_format": {"type": "text"},
            "echo": false, "n": 2, "best_of": 2, "top_k": 0});
        let defaults = SamplingDefaults { spec: SamplingSpec::default() };
        assert_eq!(Sampling::openai(&fields(neutral), &defaults, None).unwrap().n, 2);
        for bad in [
            serde_json::json!({"presence_penalty": 0.5}),
            serde_json::json!({"response_format": {"type": "json_object"}}),
            serde_json::json!({"echo": true}),
            serde_json::json!({"max_tokens": 0}),
            serde_json::json!({"n": 0}),
            serde_json::json!({"top_p": 0}),
            serde_json::json!({"stop": 5}),
            serde_json::json!({"stop": ""}),
            serde_json::json!({"stop": ["x", ""]}),
            serde_json::json!({"max_tokens": 1u64 << 63}),
            serde_json::json!({"max_completion_tokens": u64::MAX}),
            serde_json::json!({"n": u64::MAX}),
            serde_json::json!({"top_k": u64::MAX}),
            serde_json::json!({"seed": 1e40}),
        ] {
            let error = Sampling::openai(&fields(bad.clone()), &defaults, None).unwrap_err();
            let field = bad.as_object().unwrap().keys().next().unwrap().clone();
            assert_eq!(error.body()["error"]["param"], field, "{bad}");
        }
    }
}
