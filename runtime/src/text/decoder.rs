//! Ids to text, one at a time, never splitting a character.

use super::Tokenizer;

/// A character not yet whole decodes to at most this many U+FFFD.
const UNFINISHED: usize = 3;

/// Decodes a response token by token. The texts of all [`push`](Self::push)es and of
/// [`finish`](Self::finish), put together, are the text of all ids at once.
///
/// (One exception lies in the format: with a byte-fallback vocabulary, a byte that is invalid UTF-8
/// turns the valid characters of its run of byte tokens into U+FFFD as well; text that is already
/// out stays as it was.)
#[derive(Clone, Debug)]
pub struct IncrementalDecoder {
    tokenizer: Tokenizer,
    skip_special_tokens: bool,
    /// The tokens before `pending` that give it its context: decoders treat the first token of a
    /// text specially.
    context: Vec<i64>,
    context_text: String,
    /// Tokens since the last whole character.
    pending: Vec<i64>,
    /// Bytes of the text of `context` and `pending` that are out.
    emitted: usize,
}

impl IncrementalDecoder {
    /// A decoder at the start of a text.
    pub fn new(tokenizer: Tokenizer, skip_special_tokens: bool) -> Self {
        Self {
            tokenizer,
            skip_special_tokens,
            context: Vec::new(),
            context_text: String::new(),
            pending: Vec::new(),
            emitted: 0,
        }
    }

    /// Adds one token; returns the text that is certain by now.
    pub fn push(&mut self, id: i64) -> String {
        if self.skip_special_tokens && self.tokenizer.is_special(id) {
            return String::new();
        }
        self.pending.push(id);
        let text = self.window();
        let whole = certain(&text);
        let out = self.emit(&text, whole);
        if whole == text.len() && text.len() > self.context_text.len() {
            self.context = std::mem::take(&mut self.pending);
            self.context_text = self.tokenizer.decode(&self.context, self.skip_special_tokens);
            self.emitted = self.context_text.len();
        }
        out
    }

    /// Ends the text; returns what was held back, an unfinished character as U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = self.window();
        let out = self.emit(&text, text.len());
        self.context.clear();
        self.context_text.clear();
        self.pending.clear();
        self.emitted = 0;
        out
    }

    fn window(&self) -> String {
        let ids: Vec<i64> = self.context.iter().chain(&self.pending).copied().collect();
        self.tokenizer.decode(&ids, self.skip_special_tokens)
    }

    fn emit(&mut self, text: &str, until: usize) -> String {
        let mut from = self.emitted.min(text.len());
        while !text.is_char_boundary(from) {
            from += 1;
        }
        if until <= from {
            return String::new();
        }
        self.emitted = until;
        text[from..until].to_owned()
    }
}

/// How much of `text` later tokens cannot change.
fn certain(text: &str) -> usize {
    let unfinished = text.chars().rev().take(UNFINISHED).take_while(|&c| c == '\u{fffd}').count();
    text.len() - unfinished * '\u{fffd}'.len_utf8()
}
