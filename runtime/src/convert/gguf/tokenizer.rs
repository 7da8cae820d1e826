//! The vocabulary to `tokenizer.json`, `tokenizer_config.json`, `generation_config.json` and the
//! chat template.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value, json};

use super::Gguf;
use super::pre_tokenizer::PreTokenizer;
use super::reader;
use crate::convert::error::{Problem, damaged, unsupported};

/// Control tokens that end a response or a document wherever they are part of a vocabulary.
const END_TEXTS: [&str; 6] = ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>"];

/// What a token is, by `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Ordinary,
    /// Never part of text.
    Control,
    /// Found in text before anything else, and part of it.
    Added,
    /// Fills the vocabulary up to the embedding's rows.
    Unused,
}

/// A vocabulary, ready to be written.
#[derive(Debug)]
pub(crate) struct Vocabulary<'a> {
    tokens: &'a [&'a str],
    roles: Vec<Role>,
    merges: Vec<(&'a str, &'a str)>,
    pre: PreTokenizer,
    bos: Option<usize>,
    eos: Option<usize>,
    pad: Option<usize>,
    unknown: Option<usize>,
    ends: BTreeSet<usize>,
    add_bos: bool,
    add_eos: bool,
    context: usize,
    templates: Vec<(String, &'a str)>,
}

impl<'a> Vocabulary<'a> {
    /// Reads a file's vocabulary for a model of `rows` embeddings. `pre` names the pre-tokenizer
    /// instead of the file.
    ///
    /// # Errors
    /// For a kind of tokenizer that is not rebuilt, by name, and for arrays that do not fit
    /// together.
    pub(crate) fn read(file: &'a Gguf<'a>, pre: Option<&str>, rows: usize, context: usize) -> Result<Self, Problem> {
        match file.text("tokenizer.ggml.model")? {
            Some("gpt2") => {}
            Some("llama") => return unsupported("tokenizer `llama` (SentencePiece); supported: gpt2 (byte-level BPE)"),
            Some(other) => return unsupported(format!("tokenizer `{other}`; supported: gpt2 (byte-level BPE)")),
            None => return damaged("metadata `tokenizer.ggml.model` is missing"),
        }
        let Some(named) = pre.map_or_else(|| file.text("tokenizer.ggml.pre"), |pre| Ok(Some(pre)))? else {
            return unsupported(
                "metadata `tokenizer.ggml.pre` is missing; give --pre KIND (qwen2, llama-bpe, gpt-2, …)",
            );
        };
        let pre = PreTokenizer::of(named)?;
        let Some(tokens) = file.texts("tokenizer.ggml.tokens")? else {
            return damaged("metadata `tokenizer.ggml.tokens` is missing");
        };
        if tokens.is_empty() || tokens.len() > rows {
            return damaged(format!("{} tokens for {rows} rows of the embedding", tokens.len()));
        }
        let mut roles = roles(file, tokens.len())?;
        let id = |name: &str| special(file, name, tokens.len());
        for name in ["bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "padding_token_id"] {
            // Files without token types, or with wrong ones, name these alone. llama.cpp takes them so too.
            if let Some(id) = id(name)?.filter(|&id| roles[id] == Role::Ordinary && is_tag(tokens[id])) {
                roles[id] = Role::Control;
            }
        }
        let ids = ids(tokens, &roles)?;
        let merges = merges(file, &ids)?;
        let eos = id("eos_token_id")?;
        let mut ends: BTreeSet<usize> = [eos, id("eot_token_id")?, id("eom_token_id")?].into_iter().flatten().collect();
        let known = END_TEXTS.iter().filter_map(|text| ids.get(text).copied());
        ends.extend(known.filter(|&id| roles[id] == Role::Control));
        let flag = |name: &str| file.flag(&format!("tokenizer.ggml.{name}"));
        Ok(Self {
            tokens,
            merges,
            pre,
            bos: id("bos_token_id")?,
            eos,
            pad: id("padding_token_id")?,
            unknown: id("unknown_token_id")?,
            ends,
            add_bos: flag("add_bos_token")?.unwrap_or(pre.adds_bos()),
            add_eos: flag("add_eos_token")?.unwrap_or(false),
            roles,
            context,
            templates: templates(file)?,
        })
    }

    fn text(&self, id: Option<usize>) -> Option<&'a str> {
        id.map(|id| self.tokens[id])
    }

    /// Tokens that text is made of, the filling ones left out.
    pub(crate) fn len(&self) -> usize {
        self.roles.iter().filter(|role| **role != Role::Unused).count()
    }

    /// `tokenizer.json`.
    pub(crate) fn tokenizer(&self) -> Value {
        let first_added = self.first_added();
        let vocabulary: Map<String, Value> = (0..first_added)
            .filter(|&id| self.roles[id] != Role::Unused)
            .map(|id| (self.tokens[id].to_owned(), id.into()))
            .collect();
        let merges: Vec<Value> = self.merges.iter().map(|(left, right)| json!([left, right])).collect();
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": self.added_tokens(),
            "normalizer": self.pre.normalizer(),
            "pre_tokenizer": self.pre.json(),
            "post_processor": self.post_processor(),
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                "ignore_merges": self.pre.ignores_merges(), "vocab": vocabulary, "merges": merges,
            },
        })
    }

    /// Where added tokens alone follow, which are then no part of the model. Readers count on from
    /// the number of the model's tokens, so where those leave holes all are part of it.
    fn first_added(&self) -> usize {
        let is = |role: &Role, wanted: &[Role]| wanted.contains(role);
        let used = self.roles.iter().rposition(|role| *role != Role::Unused).map_or(0, |last| last + 1);
        let added = [Role::Control, Role::Added];
        let trailing = self.roles[..used].iter().rev().take_while(|role| is(role, &added)).count();
        let first = used - trailing;
        if self.roles[..first].contains(&Role::Unused) { used } else { first }
    }

    fn added_tokens(&self) -> Vec<Value> {
        self.added()
            .map(|(id, special)| {
                json!({
                    "id": id, "content": self.tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": special,
                })
            })
            .collect()
    }

    fn added(&self) -> impl Iterator<Item = (usize, bool)> + '_ {
        self.roles.iter().enumerate().filter_map(|(id, role)| match role {
            Role::Control => Some((id, true)),
            Role::Added => Some((id, false)),
            Role::Ordinary | Role::Unused => None,
        })
    }

    fn post_processor(&self) -> Value {
        let bos = self.bos.filter(|_| self.add_bos);
        let eos = self.eos.filter(|_| self.add_eos);
        if bos.is_none() && eos.is_none() {
            return json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true});
        }
        let special =
            |id: usize, sequence: usize| json!({"SpecialToken": {"id": self.tokens[id], "type_id": sequence}});
        let one = |name: &str, sequence: usize| {
            let text = json!({"Sequence": {"id": name, "type_id": sequence}});
            let begin = bos.map(|id| special(id, sequence));
            let end = eos.map(|id| special(id, sequence));
            [begin, Some(text), end].into_iter().flatten().collect::<Vec<Value>>()
        };
        let tokens: Map<String, Value> = [bos, eos]
            .into_iter()
            .flatten()
            .map(|id| {
                let text = self.tokens[id];
                (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]}))
            })
            .collect();
        let pair = [one("A", 0), one("B", 1)].concat();
        json!({"type": "TemplateProcessing", "single": one("A", 0), "pair": pair, "special_tokens": tokens})
    }

    /// `tokenizer_config.json`.
    pub(crate) fn tokenizer_config(&self) -> Value {
        let declared: Map<String, Value> = self
            .added()
            .map(|(id, special)| {
                let token = json!({
                    "content": self.tokens[id], "lstrip": false, "normalized": false, "rstrip": false,
                    "single_word": false, "special": special,
                });
                (id.to_string(), token)
            })
            .collect();
        json!({
            "add_bos_token": self.add_bos && self.bos.is_some(),
            "add_eos_token": self.add_eos && self.eos.is_some(),
            "add_prefix_space": false,
            "added_tokens_decoder": declared,
            "bos_token": self.text(self.bos),
            "clean_up_tokenization_spaces": false,
            "eos_token": self.text(self.eos),
            "model_max_length": self.context,
            "pad_token": self.text(self.pad),
            "tokenizer_class": "PreTrainedTokenizerFast",
            "unk_token": self.text(self.unknown),
        })
    }

    /// `generation_config.json`: every token that ends a response.
    pub(crate) fn generation_config(&self) -> Value {
        let eos = match self.ends.len() {
            0 => Value::Null,
            1 => self.ends.first().copied().into(),
            _ => {
                // The file's own first.
                let rest = self.ends.iter().copied().filter(|id| Some(*id) != self.eos);
                self.eos.into_iter().chain(rest).collect::<Vec<usize>>().into()
            }
        };
        let mut config = Map::new();
        for (key, value) in
            [("bos_token_id", json!(self.bos)), ("eos_token_id", eos), ("pad_token_id", json!(self.pad))]
        {
            if !value.is_null() {
                config.insert(key.to_owned(), value);
            }
        }
        config.into()
    }

    /// The ids that `config.json` names.
    pub(crate) fn config_ids(&self) -> Map<String, Value> {
        let ids = [("bos_token_id", self.bos), ("eos_token_id", self.eos), ("pad_token_id", self.pad)];
        ids.into_iter().map(|(key, id)| (key.to_owned(), json!(id))).collect()
    }

    /// Chat templates by file name below the folder.
    pub(crate) fn templates(&self) -> &[(String, &'a str)] {
        &self.templates
    }
}

/// Whether a text is written as control tokens are: `<…>`.
fn is_tag(text: &str) -> bool {
    text.len() > 2 && text.starts_with('<') && text.ends_with('>')
}

fn roles(file: &Gguf<'_>, tokens: usize) -> Result<Vec<Role>, Problem> {
    let key = "tokenizer.ggml.token_type";
    let types = match file.get(key) {
        None => return Ok(vec![Role::Ordinary; tokens]),
        Some(reader::Value::Numbers(types)) if types.len() == tokens => *types,
        Some(_) => return damaged(format!("metadata `{key}` must be an array of {tokens} numbers, one a token")),
    };
    types
        .iter()
        .map(|kind| match kind {
            // Byte tokens belong to other tokenizers; where they are listed they are ordinary.
            reader::Value::Signed(1 | 6) | reader::Value::Unsigned(1 | 6) => Ok(Role::Ordinary),
            reader::Value::Signed(2 | 3) | reader::Value::Unsigned(2 | 3) => Ok(Role::Control),
            reader::Value::Signed(4) | reader::Value::Unsigned(4) => Ok(Role::Added),
            reader::Value::Signed(5) | reader::Value::Unsigned(5) => Ok(Role::Unused),
            other => damaged(format!("metadata `{key}` holds {other:?}; known are 1 to 6")),
        })
        .collect()
}

fn ids<'a>(tokens: &[&'a str], roles: &[Role]) -> Result<HashMap<&'a str, usize>, Problem> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, (token, role)) in tokens.iter().zip(roles).enumerate() {
        if *role == Role::Unused {
            continue;
        }
        if token.is_empty() {
            return damaged(format!("token {id} is empty"));
        }
        if let Some(first) = ids.insert(*token, id) {
            return damaged(format!("tokens {first} and {id} are both `{token}`"));
        }
    }
    Ok(ids)
}

fn merges<'a>(file: &Gguf<'a>, ids: &HashMap<&str, usize>) -> Result<Vec<(&'a str, &'a str)>, Problem> {
    let key = "tokenizer.ggml.merges";
    let Some(merges) = file.texts(key)? else { return damaged(format!("metadata `{key}` is missing")) };
    let mut whole = String::new();
    let pair = |(index, merge): (usize, &&'a str)| {
        // A token may begin with a space of its own only where it is written as `Ġ`.
        let Some((left, right)) = merge.split_once(' ').filter(|pair| !pair.0.is_empty() && !pair.1.is_empty()) else {
            return damaged(format!("merge {index} is `{merge}`, not two tokens and a space"));
        };
        whole.clear();
        whole.extend([left, right]);
        for token in [left, right, &whole] {
            if !ids.contains_key(token) {
                return damaged(format!("merge {index} (`{merge}`) needs token `{token}`, which is not there"));
            }
        }
        Ok((left, right))
    };
    merges.iter().enumerate().map(pair).collect()
}

fn special(file: &Gguf<'_>, name: &str, tokens: usize) -> Result<Option<usize>, Problem> {
    let key = format!("tokenizer.ggml.{name}");
    match file.count(&key)? {
        None => Ok(None),
        Some(id) if id < tokens as u64 => Ok(Some(id as usize)),
        // llama.cpp writes −1 as "none" in an unsigned field.
        Some(id) if id == u64::from(u32::MAX) => Ok(None),
        Some(id) => damaged(format!("metadata `{key}` = {id}: there are {tokens} tokens")),
    }
}

fn templates<'a>(file: &'a Gguf<'a>) -> Result<Vec<(String, &'a str)>, Problem> {
    let mut templates = Vec::new();
    if let Some(template) = file.text("tokenizer.chat_template")? {
        templates.push(("chat_template.jinja".to_owned(), template));
    }
    for name in file.texts("tokenizer.chat_templates")?.unwrap_or_default() {
        let plain = |character: char| character.is_ascii_alphanumeric() || "_-".contains(character);
        if name.is_empty() || !name.chars().all(plain) {
            return damaged(format!("chat template `{}` has a name that is no file's", name.escape_debug()));
        }
        let Some(template) = file.text(&format!("tokenizer.chat_template.{name}"))? else {
            return damaged(format!("metadata `tokenizer.chat_template.{name}` is missing"));
        };
        templates.push((format!("additional_chat_templates/{name}.jinja"), template));
    }
    Ok(templates)
}
