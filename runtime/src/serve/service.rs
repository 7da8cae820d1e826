//! What all routes share: the engine, the model's text, and what a server knows about itself.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use training_gym_core::spec::ServeSpec;
use training_gym_core::splitmix::{GAMMA, mixed};
use training_gym_core::wire::ModelInfo;

use super::auth::TokenDigest;
use super::error::ApiError;
use super::metrics::Metrics;
use super::sampling::SamplingDefaults;
use super::waiting::Waiting;
use crate::model::{LoadOptions, Model};
use crate::rollout::{Engine, EngineHandle};
use crate::settings;
use crate::text::TextPipeline;

/// Everything the routes work with. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Service {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    engine: EngineHandle,
    text: TextPipeline,
    defaults: SamplingDefaults,
    /// Names a client may use, the deployment's own first.
    names: Vec<String>,
    /// Where the weights were read.
    folder: Mutex<PathBuf>,
    token: Option<TokenDigest>,
    metrics: Metrics,
    created: u64,
    random: u64,
    drawn: AtomicU64,
    /// Held while weights are replaced.
    updating: tokio::sync::Mutex<()>,
    waiting: Waiting,
}

impl Service {
    /// Loads the model a spec names and starts its engine. `token` is the bearer token; `None`
    /// serves everyone.
    ///
    /// # Errors
    /// When the device, the model, its tokenizer or template, or the engine's limits are not
    /// usable: with the file or field.
    pub fn load(spec: &ServeSpec, token: Option<&str>) -> anyhow::Result<Self> {
        let folder = &spec.model.folder;
        let text = TextPipeline::from_folder(folder)?;
        let (device, dtype) = settings::device(&spec.node)?;
        let model = Model::load(folder, LoadOptions { device, dtype })?;
        let engine = EngineHandle::spawn(Engine::new(model, &spec.engine)?);
        let mut names = vec![spec.app_name.as_str().to_owned()];
        for name in [spec.model.name.clone(), folder.display().to_string(), "default".to_owned()] {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if text.eos_token_ids().is_empty() {
            tracing::warn!("the model names no end token: responses end at their length or a stop text only");
        }
        Ok(Self {
            inner: Arc::new(Inner {
                engine,
                text,
                defaults: SamplingDefaults::from_folder(folder),
                names,
                folder: Mutex::new(folder.clone()),
                token: token.map(TokenDigest::of),
                metrics: Metrics::default(),
                created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
                random: RandomState::new().hash_one(0),
                drawn: AtomicU64::new(0),
                updating: tokio::sync::Mutex::new(()),
                waiting: Waiting::default(),
            }),
        })
    }

    /// The engine.
    pub fn engine(&self) -> &EngineHandle {
        &self.inner.engine
    }

    /// The model's tokenizer and template.
    pub fn text(&self) -> &TextPipeline {
        &self.inner.text
    }

    pub(super) fn token(&self) -> Option<&TokenDigest> {
        self.inner.token.as_ref()
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    pub(super) fn defaults(&self) -> &SamplingDefaults {
        &self.inner.defaults
    }

    /// What the server calls its model.
    pub(super) fn name(&self) -> &str {
        &self.inner.names[0]
    }

    /// Seconds since 1970 at which the server began.
    pub(super) fn created(&self) -> u64 {
        self.inner.created
    }

    /// Refuses a name that is not served here.
    pub(super) fn check_name(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if !self.inner.names.iter().any(|known| known == name) => {
                let message =
                    format!("model = \"{name}\": this server has `{}`", self.inner.names[..2].join("` and `"));
                Err(ApiError::absent("model_not_found", message))
            }
            _ => Ok(()),
        }
    }

    /// 64 bits that no two calls share (a bijection of their count), for ids and for seeds nobody gave.
    pub(super) fn fresh(&self) -> u64 {
        fresh(self.inner.random, self.inner.drawn.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits until no other update of the weights is under way.
    pub(super) async fn updating(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.inner.updating.lock().await
    }

    /// What requests that are still to be answered hold.
    pub(super) fn waiting(&self) -> &Waiting {
        &self.inner.waiting
    }

    /// What the weights served now were read from.
    pub(super) fn folder(&self) -> PathBuf {
        self.inner.folder.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_folder(&self, folder: &Path) {
        *self.inner.folder.lock().unwrap_or_else(PoisonError::into_inner) = folder.to_owned();
    }

    pub(super) fn model_info(&self) -> ModelInfo {
        let text = self.text();
        ModelInfo {
            model_path: self.folder().display().to_string(),
            is_generation: true,
            eos_token_ids: Some(text.eos_token_ids().to_vec()),
            vocab_sha256: Some(text.vocab_sha256()),
            context_length: Some(self.engine().context_length()),
            weight_version: Some(self.engine().stats().weight_version.to_string()),
        }
    }
}

/// The `count`-th of the values that `random` begins.
fn fresh(random: u64, count: u64) -> u64 {
    mixed(random.wrapping_add(GAMMA.wrapping_mul(count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_fresh_values_are_equal() {
        // Each half of the bits alone repeats; all of them never do, since the step is odd.
        let drawn: std::collections::HashSet<u64> = (0..100_000).map(|count| fresh(7, count)).collect();
        assert_eq!(drawn.len(), 100_000);
        assert_eq!(GAMMA % 2, 1);
        assert_ne!(fresh(7, 0), fresh(8, 0));
    }
}
