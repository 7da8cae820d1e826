//! Full queues, and clients that leave.

use serde_json::{Value, json};
use training_gym_core::spec::EngineSpec;

use crate::server::{Certainty, LINE_BREAK, Server};

fn long(stream: bool) -> Value {
    json!({"prompt": [LINE_BREAK], "max_tokens": 4000, "ignore_eos": true, "stream": stream})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_gives_its_response_up() {
    let server = Server::start(Certainty::Strong).await;
    let mut response = server.request("/v1/completions", &long(true)).send().await.unwrap();
    assert!(response.chunk().await.unwrap().is_some());
    drop(response);
    server.wait_for("the stream is given up", |stats| stats.running == 0).await;
    assert!(server.service.engine().stats().generated_tokens < 4000);

    let before = server.service.engine().stats().generated_tokens;
    let request = server.request("/v1/completions", &long(false)).send();
    let asked = tokio::spawn(request);
    server.wait_for("it runs", |stats| stats.generated_tokens > before).await;
    asked.abort();
    server.wait_for("the request is given up", |stats| stats.running == 0).await;
    assert!(server.service.engine().stats().generated_tokens < before + 4000);
    let text = server.get("/metrics").send().await.unwrap().text().await.unwrap();
    assert!(text.contains("gym_responses_total{reason=\"abort\"} 2"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_says_when_to_come_back() {
    let limits = EngineSpec { max_running_requests: 1, max_queued_requests: 1, ..EngineSpec::default() };
    let server = Server::with_limits(Certainty::Strong, limits).await;
    let running = server.request("/v1/completions", &long(true)).send().await.unwrap();
    server.wait_for("the first runs", |stats| stats.running == 1).await;
    let waiting = server.request("/v1/completions", &long(true)).send().await.unwrap();
    server.wait_for("the second waits", |stats| stats.queued == 1).await;
    let refused = server.request("/v1/completions", &long(true)).send().await.unwrap();
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "1");
    let body: Value = refused.json().await.unwrap();
    assert_eq!(body["error"]["code"], "queue_full", "{body}");
    drop((running, waiting));
    server.wait_for("both are given up", |stats| stats.running + stats.queued == 0).await;
    assert_eq!(server.request("/v1/completions", &json!({"prompt": "\n"})).send().await.unwrap().status(), 200);
}
