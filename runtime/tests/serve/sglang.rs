//! SGLang's routes.

use serde_json::{Value, json};

use crate::server::{CHAIN, Certainty, LINE_BREAK, Server};

fn numbers(logprobs: &Value) -> Vec<f64> {
    logprobs.as_array().unwrap().iter().map(|item| item[0].as_f64().unwrap_or(f64::NAN)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_has_sglangs_shape() {
    let server = Server::start(Certainty::Strong).await;
    let body = json!({"text": "a\n", "sampling_params": {"temperature": 0, "max_new_tokens": 20}, "return_logprob": true,
        "logprob_start_len": 0, "top_logprobs_num": 2});
    let reply = server.ok("/generate", &body).await;
    assert_eq!(reply["text"], "<think>ré</think>🚀好");
    assert_eq!(reply["output_ids"], json!(CHAIN));
    let meta = &reply["meta_info"];
    assert_eq!(meta["finish_reason"], json!({"type": "stop", "matched": 510}));
    assert_eq!((&meta["prompt_tokens"], &meta["completion_tokens"]), (&json!(3), &json!(13)));
    assert_eq!(meta["input_token_logprobs"][0], json!([null, 511, null]));
    let ids: Vec<&Value> = meta["input_token_logprobs"].as_array().unwrap().iter().map(|item| &item[1]).collect();
    assert_eq!(ids, [511, 97, 10]);
    assert_eq!(meta["output_token_logprobs"].as_array().unwrap().len(), 13);
    assert_eq!(meta["input_top_logprobs"][0], Value::Null);
    assert_eq!(meta["input_top_logprobs"][1].as_array().unwrap().len(), 2);
    assert_eq!(meta["output_top_logprobs"][0][0][1], 508);

    let plain = json!({"input_ids": [LINE_BREAK], "sampling_params": {"max_new_tokens": 2}});
    let reply = server.ok("/generate", &plain).await;
    assert_eq!(reply["meta_info"]["finish_reason"], json!({"type": "length", "length": 2}));
    assert!(reply["meta_info"].get("output_token_logprobs").is_none());

    let mut body = plain;
    body["input_ids"] = json!([[LINE_BREAK], [97, LINE_BREAK]]);
    body["sampling_params"]["n"] = 2.into();
    body["return_logprob"] = true.into();
    let replies = server.ok("/generate", &body).await;
    assert_eq!(replies.as_array().unwrap().len(), 4);
    assert_eq!(replies[3]["meta_info"]["input_token_logprobs"], json!([[null, LINE_BREAK, null]]));

    let stream = json!({"input_ids": [LINE_BREAK], "sampling_params": {"stop": "</think>", "max_new_tokens": 99}, "stream": true});
    let events = server.events("/generate", &stream).await;
    let last = events.last().unwrap();
    assert_eq!(
        (&last["text"], &last["meta_info"]["finish_reason"]["matched"]),
        (&json!("<think>ré"), &json!("</think>"))
    );
    assert_eq!(events[0]["meta_info"]["finish_reason"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn scoring_agrees_with_what_was_drawn() {
    let server = Server::start(Certainty::Weak).await;
    let body = json!({"input_ids": [[5, LINE_BREAK], [9, 8, 7, LINE_BREAK]], "return_logprob": true,
        "sampling_params": {"max_new_tokens": 24, "ignore_eos": true, "sampling_seed": 3}});
    let drawn = server.ok("/generate", &body).await;
    let mut sequences = Vec::new();
    for (prompt, reply) in body["input_ids"].as_array().unwrap().iter().zip(drawn.as_array().unwrap()) {
        let mut ids = prompt.as_array().unwrap().clone();
        ids.extend(reply["output_ids"].as_array().unwrap().clone());
        sequences.push(ids);
    }
    let score = json!({"input_ids": sequences, "sampling_params": {"max_new_tokens": 0, "temperature": 0}, "return_logprob": true,
        "logprob_start_len": [1, 3]});
    let scored = server.ok("/generate", &score).await;
    for (drawn, scored) in drawn.as_array().unwrap().iter().zip(scored.as_array().unwrap()) {
        let drawn = numbers(&drawn["meta_info"]["output_token_logprobs"]);
        let found = &scored["meta_info"]["input_token_logprobs"];
        assert_eq!(found[0], json!([null, LINE_BREAK, null]));
        let scored = numbers(found);
        assert_eq!(scored.len(), 25);
        for (a, b) in drawn.iter().zip(&scored[1..]) {
            assert!((a - b).abs() < 1e-4, "{a} and {b}");
        }
        let (a, b): (f64, f64) = (drawn.iter().sum(), scored[1..].iter().sum());
        assert!(a < -24.0 && (a - b).abs() < 1e-3, "{a} and {b}");
    }

    // Each of `n` responses of no token is the prompt's scores.
    let mut thrice = score.clone();
    thrice["sampling_params"]["n"] = 3.into();
    let replies = server.ok("/generate", &thrice).await;
    assert_eq!(replies.as_array().unwrap().len(), 6);
    for (index, reply) in replies.as_array().unwrap().iter().enumerate() {
        let meta = &reply["meta_info"];
        assert_eq!(meta["input_token_logprobs"], scored[index / 3]["meta_info"]["input_token_logprobs"]);
    }
    thrice["input_ids"] = sequences[0].clone().into();
    thrice["logprob_start_len"] = 1.into();
    assert_eq!(server.ok("/generate", &thrice).await.as_array().unwrap().len(), 3);

    // The same request gives the same bits while others run.
    let busy = json!({"input_ids": [LINE_BREAK], "sampling_params": {"max_new_tokens": 300, "ignore_eos": true}});
    let others = futures::future::join_all((0..4).map(|_| server.ok("/generate", &busy)));
    let again = async {
        server.wait_for("others run", |stats| stats.running > 0).await;
        server.ok("/generate", &score).await
    };
    let (_, again) = futures::future::join(others, again).await;
    for (one, two) in scored.as_array().unwrap().iter().zip(again.as_array().unwrap()) {
        assert_eq!(one["meta_info"]["input_token_logprobs"], two["meta_info"]["input_token_logprobs"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_named() {
    let server = Server::start(Certainty::Strong).await;
    let ids = json!([1, 2, 3]);
    for (body, said) in [
        (json!({}), "exactly one of `input_ids` and `text`"),
        (json!({"text": "a", "input_ids": ids}), "exactly one"),
        (json!({"input_ids": [1, "a"]}), "input_ids"),
        (json!({"input_ids": []}), "empty"),
        (json!({"input_ids": ids, "logprob_start_len": 3}), "logprob_start_len = 3: must be -1, or in [0, 3)"),
        (json!({"input_ids": [[1], [2]], "logprob_start_len": [0]}), "a list of 2"),
        (
            json!({"input_ids": ids, "logprob_start_len": 1u64 << 63}),
            "logprob_start_len = 9223372036854775808: must be",
        ),
        (json!({"input_ids": ids, "logprob_start_len": i64::MIN}), "logprob_start_len = -9223372036854775808: must"),
        (json!({"input_ids": ids, "top_logprobs_num": u64::MAX}), "top_logprobs_num = 18446744073709551615: must be"),
        (
            json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 1u64 << 63}}),
            "sampling_params.max_new_tokens = 9223372036854775808: must be ≥ 0",
        ),
        (json!({"input_ids": ids, "sampling_params": {"stop": ""}}), "sampling_params.stop = \"\": an empty text"),
        (json!({"input_ids": [1, 1u64 << 63]}), "input_ids = [1,9223372036854775808]: must be a list of ids"),
        (json!({"input_ids": ids, "sampling_params": {"top_p": 2}}), "sampling_params.top_p = 2: must be in (0, 1]"),
        (json!({"input_ids": ids, "sampling_params": {"max_new_tokens": -1}}), "sampling_params.max_new_tokens"),
        (json!({"input_ids": ids, "sampling_params": []}), "sampling_params"),
        (json!({"input_ids": [0, -5]}), "token -5"),
        (
            json!({"input_ids": vec![1; 4097], "sampling_params": {"max_new_tokens": 0}, "return_logprob": true,
            "logprob_start_len": 0}),
            "4097 tokens, the context has 4096",
        ),
        (json!({"input_ids": ids, "sampling_params": {"regex": "a*"}}), "not supported"),
    ] {
        let (status, answer) = server.post("/generate", &body).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert_eq!(status, 400, "{said}: {answer}");
        assert!(message.contains(said), "`{said}` is not in `{message}`");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_are_replaced_from_disk_or_not_at_all() {
    let server = Server::start(Certainty::Weak).await;
    let other = Server::start(Certainty::Strong).await;
    let generate = json!({"input_ids": [LINE_BREAK], "sampling_params": {"max_new_tokens": 20}});
    let update = json!({"model_path": other.folder.path(), "weight_version": "7"});
    assert_eq!(server.ok("/update_weights_from_disk", &update).await["success"], true);
    let reply = server.ok("/generate", &generate).await;
    assert_eq!((&reply["output_ids"], &reply["meta_info"]["weight_version"]), (&json!(CHAIN), &json!("7")));
    let info: Value = server.get("/get_model_info").send().await.unwrap().json().await.unwrap();
    assert_eq!(info["model_path"], json!(other.folder.path()));
    assert_eq!((&info["weight_version"], &info["eos_token_ids"]), (&json!("7"), &json!([510])));
    assert_eq!(info["vocab_sha256"].as_str().unwrap().len(), 64);

    let (status, answer) = server.post("/update_weights_from_disk", &json!({"model_path": "/nowhere"})).await;
    assert_eq!((status, &answer["success"]), (400, &json!(false)), "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("/nowhere"), "{answer}");
    assert_eq!(server.ok("/generate", &generate).await["output_ids"], json!(CHAIN));
    let next = server.ok("/update_weights_from_disk", &json!({"model_path": other.folder.path()})).await;
    assert!(next["message"].as_str().unwrap().contains("version 8"), "{next}");
    for last in [json!(u64::MAX), json!("18446744073709551615")] {
        let update = json!({"model_path": other.folder.path(), "weight_version": last});
        assert!(server.ok("/update_weights_from_disk", &update).await["success"].as_bool().unwrap());
    }
    let (status, answer) = server.post("/update_weights_from_disk", &json!({"model_path": other.folder.path()})).await;
    assert!(status == 400 && answer["error"]["param"] == "weight_version", "{answer}");
    let flushed = server.request("/flush_cache", &json!({})).send().await.unwrap();
    assert_eq!(flushed.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_at_once_come_one_after_another() {
    let server = Server::start(Certainty::Weak).await;
    let others = [Server::start(Certainty::Strong).await, Server::start(Certainty::Weak).await];
    let update = |at: usize| json!({"model_path": others[at % 2].folder.path()});
    let answers = futures::future::join_all((0..6).map(|at| updated(&server, update(at)))).await;
    let mut versions: Vec<(u64, String)> = answers
        .iter()
        .map(|message| {
            let (folder, version) = message.split_once(" in place, version ").unwrap();
            (version.parse().unwrap(), folder.strip_prefix("weights of ").unwrap().to_owned())
        })
        .collect();
    versions.sort();
    assert_eq!(versions.iter().map(|(version, _)| *version).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    let info: Value = server.get("/get_model_info").send().await.unwrap().json().await.unwrap();
    assert_eq!((&info["weight_version"], &info["model_path"]), (&json!("6"), &json!(versions[5].1)));
}

async fn updated(server: &Server, update: Value) -> String {
    let answer = server.ok("/update_weights_from_disk", &update).await;
    answer["message"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_swaps_the_weights_of_a_server_that_has_no_token() {
    let server = Server::open(Certainty::Weak).await;
    let other = Server::start(Certainty::Strong).await;
    for path in [other.folder.path().to_str().unwrap(), "/etc/passwd", "/nowhere"] {
        let (status, answer) = server.post("/update_weights_from_disk", &json!({"model_path": path})).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 403 && message.contains("has no token") && !message.contains(path), "{answer}");
    }
    let info: Value = server.get("/get_model_info").send().await.unwrap().json().await.unwrap();
    assert_eq!((&info["weight_version"], &info["model_path"]), (&json!("0"), &json!(server.folder.path())));
}
