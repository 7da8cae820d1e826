//! Tiny models for the examples of several turns: a tokenizer whose pieces are whole phrases, and a
//! transformer that learns transcripts for half a minute with `gym-runtime pretrain`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use training_gym::prelude::*;

const SPECIAL: [&str; 4] = ["<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const END: &str = "<|im_end|>";
/// ChatML, as Qwen's.
const TEMPLATE: &str = "\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
";
const CONTEXT_LENGTH: usize = 256;

/// A model to be made.
pub(crate) struct Player<'a> {
    /// Its folder's name.
    pub(crate) name: &'a str,
    /// Phrases that are one token each, beside the characters of ASCII.
    pub(crate) phrases: Vec<String>,
    pub(crate) hidden_size: usize,
    pub(crate) layers: usize,
    pub(crate) seed: u64,
}

/// What a model learns from: each turn, whether it is learnt, and what it was told then.
pub(crate) struct Transcript {
    pub(crate) prompt: String,
    pub(crate) turns: Vec<Said>,
}

/// One turn of a transcript.
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) learnt: bool,
    /// Role and words of the answer; `None` ends the transcript.
    pub(crate) told: Option<(&'static str, String)>,
}

impl Transcript {
    /// A row for `gym-runtime pretrain`: what was told is read and not learnt.
    fn row(&self) -> Value {
        let (mut response, mut unscored) = (String::new(), Vec::new());
        for Said { text, learnt, told } in &self.turns {
            let start = response.len();
            response.push_str(text);
            let Some((role, words)) = told else {
                unscored.extend((!learnt).then_some((start, response.len())));
                break;
            };
            response.push_str(END);
            let from = if *learnt { response.len() } else { start };
            response.push_str(&format!("\n<|im_start|>{role}\n{words}{END}\n<|im_start|>assistant\n"));
            unscored.push((from, response.len()));
        }
        json!({"prompt": [{"role": "user", "content": self.prompt}], "response": response, "unscored": unscored})
    }
}

impl Player<'_> {
    /// The model's folder below `folder`, made if it is not there.
    pub(crate) fn make(&self, folder: &Path, transcripts: impl FnOnce() -> Vec<Transcript>) -> Result<Model> {
        let folder = folder.join(self.name);
        if !folder.join("model.safetensors").is_file() {
            std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
            self.write_folder(&folder)?;
            let transcripts = transcripts();
            let rows: String = transcripts.iter().map(|transcript| format!("{}\n", transcript.row())).collect();
            let path = folder.with_extension("jsonl");
            std::fs::write(&path, rows).with_context(|| format!("cannot write {}", path.display()))?;
            println!("pretraining the {} on {} transcripts", self.name, transcripts.len());
            let runtime = runtime()?;
            let output = Command::new(&runtime)
                .arg("pretrain")
                .args([Path::new("--model"), &folder, Path::new("--rows"), &path])
                .args(["--batch-size", "32", "--lr", "0.005", "--seed", &self.seed.to_string()])
                .output()
                .with_context(|| format!("cannot start {}", runtime.display()))?;
            let words = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "`gym-runtime pretrain` ended with {}: {words}", output.status);
        }
        Ok(Model::folder(folder))
    }

    fn pieces(&self) -> Vec<String> {
        let mut pieces: Vec<String> = SPECIAL.map(String::from).into();
        pieces.push("\n".into());
        pieces.extend((' '..='~').map(String::from));
        pieces.extend(["user\n", "assistant\n", "tool\n"].map(String::from));
        for phrase in &self.phrases {
            if !pieces.contains(phrase) {
                pieces.push(phrase.clone());
            }
        }
        pieces
    }

    fn write_folder(&self, folder: &Path) -> Result<()> {
        let pieces = self.pieces();
        let special: Vec<Value> = (0..SPECIAL.len())
            .map(|id| {
                json!({"id": id, "content": SPECIAL[id], "special": true, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false})
            })
            .collect();
        // Each piece has the score −1, so a text is cut into the fewest pieces.
        let vocabulary: Vec<Value> = pieces.iter().map(|piece| json!([piece, -1.0])).collect();
        let files = [
            (
                "config.json",
                json!({
                    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": pieces.len(),
                    "hidden_size": self.hidden_size, "intermediate_size": 3 * self.hidden_size,
                    "num_hidden_layers": self.layers, "num_attention_heads": 4, "num_key_value_heads": 2,
                    "head_dim": self.hidden_size / 4, "hidden_act": "silu",
                    "max_position_embeddings": CONTEXT_LENGTH, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
                    "attention_bias": false, "initializer_range": 0.08, "tie_word_embeddings": true,
                    "torch_dtype": "float32", "eos_token_id": 3, "pad_token_id": 1,
                }),
            ),
            ("generation_config.json", json!({"eos_token_id": [3, 1], "pad_token_id": 1})),
            (
                "tokenizer.json",
                json!({
                    "version": "1.0", "truncation": null, "padding": null, "added_tokens": special,
                    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
                    "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": false},
                }),
            ),
            (
                "tokenizer_config.json",
                json!({
                    "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT_LENGTH,
                    "clean_up_tokenization_spaces": false, "eos_token": END, "pad_token": SPECIAL[1],
                    "unk_token": SPECIAL[0], "chat_template": TEMPLATE,
                }),
            ),
        ];
        for (name, value) in files {
            let path = folder.join(name);
            let text = serde_json::to_string_pretty(&value)? + "\n";
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// `TRAINING_GYM_RUNTIME`, or what lies beside this program.
fn runtime() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("TRAINING_GYM_RUNTIME") {
        return Ok(path.into());
    }
    let path = std::env::current_exe()?.with_file_name("gym-runtime");
    ensure!(path.is_file(), "{} is not there: run `cargo xtask runtime`, or set TRAINING_GYM_RUNTIME", path.display());
    Ok(path)
}

/// Whole numbers that look random and are the same everywhere (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// In `0..sides`.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(training_gym::splitmix::GAMMA);
        (training_gym::splitmix::mixed(self.0) % sides.max(1) as u64) as usize
    }

    /// True so often.
    pub(crate) fn chance(&mut self, share: f64) -> bool {
        (self.roll(1_000_000) as f64) < share * 1e6
    }
}

/// Writes a dataset of prompts and labels.
pub(crate) fn write_rows(path: &Path, rows: impl Iterator<Item = (String, String)>) -> Result<HuggingFaceDataset> {
    let text: String = rows
        .map(|(prompt, label)| {
            format!("{}\n", json!({"prompt": [{"role": "user", "content": prompt}], "label": label}))
        })
        .collect();
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(HuggingFaceDataset::file(path).input_key("prompt").label_key("label").apply_chat_template(true))
}

/// Prints a recorded response turn by turn: what the model drew (mask 1), and in brackets what it was told
/// (mask 0).
pub(crate) async fn show(gym: &Gym, run: &TrainRun, step: u64) -> Result<()> {
    let key = training_gym::record::keys::rollouts(run.training_run_id(), step);
    let lines = gym.store().get(&key).await?.bytes;
    let records: Vec<training_gym::record::RolloutRecord> = lines
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(serde_json::from_slice)
        .collect::<Result<_, _>>()?;
    // The longest tells most.
    let turns = |record: &training_gym::record::RolloutRecord| record.episode.as_ref().map_or(0, |e| e.turns.len());
    let Some(record) = records.iter().max_by_key(|record| turns(record)) else { return Ok(()) };
    let (Some(episode), Some(mask)) = (&record.episode, &record.response_mask) else { return Ok(()) };
    println!("\nstep {step}, sample {}, label {}, reward {:?}:", record.index, record.label, record.reward);
    for turn in &episode.turns {
        let told = turn.observation.as_ref().map(|observation| {
            let words: Vec<String> = observation.messages.iter().map(|m| format!("{}: {}", m.role, m.content)).collect();
            format!("[{}]", words.join(" | "))
        });
        println!("  {:<40} {}", turn.turn.text, told.filter(|_| turn.told > 0).unwrap_or_default());
    }
    println!("  mask {}", mask.iter().map(u8::to_string).collect::<String>());
    println!("  over: {}", serde_json::to_string(&episode.end)?);
    Ok(())
}

/// The first and the last evaluation on held-out rows.
pub(crate) fn progress(result: &TrainResult) -> Option<(f64, f64)> {
    let mut evaluations = result.metrics().iter().filter_map(|metrics| metrics.eval_reward);
    let first = evaluations.next()?;
    Some((first, evaluations.next_back().unwrap_or(first)))
}
