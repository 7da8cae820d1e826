//! This program as the reward worker: [`training_gym_core::worker`]'s protocol on a Unix socket.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use axum::extract::{DefaultBodyLimit, Path as UrlPath, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::net::UnixListener;
use tokio::runtime::Handle;
use training_gym_core::worker::{
    EpisodeReward, Functions, PostProcessReply, PostProcessRequest, RewardReply, StepReply, StepRequest,
};

use super::episodes::Episodes;
use super::{Registry, RewardError, Sample};

/// Serves the registered functions on `socket` until the process is ended.
pub(crate) async fn serve(registry: Registry, socket: &Path) -> std::io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    end_with_parent();
    axum::serve(listener, router(registry)).await
}

fn router(registry: Registry) -> Router {
    Router::new()
        .route("/functions", get(functions))
        .route("/reward/{name}", post(reward))
        .route("/post-process/{name}", post(post_process))
        .route("/environment/{name}/step", post(step))
        .route("/environment/{name}/reward", post(episode_reward))
        // Samples carry whole responses, and a step's worth of them travels at once.
        .layer(DefaultBodyLimit::disable())
        .with_state(Serving { registry, episodes: Episodes::default() })
}

/// What requests are answered with.
#[derive(Clone)]
struct Serving {
    registry: Registry,
    episodes: Episodes,
}

/// Ends this process when the one that started it is gone: it holds the other end of our standard
/// input. (A parent-death signal would follow the *thread* that started us, which may end first.)
/// A standard input that is no pipe says nothing about the parent, and is left alone.
fn end_with_parent() {
    let Ok(input) = std::io::stdin().as_fd().try_clone_to_owned() else { return };
    let mut input = std::fs::File::from(input);
    if !input.metadata().is_ok_and(|meta| meta.file_type().is_fifo() || meta.file_type().is_socket()) {
        return;
    }
    std::thread::spawn(move || {
        let mut ignored = [0; 64];
        while matches!(input.read(&mut ignored), Ok(1..)) {}
        std::process::exit(0);
    });
}

async fn functions(State(Serving { registry, .. }): State<Serving>) -> Json<Functions> {
    Json(registry.functions())
}

type Unknown = (StatusCode, String);

fn unknown(name: &str, known: &[String]) -> Unknown {
    (StatusCode::NOT_FOUND, format!("no function `{name}` is registered; there are: {}", known.join(", ")))
}

async fn reward(
    State(Serving { registry, .. }): State<Serving>,
    UrlPath(name): UrlPath<String>,
    Json(mut sample): Json<Sample>,
) -> Result<Json<RewardReply>, Unknown> {
    let function = registry.reward(&name).ok_or_else(|| unknown(&name, &registry.functions().rewards))?;
    let called = on_its_own_thread(async move || {
        let reward = function.call(&mut sample).await?;
        Ok((reward, sample))
    });
    Ok(Json(graded(called.await)))
}

fn graded(answer: Result<(f64, Sample), Failed>) -> RewardReply {
    match answer {
        Ok((reward, sample)) => RewardReply::Graded {
            reward: finite(reward),
            score: sample.score.and_then(finite),
            metadata: sample.metadata,
        },
        Err(Failed { message, panicked }) => RewardReply::Failed { message, panicked },
    }
}

async fn step(
    State(Serving { registry, episodes }): State<Serving>,
    UrlPath(name): UrlPath<String>,
    Json(request): Json<StepRequest>,
) -> Result<Json<StepReply>, Unknown> {
    let function = registry.environment(&name).ok_or_else(|| unknown(&name, &registry.functions().environments))?;
    let called = on_its_own_thread(async move || episodes.step(function, request).await);
    Ok(Json(match called.await {
        Ok(observation) => StepReply::Observed { observation },
        Err(Failed { message, panicked }) => StepReply::Failed { message, panicked },
    }))
}

async fn episode_reward(
    State(Serving { registry, episodes }): State<Serving>,
    UrlPath(name): UrlPath<String>,
    Json(request): Json<EpisodeReward>,
) -> Result<Json<RewardReply>, Unknown> {
    let function = registry.environment(&name).ok_or_else(|| unknown(&name, &registry.functions().environments))?;
    let called = on_its_own_thread(async move || episodes.reward(function, request).await);
    Ok(Json(graded(called.await)))
}

async fn post_process(
    State(Serving { registry, .. }): State<Serving>,
    UrlPath(name): UrlPath<String>,
    Json(mut samples): Json<PostProcessRequest>,
) -> Result<Json<PostProcessReply>, Unknown> {
    let function = registry.post_process(&name).ok_or_else(|| unknown(&name, &registry.functions().post_processes))?;
    let called = on_its_own_thread(async move || function.call(&mut samples).await);
    Ok(Json(match called.await {
        Ok(rewards) => PostProcessReply::Rewards { rewards: rewards.into_iter().map(finite).collect() },
        Err(Failed { message, panicked }) => PostProcessReply::Failed { message, panicked },
    }))
}

fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

struct Failed {
    message: String,
    panicked: bool,
}

/// Runs a call on a blocking thread of its own, so that a function that blocks or computes for
/// long, async or not, holds up neither the server nor its neighbours.
async fn on_its_own_thread<T, F>(call: F) -> Result<T, Failed>
where
    T: Send + 'static,
    F: AsyncFnOnce() -> Result<T, RewardError> + Send + 'static,
{
    let handle = Handle::current();
    match tokio::task::spawn_blocking(move || handle.block_on(call())).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Failed { message: error.to_string(), panicked: false }),
        Err(error) => {
            let payload = error.try_into_panic().ok();
            let text = payload.as_deref().and_then(|payload| {
                payload
                    .downcast_ref::<&str>()
                    .map(|text| (*text).to_owned())
                    .or_else(|| payload.downcast_ref::<String>().cloned())
            });
            Err(Failed { message: text.unwrap_or_else(|| "a panic without a message".to_owned()), panicked: true })
        }
    }
}
