//! `config.json` of a Hugging Face folder, in both of its spellings.
//!
//! Checkpoints written by transformers 4 have `rope_theta`, `rope_scaling` and `torch_dtype`;
//! those of transformers 5 have `rope_parameters`, `dtype` and `layer_types`.

use std::path::Path;

use serde_json::{Map, Value};

use super::error::Error;

/// The decoder families this runtime computes. They differ in data (biases, norms, rotary
/// scaling), not in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen3 dense: norms on queries and keys.
    Qwen3,
    /// Qwen2 and Qwen2.5 dense: biases on queries, keys and values.
    Qwen2,
    /// Llama 3 dense.
    Llama,
}

impl Architecture {
    const ALL: [(&'static str, &'static str, Self); 3] = [
        ("Qwen3ForCausalLM", "qwen3", Self::Qwen3),
        ("Qwen2ForCausalLM", "qwen2", Self::Qwen2),
        ("LlamaForCausalLM", "llama", Self::Llama),
    ];
    const SUPPORTED: &'static str = "Qwen3ForCausalLM, Qwen2ForCausalLM, LlamaForCausalLM";

    /// The name in `architectures`.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|entry| entry.2 == self).expect("every architecture is listed").0
    }
}

/// How rotary frequencies are stretched for contexts longer than those trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// As they are.
    None,
    /// Llama 3.1's: long wavelengths divided by `factor`, short ones kept, a blend between.
    Llama3 {
        /// How much longer the context became.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are stretched in full.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context length before stretching.
        original_max_position_embeddings: f64,
    },
}

/// A decoder's shape: everything its weights and arithmetic depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// `V`: rows of the embedding.
    pub vocab_size: usize,
    /// `H`.
    pub hidden_size: usize,
    /// Width of the gated feed-forward.
    pub intermediate_size: usize,
    /// `L`.
    pub num_hidden_layers: usize,
    /// `A`.
    pub num_attention_heads: usize,
    /// `K`, a divisor of `A`.
    pub num_key_value_heads: usize,
    /// `D`, even; not always `H / A`.
    pub head_dim: usize,
    /// The longest sequence the model was made for.
    pub max_position_embeddings: usize,
    /// ε of the norms.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Their scaling.
    pub rope_scaling: RopeScaling,
    /// The output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// Queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The attention's output projection has a bias.
    pub output_bias: bool,
    /// The feed-forward's projections have biases.
    pub mlp_bias: bool,
    /// Queries and keys are normalised per head.
    pub qk_norm: bool,
    /// Standard deviation of fresh weights.
    pub initializer_range: f64,
}

impl ModelConfig {
    /// Reads `config.json` of a folder.
    ///
    /// # Errors
    /// [`Error::Read`] and [`Error::Json`] for the file, else as [`ModelConfig::from_json`].
    pub fn from_folder(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("config.json");
        let bytes = std::fs::read(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        let value = serde_json::from_slice(&bytes).map_err(|source| Error::Json { path, source })?;
        Self::from_json(&value)
    }

    /// Reads the contents of a `config.json`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an architecture, rotary scaling, activation, quantisation or
    /// attention window that is not computed here; [`Error::Config`] for a missing or impossible
    /// setting.
    pub fn from_json(value: &Value) -> Result<Self, Error> {
        let map = value.as_object().ok_or_else(|| bad("config.json", "must be a JSON object"))?;
        let settings = Settings { map };
        let architecture = settings.architecture()?;
        settings.refuse_what_is_not_computed()?;

        let heads = settings.count("num_attention_heads")?;
        let hidden_size = settings.count("hidden_size")?;
        let head_dim = match settings.count_or("head_dim", 0)? {
            // The default of transformers' Qwen3Config is a constant, the others divide.
            0 if architecture == Architecture::Qwen3 => 128,
            0 => hidden_size / heads,
            found => found,
        };
        let (rope_theta, rope_scaling) = settings.rope()?;
        let attention_bias = settings.flag("attention_bias", false)?;
        let config = Self {
            architecture,
            vocab_size: settings.count("vocab_size")?,
            hidden_size,
            intermediate_size: settings.count("intermediate_size")?,
            num_hidden_layers: settings.count("num_hidden_layers")?,
            num_attention_heads: heads,
            num_key_value_heads: settings.count_or("num_key_value_heads", heads)?,
            head_dim,
            max_position_embeddings: settings.count("max_position_embeddings")?,
            rms_norm_eps: settings.number("rms_norm_eps", 1e-6)?,
            rope_theta,
            rope_scaling,
            tie_word_embeddings: settings.flag("tie_word_embeddings", false)?,
            qkv_bias: architecture == Architecture::Qwen2 || attention_bias,
            output_bias: architecture != Architecture::Qwen2 && attention_bias,
            mlp_bias: architecture == Architecture::Llama && settings.flag("mlp_bias", false)?,
            qk_norm: architecture == Architecture::Qwen3,
            initializer_range: settings.number("initializer_range", 0.02)?,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), Error> {
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            let problem = format!("= {}: must be even and positive, for rotary pairs", self.head_dim);
            return Err(bad("head_dim", &problem));
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let problem = format!(
                "= {}: must divide num_attention_heads = {}",
                self.num_key_value_heads, self.num_attention_heads
            );
            return Err(bad("num_key_value_heads", &problem));
        }
        for (key, number) in [("rms_norm_eps", self.rms_norm_eps), ("rope_theta", self.rope_theta)] {
            if !(number.is_finite() && number > 0.0) {
                return Err(bad(key, &format!("= {number}: must be positive")));
            }
        }
        if !(self.initializer_range.is_finite() && self.initializer_range >= 0.0) {
            return Err(bad("initializer_range", &format!("= {}: must be ≥ 0", self.initializer_range)));
        }
        Ok(())
    }

    /// The first setting in which two configurations differ, as text.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let (ours, theirs) = (format!("{self:#?}"), format!("{other:#?}"));
        let (mine, new) = ours.lines().zip(theirs.lines()).find(|(a, b)| a != b)?;
        Some(format!("`{}` is now `{}`", mine.trim(), new.trim()))
    }
}

fn bad(key: &str, problem: &str) -> Error {
    Error::Config { key: key.to_owned(), problem: problem.to_owned() }
}

/// Bounds a count far above any real model, so that products of a few of them stay in range.
const LARGEST_COUNT: u64 = 1 << 31;

struct Settings<'a> {
    map: &'a Map<String, Value>,
}

impl Settings<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn count(&self, key: &str) -> Result<usize, Error> {
        match self.get(key) {
            None => Err(bad(key, "is missing")),
            Some(_) => self.count_or(key, 0),
        }
    }

    fn count_or(&self, key: &str, default: usize) -> Result<usize, Error> {
        let Some(value) = self.get(key) else { return Ok(default) };
        match value.as_u64() {
            Some(count) if (1..=LARGEST_COUNT).contains(&count) => Ok(count as usize),
            _ => Err(bad(key, &format!("= {value}: must be a whole number from 1 to {LARGEST_COUNT}"))),
        }
    }

    fn number(&self, key: &str, default: f64) -> Result<f64, Error> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| bad(key, &format!("= {value}: must be a number"))),
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, Error> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| bad(key, &format!("= {value}: must be true or false"))),
        }
    }

    fn architecture(&self) -> Result<Architecture, Error> {
        let named = self.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        let found = named.or_else(|| self.get("model_type").and_then(Value::as_str));
        let found = found.ok_or_else(|| bad("architectures", "is missing"))?;
        let known = Architecture::ALL.iter().find(|entry| found == entry.0 || found == entry.1);
        known.map(|entry| entry.2).ok_or_else(|| Error::Unsupported {
            what: "architecture",
            found: found.to_owned(),
            supported: Architecture::SUPPORTED,
        })
    }

    fn refuse_what_is_not_computed(&self) -> Result<(), Error> {
        let unsupported = |what, found: String, supported| Err(Error::Unsupported { what, found, supported });
        for key in ["quantization_config", "compression_config"] {
            if let Some(value) = self.get(key) {
                let method = value.get("quant_method").and_then(Value::as_str).unwrap_or(key);
                return unsupported("quantisation", method.to_owned(), "float32, float16 and bfloat16 weights");
            }
        }
        if let Some(activation) = self.get("hidden_act").and_then(Value::as_str)
            && activation != "silu"
        {
            return unsupported("activation", activation.to_owned(), "silu");
        }
        if self.flag("use_sliding_window", false)? {
            let window = self.get("sliding_window").map_or_else(|| "on".to_owned(), Value::to_string);
            return unsupported("sliding-window attention", window, "full attention (`use_sliding_window`: false)");
        }
        let kinds = self.get("layer_types").and_then(Value::as_array).into_iter().flatten();
        for kind in kinds.filter_map(Value::as_str) {
            if kind != "full_attention" {
                return unsupported("layer type", kind.to_owned(), "full_attention");
            }
        }
        Ok(())
    }

    /// Base and scaling, from `rope_parameters` or from `rope_theta` and `rope_scaling`.
    fn rope(&self) -> Result<(f64, RopeScaling), Error> {
        let nested = self.get("rope_parameters").or_else(|| self.get("rope_scaling"));
        let empty = Map::new();
        let nested = match nested {
            None => &empty,
            Some(value) => value.as_object().ok_or_else(|| bad("rope_parameters", "must be an object"))?,
        };
        let rope = Settings { map: nested };
        let theta = rope.number("rope_theta", self.number("rope_theta", 10_000.0)?)?;
        for holder in [self, &rope] {
            let rotated = holder.number("partial_rotary_factor", 1.0)?;
            if rotated != 1.0 {
                let supported = "1 (all dimensions of a head are rotated)";
                return Err(Error::Unsupported {
                    what: "partial_rotary_factor",
                    found: rotated.to_string(),
                    supported,
                });
            }
        }
        let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str).unwrap_or("default");
        let scaling = match kind {
            "default" => RopeScaling::None,
            "llama3" => rope.llama3()?,
            other => {
                let (what, supported) = ("rope type", "default, llama3");
                return Err(Error::Unsupported { what, found: other.to_owned(), supported });
            }
        };
        Ok((theta, scaling))
    }

    fn llama3(&self) -> Result<RopeScaling, Error> {
        let required = |key: &str| match self.number(key, f64::NAN)? {
            number if number.is_finite() && number > 0.0 => Ok(number),
            _ => Err(bad(key, "must be a positive number for rope type `llama3`")),
        };
        let (low_freq_factor, high_freq_factor) = (required("low_freq_factor")?, required("high_freq_factor")?);
        if high_freq_factor <= low_freq_factor {
            return Err(bad(
                "high_freq_factor",
                &format!("= {high_freq_factor}: must be above low_freq_factor = {low_freq_factor}"),
            ));
        }
        Ok(RopeScaling::Llama3 {
            factor: required("factor")?,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: required("original_max_position_embeddings")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn qwen3() -> Value {
        json!({
            "architectures": ["Qwen3ForCausalLM"], "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "max_position_embeddings": 256, "rope_theta": 1e6, "sliding_window": null, "use_sliding_window": false,
            "rope_scaling": null, "torch_dtype": "bfloat16", "tie_word_embeddings": true,
        })
    }

    fn with(key: &str, value: Value) -> Value {
        let mut config = qwen3();
        config[key] = value;
        config
    }

    #[test]
    fn both_spellings_say_the_same() {
        let mut newer = qwen3();
        let map = newer.as_object_mut().unwrap();
        map.remove("rope_theta");
        map.remove("rope_scaling");
        map.insert("rope_parameters".into(), json!({"rope_theta": 1e6, "rope_type": "default"}));
        map.insert("layer_types".into(), json!(["full_attention", "full_attention"]));
        assert_eq!(ModelConfig::from_json(&newer).unwrap(), ModelConfig::from_json(&qwen3()).unwrap());
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        let yarn = json!({"rope_type": "yarn", "factor": 4.0});
        for (config, word) in [
            (with("architectures", json!(["MambaForCausalLM"])), "MambaForCausalLM"),
            (with("rope_scaling", yarn.clone()), "yarn"),
            (with("rope_parameters", yarn), "yarn"),
            (with("rope_scaling", json!({"type": "linear", "factor": 2.0})), "linear"),
            (with("quantization_config", json!({"quant_method": "awq"})), "awq"),
            (with("use_sliding_window", json!(true)), "sliding"),
            (with("layer_types", json!(["full_attention", "sliding_attention"])), "sliding_attention"),
            (with("hidden_act", json!("gelu")), "gelu"),
        ] {
            let error = ModelConfig::from_json(&config).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Unsupported { .. }), "{text}");
            assert!(text.contains(word) && text.contains("; supported: "), "{text}");
        }
    }

    #[test]
    fn impossible_settings_name_the_key() {
        for (key, value) in [
            ("num_key_value_heads", json!(3)),
            ("num_key_value_heads", json!(0)),
            ("head_dim", json!(15)),
            ("hidden_size", json!(null)),
            ("hidden_size", json!(-4)),
            ("vocab_size", json!(1e30)),
            ("num_hidden_layers", json!("two")),
            ("rms_norm_eps", json!(-1.0)),
            ("tie_word_embeddings", json!("yes")),
        ] {
            let text = ModelConfig::from_json(&with(key, value)).unwrap_err().to_string();
            assert!(text.contains(&format!("`{key}`")), "{text}");
        }
        assert!(ModelConfig::from_json(&json!([])).is_err());
    }

    #[test]
    fn families_differ_in_data() {
        let qwen2 = ModelConfig::from_json(&with("architectures", json!(["Qwen2ForCausalLM"]))).unwrap();
        assert!(qwen2.qkv_bias && !qwen2.output_bias && !qwen2.qk_norm);
        let llama = ModelConfig::from_json(&with("architectures", json!(["LlamaForCausalLM"]))).unwrap();
        assert!(!llama.qkv_bias && !llama.qk_norm);
        assert_eq!(llama.difference(&qwen2).unwrap(), "`architecture: Llama,` is now `architecture: Qwen2,`");
    }
}
