//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Runs, deployments, logs, what is wrong, and what nobody needs any more.
///
/// Exit codes: 0 done; 1 it failed, and standard error says why; 2 the command line is wrong; 3 `doctor`
/// found something that is not in order.
#[derive(Debug, Parser)]
#[command(name = "gym", version)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Print JSON instead of tables: one document, or a line a log line.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// The state folder, instead of TRAINING_GYM_HOME.
    #[arg(long, global = true, value_name = "FOLDER")]
    pub(crate) home: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Training runs: list (the default), show, logs, stop.
    Runs {
        #[command(subcommand)]
        action: Option<Runs>,
    },
    /// Deployments: list (the default), logs, stop.
    Deployments {
        #[command(subcommand)]
        action: Option<Deployments>,
    },
    /// The log of a run or a deployment.
    Logs(Logs),
    /// What nobody needs any more. Shows it; removes it with --yes.
    Gc(Gc),
    /// Whether the environment is in order: store, backend, hub.
    Doctor(Doctor),
    /// How good a model is: MATH-500, AIME, GSM8K, or a file of rows.
    Eval(Box<Eval>),
    /// Grade responses of a file, or show where two graders disagree.
    Grade(Grade),
    /// Make data files into rows.
    Data {
        #[command(subcommand)]
        action: Data,
    },
    /// Why a job on a cluster does not run, from `kubectl get pods,events,jobs,nodes -o json`.
    Explain(Explain),
}

#[derive(Debug, Subcommand)]
pub(crate) enum Runs {
    /// All runs, with their state.
    List,
    /// One run: state, steps, checkpoints, why it failed.
    Show {
        /// The run's id.
        id: String,
    },
    /// A run's log.
    Logs(Logs),
    /// Stop a run; it saves what it has, and can be continued.
    Stop {
        /// The run's id.
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Deployments {
    /// All deployments that were not stopped.
    List,
    /// A deployment's log.
    Logs(Logs),
    /// Stop a deployment.
    Stop {
        /// The deployment's name.
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The run's id or the deployment's name.
    pub(crate) name: String,
    /// Go on until the job is over.
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Begin with this many last lines.
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<usize>,
}

#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// Remove what is shown.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Only what is at least this old: 30m, 12h, 7d. With 0 also objects whose age the store does not say,
    /// as S3 stores do not; then no launch may be under way.
    #[arg(long, value_name = "AGE", default_value = "24h", value_parser = age)]
    pub(crate) older_than: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Only try this store: file:///folder or s3://bucket/prefix?….
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Also look for room for a job on this device: cpu or cuda:N.
    #[arg(long)]
    pub(crate) device: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// Files of JSON: objects, lists, status.json; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("target").required(true).args(["url", "model", "deployment"])))]
#[command(group(clap::ArgGroup::new("questions").required(true).multiple(false).args(["benchmark", "data"])))]
pub(crate) struct Eval {
    /// A server that speaks OpenAI's chat protocol: its root, its /v1 or its /v1/chat/completions.
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// What that server calls the model. Unset: the one it lists.
    #[arg(long, value_name = "NAME", requires = "url")]
    pub(crate) served_model: Option<String>,
    /// The environment variable that holds its bearer token.
    #[arg(long, value_name = "VARIABLE", requires = "url")]
    pub(crate) token_env: Option<String>,
    /// A model's folder or hub id: deployed, evaluated, stopped.
    #[arg(long, value_name = "FOLDER_OR_ID")]
    pub(crate) model: Option<String>,
    /// A deployment by its name.
    #[arg(long, value_name = "NAME")]
    pub(crate) deployment: Option<String>,
    /// math500, aime2024, aime2025, gsm8k; several with commas.
    #[arg(long, value_delimiter = ',')]
    pub(crate) benchmark: Vec<String>,
    /// A file of rows instead: .jsonl, .json or .parquet.
    #[arg(long, value_name = "FILE")]
    pub(crate) data: Option<PathBuf>,
    /// Where the benchmarks' files are on this machine (MATH-500/test.jsonl, …). Unset: the hub.
    #[arg(long, value_name = "FOLDER", requires = "benchmark")]
    pub(crate) data_dir: Option<PathBuf>,
    /// The file's column of questions.
    #[arg(long, value_name = "COLUMN", default_value = "prompt", conflicts_with = "benchmark")]
    pub(crate) input_key: String,
    /// The file's column of answers.
    #[arg(long, value_name = "COLUMN", default_value = "label", conflicts_with = "benchmark")]
    pub(crate) label_key: String,
    /// What is added to a question: boxed, dapo or none. Unset: boxed for a benchmark, none for a file.
    #[arg(long)]
    pub(crate) instruction: Option<String>,
    /// math, math_reward, math_dapo or tutorial.
    #[arg(long, default_value = "math")]
    pub(crate) grader: String,
    /// Replies a question.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1)]
    pub(crate) val_n: usize,
    /// Unset, like the next two: the server's choice.
    #[arg(long)]
    pub(crate) temperature: Option<f64>,
    /// Nucleus mass in (0, 1].
    #[arg(long)]
    pub(crate) top_p: Option<f64>,
    /// The k most likely tokens; -1 is all.
    #[arg(long, allow_negative_numbers = true)]
    pub(crate) top_k: Option<i64>,
    /// Tokens a reply may have, reasoning included. Unset: what fits the context.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_tokens: Option<usize>,
    /// The chat template's variable: thinking on or off. Unset: the template's choice.
    #[arg(long, value_name = "TRUE_OR_FALSE")]
    pub(crate) enable_thinking: Option<bool>,
    /// Makes the replies repeatable, where the server honours seeds.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Requests in flight at once.
    #[arg(long, default_value_t = 8)]
    pub(crate) concurrency: usize,
    /// Only the first so many questions.
    #[arg(long, value_name = "ROWS")]
    pub(crate) limit: Option<usize>,
    /// Write the report with every reply here; `gym grade` reads it.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Grade {
    /// JSON lines with a response and a label each, a step of a run's rollouts, or a report of `gym eval`.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// math, math_reward, math_dapo or tutorial.
    #[arg(long, default_value = "math", conflicts_with = "compare")]
    pub(crate) grader: String,
    /// List where two graders disagree.
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    pub(crate) compare: Option<Vec<String>>,
    /// The column of responses.
    #[arg(long, value_name = "COLUMN", default_value = "response")]
    pub(crate) response_key: String,
    /// The column of labels. Unset: label, ground_truth or answer, whichever is there.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) label_key: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Data {
    /// Duplicates and overlong prompts out, a seeded split, a report: whole, or nothing.
    Prepare(Prepare),
}

#[derive(Debug, Args)]
pub(crate) struct Prepare {
    /// The folder to make.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: PathBuf,
    /// A folder with the seed's inputs: DAPO-Math-17k-dedup, AIME_2024, AIME_2025, MATH-500.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data_dir: Option<PathBuf>,
    /// A file to train on.
    #[arg(long, value_name = "FILE")]
    pub(crate) train: Option<PathBuf>,
    /// A file to evaluate on, under a name; may be given several times.
    #[arg(long, value_name = "NAME=FILE", value_parser = named_file)]
    pub(crate) eval: Vec<(String, PathBuf)>,
    /// Columns of question and answer, where they are not found by themselves.
    #[arg(long, num_args = 2, value_names = ["QUESTION", "ANSWER"], requires = "train")]
    pub(crate) columns: Option<Vec<String>>,
    /// What is added to a question: boxed, dapo or none (DAPO's own frame is taken off first), or keep.
    #[arg(long, default_value = "boxed")]
    pub(crate) instruction: String,
    /// The model whose tokenizer counts: a folder or hub id. Unset: nothing is too long.
    #[arg(long, value_name = "FOLDER_OR_ID")]
    pub(crate) model: Option<String>,
    /// Tokens a prompt may have.
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, requires = "model")]
    pub(crate) max_prompt_len: usize,
    /// The chat template's variable: thinking on or off.
    #[arg(long, value_name = "TRUE_OR_FALSE", requires = "model")]
    pub(crate) enable_thinking: Option<bool>,
    /// The share of the training rows that is held out.
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    pub(crate) validation: f64,
    /// The split's seed.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Keep rows that ask the same again.
    #[arg(long)]
    pub(crate) keep_duplicates: bool,
    /// Take the place of a folder made by this command before.
    #[arg(long)]
    pub(crate) replace: bool,
}

fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    let parts = text.split_once('=').filter(|(name, file)| !name.is_empty() && !file.is_empty());
    parts.map(|(name, file)| (name.to_owned(), file.into())).ok_or_else(|| format!("`{text}`: write NAME=FILE"))
}

fn age(text: &str) -> Result<Duration, String> {
    let rule = || format!("`{text}`: write 0, or a number with s, m, h or d, such as 12h");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let split = text.len() - text.chars().last().map_or(0, char::len_utf8);
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(rule()),
    };
    let number: u64 = number.parse().map_err(|_| rule())?;
    number.checked_mul(scale).map(Duration::from_secs).ok_or_else(rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_ages_are_read() {
        Arguments::command().debug_assert();
        assert_eq!(age("0"), Ok(Duration::ZERO));
        assert_eq!(age("12h"), Ok(Duration::from_secs(43_200)));
        for bad in ["", "h", "12", "1w", "-1d", "99999999999999999999d", "9999999999999999999d", "1é"] {
            assert!(age(bad).is_err(), "{bad}");
        }
    }
}
