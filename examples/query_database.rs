//! An agent with a tool: the model answers questions by asking a SQLite database.
//!
//! ```sh
//! cargo xtask runtime && cargo run -p training-gym-examples --bin query_database
//! DATABASE_DIR=/data/databases TOOL_FORMAT=hermes AGENT_NUM_WORKERS=8 \
//!     cargo run -p training-gym-examples --bin query_database -- --student Qwen/Qwen3-0.6B --dataset questions.jsonl
//! ```
//!
//! A question's row names its database, a file in the folder. The tool runs in the reward worker, which may read
//! that folder and nothing else of the machine. Without a model and a dataset of your own a tiny student and a tiny
//! database are made; the student often asks for the wrong thing, and learns from the reward to ask for the right one.

mod tiny_player;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc;

use anyhow::Context;
use clap::Parser;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};
use serde_json::json;
use tiny_player::{Dice, Player, Said, Transcript};
use training_gym::config::{Dtype, LrDecayStyle};
use training_gym::prelude::*;

/// Where the worker finds the folder.
const FOLDER: &str = "DATABASE_DIR";
/// What one query may take, and how many rows of it are told.
const QUERY_TIME: Duration = Duration::from_secs(2);
const ROWS: usize = 50;

/// A conversation about one database.
struct Database {
    connection: Connection,
    answer: Option<String>,
    queries: u32,
}

#[training_gym::rollout_environment]
impl RolloutEnvironment for Database {
    fn tools() -> Vec<serde_json::Value> {
        vec![json!({"type": "function", "function": {
            "name": "query",
            "description": "Runs a SELECT on the database and returns its rows.",
            "parameters": {"type": "object", "required": ["sql"], "properties": {"sql": {"type": "string"}}},
        }})]
    }

    async fn reset(episode: &Episode) -> Result<Self, RewardError> {
        let name = episode.metadata.get("database").and_then(|name| name.as_str()).unwrap_or(TINY);
        let plain = Path::new(name).file_name().is_some_and(|file| file == name);
        if !plain {
            return Err(RewardError::new(format!("`{name}` is no file name")));
        }
        let path = PathBuf::from(std::env::var(FOLDER)?).join(name);
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        Ok(Self { connection, answer: None, queries: 0 })
    }

    async fn step(&mut self, turn: &Turn) -> Result<Observation, RewardError> {
        if turn.tool_calls.is_empty() && turn.malformed.is_empty() {
            self.answer = turn.content.rsplit("Answer:").next().map(|answer| answer.trim().to_owned());
            return Ok(Observation::done());
        }
        // A mistake of the model is answered with words: it may do better in its next turn.
        let mut answers: Vec<String> = turn.malformed.iter().map(|why| format!("error: {why}")).collect();
        for call in &turn.tool_calls {
            let sql = call.arguments.get("sql").and_then(|sql| sql.as_str());
            answers.push(match (call.name.as_str(), sql) {
                ("query", Some(sql)) => {
                    self.queries += 1;
                    self.query(sql).unwrap_or_else(|error| format!("error: {error}"))
                }
                ("query", None) => "error: `query` needs the text `sql`".to_owned(),
                (other, _) => format!("error: there is no tool `{other}`"),
            });
        }
        let messages = answers.into_iter().map(|answer| Message::new("tool", answer)).collect();
        Ok(Observation { messages, done: false })
    }

    async fn reward(&mut self, sample: &mut Sample) -> Result<f64, RewardError> {
        sample.metadata.insert("queries".into(), self.queries.into());
        let right = self.answer.as_ref() == Some(&sample.label) && self.queries > 0;
        Ok(if right { 1.0 } else { -1.0 })
    }
}

impl Database {
    /// The rows as lines; a query that takes too long is interrupted.
    fn query(&self, sql: &str) -> rusqlite::Result<String> {
        let interrupt = self.connection.get_interrupt_handle();
        let (done, wait) = mpsc::channel::<()>();
        let watch = std::thread::spawn(move || {
            if wait.recv_timeout(QUERY_TIME) == Err(mpsc::RecvTimeoutError::Timeout) {
                interrupt.interrupt();
            }
        });
        let rows = self.rows(sql);
        drop(done);
        let _ = watch.join();
        rows
    }

    fn rows(&self, sql: &str) -> rusqlite::Result<String> {
        let mut statement = self.connection.prepare(sql)?;
        let columns = statement.column_count();
        let mut rows = statement.query([])?;
        let mut lines = Vec::new();
        while let Some(row) = rows.next()? {
            if lines.len() == ROWS {
                lines.push("...".to_owned());
                break;
            }
            let cells: Vec<String> = (0..columns).map(|column| row.get_ref(column).map(shown)).collect::<Result<_, _>>()?;
            lines.push(cells.join("|"));
        }
        Ok(if lines.is_empty() { "no rows".to_owned() } else { lines.join("\n") })
    }
}

fn shown(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "null".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Blob(bytes) => format!("{} bytes", bytes.len()),
    }
}

/// Questions about a database.
#[derive(Debug, Parser)]
struct Arguments {
    /// Hub id or folder of another student
    #[arg(long)]
    student: Option<String>,
    /// JSON lines of `prompt`, `label` and `database`, for another student
    #[arg(long, requires = "student")]
    dataset: Option<PathBuf>,
    /// Folder of databases; unset: DATABASE_DIR, or a tiny one that is made
    #[arg(long)]
    database_dir: Option<PathBuf>,
    /// `hermes` or `json`; unset: TOOL_FORMAT, or hermes
    #[arg(long)]
    tool_format: Option<ToolFormat>,
    /// Calls of the tool at once; unset: AGENT_NUM_WORKERS, or 8
    #[arg(long)]
    workers: Option<usize>,
    /// Turns the model may take; unset: MAX_ASSISTANT_TURNS, or 4
    #[arg(long)]
    max_assistant_turns: Option<usize>,
    /// Characters of an answer; unset: MAX_TOOL_RESPONSE_LENGTH, or 256
    #[arg(long)]
    max_tool_response_length: Option<usize>,
    /// Seed of all randomness of the training
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rollout steps
    #[arg(long, default_value_t = 40)]
    steps: u64,
    /// State folder; unset: TRAINING_GYM_HOME, or the usual one
    #[arg(long)]
    home: Option<PathBuf>,
    /// End with one line of JSON
    #[arg(long)]
    json: bool,
}

/// What was given, else the variable's value, else the default.
fn setting<T: FromStr<Err: std::fmt::Display>>(given: Option<T>, variable: &str, default: T) -> anyhow::Result<T> {
    match (given, std::env::var(variable)) {
        (Some(given), _) => Ok(given),
        (None, Ok(text)) => text.parse().map_err(|error| anyhow::anyhow!("{variable}={text}: {error}")),
        (None, Err(_)) => Ok(default),
    }
}

#[training_gym::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let gym = match &arguments.home {
        Some(home) => Gym::local(home)?,
        None => Gym::from_env()?,
    };
    let format = setting(arguments.tool_format, "TOOL_FORMAT", ToolFormat::Hermes)?;
    let folder = gym.home().join("examples/query_database");
    std::fs::create_dir_all(&folder)?;
    let databases = setting(arguments.database_dir.clone(), FOLDER, folder.join("databases"))?;
    let databases = std::path::absolute(databases)?;
    let (student, train, eval) = match &arguments.student {
        None => {
            let student = player(format).make(&folder, || (0..6000).map(|n| transcript(&mut Dice(n), format)).collect())?;
            let counts = make_database(&databases)?;
            let rows = |name: &str, held_out: bool| {
                let of_set = counts.iter().enumerate().filter(|(at, _)| (at % 3 == 0) == held_out);
                let rows = of_set.map(|(_, (owner, item, count))| (question(owner, item), count.to_string()));
                tiny_player::write_rows(&folder.join(name), rows)
            };
            (student, rows("train.jsonl", false)?, Some(rows("eval.jsonl", true)?))
        }
        Some(name) => {
            let student = if Path::new(name).is_dir() { Model::folder(name) } else { Model::hub(name) };
            let path = arguments.dataset.as_ref().context("another student needs --dataset")?;
            let rows = HuggingFaceDataset::file(path).input_key("prompt").label_key("label").apply_chat_template(true);
            (student, rows, None)
        }
    };
    let tiny = arguments.student.is_none();
    let recipe = Recipe {
        rollout_environment: Some(DATABASE),
        tool_format: Some(format),
        max_assistant_turns: Some(setting(arguments.max_assistant_turns, "MAX_ASSISTANT_TURNS", 4)?),
        max_tool_response_length: Some(setting(arguments.max_tool_response_length, "MAX_TOOL_RESPONSE_LENGTH", 256)?),
        reward_max_concurrency: Some(setting(arguments.workers, "AGENT_NUM_WORKERS", 8)?),
        reward_files: Some(vec![databases.clone()]),
        environment: Some([(FOLDER, databases.to_string_lossy().as_ref())].into()),
        num_rollout: Some(arguments.steps),
        rollout_batch_size: tiny.then_some(8),
        n_samples_per_prompt: Some(8),
        rollout_max_prompt_len: tiny.then_some(64),
        rollout_max_response_len: tiny.then_some(96),
        lr: tiny.then_some(1e-3),
        lr_warmup_iters: Some(5),
        lr_decay_style: Some(LrDecayStyle::Cosine),
        weight_decay: tiny.then_some(0.0),
        grade_truncated: Some(true),
        shuffle: Some(true),
        eval_interval: eval.is_some().then_some((arguments.steps / 4).max(1)),
        n_samples_per_eval_prompt: eval.is_some().then_some(8),
        dtype: tiny.then_some(Dtype::Float32),
        seed: Some(arguments.seed),
        ..student.recipe()
    };
    let mut launch = TrainConfig { model: student, dataset: train, recipe }.launch().on(&gym);
    if let Some(eval) = eval {
        launch = launch.eval(eval);
    }
    let run = launch.await?;
    println!("run id: {}", run.training_run_id());
    let result = run.result().await?;
    tiny_player::show(&gym, &run, 1).await?;
    tiny_player::show(&gym, &run, arguments.steps).await?;
    let (first, last) = (result.metrics().first(), result.metrics().last());
    let reward = |metrics: Option<&training_gym::record::StepMetrics>| metrics.and_then(|metrics| metrics.reward);
    println!("\nreward: {:?} in the first step, {:?} in the last", reward(first), reward(last));
    if let Some((first, last)) = tiny_player::progress(&result) {
        println!("held-out questions: {first:.2} at first, {last:.2} at last");
    }
    if arguments.json {
        let turns = last.and_then(|metrics| metrics.multi_turn.clone());
        let held_out = tiny_player::progress(&result).map(|(_, last)| last);
        let line = json!({"first": reward(first), "last": reward(last), "held_out": held_out, "last_step": turns});
        println!("{line}");
    }
    Ok(())
}

const TINY: &str = "things.db";
const OWNERS: [&str; 6] = ["Mia", "Tom", "Ana", "Ben", "Eva", "Sam"];
const ITEMS: [&str; 6] = ["apples", "books", "cards", "coins", "pens", "shells"];
const CALL: &str = "{\"name\": \"query\", \"arguments\": {\"sql\": \"SELECT count FROM things WHERE owner = '";
const AND: &str = "' AND item = '";
const END: &str = "'\"}}";

fn question(owner: &str, item: &str) -> String {
    format!("How many {item} has {owner}?")
}

/// Who has how many of what.
fn make_database(folder: &Path) -> anyhow::Result<Vec<(&'static str, &'static str, usize)>> {
    std::fs::create_dir_all(folder)?;
    let path = folder.join(TINY);
    if path.exists() {
        std::fs::remove_file(&path)?;
    }
    let connection = Connection::open(path)?;
    connection.execute("CREATE TABLE things (owner TEXT, item TEXT, count INTEGER)", [])?;
    let mut dice = Dice(7);
    let pairs = OWNERS.into_iter().flat_map(|owner| ITEMS.into_iter().map(move |item| (owner, item)));
    let counts: Vec<_> = pairs.map(|(owner, item)| (owner, item, 1 + dice.roll(20))).collect();
    for (owner, item, count) in &counts {
        connection.execute("INSERT INTO things VALUES (?1, ?2, ?3)", (owner, item, *count as i64))?;
    }
    Ok(counts)
}

fn player(format: ToolFormat) -> Player<'static> {
    let mut phrases: Vec<String> = (1..=20).map(|number| number.to_string()).collect();
    phrases.extend(OWNERS.map(String::from));
    phrases.extend(ITEMS.map(String::from));
    phrases.extend(["How many ", " has ", "Answer: ", CALL, AND, END, "no rows"].map(String::from));
    phrases.extend(["<tool_call>\n", "\n</tool_call>"].map(String::from));
    let name = if format == ToolFormat::Hermes { "student-hermes" } else { "student-json" };
    Player { name, phrases, hidden_size: 64, layers: 2, seed: 1 }
}

/// Somebody who often asks for the wrong thing, and sometimes does not ask at all.
fn transcript(dice: &mut Dice, format: ToolFormat) -> Transcript {
    let (owner, item) = (OWNERS[dice.roll(6)], ITEMS[dice.roll(6)]);
    let (mut asked_owner, mut asked_item) = (owner, item);
    if dice.chance(0.3) {
        asked_owner = OWNERS[dice.roll(6)];
    }
    if dice.chance(0.3) {
        asked_item = ITEMS[dice.roll(6)];
    }
    let said = |text: String, told| Said { text, learnt: true, told };
    let count = (1 + dice.roll(20)).to_string();
    let answer = said(format!("Answer: {count}"), None);
    let call = format!("{CALL}{asked_owner}{AND}{asked_item}{END}");
    let call = if format == ToolFormat::Hermes { format!("<tool_call>\n{call}\n</tool_call>") } else { call };
    let turns =
        if dice.chance(0.15) { vec![answer] } else { vec![said(call, Some(("tool", count))), answer] };
    Transcript { prompt: question(owner, item), turns }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> Database {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE things (n INTEGER); INSERT INTO things VALUES (7), (8);").unwrap();
        Database { connection, answer: None, queries: 0 }
    }

    fn call(sql: &str) -> Turn {
        let call = json!({"name": "query", "arguments": {"sql": sql}});
        Turn::parse(&format!("<tool_call>{call}</tool_call>"), ToolFormat::Hermes)
    }

    #[tokio::test]
    async fn a_query_is_answered_and_a_mistake_too() {
        let mut database = database();
        assert_eq!(database.step(&call("SELECT n FROM things")).await.unwrap(), Observation::tool("7\n8"));
        for (turn, words) in [
            (call("SELECT x FROM things"), "no such column"),
            (Turn::parse("<tool_call>{</tool_call>", ToolFormat::Hermes), "error: "),
            (Turn::parse("<tool_call>{\"name\": \"delete\"}</tool_call>", ToolFormat::Hermes), "no tool `delete`"),
        ] {
            let said = database.step(&turn).await.unwrap();
            assert!(said.messages[0].content.as_str().unwrap().contains(words), "{said:?}");
        }
        let answer = Turn::parse("Answer: 7", ToolFormat::Hermes);
        assert!(database.step(&answer).await.unwrap().done);
        assert_eq!(database.reward(&mut Sample::for_test("p", "r", "7")).await.unwrap(), 1.0);
        assert_eq!(database.reward(&mut Sample::for_test("p", "r", "8")).await.unwrap(), -1.0);
    }

    #[tokio::test]
    async fn a_query_without_an_end_is_interrupted() {
        let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT sum(x) FROM n";
        let said = database().step(&call(endless)).await.unwrap();
        assert_eq!(said, Observation::tool("error: interrupted"));
    }
}
