//! A tiny model, and a server of it.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};
use training_gym_core::spec::{EngineSpec, ServeSpec};
use training_gym_runtime::model::{LoadOptions, Model, ModelConfig};
use training_gym_runtime::serve::{Service, app};

use crate::byte_tokenizer::write_byte_tokenizer;

/// What the model says after a line break, then its end token: `<think>ré</think>🚀好`.
/// `é`, `🚀` and `好` are 2, 4 and 3 tokens.
pub(crate) const CHAIN: [i64; 13] = [508, 0x72, 0xc3, 0xa9, 509, 0xf0, 0x9f, 0x9a, 0x80, 0xe5, 0xa5, 0xbd, 510];

/// The prompts end with this token.
pub(crate) const LINE_BREAK: i64 = 10;

pub(crate) const TOKEN: &str = "test-token";

/// How sure the model is: the strong one always follows the chain, the weak one rarely.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Certainty {
    Strong,
    Weak,
}

pub(crate) fn write_model(folder: &Path, kind: Certainty) {
    write_byte_tokenizer(folder);
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512, "hidden_size": 512,
        "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": 16, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": false, "hidden_act": "silu", "attention_bias": false, "initializer_range": 0.02,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("generation_config.json"), r#"{"eos_token_id": 510, "temperature": 1.0}"#).unwrap();
    let options = LoadOptions { device: Device::Cpu, dtype: Kind::Float };
    let model = Model::init(ModelConfig::from_json(&config).unwrap(), options, 1);
    let _guard = tch::no_grad_guard();
    let follow = match kind {
        Certainty::Strong => 1.0,
        Certainty::Weak => 0.2,
    };
    let output = Tensor::zeros([512, 512], (Kind::Float, Device::Cpu));
    let mut from = LINE_BREAK;
    for &to in CHAIN.iter().chain([&LINE_BREAK]) {
        let _ = output.get(to).get(from).fill_(follow);
        from = to;
    }
    for (name, parameter) in model.parameters() {
        let mut parameter = parameter.shallow_clone();
        if name == "lm_head.weight" {
            parameter.copy_(&output);
        } else if name == "model.embed_tokens.weight" {
            parameter.copy_(&Tensor::eye(512, (Kind::Float, Device::Cpu)));
        } else if (name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight")) && kind == Certainty::Strong {
            let _ = parameter.zero_();
        }
    }
    model.save_weights(folder).unwrap();
}

pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) service: Service,
    pub(crate) folder: tempfile::TempDir,
    client: reqwest::Client,
}

impl Server {
    pub(crate) async fn start(kind: Certainty) -> Self {
        Self::with_limits(kind, EngineSpec::default()).await
    }

    pub(crate) async fn with_limits(kind: Certainty, engine: EngineSpec) -> Self {
        Self::launch(kind, engine, Some(TOKEN)).await
    }

    /// One that serves everyone.
    pub(crate) async fn open(kind: Certainty) -> Self {
        Self::launch(kind, EngineSpec::default(), None).await
    }

    async fn launch(kind: Certainty, engine: EngineSpec, token: Option<&'static str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), kind);
        let spec = json!({
            "app_name": "tiny", "model": {"name": "org/tiny", "folder": folder.path()}, "host": "127.0.0.1", "port": 0,
            "token": null, "engine": engine, "node": {"device": "cpu", "dtype": "float32", "threads": 1},
        });
        let spec: ServeSpec = serde_json::from_value(spec).unwrap();
        let service = tokio::task::spawn_blocking(move || Service::load(&spec, token)).await.unwrap().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = app(service.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, service, folder, client: reqwest::Client::new() }
    }

    pub(crate) fn get(&self, path: &str) -> reqwest::RequestBuilder {
        self.client.get(format!("{}{path}", self.url)).bearer_auth(TOKEN)
    }

    pub(crate) fn request(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.client.post(format!("{}{path}", self.url)).bearer_auth(TOKEN).json(body)
    }

    /// Status and body.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.request(path, body).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// The body of a request that must be answered.
    pub(crate) async fn ok(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// The events of a stream; its last `[DONE]` is checked and left out.
    pub(crate) async fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let text = self.request(path, body).send().await.unwrap().text().await.unwrap();
        let mut events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{text}");
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// Waits for a state of the engine; it comes within seconds or never.
    pub(crate) async fn wait_for(
        &self,
        what: &str,
        holds: impl Fn(&training_gym_runtime::rollout::EngineStats) -> bool,
    ) {
        let until = Instant::now() + Duration::from_secs(20);
        while !holds(&self.service.engine().stats()) {
            assert!(Instant::now() < until, "{what}: {:?}", self.service.engine().stats());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
