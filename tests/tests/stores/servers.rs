//! The conformance suite and the probe, on every kind of store.

use std::sync::Arc;

use anyhow::Result;
use training_gym_core::store::{self, FileStore, MemoryStore, S3Store, Store, conformance};
use training_gym_tests::fixture::s3_server::{BUCKET, Kind, S3Server};

/// Everything, with the limits that programs have, so that parts are of their real size.
async fn conforms(kind: Kind) -> Result<()> {
    let server = S3Server::shared(kind).await?;
    let store = S3Store::open(&server.store_url("con formance/é"))?;
    conformance::all(&store).await;
    conformance::at_scale(&store).await;
    // SeaweedFS 4.48 looks whether the key is there before it completes an upload in parts, without a lock: of
    // two that complete at one moment both may be told that they won.
    if kind != Kind::SeaweedFs {
        conformance::one_creator_of_a_large_object_wins(&store).await;
    }
    let left = store.list("").await?;
    assert!(left.is_empty(), "the suite leaves nothing: {left:?}");
    nothing_half_uploaded(&server, "con formance").await
}

/// Uploads in parts that nobody completed or aborted.
pub(crate) async fn nothing_half_uploaded(server: &S3Server, prefix: &str) -> Result<()> {
    let listed = server.client().list_multipart_uploads().bucket(BUCKET).prefix(prefix).send().await?;
    let left: Vec<_> = listed.uploads().iter().filter_map(|upload| upload.key()).collect();
    assert!(left.is_empty(), "parts are left of {left:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seaweedfs_conforms() -> Result<()> {
    conforms(Kind::SeaweedFs).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versitygw_conforms() -> Result<()> {
    conforms(Kind::Versity).await
}

/// S3's additional checksums, where the URL asks for them: on objects of one part and of many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn additional_checksums_are_spoken() -> Result<()> {
    for kind in Kind::available() {
        let server = S3Server::shared(kind).await?;
        let url = server.store_url("checksums").replace("when_required", "when_supported");
        let store = S3Store::open(&url)?;
        conformance::objects_come_back(&store).await;
        conformance::large_objects_come_back(&store).await;
        conformance::long_logs_grow_and_are_cut(&store).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_folders_conform_at_scale() {
    let folder = tempfile::tempdir().expect("a folder");
    let (memory, file) = (MemoryStore::new(), FileStore::open(folder.path()).expect("a store"));
    for store in [&memory as &dyn Store, &file] {
        conformance::at_scale(store).await;
        conformance::one_creator_of_a_large_object_wins(store).await;
    }
}

async fn passes_the_probe(kind: Kind) -> Result<()> {
    let server = S3Server::shared(kind).await?;
    let store = store::open(&server.store_url("probed"))?;
    let steps = store::probe(&*store).await;
    assert!(steps.len() == 11 && steps.iter().all(store::ProbeStep::passed), "{steps:#?}");
    assert!(store.list("").await?.is_empty());
    nothing_half_uploaded(&server, "probed").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seaweedfs_passes_the_probe() -> Result<()> {
    passes_the_probe(Kind::SeaweedFs).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versitygw_passes_the_probe() -> Result<()> {
    passes_the_probe(Kind::Versity).await
}

/// A program's runtimes come and go; the store stays.
#[test]
fn a_store_outlives_the_runtimes_that_use_it() -> Result<()> {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let keeper = runtime()?;
    let server = keeper.block_on(S3Server::shared(Kind::SeaweedFs))?;
    let store: Arc<dyn Store> = store::open(&server.store_url("runtimes"))?;
    for i in 0..6 {
        let text = format!("{i}");
        runtime()?.block_on(store.put("key", text.clone().into()))?;
        assert_eq!(runtime()?.block_on(store.get("key"))?.bytes, text);
    }
    // Two at once, by turns.
    let (one, other) = (runtime()?, runtime()?);
    for _ in 0..3 {
        one.block_on(store.get("key"))?;
        other.block_on(store.get("key"))?;
    }
    Ok(())
}
