//! Full queues, and clients that leave.

use serde_json::{Value, json};
use training_gym_core::spec::EngineSpec;

use crate::server::{Certainty, LINE_BREAK, Server, TOKEN};

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
    // Ones whose responses no answer could hold, were they as long as they may be.
    let sampling = json!({"n": 128, "max_new_tokens": 4000});
    let long = json!({"input_ids": too_many[..100], "sampling_params": sampling});
    let top = json!({"input_ids": [[LINE_BREAK]], "return_logprob": true, "top_logprobs_num": 1024,
        "sampling_params": {"n": 9, "max_new_tokens": u32::MAX}});
    let completions = json!({"prompt": too_many[..10], "n": 128, "max_tokens": 4000, "logprobs": 20});
    for (path, body, tokens) in [
        ("/generate", long, 100 * 128 * 4000),
        ("/generate", top.clone(), 9 * 4095 * 1025),
        ("/v1/completions", completions, 10 * 128 * 4000 * 21),
    ] {
        let (status, answer) = server.post(path, &body).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(&format!("up to {tokens} tokens")), "{answer}");
    }
    assert_eq!(server.service.engine().stats().generated_tokens, 0);
    // Alternatives that are not returned are not kept.
    let mut unreturned = top;
    unreturned["return_logprob"] = false.into();
    server.ok("/generate", &unreturned).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_weighed_before_it_is_read() {
    use std::io::Write;
    let server = Server::start(Certainty::Strong).await;
    let address = server.url.strip_prefix("http://").unwrap();
    let body = json!({"prompt": [LINE_BREAK], "max_tokens": 1});
    let mut clients = Vec::new();
    // Eight that say their bodies are the longest, and are in no hurry to send them.
    for _ in 0..8 {
        let mut client = std::net::TcpStream::connect(address).unwrap();
        let head = format!(
            "POST /generate HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {}\r\n\r\n",
            64 << 20
        );
        client.write_all(head.as_bytes()).unwrap();
        clients.push(client);
    }
    let status = async || server.request("/v1/completions", &body).send().await.unwrap();
    let refused = wait_for_status(&status, 503).await;
    assert_eq!(refused.headers()["retry-after"], "1");
    let refused: Value = refused.json().await.unwrap();
    assert!(refused["error"]["message"].as_str().unwrap().contains("536870912 bytes wait"), "{refused}");
    // What has no prompt is answered.
    assert_eq!(server.get("/get_model_info").send().await.unwrap().status(), 200);
    drop(clients);
    wait_for_status(&status, 200).await;
}

/// Asks until the answer has this status; it comes within seconds or never.
async fn wait_for_status(ask: &impl AsyncFn() -> reqwest::Response, status: u16) -> reqwest::Response {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let response = ask().await;
        if response.status() == status {
            return response;
        }
        assert!(std::time::Instant::now() < until, "still {}", response.status());
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
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
