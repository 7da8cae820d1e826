use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::json;
use training_gym_core::spec::{EngineSpec, SamplingSpec};

use super::*;
use crate::model::ModelConfig;

fn model(seed: u64) -> Model {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 160, "tie_word_embeddings": true, "initializer_range": 0.3,
    });
    Model::init(ModelConfig::from_json(&config).unwrap(), LoadOptions::default(), seed)
}

fn limits(running: usize, queued: usize, prefill: usize) -> EngineSpec {
    let (max_running_requests, max_queued_requests, max_prefill_tokens) = (running, queued, prefill);
    EngineSpec { max_running_requests, max_queued_requests, max_prefill_tokens, context_length: None }
}

fn spawn(limits: &EngineSpec) -> EngineHandle {
    EngineHandle::spawn(Engine::new(model(1), limits).unwrap())
}

fn greedy(number: usize, count: usize) -> Request {
    let ids = (0..5).map(|place| ((place * place + 13 * number) % 61) as i64).collect();
    Request { sampling: SamplingSpec { temperature: 0.0, ..SamplingSpec::default() }, ..Request::new(ids, count) }
}

async fn tokens(mut events: mpsc::UnboundedReceiver<Event>) -> Vec<i64> {
    let mut tokens = Vec::new();
    while let Some(event) = events.recv().await {
        match event {
            Event::Token { score, .. } => tokens.push(score.token),
            Event::Finished { .. } => return tokens,
            Event::Failed { cause, .. } => panic!("{cause}"),
        }
    }
    panic!("no end")
}

/// A list of many passes, whose tokens are 40 a sequence.
fn long_list(count: usize) -> Vec<ScoreRequest> {
    let ids = |number: usize| (0..40).map(|place| ((place * 7 + number) % 61) as i64).collect();
    (0..count).map(|number| ScoreRequest { input_ids: ids(number), start_len: 1, top_logprobs: 0 }).collect()
}

async fn wait_for(handle: &EngineHandle, what: &str, holds: impl Fn(&EngineStats) -> bool) -> EngineStats {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let stats = handle.stats();
        if holds(&stats) {
            return stats;
        }
        assert!(Instant::now() < until, "{what}: {stats:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_members_of_large_batches_come_in_as_there_is_room_and_singles_still_find_a_place() {
    let (alone, handle) = (spawn(&limits(64, 1024, 8192)), spawn(&limits(2, 4, 8192)));
    let mut expected = HashMap::new();
    for number in 0..20 {
        expected.insert(number, tokens(alone.generate(greedy(number, 12)).await.unwrap()).await);
    }
    let batches: Vec<_> = (0..3)
        .map(|_| {
            let batch = handle.batch().unwrap();
            tokio::spawn(async move {
                let members = (0..20).map(|number| {
                    let batch = batch.clone();
                    async move { tokens(batch.generate(|| greedy(number, 12)).await.unwrap()).await }
                });
                futures::future::join_all(members).await
            })
        })
        .collect();
    wait_for(&handle, "the batches fill their share", |stats| stats.running == 2 && stats.queued >= 1).await;
    // Sixty responses are wanted, and the engine holds six.
    assert_eq!(tokens(handle.generate(greedy(1, 12)).await.unwrap()).await, expected[&1]);
    for batch in batches {
        for (number, tokens) in batch.await.unwrap().into_iter().enumerate() {
            assert_eq!(tokens, expected[&number]);
        }
    }
}

#[tokio::test]
async fn a_full_queue_refuses_single_requests_and_too_many_batches() {
    let handle = spawn(&limits(1, 1, 8192));
    let endless: Vec<_> =
        [handle.generate(greedy(0, 150)).await.unwrap(), handle.generate(greedy(1, 150)).await.unwrap()]
            .into_iter()
            .collect();
    assert_eq!(handle.generate(greedy(2, 3)).await.unwrap_err(), Refusal::QueueFull { limit: 1 });
    // What could never be taken is told as such.
    assert_eq!(handle.generate(Request::new(vec![], 1)).await.unwrap_err(), Refusal::EmptyPrompt);
    let batch = handle.batch().unwrap();
    let others: Vec<_> = (1..1024).map(|_| handle.batch().unwrap()).collect();
    assert_eq!(handle.batch().unwrap_err(), Refusal::QueueFull { limit: 1024 });
    drop(others);
    let member = tokio::spawn(async move { tokens(batch.generate(|| greedy(2, 3)).await.unwrap()).await });
    drop(endless);
    assert_eq!(member.await.unwrap().len(), 3);
    handle.batch().unwrap();
    assert_eq!(tokens(handle.generate(greedy(2, 3)).await.unwrap()).await.len(), 3);
    let limitless = spawn(&limits(1, usize::MAX, 8192));
    assert_eq!(tokens(limitless.generate(greedy(2, 3)).await.unwrap()).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn abandoned_scoring_is_given_up_at_the_next_pass() {
    let handle = spawn(&limits(4, 4, 40));
    let (asked, waiting) = (handle.clone(), handle.clone());
    let asked = tokio::spawn(async move { asked.score(long_list(20_000)).await });
    wait_for(&handle, "scoring begins", |stats| stats.prompt_tokens > 0).await;
    let waiting = tokio::spawn(async move { waiting.score(long_list(20_000)).await });
    wait_for(&handle, "another waits", |stats| stats.scoring == 2).await;
    waiting.abort();
    asked.abort();
    let stats = wait_for(&handle, "both are given up", |stats| stats.scoring == 0).await;
    assert!(stats.prompt_tokens < 20_000 * 40, "it was computed to its end");
    assert_eq!(handle.score(long_list(2)).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn responses_go_on_between_passes_and_the_scores_are_the_same() {
    let limits = limits(4, 1, 80);
    let mut alone = Engine::new(model(1), &limits).unwrap();
    let expected = alone.score(&long_list(400)).unwrap();
    let handle = spawn(&limits);
    let scorer = handle.clone();
    let scored = tokio::spawn(async move { scorer.score(long_list(400)).await.unwrap() });
    wait_for(&handle, "scoring begins", |stats| stats.prompt_tokens > 0).await;
    assert_eq!(tokens(handle.generate(greedy(3, 10)).await.unwrap()).await.len(), 10);
    assert!(handle.stats().prompt_tokens < 400 * 40, "the response waited for the scores");
    assert_eq!(scored.await.unwrap(), expected, "bit for bit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn scoring_is_bounded_and_begins_again_under_new_weights() {
    let handle = spawn(&limits(4, 1, 40));
    let scores = || {
        let handle = handle.clone();
        tokio::spawn(async move { handle.score(long_list(400)).await })
    };
    let (first, second) = (scores(), scores());
    wait_for(&handle, "both are taken", |stats| stats.scoring == 2 && stats.prompt_tokens > 0).await;
    let refusal = handle.score(long_list(1)).await.unwrap_err();
    assert_eq!(refusal, Refusal::ScoringFull { limit: 1 });
    assert!(refusal.to_string().contains("1 scoring requests are waiting already"), "{refusal}");

    let folder = tempfile::tempdir().unwrap();
    model(2).save_weights(folder.path()).unwrap();
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 160, "tie_word_embeddings": true, "initializer_range": 0.3,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    handle.replace_weights(folder.path().to_owned(), WeightVersion(1)).await.unwrap();
    let expected = Engine::new(model(2), &limits(4, 1, 40)).unwrap().score(&long_list(400)).unwrap();
    // The second had not begun, or begins again: in no case a mixture of two models.
    assert_eq!(second.await.unwrap().unwrap(), expected);
    let first = first.await.unwrap().unwrap();
    let old = Engine::new(model(1), &limits(4, 1, 40)).unwrap().score(&long_list(400)).unwrap();
    assert!(first == expected || first == old, "a mixture of two models");
}
