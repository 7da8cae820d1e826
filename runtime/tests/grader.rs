//! The grader against a worker that hangs and dies on demand.
//!
//! This executable is both sides: started in the worker's role it answers over its socket. So it
//! has no test harness; it prints what one would.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Json;
use axum::routing::{get, post};
use training_gym_core::ids::ContentHash;
use training_gym_core::record::Grade;
use training_gym_core::sample::{FinishReason, Prompt, Sample};
use training_gym_core::spec::{ProgramRef, RewardSpec};
use training_gym_core::worker::{
    Functions, PostProcessReply, PostProcessRequest, REWARD_WORKER, ROLE_VARIABLE, RewardReply, SOCKET_VARIABLE,
};
use training_gym_runtime::sandbox::Launcher;
use training_gym_runtime::score::reward::{Graded, Grader};
use training_gym_runtime::score::worker::Worker;

/// Seconds a call may take where none is meant to hang.
const PATIENT: f64 = 60.0;

async fn reward(Json(sample): Json<Sample>) -> Json<RewardReply> {
    match sample.label.as_str() {
        "hangs" => tokio::time::sleep(Duration::from_secs(600)).await,
        "kills" => std::process::exit(9),
        _ => tokio::time::sleep(Duration::from_millis(120)).await,
    }
    Json(RewardReply::Graded { reward: Some(1.0), score: None, metadata: sample.metadata })
}

/// Dies the first time: the folder of the socket remembers.
async fn once(Json(samples): Json<PostProcessRequest>) -> Json<PostProcessReply> {
    let socket = std::env::var(SOCKET_VARIABLE).expect("a socket");
    let mark = std::path::Path::new(&socket).with_file_name("died");
    if !mark.exists() {
        std::fs::write(mark, "").expect("a mark");
        std::process::exit(9);
    }
    Json(PostProcessReply::Rewards { rewards: vec![Some(0.5); samples.len()] })
}

/// Has no number for the second and the third sample.
async fn holes(Json(samples): Json<PostProcessRequest>) -> Json<PostProcessReply> {
    let rewards = (0..samples.len()).map(|index| (!matches!(index, 1 | 2)).then_some(0.25)).collect();
    Json(PostProcessReply::Rewards { rewards })
}

async fn work() {
    let functions = || async {
        let post_processes = vec!["once".into(), "holes".into()];
        Json(Functions { rewards: vec!["exact".into()], post_processes, environments: Vec::new() })
    };
    let app = Router::new()
        .route("/functions", get(functions))
        .route("/reward/exact", post(reward))
        .route("/post-process/once", post(once))
        .route("/post-process/holes", post(holes));
    let socket = std::env::var(SOCKET_VARIABLE).expect("a socket");
    let listener = tokio::net::UnixListener::bind(socket).expect("a free socket");
    axum::serve(listener, app).await.expect("the worker serves");
}

/// Folders of the libraries that this program loaded from elsewhere than the system's: it runs with
/// libtorch, which a person's program does not have.
fn libraries() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("our own maps");
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
    let mut folders: Vec<PathBuf> = paths
        .filter(|path| path.to_string_lossy().contains(".so"))
        .filter(|path| !path.starts_with("/usr") && !path.starts_with("/lib"))
        .filter_map(|path| path.parent().map(Path::to_owned))
        .collect();
    folders.sort();
    folders.dedup();
    folders
}

fn sample(index: usize, label: &str) -> Sample {
    Sample {
        index: index as u64,
        group_index: 0,
        row: 0,
        step: 1,
        prompt: Prompt::Text("p".into()),
        response: "r".into(),
        tokens: vec![1, 2],
        response_length: 1,
        label: label.into(),
        finish_reason: FinishReason::Stop,
        score: None,
        metadata: Default::default(),
    }
}

async fn grader_with(post_process: &str, max_ungraded_fraction: f64, timeout_secs: f64) -> Arc<Grader> {
    let spec = RewardSpec {
        function: "exact".into(),
        post_process: Some(post_process.into()),
        program: ProgramRef { key: "k".into(), sha256: ContentHash::of(b"") },
        timeout_secs,
        max_concurrency: 16,
        max_ungraded_fraction,
        grade_truncated: true,
        egress: Default::default(),
        files: libraries(),
    };
    let program = std::env::current_exe().expect("this program");
    let launcher = Launcher::new(env!("CARGO_BIN_EXE_gym-runtime"));
    let worker = Worker::here(launcher, &program, &std::env::temp_dir(), &spec).expect("a folder");
    Arc::new(Grader::start(worker, spec).await.expect("the worker starts"))
}

/// Hanging and killing calls among good ones: only they are blamed.
async fn the_culprits_alone_are_ungraded() {
    let grader = grader_with("once", 1.0, 2.0).await;
    let labels = ["good", "hangs", "good", "kills", "good", "good", "hangs", "good", "kills", "good"];
    let calls: Vec<_> = labels
        .iter()
        .enumerate()
        .map(|(index, label)| {
            let (grader, sample) = (Arc::clone(&grader), sample(index, label));
            tokio::spawn(async move {
                // Some are in flight when a worker is ended, some come while others are asked alone.
                tokio::time::sleep(Duration::from_millis(40 * index as u64)).await;
                grader.grade(&sample).await.expect("a worker can be had")
            })
        })
        .collect();
    for (label, call) in labels.iter().zip(calls) {
        let Graded { grade, .. } = call.await.expect("no panic");
        match (*label, &grade) {
            ("good", Grade::Graded { reward }) => assert_eq!(*reward, 1.0),
            ("hangs", Grade::Ungraded { reason }) => assert!(reason.contains("longer than 2 s"), "{reason}"),
            ("kills", Grade::Ungraded { reason }) => assert!(reason.contains("while it ran alone"), "{reason}"),
            _ => panic!("{label} was {grade:?}"),
        }
    }
    assert!(grader.worker_restarts() >= 3, "{}", grader.worker_restarts());
}

/// A worker that dies under the group-level function is replaced, and it is asked once more.
async fn post_processing_survives_one_death() {
    let grader = grader_with("once", 1.0, PATIENT).await;
    let mut graded = [graded(Grade::Graded { reward: 1.0 })];
    let rewards = grader.rewards(1, vec![sample(0, "good")], &mut graded).await.expect("rewards");
    assert_eq!(rewards, [Some(0.5)]);
    assert_eq!(grader.worker_restarts(), 1);
}

fn graded(grade: Grade) -> Graded {
    Graded { grade, score: None, metadata: Default::default() }
}

/// What the group-level function has no number for is ungraded, never 0, and counted with the rest.
async fn post_processing_may_leave_samples_ungraded_up_to_the_share() {
    let samples = || (0..4).map(|index| sample(index, "good")).collect::<Vec<_>>();
    let all = || {
        let failed = Grade::Ungraded { reason: "it failed: no".into() };
        let good = || graded(Grade::Graded { reward: 1.0 });
        [good(), good(), graded(failed), good()]
    };
    let mut found = all();
    let rewards =
        grader_with("holes", 0.5, PATIENT).await.rewards(3, samples(), &mut found).await.expect("two of four may be");
    assert_eq!(rewards, [Some(0.25), None, None, Some(0.25)]);
    let Grade::Ungraded { reason } = &found[1].grade else { panic!("{:?}", found[1]) };
    assert_eq!(reason, "post-process function `holes` returned NaN or an infinity");
    assert_eq!((&found[0], &found[2]), (&all()[0], &all()[2]), "the others are as they were");

    let grader = grader_with("holes", 0.25, PATIENT).await;
    let error = grader.rewards(3, samples(), &mut all()).await.expect_err("one too many").to_string();
    let words = "post-process function `holes` left 2 of 4 samples of step 3 ungraded (allowed: 1)";
    assert!(error.starts_with(words), "{error}");
    let mut none = [0; 4].map(|_| graded(Grade::Ungraded { reason: "it failed: no".into() }));
    let error = grader.rewards(3, samples(), &mut none).await.expect_err("too many").to_string();
    assert!(error.starts_with("reward function `exact` left 2 of 4"), "{error}");
}

#[tokio::main]
async fn main() -> ExitCode {
    if std::env::var(ROLE_VARIABLE).is_ok_and(|role| role == REWARD_WORKER) {
        work().await;
        return ExitCode::SUCCESS;
    }
    tokio::join!(
        the_culprits_alone_are_ungraded(),
        post_processing_survives_one_death(),
        post_processing_may_leave_samples_ungraded_up_to_the_share()
    );
    println!("grader: 3 passed");
    ExitCode::SUCCESS
}
