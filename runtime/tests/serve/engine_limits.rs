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

#[tokio::test(flavor = "multi_thread")]
async fn batches_larger_than_the_queue_are_fed_and_answered_in_order() {
    let limits = EngineSpec { max_running_requests: 2, max_queued_requests: 3, ..EngineSpec::default() };
    let server = Server::with_limits(Certainty::Strong, limits).await;
    // Prompts of 1 to 40 tokens: an answer tells which it belongs to.
    let prompts: Vec<Vec<i64>> = (1..=40).map(|length| vec![LINE_BREAK; length]).collect();
    let generate = json!({"input_ids": prompts, "sampling_params": {"temperature": 0, "max_new_tokens": 3}});
    let completions = json!({"prompt": prompts[..20], "n": 2, "temperature": 0, "max_tokens": 3});
    let chat = json!({"messages": [{"role": "user", "content": "hi"}], "n": 30, "temperature": 0});
    let (one, two, three, four) = tokio::join!(
        server.ok("/generate", &generate),
        server.ok("/generate", &generate),
        server.ok("/v1/completions", &completions),
        server.ok("/v1/chat/completions", &chat),
    );
    for replies in [one, two] {
        let lengths: Vec<u64> =
            replies.as_array().unwrap().iter().map(|r| r["meta_info"]["prompt_tokens"].as_u64().unwrap()).collect();
        assert_eq!(lengths, (1..=40).collect::<Vec<_>>());
    }
    assert_eq!(three["choices"].as_array().unwrap().len(), 40);
    assert_eq!(three["usage"]["completion_tokens"], 120);
    let choices = four["choices"].as_array().unwrap();
    assert!(choices.len() == 30 && choices.iter().all(|choice| choice["message"]["content"] == "🚀好"), "{choices:?}");

    let mut streamed = generate;
    streamed["stream"] = true.into();
    let mut ended: Vec<u64> = server
        .events("/generate", &streamed)
        .await
        .iter()
        .filter(|event| !event["meta_info"]["finish_reason"].is_null())
        .map(|event| event["index"].as_u64().unwrap())
        .collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..40).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_can_never_fit_is_refused_whole_with_its_numbers() {
    let server = Server::start(Certainty::Strong).await;
    let too_many = vec![[LINE_BREAK]; 600];
    let (status, answer) =
        server.post("/generate", &json!({"input_ids": too_many, "sampling_params": {"n": 128}})).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(status == 400 && message.contains("76800 responses") && message.contains("65536"), "{answer}");
    let (status, answer) = server.post("/v1/completions", &json!({"prompt": too_many, "n": 128})).await;
    assert!(status == 400 && answer["error"]["message"].as_str().unwrap().contains("76800"), "{answer}");
    // The last member is impossible: none is drawn.
    let (status, answer) = server.post("/generate", &json!({"input_ids": [[1], [2], [600]]})).await;
    assert!(status == 400 && answer["error"]["message"].as_str().unwrap().contains("token 600"), "{answer}");
    // One whose scores no answer could hold.
    let body = json!({"input_ids": vec![1; 4000], "return_logprob": true, "logprob_start_len": 0,
        "top_logprobs_num": 1024, "sampling_params": {"n": 128, "max_new_tokens": 0}});
    let (status, answer) = server.post("/generate", &body).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(status == 400 && message.contains("524800000 log-prob") && message.contains("33554432"), "{answer}");
    assert_eq!(server.service.engine().stats().generated_tokens, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_scoring_holds_up_nobody() {
    let limits = EngineSpec { max_queued_requests: 0, max_prefill_tokens: 64, ..EngineSpec::default() };
    let server = Server::with_limits(Certainty::Strong, limits).await;
    let score = |sequences: usize| {
        json!({"input_ids": vec![vec![LINE_BREAK; 64]; sequences], "return_logprob": true, "logprob_start_len": 0,
               "sampling_params": {"max_new_tokens": 0}})
    };
    let asked = tokio::spawn(server.request("/generate", &score(20_000)).send());
    server.wait_for("scoring begins", |stats| stats.prompt_tokens > 0).await;
    let refused = server.request("/generate", &score(1)).send().await.unwrap();
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    let body: Value = refused.json().await.unwrap();
    assert!(body["error"]["message"].as_str().unwrap().contains("0 scoring requests are waiting"), "{body}");
    // A response goes on between its passes.
    server.ok("/generate", &json!({"input_ids": [LINE_BREAK], "sampling_params": {"max_new_tokens": 5}})).await;
    assert_eq!(server.service.engine().stats().scoring, 1);
    asked.abort();
    server.wait_for("scoring is given up", |stats| stats.scoring == 0).await;
    assert!(server.service.engine().stats().prompt_tokens < 20_000 * 64);
    server.ok("/generate", &score(1)).await;
}
