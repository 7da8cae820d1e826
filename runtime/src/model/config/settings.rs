//! Values of a JSON object by key; what is wrong names the key.

use serde_json::{Map, Value};

use super::super::architecture::Architecture;
use super::super::error::Error;

/// Bounds a count far above any real model, so that products of a few of them stay in range.
const LARGEST_COUNT: u64 = 1 << 28;

pub(super) fn bad(key: &str, problem: &str) -> Error {
    Error::Config { key: key.to_owned(), problem: problem.to_owned() }
}

pub(super) fn unsupported<T>(what: &'static str, found: &str, supported: &str) -> Result<T, Error> {
    Err(Error::Unsupported { what, found: found.to_owned(), supported: supported.to_owned() })
}

#[derive(Clone, Copy)]
pub(super) struct Settings<'a> {
    map: &'a Map<String, Value>,
}

impl<'a> Settings<'a> {
    pub(super) fn of(key: &str, value: &'a Value) -> Result<Self, Error> {
        value.as_object().map(|map| Self { map }).ok_or_else(|| bad(key, "must be a JSON object"))
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// A whole number ≥ 1.
    pub(super) fn count(&self, key: &str) -> Result<usize, Error> {
        match self.get(key) {
            None => Err(bad(key, "is missing")),
            Some(_) => self.count_or(key, 0),
        }
    }

    pub(super) fn count_or(&self, key: &str, default: usize) -> Result<usize, Error> {
        let Some(value) = self.get(key) else { return Ok(default) };
        match value.as_u64() {
            Some(count) if (1..=LARGEST_COUNT).contains(&count) => Ok(count as usize),
            _ => Err(bad(key, &format!("= {value}: must be a whole number from 1 to {LARGEST_COUNT}"))),
        }
    }

    pub(super) fn number(&self, key: &str, default: f64) -> Result<f64, Error> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| bad(key, &format!("= {value}: must be a number"))),
        }
    }

    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool, Error> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| bad(key, &format!("= {value}: must be true or false"))),
        }
    }

    pub(super) fn list(&self, key: &str) -> Result<&'a [Value], Error> {
        match self.get(key) {
            None => Ok(&[]),
            Some(value) => value.as_array().map(Vec::as_slice).ok_or_else(|| bad(key, "must be a list")),
        }
    }

    pub(super) fn word(&self, key: &str) -> Result<Option<&'a str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => value.as_str().map(Some).ok_or_else(|| bad(key, &format!("= {value}: must be a string"))),
        }
    }

    /// By class name; `model_type` decides where there is none, and must not contradict it.
    pub(super) fn architecture(&self) -> Result<Architecture, Error> {
        let model_type = self.word("model_type")?;
        let class = self.list("architectures")?.first().and_then(Value::as_str);
        let found = class.or(model_type).ok_or_else(|| bad("architectures", "is missing"))?;
        let Some(architecture) = Architecture::find(found) else {
            return unsupported("architecture", found, &Architecture::supported());
        };
        match model_type {
            Some(other) if other != architecture.model_type() => {
                let problem = format!(
                    "= `{other}` contradicts `architectures` = `{}`, whose model type is `{}`",
                    architecture.name(),
                    architecture.model_type()
                );
                Err(bad("model_type", &problem))
            }
            _ => Ok(architecture),
        }
    }

    /// The decoder's settings of a model of several parts.
    pub(super) fn text_config(&self) -> Result<Self, Error> {
        let text = Self::of("text_config", self.get("text_config").ok_or_else(|| bad("text_config", "is missing"))?)?;
        let supported = Architecture::Qwen3_5.model_type();
        match text.word("model_type")? {
            Some(other) if other != supported => unsupported("text_config.model_type", other, supported),
            _ => Ok(text),
        }
    }

    pub(super) fn refuse_what_is_not_computed(&self) -> Result<(), Error> {
        for key in ["quantization_config", "compression_config"] {
            if let Some(value) = self.get(key) {
                let method = value.get("quant_method").and_then(Value::as_str).unwrap_or(key);
                return unsupported("quantisation", method, "float32, float16 and bfloat16 weights");
            }
        }
        match self.word("hidden_act")? {
            Some(activation) if activation != "silu" => return unsupported("activation", activation, "silu"),
            _ => {}
        }
        if self.flag("use_sliding_window", false)? {
            let window = self.get("sliding_window").map_or_else(|| "on".to_owned(), Value::to_string);
            let supported = "full attention (`use_sliding_window`: false)";
            return unsupported("sliding-window attention", &window, supported);
        }
        Ok(())
    }

    /// Variants of Qwen3.5 that share its class name but not its layers.
    pub(super) fn refuse_other_qwen3_5(&self) -> Result<(), Error> {
        for key in ["num_experts", "num_local_experts"] {
            if let Some(count) = self.get(key).filter(|count| count.as_u64() != Some(0)) {
                let found = format!("{key} = {count}");
                return unsupported("Qwen3.5 with experts", &found, "dense Qwen3.5; experts in Qwen3MoeForCausalLM");
            }
        }
        if !self.flag("attn_output_gate", true)? {
            return unsupported("attn_output_gate", "false", "true for Qwen3.5");
        }
        Ok(())
    }
}
