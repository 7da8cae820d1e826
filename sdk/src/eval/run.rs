//! Asking, scoring, retrying.

use std::borrow::Cow;
use std::time::Duration;

use futures::StreamExt;
use training_gym_core::chain;
use training_gym_core::sample::{Message, Prompt, Row};
use training_gym_core::splitmix::{GAMMA, mixed};

use super::progress::Progress;
use super::{Error, Evaluation, Outcome, Report, RowResult, Rows};
use crate::deploy::{ChatOptions, ChatReply};

/// The longest pause before a request is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

pub(super) async fn run(evaluation: Evaluation<'_>) -> Result<Report, Error> {
    evaluation.check()?;
    let rows: Cow<'_, [Row]> = match evaluation.rows {
        Rows::Given(rows) => Cow::Borrowed(rows),
        Rows::Dataset(dataset) => Cow::Owned(dataset.load().await.map_err(Error::Dataset)?),
    };
    if rows.is_empty() {
        return Err(Error::NoRows);
    }
    let (samples, total) = (evaluation.samples, rows.len() * evaluation.samples);
    let allowed = (evaluation.max_failed_fraction * total as f64).floor() as usize;

    let name = evaluation.target.name();
    let mut progress = Progress::new(&name, total, evaluation.show_progress);
    let mut outcomes: Vec<Vec<Option<Outcome>>> = rows.iter().map(|_| vec![None; samples]).collect();
    let (evaluation, rows) = (&evaluation, &*rows);
    // All first samples first: an evaluation that is watched shows every row early.
    let jobs = (0..samples).flat_map(|sample| (0..rows.len()).map(move |row| (row, sample)));
    let ask = |(row, sample)| async move { (row, sample, evaluation.one(&rows[row], (row, sample)).await) };
    let mut answers = std::pin::pin!(futures::stream::iter(jobs).map(ask).buffer_unordered(evaluation.max_concurrency));
    let (mut failed, mut first_failure) = (0, None);
    while let Some((row, sample, outcome)) = answers.next().await {
        progress.step(&outcome);
        if let Outcome::Failed { error } = &outcome {
            failed += 1;
            first_failure.get_or_insert_with(|| (row, error.clone()));
        }
        outcomes[row][sample] = Some(outcome);
        if let Some((row, first)) = first_failure.take_if(|_| failed > allowed) {
            return Err(Error::TooManyFailed { failed, total, allowed, row, first });
        }
    }
    progress.finish();

    let results = rows.iter().zip(outcomes).enumerate();
    let results = results.map(|(index, (row, outcomes))| RowResult {
        row: index,
        label: row.label.clone(),
        samples: outcomes.into_iter().flatten().collect(),
    });
    Ok(Report { target: name, samples, rows: results.collect() })
}

impl Evaluation<'_> {
    /// One reply of one row, scored.
    async fn one(&self, row: &Row, place: (usize, usize)) -> Outcome {
        let messages: Cow<'_, [Message]> = match &row.prompt {
            Prompt::Messages(messages) => Cow::Borrowed(messages),
            Prompt::Text(text) => Cow::Owned(vec![Message::user(text)]),
        };
        let mut options = Cow::Borrowed(&self.options);
        if let Some(seed) = self.options.seed {
            options.to_mut().seed = Some(seed_of(seed, place));
        }
        let reply = match self.ask(&messages, &options).await {
            Ok(reply) => reply,
            Err(error) => return Outcome::Failed { error },
        };
        let score = match (self.scorer)(row, &reply).await {
            Ok(score) => score,
            Err(reason) => {
                return Outcome::Ungradable {
                    reason,
                    content: reply.content,
                    reasoning_content: reply.reasoning_content,
                };
            }
        };
        if !score.is_finite() {
            return Outcome::Failed { error: format!("the scorer returned {score}") };
        }
        let ChatReply { content, reasoning_content, finish_reason, usage } = reply;
        Outcome::Scored { score, content, reasoning_content, finish_reason, usage }
    }

    async fn ask(&self, messages: &[Message], options: &ChatOptions) -> Result<ChatReply, String> {
        let mut pause = self.retry_pause;
        let mut left = self.retries;
        loop {
            let error = match self.target.reply(messages, options).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            if !error.transient || left == 0 {
                return Err(chain(&*error.source));
            }
            left -= 1;
            // Half of it by chance, so that requests refused together do not return together.
            tokio::time::sleep(pause.mul_f64(0.5 + 0.5 * rand::random::<f64>())).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// A seed of its own for each reply: SplitMix64's finaliser over a running sum.
fn seed_of(seed: u64, (row, sample): (usize, usize)) -> u64 {
    let parts = [row as u64, sample as u64];
    parts.iter().fold(seed, |state, part| mixed(state.wrapping_add(part.wrapping_add(1).wrapping_mul(GAMMA))))
}
