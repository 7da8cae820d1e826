use std::path::Path;

use training_gym_core::ids::ContentHash;
use training_gym_core::spec::{
    DistillSpec, Dtype, KlRewardSpec, ModelSpec, NodeSpec, OverlongSpec, ProgramRef, RowsRef, RunSpec, SecretRef,
    VersionedRunSpec,
};

use super::super::{
    AdvantageEstimator, Divergence, Error, KlLossType, LossAggregation, Model, Opd, PolicyLoss, Recipe, Resolve,
    TrainConfig, models, resolve,
};
use super::{REWARD, least, train, tutorial};

fn rows(count: u64) -> RowsRef {
    RowsRef { key: "inputs/rows/abc".to_owned(), sha256: ContentHash::of(b"rows"), rows: count, hub: None }
}

fn program() -> Option<ProgramRef> {
    Some(ProgramRef { key: "inputs/program/abc".to_owned(), sha256: ContentHash::of(b"program") })
}

fn model(config: &TrainConfig, folder: &Path) -> ModelSpec {
    ModelSpec { name: config.model.name().to_owned(), folder: folder.to_owned(), hub: None, stored: None }
}

fn launch(config: &TrainConfig) -> Resolve<'_> {
    Resolve {
        config,
        run_id: "run-1".parse().unwrap(),
        model: model(config, Path::new("/no/such/snapshot")),
        co_teacher: None,
        train: rows(100),
        eval: None,
        program: program(),
        node: NodeSpec { device: "cpu".to_owned(), dtype: Dtype::Float32, threads: 2 },
    }
}

fn spec(config: &TrainConfig) -> RunSpec {
    resolve(launch(config)).unwrap()
}

#[test]
fn the_tutorial_becomes_a_complete_spec() {
    let config = train(models::QWEN3_5_4B, tutorial());
    let spec = spec(&config);
    assert_eq!(spec.model.name, "Qwen/Qwen3.5-4B");
    assert_eq!(spec.num_rollout, 10);
    assert_eq!((spec.rollout.rollout_batch_size, spec.rollout.n_samples_per_prompt), (16, 4));
    assert_eq!(spec.update.global_batch_size, 64);
    assert_eq!(spec.update.optimizer.lr_decay_iters, 10);
    assert_eq!(spec.rollout.rollout_num_gpus, 1, "a CPU has one replica");
    assert_eq!(spec.rollout.engine.context_length, Some(1024 + 2048));
    assert_eq!(spec.data.chat_template_kwargs["enable_thinking"], true);
    assert_eq!(spec.save.save_interval, Some(5));
    assert_eq!(spec.eval, None);
    let teacher = spec.teacher.as_ref().unwrap();
    assert_eq!((teacher.opd_kl_coef, teacher.log_ratio_clamp), (1.0, Some(10.0)));
    assert_eq!(teacher.token, Some(SecretRef::Env("TEACHER_TOKEN".to_owned())));
    let reward = spec.reward.as_ref().unwrap();
    assert_eq!((reward.function.as_str(), reward.grade_truncated), ("math_opd_rm", false));
    assert_eq!(reward.post_process.as_deref(), Some("math_opd_post_process"));

    let stored = serde_json::to_string(&VersionedRunSpec::V1(spec.clone())).unwrap();
    assert_eq!(serde_json::from_str::<VersionedRunSpec>(&stored).unwrap(), VersionedRunSpec::V1(spec));
}

#[test]
fn an_unset_length_is_one_pass_over_the_rows() {
    let config = train(models::QWEN3_4B, least());
    assert_eq!(spec(&config).num_rollout, 7, "100 rows, 16 a step");
    let few = resolve(Resolve { train: rows(3), ..launch(&config) }).unwrap();
    assert_eq!(few.num_rollout, 1);
}

#[test]
fn evaluation_follows_the_checkpoints_unless_told_otherwise() {
    let eval_of = |recipe: Recipe| {
        let config = train(models::QWEN3_4B, recipe);
        resolve(Resolve { eval: Some(rows(20)), ..launch(&config) }).unwrap().eval.unwrap()
    };
    let eval =
        eval_of(Recipe { num_rollout: Some(10), save_interval: Some(5), rollout_temperature: Some(0.7), ..least() });
    assert_eq!((eval.eval_interval, eval.sampling.temperature, eval.eval_max_response_len), (5, 0.7, 2048));
    assert_eq!(eval_of(Recipe { num_rollout: Some(10), ..least() }).eval_interval, 10);
    let told = eval_of(Recipe { eval_interval: Some(2), eval_temperature: Some(0.0), ..least() });
    assert_eq!((told.eval_interval, told.sampling.temperature), (2, 0.0));
}

#[test]
fn the_engine_has_room_for_a_step_and_for_evaluation() {
    let config = train(
        models::QWEN3_4B,
        Recipe { rollout_batch_size: Some(1000), eval_max_response_len: Some(4096), ..least() },
    );
    let engine = spec(&config).rollout.engine;
    assert_eq!((engine.max_queued_requests, engine.context_length), (4000, Some(1024 + 4096)));
}

#[test]
fn no_gradient_clip_is_written_as_none() {
    assert_eq!(spec(&train(models::QWEN3_4B, least())).update.optimizer.clip_grad, Some(1.0));
    let off = Recipe { clip_grad: Some(0.0), ..least() };
    assert_eq!(spec(&train(models::QWEN3_4B, off)).update.optimizer.clip_grad, None);
}

#[test]
fn a_launch_without_what_it_needs_is_refused() {
    let config = train(models::QWEN3_4B, Recipe { eval_interval: Some(1), ..least() });
    let Error::Refused(problems) = resolve(Resolve { program: None, ..launch(&config) }).unwrap_err();
    let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(fields, ["recipe.eval_interval", "recipe.custom_rm_function"]);
    let distilled = Recipe { opd: Some(Opd::to_url("http://teacher/generate")), ..Recipe::default() };
    let pure = train(models::QWEN3_4B, distilled);
    assert_eq!(resolve(Resolve { program: None, ..launch(&pure) }).unwrap().reward, None);
    assert_eq!(REWARD.name(), "math_opd_rm");
}

#[test]
fn the_recipes_device_and_dtype_go_before_the_machines() {
    let config = train(models::QWEN3_4B, least());
    assert_eq!(spec(&config).node, launch(&config).node);
    let told = Recipe {
        device: Some("cuda:1".to_owned()),
        dtype: Some(Dtype::Bfloat16),
        rollout_num_gpus: Some(2),
        ..least()
    };
    let spec = spec(&train(models::QWEN3_4B, told));
    assert_eq!(spec.node, NodeSpec { device: "cuda:1".to_owned(), dtype: Dtype::Bfloat16, threads: 2 });
    assert_eq!(spec.rollout.rollout_num_gpus, 2);
}

#[test]
fn a_deployment_without_an_address_may_be_checked_but_not_resolved() {
    let config =
        train(models::QWEN3_4B, Recipe { opd: Some(Opd::to_url("deployment://teacher")), ..Recipe::default() });
    config.check_values().unwrap();
    assert_eq!(
        resolve(launch(&config)).unwrap_err().to_string(),
        "recipe.opd.teacher.url = deployment://teacher: the deployment has no address yet; wait until it is ready"
    );
}

#[test]
fn the_models_own_folder_sets_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), r#"{"text_config": {"max_position_embeddings": 512}}"#).unwrap();
    let config = train(models::QWEN3_4B, least());
    let spec = resolve(Resolve { model: model(&config, folder.path()), ..launch(&config) }).unwrap();
    assert_eq!((spec.data.max_prompt_len, spec.rollout.rollout_max_response_len), (256, 256));
    let long = train(models::QWEN3_4B, Recipe { rollout_max_response_len: Some(2048), ..least() });
    let message = resolve(Resolve { model: model(&long, folder.path()), ..launch(&long) }).unwrap_err().to_string();
    assert!(message.contains("the model has 512 positions"), "{message}");
}

#[test]
fn a_co_resident_teacher_is_a_model_with_its_files() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    let teacher = Model::folder(folder.path());
    let opd = Opd { opd_kl_coef: 0.5, ..Opd::co_resident(teacher).divergence(Divergence::Jsd { beta: 0.25 }) };
    let config = train(models::QWEN3_4B, Recipe { opd: Some(opd), ..Recipe::default() });
    config.check_values().unwrap();
    let explanation = config.explain();
    assert_eq!(explanation.get("opd.co_resident.divergence").unwrap().value, "jsd, beta 0.25");
    assert!(explanation.get("opd.teacher.url").is_none());
    assert_eq!(
        resolve(launch(&config)).unwrap_err().to_string(),
        "recipe.opd.co_resident.model: the teacher's files are not on this machine yet; launch it, which fetches them"
    );
    let files = ModelSpec { name: "teacher".to_owned(), folder: folder.path().to_owned(), hub: None, stored: None };
    let spec = resolve(Resolve { co_teacher: Some(files.clone()), ..launch(&config) }).unwrap();
    assert_eq!((spec.teacher.as_ref(), spec.reward.as_ref()), (None, None));
    let distill = DistillSpec {
        teacher: files,
        divergence: Divergence::Jsd { beta: 0.25 },
        coef: 0.5,
        switch: None,
        selection: None,
    };
    assert_eq!(spec.distill, Some(distill));
    let stored = serde_json::to_string(&VersionedRunSpec::V1(spec.clone())).unwrap();
    assert_eq!(serde_json::from_str::<VersionedRunSpec>(&stored).unwrap(), VersionedRunSpec::V1(spec));
}

#[test]
fn a_method_is_written_only_where_it_is_chosen() {
    let plain = serde_json::to_value(spec(&train(models::QWEN3_4B, least()))).unwrap();
    assert!(plain.get("distill").is_none(), "an earlier version reads the spec of a plain run");
    assert_eq!(plain["advantage"].as_object().unwrap().len(), 2, "{}", plain["advantage"]);
    assert!(plain["update"].get("policy_loss").is_none());
    let chosen = Recipe {
        advantage: Some(AdvantageEstimator::ReinforcePlusPlus { gamma: 1.0 }),
        normalize_advantages: Some(true),
        kl_reward_coef: Some(0.01),
        overlong_cache_len: Some(256),
        dynamic_sampling: Some(true),
        policy_loss: Some(PolicyLoss::Cispo),
        eps_clip: Some(1.0),
        loss_aggregation: Some(LossAggregation::ConstantLength { length: 2048 }),
        ..least()
    };
    let spec = spec(&train(models::QWEN3_4B, chosen));
    assert_eq!(spec.advantage.kl_reward, Some(KlRewardSpec { kl_coef: 0.01, kl_type: KlLossType::K1 }));
    assert_eq!(spec.advantage.overlong, Some(OverlongSpec { cache_len: 256, penalty: 1.0 }));
    assert!(spec.advantage.dynamic_sampling);
    assert_eq!((spec.update.policy_loss, spec.update.eps_clip), (PolicyLoss::Cispo, 1.0));
    let stored = serde_json::to_string(&VersionedRunSpec::V1(spec.clone())).unwrap();
    assert_eq!(serde_json::from_str::<VersionedRunSpec>(&stored).unwrap(), VersionedRunSpec::V1(spec));
}
