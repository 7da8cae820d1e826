//! `slime.json` and `slime.safetensors` of the golden folder: group rewards, KL estimators, policy
//! losses, log-probabilities, advantages and the whole loss with its gradients.
//!
//! Cases of what is not supported are counted as unsupported, never as passed: truncated importance
//! sampling, since a token's ratio here is against the very probability it was drawn with.

mod golden_files;

use std::collections::BTreeMap;

use serde_json::Value;
use tch::{Device, Kind, Tensor};
use training_gym_core::spec::{KlLossSpec, KlLossType, PolicyLoss, TeacherDialect};
use training_gym_core::wire::teacher::{Sequence, response_logprobs};
use training_gym_runtime::advantage::{
    DistillationSums, OpdTerm, discounted_returns, group_relative, kl_estimates, raw, subtract_reverse_kl, whiten,
};
use training_gym_runtime::update::head::{OutputHead, Rows};
use training_gym_runtime::update::loss::{Objective, PolicyClip, Tokens, cispo_loss, kl_penalty, policy_loss};

const KNOWN: [&str; 9] = [
    "versions",
    "group_rewards",
    "teacher_trim",
    "kl",
    "policy_loss",
    "cispo",
    "batch",
    "log_probs_at_temperature",
    "advantages",
];
const KL_TYPES: [(&str, KlLossType); 4] =
    [("k1", KlLossType::K1), ("k2", KlLossType::K2), ("k3", KlLossType::K3), ("low_var_kl", KlLossType::LowVarKl)];

#[derive(Clone, Copy)]
struct Tolerance {
    relative: f64,
    absolute: f64,
}
const VALUE: Tolerance = Tolerance { relative: 1e-5, absolute: 1e-6 };
const WHITENED: Tolerance = Tolerance { relative: 0.0, absolute: 1e-4 };
const GRADIENT: Tolerance = Tolerance { relative: 0.0, absolute: 1e-6 };
/// Gradients of single losses grow with the loss itself.
const LOSS_GRADIENT: Tolerance = Tolerance { relative: 1e-5, absolute: 1e-6 };

#[derive(Default)]
struct Tally {
    checked: BTreeMap<String, usize>,
    unsupported: BTreeMap<(String, String), usize>,
}

impl Tally {
    fn checked(&mut self, section: &str) {
        *self.checked.entry(section.to_owned()).or_default() += 1;
    }
    fn unsupported(&mut self, section: &str, why: &str) {
        *self.unsupported.entry((section.to_owned(), why.to_owned())).or_default() += 1;
    }
    fn print(&self) {
        for (section, count) in &self.checked {
            println!("slime {section}: {count} checked");
        }
        for ((section, why), count) in &self.unsupported {
            println!("slime {section}: {count} unsupported ({why})");
        }
    }
}

struct Golden {
    json: Value,
    tensors: BTreeMap<String, Tensor>,
}

fn load() -> Option<Golden> {
    let path = golden_files::golden_file("slime.json")?;
    let text = std::fs::read_to_string(&path).expect("slime.json reads");
    let tensors = Tensor::read_safetensors(path.with_extension("safetensors")).expect("slime.safetensors reads");
    Some(Golden {
        json: serde_json::from_str(&text).expect("slime.json parses"),
        tensors: tensors.into_iter().collect(),
    })
}

fn number(value: &Value) -> f64 {
    match value {
        Value::String(text) => text.parse().expect("a number as text"),
        other => other.as_f64().unwrap_or_else(|| panic!("a number, not {other}")),
    }
}

fn list(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(number).collect()
}

fn lists(value: &Value) -> Vec<Vec<f64>> {
    value.as_array().expect("a list of lists").iter().map(list).collect()
}

fn floats(value: &Value) -> Tensor {
    Tensor::from_slice(&list(value)).to_kind(Kind::Float)
}

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.flatten(0, -1).to_kind(Kind::Double)).expect("a tensor of numbers")
}

fn flag(value: &Value, key: &str) -> bool {
    value[key].as_bool().unwrap_or_else(|| panic!("`{key}` is a truth value"))
}

fn same(what: &str, ours: &[f64], golden: &[f64], tolerance: Tolerance) {
    assert_eq!(ours.len(), golden.len(), "{what}: count");
    for (index, (&a, &b)) in ours.iter().zip(golden).enumerate() {
        let close = a == b
            || (a.is_nan() && b.is_nan())
            || (a - b).abs() <= tolerance.absolute.max(tolerance.relative * b.abs());
        assert!(close, "{what}[{index}]: {a}, golden {b}");
    }
}

#[test]
fn golden_slime() {
    let Some(golden) = load() else { return };
    tch::set_num_threads(1);
    let mut tally = Tally::default();
    group_rewards(&golden.json, &mut tally);
    kl(&golden.json, &mut tally);
    policy(&golden.json, &mut tally);
    scores(&golden, &mut tally);
    advantages(&golden.json, &mut tally);
    whole_loss(&golden, &mut tally);
    teacher_trim(&golden.json, &mut tally);
    cispo(&golden.json, &mut tally);
    for key in golden.json.as_object().expect("an object").keys() {
        if !KNOWN.contains(&key.as_str()) && key != "policy_loss_full" {
            tally.unsupported(key, "unknown section");
        }
    }
    tally.print();
    for section in ["group_rewards", "kl", "policy_loss", "cispo", "log_probs", "advantages", "policy_loss_full"] {
        assert!(tally.checked.contains_key(section), "no case of {section} was checked");
    }
    let unsupported: usize = tally.unsupported.values().sum();
    assert!(unsupported <= 2, "only truncated importance sampling is left out: {:?}", tally.unsupported);
}

/// The reference asks for all positions and cuts; we ask for the response's only. The same server
/// would answer that with the last positions, the first of them null: nothing precedes it.
fn teacher_trim(json: &Value, tally: &mut Tally) {
    for case in json["teacher_trim"].as_array().expect("cases") {
        let all = case["input_token_logprobs"].as_array().expect("positions");
        let tokens: Vec<i64> = all.iter().map(|position| position[1].as_i64().expect("an id")).collect();
        let length = case["response_length"].as_u64().expect("a count") as usize;
        let mut asked = all[all.len() - length - 1..].to_vec();
        asked[0][0] = Value::Null;
        let body = serde_json::json!([{ "meta_info": { "input_token_logprobs": asked } }]).to_string();
        let sequence = Sequence::new(&tokens, length).expect("a prompt");
        let scored = response_logprobs(TeacherDialect::Sglang, &[sequence], body.as_bytes()).expect("an answer");
        let ours: Vec<f64> = scored[0].as_ref().expect("scored").iter().map(|&logprob| f64::from(logprob)).collect();
        same("teacher_trim", &ours, &list(&case["teacher_log_probs"]), VALUE);
        tally.checked("teacher_trim");
    }
}

fn group_rewards(json: &Value, tally: &mut Tally) {
    for case in json["group_rewards"].as_array().expect("cases") {
        let estimator = case["estimator"].as_str().expect("a name");
        let rewards: Vec<Option<f64>> = list(&case["raw"]).into_iter().map(Some).collect();
        let group = case["n_samples_per_prompt"].as_u64().expect("a count") as usize;
        let expected = group * case["rollout_batch_size"].as_u64().expect("a count") as usize;
        // The reference makes one group of everything when the count is not the expected one.
        let group = if rewards.len() == expected { group } else { rewards.len() };
        let ours = match estimator {
            _ if !flag(case, "rewards_normalization") => raw(&rewards, group),
            "grpo" | "gspo" | "cispo" => group_relative(&rewards, group, flag(case, "grpo_std_normalization")),
            "reinforce_plus_plus_baseline" => group_relative(&rewards, group, false),
            _ => raw(&rewards, group),
        };
        same(&format!("group_rewards {case}"), &ours.advantages, &list(&case["normalised"]), VALUE);
        tally.checked("group_rewards");
    }
}

fn kl(json: &Value, tally: &mut Tally) {
    let kl = &json["kl"];
    let base = floats(&kl["log_probs_base"]);
    for (name, golden) in kl["values"].as_object().expect("estimators") {
        let Some((_, kind)) = KL_TYPES.iter().find(|(known, _)| known == name) else {
            tally.unsupported("kl", &format!("estimator {name}"));
            continue;
        };
        let policy = floats(&kl["log_probs"]).set_requires_grad(true);
        let ours = kl_penalty(&policy, &base, *kind, None);
        same(&format!("kl {name}"), &values(&ours), &list(golden), VALUE);
        let grad = Tensor::run_backward(&[ours.sum(None)], &[&policy], false, false);
        same(&format!("kl gradient {name}"), &values(&grad[0]), &list(&kl["grad_log_probs"][name]), LOSS_GRADIENT);
        tally.checked("kl");
    }
    let (policy, ratio) = (floats(&kl["log_probs"]), floats(&kl["importance_ratio"]));
    let narrow = |value: &Value| list(value).iter().map(|&x| x as f32).collect::<Vec<f32>>();
    for (name, golden) in kl["values_with_ratio"].as_object().expect("estimators") {
        let (_, kind) = KL_TYPES.iter().find(|(known, _)| known == name).expect("a known estimator");
        let ours = kl_penalty(&policy, &base, *kind, Some(&ratio));
        same(&format!("kl {name} with a ratio"), &values(&ours), &list(golden), VALUE);
        let ours = kl_estimates(&narrow(&kl["log_probs"]), &narrow(&kl["log_probs_base"]), *kind);
        same(&format!("kl {name} in the reward"), &ours, &list(&kl["values"][name]), VALUE);
        tally.checked("kl");
    }
}

fn clip(case: &Value) -> PolicyClip {
    PolicyClip {
        low: number(&case["eps_clip"]),
        high: number(&case["eps_clip_high"]),
        dual: case["eps_clip_c"].as_f64(),
    }
}

fn policy(json: &Value, tally: &mut Tally) {
    let section = &json["policy_loss"];
    let advantages = floats(&section["advantages"]);
    for case in section["cases"].as_array().expect("cases") {
        let ppo_kl = floats(&section["ppo_kl"]).set_requires_grad(true);
        let ours = policy_loss(&ppo_kl.neg(), &ppo_kl.zeros_like(), &advantages, &clip(case));
        let what = format!("policy_loss {:?}", clip(case));
        same(&what, &values(&ours.loss), &list(&case["loss"]), VALUE);
        same(&format!("{what} clipped"), &values(&ours.clipped), &list(&case["clipfrac"]), VALUE);
        let grad = Tensor::run_backward(&[ours.loss.sum(None)], &[&ppo_kl], false, false);
        same(&format!("{what} gradient"), &values(&grad[0]), &list(&case["grad_ppo_kl"]), LOSS_GRADIENT);
        tally.checked("policy_loss");
    }
}

fn cispo(json: &Value, tally: &mut Tally) {
    let section = &json["cispo"];
    // The cases share the policy loss's ratios and advantages.
    let (ppo_kl, advantages) = (floats(&json["policy_loss"]["ppo_kl"]), floats(&json["policy_loss"]["advantages"]));
    for case in section["cases"].as_array().expect("cases") {
        let logprobs = floats(&section["log_probs"]).set_requires_grad(true);
        let old = &logprobs.detach() + &ppo_kl;
        let ours = cispo_loss(&logprobs, &old, &advantages, &clip(case));
        let what = format!("cispo {:?}", clip(case));
        same(&what, &values(&ours.loss), &list(&case["loss"]), VALUE);
        // `old` is rounded here: at the very bound that decides.
        let ratios = values(&ppo_kl.neg().exp());
        let bounds = [1.0 - clip(case).low, 1.0 + clip(case).high];
        let apart = |index: usize| bounds.iter().all(|bound| (ratios[index] - bound).abs() > 1e-5);
        let kept = |all: &[f64]| -> Vec<f64> { (0..all.len()).filter(|&index| apart(index)).map(|i| all[i]).collect() };
        let (clipped, golden) = (kept(&values(&ours.clipped)), kept(&list(&case["clipfrac"])));
        assert!(clipped.len() + 3 > ratios.len(), "{what}: few are at a bound");
        same(&format!("{what} clipped"), &clipped, &golden, VALUE);
        let grad = Tensor::run_backward(&[ours.loss.sum(None)], &[&logprobs], false, false);
        same(&format!("{what} gradient"), &values(&grad[0]), &list(&case["grad_log_probs"]), LOSS_GRADIENT);
        tally.checked("cispo");
    }
}

/// The batch's packed logits as hidden rows of an identity projection, and where its samples lie.
struct Batch {
    logits: Tensor,
    identity: Tensor,
    /// Row of the logits of each response token, of all samples.
    positions: Vec<i64>,
    targets: Tensor,
    response_lengths: Vec<usize>,
}

impl Batch {
    fn new(golden: &Golden) -> Self {
        let batch = &golden.json["batch"];
        let logits = golden.tensors[batch["logits"].as_str().expect("a tensor's name")].squeeze_dim(0);
        let counts = |key: &str| -> Vec<usize> { list(&batch[key]).into_iter().map(|n| n as usize).collect() };
        let (mut offset, mut positions, mut targets) = (0, Vec::new(), Vec::new());
        for (index, (total, response)) in
            counts("total_lengths").into_iter().zip(counts("response_lengths")).enumerate()
        {
            positions.extend((offset + total - response - 1..offset + total - 1).map(|row| row as i64));
            targets.extend(list(&batch["tokens"][index])[total - response..].iter().map(|&id| id as i64));
            offset += total;
        }
        let vocab = logits.size()[1];
        Self {
            identity: Tensor::eye(vocab, (Kind::Float, Device::Cpu)),
            targets: Tensor::from_slice(&targets),
            response_lengths: counts("response_lengths"),
            logits,
            positions,
        }
    }

    fn head(&self, temperature: f64, chunk_size: usize) -> OutputHead<'_> {
        OutputHead { weight: &self.identity, temperature, chunk_size }
    }
}

fn scores(golden: &Golden, tally: &mut Tally) {
    let batch = Batch::new(golden);
    let rows = batch.logits.index_select(0, &Tensor::from_slice(&batch.positions));
    let mut check = |temperature: f64, chunk: usize, case: &Value| {
        let rows = Rows { hidden: &rows, targets: &batch.targets, entropy: true };
        let (logprobs, entropy) = batch.head(temperature, chunk).score(&rows);
        same(&format!("log_probs at {temperature}"), &values(&logprobs), &lists(&case["log_probs"]).concat(), VALUE);
        let entropy = entropy.expect("asked for");
        same(&format!("entropy at {temperature}"), &values(&entropy), &lists(&case["entropy"]).concat(), VALUE);
        tally.checked("log_probs");
    };
    for chunk in [1, 5, 1000] {
        check(1.0, chunk, &golden.json["batch"]);
    }
    for case in golden.json["log_probs_at_temperature"].as_array().expect("cases") {
        let chunk = usize::try_from(case["chunk"].as_i64().expect("a count")).unwrap_or(usize::MAX >> 1);
        check(number(&case["temperature"]), chunk, case);
    }
}

fn advantages(json: &Value, tally: &mut Tally) {
    let batch = &json["batch"];
    let masks: Vec<Vec<bool>> =
        lists(&batch["loss_masks"]).iter().map(|row| row.iter().map(|&m| m != 0.0).collect()).collect();
    let narrow = |key: &str| -> Vec<Vec<f32>> {
        lists(&batch[key]).iter().map(|row| row.iter().map(|&x| x as f32).collect()).collect()
    };
    let (teacher, reference) = (narrow("teacher_log_probs"), narrow("ref_log_probs"));
    for case in json["advantages"].as_array().expect("cases") {
        let estimator = case["estimator"].as_str().expect("a name");
        let student = narrow(if flag(case, "use_rollout_logprobs") { "rollout_log_probs" } else { "old_log_probs" });
        let rewards = list(&case["rewards"]);
        let kl_coef = number(&case["kl_coef"]);
        let mut ours: Vec<Vec<f64>> = rewards
            .iter()
            .enumerate()
            .map(|(index, &reward)| {
                let kl = kl_estimates(&student[index], &reference[index], KlLossType::K1);
                match estimator {
                    "reinforce_plus_plus" => discounted_returns(reward, &kl, &masks[index], (kl_coef, 1.0)),
                    "reinforce_plus_plus_baseline" => kl.iter().map(|kl| reward - kl_coef * kl).collect(),
                    _ => vec![reward; kl.len()],
                }
            })
            .collect();
        if flag(case, "use_opd") {
            let term = OpdTerm { coef: number(&case["opd_kl_coef"]), log_ratio_clamp: None };
            let reverse_kl = lists(&case["opd_reverse_kl"]);
            for (index, row) in ours.iter_mut().enumerate() {
                let mut sums = DistillationSums::default();
                subtract_reverse_kl(row, &student[index], &teacher[index], &term, &mut sums);
                same("reverse KL", &[sums.log_ratio], &[reverse_kl[index].iter().sum()], VALUE);
            }
        }
        let tolerance = if flag(case, "normalize_advantages") {
            whiten(&mut ours, &masks);
            WHITENED
        } else {
            VALUE
        };
        same(&format!("advantages of {case}"), &ours.concat(), &lists(&case["advantages"]).concat(), tolerance);
        tally.checked("advantages");
    }
}

fn whole_loss(golden: &Golden, tally: &mut Tally) {
    let batch = Batch::new(golden);
    for case in golden.json["policy_loss_full"].as_array().expect("cases") {
        let settings = &case["settings"];
        if flag(settings, "use_tis") {
            tally.unsupported("policy_loss_full", "truncated importance sampling");
            continue;
        }
        // A sequence's ratio needs its tokens together.
        let chunks: &[usize] = if settings["estimator"] == "gspo" { &[1000] } else { &[1, 3, 1000] };
        for &chunk in chunks {
            whole_loss_case(golden, &batch, case, chunk);
        }
        tally.checked("policy_loss_full");
    }
}

fn whole_loss_case(golden: &Golden, batch: &Batch, case: &Value, chunk: usize) {
    let (settings, inputs, metrics) = (&case["settings"], &golden.json["batch"], &case["metrics"]);
    let per_token = flag(settings, "per_token");
    let mask: Vec<f64> = lists(&inputs["loss_masks"]).concat();
    // What a token counts in the metrics, and in the loss.
    let mut counts = Vec::new();
    for (&length, denominator) in batch.response_lengths.iter().zip(list(&case["denominators"])) {
        counts.extend(std::iter::repeat_n(if per_token { 1.0 } else { 1.0 / denominator.max(1.0) }, length));
    }
    let scale = if per_token { 1.0 } else { number(&settings["num_microbatches"]) / number(&settings["global_batch"]) };

    // Only rows that carry loss go through the head.
    let kept: Vec<i64> = (0..mask.len() as i64).filter(|&row| mask[row as usize] != 0.0).collect();
    let keep = |all: &[f64]| -> Tensor {
        Tensor::from_slice(&kept.iter().map(|&row| all[row as usize] as f32).collect::<Vec<f32>>())
    };
    let flat = |key: &str| keep(&lists(&inputs[key]).concat());
    let counts = keep(&counts);
    let uses_rollout = flag(settings, "use_rollout_logprobs");
    let tokens = Tokens {
        old_logprobs: flat(if uses_rollout { "rollout_log_probs" } else { "old_log_probs" }),
        advantages: keep(&lists(&case["advantages"]).concat()),
        weights: &counts * scale,
        reference_logprobs: Some(flat("ref_log_probs")),
        lengths: Some(lists(&inputs["loss_masks"]).iter().map(|m| m.iter().filter(|&&m| m != 0.0).count()).collect()),
    };
    let kl_name = settings["kl_loss_type"].as_str().expect("a name");
    let objective = Objective {
        policy: match settings["estimator"].as_str() {
            Some("gspo") => PolicyLoss::SequenceRatio,
            Some("cispo") => PolicyLoss::Cispo,
            _ => PolicyLoss::TokenRatio,
        },
        clip: clip(settings),
        entropy_coef: number(&settings["entropy_coef"]),
        kl: flag(settings, "use_kl_loss").then(|| KlLossSpec {
            kl_loss_coef: number(&settings["kl_loss_coef"]),
            kl_loss_type: KL_TYPES.iter().find(|(known, _)| *known == kl_name).expect("a known estimator").1,
            unbiased: flag(settings, "unbiased"),
        }),
    };

    let positions = Tensor::from_slice(&kept.iter().map(|&row| batch.positions[row as usize]).collect::<Vec<i64>>());
    let hidden = batch.logits.index_select(0, &positions);
    let targets = batch.targets.index_select(0, &Tensor::from_slice(&kept));
    let rows = Rows { hidden: &hidden, targets: &targets, entropy: true };
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    let mut weight_grad = batch.identity.zeros_like();
    let hidden_grad = batch.head(number(&settings["temperature"]), chunk).backward(&rows, &mut weight_grad, |chunk| {
        let length = chunk.logprobs.size()[0];
        let tokens = Tokens { lengths: tokens.lengths.clone(), ..tokens.narrow(chunk.start, length) };
        let counts = counts.narrow(0, chunk.start, length);
        let entropy = chunk.entropy.as_ref();
        let terms = objective.evaluate(&chunk.logprobs, entropy, &tokens);
        let mut add = |name, tensor: &Tensor| {
            *sums.entry(name).or_default() += (tensor.detach() * &counts).sum(Kind::Double).double_value(&[]);
        };
        add("pg_loss", &terms.policy);
        add("entropy_loss", entropy.expect("asked for"));
        add("pg_clipfrac", &terms.clipped.to_kind(Kind::Float));
        add("ppo_kl", &(&tokens.old_logprobs - &chunk.logprobs));
        if let Some(kl) = &terms.kl {
            add("kl_loss", kl);
        }
        let trained = if uses_rollout { &chunk.logprobs } else { &tokens.old_logprobs };
        let rollout = flat("rollout_log_probs").narrow(0, chunk.start, length);
        add("train_rollout_logprob_abs_diff", &(trained - rollout).abs());
        *sums.entry("scaled").or_default() += terms.loss.double_value(&[]);
        terms.loss
    });

    let what = format!("policy_loss_full {settings} in chunks of {chunk}");
    let scaled = sums.remove("scaled").expect("at least one chunk");
    same(&format!("{what}: loss"), &[scaled], &[number(&case["loss"])], VALUE);
    sums.insert("loss", scaled / scale);
    for (name, golden) in metrics.as_object().expect("metrics") {
        let ours = *sums.get(name.as_str()).unwrap_or_else(|| panic!("{what}: metric {name} is not computed here"));
        same(&format!("{what}: {name}"), &[ours], &[number(golden)], VALUE);
    }
    let normalizer = number(&case["normalizer"]);
    assert_eq!(normalizer, if per_token { mask.iter().sum() } else { 1.0 }, "{what}: normalizer");
    let grad = batch.logits.zeros_like().index_copy(0, &positions, &hidden_grad);
    let expected = &golden.tensors[case["grad_logits"].as_str().expect("a tensor's name")];
    same(&format!("{what}: gradient"), &values(&grad), &values(expected), GRADIENT);
}
