//! The local backend against a stand-in for `gym-runtime` (`fixtures/fake_runtime.py`).

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use support::{Home, alive, serve_spec, wait_until};
use training_gym::backend::{
    Backend, Error, IfExisting, Job, JobState, LogOptions, Request, Secret, Submitted, Workload,
};

const GRACE: Duration = Duration::from_secs(5);

fn service(name: &str, scene: &str) -> Request {
    Request::new(Workload::Serve { spec: Box::new(serve_spec(name, scene)) })
}

async fn settled(backend: &dyn Backend, request: &Request) -> Job {
    let id = request.workload.job_id();
    wait_until(|| async {
        let job = backend.job(&id).await.unwrap();
        (job.state != JobState::Starting).then_some(job)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_found_by_a_second_backend_and_stopping_it_leaves_no_process() {
    let home = Home::new();
    let backend = home.backend();
    let request = service("one", "fine");
    let id = request.workload.job_id();
    assert_eq!(backend.submit(request.clone()).await.unwrap(), Submitted::Started);
    settled(&backend, &request).await;

    let other = home.backend();
    let jobs = other.list().await.unwrap();
    assert_eq!(jobs.len(), 1);
    assert_eq!((&jobs[0].id, &jobs[0].state), (&id, &JobState::Running));
    let url = jobs[0].url.clone().unwrap();
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    assert_eq!(reqwest::get(format!("{url}/health")).await.unwrap().status(), 200);

    let processes = alive(&home.path().join("jobs"));
    assert_eq!(processes.len(), 2, "a supervisor and a server: {processes:?}");
    other.cancel(&id, GRACE).await.unwrap();
    assert_eq!(alive(&home.path().join("jobs")), Vec::<String>::new());
    let JobState::Ended(exit) = backend.job(&id).await.unwrap().state else { panic!("it should be over") };
    assert!(exit.cancelled);
    assert_eq!(exit.signal, Some(15));
    assert!(reqwest::get(format!("{url}/health")).await.is_err());
    other.cancel(&id, GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_deaf_to_sigterm_is_killed_after_the_grace() {
    let home = Home::new();
    let backend = home.backend();
    let request = service("deaf", "deaf");
    backend.submit(request.clone()).await.unwrap();
    settled(&backend, &request).await;
    backend.cancel(&request.workload.job_id(), Duration::from_millis(100)).await.unwrap();
    assert_eq!(alive(home.path()), Vec::<String>::new());
    let JobState::Ended(exit) = backend.job(&request.workload.job_id()).await.unwrap().state else { panic!() };
    assert_eq!((exit.signal, exit.cancelled), (Some(9), true));
}

#[tokio::test(flavor = "multi_thread")]
async fn how_a_process_ended_is_told() {
    let home = Home::new();
    let backend = home.backend();
    for (name, words) in [("dies", "exited with code 3"), ("killed", "possibly the machine ran out of memory")] {
        let request = service(name, name);
        backend.submit(request.clone()).await.unwrap();
        let job = settled(&backend, &request).await;
        assert!(job.state.to_string().contains(words), "{}", job.state);
        assert_eq!(job.url, None);
    }
    let id = service("dies", "dies").workload.job_id();
    let log = backend.logs(&id, LogOptions { tail: Some(1), follow: true }).await.unwrap().lines().await.unwrap();
    assert_eq!(log, ["error: no tensor `lm_head.weight` in the checkpoint"]);
    let log = backend.logs(&id, LogOptions::default()).await.unwrap().lines().await.unwrap();
    assert_eq!(log.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_submissions_at_once_one_starts() {
    let home = Home::new();
    let (first, second) = (home.backend(), home.backend());
    let request = service("twice", "fine");
    let (a, b) = tokio::join!(first.submit(request.clone()), second.submit(request.clone()));
    let mut outcomes = [a.unwrap(), b.unwrap()];
    outcomes.sort_by_key(|outcome| *outcome == Submitted::Adopted);
    assert_eq!(outcomes, [Submitted::Started, Submitted::Adopted]);
    settled(&first, &request).await;
    assert_eq!(alive(&home.path().join("jobs")).len(), 2);
    first.cancel(&request.workload.job_id(), GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_service_is_adopted_refused_or_replaced() {
    let home = Home::new();
    let backend = home.backend();
    let request = service("app", "fine");
    backend.submit(request.clone()).await.unwrap();
    let before = settled(&backend, &request).await;
    assert_eq!(backend.submit(request.clone()).await.unwrap(), Submitted::Adopted);

    let mut other = serve_spec("app", "fine");
    other.engine.max_running_requests = 3;
    let mut other = Request::new(Workload::Serve { spec: Box::new(other) });
    let error = backend.submit(other.clone()).await.unwrap_err();
    assert!(matches!(&error, Error::Different { field, .. } if field == "spec.engine.max_running_requests"), "{error}");

    other.if_existing = IfExisting::Replace;
    assert_eq!(backend.submit(other.clone()).await.unwrap(), Submitted::Started);
    let after = settled(&backend, &other).await;
    assert_eq!(after.workload, other.workload);
    assert!(reqwest::get(format!("{}/health", before.url.unwrap())).await.is_err());
    assert!(home.path().join("jobs/.previous/serve-app/log").exists(), "the old log can still be read");
    backend.cancel(&other.workload.job_id(), GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_dead_processes_are_recognised() {
    let home = Home::new();
    let backend = home.backend();
    let request = service("lost", "fine");
    let id = request.workload.job_id();
    backend.submit(request.clone()).await.unwrap();
    settled(&backend, &request).await;
    // As after a restart of the machine: the files are there, the processes are not.
    for line in alive(&home.path().join("jobs")) {
        let pid = line.split(' ').next().unwrap();
        std::process::Command::new("kill").args(["-9", pid]).status().unwrap();
    }
    let exit_file = home.path().join("jobs/serve-lost/exit.json");
    wait_until(|| async { alive(home.path()).is_empty().then_some(()) }).await;
    std::fs::remove_file(exit_file).ok();
    // A dying process gives up its command line a moment before it is a zombie.
    let job = wait_until(|| async {
        let job = backend.job(&id).await.unwrap();
        (!job.state.is_live()).then_some(job)
    })
    .await;
    assert!(job.state.to_string().contains("vanished"), "{}", job.state);
    assert_eq!(job.url, None, "an address nobody answers on is not given");

    // Its pid belongs to somebody else now.
    let process = home.path().join("jobs/serve-lost/process.json");
    let mut identity: serde_json::Value = serde_json::from_slice(&std::fs::read(&process).unwrap()).unwrap();
    identity["pid"] = std::process::id().into();
    std::fs::write(&process, identity.to_string()).unwrap();
    assert!(!backend.job(&id).await.unwrap().state.is_live());
    backend.cancel(&id, GRACE).await.unwrap();

    assert_eq!(backend.submit(request.clone()).await.unwrap(), Submitted::Started);
    settled(&backend, &request).await;
    backend.cancel(&id, GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_process_was_never_written_down_is_found() {
    let home = Home::new();
    let backend = home.backend();
    let request = service("unwritten", "fine");
    backend.submit(request.clone()).await.unwrap();
    settled(&backend, &request).await;
    std::fs::remove_file(home.path().join("jobs/serve-unwritten/process.json")).unwrap();
    assert_eq!(backend.job(&request.workload.job_id()).await.unwrap().state, JobState::Running);
    backend.cancel(&request.workload.job_id(), GRACE).await.unwrap();
    assert_eq!(alive(home.path()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_in_its_file_and_nowhere_else() {
    let home = Home::new();
    let backend = home.backend();
    let secret = Secret::generate();
    let mut spec = serve_spec("secret", "fine");
    let id = training_gym::backend::JobId::serve(&spec.app_name);
    spec.token = Some(backend.secret_ref(&id, "token"));
    let mut request = Request::new(Workload::Serve { spec: Box::new(spec) });
    request.secrets = BTreeMap::from([("token".to_owned(), secret.clone())]);
    assert!(!format!("{request:?}").contains(secret.expose()));
    backend.submit(request.clone()).await.unwrap();
    settled(&backend, &request).await;

    assert_eq!(backend.secret(&id, "token").await.unwrap(), secret);
    let mut holders = Vec::new();
    support::walk(home.path(), &mut |path| {
        if std::fs::read(path).unwrap().windows(64).any(|part| secret.expose().as_bytes().ends_with(part)) {
            holders.push(path.strip_prefix(home.path()).unwrap().to_owned());
        }
    });
    assert_eq!(holders, [std::path::Path::new("jobs/serve-secret/secrets/token")]);
    let mode = std::os::unix::fs::MetadataExt::mode(&home.path().join(&holders[0]).metadata().unwrap());
    assert_eq!(mode & 0o777, 0o600);
    for line in alive(home.path()) {
        let pid = line.split(' ').next().unwrap();
        for place in ["cmdline", "environ"] {
            let bytes = std::fs::read(format!("/proc/{pid}/{place}")).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains(secret.expose()), "{place}");
        }
    }
    backend.cancel(&id, GRACE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_followed_until_the_job_ends() {
    let home = Home::new();
    let backend = home.backend();
    let request = service("later", "dies-later");
    backend.submit(request.clone()).await.unwrap();
    let logs = backend.logs(&request.workload.job_id(), LogOptions { tail: None, follow: true }).await.unwrap();
    let lines = tokio::time::timeout(Duration::from_secs(10), logs.lines()).await.unwrap().unwrap();
    assert_eq!(lines.first().unwrap(), "serving dies-later with 1 threads");
    assert_eq!(lines.last().unwrap(), "error: the disk is full");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_that_fails_is_quoted() {
    let home = Home::new();
    let program = home.path().join("broken");
    let script = "#!/bin/sh\n[ \"$1\" = --version ] && exec echo gym-runtime 0.0.0\n\
                  echo 'libtorch.so: cannot open shared object file' >&2\nexit 127\n";
    std::fs::write(&program, script).unwrap();
    support::make_executable(&program);
    let backend = training_gym::backend::LocalBackend::new(home.path()).with_runtime(&program);
    let request = service("broken", "fine");
    backend.submit(request.clone()).await.unwrap();
    let job = settled(&backend, &request).await;
    assert!(!job.state.is_live());
    let options = LogOptions { tail: Some(5), follow: true };
    let lines = backend.logs(&job.id, options).await.unwrap().lines().await.unwrap();
    assert_eq!(lines, ["libtorch.so: cannot open shared object file"]);
}

#[tokio::test]
async fn unknown_jobs_and_missing_programs_are_said_to_be_so() {
    let home = Home::new();
    let backend = home.backend();
    let request = service("none", "fine");
    let id = request.workload.job_id();
    assert!(matches!(backend.job(&id).await, Err(Error::UnknownJob { .. })));
    assert!(matches!(backend.cancel(&id, GRACE).await, Err(Error::UnknownJob { .. })));
    assert!(matches!(backend.logs(&id, LogOptions::default()).await, Err(Error::UnknownJob { .. })));
    assert!(backend.list().await.unwrap().is_empty());
    let backend = training_gym::backend::LocalBackend::new(home.path()).with_runtime("/nowhere/gym-runtime");
    let error = backend.submit(request.clone()).await.unwrap_err();
    assert!(matches!(error, Error::NoRuntime { .. }) && error.to_string().contains("/nowhere/gym-runtime"), "{error}");
    // Another program is no runtime, and its job would end without a word.
    let backend = training_gym::backend::LocalBackend::new(home.path()).with_runtime("/bin/true");
    let error = backend.submit(request).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::NotRuntime { .. }) && text.contains("true` does not answer"), "{text}");
    assert!(text.contains("TRAINING_GYM_RUNTIME") && text.contains("cargo xtask runtime"), "{text}");
    assert!(backend.list().await.unwrap().is_empty(), "nothing half-made is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_is_named_with_its_folder_and_what_to_do() {
    let home = Home::new();
    let backend = home.backend();
    let request = service("hurt", "dies");
    let id = request.workload.job_id();
    backend.submit(request.clone()).await.unwrap();
    settled(&backend, &request).await;
    let folder = home.path().join("jobs/serve-hurt");
    wait_until(|| async { folder.join("exit.json").is_file().then_some(()) }).await;
    for name in ["exit.json", "process.json", "record.json"] {
        let path = folder.join(name);
        let whole = std::fs::read(&path).unwrap();
        let half = &whole[..whole.len() / 2];
        for damage in [half, b"", b"\0\0\0", b"7"] {
            std::fs::write(&path, damage).unwrap();
            if name == "process.json" {
                std::fs::remove_file(folder.join("exit.json")).ok();
            }
            for error in [backend.job(&id).await.unwrap_err(), backend.list().await.unwrap_err()] {
                let text = error.to_string();
                assert!(matches!(error, Error::Record { .. }), "{text}");
                assert!(text.contains(&format!("`{}`", path.display())), "{text}");
                assert!(text.contains(&format!("remove `{}`", folder.display())) && error.hint().is_some(), "{text}");
                assert!(std::error::Error::source(&error).unwrap().to_string().contains(" line "), "{error:?}");
            }
        }
        std::fs::write(&path, whole).unwrap();
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(backend.list().await.unwrap().is_empty());
    backend.submit(request.clone()).await.unwrap();
    settled(&backend, &request).await;
}
