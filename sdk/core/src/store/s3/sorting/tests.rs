use std::io;

use super::*;

fn profile() -> Profile {
    Profile::parse("s3://bucket/runs?endpoint=http://host:1&region=us-east-1").unwrap()
}

fn sorted(answer: &Answer, permission: &'static str) -> Fault {
    let profile = profile();
    of_answer(answer, SystemTime::now(), Asked { profile: &profile, endpoint: "http://host:1", permission })
}

fn said(status: u16, code: &str) -> Answer {
    Answer { status, code: code.to_owned(), message: "its words".to_owned(), ..Answer::default() }
}

#[test]
fn answers_are_sorted_by_code_then_by_status() {
    use FaultKind::*;
    for (status, code, kind) in [
        (404, "NoSuchBucket", NoBucket),
        (404, "NoSuchKey", NoObject),
        (404, "", NoObject),
        (404, "NoSuchUpload", Other),
        (412, "PreconditionFailed", Precondition),
        (412, "", Precondition),
        (409, "ConditionalRequestConflict", Conflict),
        (409, "OperationAborted", Conflict),
        (403, "InvalidAccessKeyId", UnknownKey),
        (403, "SignatureDoesNotMatch", BadSignature),
        (400, "ExpiredToken", ExpiredCredentials),
        (403, "AccessDenied", Denied),
        (403, "", Denied),
        (301, "PermanentRedirect", WrongRegion),
        (400, "AuthorizationHeaderMalformed", WrongRegion),
        (503, "SlowDown", Throttled),
        (503, "", Throttled),
        (429, "", Throttled),
        (400, "RequestTimeout", Timeout),
        (400, "BadDigest", Checksum),
        (400, "IncompleteBody", Interrupted),
        (501, "NotImplemented", Unsupported),
        (500, "InternalError", Server),
        (502, "", Server),
        (400, "EntityTooLarge", Other),
    ] {
        let fault = sorted(&said(status, code), "s3:PutObject");
        assert_eq!(fault.kind, kind, "{status} {code}");
        assert!(!fault.sentence.is_empty() && !fault.remedy.is_empty(), "{status} {code}");
    }
}

#[test]
fn a_denial_names_permission_and_place() {
    let fault = sorted(&said(403, "AccessDenied"), "s3:PutObject").to_string();
    assert!(fault.contains("may not `s3:PutObject`") && fault.contains("arn:aws:s3:::bucket/runs/*"), "{fault}");
    let fault = sorted(&said(403, "AccessDenied"), "s3:ListBucket").to_string();
    assert!(fault.contains("`s3:ListBucket` on arn:aws:s3:::bucket;"), "{fault}");
}

#[test]
fn a_region_is_named_where_the_server_does() {
    let header = Answer { region: Some("eu-west-1".to_owned()), ..said(301, "PermanentRedirect") };
    let message = "the region 'us-east-1' is wrong; expecting 'eu-west-1'".to_owned();
    let words = Answer { message, ..said(400, "AuthorizationHeaderMalformed") };
    for answer in [header, words] {
        let fault = sorted(&answer, "s3:GetObject");
        assert!(fault.remedy.contains("`region=eu-west-1`"), "{fault}");
    }
}

#[test]
fn clocks_are_compared_where_a_request_is_refused() {
    let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let profile = profile();
    let asked = Asked { profile: &profile, endpoint: "http://host:1", permission: "s3:GetObject" };
    let of = |code: &str, theirs: u64| {
        of_answer(&Answer { date: Some(at(theirs)), ..said(403, code) }, at(1_700_000_000), asked)
    };
    let fault = of("SignatureDoesNotMatch", 1_700_001_000);
    assert_eq!(fault.kind, FaultKind::ClockSkew { ours: at(1_700_000_000), theirs: at(1_700_001_000) });
    for word in ["2023-11-14T22:13:20Z", "2023-11-14T22:30:00Z", "1000 s"] {
        assert!(fault.sentence.contains(word), "{fault}");
    }
    assert_eq!(of("SignatureDoesNotMatch", 1_700_000_100).kind, FaultKind::BadSignature);
    assert!(matches!(of("RequestTimeTooSkewed", 1_700_000_100).kind, FaultKind::ClockSkew { .. }));
}

#[test]
fn connections_are_sorted_by_what_broke() {
    let profile = profile();
    let asked = Asked { profile: &profile, endpoint: "http://host:1", permission: "s3:GetObject" };
    let of = |error: io::Error| of_connection(&error, false, asked).kind;
    assert_eq!(of(io::Error::from(ErrorKind::ConnectionRefused)), FaultKind::Unreachable);
    assert_eq!(of(io::Error::other("dns error: failed to lookup address")), FaultKind::Unreachable);
    assert_eq!(of(io::Error::other("invalid peer certificate: UnknownIssuer")), FaultKind::Tls);
    assert_eq!(of(io::Error::from(ErrorKind::ConnectionReset)), FaultKind::Interrupted);
    assert_eq!(of(io::Error::other("connection closed before message completed")), FaultKind::Interrupted);
    assert_eq!(of(io::Error::other("HTTP read timeout occurred")), FaultKind::Timeout);
}

#[test]
fn a_servers_words_are_cut_to_a_line() {
    let text = one_line(&format!("a\n b\t{}", "é".repeat(1000)));
    assert!(text.starts_with("a b é") && text.ends_with('…') && text.chars().count() == LONGEST_MESSAGE + 1);
}
