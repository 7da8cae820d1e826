//! What only a program of its own can show, since a test harness may not ship itself: launching with
//! a reward function, rows that training and evaluation share, and Ctrl-C.

mod support;

use support::{Home, rows};
use training_gym::prelude::*;
use training_gym::run::{Error, RunState};
use training_gym_core::ids::ContentHash;

#[training_gym::reward]
async fn exact(sample: &mut Sample) -> Result<f64, RewardError> {
    Ok(if sample.response == sample.label { 1.0 } else { 0.0 })
}

fn config(home: &Home, scene: &str) -> TrainConfig {
    TrainConfig {
        model: home.model(scene),
        dataset: rows(home, "train.jsonl", &["2 + 2 = ?", "1 + 3 = ?"]),
        recipe: Recipe {
            num_rollout: Some(2),
            rollout_batch_size: Some(2),
            n_samples_per_prompt: Some(2),
            custom_rm_function: Some(EXACT),
            ..Recipe::default()
        },
    }
}

async fn the_program_is_stored_by_content(home: &Home, gym: &Gym) {
    let run = config(home, "fine").launch().on(gym).await.unwrap();
    let reward = run.spec().reward.clone().unwrap();
    assert_eq!(reward.function, "exact");
    let stored = gym.store().get(&reward.program.key).await.unwrap();
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert_eq!(reward.program.sha256, ContentHash::of(&own));
    assert!(stored.bytes == own, "the stored program is this one");
    run.result().await.unwrap();
}

async fn shared_rows_are_refused_unless_allowed(home: &Home, gym: &Gym) {
    let eval = || rows(home, "eval.jsonl", &["5 + 5 = ?", "1 + 3 = ?"]);
    let before = gym.runs().await.unwrap().len();
    let launch = || config(home, "fine").launch().eval(eval()).on(gym);
    let error = launch().await.unwrap_err();
    assert!(matches!(error, Error::SharedRows(_)), "{error}");
    assert!(error.to_string().contains("allow_shared_rows"), "{error}");
    assert_eq!(gym.runs().await.unwrap().len(), before, "nothing was started");

    launch().allow_shared_rows(true).await.unwrap().result().await.unwrap();
    let held_out = rows(home, "held-out.jsonl", &["5 + 5 = ?"]);
    let run = config(home, "fine").launch().eval(held_out).on(gym).await.unwrap();
    assert_eq!(run.spec().eval.as_ref().unwrap().rows.rows, 1);
    for remark in ["the longest of 2 training prompts", "the longest of 1 evaluation prompts"] {
        assert!(run.notes().iter().any(|note| note.contains(remark)), "{remark} is not in {:?}", run.notes());
    }
    run.result().await.unwrap();
}

async fn what_the_runtime_notes_about_a_model_is_said_once(home: &Home, gym: &Gym) {
    let held_out = || rows(home, "held-out.jsonl", &["5 + 5 = ?"]);
    let notes = config(home, "noted").launch().eval(held_out()).on(gym).check().await.unwrap().notes;
    let said: Vec<&String> = notes.iter().filter(|note| note.contains("vision tower")).collect();
    assert_eq!(said, ["the model: it has a vision tower, which is not computed"], "{notes:?}");
    let notes = config(home, "fine").launch().eval(held_out()).on(gym).check().await.unwrap().notes;
    assert!(notes.len() >= 2 && !notes.iter().any(|note| note.starts_with("the model:")), "{notes:?}");
}

/// The variables of a second copy of this program: the state folder of the run it watches, and what
/// it does once that has ended.
const WATCHER: &str = "OWN_PROGRAM_WATCHES";
const AFTERWARDS: &str = "OWN_PROGRAM_AFTERWARDS";

/// Starts such a copy and sends it Ctrl-C each time it says the next of `cues`: how it ended, and
/// what it said.
async fn interrupted(home: &Home, (run, afterwards): (&str, &str), cues: &[&str]) -> (Option<i32>, String) {
    let mut watcher = tokio::process::Command::new(std::env::current_exe().unwrap())
        .env(WATCHER, home.path())
        .env("OWN_PROGRAM_RUN", run)
        .env(AFTERWARDS, afterwards)
        .stderr(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let pid = watcher.id().unwrap().to_string();
    let mut stderr = watcher.stderr.take().unwrap();
    let mut said = Vec::new();
    let mut cues = cues.iter().peekable();
    let mut block = [0; 1024];
    let read = async {
        loop {
            let count = tokio::io::AsyncReadExt::read(&mut stderr, &mut block).await.unwrap();
            if count == 0 {
                break;
            }
            said.extend_from_slice(&block[..count]);
            if cues.next_if(|cue| String::from_utf8_lossy(&said).contains(**cue)).is_some() {
                std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap();
            }
        }
    };
    let done = tokio::time::timeout(std::time::Duration::from_secs(60), read).await;
    let said = String::from_utf8(said).unwrap();
    done.unwrap_or_else(|_| panic!("it does not end: {said}"));
    (watcher.wait().await.unwrap().code(), said)
}

/// Ctrl-C while a trained student is evaluated: `result()` is over, and what it left behind must not
/// end the program in place of the person's own handler.
async fn ctrl_c_after_the_run_is_the_programs(home: &Home, gym: &Gym) {
    config(home, "fine").launch().run_id("ended").on(gym).await.unwrap().result().await.unwrap();
    let (code, said) = interrupted(home, ("ended", "handles"), &["evaluating"]).await;
    assert!(said.contains("stopping") && said.contains("all is stopped"), "{said}");
    assert_eq!(code, Some(0), "{said}");
    // One without a handler is told, and ends at the second; also one whose `main` blocks its thread.
    for afterwards in ["waits", "blocks"] {
        let (code, said) = interrupted(home, ("ended", afterwards), &["evaluating", "Ctrl-C again"]).await;
        assert_eq!(code, Some(130), "{afterwards}: {said}");
    }
}

/// What the second copy does.
async fn watch(home: std::ffi::OsString) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (run, afterwards) = (std::env::var("OWN_PROGRAM_RUN")?, std::env::var(AFTERWARDS)?);
    let work = async {
        Gym::local(home)?.run(&run).await?.result().await?;
        eprintln!("evaluating");
        match afterwards.as_str() {
            "blocks" => std::thread::sleep(std::time::Duration::from_secs(600)),
            _ => std::future::pending::<()>().await,
        }
        Ok(())
    };
    if afterwards != "handles" {
        return work.await;
    }
    tokio::select! {
        outcome = work => outcome,
        _ = tokio::signal::ctrl_c() => {
            eprintln!("stopping");
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            eprintln!("all is stopped");
            Ok(())
        }
    }
}

async fn ctrl_c_detaches_and_kills_nothing(home: &Home, gym: &Gym) {
    let run = config(home, "waits").launch().run_id("watched").on(gym).await.unwrap();
    // It has begun to watch when it says so.
    let (code, said) = interrupted(home, ("watched", "waits"), &["watched: running"]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("detached from run `watched`, which goes on"), "{said}");
    assert!(said.contains("TrainRun::attach(\"watched\")"), "{said}");
    assert_eq!(run.status().await.unwrap().state, RunState::Running);
    run.cancel().await.unwrap();
}

#[training_gym::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    if let Some(home) = std::env::var_os(WATCHER) {
        return watch(home).await;
    }
    if std::env::args().any(|argument| argument == "--list") {
        return Ok(());
    }
    let home = Home::new();
    let gym = home.gym();
    the_program_is_stored_by_content(&home, &gym).await;
    shared_rows_are_refused_unless_allowed(&home, &gym).await;
    what_the_runtime_notes_about_a_model_is_said_once(&home, &gym).await;
    ctrl_c_detaches_and_kills_nothing(&home, &gym).await;
    ctrl_c_after_the_run_is_the_programs(&home, &gym).await;
    println!("test result: ok. 5 passed; 0 failed (own_program)");
    Ok(())
}
