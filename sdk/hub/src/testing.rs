//! A hub on loopback: the API's answers, files with ranges, and whatever faults a test orders.

#![expect(
    missing_docs,
    missing_debug_implementations,
    clippy::missing_panics_doc,
    reason = "a server for tests; its names say it"
)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use training_gym_core::ids::ContentHash;

use crate::{Hub, HubOptions, Patience, Token};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub const TOKEN: &str = "hf_secret_of_the_test";

/// What goes wrong with one request whose path contains `on`.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Answer with this status and these headers.
    Status(u16, Vec<(&'static str, String)>),
    /// Send this many bytes of the body, then drop the connection.
    Cut(usize),
    /// Send the whole body, one byte of it wrong.
    Corrupt,
    /// Answer a range with the whole file.
    NoRange,
}

/// A request as it came in.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub token: Option<String>,
    pub range: Option<String>,
}

#[derive(Default)]
struct Inner {
    files: BTreeMap<String, Bytes>,
    faults: Vec<(String, Fault)>,
    seen: Vec<Seen>,
    /// Large files are redirected to this host.
    storage: Option<SocketAddr>,
    /// Listings without sizes and blob ids, as some mirrors give them.
    bare: bool,
    private: bool,
    /// Seconds that each file takes.
    delay: Duration,
    /// Files being sent now, and the most there were at once.
    in_flight: (usize, usize),
    /// Paths answered with a redirect to another.
    redirects: BTreeMap<String, String>,
}

#[derive(Clone)]
pub struct FakeHub {
    inner: Arc<Mutex<Inner>>,
    pub address: SocketAddr,
}

impl FakeHub {
    /// Serves `org/name` (a model and a dataset) with these files until the test ends.
    pub async fn serve(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(path, bytes)| ((*path).to_owned(), Bytes::copy_from_slice(bytes))).collect();
        let inner = Arc::new(Mutex::new(Inner { files, ..Inner::default() }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = axum::Router::new().fallback(answer).with_state(inner.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { inner, address }
    }

    fn set<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        change(&mut self.inner.lock().unwrap())
    }

    pub fn fault(&self, on: &str, fault: Fault) -> &Self {
        self.set(|inner| inner.faults.push((on.to_owned(), fault)));
        self
    }

    pub fn store_large_files_at(&self, other: &FakeHub) {
        self.set(|inner| inner.storage = Some(other.address));
    }

    pub fn list_names_only(&self) {
        self.set(|inner| inner.bare = true);
    }

    pub fn replace(&self, path: &str, bytes: &[u8]) {
        self.set(|inner| inner.files.insert(path.to_owned(), Bytes::copy_from_slice(bytes)));
    }

    /// Each file takes this long; [`FakeHub::most_at_once`] counts.
    pub fn delay(&self, delay: Duration) {
        self.set(|inner| inner.delay = delay);
    }

    pub fn most_at_once(&self) -> usize {
        self.set(|inner| inner.in_flight.1)
    }

    pub fn redirect(&self, from: &str, to: &str) {
        self.set(|inner| inner.redirects.insert(from.to_owned(), to.to_owned()));
    }

    pub fn private(&self) {
        self.set(|inner| inner.private = true);
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.set(|inner| inner.seen.clone())
    }

    /// Requests whose path contains `part`.
    pub fn seen_for(&self, part: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.path.contains(part)).collect()
    }

    pub fn options(&self, cache: &Path) -> HubOptions {
        let mut options = HubOptions::new(cache);
        options.endpoint = format!("http://{}", self.address);
        options.token = Token::new(TOKEN);
        options.patience = Patience {
            attempts: 4,
            first_wait: Duration::from_millis(1),
            longest_wait: Duration::from_secs(2),
            silence: Duration::from_secs(5),
        };
        options
    }

    pub fn hub(&self, cache: &Path) -> Hub {
        Hub::new(self.options(cache)).unwrap()
    }
}

/// Files of 1 kB and more count as large ones.
fn is_large(bytes: &[u8]) -> bool {
    bytes.len() >= 1024
}

fn blob_id(bytes: &[u8]) -> String {
    let hash = ContentHash::of(bytes).to_string();
    if is_large(bytes) { hash } else { hash[..40].to_owned() }
}

async fn answer(State(state): State<Arc<Mutex<Inner>>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let seen = {
        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Seen {
            method: request.method().clone(),
            path: path.clone(),
            token: header("authorization").and_then(|text| text.strip_prefix("Bearer ").map(str::to_owned)),
            range: header("range"),
        }
    };
    drop(request);
    let delay = {
        let mut inner = state.lock().unwrap();
        inner.in_flight.0 += 1;
        inner.in_flight.1 = inner.in_flight.1.max(inner.in_flight.0);
        inner.delay
    };
    tokio::time::sleep(delay).await;
    let mut inner = state.lock().unwrap();
    inner.in_flight.0 -= 1;
    inner.seen.push(seen.clone());
    let place = inner.faults.iter().position(|(on, _)| path.contains(on.as_str()));
    let fault = place.map(|place| inner.faults.remove(place).1);
    if let Some(Fault::Status(status, headers)) = &fault {
        return refuse(*status, headers);
    }
    if let Some(to) = inner.redirects.get(&path) {
        return refuse(307, &[("location", to.clone())]);
    }
    if inner.private && seen.token.as_deref() != Some(TOKEN) {
        return refuse(401, &[("x-error-code", "RepoNotFound".to_owned())]);
    }
    let kind = if path.starts_with("/api/datasets/") { "datasets" } else { "models" };
    if let Some(rest) = path.strip_prefix("/api/") {
        return match rest.strip_prefix(kind).and_then(|rest| rest.strip_prefix("/org/name")) {
            Some("") => axum::Json(json!({"id": "org/name"})).into_response(),
            Some(rest) if ["main", "v1", COMMIT].iter().any(|known| rest.strip_prefix("/revision/") == Some(known)) => {
                send(listing(&inner).to_string().into(), HeaderMap::new(), &seen, fault)
            }
            _ => refuse(404, &[]),
        };
    }
    let file = path.split_once(&format!("/resolve/{COMMIT}/")).map(|parts| parts.1);
    let file = file.or_else(|| path.strip_prefix("/storage/"));
    let Some(bytes) = file.and_then(|file| inner.files.get(file)).cloned() else {
        return refuse(404, &[("x-error-code", "EntryNotFound".to_owned())]);
    };
    let mut headers = HeaderMap::new();
    let etag = format!("\"{}\"", blob_id(&bytes));
    if let (true, Some(storage), Some(file)) = (is_large(&bytes), inner.storage, file) {
        headers.insert("x-linked-etag", etag.parse().unwrap());
        headers.insert("x-linked-size", bytes.len().into());
        headers.insert("location", format!("http://{storage}/storage/{file}?Signature=abc").parse().unwrap());
        return (StatusCode::FOUND, headers).into_response();
    }
    headers.insert("etag", etag.parse().unwrap());
    send(bytes, headers, &seen, fault)
}

fn refuse(status: u16, headers: &[(&'static str, String)]) -> Response {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, value.parse().unwrap());
    }
    (StatusCode::from_u16(status).unwrap(), map).into_response()
}

fn listing(inner: &Inner) -> Value {
    let siblings: Vec<_> = inner
        .files
        .iter()
        .map(|(path, bytes)| match (inner.bare, is_large(bytes)) {
            (true, _) => json!({"rfilename": path}),
            (false, false) => json!({"rfilename": path, "size": bytes.len(), "blobId": blob_id(bytes)}),
            (false, true) => json!({
                "rfilename": path, "size": bytes.len(), "blobId": "a-pointer",
                "lfs": {"sha256": blob_id(bytes), "size": bytes.len(), "pointerSize": 130},
            }),
        })
        .collect();
    json!({"id": "org/name", "sha": COMMIT, "gated": false, "siblings": siblings})
}

fn send(bytes: Bytes, mut headers: HeaderMap, seen: &Seen, fault: Option<Fault>) -> Response {
    let total = bytes.len();
    let from = seen.range.as_ref().and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let from: usize = if matches!(fault, Some(Fault::NoRange)) { 0 } else { from.unwrap_or(0) };
    if from >= total && from > 0 {
        return (StatusCode::RANGE_NOT_SATISFIABLE, headers).into_response();
    }
    let mut body = bytes.slice(from..).to_vec();
    let status = if from > 0 { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    if from > 0 {
        headers.insert("content-range", format!("bytes {from}-{}/{total}", total - 1).parse().unwrap());
    }
    headers.insert("content-length", body.len().into());
    match fault {
        Some(Fault::Corrupt) => body[0] ^= 1,
        Some(Fault::Cut(length)) => {
            let head = Bytes::copy_from_slice(&body[..length]);
            let broken = futures::stream::unfold(Some(head), |state| async move {
                match state {
                    Some(head) => Some((Ok(head), None)),
                    None => {
                        // Time for the first bytes to leave before the connection goes.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        Some((Err(std::io::Error::other("cut")), None))
                    }
                }
            });
            return (status, headers, Body::from_stream(broken)).into_response();
        }
        _ => {}
    }
    (status, headers, body).into_response()
}
