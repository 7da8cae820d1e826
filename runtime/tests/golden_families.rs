//! What holds for every family found under `$TRAINING_GYM_SHARED/golden/models`, beside equality
//! with the reference: decoding over the cache, packing, bfloat16, and writing back.

mod golden_folders;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use golden_folders::{folders, golden, load, name};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::{Map, Value};
use tch::{Kind, Tensor};
use training_gym_core::ids::WeightVersion;
use training_gym_core::record::Grade;
use training_gym_core::sample::FinishReason;
use training_gym_core::spec::{EngineSpec, LossAggregation, LrDecayStyle, OptimizerSpec, SamplingSpec, UpdateSpec};
use training_gym_runtime::batch::{PreparedPrompt, Rollout, RolloutBatch, Score, TrainBatch};
use training_gym_runtime::model::{LoadOptions, Model};
use training_gym_runtime::publish::write_model_folder;
use training_gym_runtime::rollout::{Engine, Event, Request, RequestId};
use training_gym_runtime::update::Updater;

/// Log-probabilities over the cache against a full pass: several times what transformers differs
/// from itself by between the two (`stepwise_vs_full_max_abs_logit_diff`, at most 2.6e-5).
const CACHED: f64 = 1e-4;
/// Packed against one by one, hidden states and gradients, of their largest value.
const PACKED: f64 = 1e-5;
/// bfloat16 against float32: the largest and the mean difference of a log-probability, of the
/// logits' standard deviation. (transformers differs from itself as much.)
const BFLOAT16: (f64, f64) = (0.15, 0.03);

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
    checkpoint_tensors: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Prompt {
    input_ids: Vec<i64>,
}

fn prompts(folder: &Path) -> Vec<Vec<i64>> {
    golden::<Golden>(folder).prompts.into_iter().map(|prompt| prompt.input_ids).collect()
}

/// Prompts of many lengths, two of them equal.
fn varied(folder: &Path) -> Vec<Vec<i64>> {
    let longest = prompts(folder).pop().unwrap();
    let cut = |length: usize| longest[..length.min(longest.len())].to_vec();
    [1, 2, 3, 4, 17, 40, 17, 64, 65, 130].map(cut).into()
}

/// log p(id[t+1] | id[..=t]) and the largest log-probability at each t, from one pass without a
/// cache.
fn uncached(model: &Model, ids: &[i64]) -> (Vec<f64>, Vec<f64>) {
    let _guard = tch::no_grad_guard();
    let logits = model.logits(&model.hidden(&Tensor::from_slice(ids), &[ids.len()])).to_kind(Kind::Float);
    let logprobs = logits.log_softmax(-1, Kind::Float);
    let next = Tensor::from_slice(&ids[1..]).unsqueeze(1);
    let chosen = logprobs.narrow(0, 0, ids.len() as i64 - 1).gather(1, &next, false).squeeze_dim(1);
    let list = |values: Tensor| Vec::<f64>::try_from(values.to_kind(Kind::Double)).unwrap();
    (list(chosen), list(logprobs.amax([-1_i64].as_slice(), false)))
}

/// Greedy responses of the engine, and which requests were aborted.
fn respond(model: Model, limits: &EngineSpec, prompts: &[Vec<i64>], abort: &[usize]) -> Vec<Vec<(i64, f32)>> {
    let mut engine = Engine::new(model, limits).unwrap();
    for (index, ids) in prompts.iter().enumerate() {
        let sampling = SamplingSpec { temperature: 0.0, ..SamplingSpec::default() };
        // Unequal lengths: slots are freed and taken again while others run.
        let request = Request { sampling, ..Request::new(ids.clone(), 6 + 5 * (index % 4)) };
        engine.submit(RequestId(index as u64), request).unwrap();
    }
    let mut responses = vec![Vec::new(); prompts.len()];
    for step in 0.. {
        if engine.is_idle() {
            break;
        }
        if step == 3 {
            abort.iter().for_each(|&index| engine.abort(RequestId(index as u64)));
        }
        for event in engine.step() {
            if let Event::Token { id, score } = event {
                responses[id.0 as usize].push((score.token, score.logprob.unwrap()));
            }
        }
    }
    responses
}

#[test]
fn the_cached_path_equals_the_uncached_one_in_any_company() {
    for folder in folders().unwrap_or_default() {
        let (name, prompts) = (name(&folder), varied(&folder));
        let model = load(&folder, LoadOptions::default());
        let mut worst = 0.0_f64;
        for (slots, prefill, abort) in
            [(1, 8192, vec![]), (3, 8192, vec![0, 2]), (4, 1, vec![1]), (64, 8192, vec![4, 9])]
        {
            let limits =
                EngineSpec { max_running_requests: slots, max_prefill_tokens: prefill, ..EngineSpec::default() };
            let responses = respond(model.share(), &limits, &prompts, &abort);
            for (index, (prompt, response)) in prompts.iter().zip(&responses).enumerate() {
                let expected = 6 + 5 * (index % 4);
                assert!(response.len() == expected || abort.contains(&index), "{name}: request {index}");
                if response.is_empty() {
                    continue;
                }
                let ids: Vec<i64> = prompt.iter().copied().chain(response.iter().map(|&(token, _)| token)).collect();
                let (logprobs, best) = uncached(&model, &ids);
                for (place, &(_, logprob)) in response.iter().enumerate() {
                    let at = prompt.len() - 1 + place;
                    // The likeliest token, or one that rounding cannot tell from it.
                    let behind = best[at] - logprobs[at];
                    assert!(behind < CACHED, "{name}: request {index}, token {place}, {slots} slots: {behind:e}");
                    worst = worst.max((f64::from(logprob) - logprobs[at]).abs());
                }
            }
        }
        println!("{name}: cached and uncached log-probs differ by {worst:.1e}");
        assert!(worst < CACHED, "{name}: {worst:e}");
    }
}

#[test]
fn packing_equals_one_by_one() {
    for folder in folders().unwrap_or_default() {
        let name = name(&folder);
        let mut sequences = prompts(&folder);
        // Responses to one prompt.
        let longest = sequences[sequences.len() - 1].clone();
        sequences.push([&longest[..], &[5, 6, 7]].concat());
        sequences.push([&longest[..], &[5, 8]].concat());
        let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
        let largest = |tensor: &Tensor| tensor.abs().max().double_value(&[]);
        let (packed, single) = (load(&folder, LoadOptions::default()), load(&folder, LoadOptions::default()));
        packed.set_requires_grad(true);
        single.set_requires_grad(true);
        let loss =
            |model: &Model, hidden: &Tensor| model.logits(hidden).logsumexp([-1_i64].as_slice(), false).sum(None);
        let together = packed.hidden(&Tensor::from_slice(&sequences.concat()), &lengths);
        loss(&packed, &together).backward();
        let (mut start, mut worst) = (0, [0.0_f64; 2]);
        for ids in &sequences {
            let alone = single.hidden(&Tensor::from_slice(ids), &[ids.len()]);
            let part = together.narrow(0, start, ids.len() as i64);
            worst[0] = worst[0].max(largest(&(part - &alone)) / largest(&alone));
            start += ids.len() as i64;
            loss(&single, &alone).backward();
        }
        let gradients = single.parameters().iter().filter(|(_, tensor)| tensor.grad().defined());
        let overall = gradients.map(|(_, tensor)| largest(&tensor.grad())).fold(0.0, f64::max);
        for ((parameter, one), (_, other)) in packed.parameters().iter().zip(single.parameters()) {
            match (one.grad().defined(), other.grad().defined()) {
                (false, false) => {}
                (true, true) => {
                    // Of a gradient in which much cancels out, rounding is seen beside the others.
                    let scale = largest(&other.grad()).max(0.01 * overall);
                    worst[1] = worst[1].max(largest(&(one.grad() - other.grad())) / scale);
                }
                _ => panic!("{name}: `{parameter}` has a gradient one way only"),
            }
        }
        println!("{name}: packed and single differ by {:.1e}, gradients by {:.1e}", worst[0], worst[1]);
        assert!(worst[0] < PACKED && worst[1] < PACKED, "{name}: {worst:?}");
    }
}

#[test]
fn bfloat16_stays_near_float32() {
    for folder in folders().unwrap_or_default() {
        let name = name(&folder);
        let exact = load(&folder, LoadOptions::default());
        let rounded = load(&folder, LoadOptions { dtype: Kind::BFloat16, ..LoadOptions::default() });
        let (mut worst, mut sum, mut count) = (0.0_f64, 0.0, 0.0);
        let ids = Tensor::from_slice(&prompts(&folder).pop().unwrap());
        let spread = tch::no_grad(|| exact.logits(&exact.hidden(&ids, &[ids.numel()])).std(true).double_value(&[]));
        for ids in prompts(&folder) {
            for (one, other) in uncached(&exact, &ids).0.into_iter().zip(uncached(&rounded, &ids).0) {
                worst = worst.max((one - other).abs());
                (sum, count) = (sum + (one - other).abs(), count + 1.0);
            }
        }
        let (largest, mean) = (worst / spread, sum / count / spread);
        println!("{name}: bfloat16 log-probs differ by {largest:.1e} of the logits' spread, on average {mean:.1e}");
        assert!(largest < BFLOAT16.0 && mean < BFLOAT16.1, "{name}: {largest:e}, {mean:e}");
        // And its own cached path stays near its own full pass.
        let prompts = varied(&folder);
        for (prompt, response) in prompts.iter().zip(respond(rounded.share(), &EngineSpec::default(), &prompts, &[])) {
            let ids: Vec<i64> = prompt.iter().copied().chain(response.iter().map(|&(token, _)| token)).collect();
            let logprobs = uncached(&rounded, &ids).0;
            for (&(_, logprob), full) in response.iter().zip(&logprobs[prompt.len() - 1..]) {
                assert!(
                    (f64::from(logprob) - full).abs() < BFLOAT16.0 * spread,
                    "{name}: {logprob} cached, {full} in full"
                );
            }
        }
    }
}

/// Two samples of made-up advantages.
fn batch(model: &Model) -> TrainBatch {
    let rollout = |index: u64, prompt_ids: Vec<i64>, response_ids: Vec<i64>| {
        let ids = [prompt_ids.clone(), response_ids.clone()].concat();
        let logprobs = uncached(model, &ids).0;
        Rollout {
            index,
            group_index: 0,
            rollout_logprobs: logprobs[prompt_ids.len() - 1..].iter().map(|&logprob| logprob as f32).collect(),
            prompt: Arc::new(PreparedPrompt {
                row: 0,
                prompt: training_gym_core::sample::Prompt::Text(String::new()),
                prompt_ids,
                label: String::new(),
                metadata: Map::new(),
            }),
            response_mask: vec![true; response_ids.len()],
            response_ids,
            response: String::new(),
            finish_reason: FinishReason::Stop,
            weight_version: WeightVersion(0),
            episode: None,
        }
    };
    let rollouts = vec![rollout(0, vec![3, 4, 5], (7..77).collect()), rollout(1, vec![3, 4, 5], (20..50).collect())];
    let score = || Score {
        grade: Grade::NotAsked,
        reward: None,
        score: None,
        metadata: Map::new(),
        teacher_logprobs: None,
        teacher_top: None,
    };
    RolloutBatch::new(1, rollouts).scored(vec![score(), score()]).with_advantages(vec![vec![1.0; 70], vec![-0.5; 30]])
}

fn spec() -> UpdateSpec {
    UpdateSpec {
        global_batch_size: 2,
        max_tokens_per_gpu: 1024,
        eps_clip: 0.2,
        eps_clip_high: 0.28,
        eps_clip_c: None,
        policy_loss: training_gym_core::spec::PolicyLoss::TokenRatio,
        kl_loss: None,
        entropy_coef: 0.0,
        loss_aggregation: LossAggregation::TokenMean,
        logits_chunk_size: 64,
        optimizer: OptimizerSpec {
            lr: 1e-2,
            min_lr: 0.0,
            lr_warmup_iters: 0,
            lr_decay_iters: 1,
            lr_decay_style: LrDecayStyle::Constant,
            weight_decay: 0.01,
            adam_beta1: 0.9,
            adam_beta2: 0.98,
            adam_eps: 1e-8,
            clip_grad: Some(1.0),
        },
    }
}

/// Every tensor of a folder: type, shape, bytes.
fn stored(folder: &Path) -> HashMap<String, (Dtype, Vec<usize>, Vec<u8>)> {
    let mut all = HashMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        if file.starts_with("model") && file.ends_with(".safetensors") {
            let bytes = std::fs::read(&path).unwrap();
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                all.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
            }
        }
    }
    all
}

#[test]
fn a_trained_model_is_written_back_as_it_came() {
    for folder in folders().unwrap_or_default() {
        for dtype in [Kind::Float, Kind::BFloat16] {
            let (name, options) = (name(&folder), LoadOptions { dtype, ..LoadOptions::default() });
            let model = load(&folder, options);
            let mut updater = Updater::new(model.share(), spec(), 1.0).unwrap();
            let report = updater.apply(&batch(&model)).unwrap();
            assert!(report.updates == 1 && report.grad_norm > 0.0, "{name}: {report:?}");
            assert!(report.logprob_gap < if dtype == Kind::Float { 1e-4 } else { 0.05 }, "{name}: {report:?}");

            let to = tempfile::tempdir().unwrap();
            write_model_folder(updater.model(), &folder, to.path()).unwrap();
            let again = load(to.path(), options);
            for ((one, ours), (other, theirs)) in again.parameters().iter().zip(model.parameters()) {
                assert!(one == other && ours.kind() == theirs.kind() && ours.equal(theirs), "{name}: `{one}`");
            }
            let (before, after) = (stored(&folder), stored(to.path()));
            let expected = golden::<Golden>(&folder).checkpoint_tensors;
            assert_eq!(after.len(), expected.len(), "{name}");
            let mut moved = 0;
            for (tensor, (kind, shape, bytes)) in &before {
                let (new_kind, new_shape, new_bytes) = &after[tensor];
                assert_eq!(shape, new_shape, "{name}: `{tensor}`");
                if tensor.starts_with("model.visual.") || tensor.starts_with("mtp.") {
                    assert!(kind == new_kind && bytes == new_bytes, "{name}: `{tensor}` is not ours to change");
                } else {
                    let float32 = tensor.ends_with("A_log") || tensor.ends_with("linear_attn.norm.weight");
                    let computed = if dtype == Kind::Float || float32 { Dtype::F32 } else { Dtype::BF16 };
                    assert_eq!(*new_kind, computed, "{name}: `{tensor}`");
                    moved += usize::from(kind == new_kind && bytes != new_bytes);
                }
            }
            let same_type = before.iter().filter(|(tensor, (kind, ..))| after[*tensor].0 == *kind).count();
            assert!(moved * 2 > same_type || same_type < before.len() / 2, "{name}: {moved} of {same_type} moved");
            check_config(&name, &folder, to.path());
        }
    }
}

/// Nothing but the number type may differ.
fn check_config(name: &str, source: &Path, written: &Path) {
    let read = |folder: &Path| -> Value {
        let mut config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        for place in ["", "/text_config"] {
            if let Some(settings) = config.pointer_mut(place).and_then(Value::as_object_mut) {
                settings.remove("dtype");
                settings.remove("torch_dtype");
            }
        }
        config
    };
    assert_eq!(read(source), read(written), "{name}");
}
