//! `tokenizer.json` through the `tokenizers` crate, with what the other files add to it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokenizers::AddedToken;
use training_gym_core::ids::ContentHash;

use super::decoder::IncrementalDecoder;
use super::special::{SpecialTokens, end_ids};
use super::{Error, StopWatcher, read_bytes};

/// A model's tokenizer. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tokenizer: tokenizers::Tokenizer,
    special: SpecialTokens,
    special_ids: HashSet<i64>,
    eos_token_ids: Vec<i64>,
    bos_token_id: Option<i64>,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and beside it `tokenizer_config.json`, `special_tokens_map.json`,
    /// `generation_config.json` and `config.json` where present.
    ///
    /// # Errors
    /// When there is no `tokenizer.json`, or a file is malformed or contradicts another.
    pub fn from_folder(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("tokenizer.json");
        let bytes = read_bytes(&path)?.ok_or_else(|| Error::NoTokenizer { folder: folder.to_owned() })?;
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|e| Error::Invalid { path: path.clone(), reason: e.to_string() })?;
        // A file saved after padded training batches would pad or cut prompts.
        tokenizer.with_padding(None);
        let _ = tokenizer.with_truncation(None);
        let special = SpecialTokens::from_folder(folder)?;
        declare(&mut tokenizer, &special, folder)?;

        let mut special_ids: HashSet<i64> = tokenizer
            .get_added_tokens_decoder()
            .iter()
            .filter(|(_, token)| token.special)
            .map(|(&id, _)| i64::from(id))
            .collect();
        special_ids.shrink_to_fit();
        let id_of = |attribute| special.get(attribute).and_then(|text| tokenizer.token_to_id(text)).map(i64::from);
        let mut eos_token_ids = end_ids(folder)?;
        if eos_token_ids.is_empty() {
            eos_token_ids.extend(id_of("eos_token"));
        }
        let bos_token_id = id_of("bos_token");
        Ok(Self { inner: Arc::new(Inner { tokenizer, special, special_ids, eos_token_ids, bos_token_id }) })
    }

    /// Tokenises `text`. With `add_special_tokens`, a begin token is added where the model wants
    /// one, and never twice.
    ///
    /// # Errors
    /// When the tokenizer's own rules refuse the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<i64>, Error> {
        let encoding = self
            .inner
            .tokenizer
            .encode_fast(text, add_special_tokens)
            .map_err(|e| Error::Encode { reason: e.to_string() })?;
        let mut ids: Vec<i64> = encoding.get_ids().iter().copied().map(i64::from).collect();
        if let (true, Some(bos)) = (add_special_tokens, self.inner.bos_token_id) {
            let leading = ids.iter().take_while(|&&id| id == bos).count();
            match self.inner.special.add_bos_token {
                Some(true) if leading == 0 => ids.insert(0, bos),
                // The one in the text, if any, is the person's; the tokenizer's own is not wanted.
                Some(false) if leading > 0 && !self.text_begins_with_bos(text) => drop(ids.remove(0)),
                _ if leading > 1 => drop(ids.remove(0)),
                _ => {}
            }
        }
        Ok(ids)
    }

    fn text_begins_with_bos(&self, text: &str) -> bool {
        self.inner.special.get("bos_token").is_some_and(|bos| text.starts_with(bos))
    }

    /// The text of `ids`. Ids outside the vocabulary have none.
    ///
    /// # Panics
    /// When the tokenizer's decoder fails, which none that a `tokenizer.json` can name does. Were one
    /// to, there is no text to go on with: an empty one would be graded as the model's answer.
    pub fn decode(&self, ids: &[i64], skip_special_tokens: bool) -> String {
        let ids: Vec<u32> = ids.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        let text = self.inner.tokenizer.decode(&ids, skip_special_tokens);
        text.unwrap_or_else(|error| panic!("tokenizer.json's decoder fails on the ids {ids:?}: {error}"))
    }

    /// The text of one token on its own; a part of a character shows as U+FFFD.
    pub fn token_text(&self, id: i64) -> String {
        self.decode(&[id], false)
    }

    /// The bytes one token stands for, where its own text is whole; `None` inside a character.
    pub fn token_bytes(&self, id: i64) -> Option<Vec<u8>> {
        let text = self.token_text(id);
        (!text.contains('\u{fffd}')).then(|| text.into_bytes())
    }

    /// Number of tokens, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.tokenizer.get_vocab_size(true)
    }

    /// sha256 over `id \t token \n` in id order: two models share it when their ids mean the same.
    pub fn vocab_sha256(&self) -> String {
        let mut tokens: Vec<(u32, String)> =
            self.inner.tokenizer.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
        tokens.sort_unstable();
        let mut hasher = Sha256::new();
        for (id, token) in tokens {
            hasher.update(format!("{id}\t{token}\n"));
        }
        ContentHash::finish(hasher).as_str().to_owned()
    }

    /// Ids that end a response: of `generation_config.json`, else `config.json`, else the
    /// tokenizer config's `eos_token`.
    pub fn eos_token_ids(&self) -> &[i64] {
        &self.inner.eos_token_ids
    }

    /// The end token that a written response gets: the tokenizer config's `eos_token` where it is one of
    /// [`eos_token_ids`](Self::eos_token_ids) (a chat model's turn ends with it), else the first of them.
    pub fn turn_end(&self) -> Option<i64> {
        let named = self.inner.special.get("eos_token").and_then(|text| self.inner.tokenizer.token_to_id(text));
        let ends = self.eos_token_ids();
        named.map(i64::from).filter(|id| ends.contains(id)).or_else(|| ends.first().copied())
    }

    /// Whether `id` is left out of text when special tokens are skipped.
    pub fn is_special(&self, id: i64) -> bool {
        self.inner.special_ids.contains(&id)
    }

    /// The special tokens the folder's files name.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.inner.special
    }

    /// A decoder for one response.
    pub fn decoder(&self, skip_special_tokens: bool) -> IncrementalDecoder {
        IncrementalDecoder::new(self.clone(), skip_special_tokens)
    }

    /// A watcher of one response for `stops`.
    pub fn stop_watcher(&self, stops: &[String], skip_special_tokens: bool) -> StopWatcher {
        StopWatcher::new(self.decoder(skip_special_tokens), stops)
    }
}

/// Adds the tokens that only `tokenizer_config.json` declares, as transformers does.
fn declare(tokenizer: &mut tokenizers::Tokenizer, special: &SpecialTokens, folder: &Path) -> Result<(), Error> {
    for token in &special.declared {
        let known = tokenizer.token_to_id(&token.content).map(i64::from);
        if known.is_none() || (token.special && known == Some(token.id)) {
            let added = AddedToken::from(token.content.clone(), token.special);
            let added =
                if token.special { tokenizer.add_special_tokens([added]) } else { tokenizer.add_tokens([added]) };
            added.map_err(|e| Error::Encode { reason: e.to_string() })?;
        }
        let id = tokenizer.token_to_id(&token.content).map(i64::from);
        if id != Some(token.id) {
            let reason = format!(
                "added_tokens_decoder gives `{}` the id {}, tokenizer.json {}; save both from the same tokenizer",
                token.content,
                token.id,
                id.map_or_else(|| "has no such token".to_owned(), |id| format!("gives it {id}"))
            );
            return Err(Error::Invalid { path: folder.join("tokenizer_config.json"), reason });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
