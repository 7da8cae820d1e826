use std::time::Duration;

use serde_json::json;

use super::super::{
    AdvantageEstimator, Divergence, Facts, KlLossType, LossAggregation, LrDecayStyle, Model, Opd, PassRate, PolicyLoss,
    Recipe, SampleWeighting, SelectionRule, TopK, TrainConfig, models,
};
use crate::dataset::HuggingFaceDataset;

use super::{POST_PROCESS, least, train, tutorial};

/// The message `check()` gives for the least recipe with one change.
fn refusal(change: impl FnOnce(&mut Recipe)) -> String {
    let mut recipe = least();
    change(&mut recipe);
    train(models::QWEN3_4B, recipe).check_values().unwrap_err().to_string()
}

fn of_a_server() -> Opd {
    Opd::to_url("http://teacher/generate")
}

macro_rules! refuses {
    ($($test:ident: |$recipe:ident| $change:expr => $message:literal;)*) => {
        $(#[test]
        fn $test() {
            assert_eq!(refusal(|$recipe| { $change; }), $message);
        })*
    };
}

refuses! {
    no_steps: |r| r.num_rollout = Some(0) =>
        "recipe.num_rollout = 0: must be ≥ 1; set the rollout steps of the run";
    no_prompts: |r| r.rollout_batch_size = Some(0) =>
        "recipe.rollout_batch_size = 0: must be ≥ 1; set the prompts of one step, such as 16";
    a_batch_that_does_not_divide: |r| r.global_batch_size = Some(48) =>
        "recipe.global_batch_size = 48: must divide rollout_batch_size · n_samples_per_prompt = 16 · 4 = 64; \
         set 32, or leave it unset for one optimizer step a rollout";
    a_batch_larger_than_the_rollout: |r| r.global_batch_size = Some(128) =>
        "recipe.global_batch_size = 128: must divide rollout_batch_size · n_samples_per_prompt = 16 · 4 = 64; \
         set 64, or leave it unset for one optimizer step a rollout";
    a_group_of_one: |r| r.n_samples_per_prompt = Some(1) =>
        "recipe.n_samples_per_prompt = 1: must be ≥ 2 with a reward and a group-relative advantage: the only reward of \
         a group is its mean, so the advantage is always 0; raise it, such as to 4, or set advantage: \
         Some(AdvantageEstimator::Raw)";
    nothing_to_learn_from: |r| r.custom_rm_function = None =>
        "recipe.opd: there is neither a teacher nor a reward, so nothing to learn from; set opd, custom_rm_function, or both";
    greedy_training: |r| r.rollout_temperature = Some(0.0) =>
        "recipe.rollout_temperature = 0.0: must be a number > 0: a greedy response has no probability to learn from; \
         leave it unset for 1, the model's own distribution; eval_temperature may be 0";
    a_temperature_that_is_no_number: |r| r.rollout_temperature = Some(f64::NAN) =>
        "recipe.rollout_temperature = NaN: must be a number > 0: a greedy response has no probability to learn from; \
         leave it unset for 1, the model's own distribution; eval_temperature may be 0";
    no_nucleus: |r| r.rollout_top_p = Some(0.0) =>
        "recipe.rollout_top_p = 0.0: must be in (0, 1]; leave it unset to keep every token";
    no_top_k: |r| r.rollout_top_k = Some(0) =>
        "recipe.rollout_top_k = 0: must be −1 or ≥ 1; leave it unset to keep every token";
    an_empty_stop: |r| r.rollout_stop = Some(vec![String::new()]) =>
        "recipe.rollout_stop = [\"\"]: an empty text ends every response at once; leave the empty text out";
    a_clip_of_one: |r| r.eps_clip = Some(1.0) =>
        "recipe.eps_clip = 1.0: must be in (0, 1): a ratio below 1 − eps_clip is clipped; leave it unset for 0.2";
    a_negative_clip: |r| r.eps_clip_high = Some(-0.1) =>
        "recipe.eps_clip_high = -0.1: must be a number > 0: a ratio above 1 + eps_clip_high is clipped; leave it unset for 0.28";
    a_dual_clip_of_one: |r| r.eps_clip_c = Some(1.0) =>
        "recipe.eps_clip_c = 1.0: must be a number > 1; leave it unset for no dual clip, or set 3.0";
    a_kl_loss_without_weight: |r| r.use_kl_loss = Some(true) =>
        "recipe.kl_loss_coef: use_kl_loss is on, and its weight is unset; set kl_loss_coef, such as Some(0.001)";
    a_kl_weight_nobody_reads: |r| r.kl_loss_coef = Some(0.1) =>
        "recipe.kl_loss_coef = 0.1: use_kl_loss is not on, so it would be ignored; set use_kl_loss: Some(true), or leave it unset";
    a_kl_type_nobody_reads: |r| r.kl_loss_type = Some(KlLossType::K3) =>
        "recipe.kl_loss_type = k3: use_kl_loss is not on, so it would be ignored; set use_kl_loss: Some(true), or leave it unset";
    weights_that_do_not_move: |r| r.lr = Some(0.0) =>
        "recipe.lr = 0.0: must be a number > 0: weights that do not move are no training; leave it unset for 1e-6";
    a_floor_above_the_peak: |r| r.min_lr = Some(1.0) =>
        "recipe.min_lr = 1.0: must be in [0, lr = 1e-6]; leave it unset for 0";
    a_decay_that_ends_before_the_warm_up: |r| {
        r.lr_decay_style = Some(LrDecayStyle::Cosine);
        r.lr_warmup_iters = Some(20);
        r.lr_decay_iters = Some(10);
    } =>
        "recipe.lr_decay_iters = 10: the decay would end before the warm-up (lr_warmup_iters = 20) has; \
         raise it, or leave it unset for the whole run";
    a_beta_of_one: |r| r.adam_beta2 = Some(1.0) =>
        "recipe.adam_beta2 = 1.0: must be in [0, 1); leave it unset for 0.98";
    an_infinite_decay: |r| r.weight_decay = Some(f64::INFINITY) =>
        "recipe.weight_decay = inf: must be a number ≥ 0; set 0.0 for none";
    a_share_above_one: |r| r.max_ungraded_fraction = Some(1.5) =>
        "recipe.max_ungraded_fraction = 1.5: must be in [0, 1]; set the share of a step's samples that may be ungraded, such as 0.5";
    a_reward_without_time: |r| r.reward_timeout = Some(Duration::ZERO) =>
        "recipe.reward_timeout = 0ns: must be longer than 0; set what one call may take";
    checkpoints_every_no_steps: |r| r.save_interval = Some(0) =>
        "recipe.save_interval = 0: must be ≥ 1; leave it unset to publish the last step only";
    a_device_of_another_kind: |r| r.device = Some("gpu".to_owned()) =>
        "recipe.device = gpu: must be `cpu` or `cuda:N`; leave it unset for the machine's";
    kwargs_that_are_no_object: |r| r.apply_chat_template_kwargs = Some("[true]".into()) =>
        "recipe.apply_chat_template_kwargs = [true]: it is JSON, but not an object; give a JSON object, such as {\"enable_thinking\": true}";
    a_misspelt_engine_key: |r| r.extra_config = Some([("max_runing_requests", 8)].into()) =>
        "recipe.extra_config.max_runing_requests = 8: no engine reads this key; did you mean `max_running_requests`? \
         An engine reads max_running_requests, max_queued_requests, context_length, max_prefill_tokens";
    a_key_that_is_a_field_here: |r| r.extra_config = Some([("rm_url", "http://teacher/generate")].into()) =>
        "recipe.extra_config.rm_url = \"http://teacher/generate\": no engine reads this key; \
         name the teacher's URL with Opd::to_url, or Opd::from(&teacher)";
    an_engine_key_of_another_type: |r| r.extra_config = Some([("max_prefill_tokens", json!("many"))].into()) =>
        "recipe.extra_config.max_prefill_tokens = \"many\": must be a whole number ≥ 1; leave it unset, or set such a number";
    a_context_too_short: |r| r.extra_config = Some([("context_length", 1000)].into()) =>
        "recipe.extra_config.context_length = 1000: the longest prompt and response together have 3072 tokens; \
         raise it, or lower rollout_max_response_len";
    a_reserved_variable: |r| r.environment = Some([("TRAINING_GYM_ROLE", "trainer")].into()) =>
        "recipe.environment.TRAINING_GYM_ROLE = trainer: names that begin with TRAINING_GYM_ are reserved; leave it out";
    a_variable_of_the_launch: |r| r.environment = Some([("OMP_NUM_THREADS", "9")].into()) =>
        "recipe.environment.OMP_NUM_THREADS = 9: this variable is set by the launch; set the threads with .resources() of the launch";
    a_waiting_policy: |r| r.environment = Some([("OMP_WAIT_POLICY", "ACTIVE")].into()) =>
        "recipe.environment.OMP_WAIT_POLICY = ACTIVE: this variable is set by the launch; \
         leave it out: threads that spin slow the other jobs of the machine";
    an_engine_key_in_two_spellings: |r| r.extra_config = Some([("context-length", 4000), ("context_length", 4000)].into()) =>
        "recipe.extra_config.context_length = 4000: it is given twice, in two spellings; give it once";
    a_variable_without_a_name: |r| r.environment = Some([("A=B", "1")].into()) =>
        "recipe.environment = \"A=B\": a variable's name is letters, digits and `_`, and does not begin with a digit; correct the name";
    a_secret_in_the_environment: |r| r.environment = Some([("HF_TOKEN", "hf_hidden")].into()) =>
        "recipe.environment.HF_TOKEN: it looks like a secret, and the spec is stored as plain text; \
         put the secret in a file that only you can read, and pass the file's path";
    a_teacher_without_a_url: |r| r.opd = Some(Opd::to_url("teacher")) =>
        "recipe.opd.teacher.url = teacher: it is not a URL; give the whole URL, such as http://127.0.0.1:8000/generate";
    a_teacher_of_another_scheme: |r| r.opd = Some(Opd::to_url("ftp://teacher/generate")) =>
        "recipe.opd.teacher.url = ftp://teacher/generate: must begin with http:// or https://; \
         give the whole URL, such as http://127.0.0.1:8000/generate";
    a_teacher_without_a_path: |r| r.opd = Some(Opd::to_url("http://teacher:8000")) =>
        "recipe.opd.teacher.url = http://teacher:8000: it names a server but no path to ask; did you mean http://teacher:8000/generate?";
    a_credential_in_the_url: |r| r.opd = Some(Opd::to_url("http://me:hidden@teacher/generate")) =>
        "recipe.opd.teacher.url = http://…@teacher/generate: it holds a credential, and the spec is stored as plain text; \
         name the variable that holds the token with Opd::token_env";
    a_token_in_place_of_its_variable: |r| r.opd = Some(Opd::to_url("http://teacher/generate").token_env("sk-hidden")) =>
        "recipe.opd.teacher.token_env: must be the name of a variable; name the variable that holds the token, not the token";
    a_teacher_to_flee_from: |r| r.opd = Some(Opd { opd_kl_coef: -1.0, ..Opd::to_url("http://teacher/generate") }) =>
        "recipe.opd.opd_kl_coef = -1.0: must be a number ≥ 0; a negative one would drive the student away from the teacher; \
         set the teacher's weight, such as 1.0";
    a_mixture_at_its_end: |r| r.opd = Some(Opd::co_resident(models::QWEN3_8B).divergence(Divergence::Jsd { beta: 1.0 })) =>
        "recipe.opd.co_resident.divergence = 1.0: its beta must be in (0, 1): at either end this divergence is 0 whatever \
         the student does; set 0.5, or take Divergence::ForwardKl or Divergence::ReverseKl";
    a_co_resident_teacher_that_is_no_model: |r| r.opd = Some(Opd::co_resident(Model::folder("/no/such/model"))) =>
        "recipe.opd.co_resident.model = /no/such/model: there is no such folder; give the folder that holds the model's config.json";
    a_clamp_of_whole_distributions: |r| r.opd = Some(Opd { log_ratio_clamp: None, ..Opd::co_resident(models::QWEN3_8B) }) =>
        "recipe.opd.log_ratio_clamp = off: it belongs to a teacher behind a URL, and this one is co-resident; leave it out";
    a_reverse_kl_without_a_tail: |r| {
        r.opd = Some(Opd { top_k: Some(TopK { k: 8, divergence: Divergence::ReverseKl, tail: false }), ..of_a_server() });
    } =>
        "recipe.opd.top_k = 8 tokens without a tail, reverse_kl: without a tail it weighs by the student, which then lowers \
         it by moving its mass to tokens that the teacher did not name; leave tail at true, or take Divergence::ForwardKl, \
         which weighs by the teacher";
    more_memory_than_there_is: |r| r.gpu_memory_utilization = Some(1.5) =>
        "recipe.gpu_memory_utilization = 1.5: must be a share in (0, 1] of the device's memory; set 0.8, or leave it unset for \
         no bound";
    no_likeliest_tokens: |r| r.opd = Some(of_a_server().top_k(0)) =>
        "recipe.opd.top_k = 0 tokens and a tail, forward_kl: its k must be in [1, 1024]; set the tokens the teacher names a \
         position, such as 64";
    likeliest_tokens_at_another_temperature: |r| {
        r.opd = Some(of_a_server().top_k(8));
        r.rollout_temperature = Some(0.7);
    } =>
        "recipe.opd.top_k = 8 tokens and a tail, forward_kl: a server's likeliest tokens are those of temperature 1, and \
         rollout_temperature is another; leave rollout_temperature unset, or learn from the sampled token alone";
    a_clamp_of_likeliest_tokens: |r| r.opd = Some(Opd { log_ratio_clamp: Some(2.0), ..of_a_server().top_k(8) }) =>
        "recipe.opd.log_ratio_clamp = 2.0: it belongs to the sampled token's term, which opd.top_k takes the place of; \
         leave it out";
    likeliest_tokens_of_a_co_resident_teacher: |r| r.opd = Some(Opd::co_resident(models::QWEN3_8B).top_k(8)) =>
        "recipe.opd.top_k = 8 tokens and a tail, forward_kl: it belongs to a teacher behind a URL, and this one is \
         co-resident; leave it out";
    no_token_to_learn_from: |r| {
        r.custom_rm_function = None;
        r.opd = Some(Opd::co_resident(models::QWEN3_8B).select(SelectionRule::SOFT_OR, 0.0));
    } =>
        "recipe.opd.co_resident.selection = 0.0 of the tokens by soft-or, entropy cut at 0.98: its ratio must be in (0, 1]; \
         set the share of tokens to learn from, such as 0.5";
    tokens_chosen_under_a_reward: |r| r.opd = Some(Opd::co_resident(models::QWEN3_8B).select(SelectionRule::Entropy, 0.5)) =>
        "recipe.opd.co_resident.selection = 0.5 of the tokens by entropy: with a reward every token has a loss of its own, \
         so that leaving some out would save nothing; leave custom_rm_function unset, or teach all tokens";
    a_weight_without_a_teacher: |r| r.weighting = Some(SampleWeighting::Reward { beta: 1.0 }) =>
        "recipe.weighting = reward, beta 1.0: it weighs what a teacher says, and there is none; set opd, or leave it unset";
    a_filter_that_keeps_nothing: |r| {
        r.weighting = Some(SampleWeighting::HardFilter { low: 0.8, high: 0.2, pass_rate: PassRate::default() });
        r.opd = Some(Opd::to_url("http://teacher/generate"));
    } =>
        "recipe.weighting = hard-filter, 0.8 < p < 0.2: it must be 0 ≤ low < high ≤ 1; set 0.2 and 0.8, as the paper does";
    rewards_ignored_without_a_teacher: |r| r.advantage = Some(AdvantageEstimator::Ignored) =>
        "recipe.advantage = ignored: then rewards teach nothing, and there must be a teacher that does; set opd, or leave it unset";
    a_switch_at_the_start: |r| r.opd = Some(Opd::co_resident(models::QWEN3_8B).then(0.0, Divergence::ForwardKl)) =>
        "recipe.opd.co_resident.switch = 0.0: it must be at a share in (0, 1) of the run's steps; set 0.5, or leave it out";
    a_discount_of_zero: |r| r.advantage = Some(AdvantageEstimator::ReinforcePlusPlus { gamma: 0.0 }) =>
        "recipe.advantage = reinforce-plus-plus, gamma 0.0: its gamma must be in (0, 1]; set 1.0: every token has the whole reward";
    others_of_a_group_of_one: |r| { r.advantage = Some(AdvantageEstimator::LeaveOneOut); r.n_samples_per_prompt = Some(1) } =>
        "recipe.n_samples_per_prompt = 1: must be ≥ 2 with a reward and a group-relative advantage: the only reward of \
         a group is its mean, so the advantage is always 0; raise it, such as to 4, or set advantage: \
         Some(AdvantageEstimator::Raw)";
    a_penalty_that_is_none: |r| r.kl_reward_coef = Some(0.0) =>
        "recipe.kl_reward_coef = 0.0: must be a number > 0; set its weight, such as 0.001, or leave it unset for none";
    an_estimator_of_no_penalty: |r| r.kl_reward_type = Some(KlLossType::K3) =>
        "recipe.kl_reward_type = k3: kl_reward_coef is unset, so it would be ignored; set kl_reward_coef, or leave it unset";
    a_cache_longer_than_a_response: |r| r.overlong_cache_len = Some(4096) =>
        "recipe.overlong_cache_len = 4096: must be from 1 to rollout_max_response_len = 2048; \
         set the tokens before the limit over which the reward falls";
    a_shape_without_a_length: |r| r.overlong_penalty = Some(1.0) =>
        "recipe.overlong_penalty = 1.0: overlong_cache_len is unset, so it would be ignored; set overlong_cache_len, or leave it unset";
    groups_dropped_under_a_teacher: |r| {
        r.dynamic_sampling = Some(true);
        r.opd = Some(Opd::to_url("http://teacher/generate"));
    } =>
        "recipe.dynamic_sampling = true: with a teacher, a group of equal rewards still has the teacher to learn from; \
         leave it unset, or leave opd out";
    a_dual_clip_of_cispo: |r| { r.policy_loss = Some(PolicyLoss::Cispo); r.eps_clip_c = Some(3.0) } =>
        "recipe.eps_clip_c = 3.0: policy_loss = cispo has no dual clip, so it would be ignored; leave it unset";
    a_constant_of_no_tokens: |r| r.loss_aggregation = Some(LossAggregation::ConstantLength { length: 0 }) =>
        "recipe.loss_aggregation = constant-length, 0 tokens: its length must be ≥ 1; set the tokens a response may have, \
         as Dr.GRPO does";
    an_unbiased_penalty_that_is_off: |r| r.use_unbiased_kl = Some(true) =>
        "recipe.use_unbiased_kl = true: use_kl_loss is not on, so it would be ignored; set use_kl_loss: Some(true), or leave it unset";
    a_post_process_without_a_reward: |r| {
        r.custom_rm_function = None;
        r.custom_reward_post_process_function = Some(POST_PROCESS);
        r.opd = Some(Opd::to_url("http://teacher/generate"));
    } =>
        "recipe.custom_reward_post_process_function = math_opd_post_process: it post-processes the rewards of \
         custom_rm_function, which is unset; set custom_rm_function too";
    evaluation_without_a_reward: |r| {
        r.custom_rm_function = None;
        r.opd = Some(Opd::to_url("http://teacher/generate"));
        r.eval_interval = Some(5);
    } =>
        "recipe.eval_interval: evaluation inside a run grades with the reward function, and there is none; \
         set custom_rm_function, or evaluate the checkpoints after the run with evaluate()";
    more_than_can_be_counted: |r| { r.rollout_batch_size = Some(usize::MAX); r.global_batch_size = Some(1) } =>
        "recipe.rollout_batch_size = 18446744073709551615: times n_samples_per_prompt it is more than a computer can count; \
         lower one of them";
}

#[test]
fn a_remedy_is_not_searched_for_without_end() {
    let message = refusal(|recipe| {
        recipe.rollout_batch_size = Some((1 << 58) + 1);
        recipe.global_batch_size = Some((1 << 59) - 1);
    });
    assert!(message.contains("leave it unset for one optimizer step a rollout"), "{message}");
}

#[test]
fn all_problems_are_told_at_once() {
    let message = refusal(|recipe| {
        recipe.lr = Some(-1.0);
        recipe.rollout_batch_size = Some(0);
        recipe.adam_eps = Some(0.0);
    });
    let lines: Vec<_> = message.lines().collect();
    assert_eq!(lines.len(), 4, "{message}");
    assert_eq!(lines[0], "the configuration has 3 problems:");
    assert!(lines[1].starts_with("  recipe.rollout_batch_size = 0: "));
}

#[test]
fn a_group_of_one_is_fine_where_no_reward_is_compared() {
    let distilled = Recipe {
        opd: Some(Opd::to_url("http://teacher/generate")),
        n_samples_per_prompt: Some(1),
        ..Recipe::default()
    };
    train(models::QWEN3_4B, distilled.clone()).check_values().unwrap();
    let weightless = Opd { opd_kl_coef: 0.0, ..Opd::to_url("http://teacher/generate") };
    let message =
        train(models::QWEN3_4B, Recipe { opd: Some(weightless), ..distilled }).check_values().unwrap_err().to_string();
    assert!(message.starts_with("recipe.opd.opd_kl_coef = 0.0: without a reward the teacher is all"), "{message}");
    let raw = Recipe { advantage: Some(AdvantageEstimator::Raw), n_samples_per_prompt: Some(1), ..least() };
    train(models::QWEN3_4B, raw).check_values().unwrap();
}

#[test]
fn what_the_launch_knows_is_checked_too() {
    let check = |facts: Facts, recipe: Recipe| {
        train(models::QWEN3_4B, recipe).check_with(&facts).map_err(|error| error.to_string())
    };
    let gpus = |gpus| Facts { gpus: Some(gpus), ..Facts::default() };
    assert_eq!(
        check(gpus(4), tutorial()).unwrap_err(),
        "recipe.rollout_num_gpus = 8: each replica needs its own device, and there are 4; set it to at most 4"
    );
    check(gpus(8), tutorial()).unwrap();
    check(gpus(0), tutorial()).unwrap();
    let no_eval = Facts { eval: Some(false), ..Facts::default() };
    assert_eq!(
        check(no_eval, Recipe { eval_interval: Some(5), ..least() }).unwrap_err(),
        "recipe.eval_interval = 5: the launch has no rows to evaluate on; \
         give it some with .eval(dataset), or leave eval_interval unset"
    );
    let short = Facts { context_length: Some(512), ..Facts::default() };
    assert_eq!(
        check(short, Recipe { rollout_max_response_len: Some(600), ..least() }).unwrap_err(),
        "recipe.rollout_max_response_len = 600: with rollout_max_prompt_len = 1 it makes 601 tokens; the model has 512 \
         positions; lower one of the two"
    );
    assert_eq!(
        check(short, Recipe { eval_max_response_len: Some(300), ..least() }).unwrap_err(),
        "recipe.eval_max_response_len = 300: with rollout_max_prompt_len = 256 it makes 556 tokens; the model has 512 \
         positions; lower it"
    );
    check(short, least()).unwrap();
}

#[test]
fn template_variables_without_a_template_are_refused() {
    let mut config = train(models::QWEN3_4B, tutorial());
    config.dataset = config.dataset.apply_chat_template(false);
    let message = config.check_values().unwrap_err().to_string();
    assert!(message.contains("the dataset does not apply the chat template, so it would be ignored"), "{message}");
}

#[test]
fn a_dataset_that_is_not_there_is_refused() {
    let config =
        TrainConfig { dataset: HuggingFaceDataset::file("/no/such/rows.jsonl"), ..train(models::QWEN3_4B, least()) };
    let message = config.check_values().unwrap_err().to_string();
    assert_eq!(
        message,
        "dataset: no file or folder `/no/such/rows.jsonl` here: a relative path is seen from the current folder"
    );
}
