//! Rows to prompts, in an order that is a pure function of the seed and the step, so a resumed
//! run needs no saved iterator.

use std::sync::Arc;

use training_gym_core::ids::ContentHash;
use training_gym_core::sample::{Prompt, Row};
use training_gym_core::spec::RowsRef;
use training_gym_core::store::{self, Store};

use crate::batch::{PreparedPrompt, PromptBatch};
use training_gym_core::splitmix::{GAMMA, mixed};

/// What can be wrong with a run's rows.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed.
    #[error("cannot read the rows `{key}`")]
    Store {
        /// The object.
        key: String,
        /// Why.
        #[source]
        source: store::Error,
    },
    /// The object is not the one the spec names.
    #[error("the rows `{key}` have sha256 {found}, the spec says {expected}: the object was changed; launch a new run")]
    Fingerprint {
        /// The object.
        key: String,
        /// As read.
        found: ContentHash,
        /// As in the spec.
        expected: ContentHash,
    },
    /// A line is no row.
    #[error("line {line} of the rows `{key}` is not a row")]
    Line {
        /// The object.
        key: String,
        /// From 1.
        line: usize,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A prompt that the text room refused.
    #[error("row {row} of the dataset cannot be made a prompt: {message}")]
    Prompt {
        /// From 0.
        row: u64,
        /// The text room's word.
        message: String,
    },
    /// Nothing is left.
    #[error(
        "none of the {rows} rows has a prompt of at most {max_prompt_len} tokens (the shortest has {shortest}): \
         raise recipe.rollout_max_prompt_len or shorten the prompts"
    )]
    AllTooLong {
        /// How many there were.
        rows: usize,
        /// The limit.
        max_prompt_len: usize,
        /// Tokens of the shortest.
        shortest: usize,
    },
}

/// Reads rows from the store and checks that they are the ones the spec names.
///
/// # Errors
/// [`Error::Store`], [`Error::Fingerprint`], [`Error::Line`].
pub async fn read_rows(store: &dyn Store, rows: &RowsRef) -> Result<Vec<Row>, Error> {
    let key = || rows.key.clone();
    let object = store.get(&rows.key).await.map_err(|source| Error::Store { key: key(), source })?;
    let found = ContentHash::of(&object.bytes);
    if found != rows.sha256 {
        return Err(Error::Fingerprint { key: key(), found, expected: rows.sha256.clone() });
    }
    object
        .bytes
        .split(|&byte| byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| {
            serde_json::from_slice(line).map_err(|source| Error::Line { key: key(), line: index + 1, source })
        })
        .collect()
}

/// The prompts of a run, tokenised once.
#[derive(Debug)]
pub struct PromptSource {
    prompts: Vec<Arc<PreparedPrompt>>,
    too_long: usize,
    shuffle: bool,
    seed: u64,
}

/// How [`PromptSource`] treats rows.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// A prompt of more tokens is left out.
    pub max_prompt_len: usize,
    /// Draw a new order each epoch.
    pub shuffle: bool,
    /// The run's seed.
    pub seed: u64,
}

impl PromptSource {
    /// Tokenises all rows with `encode` (chat template included).
    ///
    /// # Errors
    /// [`Error::Prompt`] for a row `encode` refuses, [`Error::AllTooLong`] when nothing is left.
    pub fn new<E: std::fmt::Display>(
        rows: Vec<Row>,
        order: Order,
        encode: impl Fn(&Prompt) -> Result<Vec<i64>, E>,
    ) -> Result<Self, Error> {
        let (mut prompts, mut shortest, count) = (Vec::with_capacity(rows.len()), usize::MAX, rows.len());
        for (row, data) in rows.into_iter().enumerate() {
            let row = row as u64;
            let refuse = |message: String| Error::Prompt { row, message };
            let prompt_ids = encode(&data.prompt).map_err(|error| refuse(error.to_string()))?;
            if prompt_ids.is_empty() {
                return Err(refuse("it has no token".to_owned()));
            }
            shortest = shortest.min(prompt_ids.len());
            if prompt_ids.len() <= order.max_prompt_len {
                let Row { prompt, label, metadata } = data;
                prompts.push(Arc::new(PreparedPrompt { row, prompt, prompt_ids, label, metadata }));
            }
        }
        if prompts.is_empty() {
            return Err(Error::AllTooLong { rows: count, max_prompt_len: order.max_prompt_len, shortest });
        }
        Ok(Self { too_long: count - prompts.len(), prompts, shuffle: order.shuffle, seed: order.seed })
    }

    /// Prompts left after the length filter, in dataset order.
    pub fn prompts(&self) -> &[Arc<PreparedPrompt>] {
        &self.prompts
    }

    /// Rows the length filter left out.
    pub fn too_long(&self) -> usize {
        self.too_long
    }

    /// The prompts of `step` (from 1). Every prompt is visited once an epoch; a batch may span two.
    pub fn batch(&self, step: u64, rollout_batch_size: usize) -> PromptBatch {
        let count = self.prompts.len() as u64;
        let first = (step - 1) * rollout_batch_size as u64;
        let mut order: Option<(u64, Vec<usize>)> = None;
        let prompts = (first..first + rollout_batch_size as u64)
            .map(|position| {
                let (epoch, place) = (position / count, (position % count) as usize);
                if order.as_ref().is_none_or(|(of, _)| *of != epoch) {
                    order = Some((epoch, self.epoch(epoch)));
                }
                let index = order.as_ref().map_or(place, |(_, order)| order[place]);
                Arc::clone(&self.prompts[index])
            })
            .collect();
        PromptBatch { step, prompts }
    }

    fn epoch(&self, epoch: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.prompts.len()).collect();
        if self.shuffle {
            // Fisher–Yates over a counter-based generator: the order depends on (seed, epoch) alone.
            let mut state = mix(self.seed ^ mix(epoch.wrapping_add(0x5851_f42d_4c95_7f2d)));
            for i in (1..order.len()).rev() {
                state = mix(state);
                order.swap(i, ((u128::from(state) * (i as u128 + 1)) >> 64) as usize);
            }
        }
        order
    }
}

/// One more step of SplitMix64.
fn mix(state: u64) -> u64 {
    mixed(state.wrapping_add(GAMMA))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(rows: usize, shuffle: bool) -> PromptSource {
        let rows = (0..rows)
            .map(|i| Row {
                prompt: Prompt::Text("x".repeat(i + 1)),
                label: i.to_string(),
                metadata: Default::default(),
            })
            .collect();
        PromptSource::new(rows, Order { max_prompt_len: 7, shuffle, seed: 5 }, |prompt| match prompt {
            Prompt::Text(text) => Ok::<_, String>(vec![1; text.len()]),
            Prompt::Messages(_) => Err("text only".to_owned()),
        })
        .unwrap()
    }

    fn rows_of(source: &PromptSource, step: u64) -> Vec<u64> {
        source.batch(step, 3).prompts.iter().map(|prompt| prompt.row).collect()
    }

    #[test]
    fn file_order_wraps_and_long_prompts_are_left_out() {
        let source = source(9, false);
        assert_eq!(source.too_long(), 2);
        assert_eq!(rows_of(&source, 1), [0, 1, 2]);
        assert_eq!(rows_of(&source, 3), [6, 0, 1]);
    }

    #[test]
    fn every_epoch_visits_every_row_in_an_order_of_its_own() {
        let source = source(7, true);
        let visited: Vec<u64> = (1..=14).flat_map(|step| rows_of(&source, step)).take(14).collect();
        for epoch in visited.chunks(7) {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6]);
        }
        assert_ne!(visited[..7], visited[7..]);
        assert_eq!(rows_of(&source, 4), rows_of(&source, 4), "a step asked again is the same");
    }

    #[test]
    fn nothing_left_names_both_numbers() {
        let rows =
            vec![Row { prompt: Prompt::Text("long".into()), label: String::new(), metadata: Default::default() }];
        let order = Order { max_prompt_len: 2, shuffle: false, seed: 0 };
        let error = PromptSource::new(rows, order, |_| Ok::<_, String>(vec![0; 4])).unwrap_err().to_string();
        assert!(error.contains("at most 2 tokens (the shortest has 4)"), "{error}");
    }
}
