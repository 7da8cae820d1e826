//! Every model under `$TRAINING_GYM_SHARED/golden/models` against the reference's numbers
//! (tolerances: golden/README.md; float32 on CPU).

mod golden_folders;

use std::collections::BTreeMap;
use std::path::Path;

use golden_folders::{folders, golden, load, name};
use safetensors::SafeTensors;
use serde::Deserialize;
use tch::{Kind, Tensor};
use training_gym_core::spec::{EngineSpec, SamplingSpec};
use training_gym_runtime::model::{Architecture, LoadOptions, Model};
use training_gym_runtime::rollout::{Engine, Event, Request, RequestId};

/// How far we may be from the reference.
struct Tolerances {
    logits: f64,
    loss: f64,
    gradient_l2: f64,
    gradient_sin_dot: f64,
}

fn tolerances(architecture: Architecture) -> Tolerances {
    match architecture {
        Architecture::Qwen3_5 | Architecture::Qwen3_5Nested => {
            Tolerances { logits: 1e-3, loss: 2e-4, gradient_l2: 1e-3, gradient_sin_dot: 5e-3 }
        }
        _ => Tolerances { logits: 1e-4, loss: 2e-5, gradient_l2: 1e-4, gradient_sin_dot: 1e-3 },
    }
}

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
    grad: Gradients,
}

#[derive(Deserialize)]
struct Prompt {
    input_ids: Vec<i64>,
    greedy: Vec<i64>,
}

#[derive(Deserialize)]
struct Gradients {
    input_ids: Vec<i64>,
    loss: f64,
    params: BTreeMap<String, Gradient>,
}

#[derive(Deserialize)]
struct Gradient {
    l2: f64,
    sin_dot: f64,
    shape: Vec<i64>,
}

#[test]
fn every_model_equals_its_reference() {
    let Some(folders) = folders() else { return };
    let mut checked = Vec::new();
    for folder in folders {
        let model = load(&folder, LoadOptions::default());
        let golden: Golden = golden(&folder);
        let (name, tolerances) = (name(&folder), tolerances(model.config().architecture));
        let worst = forward((&name, &tolerances), &folder, &model, &golden);
        gradients((&name, &tolerances), &model, &golden.grad);
        greedy(&name, model.share(), &golden.prompts);
        println!("{name} ({}): largest logit difference {worst:.1e}", model.config().architecture.name());
        checked.push(name);
    }
    println!("golden models: {} checked: {}", checked.len(), checked.join(", "));
}

/// Logits and log-probabilities: each prompt alone, and all packed together.
fn forward((name, allowed): (&str, &Tolerances), folder: &Path, model: &Model, golden: &Golden) -> f64 {
    let bytes = std::fs::read(folder.join("golden.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let read = |key: String| {
        let view = file.tensor(&key).unwrap();
        let shape: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
        Tensor::from_data_size(view.data(), &shape, Kind::Float)
    };
    let _guard = tch::no_grad_guard();
    let all: Vec<i64> = golden.prompts.iter().flat_map(|prompt| prompt.input_ids.clone()).collect();
    let lengths: Vec<usize> = golden.prompts.iter().map(|prompt| prompt.input_ids.len()).collect();
    let packed = model.logits(&model.hidden(&Tensor::from_slice(&all), &lengths));
    let (mut start, mut worst) = (0, 0.0_f64);
    for (index, prompt) in golden.prompts.iter().enumerate() {
        let ids = Tensor::from_slice(&prompt.input_ids);
        let count = prompt.input_ids.len() as i64;
        let alone = model.logits(&model.hidden(&ids, &[prompt.input_ids.len()]));
        let reference = read(format!("logits.{index}"));
        for (way, logits) in [("alone", &alone), ("packed", &packed.narrow(0, start, count))] {
            let difference = (logits - &reference).abs().max().double_value(&[]);
            assert!(difference <= allowed.logits, "{name}: logits of prompt {index} {way} differ by {difference:e}");
            worst = worst.max(difference);
        }
        start += count;
        if count > 1 {
            let logprobs = alone.narrow(0, 0, count - 1).log_softmax(-1, Kind::Float);
            let scored = logprobs.gather(1, &ids.narrow(0, 1, count - 1).unsqueeze(1), false).squeeze_dim(1);
            let difference = (scored - read(format!("token_logprobs.{index}"))).abs().max().double_value(&[]);
            assert!(difference <= allowed.logits, "{name}: log-probs of prompt {index} differ by {difference:e}");
        }
    }
    worst
}

fn gradients((name, allowed): (&str, &Tolerances), model: &Model, golden: &Gradients) {
    model.set_requires_grad(true);
    let ids = Tensor::from_slice(&golden.input_ids);
    let count = golden.input_ids.len() as i64;
    let logits = model.logits(&model.hidden(&ids, &[golden.input_ids.len()]));
    let loss = logits.narrow(0, 0, count - 1).cross_entropy_for_logits(&ids.narrow(0, 1, count - 1));
    loss.backward();
    let difference = (loss.double_value(&[]) - golden.loss).abs();
    assert!(difference <= allowed.loss, "{name}: loss differs by {difference:e}");

    let names: Vec<&str> = model.parameters().iter().map(|(name, _)| name.as_str()).collect();
    for reference in golden.params.keys() {
        assert!(names.contains(&reference.as_str()), "{name}: no parameter `{reference}`");
    }
    for (parameter, tensor) in model.parameters() {
        let reference =
            golden.params.get(parameter).unwrap_or_else(|| panic!("{name}: `{parameter}` has no reference"));
        assert_eq!(tensor.size(), reference.shape, "{name}: `{parameter}`");
        // An expert that no token went to has no gradient.
        let gradient = if tensor.grad().defined() { tensor.grad() } else { tensor.zeros_like() };
        let gradient = gradient.to_kind(Kind::Double).flatten(0, -1);
        let l2 = gradient.norm().double_value(&[]);
        let sines = Tensor::arange(gradient.size()[0], (Kind::Double, gradient.device())).sin();
        let sin_dot = gradient.dot(&sines).double_value(&[]);
        let (by_length, by_sine) = ((l2 - reference.l2).abs(), (sin_dot - reference.sin_dot).abs());
        assert!(
            by_length <= allowed.gradient_l2 * reference.l2,
            "{name}: l2 of `{parameter}` differs by {by_length:e}"
        );
        assert!(
            by_sine <= allowed.gradient_sin_dot * reference.l2,
            "{name}: sin_dot of `{parameter}` differs by {by_sine:e}"
        );
    }
    model.set_requires_grad(false);
}

/// Greedy continuations through the engine: all prompts together, over its cache.
fn greedy(name: &str, model: Model, prompts: &[Prompt]) {
    let _guard = tch::no_grad_guard();
    let mut engine = Engine::new(model, &EngineSpec::default()).unwrap();
    for (index, prompt) in prompts.iter().enumerate() {
        let request = Request {
            sampling: SamplingSpec { temperature: 0.0, ..SamplingSpec::default() },
            ..Request::new(prompt.input_ids.clone(), prompt.greedy.len())
        };
        engine.submit(RequestId(index as u64), request).unwrap();
    }
    let mut tokens = vec![Vec::new(); prompts.len()];
    while !engine.is_idle() {
        for event in engine.step() {
            if let Event::Token { id, score } = event {
                tokens[id.0 as usize].push(score.token);
            }
        }
    }
    for (index, (prompt, tokens)) in prompts.iter().zip(tokens).enumerate() {
        assert_eq!(tokens, prompt.greedy, "{name}: greedy continuation of prompt {index}");
    }
}
