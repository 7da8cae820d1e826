//! What stands between two turns of a model, in ids, without rendering again what it drew.
//!
//! The template's own rendering says what follows an assistant's turn: the conversation is rendered with a
//! mark in place of the turn, and what comes behind the mark is the end of the turn, the observation and
//! the opening of the next turn. What the model drew is never in it, so no template can strip its
//! reasoning or trim its text, and no tokenizer cuts it anew. Two things are checked: what was written
//! before is a prefix of what is written now, and so is the turn's own end; a template that does not
//! extend what it wrote cannot be trained on token by token, and is refused.

use serde_json::{Map, Value};
use training_gym_core::sample::{Message, Prompt};

use super::{Error, RenderOptions, TextPipeline};

/// A conversation on its way.
#[derive(Clone, Debug)]
pub struct Conversation<'a> {
    text: &'a TextPipeline,
    kwargs: &'a Map<String, Value>,
    tools: &'a [Value],
    /// With marks for what the model said.
    messages: Vec<Message>,
    /// All of it as the template writes it, up to where the next turn would open.
    written: String,
    turns: usize,
}

impl<'a> Conversation<'a> {
    /// One that begins with a prompt, which goes through the template.
    ///
    /// # Errors
    /// When there is no template, or it refuses the messages.
    pub fn begin(
        text: &'a TextPipeline,
        prompt: &Prompt,
        (kwargs, tools): (&'a Map<String, Value>, &'a [Value]),
    ) -> Result<Self, Error> {
        let messages = match prompt {
            Prompt::Messages(messages) => messages.clone(),
            Prompt::Text(text) => vec![Message::user(text.as_str())],
        };
        let mut this = Self { text, kwargs, tools, messages, written: String::new(), turns: 0 };
        this.written = this.render(&this.messages, false)?;
        Ok(this)
    }

    /// The ids of the prompt, with the first turn opened.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn prompt_ids(&self) -> Result<Vec<i64>, Error> {
        self.text.tokenizer().encode(&self.render(&self.messages, true)?, false)
    }

    /// What follows a turn of the model: the rest of its end, `observation`, and the opening of the next
    /// turn. `ended` is the end token it drew last, if it drew one: that one is not written again.
    ///
    /// # Errors
    /// When the template refuses the messages, or does not extend what it wrote.
    pub fn follow(&mut self, ended: Option<i64>, observation: &[Message]) -> Result<Vec<i64>, Error> {
        let mark = format!("turn-{}-c41d8e", self.turns);
        let mut messages = self.messages.clone();
        messages.push(Message::new("assistant", mark.as_str()));
        let said = self.render(&messages, false)?;
        messages.extend(observation.iter().cloned());
        let whole = self.render(&messages, true)?;
        let closed = self.render(&messages, false)?;
        let (Some((_, end)), Some((before, tail))) = (said.rsplit_once(&mark), whole.rsplit_once(&mark)) else {
            return Err(self.refuse("it does not write an assistant's message as it is"));
        };
        if !before.starts_with(&self.written) {
            return Err(self.refuse("it writes earlier messages anew once others follow"));
        }
        if !tail.starts_with(end) {
            return Err(self.refuse("it ends an assistant's message otherwise once others follow"));
        }
        if !whole.starts_with(&closed) {
            return Err(self.refuse("opening the next turn changes what comes before it"));
        }
        let ids = self.ids_behind(ended, tail)?;
        (self.messages, self.written) = (messages, closed);
        self.turns += 1;
        Ok(ids)
    }

    /// The ids of `tail`, but for the end token that was drawn.
    fn ids_behind(&self, ended: Option<i64>, tail: &str) -> Result<Vec<i64>, Error> {
        let tokenizer = self.text.tokenizer();
        let Some(ended) = ended else { return tokenizer.encode(tail, false) };
        let Some(rest) = tail.strip_prefix(&tokenizer.decode(&[ended], false)) else {
            return tokenizer.encode(tail, false);
        };
        // Together, as the tokenizer sees them after one another; apart only where it would join them.
        let mut ids = tokenizer.encode(tail, false)?;
        if ids.first() == Some(&ended) {
            ids.remove(0);
            return Ok(ids);
        }
        tokenizer.encode(rest, false)
    }

    fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, Error> {
        let tools = (!self.tools.is_empty()).then_some(self.tools);
        let options = RenderOptions { tools, add_generation_prompt, kwargs: Some(self.kwargs) };
        self.text.template()?.render(messages, &options)
    }

    fn refuse(&self, why: &'static str) -> Error {
        Error::NoExtension { turn: self.turns + 1, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str = "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif -%}\
        {%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor -%}\
        {%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}";

    /// A tokenizer of single characters, whose special tokens are the two of ChatML.
    fn pipeline(template: &str) -> (tempfile::TempDir, TextPipeline) {
        let folder = tempfile::tempdir().unwrap();
        let mut pieces: Vec<String> = ["<unk>", "<|im_start|>", "<|im_end|>", "\n"].map(String::from).into();
        pieces.extend((' '..='~').map(String::from));
        let vocab: Vec<Value> = pieces.iter().map(|piece| serde_json::json!([piece, -1.0])).collect();
        let added: Vec<Value> = (0..3)
            .map(|id| {
                serde_json::json!({"id": id, "content": pieces[id], "special": true, "single_word": false,
                    "lstrip": false, "rstrip": false, "normalized": false})
            })
            .collect();
        let tokenizer = serde_json::json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
            "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false}});
        let config = serde_json::json!({"eos_token": "<|im_end|>", "chat_template": template});
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        let text = TextPipeline::from_folder(folder.path()).unwrap();
        (folder, text)
    }

    fn user(text: &str) -> Vec<Message> {
        vec![Message::user(text)]
    }

    #[test]
    fn the_whole_is_what_the_template_writes_and_the_drawn_is_untouched() {
        let (_folder, text) = pipeline(CHATML);
        let (kwargs, tools) = (Map::new(), [serde_json::json!({"name": "sql"})]);
        let prompt = Prompt::Messages(user("hi"));
        let mut conversation = Conversation::begin(&text, &prompt, (&kwargs, &tools)).unwrap();
        let mut ids = conversation.prompt_ids().unwrap();
        let said = |words: &str| text.tokenizer().encode(&format!("{words}<|im_end|>"), false).unwrap();
        ids.extend(said(" a "));
        ids.extend(conversation.follow(Some(2), &user("b")).unwrap());
        ids.extend(said("c"));
        let two = [Message::new("tool", "d"), Message::new("tool", "<|im_end|>")];
        ids.extend(conversation.follow(Some(2), &two).unwrap());
        let mut messages = user("hi");
        messages.extend([Message::new("assistant", " a "), Message::user("b"), Message::new("assistant", "c")]);
        messages.extend(two);
        let options = RenderOptions { tools: Some(&tools), add_generation_prompt: true, kwargs: None };
        let whole = text.template().unwrap().render(&messages, &options).unwrap();
        assert_eq!(text.decode(&ids, false), whole);
        assert_eq!(ids, text.tokenizer().encode(&whole, false).unwrap());
    }

    #[test]
    fn a_turn_that_a_stop_text_ended_is_closed_by_the_template() {
        let (_folder, text) = pipeline(CHATML);
        let kwargs = Map::new();
        let mut conversation = Conversation::begin(&text, &Prompt::Text("hi".into()), (&kwargs, &[])).unwrap();
        let glue = conversation.follow(None, &user("b")).unwrap();
        assert_eq!(text.decode(&glue, false), "<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n");
        let glue = conversation.follow(Some(2), &user("c")).unwrap();
        assert_eq!(text.decode(&glue, false), "\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n");
    }

    /// As Qwen3's: reasoning of earlier turns is left out, and an empty one is written for the last.
    #[test]
    fn a_template_that_rewrites_the_models_own_turn_does_no_harm() {
        let template = CHATML.replace(
            "{{ m.content }}",
            "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}\
             {{ m.content.split('</think>')[-1].strip() }}",
        );
        let (_folder, text) = pipeline(&template);
        let kwargs = Map::new();
        let mut conversation = Conversation::begin(&text, &Prompt::Text("hi".into()), (&kwargs, &[])).unwrap();
        for words in ["b", "c", "d"] {
            let glue = conversation.follow(Some(2), &user(words)).unwrap();
            let expected = format!("\n<|im_start|>user\n{words}<|im_end|>\n<|im_start|>assistant\n");
            assert_eq!(text.decode(&glue, false), expected);
        }
    }

    #[test]
    fn a_template_that_does_not_extend_is_refused_with_the_reason() {
        for (from, to, words) in [
            ("{{ m.role }}", "{{ m.role }}{{ messages | length }}", "earlier messages anew"),
            (
                "<|im_end|>\n{% endfor",
                "{% if m.role != 'assistant' or loop.last %}<|im_end|>{% endif %}{% endfor",
                "ends an assistant's",
            ),
            ("{{ m.content }}", "{{ m.content if m.role == 'user' else 'x' }}", "as it is"),
        ] {
            let (_folder, text) = pipeline(&CHATML.replace(from, to));
            let kwargs = Map::new();
            let mut conversation = Conversation::begin(&text, &Prompt::Text("hi".into()), (&kwargs, &[])).unwrap();
            let error = conversation.follow(Some(2), &user("b")).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("turn 1"), "{error}");
        }
    }
}
