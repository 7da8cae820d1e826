//! The grader against a worker that hangs and dies on demand.
//!
//! This executable is both sides: started in the worker's role it answers over its socket. So it
//! has no test harness; it prints what one would.

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
use training_gym_runtime::score::reward::{Graded, Grader};
use training_gym_runtime::score::worker::Worker;

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

async fn work() {
    let functions = || async { Json(Functions { rewards: vec!["exact".into()], post_processes: vec!["once".into()] }) };
    let app = Router::new()
        .route("/functions", get(functions))
        .route("/reward/exact", post(reward))
        .route("/post-process/once", post(once));
    let socket = std::env::var(SOCKET_VARIABLE).expect("a socket");
    let listener = tokio::net::UnixListener::bind(socket).expect("a free socket");
    axum::serve(listener, app).await.expect("the worker serves");
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

async fn grader() -> Arc<Grader> {
    let spec = RewardSpec {
        function: "exact".into(),
        post_process: Some("once".into()),
        program: ProgramRef { key: "k".into(), sha256: ContentHash::of(b"") },
        timeout_secs: 1.0,
        max_concurrency: 16,
        max_ungraded_fraction: 1.0,
        grade_truncated: true,
    };
    let worker = Worker::new(&std::env::current_exe().expect("this program")).expect("a folder");
    Arc::new(Grader::start(worker, spec).await.expect("the worker starts"))
}

/// Hanging and killing calls among good ones: only they are blamed.
async fn the_culprits_alone_are_ungraded() {
    let grader = grader().await;
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
            ("hangs", Grade::Ungraded { reason }) => assert!(reason.contains("longer than 1 s"), "{reason}"),
            ("kills", Grade::Ungraded { reason }) => assert!(reason.contains("while it ran alone"), "{reason}"),
            _ => panic!("{label} was {grade:?}"),
        }
    }
    assert!(grader.worker_restarts() >= 3, "{}", grader.worker_restarts());
}

/// A worker that dies under the group-level function is replaced, and it is asked once more.
async fn post_processing_survives_one_death() {
    let grader = grader().await;
    let graded = vec![Graded { grade: Grade::Graded { reward: 1.0 }, score: None, metadata: Default::default() }];
    let rewards = grader.rewards(1, vec![sample(0, "good")], &graded).await.expect("rewards");
    assert_eq!(rewards, [Some(0.5)]);
    assert_eq!(grader.worker_restarts(), 1);
}

#[tokio::main]
async fn main() -> ExitCode {
    if std::env::var(ROLE_VARIABLE).is_ok_and(|role| role == REWARD_WORKER) {
        work().await;
        return ExitCode::SUCCESS;
    }
    tokio::join!(the_culprits_alone_are_ungraded(), post_processing_survives_one_death());
    println!("grader: 2 passed");
    ExitCode::SUCCESS
}
