//! The client against a server that misbehaves in each way once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::extract::{Json, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use training_gym_core::ids::WeightVersion;
use training_gym_core::sample::{FinishReason, Prompt};

use super::*;
use crate::batch::PreparedPrompt;

#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Good,
    BusyOnce,
    Refuses,
    ShiftsIds,
    Null,
    OtherVocabulary,
    HidesInfo,
    NoInfo,
}

struct Server {
    manner: Manner,
    asked: AtomicU32,
}

async fn generate(State(server): State<Arc<Server>>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let asked = server.asked.fetch_add(1, Ordering::Relaxed);
    assert_eq!(headers["authorization"], "Bearer s3cret");
    match server.manner {
        Manner::BusyOnce if asked == 0 => {
            return (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "0")], "queue is full").into_response();
        }
        Manner::Refuses => return (StatusCode::UNAUTHORIZED, "no").into_response(),
        _ => {}
    }
    let shift = i64::from(server.manner == Manner::ShiftsIds);
    let sequences = body["input_ids"].as_array().expect("a batch");
    // One start for all, or one a sequence.
    let starts = match &body["logprob_start_len"] {
        Value::Array(starts) => starts.clone(),
        start => vec![start.clone(); sequences.len()],
    };
    let replies: Vec<Value> = sequences
        .iter()
        .zip(starts)
        .map(|(ids, start)| {
            let start = start.as_u64().expect("a position") as usize;
            let items: Vec<Value> = ids.as_array().expect("ids")[start..]
                .iter()
                .enumerate()
                .map(|(place, id)| {
                    let id = id.as_i64().expect("an id");
                    let null = place == 0 || (server.manner == Manner::Null && place == 2);
                    let logprob = if null { Value::Null } else { json!(-0.5 * id as f64) };
                    json!([logprob, id + shift, null])
                })
                .collect();
            json!({"text": "", "meta_info": {"input_token_logprobs": items}})
        })
        .collect();
    Json(replies).into_response()
}

async fn info(State(server): State<Arc<Server>>) -> Response {
    let vocabulary = match server.manner {
        Manner::HidesInfo => return (StatusCode::FORBIDDEN, "not for you").into_response(),
        Manner::NoInfo => return StatusCode::NOT_FOUND.into_response(),
        Manner::OtherVocabulary => "other",
        _ => "same",
    };
    Json(json!({"model_path": "t", "is_generation": true, "eos_token_ids": [2], "vocab_sha256": vocabulary}))
        .into_response()
}

async fn teacher(manner: Manner) -> (Teacher, Arc<Server>) {
    let server = Arc::new(Server { manner, asked: AtomicU32::new(0) });
    let app = Router::new()
        .route("/generate", post(generate))
        .route("/get_model_info", get(info))
        .with_state(Arc::clone(&server));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/generate", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let spec = TeacherSpec {
        url,
        token: None,
        dialect: TeacherDialect::Sglang,
        opd_kl_coef: 1.0,
        log_ratio_clamp: None,
        max_concurrency: 2,
        batch_size: 4,
        timeout_secs: 5.0,
        top_k: None,
    };
    (Teacher::new(spec, Some("s3cret".to_owned())).unwrap(), server)
}

fn rollout(index: u64, response_ids: Vec<i64>) -> Rollout {
    let prompt = PreparedPrompt {
        row: 0,
        prompt: Prompt::Text("p".into()),
        prompt_ids: vec![7, 8],
        label: String::new(),
        metadata: Default::default(),
    };
    Rollout {
        index,
        group_index: 0,
        prompt: Arc::new(prompt),
        rollout_logprobs: vec![-1.0; response_ids.len()],
        response_mask: vec![true; response_ids.len()],
        response_ids,
        response: String::new(),
        finish_reason: FinishReason::Stop,
        weight_version: WeightVersion(0),
        episode: None,
    }
}

fn student() -> ModelInfo {
    ModelInfo {
        model_path: "s".into(),
        is_generation: true,
        eos_token_ids: Some(vec![2]),
        vocab_sha256: Some("same".into()),
        context_length: None,
        weight_version: None,
    }
}

#[tokio::test]
async fn a_batch_is_scored_in_order_and_a_busy_server_is_asked_again() {
    let (teacher, server) = teacher(Manner::BusyOnce).await;
    let scored = teacher.score(&[rollout(0, vec![3, 2]), rollout(1, vec![4])]).await.unwrap();
    let logprobs: Vec<Vec<f32>> = scored.into_iter().map(|answer| answer.logprobs).collect();
    assert_eq!(logprobs, [vec![-1.5, -1.0], vec![-2.0]]);
    assert_eq!(server.asked.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_refusal_is_not_repeated_and_never_shows_the_token() {
    let (teacher, server) = teacher(Manner::Refuses).await;
    let error = teacher.score(&[rollout(0, vec![3])]).await.unwrap_err().to_string();
    assert!(error.contains("401") && error.contains("credential"), "{error}");
    assert!(!error.contains("s3cret"));
    assert_eq!(server.asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn wrong_answers_are_errors_that_name_the_sample() {
    for (manner, words) in [(Manner::ShiftsIds, "position"), (Manner::Null, "null")] {
        let (teacher, _) = teacher(manner).await;
        let error = teacher.score(&[rollout(5, vec![3, 4, 2])]).await.unwrap_err().to_string();
        assert!(error.contains("sample 5") && error.contains(words), "{error}");
    }
}

#[tokio::test]
async fn the_probe_passes_a_good_teacher_and_names_another_vocabulary() {
    let probe = [5, 6, 7, 8, 5, 6, 7, 8];
    let (good, _) = teacher(Manner::Good).await;
    assert_eq!(good.probe(&student(), &probe).await.unwrap(), Vec::<String>::new());
    let (other, _) = teacher(Manner::OtherVocabulary).await;
    let error = other.probe(&student(), &probe).await.unwrap_err().to_string();
    assert!(error.contains("vocabular"), "{error}");
}

#[tokio::test]
async fn only_a_missing_route_means_that_the_server_does_not_say() {
    let probe = [5, 6, 7, 8, 5, 6, 7, 8];
    let (silent, _) = teacher(Manner::NoInfo).await;
    silent.probe(&student(), &probe).await.unwrap();
    let (hides, _) = teacher(Manner::HidesInfo).await;
    let error = hides.probe(&student(), &probe).await.unwrap_err().to_string();
    assert!(error.contains("/get_model_info") && error.contains("403"), "{error}");
}

#[test]
fn loopback_hosts_are_asked_without_a_proxy() {
    for url in ["http://127.0.0.1:3/generate", "http://localhost/generate", "http://[::1]:80/x", "http://127.8.9.1/"] {
        assert!(is_loopback(url), "{url}");
    }
    for url in ["http://teacher/generate", "http://10.0.0.1/generate", "https://localhost.example/x", "nonsense"] {
        assert!(!is_loopback(url), "{url}");
    }
}
