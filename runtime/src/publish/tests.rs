use std::collections::BTreeSet;
use std::fs;

use serde_json::{Map, Value, json};
use tch::{Device, Kind as Number, no_grad};
use training_gym_core::checkpoint::{fetch, latest, latest_pointer, list};
use training_gym_core::spec::{
    AdvantageEstimator, AdvantageSpec, DataSpec, Dtype, EngineSpec, LossAggregation, LrDecayStyle, ModelSpec, NodeSpec,
    OptimizerSpec, RolloutSpec, RowsRef, SamplingSpec, SaveSpec, UpdateSpec,
};
use training_gym_core::store::MemoryStore;

use super::*;
use crate::model::{LoadOptions, Model, ModelConfig};

fn config() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 32, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false, "torch_dtype": "bfloat16",
    })
}

/// A source folder as hubs have them: weights in more than one format, links, hidden files.
fn source(folder: &Path) -> Model {
    let model = Model::init(
        ModelConfig::from_json(&config()).unwrap(),
        LoadOptions { device: Device::Cpu, dtype: Number::Float },
        1,
    );
    model.save_weights(folder).unwrap();
    fs::write(folder.join("config.json"), serde_json::to_vec(&config()).unwrap()).unwrap();
    for name in ["generation_config.json", "tokenizer.json", "pytorch_model.bin", "manifest.json", ".gitattributes"] {
        fs::write(folder.join(name), name).unwrap();
    }
    fs::write(folder.join("blob"), "template").unwrap();
    std::os::unix::fs::symlink("blob", folder.join("chat_template.jinja")).unwrap();
    fs::create_dir(folder.join("additional_chat_templates")).unwrap();
    fs::write(folder.join("additional_chat_templates/tools.jinja"), "tools").unwrap();
    fs::create_dir(folder.join("original")).unwrap();
    fs::write(folder.join("original/consolidated.00"), "weights").unwrap();
    model
}

/// Publishes a step as the pipeline does; its optimizer is a text.
fn put(publisher: &mut Publisher, step: u64, model: &Model, cursor: &str) -> Result<(), Error> {
    let staged = publisher.stage(step, model)?;
    fs::write(staged.state().join("optimizer.safetensors"), format!("moments {step}")).unwrap();
    publisher.publish(staged, cursor.as_bytes())
}

fn spec(folder: &Path) -> RunSpec {
    let rows = RowsRef { key: "k".into(), sha256: training_gym_core::ids::ContentHash::of(b""), rows: 1, hub: None };
    RunSpec {
        run_id: "run-a".parse().unwrap(),
        model: ModelSpec { name: "org/tiny".into(), folder: folder.to_owned(), hub: None, stored: None },
        data: DataSpec {
            train: rows,
            apply_chat_template: true,
            chat_template_kwargs: Map::new(),
            shuffle: false,
            max_prompt_len: 10,
        },
        rollout: RolloutSpec {
            rollout_batch_size: 1,
            n_samples_per_prompt: 1,
            rollout_max_response_len: 4,
            sampling: SamplingSpec::default(),
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            rollout_num_gpus: 1,
            engine: EngineSpec::default(),
        },
        reward: None,
        teacher: None,
        distill: None,
        advantage: AdvantageSpec { estimator: AdvantageEstimator::Raw, ..AdvantageSpec::default() },
        update: UpdateSpec {
            global_batch_size: 1,
            max_tokens_per_gpu: 64,
            eps_clip: 0.2,
            eps_clip_high: 0.28,
            eps_clip_c: None,
            policy_loss: training_gym_core::spec::PolicyLoss::TokenRatio,
            kl_loss: None,
            entropy_coef: 0.0,
            loss_aggregation: LossAggregation::TokenMean,
            logits_chunk_size: 16,
            optimizer: OptimizerSpec {
                lr: 1e-3,
                min_lr: 0.0,
                lr_warmup_iters: 0,
                lr_decay_iters: 1,
                lr_decay_style: LrDecayStyle::Constant,
                weight_decay: 0.0,
                adam_beta1: 0.9,
                adam_beta2: 0.98,
                adam_eps: 1e-8,
                clip_grad: None,
            },
        },
        eval: None,
        save: SaveSpec { save_interval: None, keep_resume_states: 2 },
        node: NodeSpec { device: "cpu".into(), dtype: Dtype::Float32, threads: 1 },
        environment: Default::default(),
        memory: Default::default(),
        num_rollout: 1,
        responses: Default::default(),
        seed: 1,
        rollout_environment: None,
    }
}

fn names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_folder_is_the_source_with_our_weights() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = source(from.path());
    write_model_folder(&model, from.path(), to.path()).unwrap();
    let expected = [
        "additional_chat_templates",
        "blob",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ];
    assert_eq!(names(to.path()), expected.map(str::to_owned).into());
    assert_eq!(fs::read_to_string(to.path().join("chat_template.jinja")).unwrap(), "template");
    assert_eq!(names(&to.path().join("additional_chat_templates")), ["tools.jinja".to_owned()].into());
    let written: Value = serde_json::from_slice(&fs::read(to.path().join("config.json")).unwrap()).unwrap();
    assert_eq!(written["torch_dtype"], "float32", "the weights are float32 now");
    let loaded = Model::load(to.path(), model.options()).unwrap();
    assert!(loaded.parameters().iter().zip(model.parameters()).all(|((_, a), (_, b))| a.equal(b)));
}

#[test]
fn steps_are_published_while_the_next_one_runs() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let from = tempfile::tempdir().unwrap();
    let model = source(from.path());
    let spec = spec(from.path());
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut publisher = Publisher::new(store.clone(), &spec, 1, runtime.handle().clone(), std::env::temp_dir());
    let mut at_step = Vec::new();
    for step in 1..=3 {
        put(&mut publisher, step, &model, &format!("cursor {step}")).unwrap();
        at_step.push(model.parameters()[0].1.copy());
        // The next step: weights change while the upload runs.
        no_grad(|| model.parameters().iter().for_each(|(_, weight)| drop(weight.detach().g_add_scalar_(1.0))));
    }
    publisher.finish().unwrap();
    publisher.finish().unwrap();

    runtime.block_on(async {
        let all = list(&*store, Kind::Checkpoint, &spec.run_id).await.unwrap();
        assert_eq!(all.iter().map(|manifest| manifest.step).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(latest_pointer(&*store, &spec.run_id).await.unwrap().unwrap().step, 3);
        for (manifest, weights) in all.iter().zip(&at_step) {
            assert_eq!((manifest.model.as_str(), manifest.weight_version), ("org/tiny", WeightVersion(manifest.step)));
            let folder = tempfile::tempdir().unwrap();
            fetch(&*store, manifest, folder.path()).await.unwrap();
            let loaded = Model::load(folder.path(), model.options()).unwrap();
            assert!(loaded.parameters()[0].1.equal(weights), "step {}", manifest.step);
        }
        let states = list(&*store, Kind::ResumeState, &spec.run_id).await.unwrap();
        assert_eq!(states.iter().map(|manifest| manifest.step).collect::<Vec<_>>(), [2, 3], "two are kept");
        let folder = tempfile::tempdir().unwrap();
        fetch(&*store, &latest(&*store, Kind::ResumeState, &spec.run_id).await.unwrap().unwrap(), folder.path())
            .await
            .unwrap();
        assert_eq!(fs::read_to_string(folder.path().join(CURSOR)).unwrap(), "cursor 3");
        assert_eq!(fs::read_to_string(folder.path().join("optimizer.safetensors")).unwrap(), "moments 3");
    });
}

#[test]
fn a_failed_upload_is_told_at_the_next_call() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let from = tempfile::tempdir().unwrap();
    let model = source(from.path());
    let spec = spec(from.path());
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut publisher = Publisher::new(store.clone(), &spec, 1, runtime.handle().clone(), std::env::temp_dir());
    put(&mut publisher, 1, &model, "{}").unwrap();
    publisher.finish().unwrap();
    // The same again is adopted; other weights under the same step are refused.
    put(&mut publisher, 1, &model, "{}").unwrap();
    publisher.finish().unwrap();
    no_grad(|| drop(model.parameters()[0].1.detach().g_add_scalar_(1.0)));
    put(&mut publisher, 1, &model, "{}").unwrap();
    let error = publisher.finish().unwrap_err();
    assert!(matches!(error, Error::Publish { step: 1, source: checkpoint::Error::Conflict { .. } }), "{error}");

    fs::write(from.path().join("config.json"), "{").unwrap();
    let error = put(&mut publisher, 2, &model, "{}").unwrap_err();
    assert!(matches!(error, Error::Folder(crate::model::Error::Json { .. })), "{error}");
}

#[test]
fn a_superseded_attempt_is_told_and_moves_no_pointer() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let from = tempfile::tempdir().unwrap();
    let (model, spec) = (source(from.path()), spec(from.path()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut publisher = Publisher::new(store.clone(), &spec, 1, runtime.handle().clone(), std::env::temp_dir());
    put(&mut publisher, 1, &model, "{}").unwrap();
    publisher.finish().unwrap();
    runtime.block_on(checkpoint::claim_latest(&*store, &spec.run_id, 2)).unwrap();
    put(&mut publisher, 2, &model, "{}").unwrap();
    let error = publisher.finish().unwrap_err();
    let superseded =
        matches!(error, Error::Publish { step: 2, source: checkpoint::Error::Superseded { newer: 2, .. } });
    assert!(superseded, "{error}");
    assert_eq!(runtime.block_on(latest_pointer(&*store, &spec.run_id)).unwrap().unwrap().step, 1);
}
