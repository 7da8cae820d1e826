//! How a request wants its tokens drawn.

use std::path::Path;

use serde_json::Value;
use training_gym_core::spec::SamplingSpec;

use super::error::ApiError;
use super::fields::{Bounds, Fields, excerpt};

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
    /// Reads `temperature`, `top_p`, `top_k` and `min_p`; what is absent is OpenAI's default
    /// (temperature 1, nothing cut). So is what is impossible, and a `repetition_penalty` is not
    /// applied: a warning names each.
    pub fn from_folder(folder: &Path) -> Self {
        let (defaults, warnings) = Self::read(folder);
        for warning in warnings {
            tracing::warn!("the model's generation_config.json: {warning}");
        }
        tracing::info!(spec = ?defaults.spec, "sampling defaults of the OpenAI routes");
        defaults
    }

    /// The defaults, and what is wrong with the file.
    fn read(folder: &Path) -> (Self, Vec<String>) {
        let mut warnings = Vec::new();
        let config = match std::fs::read(folder.join("generation_config.json")) {
            Ok(file) => serde_json::from_slice(&file).unwrap_or_else(|error| {
                warnings.push(format!("it is not JSON ({error}), so the defaults are OpenAI's"));
                Value::Null
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Value::Null,
            Err(error) => {
                warnings.push(format!("it cannot be read ({error}), so the defaults are OpenAI's"));
                Value::Null
            }
        };
        let mut number = |name: &str, bounds: Bounds, default: f64| {
            let Some(value) = config.get(name).filter(|value| !value.is_null()) else { return default };
            value.as_f64().filter(|number| bounds.hold(*number)).unwrap_or_else(|| {
                warnings.push(format!("{name} = {}: {}; taken as {default}", excerpt(value), bounds.text()));
                default
            })
        };
        let plain = SamplingSpec::default();
        let spec = SamplingSpec {
            temperature: number("temperature", Bounds::closed(0.0, f64::INFINITY), plain.temperature),
            top_p: number("top_p", Bounds::open_below(0.0, 1.0), plain.top_p),
            // 0 is "all" with transformers.
            top_k: match number("top_k", Bounds::closed(-1.0, 1e9), plain.top_k as f64) as i64 {
                0 => -1,
                top_k => top_k,
            },
            min_p: number("min_p", Bounds::closed(0.0, 1.0), plain.min_p),
        };
        let unbounded = Bounds::closed(f64::NEG_INFINITY, f64::INFINITY);
        if number("repetition_penalty", unbounded, 1.0) != 1.0 {
            warnings.push("its repetition_penalty is not applied".to_owned());
        }
        (Self { spec }, warnings)
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
type Neutral<'a> = &'a dyn Fn(&Value) -> bool;

/// Fields that would change the answer and that the engine does not do: refused unless neutral.
fn refuse_what_is_not_done(fields: &Fields) -> Result<(), ApiError> {
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
    fn impossible_defaults_are_named_and_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let read = |config: &str| {
            std::fs::write(folder.path().join("generation_config.json"), config).unwrap();
            let (defaults, warnings) = SamplingDefaults::read(folder.path());
            (defaults.spec, warnings)
        };
        let plain = SamplingSpec::default();
        for (config, said) in [
            (r#"{"temperature": -1}"#, "temperature = -1: must be ≥ 0; taken as 1"),
            (r#"{"temperature": "warm"}"#, "temperature = \"warm\": must be ≥ 0; taken as 1"),
            (r#"{"top_p": 1.5}"#, "top_p = 1.5: must be in (0, 1]; taken as 1"),
            (r#"{"top_p": 0}"#, "top_p = 0: must be in (0, 1]"),
            (r#"{"top_k": -2}"#, "top_k = -2: must be in [-1, 1000000000]; taken as -1"),
            (r#"{"min_p": 2}"#, "min_p = 2: must be in [0, 1]; taken as 0"),
            (r#"{"repetition_penalty": 1.1}"#, "repetition_penalty is not applied"),
            ("{", "it is not JSON"),
        ] {
            let (spec, warnings) = read(config);
            assert_eq!(spec, plain, "{config}");
            assert!(warnings.len() == 1 && warnings[0].contains(said), "{config}: {warnings:?}");
        }
        let fine = r#"{"temperature": null, "top_k": 0, "repetition_penalty": 1.0, "do_sample": true}"#;
        assert_eq!(read(fine), (plain, Vec::new()));
        assert!(SamplingDefaults::read(Path::new("/nowhere")).1.is_empty());
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
