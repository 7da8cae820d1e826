//! What hubs refuse, where they send a client instead, and what they promise of a resumed file.

use std::time::{Duration, Instant};

use super::{large, read};
use crate::testing::{COMMIT, FakeHub, Fault, TOKEN};
use crate::{Error, Hub, Repo};

fn status(code: u16, headers: &[(&'static str, &str)]) -> Fault {
    Fault::Status(code, headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
}

#[tokio::test]
async fn a_listing_has_the_patience_of_a_file() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("weights.bin", &large())]).await;
    server.fault("/api/", status(500, &[])).fault("/api/", status(429, &[("retry-after", "1")]));
    server.fault("/api/", Fault::Cut(20));
    let begun = Instant::now();
    let listing = server.hub(cache.path()).files(&Repo::model("org/name").unwrap(), "main").await.unwrap();
    assert_eq!((listing.commit.as_str(), listing.files.len()), (COMMIT, 1));
    assert!(begun.elapsed() >= Duration::from_secs(1), "Retry-After is obeyed");
    assert_eq!(server.seen_for("/api/").len(), 4);
    for _ in 0..4 {
        server.fault("/api/", status(503, &[]));
    }
    let error = server.hub(cache.path()).files(&Repo::model("org/name").unwrap(), "main").await.unwrap_err();
    assert!(matches!(error, Error::Status { status: 503, .. }), "{error}");
}

#[tokio::test]
async fn a_gated_repository_lists_its_files_and_refuses_them() {
    let config: &[(&str, &[u8])] = &[("config.json", b"{}"), ("model.safetensors", b"w")];
    let server = FakeHub::serve(config).await;
    let page = format!("http://{}/org/name", server.address);
    for (code, token, words) in
        [(401, false, "set HF_TOKEN to a token"), (403, true, "with the account that HF_TOKEN belongs to")]
    {
        let cache = tempfile::tempdir().unwrap();
        server.fault("/resolve/", status(code, &[("x-error-code", "GatedRepo")]));
        let mut options = server.options(cache.path());
        options.token = options.token.filter(|_| token);
        let before = server.seen_for("/resolve/").len();
        let error = Hub::new(options).unwrap().snapshot("org/name", "main").await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Access { .. }), "{text}");
        assert!(text.contains(&format!("accept its licence at {page}")) && text.contains(words), "{text}");
        assert!(!format!("{text}{error:?}").contains(TOKEN));
        assert_eq!(server.seen_for("/resolve/").len(), before + 1, "it is asked once, and nothing after it");
    }
}

#[tokio::test]
async fn a_file_that_is_gone_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("weights.bin", &large())]).await;
    server.fault("/resolve/", status(404, &[("x-error-code", "EntryNotFound")]));
    let error = read(&server.hub(cache.path()), "weights.bin").await.unwrap_err().to_string();
    assert!(error.contains("`org/name` at `main` has no file `weights.bin`"), "{error}");
}

#[tokio::test]
async fn a_cut_at_the_storage_host_is_resumed_there_without_the_token() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("weights.bin", &large())]).await;
    let storage = FakeHub::serve(&[("weights.bin", &large())]).await;
    server.store_large_files_at(&storage);
    storage.fault("/storage/", Fault::Cut(100_000)).fault("/storage/", status(500, &[]));
    assert_eq!(read(&server.hub(cache.path()), "weights.bin").await.unwrap(), large());
    let ranges: Vec<_> = storage.seen().into_iter().map(|seen| (seen.range, seen.token)).collect();
    let rest = Some("bytes=100000-".to_owned());
    assert_eq!(ranges, [(None, None), (rest.clone(), None), (rest, None)]);
    assert_eq!(server.seen_for("/resolve/").len(), 3, "each try has a fresh address");
}

#[tokio::test]
async fn a_file_that_changed_meanwhile_is_not_spliced() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("weights.bin", &large())]).await;
    let hub = server.hub(cache.path());
    let listing = hub.files(&Repo::model("org/name").unwrap(), "main").await.unwrap();
    for _ in 0..4 {
        server.fault("/resolve/", Fault::Cut(100_000));
    }
    assert!(hub.download(&listing, &["weights.bin".to_owned()]).await.is_ok(), "each try brings something new");
    let cache = tempfile::tempdir().unwrap();
    let hub = server.hub(cache.path());
    // Cut by one process, and continued by another after the file was replaced.
    let blobs = cache.path().join("models--org--name/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let etag = listing.file("weights.bin").unwrap().etag.clone().unwrap();
    std::fs::write(blobs.join(format!("{etag}.incomplete")), &large()[..100_000]).unwrap();
    server.replace("weights.bin", &vec![9; 300_000]);
    let error = hub.download(&listing, &["weights.bin".to_owned()]).await.unwrap_err();
    assert!(matches!(error, Error::Integrity { what: "etag", .. }), "{error}");
    assert_eq!(server.seen_for("/resolve/").last().unwrap().range.as_deref(), Some("bytes=100000-"));
    assert!(!blobs.join(&etag).exists());
}

#[tokio::test]
async fn redirects_on_the_hub_keep_the_token_and_do_not_go_round() {
    let cache = tempfile::tempdir().unwrap();
    let server = FakeHub::serve(&[("weights.bin", &large())]).await;
    // As after a repository was renamed: by path, and by a whole URL.
    server.redirect("/api/models/org/old/revision/main", "/api/models/org/name/revision/main");
    let (old, new) =
        (format!("/org/old/resolve/{COMMIT}/weights.bin"), format!("/org/name/resolve/{COMMIT}/weights.bin"));
    server.redirect(&old, &format!("http://{}{new}", server.address));
    let hub = server.hub(cache.path());
    let listing = hub.files(&Repo::model("org/old").unwrap(), "main").await.unwrap();
    let folder = hub.download(&listing, &["weights.bin".to_owned()]).await.unwrap();
    assert_eq!(std::fs::read(folder.join("weights.bin")).unwrap(), large());
    assert!(server.seen().iter().all(|seen| seen.token.as_deref() == Some(TOKEN)));

    server.redirect(&new, &old);
    let cache = tempfile::tempdir().unwrap();
    let error = read(&server.hub(cache.path()), "weights.bin").await.unwrap_err().to_string();
    assert!(error.contains("redirects"), "{error}");
}

#[tokio::test]
async fn several_files_come_at_once_and_no_more_than_allowed() {
    let cache = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..9).map(|index| format!("part-{index}.bin")).collect();
    let contents: Vec<Vec<u8>> = (0..9u8).map(|index| vec![index; 2000]).collect();
    let files: Vec<(&str, &[u8])> =
        names.iter().zip(&contents).map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
    let server = FakeHub::serve(&files).await;
    server.delay(Duration::from_millis(50));
    let mut options = server.options(cache.path());
    options.parallel = 3;
    let hub = Hub::new(options).unwrap();
    let listing = hub.files(&Repo::model("org/name").unwrap(), "main").await.unwrap();
    let folder = hub.download(&listing, &names).await.unwrap();
    for (name, bytes) in names.iter().zip(&contents) {
        assert_eq!(std::fs::read(folder.join(name)).unwrap(), *bytes);
    }
    assert_eq!(server.most_at_once(), 3);
}
