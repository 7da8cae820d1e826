//! SGLang's `/generate` contract: what a teacher is asked, what a server answers.
//!
//! The types are those of SGLang's `GenerateReqInput` and its reply; ids travel both ways, so
//! nothing is tokenised twice. [`teacher::response_logprobs`] is the only parser of a teacher's
//! answer.

pub mod teacher;

use serde::{Deserialize, Serialize};

/// One value or a batch of them, as SGLang takes both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    /// A single request.
    One(T),
    /// A batch; the answer is a list in the same order.
    Many(Vec<T>),
}

/// Body of `POST /generate`. Exactly one of `text` and `input_ids` is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// The prompt as text, tokenised by the server without a chat template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<OneOrMany<String>>,
    /// The prompt as ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_ids: Option<OneOrMany<Vec<i64>>>,
    /// How to sample.
    #[serde(default)]
    pub sampling_params: SamplingParams,
    /// Ask for log-probabilities.
    #[serde(default)]
    pub return_logprob: bool,
    /// First prompt position whose log-probability is returned; −1 is output only. A list gives
    /// one for each prompt of a batch.
    #[serde(default = "output_only")]
    pub logprob_start_len: OneOrMany<i64>,
    /// How many of the most likely tokens to return a position.
    #[serde(default)]
    pub top_logprobs_num: usize,
    /// Answer as server-sent events.
    #[serde(default)]
    pub stream: bool,
}

fn output_only() -> OneOrMany<i64> {
    OneOrMany::One(-1)
}

impl Default for GenerateRequest {
    /// No prompt yet, and what a server takes for fields that are left out.
    fn default() -> Self {
        Self {
            text: None,
            input_ids: None,
            sampling_params: SamplingParams::default(),
            return_logprob: false,
            logprob_start_len: output_only(),
            top_logprobs_num: 0,
            stream: false,
        }
    }
}

/// SGLang's sampling parameters. All are written out by our clients: a server's own defaults
/// may come from the model's generation config.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// Tokens to draw; 0 only scores the prompt.
    pub max_new_tokens: usize,
    /// 0 is greedy.
    pub temperature: f64,
    /// Nucleus mass in (0, 1].
    pub top_p: f64,
    /// The k most likely; −1 is all.
    pub top_k: i64,
    /// Share of the likeliest token's probability.
    pub min_p: f64,
    /// Texts that end the response.
    #[serde(deserialize_with = "one_or_many_strings")]
    pub stop: Vec<String>,
    /// Ids that end the response, beside the model's own.
    pub stop_token_ids: Vec<i64>,
    /// Do not stop at the model's end tokens.
    pub ignore_eos: bool,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Responses a prompt.
    pub n: usize,
    /// Seed of this request's noise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling_seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_new_tokens: 128,
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            min_p: 0.0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            skip_special_tokens: true,
            n: 1,
            sampling_seed: None,
        }
    }
}

fn one_or_many_strings<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(match Option::<OneOrMany<String>>::deserialize(from)? {
        None => Vec::new(),
        Some(OneOrMany::One(text)) => vec![text],
        Some(OneOrMany::Many(texts)) => texts,
    })
}

/// `[log-probability or null, token id, text or null]`.
pub type TokenLogprob = (Option<f64>, i64, Option<String>);

/// Answer of `POST /generate`, one a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerateReply {
    /// The response's text.
    #[serde(default)]
    pub text: String,
    /// Its ids.
    #[serde(default)]
    pub output_ids: Vec<i64>,
    /// Everything else.
    pub meta_info: MetaInfo,
}

/// SGLang's `meta_info`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MetaInfo {
    /// The request's id.
    #[serde(default)]
    pub id: String,
    /// Why it ended: `{"type": "stop", "matched": …}`, `{"type": "length", "length": N}`,
    /// `{"type": "abort", "message": …}`.
    #[serde(default)]
    pub finish_reason: Option<serde_json::Value>,
    /// Ids in the prompt.
    #[serde(default)]
    pub prompt_tokens: usize,
    /// Ids in the response.
    #[serde(default)]
    pub completion_tokens: usize,
    /// Which weights answered.
    #[serde(default)]
    pub weight_version: Option<String>,
    /// From `logprob_start_len` on; the first item's log-probability is null, since no position
    /// before it was scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_token_logprobs: Option<Vec<TokenLogprob>>,
    /// One a response id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_token_logprobs: Option<Vec<TokenLogprob>>,
    /// The most likely tokens a prompt position; the first item is null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_top_logprobs: Option<Vec<Option<Vec<TokenLogprob>>>>,
    /// The most likely tokens a response position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_top_logprobs: Option<Vec<Option<Vec<TokenLogprob>>>>,
}

/// Answer of `GET /get_model_info`. The fields after `is_generation` are ours; a server that
/// lacks them leaves them out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Where the server read the model.
    pub model_path: String,
    /// Always true here.
    #[serde(default)]
    pub is_generation: bool,
    /// Ids that end a response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eos_token_ids: Option<Vec<i64>>,
    /// sha256 over the tokenizer's vocabulary: `id \t token \n` in id order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocab_sha256: Option<String>,
    /// Tokens a sequence may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length: Option<usize>,
    /// Which weights it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_version: Option<String>,
}
