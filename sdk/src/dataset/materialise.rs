//! Rows into the store, by content; and rows that two sets share.

use std::collections::HashMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use training_gym_core::ids::ContentHash;
use training_gym_core::record::keys;
use training_gym_core::sample::{Prompt, Row};
use training_gym_core::spec::RowsRef;
use training_gym_core::store::{self, Store};

use super::source::Loaded;
use super::{Error, HuggingFaceDataset, OutputFormat, parquet_file};

/// Rows in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct Materialised {
    /// Where, which and how many: what goes into the spec.
    pub rows: RowsRef,
    /// [`row_hash`] of each row, in order.
    pub row_hashes: Vec<ContentHash>,
    /// What a person should know: how many rows of how many, from which commit, and oddities.
    pub notes: Vec<String>,
    /// Key of the parquet file beside, where one was asked for.
    pub parquet: Option<String>,
}

/// What is remembered of a preparation, under the fingerprint of its source and settings.
#[derive(Serialize, Deserialize)]
#[serde(tag = "version", deny_unknown_fields)]
enum Prepared {
    #[serde(rename = "1")]
    V1 { rows: RowsRef, notes: Vec<String>, parquet: Option<String> },
}

impl HuggingFaceDataset {
    /// Writes the rows into the store, as JSON lines of [`Row`] under the hash of their content.
    /// The same rows give the same key, whoever writes them.
    ///
    /// Unless [`always_prepare`](Self::always_prepare) is set, rows that were written before from
    /// the same source (file contents, or the hub's commit) by the same settings are taken as they
    /// are, after their hash was checked.
    ///
    /// # Errors
    /// Those of [`load`](Self::load), and the store's.
    pub async fn materialise(&self, store: &dyn Store) -> Result<Materialised, Error> {
        self.shape()?;
        let source = self.locate().await?;
        let record = keys::input("prepared", &self.fingerprint(&source).await?);
        if !self.always_prepare
            && let Some(mut found) = recall(store, &record).await?
        {
            // The same commit may have been asked for by another name.
            found.rows.hub = self.hub_ref(&source);
            return Ok(found);
        }
        let Loaded { rows, mut notes } = self.read(&source).await?;
        let row_hashes: Vec<_> = rows.iter().map(row_hash).collect();
        let repeated = repeated(&row_hashes);
        if repeated > 0 {
            notes.push(format!("{repeated} rows have the prompt of an earlier row"));
        }
        if !rows.is_empty() && rows.iter().all(|row| row.label.is_empty()) {
            let column = self.label_key.as_deref().unwrap_or("label");
            notes.push(format!(
                "every label is empty (column `{column}`); a reward function that reads it needs `.label_key(..)`"
            ));
        }
        let mut lines = Vec::new();
        for row in &rows {
            // Rows hold only JSON values, so that this cannot fail.
            serde_json::to_writer(&mut lines, row)
                .map_err(std::io::Error::from)
                .map_err(Error::io("write", "a row"))?;
            lines.push(b'\n');
        }
        let sha256 = ContentHash::of(&lines);
        let key = keys::input("rows", &sha256);
        let parquet = match self.output_format {
            OutputFormat::Jsonl => None,
            OutputFormat::Parquet => {
                let key = format!("{key}.parquet");
                create(store, &key, parquet_file::write(&rows)?).await?;
                Some(key)
            }
        };
        create(store, &key, lines).await?;
        let rows = RowsRef { key, sha256, rows: row_hashes.len() as u64, hub: self.hub_ref(&source) };
        let prepared = Prepared::V1 { rows: rows.clone(), notes: notes.clone(), parquet: parquet.clone() };
        store.put(&record, Bytes::from(serde_json::json!(prepared).to_string())).await?;
        Ok(Materialised { rows, row_hashes, notes, parquet })
    }
}

/// Content-addressed: who finds the key taken finds the content there.
async fn create(store: &dyn Store, key: &str, bytes: Vec<u8>) -> Result<(), Error> {
    match store.create(key, Bytes::from(bytes)).await {
        Ok(_) | Err(store::Error::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What an earlier preparation left, if it is all there and whole.
async fn recall(store: &dyn Store, record: &str) -> Result<Option<Materialised>, Error> {
    let Some(record) = get(store, record).await? else { return Ok(None) };
    // A record of another version of ours is no error: the rows are prepared anew.
    let Ok(Prepared::V1 { rows, mut notes, parquet }) = serde_json::from_slice(&record) else { return Ok(None) };
    let Some(lines) = get(store, &rows.key).await? else { return Ok(None) };
    if ContentHash::of(&lines) != rows.sha256 {
        tracing::warn!(key = rows.key, "the prepared rows are damaged; preparing them anew");
        store.delete(&rows.key).await?;
        return Ok(None);
    }
    if let Some(key) = &parquet
        && store.list(key).await?.is_empty()
    {
        return Ok(None);
    }
    let parsed: Result<Vec<Row>, _> =
        lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(serde_json::from_slice).collect();
    let Ok(parsed) = parsed else { return Ok(None) };
    notes.push("taken from the store, where they were prepared before".to_owned());
    Ok(Some(Materialised { row_hashes: parsed.iter().map(row_hash).collect(), rows, notes, parquet }))
}

async fn get(store: &dyn Store, key: &str) -> Result<Option<Bytes>, Error> {
    match store.get(key).await {
        Ok(object) => Ok(Some(object.bytes)),
        Err(store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A hash of what the model is asked: roles and contents, system messages and surrounding blanks
/// left out, the label too. Two rows with the same hash ask the same question.
pub fn row_hash(row: &Row) -> ContentHash {
    let content = |value: &Value| value.as_str().map_or_else(|| value.to_string(), |text| text.trim().to_owned());
    let asked: Vec<(&str, String)> = match &row.prompt {
        Prompt::Text(text) => vec![("user", text.trim().to_owned())],
        Prompt::Messages(messages) => messages
            .iter()
            .filter(|message| message.role != "system")
            .map(|message| (message.role.as_str(), content(&message.content)))
            .collect(),
    };
    ContentHash::of(serde_json::json!(asked).to_string().as_bytes())
}

fn repeated(hashes: &[ContentHash]) -> usize {
    hashes.len() - hashes.iter().collect::<std::collections::HashSet<_>>().len()
}

/// The rows of `eval` that are rows of `train` too, as (row of `train`, row of `eval`), by hash.
pub fn shared_rows(train: &[ContentHash], eval: &[ContentHash]) -> Vec<(usize, usize)> {
    let mut places = HashMap::new();
    for (index, hash) in train.iter().enumerate() {
        places.entry(hash).or_insert(index);
    }
    eval.iter().enumerate().filter_map(|(index, hash)| places.get(hash).map(|train| (*train, index))).collect()
}

/// Refuses an evaluation set that shares rows with the training set.
///
/// # Errors
/// [`Error::SharedRows`], with how many and the first one.
pub fn refuse_shared_rows(train: &Materialised, eval: &Materialised) -> Result<(), Error> {
    let shared = shared_rows(&train.row_hashes, &eval.row_hashes);
    match shared.first() {
        None => Ok(()),
        Some(&(train, first)) => {
            Err(Error::SharedRows { count: shared.len(), of: eval.row_hashes.len(), eval: first, train })
        }
    }
}
