//! Responses of several turns through an engine: what is drawn, what is told, and that an environment's
//! pace decides nothing.

mod byte_tokenizer;

use std::sync::Arc;

use serde_json::{Map, json};
use tch::{Kind, Tensor, no_grad};
use training_gym_core::episode::{EpisodeEnd, Observation};
use training_gym_core::sample::{FinishReason, Prompt};
use training_gym_core::spec::{EngineSpec, EnvironmentSpec, RolloutSpec, SamplingSpec, ToolFormat};
use training_gym_runtime::batch::{PreparedPrompt, PromptBatch, Rollout, RolloutBatch};
use training_gym_runtime::model::{LoadOptions, Model, ModelConfig};
use training_gym_runtime::rollout::Engine;
use training_gym_runtime::rollout::collect::{Draw, Error, collect_in};
use training_gym_runtime::rollout::world::{Answer, Question, Turns, World};
use training_gym_runtime::text::TextPipeline;

fn model() -> Model {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 512, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "max_position_embeddings": 128, "tie_word_embeddings": true, "initializer_range": 0.3,
    });
    Model::init(ModelConfig::from_json(&config).expect("a model"), LoadOptions::default(), 1)
}

/// Answers by a function of sample and turn; hands the answers back in order, or the other way round.
struct Scripted {
    answer: fn(u64, usize) -> Answer,
    backwards: bool,
    waiting: Vec<(u64, Answer)>,
    asked: Vec<Question>,
}

impl World for Scripted {
    fn finished(&mut self, _rollout: &Rollout) {}

    fn keep_going(&self) -> bool {
        true
    }

    fn ask(&mut self, question: Question) {
        self.waiting.push((question.index, (self.answer)(question.index, question.turns.len())));
        self.asked.push(question);
    }

    fn answers(&mut self) -> Result<Vec<(u64, Answer)>, Error> {
        let mut answers = std::mem::take(&mut self.waiting);
        if self.backwards {
            answers.reverse();
        }
        Ok(answers)
    }
}

fn played(answer: fn(u64, usize) -> Answer, backwards: bool, max_response: usize) -> (RolloutBatch, Vec<Question>) {
    let folder = tempfile::tempdir().expect("a folder");
    byte_tokenizer::write_byte_tokenizer(folder.path());
    let text = TextPipeline::from_folder(folder.path()).expect("a tokenizer");
    let prompts = (0..3)
        .map(|row| {
            Arc::new(PreparedPrompt {
                row,
                prompt: Prompt::Text("p".into()),
                prompt_ids: (0..4).map(|place| 10 + place + 7 * row as i64).collect(),
                label: String::new(),
                metadata: Map::new(),
            })
        })
        .collect();
    let spec = RolloutSpec {
        rollout_batch_size: 3,
        n_samples_per_prompt: 2,
        rollout_max_response_len: max_response,
        sampling: SamplingSpec::default(),
        stop: vec![],
        stop_token_ids: (0..256).collect(),
        rollout_num_gpus: 1,
        engine: EngineSpec { max_running_requests: 4, max_queued_requests: 1, ..EngineSpec::default() },
    };
    let environment = EnvironmentSpec {
        max_assistant_turns: 3,
        max_tool_response_length: 8,
        tool_format: ToolFormat::Hermes,
        tools: Vec::new(),
    };
    let kwargs = Map::new();
    let turns = Some(Turns { spec: &environment, kwargs: &kwargs });
    let draw = Draw { spec: &spec, text: &text, seed: 7, turns };
    let mut engine = Engine::new(model(), &spec.engine).expect("an engine");
    let mut world = Scripted { answer, backwards, waiting: Vec::new(), asked: Vec::new() };
    let batch = PromptBatch { step: 1, prompts };
    let drawn = collect_in(&mut engine, &batch, &draw, &mut world).expect("a batch");
    assert!(engine.is_idle());
    (drawn, world.asked)
}

/// The first sample is never over by itself, the second fails, the others end with their second turn.
fn answers(index: u64, turn: usize) -> Answer {
    match (index, turn) {
        (0, _) => Ok(Observation::user("on")),
        (1, 2) => Err("it failed: on purpose".into()),
        (_, 2) => Ok(Observation::done()),
        _ => Ok(Observation::user("hm")),
    }
}

#[test]
fn turns_are_drawn_in_rounds_and_what_is_told_is_masked() {
    let (batch, asked) = played(answers, false, 100);
    for rollout in batch.rollouts() {
        let episode = rollout.episode.as_ref().expect("an episode");
        if rollout.finish_reason == FinishReason::Length {
            continue;
        }
        let (turns, end) = match rollout.index {
            0 => (3, EpisodeEnd::Turns),
            1 => (2, EpisodeEnd::Failed { reason: "it failed: on purpose".into() }),
            _ => (2, EpisodeEnd::Environment),
        };
        assert_eq!((episode.turns.len(), &episode.end), (turns, &end));
        assert_eq!(episode.steps().len(), if rollout.index == 1 { 1 } else { turns });
        let mut mask = Vec::new();
        for turn in &episode.turns {
            mask.extend(vec![true; turn.drawn]);
            mask.extend(vec![false; turn.told]);
        }
        assert_eq!(rollout.response_mask, mask);
        let told: usize = episode.turns.iter().map(|turn| turn.told).sum();
        // The template writes the turn's newline, and `user: hm` with another.
        assert_eq!(told, (turns - 1) * "\nuser: hm\n".len());
    }
    // A round is asked about before the next begins.
    let turns: Vec<usize> = asked.iter().map(|question| question.turns.len()).collect();
    assert!(turns.is_sorted(), "{turns:?}");
}

#[test]
fn the_log_probabilities_are_those_of_the_whole_sequence() {
    let (batch, _) = played(answers, false, 100);
    let model = model();
    let mut compared = 0;
    for rollout in batch.rollouts() {
        let ids = [&rollout.prompt.prompt_ids[..], &rollout.response_ids].concat();
        let start = rollout.prompt.prompt_ids.len() as i64 - 1;
        let all = no_grad(|| {
            let logits = model.logits(&model.hidden(&Tensor::from_slice(&ids), &[ids.len()])).to_kind(Kind::Float);
            let rows = logits.narrow(0, start, rollout.response_ids.len() as i64).log_softmax(-1, None);
            rows.gather(1, &Tensor::from_slice(&rollout.response_ids).unsqueeze(1), false).squeeze_dim(1)
        });
        let expected = rollout.of_drawn(Vec::<f32>::try_from(all).expect("numbers"));
        assert_eq!(expected.len(), rollout.rollout_logprobs.len());
        for (ours, theirs) in rollout.rollout_logprobs.iter().zip(&expected) {
            assert!((ours - theirs).abs() < 1e-4, "sample {}: {ours} and {theirs}", rollout.index);
            compared += 1;
        }
    }
    assert!(compared > 12, "{compared}");
}

#[test]
fn the_order_of_answers_changes_nothing() {
    let (first, _) = played(answers, false, 100);
    let (second, _) = played(answers, true, 100);
    for (one, other) in first.rollouts().iter().zip(second.rollouts()) {
        assert_eq!(one.response_ids, other.response_ids);
        assert_eq!((&one.rollout_logprobs, &one.episode), (&other.rollout_logprobs, &other.episode));
    }
}

#[test]
fn what_does_not_fit_is_not_told() {
    let (batch, _) = played(|_, _| Ok(Observation::user("a long answer")), false, 24);
    for rollout in batch.rollouts() {
        let episode = rollout.episode.as_ref().expect("an episode");
        assert_eq!((rollout.finish_reason, &episode.end), (FinishReason::Length, &EpisodeEnd::Length));
        assert!(rollout.response_ids.len() <= 24);
        assert_eq!(rollout.response_mask.last(), Some(&true));
    }
    let (batch, _) = played(|_, _| Ok(Observation::default()), false, 100);
    let failed = batch.rollouts().iter().filter(|rollout| rollout.finish_reason == FinishReason::Stop);
    for rollout in failed {
        let end = &rollout.episode.as_ref().expect("an episode").end;
        assert!(matches!(end, EpisodeEnd::Failed { reason } if reason.contains("neither ended")), "{end:?}");
    }
}
