//! The families this runtime computes: the one list that errors, `check` and the docs follow.

use serde_json::Value;

/// A decoder family, as `architectures` of `config.json` names it. Families differ in what
/// [`ModelConfig`](super::ModelConfig) says of them, not in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen3 dense: norms on queries and keys.
    Qwen3,
    /// Qwen3 with experts: a router, no shared expert.
    Qwen3Moe,
    /// Qwen3.5 dense, text only: gated delta net beside gated attention.
    Qwen3_5,
    /// Qwen3.5 dense as published: text settings under `text_config`, and tensors of a vision tower
    /// and of multi-token prediction, which are kept but not computed.
    Qwen3_5Nested,
    /// Qwen2 and Qwen2.5 dense: biases on queries, keys and values.
    Qwen2,
    /// Llama 3 dense.
    Llama,
}

/// What a checkpoint of an architecture is called.
struct Names {
    architecture: Architecture,
    class: &'static str,
    model_type: &'static str,
    /// Before `embed_tokens`, `layers.N` and `norm`.
    root: &'static str,
    /// Beginnings of tensors that belong to the model and are not computed.
    carried: &'static [&'static str],
}

const ALL: [Names; 6] = [
    Names::plain(Architecture::Qwen3, "Qwen3ForCausalLM", "qwen3"),
    Names::plain(Architecture::Qwen3Moe, "Qwen3MoeForCausalLM", "qwen3_moe"),
    Names { carried: &["mtp."], ..Names::plain(Architecture::Qwen3_5, "Qwen3_5ForCausalLM", "qwen3_5_text") },
    Names {
        root: "model.language_model",
        carried: &["model.visual.", "mtp."],
        ..Names::plain(Architecture::Qwen3_5Nested, "Qwen3_5ForConditionalGeneration", "qwen3_5")
    },
    Names::plain(Architecture::Qwen2, "Qwen2ForCausalLM", "qwen2"),
    Names::plain(Architecture::Llama, "LlamaForCausalLM", "llama"),
];

impl Names {
    const fn plain(architecture: Architecture, class: &'static str, model_type: &'static str) -> Self {
        Self { architecture, class, model_type, root: "model", carried: &[] }
    }
}

impl Architecture {
    /// Every family that is computed.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.iter().map(|names| names.architecture)
    }

    /// Every family's class name, as errors list them.
    pub fn supported() -> String {
        ALL.iter().map(|names| names.class).collect::<Vec<_>>().join(", ")
    }

    /// The name in `architectures`.
    pub fn name(self) -> &'static str {
        self.names().class
    }

    /// The name in `model_type`.
    pub fn model_type(self) -> &'static str {
        self.names().model_type
    }

    /// By class name or `model_type`.
    pub(super) fn find(name: &str) -> Option<Self> {
        ALL.iter().find(|names| name == names.class || name == names.model_type).map(|names| names.architecture)
    }

    /// The family that a `config.json` names, as [`ModelConfig`](super::ModelConfig) finds it; its
    /// settings are not looked at.
    pub(crate) fn of(config: &Value) -> Option<Self> {
        let class = config.pointer("/architectures/0").and_then(Value::as_str);
        Self::find(class.or_else(|| config.get("model_type")?.as_str())?)
    }

    /// The name of the embedding's tensor.
    pub(crate) fn embedding(self) -> String {
        format!("{}.embed_tokens.weight", self.root())
    }

    /// Whether queries and keys are normalised per head.
    pub(crate) fn qk_norm(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Qwen3Moe) || self.is_qwen3_5()
    }

    /// What stands before `embed_tokens`, `layers.N` and `norm` in tensor names.
    pub(super) fn root(self) -> &'static str {
        self.names().root
    }

    /// Beginnings of names of tensors that are kept as they are and not computed.
    pub(super) fn carried(self) -> &'static [&'static str] {
        self.names().carried
    }

    /// Whether the decoder's settings lie under `text_config`.
    pub(super) fn nested(self) -> bool {
        self == Self::Qwen3_5Nested
    }

    /// Whether it is Qwen3.5 in either form.
    pub(super) fn is_qwen3_5(self) -> bool {
        matches!(self, Self::Qwen3_5 | Self::Qwen3_5Nested)
    }

    fn names(self) -> &'static Names {
        ALL.iter().find(|names| names.architecture == self).expect("every architecture is listed")
    }
}
