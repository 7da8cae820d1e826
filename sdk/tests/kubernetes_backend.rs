//! The Kubernetes backend against a real API server with its controllers. There is no node: a pod's
//! life is written by the test.
#![cfg(feature = "kubernetes")]

#[path = "support/api_server.rs"]
mod api_server;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api_server::{ADMIN, ApiServer, DRIVER, STRANGER};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use training_gym::backend::kubernetes::{ClusterError, KubernetesBackend, KubernetesOptions};
use training_gym::backend::{
    Backend, Error, IfExisting, Job, JobId, JobState, LogOptions, Request, Resources, Secret, Submitted, Workload,
};
use training_gym_core::spec::{Dtype, Egress, EngineSpec, ModelSpec, NodeSpec, ServeSpec};
use training_gym_core::store::MemoryStore;

const NAMESPACE: &str = "gym";
const TOKEN: &str = "a-teacher-token-in-the-clear";

fn options() -> KubernetesOptions {
    KubernetesOptions {
        namespace: Some(NAMESPACE.to_owned()),
        image: Some("registry.example.com/gym-runtime:0".to_owned()),
        store_in_cluster: Some("s3://bucket/gym".to_owned()),
        store_secret: Some("s3-keys".to_owned()),
        ..KubernetesOptions::default()
    }
}

async fn backend(server: &ApiServer, token: &str) -> KubernetesBackend {
    KubernetesBackend::with_config(server.config(token).await, options(), Arc::new(MemoryStore::new())).unwrap()
}

fn train(run: &str) -> Request {
    let workload = Workload::Train { run_id: run.parse().unwrap(), store: "s3://bucket/gym".to_owned(), threads: 1 };
    Request {
        reward_worker: true,
        secrets: BTreeMap::from([("teacher-token".to_owned(), Secret::new(TOKEN))]),
        ..Request::new(workload)
    }
}

fn serve(name: &str) -> Request {
    let spec = ServeSpec {
        app_name: name.parse().unwrap(),
        model: ModelSpec { name: "tiny".to_owned(), folder: "/models/tiny".into(), hub: None, stored: None },
        host: "0.0.0.0".to_owned(),
        port: 8000,
        token: None,
        engine: EngineSpec::default(),
        node: NodeSpec { device: "cpu".to_owned(), dtype: Dtype::Float32, threads: 1 },
    };
    Request {
        secrets: BTreeMap::from([("token".to_owned(), Secret::new(TOKEN))]),
        ..Request::new(Workload::Serve { spec: Box::new(spec) })
    }
}

async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The test's hand in a pod's life.
struct Kubelet(Api<Pod>);

impl Kubelet {
    async fn of(server: &ApiServer) -> Self {
        let client = kube::Client::try_from(server.config(ADMIN).await).unwrap();
        Self(Api::namespaced(client, NAMESPACE))
    }

    async fn pods(&self, job: &str) -> Vec<Pod> {
        self.0.list(&ListParams::default().labels(&format!("training-gym/job={job}"))).await.unwrap().items
    }

    /// Waits for a job's only live pod, and gives it a state.
    async fn set(&self, job: &str, phase: &str, name: &str, state: Value) -> String {
        let pod = until("a pod", || async {
            let live =
                |pod: &Pod| !matches!(pod.status.as_ref().unwrap().phase.as_deref(), Some("Failed" | "Succeeded"));
            self.pods(job).await.into_iter().find(live)
        })
        .await;
        let pod = pod.metadata.name.unwrap();
        let container = json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "containerID": "containerd://1", "state": state});
        let status = json!({"status": {"phase": phase, "containerStatuses": [container],
            "conditions": [{"type": "Ready", "status": if phase == "Running" { "True" } else { "False" }}]}});
        self.0.patch_status(&pod, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
        pod
    }
}

async fn state(backend: &KubernetesBackend, id: &JobId) -> JobState {
    backend.job(id).await.unwrap().state
}

fn prepared() -> Option<ApiServer> {
    let server = ApiServer::start()?;
    server.must(&["create", "namespace", NAMESPACE]);
    // Nothing of ours may need more than the strictest standard allows.
    server.must(&["label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted"]);
    let rbac = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/manifests/base/rbac.yaml");
    server.must(&["apply", "-n", NAMESPACE, "-f", rbac.to_str().unwrap()]);
    Some(server)
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_real_api_server() {
    let Some(mut server) = prepared() else { return };
    permissions(&server).await;
    a_run_from_its_launch_to_its_end(&server).await;
    a_failed_run_is_launched_again(&server).await;
    a_run_is_cancelled(&server).await;
    a_reward_function_with_hosts(&server).await;
    a_deployment_comes_and_goes(&server).await;
    what_is_left_behind_is_found(&server).await;
    the_server_restarts(&mut server).await;
}

async fn permissions(server: &ApiServer) {
    let error = backend(server, STRANGER).await.submit(train("nobody")).await.unwrap_err();
    let Error::Cluster(ClusterError::MissingPermissions { namespace, missing }) = &error else { panic!("{error}") };
    assert_eq!(namespace, NAMESPACE);
    for needed in ["create jobs.batch", "create deployments.apps", "get pods/log", "list events", "patch secrets"] {
        assert!(missing.iter().any(|missing| missing == needed), "{needed}: {missing:?}");
    }
    assert!(error.to_string().contains("images/manifests/base/rbac.yaml"), "{error}");
    // The role that is shipped is enough: everything below is done with it.
    backend(server, DRIVER).await.check_access().await.unwrap();
    let error = backend(server, "no-such-token").await.check_access().await.unwrap_err();
    assert!(matches!(error, ClusterError::Unauthorized { .. }), "{error}");
    let elsewhere = KubernetesOptions { namespace: Some("nowhere".to_owned()), ..options() };
    let store = Arc::new(MemoryStore::new());
    let elsewhere = KubernetesBackend::with_config(server.config(ADMIN).await, elsewhere, store).unwrap();
    let error = elsewhere.submit(train("r")).await.unwrap_err();
    assert!(matches!(&error, Error::Cluster(ClusterError::NoNamespace { .. })), "{error}");
}

async fn a_run_from_its_launch_to_its_end(server: &ApiServer) {
    let (backend, kubelet) = (backend(server, DRIVER).await, Kubelet::of(server).await);
    let id = JobId::train(&"run-1".parse().unwrap());
    assert!(matches!(backend.job(&id).await, Err(Error::UnknownJob { .. })));
    assert_eq!(backend.submit(train("run-1")).await.unwrap(), Submitted::Started);
    let job = backend.job(&id).await.unwrap();
    assert_eq!(
        (job.state.clone(), job.workload.clone(), job.restarts),
        (JobState::Starting, train("run-1").workload, true)
    );
    assert_eq!(backend.secret(&id, "teacher-token").await.unwrap(), Secret::new(TOKEN));
    // The same again is adopted, something else refused by its field; also by another program.
    let other = self::backend(server, DRIVER).await;
    assert_eq!(other.submit(train("run-1")).await.unwrap(), Submitted::Adopted);
    let larger = Resources { memory: Some("2Gi".to_owned()), ..Resources::default() };
    let error = other.submit(Request { resources: larger, ..train("run-1") }).await.unwrap_err().to_string();
    assert!(error.contains("resources.memory"), "{error}");

    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let pod = kubelet.set("train-run-1", "Running", "trainer", running).await;
    assert_eq!(state(&backend, &id).await, JobState::Running);
    // The pod dies in a way that another may not: the next comes, and the job lives on.
    kubelet.set("train-run-1", "Failed", "trainer", json!({"terminated": {"exitCode": 6}})).await;
    until("another pod", || async { (kubelet.pods("train-run-1").await.len() > 1).then_some(()) }).await;
    assert_eq!(state(&backend, &id).await, JobState::Starting);
    let next = kubelet.set("train-run-1", "Succeeded", "trainer", json!({"terminated": {"exitCode": 0}})).await;
    assert_ne!(pod, next);
    let exit = until("the end", || async {
        match state(&backend, &id).await {
            JobState::Ended(exit) => Some(exit),
            _ => None,
        }
    })
    .await;
    assert_eq!((exit.code, exit.cancelled, exit.failure), (Some(0), false, None));
    // Nothing that people look at holds the token.
    for object in ["jobs", "pods", "configmaps", "events"] {
        let shown = server.must(&["get", object, "-n", NAMESPACE, "-o", "yaml"]);
        let described = server.must(&["describe", object, "-n", NAMESPACE]);
        assert!(!shown.contains(TOKEN) && !described.contains(TOKEN), "{object}");
    }
    assert!(backend.logs(&id, LogOptions::default()).await.unwrap().lines().await.unwrap().is_empty());
}

async fn a_failed_run_is_launched_again(server: &ApiServer) {
    let (backend, kubelet) = (backend(server, DRIVER).await, Kubelet::of(server).await);
    let id = JobId::train(&"run-2".parse().unwrap());
    backend.submit(train("run-2")).await.unwrap();
    kubelet.set("train-run-2", "Failed", "trainer", json!({"terminated": {"exitCode": 5, "reason": "Error"}})).await;
    let exit = until("the end at once", || async {
        match state(&backend, &id).await {
            JobState::Ended(exit) => Some(exit),
            _ => None,
        }
    })
    .await;
    assert_eq!(exit.code, Some(5));
    let failure = exit.failure.unwrap();
    assert!(failure.sentence.contains('5'), "{}", failure.sentence);
    assert_eq!(backend.submit(train("run-2")).await.unwrap(), Submitted::Started);
    assert_eq!(state(&backend, &id).await, JobState::Starting);
    assert_eq!(kubelet.pods("train-run-2").await.len().min(1), 1);
    backend.cancel(&id, Duration::from_secs(5)).await.unwrap();
}

async fn a_run_is_cancelled(server: &ApiServer) {
    let (backend, kubelet) = (backend(server, DRIVER).await, Kubelet::of(server).await);
    let id = JobId::train(&"run.3".parse().unwrap());
    backend.submit(train("run.3")).await.unwrap();
    let name = until("its objects", || async {
        let jobs = backend.list().await.unwrap();
        jobs.into_iter().find(|job| job.id == id)
    });
    let Job { labels, .. } = name.await;
    assert!(labels.is_empty());
    backend.cancel(&id, Duration::from_secs(30)).await.unwrap();
    until("the end", || async { state(&backend, &id).await.was_cancelled().then_some(()) }).await;
    backend.cancel(&id, Duration::from_secs(30)).await.unwrap();
    assert!(matches!(
        backend.cancel(&JobId::train(&"r".parse().unwrap()), Duration::ZERO).await,
        Err(Error::UnknownJob { .. })
    ));
    // A queue's job is not let go by us.
    let queued = Resources { queue: Some("team-a".to_owned()), ..Resources::default() };
    backend.submit(Request { resources: queued, ..train("run-4") }).await.unwrap();
    let suspended = server.must(&["get", "job", "train-run-4", "-n", NAMESPACE, "-o", "jsonpath={.spec.suspend}"]);
    assert_eq!(suspended, "true");
    assert!(kubelet.pods("train-run-4").await.is_empty());
    backend.cancel(&JobId::train(&"run-4".parse().unwrap()), Duration::from_secs(5)).await.unwrap();
    assert!(state(&backend, &JobId::train(&"run-4".parse().unwrap())).await.was_cancelled());
}

async fn a_reward_function_with_hosts(server: &ApiServer) {
    let (backend, kubelet) = (backend(server, DRIVER).await, Kubelet::of(server).await);
    let id = JobId::train(&"judged".parse().unwrap());
    let reward_egress = Egress::Declared(vec!["192.0.2.7:443".to_owned(), "0.0.0.0/0:8443".to_owned()]);
    let request = Request { reward_egress, ..train("judged") };
    let named = |kind: &str, path: &str| {
        let path = format!("jsonpath={{{path}}}");
        server.kubectl(&["get", kind, "train-judged-reward", "-n", NAMESPACE, "-o", &path])
    };
    assert_eq!(backend.submit(request.clone()).await.unwrap(), Submitted::Started);
    let job = server.must(&["get", "job", "train-judged", "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}"]);
    for kind in ["job", "service", "secret", "networkpolicy"] {
        assert_eq!(named(kind, ".metadata.ownerReferences[0].uid"), (true, job.clone()), "{kind}");
    }
    assert!(named("networkpolicy", ".spec.egress").1.contains("169.254.169.254/32"));
    let token = named("secret", ".data.token").1;
    assert_eq!(backend.submit(request.clone()).await.unwrap(), Submitted::Adopted);
    assert_eq!(named("secret", ".data.token").1, token, "the pods know this one");
    // The namespace takes no pod that is not restricted: both are there.
    until("both pods", || async { (kubelet.pods("train-judged").await.len() == 2).then_some(()) }).await;
    assert_eq!(backend.list().await.unwrap().iter().filter(|job| job.id == id).count(), 1);
    assert!(backend.orphans().await.unwrap().iter().all(|orphan| orphan.name != "train-judged-reward"));

    backend.cancel(&id, Duration::from_secs(5)).await.unwrap();
    until("no reward pod", || async { (!named("job", ".metadata.uid").0).then_some(()) }).await;
    assert!(state(&backend, &id).await.was_cancelled());
    assert_eq!(backend.submit(request).await.unwrap(), Submitted::Started);
    let job = server.must(&["get", "job", "train-judged", "-n", NAMESPACE, "-o", "jsonpath={.metadata.uid}"]);
    until("objects of the new job alone", || async {
        let kinds = ["job", "service", "secret", "networkpolicy"];
        kinds.iter().all(|kind| named(kind, ".metadata.ownerReferences[*].uid") == (true, job.clone())).then_some(())
    })
    .await;
    assert_ne!(named("secret", ".data.token").1, token, "each has its own");
    server.must(&["delete", "job", "train-judged", "-n", NAMESPACE]);
    until("nothing to be left", || async {
        let kinds = "jobs,pods,services,secrets,networkpolicies";
        let left = server.must(&["get", kinds, "-n", NAMESPACE, "-l", "training-gym/run=judged", "-o", "name"]);
        left.trim().is_empty().then_some(())
    })
    .await;
}

async fn a_deployment_comes_and_goes(server: &ApiServer) {
    let (backend, kubelet) = (backend(server, DRIVER).await, Kubelet::of(server).await);
    let id = JobId::serve(&"teacher".parse().unwrap());
    backend.submit(serve("teacher")).await.unwrap();
    assert_eq!(backend.submit(serve("teacher")).await.unwrap(), Submitted::Adopted);
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    kubelet.set("serve-teacher", "Running", "server", running.clone()).await;
    let job = backend.job(&id).await.unwrap();
    assert_eq!(job.state, JobState::Running);
    let url = job.url.unwrap();
    assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    assert_eq!(job.url_for_jobs.as_deref(), Some("http://serve-teacher.gym.svc:8000"));
    // The same port for as long as the program runs; what a job is told is reached through it.
    assert_eq!(backend.job(&id).await.unwrap().url.as_deref(), Some(url.as_str()));
    let reached = backend.reachable("http://serve-teacher.gym.svc:8000/generate").await.unwrap();
    assert_eq!(reached, format!("{url}/generate"));
    assert_eq!(backend.reachable("https://elsewhere/generate").await.unwrap(), "https://elsewhere/generate");
    // A run is given the token that lies with the deployment.
    let place = backend.secret_ref(&id, "token");
    assert_eq!(backend.carried_secret(&place).await.unwrap(), Some(Secret::new(TOKEN)));

    let uid = |pods: Vec<Pod>| pods.into_iter().map(|pod| pod.metadata.uid.unwrap()).collect::<Vec<_>>();
    let before = uid(kubelet.pods("serve-teacher").await);
    let replaced = Request { if_existing: IfExisting::Replace, ..serve("teacher") };
    assert_eq!(backend.submit(replaced).await.unwrap(), Submitted::Started);
    kubelet.set("serve-teacher", "Running", "server", running).await;
    let after = uid(kubelet.pods("serve-teacher").await);
    assert!(after.iter().all(|pod| !before.contains(pod)));

    backend.cancel(&id, Duration::from_secs(20)).await.unwrap();
    assert!(matches!(backend.job(&id).await, Err(Error::UnknownJob { .. })));
    backend.cancel(&id, Duration::from_secs(20)).await.unwrap();
    until("nothing to be left", || async {
        let kinds = "deployments,replicasets,pods,services,secrets,configmaps";
        let left = server.must(&["get", kinds, "-n", NAMESPACE, "-l", "training-gym/app=teacher", "-o", "name"]);
        left.trim().is_empty().then_some(())
    })
    .await;
}

async fn what_is_left_behind_is_found(server: &ApiServer) {
    let backend = backend(server, DRIVER).await;
    // The runs above are not in this backend's store.
    let orphans = backend.orphans().await.unwrap();
    let lost = orphans.iter().find(|orphan| orphan.name == "train-run-1").unwrap();
    assert!(lost.kind == "job" && lost.why.contains("run-1"), "{lost:?}");
    for orphan in &orphans {
        backend.remove(orphan).await.unwrap();
    }
    until("all to be gone", || async { backend.orphans().await.unwrap().is_empty().then_some(()) }).await;
    until("their secrets too", || async {
        let left = server.must(&["get", "secrets", "-n", NAMESPACE, "-l", "training-gym/run=run-1", "-o", "name"]);
        left.trim().is_empty().then_some(())
    })
    .await;
}

async fn the_server_restarts(server: &mut ApiServer) {
    let backend = backend(server, DRIVER).await;
    backend.submit(train("run-5")).await.unwrap();
    let id = JobId::train(&"run-5".parse().unwrap());
    backend.job(&id).await.unwrap();
    server.stop_server();
    let asked = tokio::spawn({
        let (backend, id) = (backend.clone(), id.clone());
        async move { backend.job(&id).await }
    });
    tokio::task::block_in_place(|| server.restart_after(Duration::from_secs(2)));
    let job = asked.await.unwrap().unwrap();
    assert_eq!(job.id, id);
}
