//! What a launch asks `gym-runtime check`: one of this machine where there is one, which answers at
//! once; else a short Job with the image's own, its files brought through the store.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use k8s_openapi::api::batch::v1::Job as ClusterJob;
use k8s_openapi::api::core::v1 as core;
use kube::api::LogParams;
use serde_json::json;
use training_gym_core::checkpoint;
use training_gym_core::ids::AppName;
use training_gym_core::spec::{Dtype, EngineSpec, ModelSpec, NodeSpec, ServeSpec, StoredModel};
use training_gym_core::stored::ModelManifest;

use super::error::ClusterError;
use super::look::{Owner, now, state};
use super::{KubernetesBackend, MODELS, POLL};
use crate::backend::{Answer, Error, JobState, Question, Request, Workload, local};
use crate::gym::stage;
use crate::manifest::{self, CHECKER, COMPLETE, Plan};

/// Names of the files in the folder that is shipped.
const ROWS: &str = "rows.jsonl";
/// A pod that pulls a large image for the first time takes its time.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

impl KubernetesBackend {
    pub(super) async fn answer(&self, question: Question) -> Result<Answer, Error> {
        let chosen = self.inner.runtime.clone();
        let here = tokio::task::spawn_blocking(move || local::runtime_here(chosen.as_deref()));
        match here.await.map_err(|_| Error::Interrupted)? {
            Ok(program) => {
                tracing::debug!("`{}` of this machine is asked", program.display());
                local::ask(program, &question).await
            }
            // One that was named and is none is a mistake to be told of.
            Err(error) if self.inner.runtime.is_some() => Err(error),
            Err(_) => {
                tracing::info!("no `gym-runtime` on this machine: the cluster's is asked, which takes a moment");
                self.ask_there(&question).await
            }
        }
    }

    async fn ask_there(&self, question: &Question) -> Result<Answer, Error> {
        self.allowed().await?;
        let asked = question.clone();
        let shipped = tokio::task::spawn_blocking(move || Shipped::collect(&asked));
        let shipped = shipped.await.map_err(|_| Error::Interrupted)??;
        let store = self.inner.store.as_ref();
        let stored = stage(store, shipped.folder.path(), &shipped.manifest).await.map_err(ClusterError::from)?;
        let name: AppName = AppName::slug(&format!("question-{:016x}", rand::random::<u64>()));
        let folder = PathBuf::from(format!("{MODELS}/{:.16}", stored.manifest_sha256.as_str()));
        let arguments: Vec<String> = question
            .arguments(|path| shipped.place(path, &folder))
            .into_iter()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect();
        let request = Request::new(Workload::Serve { spec: Box::new(carrier(name, folder, stored)) });
        let asked = self.ask_by_job(&request, &arguments).await;
        // Whatever came of it: its Job takes the rest with it.
        self.cluster().delete::<ClusterJob>(&manifest::slug(request.workload.job_id().as_str()), None, None).await?;
        asked
    }

    async fn ask_by_job(&self, request: &Request, arguments: &[String]) -> Result<Answer, Error> {
        let access = self.store_access().await?;
        let plan = Plan {
            request,
            options: &self.inner.options,
            image: self.inner.options.image().map_err(ClusterError::from)?,
            store: &self.inner.store_url,
            store_access: access.0.clone(),
            submitted_at: now(),
        };
        let name = plan.name();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let made = self.cluster().create(&name, &manifest::question(&plan, &arguments)).await?;
        let no_answer = |why: &str| ClusterError::NoAnswer { why: why.to_owned() };
        let owner = made.map(|job| Owner::Train(Box::new(job))).ok_or_else(|| no_answer("its name is taken"))?;
        let reference = owner.reference()?;
        if !access.1.is_empty() {
            let secret = manifest::store_secret(&plan, &reference, &access.1);
            self.cluster().apply::<core::Secret>(&manifest::store_secret_name(&name), &secret).await?;
        }
        if let Some(map) = manifest::config_map(&plan, &reference) {
            self.cluster().apply::<core::ConfigMap>(&name, &map).await?;
        }
        let change = json!({"metadata": {"annotations": {COMPLETE: "true"}}, "spec": {"suspend": false}});
        self.cluster().merge::<ClusterJob>(&name, &change).await?;
        self.answer_of(&name, request).await
    }

    async fn answer_of(&self, name: &str, request: &Request) -> Result<Answer, Error> {
        let no_answer = |why: String| ClusterError::NoAnswer { why };
        let begun = Instant::now();
        loop {
            let job = self.cluster().get::<ClusterJob>(name).await?;
            let job = job.ok_or_else(|| no_answer("its job was removed".to_owned()))?;
            let owner = Owner::Train(Box::new(job));
            let pods = self.pods(&owner).await?;
            let timeout = self.inner.options.start_timeout().min(PATIENCE);
            let evidence = self.gather(&owner, pods).await?;
            let seen = state(&owner, &evidence.pods, Some(&evidence), timeout.as_secs_f64());
            if let JobState::Ended(exit) = seen.state {
                let pod = evidence.pods.last().and_then(|pod| pod.metadata.name.clone());
                let text = match pod {
                    Some(pod) => self.printed(&pod).await?,
                    None => String::new(),
                };
                return match read(&text, exit.code == Some(0)) {
                    Some(answer) => Ok(answer),
                    None => Err(no_answer(exit.to_string()).into()),
                };
            }
            if begun.elapsed() > PATIENCE {
                let why = seen.waiting.unwrap_or_else(|| format!("`{}` does not end", request.workload.job_id()));
                return Err(no_answer(why).into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn printed(&self, pod: &str) -> Result<String, ClusterError> {
        let parameters = LogParams { container: Some(CHECKER.to_owned()), ..LogParams::default() };
        let (parameters, cluster) = (&parameters, self.cluster());
        let read = cluster
            .call("read a log", |client| async move { cluster.api::<core::Pod>(client).logs(pod, parameters).await });
        // A container that never started has no log; how the job ended says why.
        Ok(read.await.unwrap_or_default())
    }
}

/// The answer in a log, which holds both of the program's outputs: a document, or its error.
fn read(text: &str, success: bool) -> Option<Answer> {
    let document = |line: &&str| serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line).is_ok();
    if success {
        let line = text.lines().rev().find(document)?;
        return Some(Answer::Printed { program: "gym-runtime".into(), stdout: line.as_bytes().to_vec() });
    }
    let at = text.find("error: ")?;
    Some(Answer::Refused(text[at + "error: ".len()..].trim().to_owned()))
}

/// A deployment that is never served: `gym-runtime fetch` brings its model.
fn carrier(app_name: AppName, folder: PathBuf, stored: StoredModel) -> ServeSpec {
    ServeSpec {
        app_name,
        model: ModelSpec { name: "question".to_owned(), folder, hub: None, stored: Some(stored) },
        host: "127.0.0.1".to_owned(),
        port: 0,
        token: None,
        engine: EngineSpec::default(),
        node: NodeSpec { device: "cpu".to_owned(), dtype: Dtype::Float32, threads: 1 },
    }
}

/// The question's files in one folder, without weights.
struct Shipped {
    folder: tempfile::TempDir,
    manifest: ModelManifest,
    model: PathBuf,
    rows: Option<PathBuf>,
}

impl Shipped {
    fn collect(question: &Question) -> Result<Self, Error> {
        let io = |action: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { action, path, source }
        };
        let folder = tempfile::tempdir().map_err(io("create", &std::env::temp_dir()))?;
        let link = |from: &Path, name: &str| {
            let from = std::path::absolute(from).unwrap_or_else(|_| from.to_owned());
            let to = folder.path().join(name);
            std::os::unix::fs::symlink(&from, &to).map_err(io("link", &to))
        };
        let (model, rows) = match question {
            Question::Computes { config } => {
                link(config, "config.json")?;
                (config.clone(), None)
            }
            Question::Rows(asked) | Question::Lengths(asked) => {
                for entry in fs::read_dir(&asked.model).map_err(io("list", &asked.model))? {
                    let path = entry.map_err(io("list", &asked.model))?.path();
                    let name = path.file_name().and_then(|name| name.to_str());
                    if let Some(name) = name.filter(|name| path.is_file() && describes(name)) {
                        link(&path, name)?;
                    }
                }
                link(&asked.rows, ROWS)?;
                (asked.model.clone(), Some(asked.rows.clone()))
            }
        };
        let files = checkpoint::describe(folder.path())
            .map_err(|error| io("read", folder.path())(std::io::Error::other(error)))?;
        Ok(Self { folder, manifest: ModelManifest { files }, model, rows })
    }

    /// Where a file of the question is, when the folder lies at `root`.
    fn place(&self, path: &Path, root: &Path) -> PathBuf {
        match &self.rows {
            Some(rows) if rows == path => root.join(ROWS),
            None if self.model == path => root.join("config.json"),
            _ => root.to_owned(),
        }
    }
}

/// Whether a file of a model's folder describes the model or its text, and is no weights.
fn describes(name: &str) -> bool {
    let kinds = [".json", ".txt", ".jinja", ".model", ".tiktoken"];
    name != ROWS && name != checkpoint::MANIFEST && kinds.iter().any(|kind| name.ends_with(kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::RowsQuestion;

    #[test]
    fn an_answer_is_found_among_what_else_was_printed() {
        let text = "2026-01-01 INFO {\"not\": it}\n{\"rows\": 3}\n";
        let Some(Answer::Printed { stdout, .. }) = read(text, true) else { panic!() };
        assert_eq!(stdout, b"{\"rows\": 3}");
        let refused = read("INFO hm\nerror: no such family\nsupported: A\n", false);
        assert_eq!(refused, Some(Answer::Refused("no such family\nsupported: A".to_owned())));
        assert_eq!(read("", false), None);
        assert_eq!(read("INFO only\n", true), None);
    }

    #[test]
    fn a_question_ships_what_it_names_and_no_weights() {
        let home = tempfile::tempdir().unwrap();
        let model = home.path().join("model");
        fs::create_dir_all(&model).unwrap();
        for name in ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors", "README.md"] {
            fs::write(model.join(name), name).unwrap();
        }
        let rows = home.path().join("tmp123");
        fs::write(&rows, "{}").unwrap();
        let question = Question::Rows(RowsQuestion {
            model: model.clone(),
            rows: rows.clone(),
            raw: true,
            chat_template_kwargs: serde_json::Map::new(),
            max_prompt_len: 7,
        });
        let shipped = Shipped::collect(&question).unwrap();
        let names: Vec<&str> = shipped.manifest.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["chat_template.jinja", "config.json", "rows.jsonl", "tokenizer.json"]);
        let root = Path::new("/models/x");
        let arguments = question.arguments(|path| shipped.place(path, root));
        let arguments: Vec<&str> = arguments.iter().map(|argument| argument.to_str().unwrap()).collect();
        let expected = [
            "check",
            "--model",
            "/models/x",
            "--rows",
            "/models/x/rows.jsonl",
            "--chat-template-kwargs",
            "{}",
            "--max-prompt-len",
            "7",
            "--raw",
        ];
        assert_eq!(arguments, expected);
        let config = model.join("config.json");
        let question = Question::Computes { config };
        let shipped = Shipped::collect(&question).unwrap();
        let arguments = question.arguments(|path| shipped.place(path, root));
        assert_eq!(arguments, ["check", "--config", "/models/x/config.json"]);
    }
}
