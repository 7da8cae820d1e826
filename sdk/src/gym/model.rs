//! A model's files, and whether the runtime computes such a model, asked before the weights are fetched.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use training_gym_core::spec::{HubRef, ModelSpec};
use training_gym_core::{checkpoint, store};

use super::Gym;
use super::staging::PlacedModel;
use crate::backend::{self, Question};
use crate::config::{Model, ModelSource};
use crate::hub::{self, Repo, local_model};

/// Why there is no model to compute with.
#[derive(Debug)]
pub(crate) enum ModelError {
    /// Its files could not be had.
    Hub(hub::Error),
    /// The runtime could not be asked, or a file of it not be read.
    Backend(backend::Error),
    /// A store failed, the model's or the one it is put into.
    Store(store::Error),
    /// A checkpoint is not what was published.
    Checkpoint(checkpoint::Error),
    /// The runtime does not compute it, in its words.
    Refused(String),
}

impl From<hub::Error> for ModelError {
    fn from(error: hub::Error) -> Self {
        Self::Hub(error)
    }
}

impl From<store::Error> for ModelError {
    fn from(error: store::Error) -> Self {
        Self::Store(error)
    }
}

impl From<checkpoint::Error> for ModelError {
    fn from(error: checkpoint::Error) -> Self {
        Self::Checkpoint(error)
    }
}

impl From<backend::Error> for ModelError {
    fn from(error: backend::Error) -> Self {
        Self::Backend(error)
    }
}

/// What `gym-runtime check --config` prints: that it answers at all says that it computes the model.
#[derive(Deserialize)]
struct Computed {
    #[serde(rename = "family")]
    _family: String,
}

impl Gym {
    /// The model, under `name`, where jobs find it: fetched from its store or the hub where it is not here, at the
    /// commit `before` has if that is of the same repository and revision.
    ///
    /// The runtime sees `config.json` first, so that a family it does not compute costs no download.
    pub(crate) async fn model(
        &self,
        model: Model,
        name: String,
        before: Option<&HubRef>,
    ) -> Result<PlacedModel, ModelError> {
        let (folder, hub) = match model.source() {
            ModelSource::Stored(url) => return self.stored_model(model, name, &self.spot(url)?).await,
            ModelSource::Folder(path) => {
                let folder = local_model(path)?;
                self.computes(model, &folder.join("config.json")).await?;
                (folder, None)
            }
            ModelSource::Hub { repo, revision } => {
                let same = before.filter(|before| before.repo == repo && before.revision == revision);
                let at = same.map_or(revision, |same| &same.commit);
                let listing = self.hub().files(&Repo::model(repo)?, at).await?;
                let config = self.hub().config(&listing).await?;
                self.computes(model, &config).await?;
                let snapshot = self.hub().rest(listing).await?;
                let (repo, revision) = (repo.to_owned(), revision.to_owned());
                (snapshot.folder, Some(HubRef { repo, revision, commit: snapshot.commit }))
            }
        };
        self.place(ModelSpec { name, folder, hub, stored: None }).await
    }

    /// Asks `gym-runtime check` whether it computes the model of this `config.json`.
    pub(crate) async fn computes(&self, model: Model, config: &Path) -> Result<(), ModelError> {
        let config: PathBuf = std::path::absolute(config).unwrap_or_else(|_| config.to_owned());
        let answer = self.backend().ask(Question::Computes { config }).await?.json::<Computed>()?;
        answer.map(drop).map_err(|said| ModelError::Refused(format!("`{model}`: {said}")))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::{Opd, Recipe, TrainConfig};
    use crate::dataset::HuggingFaceDataset;
    use crate::hub::testing::{COMMIT, FakeHub};

    /// A client of `server`, with a stand-in for the runtime that computes `FakeForCausalLM` alone.
    fn gym(home: &Path, server: &FakeHub) -> Gym {
        let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fake_runtime.py");
        Gym::local(home).unwrap().with_runtime(runtime).with_hub(server.hub(&home.join("hub")))
    }

    #[tokio::test]
    async fn a_family_that_is_not_computed_is_refused_before_its_weights_are_fetched() {
        let home = tempfile::tempdir().unwrap();
        let config = br#"{"architectures": ["MambaForCausalLM"]}"#;
        let server = FakeHub::serve(&[("config.json", config), ("model.safetensors", b"w")]).await;
        let gym = gym(home.path(), &server);
        let launched = crate::deploy::Endpoint::launch(Model::hub("org/name")).on(&gym).await;
        let text = launched.unwrap_err().to_string();
        for part in ["`org/name`", "MambaForCausalLM", "supported: FakeForCausalLM"] {
            assert!(text.contains(part), "{text}");
        }
        let fetched: Vec<String> = server.seen_for("/resolve/").into_iter().map(|seen| seen.path).collect();
        assert_eq!(fetched, [format!("/org/name/resolve/{COMMIT}/config.json")]);
        // A folder is refused the same way, before a process is started.
        let folder = home.path().join("mamba");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), config).unwrap();
        let launched = crate::deploy::Endpoint::launch(Model::folder(&folder)).on(&gym).await;
        let text = launched.unwrap_err().to_string();
        assert!(text.contains("`mamba`") && text.contains("MambaForCausalLM"), "{text}");
        assert!(gym.backend().list().await.unwrap().is_empty());
        // A URL of no store is named, not taken for a hub id.
        let launched = crate::deploy::Endpoint::launch(Model::hub("gs://bucket/m")).on(&gym).await;
        let text = launched.unwrap_err().to_string();
        assert!(text.contains("`gs://bucket/m`") && text.contains("`s3://bucket/prefix`"), "{text}");
    }

    /// A backend elsewhere: it answers for itself, or has a folder of models and asks the runtime of the other.
    #[derive(Debug)]
    pub(in crate::gym) struct Elsewhere(
        pub(in crate::gym) backend::LocalBackend,
        pub(in crate::gym) Option<&'static str>,
    );

    #[async_trait::async_trait]
    impl backend::Backend for Elsewhere {
        fn name(&self) -> String {
            "elsewhere".to_owned()
        }
        fn listen_on(&self) -> (&str, u16) {
            ("127.0.0.1", 0)
        }

        fn models(&self) -> Option<&str> {
            self.1
        }
        async fn ask(&self, question: backend::Question) -> Result<backend::Answer, backend::Error> {
            assert!(matches!(question, backend::Question::Computes { .. }));
            if self.1.is_some() {
                return self.0.ask(question).await;
            }
            Ok(backend::Answer::Refused("asked elsewhere".to_owned()))
        }
        async fn share(&self, id: &backend::JobId) -> Result<backend::Share, backend::Error> {
            self.0.share(id).await
        }
        fn secret_ref(&self, id: &backend::JobId, name: &str) -> training_gym_core::spec::SecretRef {
            self.0.secret_ref(id, name)
        }
        async fn secret(&self, id: &backend::JobId, name: &str) -> Result<backend::Secret, backend::Error> {
            self.0.secret(id, name).await
        }
        async fn submit(&self, request: backend::Request) -> Result<backend::Submitted, backend::Error> {
            self.0.submit(request).await
        }
        async fn job(&self, id: &backend::JobId) -> Result<backend::Job, backend::Error> {
            self.0.job(id).await
        }
        async fn logs(
            &self,
            id: &backend::JobId,
            options: backend::LogOptions,
        ) -> Result<backend::Logs, backend::Error> {
            self.0.logs(id, options).await
        }
        async fn cancel(&self, id: &backend::JobId, grace: std::time::Duration) -> Result<(), backend::Error> {
            self.0.cancel(id, grace).await
        }
        async fn list(&self) -> Result<Vec<backend::Job>, backend::Error> {
            self.0.list().await
        }
    }

    #[tokio::test]
    async fn the_runtime_of_the_backend_is_asked_and_no_other() {
        let home = tempfile::tempdir().unwrap();
        let backend = Elsewhere(backend::LocalBackend::new(home.path()), None);
        // Nothing is asked of the program of this machine, which is none.
        let gym = Gym::local(home.path()).unwrap().with_runtime("/nowhere").with_backend(std::sync::Arc::new(backend));
        let folder = home.path().join("m");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), "{}").unwrap();
        let launched = crate::deploy::Endpoint::launch(Model::folder(folder)).on(&gym).await;
        let text = launched.unwrap_err().to_string();
        assert!(text.contains("asked elsewhere"), "{text}");
    }

    #[tokio::test]
    async fn the_commits_of_model_and_rows_are_in_the_spec_and_are_taken_again() {
        let home = tempfile::tempdir().unwrap();
        let rows = br#"{"prompt": "1 + 1 = ?", "label": 2}"#;
        let files: &[(&str, &[u8])] =
            &[("config.json", b"{}"), ("model.safetensors", b"w"), ("train.jsonl", rows), ("README.md", b"")];
        let server = FakeHub::serve(files).await;
        let gym = gym(home.path(), &server);
        let config = TrainConfig {
            model: Model::hub("org/name").with_revision("v1"),
            dataset: HuggingFaceDataset::new("org/name").hub(server.hub(&home.path().join("hub"))),
            recipe: Recipe { opd: Some(Opd::to_url("http://127.0.0.1:9/generate")), ..Recipe::default() },
        };
        let spec = config.check().on(&gym).await.unwrap().spec;
        let at = |revision: &str| {
            Some(HubRef { repo: "org/name".to_owned(), revision: revision.to_owned(), commit: COMMIT.to_owned() })
        };
        assert_eq!((&spec.model.hub, &spec.data.train.hub), (&at("v1"), &at("main")));
        assert_eq!(spec.model.name, "org/name");
        assert!(spec.model.folder.ends_with(COMMIT), "{}", spec.model.folder.display());
        // The rows are in the store by now, and where they came from is said all the same.
        let again = config.check().on(&gym).await.unwrap().spec;
        assert_eq!(again.data.train, spec.data.train);

        let before = server.seen().len();
        gym.model(config.model, "m".to_owned(), spec.model.hub.as_ref()).await.unwrap();
        config.dataset.clone().pinned(spec.data.train.hub.as_ref()).materialise(gym.store().as_ref()).await.unwrap();
        let asked: Vec<String> = server.seen()[before..].iter().map(|seen| seen.path.clone()).collect();
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(asked.iter().all(|path| path.ends_with(&format!("/revision/{COMMIT}"))), "{asked:?}");
        // Another revision is another model: the commit of the first is not taken.
        gym.model(Model::hub("org/name"), "m".to_owned(), spec.model.hub.as_ref()).await.unwrap();
        assert!(server.seen().last().unwrap().path.ends_with("/revision/main"));
    }
}
