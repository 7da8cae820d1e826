//! The engine against an uncached reading of the same model, and its thread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use tch::{Kind, Tensor};
use training_gym_core::ids::WeightVersion;
use training_gym_core::sample::FinishReason;
use training_gym_core::spec::{EngineSpec, SamplingSpec};

use super::*;
use crate::model::{LoadOptions, Model, ModelConfig};

const VOCABULARY: i64 = 61;

fn config(context: usize) -> ModelConfig {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": context, "tie_word_embeddings": true, "initializer_range": 0.3,
    });
    ModelConfig::from_json(&config).unwrap()
}

fn model(seed: u64) -> Model {
    Model::init(config(160), LoadOptions::default(), seed)
}

fn engine(limits: &EngineSpec) -> Engine {
    Engine::new(model(1), limits).unwrap()
}

/// Some tokens, a different list for each number.
fn prompt(number: usize, length: usize) -> Vec<i64> {
    (0..length).map(|place| ((place * place + 7 * place + 13 * number) as i64) % VOCABULARY).collect()
}

fn greedy(number: usize, length: usize, count: usize) -> Request {
    let sampling = SamplingSpec { temperature: 0.0, ..SamplingSpec::default() };
    Request { sampling, ..Request::new(prompt(number, length), count) }
}

#[derive(Debug, Default, PartialEq)]
struct Response {
    tokens: Vec<i64>,
    logprobs: Vec<f32>,
    reason: Option<FinishReason>,
}

fn take(responses: &mut HashMap<u64, Response>, event: Event) {
    match event {
        Event::Token { id, score } => {
            let response = responses.entry(id.0).or_default();
            assert_eq!(response.reason, None, "nothing follows the end");
            response.tokens.push(score.token);
            response.logprobs.push(score.logprob.unwrap());
        }
        Event::Finished { id, reason } => {
            assert_eq!(responses.entry(id.0).or_default().reason.replace(reason), None, "an end is told once");
        }
        Event::Failed { cause, .. } => panic!("{cause}"),
    }
}

fn run(engine: &mut Engine) -> HashMap<u64, Response> {
    let mut responses = HashMap::new();
    while !engine.is_idle() {
        engine.step().into_iter().for_each(|event| take(&mut responses, event));
    }
    responses
}

fn run_all(limits: &EngineSpec, requests: impl IntoIterator<Item = Request>) -> HashMap<u64, Response> {
    let mut engine = engine(limits);
    for (id, request) in requests.into_iter().enumerate() {
        engine.submit(RequestId(id as u64), request).unwrap();
    }
    run(&mut engine)
}

/// The greedy continuation and its log-probabilities, each token from a full pass.
fn uncached(model: &Model, prompt: &[i64], count: usize) -> Response {
    let _guard = tch::no_grad_guard();
    let mut ids = prompt.to_vec();
    let mut response = Response { reason: Some(FinishReason::Length), ..Response::default() };
    for _ in 0..count {
        let hidden = model.hidden(&Tensor::from_slice(&ids), &[ids.len()]);
        let logprobs = model.logits(&hidden.narrow(0, ids.len() as i64 - 1, 1)).log_softmax(-1, Kind::Float);
        let token = logprobs.argmax(-1, false).int64_value(&[0]);
        response.logprobs.push(logprobs.double_value(&[0, token]) as f32);
        response.tokens.push(token);
        ids.push(token);
    }
    response
}

#[test]
fn greedy_equals_uncached_greedy_however_the_batch_is_made_up() {
    let lengths = [5, 1, 30, 5, 17, 64, 2, 33, 90];
    let reference: Vec<_> =
        lengths.iter().enumerate().map(|(i, &n)| uncached(&model(1), &prompt(i, n), 10 + 3 * i)).collect();
    for (slots, prefill) in [(1, 8192), (2, 8192), (4, 40), (64, 8192), (64, 1)] {
        let limits = EngineSpec { max_running_requests: slots, max_prefill_tokens: prefill, ..EngineSpec::default() };
        let requests = lengths.iter().enumerate().map(|(i, &n)| greedy(i, n, 10 + 3 * i));
        let responses = run_all(&limits, requests);
        for (index, expected) in reference.iter().enumerate() {
            let response = &responses[&(index as u64)];
            assert_eq!(
                response.tokens, expected.tokens,
                "request {index} with {slots} slots, {prefill} prefill tokens"
            );
            assert_eq!(response.reason, expected.reason);
            for (got, wanted) in response.logprobs.iter().zip(&expected.logprobs) {
                assert!((got - wanted).abs() < 1e-4, "request {index}: log-prob {got} for {wanted}");
            }
        }
    }
}

fn sampled(seed: u64) -> Request {
    Request { seed, ..Request::new(prompt(seed as usize % 5, 3 + seed as usize % 7), 12 + seed as usize % 20) }
}

#[test]
fn the_same_submissions_give_the_same_bits() {
    let limits = EngineSpec { max_running_requests: 6, ..EngineSpec::default() };
    let first = run_all(&limits, (0..24).map(sampled));
    assert_eq!(first, run_all(&limits, (0..24).map(sampled)));
    assert!(first.values().all(|response| response.reason == Some(FinishReason::Length)));
}

#[test]
fn a_seed_draws_the_same_response_alone_and_among_others() {
    let limits = EngineSpec { max_running_requests: 6, ..EngineSpec::default() };
    let together = run_all(&limits, (0..24).map(sampled));
    for seed in 0..24 {
        let alone = &run_all(&limits, [sampled(seed)])[&0];
        assert_eq!(alone.tokens, together[&seed].tokens, "seed {seed}");
    }
    // Two seeds at one prompt part ways.
    assert_ne!(together[&0].tokens, together[&5].tokens[..together[&0].tokens.len().min(together[&5].tokens.len())]);
}

#[test]
fn drawn_and_scored_logprobs_agree_and_equal_prompts_are_computed_once() {
    let mut engine = engine(&EngineSpec::default());
    for id in 0..8 {
        engine.submit(RequestId(id), Request { seed: id, ..Request::new(prompt(3, 20), 16) }).unwrap();
    }
    let responses = run(&mut engine);
    assert_eq!(engine.stats().prompt_tokens, 20);
    assert_eq!(engine.stats().generated_tokens, 8 * 16);
    let score = |id: u64| ScoreRequest {
        input_ids: prompt(3, 20).into_iter().chain(responses[&id].tokens.iter().copied()).collect(),
        start_len: 20,
        top_logprobs: 3,
    };
    let scores = engine.score(&(0..8).map(score).collect::<Vec<_>>()).unwrap();
    for (id, scores) in scores.iter().enumerate() {
        let response = &responses[&(id as u64)];
        assert_eq!(scores.iter().map(|score| score.token).collect::<Vec<_>>(), response.tokens);
        for (score, drawn) in scores.iter().zip(&response.logprobs) {
            assert!((score.logprob.unwrap() - drawn).abs() < 1e-4);
            assert_eq!(score.top.len(), 3);
            assert!(score.top[0].1 >= score.top[1].1 && score.top[0].1 >= score.logprob.unwrap());
        }
    }
}

#[test]
fn scoring_starts_where_asked_and_passes_follow_the_list() {
    let mut engine = engine(&EngineSpec { max_prefill_tokens: 30, ..EngineSpec::default() });
    let score = |number: usize, length, start_len| ScoreRequest {
        input_ids: prompt(number, length),
        start_len,
        top_logprobs: 0,
    };
    let list = [score(0, 9, 0), score(1, 20, 4), score(2, 31, 31), score(3, 40, 1), score(4, 1, 0), score(0, 9, 8)];
    let scored = engine.score(&list).unwrap();
    assert_eq!(scored.iter().map(Vec::len).collect::<Vec<_>>(), [9, 16, 0, 39, 1, 1]);
    assert_eq!((scored[0][0].logprob, scored[4][0].logprob), (None, None));
    assert!((scored[0][8].logprob.unwrap() - scored[5][0].logprob.unwrap()).abs() < 1e-5);
    assert_eq!(scored, engine.score(&list).unwrap());
    assert_eq!(engine.score(&[score(0, 9, 10)]), Err(Refusal::StartPastEnd { start_len: 10, length: 9 }));
    assert!(matches!(
        engine.score(&[score(0, 161, 0)]),
        Err(Refusal::TooLong { prompt: 161, context_length: 160, .. })
    ));
}

#[test]
fn responses_end_at_stop_tokens_watchers_length_and_context() {
    struct After(usize);
    impl TokenWatcher for After {
        fn push(&mut self, _: i64) -> bool {
            self.0 -= 1;
            self.0 == 0
        }
    }
    let full = run_all(&EngineSpec::default(), [greedy(1, 10, 30)]).remove(&0).unwrap().tokens;
    let stop = full[7];
    let first = full.iter().position(|&token| token == stop).unwrap() + 1;
    let requests = vec![
        Request { stop_ids: vec![stop], ..greedy(1, 10, 30) },
        Request { watcher: Some(Box::new(After(4))), ..greedy(1, 10, 30) },
        greedy(1, 10, 1),
        greedy(1, 155, 30),
        greedy(1, 159, 30),
        greedy(1, 10, 0),
    ];
    let responses = run_all(&EngineSpec::default(), requests);
    let ends: Vec<_> = (0..6).map(|id| (responses[&id].tokens.len(), responses[&id].reason.unwrap())).collect();
    let (stop, length) = (FinishReason::Stop, FinishReason::Length);
    assert_eq!(ends, [(first, stop), (4, stop), (1, length), (5, length), (1, length), (0, length)]);
    assert_eq!(responses[&1].tokens, full[..4]);
}

#[test]
fn what_cannot_be_done_is_refused_with_its_numbers() {
    let limits = EngineSpec { max_running_requests: 1, max_queued_requests: 2, ..EngineSpec::default() };
    let mut engine = engine(&limits);
    let mut refused = |request| engine.submit(RequestId(9), request).unwrap_err();
    assert_eq!(refused(Request::new(vec![], 1)), Refusal::EmptyPrompt);
    assert_eq!(refused(Request::new(vec![1, 61], 1)), Refusal::UnknownToken { id: 61, vocab_size: 61 });
    assert_eq!(refused(Request::new(vec![-1], 1)), Refusal::UnknownToken { id: -1, vocab_size: 61 });
    let long = refused(greedy(0, 160, 4));
    assert_eq!(long, Refusal::TooLong { prompt: 160, max_new_tokens: 4, context_length: 160 });
    assert!(long.to_string().contains("has 160 tokens, the context has 160"), "{long}");
    for sampling in [
        SamplingSpec { temperature: -1.0, ..SamplingSpec::default() },
        SamplingSpec { temperature: f64::NAN, ..SamplingSpec::default() },
        SamplingSpec { top_p: 0.0, ..SamplingSpec::default() },
        SamplingSpec { top_k: 0, ..SamplingSpec::default() },
        SamplingSpec { min_p: 1.5, ..SamplingSpec::default() },
    ] {
        let refusal = refused(Request { sampling, ..greedy(0, 3, 4) });
        assert!(matches!(refusal, Refusal::Sampling { .. }), "{refusal}");
    }
    for id in 0..3 {
        engine.submit(RequestId(id), greedy(0, 3, 4)).unwrap();
    }
    assert_eq!(engine.submit(RequestId(3), greedy(0, 3, 4)), Err(Refusal::QueueFull { limit: 2 }));
    assert_eq!(run(&mut engine).len(), 3);
    for limits in [
        EngineSpec { max_running_requests: 0, ..EngineSpec::default() },
        EngineSpec { max_prefill_tokens: 0, ..EngineSpec::default() },
        EngineSpec { context_length: Some(161), ..EngineSpec::default() },
        EngineSpec { context_length: Some(1), ..EngineSpec::default() },
    ] {
        let text = Engine::new(model(1), &limits).unwrap_err().to_string();
        assert!(text.starts_with("engine.") && text.contains(": must be "), "{text}");
    }
}

#[test]
fn an_abort_ends_a_request_and_leaves_its_neighbours_alone() {
    let limits = EngineSpec { max_running_requests: 3, ..EngineSpec::default() };
    let requests = || (0..5).map(|number| greedy(number, 4 + number, 20));
    let undisturbed = run_all(&limits, requests());
    let mut engine = engine(&limits);
    for (id, request) in requests().enumerate() {
        engine.submit(RequestId(id as u64), request).unwrap();
    }
    let mut responses = HashMap::new();
    for _ in 0..3 {
        engine.step().into_iter().for_each(|event| take(&mut responses, event));
    }
    for id in [0, 3, 3, 77] {
        engine.abort(RequestId(id));
    }
    while !engine.is_idle() {
        engine.step().into_iter().for_each(|event| take(&mut responses, event));
    }
    assert_eq!((responses[&0].tokens.len(), responses[&0].reason), (4, Some(FinishReason::Abort)));
    assert_eq!((responses[&3].tokens.len(), responses[&3].reason), (0, Some(FinishReason::Abort)));
    for id in [1, 2, 4] {
        assert_eq!(responses[&id].tokens, undisturbed[&id].tokens);
    }
}

#[test]
fn an_in_place_update_is_seen_by_what_runs() {
    let (trained, other) = (model(1), model(2));
    let mut engine = Engine::new(trained.share(), &EngineSpec::default()).unwrap();
    engine.submit(RequestId(0), greedy(0, 6, 12)).unwrap();
    let mut responses = HashMap::new();
    for _ in 0..4 {
        engine.step().into_iter().for_each(|event| take(&mut responses, event));
    }
    let before = responses[&0].tokens.clone();
    tch::no_grad(|| {
        for ((_, to), (_, from)) in trained.parameters().iter().zip(other.parameters()) {
            to.shallow_clone().copy_(from);
        }
    });
    engine.weights_changed(WeightVersion(7));
    assert_eq!(engine.weight_version(), WeightVersion(7));
    while !engine.is_idle() {
        engine.step().into_iter().for_each(|event| take(&mut responses, event));
    }
    let mut seen = prompt(0, 6);
    seen.extend(&before);
    assert_eq!(responses[&0].tokens[before.len()..], uncached(&other, &seen, 12 - before.len()).tokens);
    let wider = Model::init(config(161), LoadOptions::default(), 1);
    let error = engine.replace_weights(wider, WeightVersion(8)).unwrap_err();
    assert!(matches!(error, ReplaceError::OtherArchitecture { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("`max_position_embeddings: 160,` is now `max_position_embeddings: 161,`"), "{error}");
    assert_eq!(engine.weight_version(), WeightVersion(7));
}

async fn collect(mut events: tokio::sync::mpsc::UnboundedReceiver<Event>) -> Response {
    let mut responses = HashMap::new();
    while let Some(event) = events.recv().await {
        take(&mut responses, event);
    }
    responses.into_values().next().unwrap()
}

/// All responses, and the most bytes the cache had at the end of a step.
fn drawn(engine: &mut Engine) -> (HashMap<u64, Response>, usize) {
    for number in 0..11 {
        engine.submit(RequestId(number as u64), greedy(number, 5 + number, 20 + 3 * number)).unwrap();
    }
    let (mut responses, mut most) = (HashMap::new(), 0);
    while !engine.is_idle() {
        engine.step().into_iter().for_each(|event| take(&mut responses, event));
        most = most.max(engine.cache_bytes());
    }
    (responses, most)
}

#[test]
fn a_cache_that_was_given_back_is_made_again_with_the_same_bits() {
    let mut engine = engine(&EngineSpec::default());
    let first = drawn(&mut engine).0;
    let held = engine.cache_bytes();
    assert!(held > 0 && engine.take_cache_peak() >= held && engine.take_cache_peak() == 0);
    engine.submit(RequestId(99), greedy(1, 5, 4)).unwrap();
    engine.step();
    assert_eq!(engine.free_cache(), 0, "a request runs in it");
    while !engine.is_idle() {
        engine.step();
    }
    assert_eq!((engine.free_cache(), engine.cache_bytes(), engine.free_cache()), (held, 0, 0));
    assert_eq!(drawn(&mut engine).0, first, "tokens and log-probabilities");
}

#[test]
fn a_bounded_cache_draws_the_same_tokens_in_less_memory() {
    let limits = EngineSpec { max_running_requests: 8, context_length: Some(80), ..EngineSpec::default() };
    let (expected, unbounded) = drawn(&mut engine(&limits));
    // Keys and values of 3 layers, 2 heads of 8, float32, 80 tokens; and one layer more while it grows.
    let of_one = 3 * 2 * 2 * 8 * 4 * 80 / 3 * 4;
    for (bytes, together) in [(3 * of_one + 5, 3), (of_one, 1), (100 * of_one, 8)] {
        let mut engine = engine(&limits);
        assert_eq!(engine.bound_cache(bytes).unwrap(), together);
        assert_eq!(engine.stats().max_running, together);
        let (found, most) = drawn(&mut engine);
        assert!(most as u64 <= bytes && most > 0, "{most} of {bytes}");
        assert!(together == 8 || most < unbounded, "{most} and {unbounded}");
        for (id, response) in &expected {
            // Other neighbours: sums may differ in their last bits.
            assert_eq!(found[id].tokens, response.tokens, "{id} of {together}");
            for (ours, theirs) in found[id].logprobs.iter().zip(&response.logprobs) {
                assert!((ours - theirs).abs() < 1e-5, "{id} of {together}: {ours} and {theirs}");
            }
        }
    }
    let error = engine(&limits).bound_cache(of_one - 1).unwrap_err().to_string();
    assert!(error.contains("one sequence of 80 tokens takes") && error.contains("gpu_memory_utilization"), "{error}");
}

#[tokio::test]
async fn a_handle_serves_many_callers_at_once() {
    let handle = EngineHandle::spawn(engine(&EngineSpec { max_running_requests: 4, ..EngineSpec::default() }));
    let tasks: Vec<_> = (0..12)
        .map(|number| {
            let handle = handle.clone();
            tokio::spawn(async move { collect(handle.generate(greedy(number, 5, 10)).await.unwrap()).await })
        })
        .collect();
    for (number, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap().tokens, uncached(&model(1), &prompt(number, 5), 10).tokens);
    }
    let list = vec![ScoreRequest { input_ids: prompt(1, 9), start_len: 3, top_logprobs: 0 }];
    assert_eq!(handle.score(list).await.unwrap()[0].len(), 6);
    assert!(matches!(handle.generate(Request::new(vec![], 1)).await, Err(Refusal::EmptyPrompt)));
    assert_eq!(handle.stats().generated_tokens, 120);
}

#[tokio::test]
async fn a_dropped_receiver_aborts_and_new_weights_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let handle = EngineHandle::spawn(engine(&EngineSpec { max_running_requests: 1, ..EngineSpec::default() }));
    let endless = |number| greedy(number, 5, 150);
    drop(handle.generate(endless(0)).await.unwrap());
    drop(handle.generate(endless(1)).await.unwrap());
    assert_eq!(collect(handle.generate(greedy(2, 5, 3)).await.unwrap()).await.tokens.len(), 3);
    let missing = handle.replace_weights(folder.path().join("none"), WeightVersion(1)).await.unwrap_err();
    assert!(matches!(missing, ReplaceError::Model(crate::model::Error::Read { .. })), "{missing}");

    let other = model(2);
    other.save_weights(folder.path()).unwrap();
    let text = json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 160, "tie_word_embeddings": true, "initializer_range": 0.3,
    });
    std::fs::write(folder.path().join("config.json"), text.to_string()).unwrap();
    handle.replace_weights(folder.path().to_owned(), WeightVersion(5)).await.unwrap();
    let response = collect(handle.generate(greedy(3, 5, 8)).await.unwrap()).await;
    assert_eq!(response.tokens, uncached(&other, &prompt(3, 5), 8).tokens);
    assert_eq!(handle.stats().weight_version, WeightVersion(5));
}

#[tokio::test]
async fn a_panic_in_the_thread_is_an_error_of_every_caller() {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    struct Broken;
    impl TokenWatcher for Broken {
        fn push(&mut self, _: i64) -> bool {
            assert!(SEEN.fetch_add(1, Ordering::SeqCst) < 3, "a broken watcher");
            false
        }
    }
    let handle = EngineHandle::spawn(engine(&EngineSpec::default()));
    let mut neighbour = handle.generate(greedy(0, 5, 150)).await.unwrap();
    let mut broken = handle.generate(Request { watcher: Some(Box::new(Broken)), ..greedy(1, 5, 150) }).await.unwrap();
    for events in [&mut neighbour, &mut broken] {
        let mut last = None;
        while let Some(event) = events.recv().await {
            last = Some(event);
        }
        assert!(matches!(&last, Some(Event::Failed { cause, .. }) if cause.contains("a broken watcher")), "{last:?}");
    }
    let refusal = handle.generate(greedy(0, 5, 1)).await.unwrap_err();
    assert!(refusal.to_string().contains("the engine has stopped: a broken watcher"), "{refusal}");
    assert!(handle.score(vec![]).await.is_err());
    assert!(handle.failure().is_some());
}
