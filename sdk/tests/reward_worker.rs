//! A program that `#[training_gym::main]` made, as the reward worker and as the person's own.
//!
//! This executable is both sides: it starts itself again in the worker's role, as the runtime does,
//! and asks that process over its socket. So it has no test harness; it prints what one would.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::process::{Child, Command};
use training_gym::eval::Grader;
use training_gym::program;
use training_gym::reward::{RewardError, Sample};
use training_gym_core::store::{MemoryStore, Store};
use training_gym_core::worker::{
    Functions, PostProcessReply, REWARD_WORKER, ROLE_VARIABLE, RewardReply, SOCKET_VARIABLE,
};

#[training_gym::reward]
async fn graded(sample: &mut Sample) -> Result<f64, RewardError> {
    sample.metadata.insert("shaped".into(), json!({"é": [1, 2]}));
    sample.score = Some(0.5);
    sample.response = "changes to other fields are ignored".into();
    Ok(sample.label.parse()?)
}

#[training_gym::reward]
fn blocks(_sample: &mut Sample) -> Result<f64, RewardError> {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    RUNNING.fetch_add(1, Ordering::SeqCst);
    let start = Instant::now();
    while RUNNING.load(Ordering::SeqCst) < 8 {
        if start.elapsed() > Duration::from_secs(20) {
            return Err(RewardError::new("the others never ran"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(1.0)
}

#[training_gym::reward]
async fn fails(_sample: &mut Sample) -> Result<f64, RewardError> {
    Err(anyhow::anyhow!("the cause").context("no verdict"))?
}

#[training_gym::reward]
async fn panics(sample: &mut Sample) -> Result<f64, RewardError> {
    Ok(sample.score.expect("the parser lost its place"))
}

#[training_gym::reward]
fn not_a_number(sample: &mut Sample) -> Result<f64, RewardError> {
    sample.score = Some(f64::INFINITY);
    Ok(f64::NAN)
}

#[training_gym::reward]
fn by_math(sample: &mut Sample) -> Result<f64, RewardError> {
    Ok(Grader::Math.score(&sample.response, &sample.label)?)
}

#[training_gym::reward]
fn by_math_dapo(sample: &mut Sample) -> Result<f64, RewardError> {
    Ok(Grader::MathDapo.score(&sample.response, &sample.label)?)
}

#[training_gym::reward]
fn by_math_reward(sample: &mut Sample) -> Result<f64, RewardError> {
    Ok(Grader::MathReward.score(&sample.response, &sample.label)?)
}

#[training_gym::reward]
fn by_tutorial(sample: &mut Sample) -> Result<f64, RewardError> {
    Ok(Grader::Tutorial.score(&sample.response, &sample.label)?)
}

#[training_gym::reward(post_process)]
async fn centred(samples: &mut [Sample]) -> Result<Vec<f64>, RewardError> {
    let scores =
        samples.iter().map(|sample| sample.score.ok_or("a sample has no score")).collect::<Result<Vec<_>, _>>()?;
    let mean = scores.iter().sum::<f64>() / scores.len() as f64;
    Ok(scores.iter().map(|score| if *score > 99.0 { f64::NAN } else { score - mean }).collect())
}

#[training_gym::reward(post_process)]
fn loses_one(samples: &mut [Sample]) -> Result<Vec<f64>, RewardError> {
    Ok(vec![0.0; samples.len() - 1])
}

/// A worker process and a client of its socket.
struct Worker {
    child: Child,
    client: reqwest::Client,
    _folder: tempfile::TempDir,
}

fn command(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this executable"));
    command
        .env(ROLE_VARIABLE, role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

impl Worker {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let child = command(REWARD_WORKER).env(SOCKET_VARIABLE, &socket).spawn().expect("a worker");
        let client = reqwest::Client::builder().unix_socket(socket.as_path()).build().expect("a client");
        let start = Instant::now();
        while client.get("http://worker/functions").send().await.is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "the worker never answered");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Self { child, client, _folder: folder }
    }

    async fn ask(&self, path: &str, body: Value) -> reqwest::Response {
        self.client.post(format!("http://worker/{path}")).json(&body).send().await.expect("an answer")
    }

    async fn reward(&self, name: &str, label: &str) -> RewardReply {
        let sample = Sample::for_test("a prompt", "a response", label);
        let response = self.ask(&format!("reward/{name}"), json!(sample)).await;
        assert_eq!(response.status(), 200);
        response.json().await.expect("a reply")
    }
}

async fn replies_carry_what_the_functions_did() {
    let worker = Worker::start().await;
    let functions: Functions = worker.client.get("http://worker/functions").send().await.unwrap().json().await.unwrap();
    let graders = ["by_math", "by_math_dapo", "by_math_reward", "by_tutorial"];
    let expected = [&["blocks"], &graders[..], &["fails", "graded", "not_a_number", "panics"]].concat();
    assert_eq!(functions.rewards, expected);
    assert_eq!(functions.post_processes, ["centred", "loses_one"]);

    let RewardReply::Graded { reward, score, metadata } = worker.reward("graded", "-1.5").await else {
        panic!("graded")
    };
    assert_eq!((reward, score), (Some(-1.5), Some(0.5)));
    assert_eq!(Value::Object(metadata), json!({"shaped": {"é": [1, 2]}}));

    let failed = |message: &str, panicked| RewardReply::Failed { message: message.to_owned(), panicked };
    assert_eq!(worker.reward("graded", "x").await, failed("invalid float literal", false));
    assert_eq!(worker.reward("fails", "").await, failed("no verdict: the cause", false));
    assert_eq!(worker.reward("panics", "").await, failed("the parser lost its place", true));
    let RewardReply::Graded { reward: None, score: None, .. } = worker.reward("not_a_number", "").await else {
        panic!("NaN travels as null")
    };
    assert!(matches!(worker.reward("graded", "1").await, RewardReply::Graded { .. }), "a panic ends nothing");
}

async fn unknown_names_and_bad_bodies_are_refused() {
    let worker = Worker::start().await;
    let sample = json!(Sample::for_test("", "", ""));
    let response = worker.ask("reward/nobody", sample).await;
    assert_eq!(response.status(), 404);
    assert!(response.text().await.unwrap().contains("graded"), "the message lists what there is");
    assert_eq!(worker.ask("post-process/graded", json!([])).await.status(), 404);
    assert_eq!(worker.ask("reward/graded", json!({"index": 0})).await.status(), 422);
}

async fn groups_are_processed_whole() {
    let worker = Worker::start().await;
    let samples = |scores: &[Option<f64>]| -> Value {
        // Long responses: a step's worth of samples is larger than any default body limit.
        let one = Sample::for_test("p", &"x".repeat(1 << 20), "l");
        scores.iter().map(|score| json!(Sample { score: *score, ..one.clone() })).collect()
    };
    let ask = async |name: &str, scores: &[Option<f64>]| -> PostProcessReply {
        worker.ask(&format!("post-process/{name}"), samples(scores)).await.json().await.expect("a reply")
    };
    let rewards = |rewards: &[Option<f64>]| PostProcessReply::Rewards { rewards: rewards.to_vec() };
    assert_eq!(ask("centred", &[Some(1.0), Some(3.0), Some(2.0)]).await, rewards(&[Some(-1.0), Some(1.0), Some(0.0)]));
    assert_eq!(ask("centred", &[Some(100.0)]).await, rewards(&[None]));
    let PostProcessReply::Failed { message, panicked: false } = ask("centred", &[None]).await else { panic!("failed") };
    assert_eq!(message, "a sample has no score");
    let PostProcessReply::Failed { message, .. } = ask("loses_one", &[None, None]).await else { panic!("failed") };
    assert!(message.contains("`loses_one` returned 1 rewards for 2 samples"), "{message}");
    let PostProcessReply::Failed { panicked: true, .. } = ask("loses_one", &[]).await else { panic!("panicked") };
}

async fn blocking_functions_run_side_by_side() {
    let worker = Worker::start().await;
    let calls = (0..8).map(|_| worker.reward("blocks", ""));
    for reply in futures::future::join_all(calls).await {
        assert!(matches!(reply, RewardReply::Graded { reward: Some(1.0), .. }), "{reply:?}");
    }
}

/// Every grader, on answers made to hurt whoever reads them: each is answered soon, the worker keeps within its
/// memory, and it goes on.
async fn answers_made_to_hurt_are_cut_off() {
    let worker = Worker::start().await;
    let hostile = [
        "9^{9^{9^{9^{9^{9^{9}}}}}}".to_owned(),
        "{".repeat(1 << 20),
        format!("{}1{}", "(".repeat(5_000), ")".repeat(5_000)),
        format!("{}1{}", "x_{".repeat(60), "}".repeat(60)),
        format!("5{}", "!".repeat(1_900)),
        "9".repeat(1_000_000),
        format!("0.{}", "1".repeat(10_000_000)),
    ];
    for grader in ["by_math", "by_math_dapo", "by_math_reward", "by_tutorial"] {
        for (case, answer) in hostile.iter().enumerate() {
            for response in [format!(r"\boxed{{{answer}}}"), format!("Answer: {answer}")] {
                let begun = Instant::now();
                let sample = json!(Sample::for_test("q", &response, "5"));
                let reply = worker.ask(&format!("reward/{grader}"), sample).await.json::<RewardReply>().await.unwrap();
                match reply {
                    RewardReply::Graded { reward, .. } => assert_eq!(reward, Some(0.0), "{grader}, case {case}"),
                    RewardReply::Failed { panicked, .. } => assert!(!panicked, "{grader}, case {case}"),
                }
                assert!(begun.elapsed() < Duration::from_secs(20), "{grader}, case {case}: {:?}", begun.elapsed());
            }
        }
    }
    let right = json!(Sample::for_test("q", "Answer: 5", "5"));
    let reply = worker.ask("reward/by_math", right).await.json::<RewardReply>().await.unwrap();
    assert!(matches!(reply, RewardReply::Graded { reward: Some(1.0), .. }), "{reply:?}");
    let status = std::fs::read_to_string(format!("/proc/{}/status", worker.child.id().unwrap())).unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let peak: u64 = peak.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(peak < 512 << 10, "{peak} KiB");
}

async fn the_worker_ends_with_its_parent() {
    let mut worker = Worker::start().await;
    drop(worker.child.stdin.take());
    let ended = tokio::time::timeout(Duration::from_secs(20), worker.child.wait()).await;
    assert!(ended.expect("it ends").expect("a status").success());
}

async fn a_wrong_role_is_named() {
    for (role, words) in [("reward-worker", SOCKET_VARIABLE), ("conductor", "conductor")] {
        let output = command(role).env_remove(SOCKET_VARIABLE).output().await.expect("an end");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && text.contains(words), "{text}");
    }
}

async fn errors_of_main_are_printed_with_their_causes() {
    let output = command("").env_remove(ROLE_VARIABLE).env("TEST_FAILING_MAIN", "1").output().await.expect("an end");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "error: on purpose\n  caused by: the cause\n");
}

async fn this_program_can_be_shipped() {
    let store = MemoryStore::new();
    let uploaded = program::current().expect("started by the attribute").upload(&store).await.expect("an upload");
    let folder = tempfile::tempdir().expect("a folder");
    let copy: PathBuf = folder.path().join("program");
    store.get_file(&uploaded.key, &copy).await.expect("the copy");
    assert_eq!(uploaded.sha256, training_gym_core::ids::ContentHash::of_file(&copy).expect("a hash"));
}

#[training_gym::main]
async fn main() -> anyhow::Result<()> {
    if std::env::var_os("TEST_FAILING_MAIN").is_some() {
        return Err(anyhow::anyhow!("the cause").context("on purpose"));
    }
    let filters: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let (mut passed, mut filtered) = (0, 0);
    macro_rules! run {
        ($($test:ident)*) => {$(
            if filters.is_empty() || filters.iter().any(|filter| stringify!($test).contains(filter)) {
                $test().await;
                println!("test {} ... ok", stringify!($test));
                passed += 1;
            } else {
                filtered += 1;
            }
        )*};
    }
    run! {
        replies_carry_what_the_functions_did
        unknown_names_and_bad_bodies_are_refused
        groups_are_processed_whole
        blocking_functions_run_side_by_side
        answers_made_to_hurt_are_cut_off
        the_worker_ends_with_its_parent
        a_wrong_role_is_named
        errors_of_main_are_printed_with_their_causes
        this_program_can_be_shipped
    }
    println!("\ntest result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured; {filtered} filtered out");
    Ok(())
}
