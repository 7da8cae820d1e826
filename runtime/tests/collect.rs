//! A step's responses through an engine whose queue is smaller than the step.

mod byte_tokenizer;

use std::cell::Cell;
use std::sync::Arc;

use serde_json::json;
use training_gym_core::sample::Prompt;
use training_gym_core::spec::{EngineSpec, RolloutSpec, SamplingSpec};
use training_gym_runtime::batch::{PreparedPrompt, PromptBatch, RolloutBatch};
use training_gym_runtime::model::{LoadOptions, Model, ModelConfig};
use training_gym_runtime::rollout::Engine;
use training_gym_runtime::rollout::collect::{self, Draw, collect};
use training_gym_runtime::text::TextPipeline;

fn model() -> Model {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 512, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "max_position_embeddings": 64, "tie_word_embeddings": true, "initializer_range": 0.3,
    });
    Model::init(ModelConfig::from_json(&config).expect("a model"), LoadOptions::default(), 1)
}

struct Bench {
    spec: RolloutSpec,
    text: TextPipeline,
    prompts: PromptBatch,
}

fn bench(max_queued_requests: usize) -> Bench {
    let folder = tempfile::tempdir().expect("a folder");
    byte_tokenizer::write_byte_tokenizer(folder.path());
    let prompts = (0..5)
        .map(|row| {
            Arc::new(PreparedPrompt {
                row,
                prompt: Prompt::Text("p".into()),
                prompt_ids: (0..4).map(|place| 10 + place + 7 * row as i64).collect(),
                label: String::new(),
                metadata: Default::default(),
            })
        })
        .collect();
    Bench {
        spec: RolloutSpec {
            rollout_batch_size: 5,
            n_samples_per_prompt: 4,
            rollout_max_response_len: 6,
            sampling: SamplingSpec::default(),
            stop: vec![],
            stop_token_ids: (0..128).collect(),
            rollout_num_gpus: 1,
            engine: EngineSpec { max_running_requests: 3, max_queued_requests, ..EngineSpec::default() },
        },
        text: TextPipeline::from_folder(folder.path()).expect("a tokenizer"),
        prompts: PromptBatch { step: 1, prompts },
    }
}

fn drawn(bench: &Bench, engine: &mut Engine) -> Result<RolloutBatch, collect::Error> {
    let draw = Draw { spec: &bench.spec, text: &bench.text, seed: 7, turns: None };
    collect(engine, &bench.prompts, &draw, |_| (), || true)
}

#[test]
fn a_step_larger_than_the_queue_gives_the_same_responses() {
    let (narrow, wide) = (bench(1), bench(64));
    let engine = |bench: &Bench| Engine::new(model(), &bench.spec.engine).expect("an engine");
    let few = drawn(&narrow, &mut engine(&narrow)).expect("20 samples through 3 slots and a queue of 1");
    let all = drawn(&wide, &mut engine(&wide)).expect("20 samples at once");
    assert_eq!(few.rollouts().len(), 20);
    for (few, all) in few.rollouts().iter().zip(all.rollouts()) {
        assert_eq!((few.group_index, &few.response_ids), (few.index / 4, &all.response_ids), "sample {}", few.index);
    }
}

#[test]
fn numbers_that_are_none_are_an_error_and_leave_the_engine_usable() {
    let bench = bench(1);
    let model = model();
    let mut engine = Engine::new(model.share(), &bench.spec.engine).expect("an engine");
    let weight = &model.parameters()[0].1;
    let kept = weight.copy();
    let _ = tch::no_grad(|| weight.shallow_clone().fill_(f64::NAN));
    let error = drawn(&bench, &mut engine).expect_err("no number is finite");
    assert!(matches!(error, collect::Error::NotFinite { step: 1, position: 0, .. }), "{error}");
    assert!(engine.is_idle());
    tch::no_grad(|| weight.shallow_clone().copy_(&kept));
    assert_eq!(drawn(&bench, &mut engine).expect("finite again").rollouts().len(), 20);
}

#[test]
fn whoever_says_stop_is_heard_between_two_tokens() {
    let bench = bench(1);
    let mut engine = Engine::new(model(), &bench.spec.engine).expect("an engine");
    let draw = Draw { spec: &bench.spec, text: &bench.text, seed: 7, turns: None };
    let asked = Cell::new(0);
    let keep_going = || asked.replace(asked.get() + 1) < 2;
    let error = collect(&mut engine, &bench.prompts, &draw, |_| (), keep_going).expect_err("stopped");
    assert!(matches!(error, collect::Error::Stopped));
    assert!(engine.is_idle() && asked.get() == 3);
}
