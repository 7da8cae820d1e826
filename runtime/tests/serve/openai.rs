//! OpenAI's routes.

use serde_json::{Value, json};

use crate::server::{CHAIN, Certainty, Server, TOKEN};

fn chat(more: Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_splits_reasoning_and_counts_tokens() {
    let server = Server::start(Certainty::Strong).await;
    let answer = server.ok("/v1/chat/completions", &chat(json!({}))).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "🚀好", "reasoning_content": "ré"}));
    assert_eq!(choice["finish_reason"], "stop");
    let prompt = "user: hi\n".len() + 1;
    let total = prompt + CHAIN.len();
    assert_eq!(answer["usage"], json!({"prompt_tokens": prompt, "completion_tokens": 13, "total_tokens": total}));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!("tiny")));

    let raw = server.ok("/v1/chat/completions", &chat(json!({"separate_reasoning": false}))).await;
    assert_eq!(raw["choices"][0]["message"]["content"], "<think>ré</think>🚀好");

    let short = server.ok("/v1/chat/completions", &chat(json!({"max_completion_tokens": 3}))).await;
    assert_eq!(short["choices"][0]["finish_reason"], "length");
    // The third token is half of `é`.
    assert_eq!(short["choices"][0]["message"]["reasoning_content"], "r\u{fffd}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_holds_whole_characters_and_the_same_answer() {
    let server = Server::start(Certainty::Strong).await;
    let more = json!({"stream": true, "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 2});
    let events = server.events("/v1/chat/completions", &chat(more)).await;
    let (mut content, mut reasoning, mut scored) = (Vec::new(), String::new(), 0);
    for event in &events[..events.len() - 1] {
        assert_eq!(event["object"], "chat.completion.chunk");
        let delta = &event["choices"][0]["delta"];
        content.extend(delta["content"].as_str().filter(|text| !text.is_empty()));
        reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
        for entry in event["choices"][0]["logprobs"]["content"].as_array().into_iter().flatten() {
            scored += 1;
            assert!(entry["logprob"].as_f64().unwrap() <= 0.0, "{entry}");
            assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 2);
        }
    }
    assert_eq!((content.as_slice(), reasoning.as_str(), scored), (&["🚀", "好"][..], "ré", CHAIN.len()));
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[events.len() - 1]["choices"], json!([]));
    assert_eq!(events[events.len() - 1]["usage"]["completion_tokens"], 13);
}

#[tokio::test(flavor = "multi_thread")]
async fn seeds_repeat_and_choices_differ() {
    let server = Server::start(Certainty::Weak).await;
    let body =
        json!({"prompt": ["a\n", [11, 10]], "n": 3, "seed": 7, "max_tokens": 12, "logprobs": 1, "ignore_eos": true});
    let (one, two) = (server.ok("/v1/completions", &body).await, server.ok("/v1/completions", &body).await);
    // Log-probabilities may differ in their last bits with what was decoded beside them.
    let texts =
        |answer: &Value| answer["choices"].as_array().unwrap().iter().map(|c| c["text"].clone()).collect::<Vec<_>>();
    assert_eq!(texts(&one), texts(&two));
    let choices = one["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 6);
    assert_ne!(choices[0]["text"], choices[1]["text"]);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        let logprobs = &choice["logprobs"];
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(logprobs[list].as_array().unwrap().len(), 12, "{list}");
        }
    }
    let mut streamed = vec![String::new(); 6];
    let mut body = body;
    body["stream"] = true.into();
    for event in server.events("/v1/completions", &body).await {
        let choice = &event["choices"][0];
        streamed[choice["index"].as_u64().unwrap() as usize].push_str(choice["text"].as_str().unwrap());
    }
    let whole: Vec<&str> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_texts_and_stop_ids_end_a_response() {
    let server = Server::start(Certainty::Strong).await;
    let completion = |more: Value| {
        let mut body = json!({"prompt": "\n", "max_tokens": 40});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let text = |answer: &Value| answer["choices"][0]["text"].as_str().unwrap().to_owned();
    // The stop text begins inside one token and ends inside another; what is before it is kept.
    let answer = server.ok("/v1/completions", &completion(json!({"stop": ["zzz", "é</th"]}))).await;
    assert_eq!((text(&answer).as_str(), &answer["choices"][0]["finish_reason"]), ("<think>r", &json!("stop")));
    assert_eq!(answer["usage"]["completion_tokens"], 5);
    let events = server.events("/v1/completions", &completion(json!({"stop": "é</th", "stream": true}))).await;
    let streamed: String = events.iter().map(text).collect();
    assert_eq!(streamed, "<think>r");
    let answer = server.ok("/v1/completions", &completion(json!({"stop_token_ids": [0x72]}))).await;
    assert_eq!((text(&answer).as_str(), &answer["choices"][0]["finish_reason"]), ("<think>", &json!("stop")));
    let answer = server.ok("/v1/completions", &completion(json!({"ignore_eos": true}))).await;
    assert_eq!((text(&answer).matches('🚀').count(), &answer["choices"][0]["finish_reason"]), (3, &json!("length")));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_token_opens_the_door() {
    let server = Server::start(Certainty::Strong).await;
    let client = reqwest::Client::new();
    let health = client.get(format!("{}/health", server.url)).send().await.unwrap();
    assert_eq!(health.status(), 200);
    for key in [None, Some("wrong"), Some(""), Some("test-token2")] {
        for path in ["/v1/models", "/metrics", "/get_model_info", "/nowhere"] {
            let mut request = client.get(format!("{}{path}", server.url));
            if let Some(key) = key {
                request = request.bearer_auth(key);
            }
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), 401, "{path} with {key:?}");
            let body: Value = response.json().await.unwrap();
            assert_eq!(body["error"]["code"], "invalid_api_key");
            assert!(!body.to_string().contains(TOKEN));
        }
    }
    let models: Value = server.get("/v1/models").send().await.unwrap().json().await.unwrap();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("tiny"), &json!(4096)));
    assert_eq!(server.get("/v1/models/org/tiny").send().await.unwrap().status(), 200);
    assert_eq!(server.get("/v1/models/other").send().await.unwrap().status(), 404);
    assert_eq!(server.get("/nowhere").send().await.unwrap().status(), 404);
    assert_eq!(server.get("/generate").send().await.unwrap().status(), 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_named() {
    let server = Server::start(Certainty::Strong).await;
    let long = json!({"prompt": "a".repeat(5000)});
    for (path, body, status, said) in [
        ("chat/completions", chat(json!({"temperature": 3.5})), 400, "temperature = 3.5: must be in [0, 2]"),
        ("chat/completions", chat(json!({"temperature": "hot"})), 400, "temperature = \"hot\": must be a number"),
        ("chat/completions", chat(json!({"messages": []})), 400, "messages = []"),
        ("chat/completions", chat(json!({"messages": [{"content": "x"}]})), 400, "messages[0].role"),
        (
            "chat/completions",
            chat(json!({"messages": [{"role": "user", "content": "x"}, {"role": "usr", "content": "x"}]})),
            400,
            "messages[1].role: must be one of `system`, `developer`",
        ),
        ("chat/completions", chat(json!({"stop": ""})), 400, "stop = \"\": an empty text"),
        ("completions", json!({"prompt": "a", "stop": ["b", ""]}), 400, "an empty text"),
        ("completions", json!({"prompt": "a", "max_tokens": u64::MAX}), 400, "max_tokens = 18446744073709551615"),
        ("completions", json!({"prompt": "a", "n": 1u64 << 63}), 400, "n = 9223372036854775808: must be in [1, 128]"),
        ("completions", json!({"prompt": "a", "logprobs": u64::MAX}), 400, "must be in [0, 20]"),
        ("chat/completions", chat(json!({"messages": "x"})), 400, "messages = \"x\": must be a list"),
        ("chat/completions", json!({"model": "tiny"}), 400, "messages = (absent)"),
        ("chat/completions", chat(json!({"model": "gpt"})), 404, "`tiny`"),
        ("chat/completions", chat(json!({"top_logprobs": 3})), 400, "needs logprobs = true"),
        ("chat/completions", chat(json!({"logprobs": true, "top_logprobs": 99})), 400, "top_logprobs = 99"),
        ("chat/completions", chat(json!({"stream_options": {}})), 400, "stream_options"),
        ("chat/completions", chat(json!({"response_format": {"type": "json_object"}})), 400, "not supported"),
        ("completions", json!({"prompt": 5}), 400, "prompt = 5"),
        ("completions", json!({"prompt": []}), 400, "prompt = []"),
        ("completions", json!({"prompt": [600]}), 400, "token 600"),
        ("completions", long, 400, "5001 tokens, the context has 4096"),
    ] {
        let (found, answer) = server.post(&format!("/v1/{path}"), &body).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(found, status, "{said}: {answer}");
        assert!(message.contains(said), "`{said}` is not in `{message}`");
        assert!(answer["error"].as_object().unwrap().contains_key("type"), "{answer}");
    }
    let completions = format!("{}/v1/completions", server.url);
    let response = reqwest::Client::new().post(completions).bearer_auth(TOKEN).body("{").send().await.unwrap();
    assert_eq!(response.status(), 400);
    // `developer` is OpenAI's newer name of `system`, which templates know.
    let as_role = |role: &str| chat(json!({"messages": [{"role": role, "content": "x"}]}));
    let (one, two) = (
        server.ok("/v1/chat/completions", &as_role("developer")).await,
        server.ok("/v1/chat/completions", &as_role("system")).await,
    );
    assert_eq!(one["usage"]["prompt_tokens"], two["usage"]["prompt_tokens"]);
    // A field nobody knows is left alone.
    server.ok("/v1/chat/completions", &chat(json!({"user": "me", "metadata": {}, "stop": null}))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_at_once_are_all_answered() {
    let server = Server::start(Certainty::Strong).await;
    let asked = (0..32).map(|seed| {
        let body = chat(json!({"seed": seed}));
        let server = &server;
        async move { server.ok("/v1/chat/completions", &body).await["choices"][0]["message"]["content"].clone() }
    });
    let answers = futures::future::join_all(asked).await;
    assert!(answers.iter().all(|answer| answer == "🚀好"), "{answers:?}");
    let text = server.get("/metrics").send().await.unwrap().text().await.unwrap();
    assert!(text.contains("gym_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 32"), "{text}");
    assert!(text.contains("gym_responses_total{reason=\"stop\"} 32"), "{text}");
}
