//! Following a log from an API server that breaks every stream: a stand-in that speaks the few
//! requests a follower makes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use training_gym_core::store::MemoryStore;

use crate::backend::kubernetes::{KubernetesBackend, KubernetesOptions};
use crate::backend::{Backend, JobId, LogOptions};

/// A pod of the stand-in: each container's starts, each with its lines.
#[derive(Clone, Default)]
struct FakePod {
    uid: &'static str,
    fetch: Vec<String>,
    /// Whole logs of the main container's starts; the last one grows as it is read.
    starts: Vec<Vec<String>>,
    /// How much of the last start is there; all of it ends the container.
    written: usize,
}

struct Cluster {
    kind: &'static str,
    pods: Vec<FakePod>,
    /// Pods that are not there yet.
    later: Vec<FakePod>,
    /// Bytes after which the next streams are cut.
    cuts: Vec<usize>,
    streams: usize,
    reads: usize,
}

type Shared = Arc<Mutex<Cluster>>;

impl FakePod {
    fn over(&self) -> bool {
        self.starts.last().is_none_or(|lines| self.written >= lines.len())
    }

    fn status(&self, name: &str, deployed: bool) -> Value {
        let restarts = self.starts.len().saturating_sub(1);
        let id = format!("containerd://{}-{restarts}", self.uid);
        let state = if self.over() && !deployed {
            json!({"terminated": {"exitCode": 0, "containerID": id}})
        } else {
            json!({"running": {}})
        };
        let main = json!({"name": name, "image": "i", "imageID": "", "ready": true, "restartCount": restarts,
            "containerID": id, "state": state});
        let fetch = json!({"name": "fetch", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": format!("containerd://{}-f", self.uid), "state": {"terminated": {"exitCode": 0}}});
        let phase = if self.over() && !deployed { "Succeeded" } else { "Running" };
        json!({"phase": phase, "containerStatuses": [main], "initContainerStatuses": [fetch]})
    }
}

async fn pods(State(shared): State<Shared>) -> Response {
    let mut cluster = shared.lock().unwrap();
    cluster.reads += 1;
    let deployed = cluster.kind == "deployments";
    // Time passes: the last pod writes, and the next one comes when it is over.
    if let Some(last) = cluster.pods.last_mut() {
        last.written = (last.written + 7).min(last.starts.last().map_or(0, Vec::len));
    }
    if cluster.pods.last().is_some_and(FakePod::over) && !cluster.later.is_empty() {
        let next = cluster.later.remove(0);
        // A deployment's container is started again in its pod.
        match cluster.pods.last_mut().filter(|pod| deployed && pod.uid == next.uid) {
            Some(pod) => *pod = next,
            None => cluster.pods.push(next),
        }
    }
    let name = if deployed { "server" } else { "trainer" };
    let policy = if deployed { "Always" } else { "Never" };
    let items: Vec<Value> = cluster
        .pods
        .iter()
        .enumerate()
        .map(|(index, pod)| {
            let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "train-r", "uid": "owner"}]);
            let metadata = json!({"name": pod.uid, "uid": pod.uid, "ownerReferences": owner,
                "labels": {"training-gym/job": if deployed { "serve-r" } else { "train-r" }},
                "creationTimestamp": format!("2026-01-01T00:00:0{index}Z")});
            json!({"metadata": metadata, "spec": {"containers": [], "restartPolicy": policy},
                "status": pod.status(name, deployed)})
        })
        .collect();
    axum::Json(json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items})).into_response()
}

async fn owner(State(shared): State<Shared>) -> Response {
    let cluster = shared.lock().unwrap();
    let over = cluster.later.is_empty() && cluster.pods.last().is_some_and(FakePod::over);
    let conditions =
        if over && cluster.kind == "jobs" { json!([{"type": "Complete", "status": "True"}]) } else { json!([]) };
    // A deployment that is over has been removed.
    if over && cluster.kind == "deployments" && cluster.reads > 120 {
        let status =
            json!({"kind": "Status", "code": 404, "status": "Failure", "reason": "NotFound", "message": "gone"});
        return (StatusCode::NOT_FOUND, axum::Json(status)).into_response();
    }
    let (kind, version, name) = match cluster.kind {
        "jobs" => ("Job", "batch/v1", "train-r"),
        _ => ("Deployment", "apps/v1", "serve-r"),
    };
    let metadata = json!({"name": name, "uid": "owner", "creationTimestamp": "2026-01-01T00:00:00Z"});
    axum::Json(json!({"apiVersion": version, "kind": kind, "metadata": metadata, "status": {"conditions": conditions}}))
        .into_response()
}

async fn log(State(shared): State<Shared>, Path(pod): Path<String>, uri: Uri) -> Response {
    let query: HashMap<String, String> =
        reqwest::Url::parse(&format!("http://server{uri}")).unwrap().query_pairs().into_owned().collect();
    let mut cluster = shared.lock().unwrap();
    let Some(pod) = cluster.pods.iter().find(|found| found.uid == pod).cloned() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let previous = query.get("previous").is_some_and(|value| value == "true");
    let lines: Vec<String> = match query["container"].as_str() {
        "fetch" => pod.fetch.clone(),
        _ if previous => pod.starts.iter().rev().nth(1).cloned().unwrap_or_default(),
        _ => pod.starts.last().map(|lines| lines[..pod.written].to_vec()).unwrap_or_default(),
    };
    let since: Option<Timestamp> = query.get("sinceTime").map(|time| time.parse().unwrap());
    let time = |line: &String| line.split_once(' ').unwrap().0.parse::<Timestamp>().unwrap();
    let kept = lines.iter().filter(|line| since.is_none_or(|since| time(line) >= since));
    let text: String = kept.map(|line| format!("{line}\n")).collect();
    if query.get("follow").is_none_or(|value| value != "true") {
        return text.into_response();
    }
    let cut = cluster.cuts[cluster.streams % cluster.cuts.len()];
    cluster.streams += 1;
    // Some streams end as if all was said, some break.
    let bytes = text.as_bytes()[..cut.min(text.len())].to_vec();
    let broken = cluster.streams % 2 == 0;
    let parts = [Ok(bytes)].into_iter().chain(broken.then(|| Err(std::io::Error::other("cut"))));
    Body::from_stream(futures::stream::iter(parts)).into_response()
}

/// `count` lines, several within each second, some alike.
fn lines(from: usize, count: usize) -> Vec<String> {
    let line = |index: usize| {
        let nanos = 1_764_500_000_000_000_000_i128 + (index as i128 / 3) * 250_000_000;
        format!("{} line {}", Timestamp::from_nanosecond(nanos).unwrap(), index / 2)
    };
    (from..from + count).map(line).collect()
}

fn texts<'a>(lines: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    lines.into_iter().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}

async fn followed(cluster: Cluster, options: LogOptions) -> Vec<String> {
    let id = if cluster.kind == "jobs" { JobId::read("train-r") } else { JobId::read("serve-r") };
    let (shared, group) = (Arc::new(Mutex::new(cluster)), if id.as_str() == "train-r" { "batch" } else { "apps" });
    let kind = shared.lock().unwrap().kind;
    let router = Router::new()
        .route("/api/v1/namespaces/n/pods", get(pods))
        .route("/api/v1/namespaces/n/pods/{pod}/log", get(log))
        .route(&format!("/apis/{group}/v1/namespaces/n/{kind}/{{name}}"), get(owner))
        .with_state(Arc::clone(&shared));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = tokio::spawn(async move { axum::serve(listener, router).await });
    let config = kube::Config::new(url.parse().unwrap());
    let namespace = Some("n".to_owned());
    let options_of_cluster =
        KubernetesOptions { namespace, store_in_cluster: Some("s3://b".to_owned()), ..KubernetesOptions::default() };
    let backend = KubernetesBackend::with_config(config, options_of_cluster, Arc::new(MemoryStore::new())).unwrap();
    let logs = backend.logs(&id, options).await.unwrap();
    let lines = tokio::time::timeout(Duration::from_secs(60), logs.lines()).await.expect("an end").unwrap();
    served.abort();
    lines
}

const FOLLOW: LogOptions = LogOptions { tail: None, follow: true };

#[tokio::test]
async fn a_followed_job_is_read_once_through_cuts_and_pods() {
    let first = FakePod { uid: "a", fetch: lines(0, 5), starts: vec![lines(10, 40)], written: 10 };
    let second = FakePod { uid: "b", fetch: lines(60, 4), starts: vec![lines(70, 60)], written: 0 };
    let expected: Vec<String> =
        [&first, &second].iter().flat_map(|pod| texts(pod.fetch.iter().chain(&pod.starts[0]))).collect();
    for cuts in [vec![usize::MAX], vec![0, 13, 500], vec![31, 97, 1, 1000, 250], vec![64]] {
        let cluster = Cluster {
            kind: "jobs",
            pods: vec![first.clone()],
            later: vec![second.clone()],
            cuts: cuts.clone(),
            streams: 0,
            reads: 0,
        };
        assert_eq!(followed(cluster, FOLLOW).await, expected, "cuts {cuts:?}");
    }
}

#[tokio::test]
async fn a_container_that_is_started_again_loses_no_line() {
    let before = FakePod { uid: "a", fetch: lines(0, 2), starts: vec![lines(10, 30)], written: 5 };
    let after = FakePod { starts: vec![lines(10, 30), lines(50, 20)], written: 0, ..before.clone() };
    let expected: Vec<String> = texts(before.fetch.iter().chain(&after.starts[0]).chain(&after.starts[1]));
    let (pods, later) = (vec![before], vec![after]);
    let cluster = Cluster { kind: "deployments", pods, later, cuts: vec![400, 90, 1000], streams: 0, reads: 0 };
    assert_eq!(followed(cluster, FOLLOW).await, expected);
}

#[tokio::test]
async fn what_is_there_is_read_without_waiting_for_more() {
    let pod = |uid, from| FakePod { uid, fetch: lines(from, 1), starts: vec![lines(from + 1, 7)], written: 7 };
    let cluster = |pods| Cluster { kind: "jobs", pods, later: Vec::new(), cuts: vec![9], streams: 0, reads: 0 };
    let both = vec![pod("a", 0), pod("b", 20)];
    let all: Vec<String> = both.iter().flat_map(|pod| texts(pod.fetch.iter().chain(&pod.starts[0]))).collect();
    assert_eq!(followed(cluster(both.clone()), LogOptions { tail: None, follow: false }).await, all);
    // A tail is of the newest pod's main container.
    let tail = followed(cluster(both), LogOptions { tail: Some(3), follow: false }).await;
    assert_eq!(tail.last(), all.last());
    assert!(tail.len() <= 7);
}
