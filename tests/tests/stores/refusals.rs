//! What a person reads when a store refuses: the kind, a sentence with what is needed to act, no secret.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use training_gym_core::store::{Error, FaultKind, Store};
use training_gym_tests::fixture::fault_proxy::{FaultProxy, Harm};
use training_gym_tests::fixture::s3_server::{
    ACCESS_KEY, BUCKET, Kind, READER, READER_SECRET, S3Server, SECRET_KEY, store_url,
};
use training_gym_tests::programs::program;

use super::open;

/// One operation in a process with these credentials and no others: kind and sentence.
fn refused(url: &str, operation: &[&str], credentials: &[(&str, &str)]) -> (String, String) {
    let mut command = Command::new(program("store"));
    command.env_clear().envs(training_gym_tests::fixture::s3_server::environment());
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    command.env("HOME", "/nonexistent").envs(credentials.iter().copied());
    let began = Instant::now();
    let output = command.arg(url).args(operation).output().expect("the program `store`");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success(), "it succeeded: {printed}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    for (name, value) in credentials {
        let secret = name.contains("SECRET") || name.contains("TOKEN");
        assert!(!secret || !printed.contains(value), "{name} is told: {printed}");
    }
    assert!(!printed.contains(SECRET_KEY), "a secret is told: {printed}");
    let (kind, sentence) = printed.split_once('\n').unwrap_or((&printed, ""));
    (kind.to_owned(), sentence.trim().to_owned())
}

const OWNER: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_are_wrong_are_told_apart() -> Result<()> {
    for kind in Kind::available() {
        let server = S3Server::shared(kind).await?;
        let url = server.store_url("refusals");
        for operation in [&["put", "key", "text"][..], &["get", "key"], &["list", ""]] {
            let unknown = [("AWS_ACCESS_KEY_ID", "nobody"), ("AWS_SECRET_ACCESS_KEY", "hidden-secret")];
            let (found, sentence) = refused(&url, operation, &unknown);
            assert_eq!(found, "UnknownKey", "{kind:?} {operation:?}: {sentence}");
            assert!(sentence.contains("AWS_ACCESS_KEY_ID") && sentence.contains(&server.endpoint), "{sentence}");
            let wrong = [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", "hidden-secret")];
            let (found, sentence) = refused(&url, operation, &wrong);
            assert_eq!(found, "BadSignature", "{kind:?} {operation:?}: {sentence}");
            assert!(sentence.contains("AWS_SECRET_ACCESS_KEY"), "{sentence}");
        }
        let (found, sentence) = refused(&url, &["get", "key"], &[]);
        assert_eq!(found, "NoCredentials", "{sentence}");
        for place in ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "role"] {
            assert!(sentence.contains(place), "{place}: {sentence}");
        }
    }
    let server = S3Server::shared(Kind::SeaweedFs).await?;
    let reader = [("AWS_ACCESS_KEY_ID", READER), ("AWS_SECRET_ACCESS_KEY", READER_SECRET)];
    let (found, sentence) = refused(&server.store_url("refusals"), &["put", "key", "text"], &reader);
    assert_eq!(found, "Denied", "{sentence}");
    assert!(sentence.contains("may not `s3:PutObject`") && sentence.contains("gym-store/refusals/*"), "{sentence}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_is_not_there_is_named() -> Result<()> {
    for kind in Kind::available() {
        let server = S3Server::shared(kind).await?;
        let url = server.store_url("x").replace(BUCKET, "no-such-bucket");
        for operation in [&["put", "key", "text"][..], &["get", "key"], &["list", ""]] {
            let (found, sentence) = refused(&url, operation, &OWNER);
            assert_eq!(found, "NoBucket", "{kind:?} {operation:?}: {sentence}");
            assert!(sentence.contains("no bucket `no-such-bucket`"), "{sentence}");
        }
    }
    Ok(())
}

#[test]
fn endpoints_that_do_not_answer_are_told_apart_and_soon() {
    let url = |endpoint: &str| store_url(endpoint, "x");
    let (found, sentence) = refused(&url("http://127.0.0.1:9"), &["get", "key"], &OWNER);
    assert_eq!(found, "Unreachable", "{sentence}");
    assert!(sentence.contains("nothing listens there") && sentence.contains("127.0.0.1:9"), "{sentence}");
    let (found, sentence) = refused(&url("http://no-such-host.invalid:9000"), &["get", "key"], &OWNER);
    assert_eq!(found, "Unreachable", "{sentence}");
    assert!(sentence.contains("DNS"), "{sentence}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encryption_where_there_is_none_is_told() -> Result<()> {
    let server = S3Server::shared(Kind::SeaweedFs).await?;
    let url = store_url(&server.endpoint.replace("http:", "https:"), "x");
    let (found, sentence) = refused(&url, &["get", "key"], &OWNER);
    assert_eq!(found, "Tls", "{sentence}");
    assert!(sentence.contains("http://") && sentence.contains("SSL_CERT_FILE"), "{sentence}");
    Ok(())
}

/// What no server here says by itself is said by the proxy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_refusals_are_sorted() -> Result<()> {
    let server = S3Server::shared(Kind::SeaweedFs).await?;
    let proxy = FaultProxy::before(&server.endpoint).await?;
    let store = open(&store_url(&proxy.endpoint, "x"));
    let fault = async |status: u16, code: &'static str| {
        proxy.plan(move |_| Harm::Answer(status, code));
        match store.get("key").await {
            Err(Error::Remote { fault, .. }) => *fault,
            other => panic!("{code}: {other:?}"),
        }
    };
    for (status, code, kind, word) in [
        (400, "ExpiredToken", FaultKind::ExpiredCredentials, "AWS_SESSION_TOKEN"),
        (403, "AccessDenied", FaultKind::Denied, "s3:GetObject"),
        (301, "PermanentRedirect", FaultKind::WrongRegion, "region="),
        (400, "AuthorizationHeaderMalformed", FaultKind::WrongRegion, "region="),
        (501, "NotImplemented", FaultKind::Unsupported, "checksums=when_required"),
        (400, "BadDigest", FaultKind::Checksum, "checksums=when_required"),
        (503, "SlowDown", FaultKind::Throttled, "6 attempts"),
        (500, "InternalError", FaultKind::Server, "6 attempts"),
        (418, "Teapot", FaultKind::Other, "Teapot: as the test asks"),
    ] {
        let fault = fault(status, code).await;
        assert!(fault.kind == kind && fault.to_string().contains(word), "{code}: {fault:?}");
    }
    // Both clocks are shown, by whatever name the server refuses.
    proxy.date("Tue, 15 Nov 2022 08:12:31 GMT");
    for code in ["RequestTimeTooSkewed", "SignatureDoesNotMatch", "AccessDenied"] {
        let fault = fault(403, code).await;
        let FaultKind::ClockSkew { ours, theirs } = fault.kind else { panic!("{code}: {fault:?}") };
        assert!(SystemTime::now().duration_since(ours).is_ok_and(|ago| ago < Duration::from_secs(60)));
        assert_eq!(theirs.duration_since(SystemTime::UNIX_EPOCH)?.as_secs(), 1_668_499_951);
        assert!(fault.sentence.contains("2022-11-15T08:12:31Z") && fault.sentence.contains("this machine's says 2"));
    }
    Ok(())
}
