//! `gym explain`.

use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use training_gym::backend::explain::{Evidence, Explanation, explain};
use training_gym::external::serde_json::{self, Value};

use crate::args::Explain;
use crate::output;

pub(crate) fn run(asked: &Explain, json: bool) -> Result<()> {
    let mut objects = Vec::new();
    for file in &asked.files {
        objects.extend(read(file)?);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let found = explain(&Evidence::from_objects(objects, now));
    if json {
        return output::json(&serde_json::to_value(&found)?);
    }
    match found {
        None => output::line("nothing is wrong that these objects tell of"),
        Some(Explanation { cause, sentence, next_step, retryable, .. }) => {
            output::line(&format!("cause      {cause}"))?;
            output::line(&format!("what       {sentence}"))?;
            output::line(&format!("next step  {next_step}"))?;
            output::line(&format!("again      {}", if retryable { "launching again can help by itself" } else { "no" }))
        }
    }
}

/// The JSON documents of a file, one behind the other.
fn read(file: &Path) -> Result<Vec<Value>> {
    let bytes = match file.as_os_str() == "-" {
        true => {
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
            bytes
        }
        false => std::fs::read(file).with_context(|| format!("cannot read `{}`", file.display()))?,
    };
    let documents = serde_json::Deserializer::from_slice(&bytes).into_iter::<Value>();
    documents.collect::<Result<_, _>>().with_context(|| format!("`{}` is not JSON", file.display()))
}
