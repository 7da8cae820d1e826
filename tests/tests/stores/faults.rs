//! Through a proxy that breaks things: transient faults heal, others end in time and by name, and none
//! yields a checkpoint that is readable and wrong.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use training_gym_core::checkpoint::{self, Draft, Kind as Folder, Manifest};
use training_gym_core::ids::{RunId, WeightVersion};
use training_gym_core::store::{Error, FaultKind, S3Store, Store};
use training_gym_tests::fixture::fault_proxy::{FaultProxy, Harm, Request};
use training_gym_tests::fixture::s3_server::{Kind, S3Server, store_url};

use super::{hasty, open, servers};

/// The longest that anything may take which is to fail.
const BOUND: Duration = Duration::from_secs(60);

struct Scene {
    server: Arc<S3Server>,
    proxy: FaultProxy,
    /// Through the proxy.
    store: S3Store,
    /// Past it.
    direct: S3Store,
    folder: tempfile::TempDir,
    prefix: String,
}

impl Scene {
    async fn new(kind: Kind, prefix: &str) -> Result<Self> {
        let server = S3Server::shared(kind).await?;
        let proxy = FaultProxy::before(&server.endpoint).await?;
        let (store, direct) = (open(&store_url(&proxy.endpoint, prefix)), open(&server.store_url(prefix)));
        let folder = tempfile::tempdir()?;
        std::fs::create_dir(folder.path().join("model"))?;
        // Three parts, one part, nothing.
        let weights: Vec<u8> = (0..(17u32 << 20)).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(folder.path().join("model/model.safetensors"), weights)?;
        std::fs::write(folder.path().join("model/config.json"), "{\"model_type\": \"fixture\"}")?;
        std::fs::write(folder.path().join("model/empty.txt"), "")?;
        Ok(Self { server, proxy, store, direct, folder, prefix: prefix.to_owned() })
    }

    fn model(&self) -> std::path::PathBuf {
        self.folder.path().join("model")
    }

    async fn publish(&self, run: &RunId) -> Result<Manifest, checkpoint::Error> {
        let draft = Draft {
            kind: Folder::Checkpoint,
            run_id: run.clone(),
            step: 1,
            model: "fixture".to_owned(),
            weight_version: WeightVersion(1),
            attempt: 1,
        };
        checkpoint::publish(&self.store, &self.model(), &draft).await.map(|published| published.manifest)
    }

    /// Whether a fetched folder is the published one.
    fn is_the_model(&self, fetched: &Path) -> bool {
        ["model.safetensors", "config.json", "empty.txt"]
            .iter()
            .all(|name| std::fs::read(fetched.join(name)).ok() == std::fs::read(self.model().join(name)).ok())
    }

    /// What readers see of a run: nothing, or the very model.
    async fn nothing_wrong_is_readable(&self, run: &RunId) -> Result<bool> {
        let there = checkpoint::latest(&self.direct, Folder::Checkpoint, run).await?;
        if let Some(manifest) = &there {
            checkpoint::verify(&self.direct, manifest).await?;
        }
        Ok(there.is_some())
    }
}

fn run_id(name: &str) -> RunId {
    name.parse().expect("a run id")
}

/// Every third request is harmed, from the first on: each kind of request is hit, and its repetition is not.
fn every_third(harm: Harm) -> impl Fn(&Request) -> Harm + Send + Sync {
    move |request| if request.number.is_multiple_of(3) { harm } else { Harm::None }
}

const HEALING: [(&str, Harm); 11] = [
    ("reset-before", Harm::ResetBefore),
    ("answer-lost", Harm::AnswerLost),
    ("reset-mid-answer", Harm::ResetMidAnswer),
    ("truncated", Harm::Truncated),
    ("http-500", Harm::Answer(500, "InternalError")),
    ("http-503", Harm::Answer(503, "SlowDown")),
    ("http-429", Harm::Answer(429, "TooManyRequests")),
    ("conflict", Harm::Answer(409, "ConditionalRequestConflict")),
    ("slow", Harm::Slow(Duration::from_millis(10))),
    ("twice", Harm::Twice),
    ("request-timeout", Harm::Answer(400, "RequestTimeout")),
];

/// Publishes and fetches through each transient fault.
async fn transient_faults_heal(kind: Kind) -> Result<()> {
    let scene = Scene::new(kind, "transient").await?;
    for (name, harm) in HEALING {
        let run = run_id(name);
        scene.proxy.plan(every_third(harm));
        let manifest = scene.publish(&run).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let (_, harmed) = scene.proxy.counts();
        assert!(harmed > 3, "{name}: only {harmed} requests were harmed");
        let to = scene.folder.path().join(name);
        scene.proxy.plan(every_third(harm));
        checkpoint::fetch(&scene.store, &manifest, &to).await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert!(scene.is_the_model(&to), "{name}: another model came");
        assert!(scene.nothing_wrong_is_readable(&run).await?, "{name}: it is published");
        let pointer = checkpoint::latest_pointer(&scene.direct, &run).await?;
        assert_eq!(pointer.map(|latest| latest.step), Some(1), "{name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transient_faults_heal_on_seaweedfs() -> Result<()> {
    transient_faults_heal(Kind::SeaweedFs).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transient_faults_heal_on_versitygw() -> Result<()> {
    transient_faults_heal(Kind::Versity).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_and_lateness_heal() -> Result<()> {
    let scene = Scene::new(Kind::SeaweedFs, "silence").await?;
    for (name, harm) in [("silence", Harm::Silence), ("late", Harm::Late(Duration::from_secs(3)))] {
        let run = run_id(name);
        // Each costs an attempt's whole time, so fewer of them.
        scene.proxy.plan(move |request| if request.number % 5 == 2 { harm } else { Harm::None });
        let manifest = scene.publish(&run).await?;
        let to = scene.folder.path().join(name);
        checkpoint::fetch(&scene.store, &manifest, &to).await?;
        assert!(scene.is_the_model(&to) && scene.nothing_wrong_is_readable(&run).await?, "{name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_that_changes_on_its_way_down_is_never_a_file() -> Result<()> {
    let scene = Scene::new(Kind::SeaweedFs, "corrupted").await?;
    let run = run_id("corrupted");
    let manifest = scene.publish(&run).await?;
    // Once: it heals.
    scene.proxy.plan(|request| if request.number == 2 { Harm::Corrupted } else { Harm::None });
    let to = scene.folder.path().join("healed");
    checkpoint::fetch(&scene.store, &manifest, &to).await?;
    assert!(scene.is_the_model(&to));
    // Always: an error of that name, and no file.
    scene.proxy.plan(|request| if request.method == "GET" { Harm::Corrupted } else { Harm::None });
    let began = Instant::now();
    let target = scene.folder.path().join("never");
    let weights = manifest.files.iter().find(|file| file.size > 1 << 20).expect("weights");
    let error = scene.store.get_file(&manifest.key(weights), &target).await.expect_err("damaged content");
    assert!(matches!(&error, Error::Remote { fault, .. } if fault.kind == FaultKind::Checksum), "{error}");
    assert!(error.to_string().contains("not what was written: sha256 "), "{error}");
    assert!(!target.exists() && began.elapsed() < BOUND);
    let error = scene.store.get(&format!("{}/config.json", manifest.folder())).await.expect_err("damaged content");
    assert!(matches!(&error, Error::Remote { fault, .. } if fault.kind == FaultKind::Checksum), "{error}");
    let left: Vec<_> = std::fs::read_dir(scene.folder.path())?.flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".tmp")), "half a file is left: {left:?}");
    Ok(())
}

/// What stays broken from some request on ends in time, under its name, and nothing is published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lasting_faults_end_in_time_and_publish_nothing() -> Result<()> {
    let scene = Scene::new(Kind::SeaweedFs, "lasting").await?;
    let lasting = [
        ("denied", Harm::Answer(403, "AccessDenied"), FaultKind::Denied),
        ("expired", Harm::Answer(400, "ExpiredToken"), FaultKind::ExpiredCredentials),
        ("failing", Harm::Answer(500, "InternalError"), FaultKind::Server),
        ("throttled", Harm::Answer(503, "SlowDown"), FaultKind::Throttled),
        ("reset", Harm::ResetBefore, FaultKind::Interrupted),
        ("silent", Harm::Silence, FaultKind::Timeout),
    ];
    for (name, harm, expected) in lasting {
        // From the first request on, in the middle of the parts, and at the manifest.
        for from in [0, 4, 9] {
            // Each of these takes all the time of all attempts.
            if harm == Harm::Silence && from != 4 {
                continue;
            }
            let run = run_id(&format!("{name}-{from}"));
            scene.proxy.plan(move |request| if request.number >= from { harm } else { Harm::None });
            let began = Instant::now();
            let error = scene.publish(&run).await.expect_err("a lasting fault");
            assert!(began.elapsed() < BOUND, "{name} from {from}: {:?}", began.elapsed());
            let checkpoint::Error::Store { source: Error::Remote { fault, .. }, .. } = &error else {
                panic!("{name} from {from}: {error:?}")
            };
            assert_eq!(fault.kind, expected, "{name} from {from}: {fault}");
            let published = scene.nothing_wrong_is_readable(&run).await?;
            // A server that is silent does what it is asked: its manifest may be there, and is right then.
            assert!(!published || harm == Harm::Silence, "{name} from {from}: it is published");
        }
    }
    // Through whole connections again, the same step can be published, and parts of the lost ones go.
    let run = run_id("denied-4");
    scene.proxy.plan(|_| Harm::None);
    scene.publish(&run).await?;
    assert!(scene.nothing_wrong_is_readable(&run).await?);
    Ok(())
}

/// A failed upload is aborted: nobody pays for its parts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_and_abandoned_uploads_leave_no_parts() -> Result<()> {
    for kind in Kind::available() {
        let scene = Scene::new(kind, "abandoned").await?;
        let weights = scene.model().join("model.safetensors");
        let third_part = |request: &Request| request.method == "PUT" && request.target.contains("partNumber=3");
        scene.proxy.plan(
            move |request| {
                if third_part(request) { Harm::Answer(403, "AccessDenied") } else { Harm::None }
            },
        );
        scene.store.put_file("denied", &weights).await.expect_err("a part that is refused");
        servers::nothing_half_uploaded(&scene.server, &scene.prefix).await?;

        // Given up by its caller in the middle.
        scene.proxy.plan(move |request| if third_part(request) { Harm::Silence } else { Harm::None });
        let upload = scene.store.put_file("given-up", &weights);
        tokio::time::timeout(Duration::from_millis(1500), upload).await.expect_err("a silent part");
        for _ in 0..100 {
            if servers_are_clean(&scene).await {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        servers::nothing_half_uploaded(&scene.server, &scene.prefix).await?;
        assert!(scene.direct.list("").await?.is_empty(), "neither upload made an object");
    }
    Ok(())
}

async fn servers_are_clean(scene: &Scene) -> bool {
    let client = scene.server.client();
    let bucket = training_gym_tests::fixture::s3_server::BUCKET;
    let listed = client.list_multipart_uploads().bucket(bucket).prefix(&scene.prefix).send().await;
    listed.is_ok_and(|listed| listed.uploads().is_empty())
}

/// A conditional write that landed while its answer was lost is a success, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_landed_is_a_success() -> Result<()> {
    for kind in Kind::available() {
        let scene = Scene::new(kind, "landed").await?;
        for (name, harm) in [("lost", Harm::AnswerLost), ("twice", Harm::Twice), ("silence", Harm::Silence)] {
            let first = move |request: &Request| if request.number == 0 { harm } else { Harm::None };
            let key = format!("{name}/lease");
            scene.proxy.plan(first);
            let etag = scene.store.create(&key, "mine".into()).await?;
            let there = scene.direct.get(&key).await?;
            assert_eq!((&there.bytes[..], &there.etag), (&b"mine"[..], &etag), "{name}");
            scene.proxy.plan(first);
            let other = scene.store.create(&key, "mine".into()).await;
            assert!(matches!(other, Err(Error::AlreadyExists { .. })), "{name}: the same bytes by another {other:?}");
            scene.proxy.plan(first);
            let next = scene.store.swap(&key, "next".into(), &etag).await?;
            assert_eq!(scene.direct.get(&key).await?.etag, next, "{name}");
            scene.proxy.plan(first);
            let stale = scene.store.swap(&key, "stale".into(), &etag).await;
            assert!(matches!(stale, Err(Error::Changed { .. })), "{name}: {stale:?}");

            // An upload in parts whose completion landed.
            let completing = |request: &Request| request.method == "POST" && request.target.contains("uploadId=");
            let completions = Arc::new(AtomicUsize::new(0));
            let seen = Arc::clone(&completions);
            scene.proxy.plan(move |request| {
                let is_first = completing(request) && seen.fetch_add(1, Ordering::SeqCst) == 0;
                if is_first { harm } else { Harm::None }
            });
            let large = bytes(9 << 20);
            scene.store.create(&format!("{name}/large"), large.clone().into()).await?;
            assert!(scene.direct.get(&format!("{name}/large")).await?.bytes == large);
            assert!(completions.load(Ordering::SeqCst) >= 1);

            // A log: the line is there once.
            let log = format!("{name}/log");
            scene.store.write_at(&log, 0, "one\n".into()).await?;
            scene.proxy.plan(first);
            scene.store.write_at(&log, 4, "two\n".into()).await?;
            scene.store.write_at(&log, 8, "three\n".into()).await?;
            assert_eq!(scene.direct.get(&log).await?.bytes, "one\ntwo\nthree\n", "{name}");
        }
    }
    Ok(())
}

fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i % 241) as u8).collect()
}

/// Chance decides which of many requests meets which fault, from fixed seeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storms_of_faults_publish_the_model_or_nothing() -> Result<()> {
    for kind in Kind::available() {
        let scene = Scene::new(kind, "storm").await?;
        let harms = [
            Harm::ResetBefore,
            Harm::AnswerLost,
            Harm::ResetMidAnswer,
            Harm::Truncated,
            Harm::Corrupted,
            Harm::Twice,
            Harm::Answer(500, "InternalError"),
            Harm::Answer(503, "SlowDown"),
        ];
        for seed in 0..6u64 {
            let run = run_id(&format!("storm-{seed}"));
            let storm = move |request: &Request| {
                let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (request.number as u64 + 1);
                state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                state ^= state >> 31;
                // Two in five.
                if state % 5 < 2 { harms[(state >> 8) as usize % harms.len()] } else { Harm::None }
            };
            scene.proxy.plan(storm);
            // A publication that the storm defeats is one that a trainer would make again.
            let mut manifest = None;
            for _ in 0..8 {
                match scene.publish(&run).await {
                    Ok(published) => {
                        manifest = Some(published);
                        break;
                    }
                    Err(error) => {
                        let there = scene.nothing_wrong_is_readable(&run).await?;
                        println!("storm {seed} of {kind:?}: {} (published: {there})", training_gym_core::chain(&error));
                    }
                }
            }
            let manifest = manifest.unwrap_or_else(|| panic!("storm {seed} of {kind:?} was never survived"));
            assert!(scene.nothing_wrong_is_readable(&run).await?);
            let to = scene.folder.path().join(format!("{kind:?}-{seed}"));
            let mut fetched = false;
            for _ in 0..8 {
                fetched = checkpoint::fetch(&scene.store, &manifest, &to).await.is_ok();
                let whole = scene.is_the_model(&to);
                assert!(whole || !fetched, "storm {seed} of {kind:?}: a wrong model was fetched");
                if fetched {
                    break;
                }
            }
            assert!(fetched, "storm {seed} of {kind:?}: never fetched");
        }
    }
    Ok(())
}

/// A slow link is waited for as long as it moves; one that stalls is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_answer_is_asked_for_again() -> Result<()> {
    let scene = Scene::new(Kind::SeaweedFs, "stalled").await?;
    scene.direct.put("text", "what is read".into()).await?;
    scene.proxy.plan(|request| if request.number == 0 { Harm::Slow(Duration::from_secs(30)) } else { Harm::None });
    let began = Instant::now();
    assert_eq!(scene.store.get("text").await?.bytes, "what is read");
    assert!(began.elapsed() < hasty().attempt * 3, "{:?}", began.elapsed());
    Ok(())
}
