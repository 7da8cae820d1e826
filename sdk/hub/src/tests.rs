//! The client against a hub on loopback that fails in every way hubs fail.

mod failures;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::testing::{COMMIT, FakeHub, Fault, TOKEN};
use training_gym_core::ids::ContentHash;

use super::{Error, Hub, Progress, Repo, Token};

/// A file that counts as large: its blob's name is its sha256.
fn large() -> Vec<u8> {
    (0..300_000u32).map(|i| (i % 251) as u8).collect()
}

/// Serves one large file and brings it in through the faults; the hub's record of requests comes back.
async fn fetch(faults: &[Fault]) -> (Result<Vec<u8>, Error>, FakeHub) {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("weights.bin", &large())]).await;
    for fault in faults {
        server.fault("/resolve/", fault.clone());
    }
    let hub = server.hub(cache.path());
    (read(&hub, "weights.bin").await, server)
}

async fn read(hub: &Hub, file: &str) -> Result<Vec<u8>, Error> {
    let listing = hub.files(&Repo::model("org/name")?, "main").await?;
    let folder = hub.download(&listing, &[file.to_owned()]).await?;
    Ok(std::fs::read(folder.join(file)).unwrap())
}

#[tokio::test]
async fn files_arrive_in_the_layout_of_python() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("a/small.txt", b"hello"), ("weights.bin", &large())]).await;
    let seen = Arc::new(Mutex::new(Vec::<Progress>::new()));
    let log = seen.clone();
    let hub = server.hub(cache.path()).on_progress(move |progress| log.lock().unwrap().push(progress.clone()));
    assert_eq!(read(&hub, "weights.bin").await.unwrap(), large());
    assert_eq!(read(&hub, "a/small.txt").await.unwrap(), b"hello");
    let repo = cache.path().join("models--org--name");
    assert_eq!(std::fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    let link = std::fs::read_link(repo.join("snapshots").join(COMMIT).join("a/small.txt")).unwrap();
    assert!(link.starts_with("../../../blobs"), "{link:?}");
    assert!(repo.join("blobs").join(ContentHash::of(&large()).as_str()).is_file());
    let last = seen.lock().unwrap().iter().rfind(|progress| progress.file == "weights.bin").cloned().unwrap();
    assert_eq!((last.received, last.total), (300_000, Some(300_000)));
    // What is there is not fetched again, also by a client without connection.
    let before = server.seen_for("/resolve/").len();
    read(&hub, "weights.bin").await.unwrap();
    assert_eq!(server.seen_for("/resolve/").len(), before);
    let mut options = server.options(cache.path());
    (options.offline, options.endpoint) = (true, "http://127.0.0.1:1".to_owned());
    let offline = Hub::new(options).unwrap();
    assert_eq!(read(&offline, "a/small.txt").await.unwrap(), b"hello");
    let error = read(&offline, "other.txt").await.unwrap_err();
    assert!(matches!(error, Error::Offline { .. }) && error.to_string().contains("other.txt"), "{error}");
    let error = offline.files(&Repo::model("org/name").unwrap(), "v1").await.unwrap_err();
    assert!(matches!(error, Error::Offline { .. }) && error.to_string().contains("v1"), "{error}");
}

#[tokio::test]
async fn a_cut_connection_is_resumed_where_it_broke() {
    let (got, server) = fetch(&[Fault::Cut(100_000), Fault::Cut(50_000)]).await;
    assert_eq!(got.unwrap(), large());
    let ranges: Vec<_> = server.seen_for("/resolve/").into_iter().map(|seen| seen.range).collect();
    assert_eq!(ranges, [None, Some("bytes=100000-".to_owned()), Some("bytes=150000-".to_owned())]);
}

#[tokio::test]
async fn an_earlier_process_download_is_resumed() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("weights.bin", &large())]).await;
    let blobs = cache.path().join("models--org--name/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(format!("{}.incomplete", ContentHash::of(&large())));
    std::fs::write(&part, &large()[..123_456]).unwrap();
    assert_eq!(read(&server.hub(cache.path()), "weights.bin").await.unwrap(), large());
    assert_eq!(server.seen_for("/resolve/")[0].range.as_deref(), Some("bytes=123456-"));
    assert!(!part.exists());
    // A part that is no beginning of the file is found out by the hash, and fetched anew.
    std::fs::remove_dir_all(cache.path().join("models--org--name")).unwrap();
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(&part, vec![7; 1000]).unwrap();
    assert_eq!(read(&server.hub(cache.path()), "weights.bin").await.unwrap(), large());
    // So is one that is too long.
    std::fs::remove_dir_all(cache.path().join("models--org--name")).unwrap();
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(&part, vec![7; 400_000]).unwrap();
    assert_eq!(read(&server.hub(cache.path()), "weights.bin").await.unwrap(), large());
}

#[tokio::test]
async fn a_server_without_ranges_starts_over() {
    let (got, _) = fetch(&[Fault::Cut(100_000), Fault::NoRange]).await;
    assert_eq!(got.unwrap(), large());
}

#[tokio::test]
async fn trouble_of_the_server_passes() {
    let status = |code| Fault::Status(code, Vec::new());
    let (got, server) = fetch(&[status(500), status(503), status(408)]).await;
    assert_eq!(got.unwrap(), large());
    assert_eq!(server.seen_for("/resolve/").len(), 4);
    let (got, server) = fetch(&[status(500), status(502), status(503), status(504)]).await;
    let error = got.unwrap_err();
    assert!(matches!(error, Error::Status { status: 504, .. }), "{error}");
    assert_eq!(server.seen_for("/resolve/").len(), 4);
}

#[tokio::test]
async fn retry_after_is_obeyed_up_to_the_limit() {
    let wait = |seconds: &str| Fault::Status(429, vec![("retry-after", seconds.to_owned())]);
    let begun = Instant::now();
    let (got, _) = fetch(&[wait("1")]).await;
    assert_eq!(got.unwrap(), large());
    assert!(begun.elapsed() >= Duration::from_secs(1));
    let (got, server) = fetch(&[wait("3600")]).await;
    let error = got.unwrap_err();
    assert!(matches!(error, Error::RateLimited { seconds: 3600, limit: 2, .. }), "{error}");
    assert_eq!(server.seen_for("/resolve/").len(), 1);
}

#[tokio::test]
async fn a_redirect_to_another_host_carries_no_token() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("weights.bin", &large())]).await;
    let storage = FakeHub::serve(&[("weights.bin", &large())]).await;
    server.store_large_files_at(&storage);
    // The first signed URL has expired: the hub is asked for another one.
    storage.fault("/storage/", Fault::Status(403, Vec::new()));
    assert_eq!(read(&server.hub(cache.path()), "weights.bin").await.unwrap(), large());
    assert!(server.seen().iter().all(|seen| seen.token.as_deref() == Some(TOKEN)));
    assert_eq!(storage.seen().len(), 2);
    assert!(storage.seen().iter().all(|seen| seen.token.is_none()));
}

#[tokio::test]
async fn a_listing_of_names_alone_is_enough() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("a.txt", b"small"), ("weights.bin", &large())]).await;
    let storage = FakeHub::serve(&[("weights.bin", &large())]).await;
    server.list_names_only();
    server.store_large_files_at(&storage);
    let hub = server.hub(cache.path());
    assert_eq!(read(&hub, "weights.bin").await.unwrap(), large());
    assert_eq!(read(&hub, "a.txt").await.unwrap(), b"small");
    assert!(server.seen().iter().any(|seen| seen.method == axum::http::Method::HEAD));
    assert!(storage.seen().iter().all(|seen| seen.method == axum::http::Method::GET));
}

#[tokio::test]
async fn corruption_is_noticed_and_fetched_again() {
    let (got, server) = fetch(&[Fault::Corrupt]).await;
    assert_eq!(got.unwrap(), large());
    assert_eq!(server.seen_for("/resolve/").len(), 2);
    let (got, _) = fetch(&vec![Fault::Corrupt; 4]).await;
    assert!(matches!(got.unwrap_err(), Error::Integrity { what: "sha256", .. }));
}

#[tokio::test]
async fn a_file_that_is_not_the_listed_one_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("a.txt", b"listed")]).await;
    let hub = server.hub(cache.path());
    let listing = hub.files(&Repo::model("org/name").unwrap(), "main").await.unwrap();
    server.replace("a.txt", b"edited");
    let error = hub.download(&listing, &["a.txt".to_owned()]).await.unwrap_err();
    assert!(matches!(error, Error::Integrity { what: "etag", .. }), "{error}");
    assert!(error.to_string().contains("org/name/a.txt"), "{error}");
    assert!(!cache.path().join("models--org--name/snapshots").join(COMMIT).join("a.txt").exists());
}

#[tokio::test]
async fn two_at_once_fetch_once() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("weights.bin", &large())]).await;
    let (one, two) = (server.hub(cache.path()), server.hub(cache.path()));
    let (one, two) = tokio::join!(read(&one, "weights.bin"), read(&two, "weights.bin"));
    assert_eq!((one.unwrap(), two.unwrap()), (large(), large()));
    assert_eq!(server.seen_for("/resolve/").len(), 1);
}

/// What listing `repo` at `revision` says through one fault.
async fn refusal(repo: &str, revision: &str, fault: Option<Fault>) -> String {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[]).await;
    if let Some(fault) = fault {
        server.fault("/api/", fault);
    }
    let error = server.hub(cache.path()).files(&Repo::model(repo).unwrap(), revision).await.unwrap_err();
    let text = format!("{error} / {error:?}");
    assert!(!text.contains(TOKEN), "the token must not be told: {text}");
    text
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let text = refusal("org/nope", "main", None).await;
    assert!(text.contains("no model `org/nope`"), "{text}");
    let text = refusal("org/name", "nope", None).await;
    assert!(text.contains("no revision `nope`"), "{text}");
    let coded = Fault::Status(404, vec![("x-error-code", "RevisionNotFound".to_owned())]);
    let text = refusal("org/name", "nope", Some(coded)).await;
    assert!(text.contains("no revision `nope`"), "{text}");
    let gated = Fault::Status(403, vec![("x-error-code", "GatedRepo".to_owned())]);
    let text = refusal("org/name", "main", Some(gated)).await;
    assert!(text.contains("accept its licence at http://127.0.0.1") && text.contains("/org/name"), "{text}");
    assert!(text.contains("HF_TOKEN"), "{text}");
    let text = refusal("org/name", "main", Some(Fault::Status(401, Vec::new()))).await;
    assert!(text.contains("check that HF_TOKEN is valid"), "{text}");
    let text = refusal("org/name", "main", Some(Fault::Status(418, Vec::new()))).await;
    assert!(text.contains("418"), "{text}");
    assert!(refusal("org/name", "../x", None).await.contains("no revision"));
}

#[tokio::test]
async fn a_stranger_is_told_to_set_a_token() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("config.json", b"{}")]).await;
    server.private();
    let mut options = server.options(cache.path());
    options.token = None;
    let hub = Hub::new(options.clone()).unwrap();
    let error = hub.snapshot("org/name", "main").await.unwrap_err().to_string();
    assert!(error.contains("private") && error.contains("set HF_TOKEN"), "{error}");
    options.token = Token::new(TOKEN);
    assert!(Hub::new(options).unwrap().files(&Repo::model("org/name").unwrap(), "main").await.is_ok());
}

#[tokio::test]
async fn a_hub_that_is_not_there_or_not_a_hub_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("a", b"x")]).await;
    let mut options = server.options(cache.path());
    options.endpoint = "http://127.0.0.1:1".to_owned();
    let error = read(&Hub::new(options).unwrap(), "a").await.unwrap_err().to_string();
    assert!(error.contains("cannot read http://127.0.0.1:1/") && error.contains("HF_HUB_OFFLINE"), "{error}");
    server.fault("/api/", Fault::Status(200, Vec::new()));
    let error = read(&server.hub(cache.path()), "a").await.unwrap_err().to_string();
    assert!(error.contains("check HF_ENDPOINT"), "{error}");
    let error = read(&server.hub(cache.path()), "b").await.unwrap_err().to_string();
    assert!(error.contains("has no file `b`"), "{error}");
}

#[tokio::test]
async fn a_model_snapshot_is_what_a_model_needs() {
    let cache = tempfile::tempdir().unwrap();
    let index =
        br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}"#;
    let files: &[(&str, &[u8])] = &[
        ("README.md", b"read"),
        ("config.json", b"{}"),
        ("consolidated.safetensors", b"again"),
        ("model-00001-of-00002.safetensors", b"one"),
        ("model-00002-of-00002.safetensors", b"two"),
        ("model.safetensors.index.json", index),
        ("original/model.safetensors", b"other"),
        ("pytorch_model.bin", b"old"),
        ("tokenizer.json", b"{}"),
    ];
    let server = FakeHub::serve(files).await;
    let snapshot = server.hub(cache.path()).snapshot("org/name", "main").await.unwrap();
    assert_eq!(snapshot.commit, COMMIT);
    let expected = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ];
    assert_eq!(super::walk(&snapshot.folder), expected);
    // Offline it is found again, and a lost shard is noticed.
    let mut options = server.options(cache.path());
    options.offline = true;
    let offline = Hub::new(options).unwrap();
    assert_eq!(offline.snapshot("org/name", "main").await.unwrap(), snapshot);
    std::fs::remove_file(snapshot.folder.join(expected[1])).unwrap();
    let error = offline.snapshot("org/name", "main").await.unwrap_err().to_string();
    assert!(error.contains(expected[1]) && error.contains("HF_HUB_OFFLINE"), "{error}");
}

#[tokio::test]
async fn a_repository_without_weights_is_no_model() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("config.json", b"{}"), ("pytorch_model.bin", b"old")]).await;
    let error = server.hub(cache.path()).snapshot("org/name", "main").await.unwrap_err().to_string();
    assert!(error.contains(".safetensors"), "{error}");
    let server = FakeHub::serve(&[("model.safetensors", b"w")]).await;
    let error = server.hub(cache.path()).snapshot("org/name", "v1").await.unwrap_err().to_string();
    assert!(error.contains("no config.json"), "{error}");
}
