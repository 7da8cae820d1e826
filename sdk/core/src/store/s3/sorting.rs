//! From what the SDK or the server said to a [`Fault`]: its kind, a sentence, what to do.

use std::error::Error as StdError;
use std::io::ErrorKind;
use std::time::{Duration, SystemTime};

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;

use super::profile::Profile;
use crate::store::fault::{Fault, FaultKind};

/// S3 takes requests whose time is within 15 minutes of its own; others are stricter.
const SKEW: Duration = Duration::from_secs(5 * 60);
/// Of a server's own words.
const LONGEST_MESSAGE: usize = 300;
const WHERE_CREDENTIALS_ARE: &str = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the profile AWS_PROFILE in \
     ~/.aws/credentials and ~/.aws/config, a web identity (AWS_ROLE_ARN and AWS_WEB_IDENTITY_TOKEN_FILE), a \
     container's role, the machine's role";

/// What was asked of whom, for the words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) profile: &'a Profile,
    /// Whom, such as `http://host:1` or `AWS`.
    pub(super) endpoint: &'a str,
    /// The permission it takes, such as `s3:GetObject`.
    pub(super) permission: &'static str,
}

/// What a server answered, apart from success.
#[derive(Clone, Debug, Default)]
struct Answer {
    status: u16,
    code: String,
    message: String,
    /// Its `Date`.
    date: Option<SystemTime>,
    /// Its `x-amz-bucket-region`.
    region: Option<String>,
    /// Its `Retry-After`.
    wait: Option<Duration>,
}

/// Sorts a failed request.
pub(super) fn sort<E>(error: &SdkError<E, HttpResponse>, asked: Asked<'_>) -> Fault
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    match error {
        SdkError::ServiceError(service) => {
            let metadata = service.err().meta();
            let said = |text: Option<&str>| text.unwrap_or_default().to_owned();
            let answer = answer(service.raw(), said(metadata.code()), said(metadata.message()));
            of_answer(&answer, SystemTime::now(), asked)
        }
        SdkError::ResponseError(response) => {
            let raw = response.raw();
            if raw.status().is_success() {
                let sentence = format!("{} gave an answer that is not S3's: {}", asked.endpoint, words(error));
                return Fault::new(FaultKind::Interrupted, sentence, "check that the endpoint is an S3 server's");
            }
            of_answer(&answer(raw, String::new(), words(error)), SystemTime::now(), asked)
        }
        SdkError::TimeoutError(_) => timed_out(None, asked),
        SdkError::DispatchFailure(failure) if failure.is_timeout() => of_connection(error, true, asked),
        _ => of_connection(error, false, asked),
    }
}

fn answer(raw: &HttpResponse, code: String, message: String) -> Answer {
    let header = |name: &str| raw.headers().get(name);
    let date = header("date")
        .and_then(|date| DateTime::from_str(date, Format::HttpDate).ok())
        .and_then(|date| SystemTime::try_from(date).ok());
    Answer {
        status: raw.status().as_u16(),
        code,
        message: one_line(&message),
        date,
        region: header("x-amz-bucket-region").map(str::to_owned),
        wait: header("retry-after").and_then(|wait| wait.parse().ok()).map(Duration::from_secs),
    }
}

/// Sorts what came back from a server.
fn of_answer(answer: &Answer, now: SystemTime, asked: Asked<'_>) -> Fault {
    let Asked { profile, endpoint, permission } = asked;
    let (bucket, code) = (&profile.bucket, answer.code.as_str());
    let said = said(answer);
    let fault =
        |kind, sentence: String, remedy: &str| Fault { wait: answer.wait, ..Fault::new(kind, sentence, remedy) };
    // A clock that is off shows as a bad signature or a plain refusal at some servers.
    if (code == "RequestTimeTooSkewed" || matches!(answer.status, 400 | 401 | 403))
        && let Some(theirs) = answer.date
        && (code == "RequestTimeTooSkewed" || apart(now, theirs) > SKEW)
    {
        return skewed(now, theirs, endpoint);
    }
    match (code, answer.status) {
        ("NoSuchBucket", _) => fault(
            FaultKind::NoBucket,
            format!("there is no bucket `{bucket}` at {endpoint}"),
            "make the bucket, or correct its name or the endpoint in the store's URL",
        ),
        ("NoSuchKey" | "NotFound" | "", 404) => {
            fault(FaultKind::NoObject, "there is no such object".to_owned(), "check the key")
        }
        ("PreconditionFailed" | "ObjectAlreadyExists" | "FileAlreadyExists", _) | ("", 412) => {
            fault(FaultKind::Precondition, format!("the object is another than expected{said}"), "read it again")
        }
        ("ConditionalRequestConflict" | "OperationAborted", _) => fault(
            FaultKind::Conflict,
            format!("another write of the object was under way{said}"),
            "try again once it is done",
        ),
        ("InvalidAccessKeyId" | "InvalidAccessKey" | "InvalidSecurity" | "NoSuchUser" | "XAdminUserNotFound", _) => {
            fault(
                FaultKind::UnknownKey,
                format!("{endpoint} does not know the access key{said}"),
                "correct AWS_ACCESS_KEY_ID (or the profile's), or the endpoint: keys of one server mean nothing to another",
            )
        }
        ("SignatureDoesNotMatch", _) => fault(
            FaultKind::BadSignature,
            format!("{endpoint} refuses the request's signature{said}"),
            "correct AWS_SECRET_ACCESS_KEY (or the profile's); where it is right, a proxy on the way changes requests",
        ),
        ("ExpiredToken" | "TokenRefreshRequired" | "InvalidToken" | "ExpiredTokenException", _) => fault(
            FaultKind::ExpiredCredentials,
            format!("{endpoint} does not take the session token any more{said}"),
            "get new credentials (for example `aws sso login`), or unset AWS_SESSION_TOKEN if it is a leftover",
        ),
        ("RequestTimeTooSkewed", _) => fault(
            FaultKind::ClockSkew { ours: now, theirs: now },
            format!("this machine's clock says {}, and {endpoint} finds that too far from its own{said}", utc(now)),
            "set this machine's clock (NTP)",
        ),
        ("PermanentRedirect" | "TemporaryRedirect" | "AuthorizationHeaderMalformed" | "IncorrectEndpoint", _)
        | ("IllegalLocationConstraintException", _)
        | (_, 301 | 307) => wrong_region(answer, asked),
        ("SlowDown" | "Throttling" | "ThrottlingException" | "TooManyRequests" | "RequestLimitExceeded", _)
        | (
            "RequestThrottled"
            | "BandwidthLimitExceeded"
            | "ServiceUnavailable"
            | "Busy"
            | "XMinioServerNotInitialized",
            _,
        )
        | (_, 429 | 503) => fault(
            FaultKind::Throttled,
            format!("{endpoint} asks for fewer requests{said}"),
            "try again later, or run fewer jobs against the store at once",
        ),
        ("RequestTimeout" | "RequestTimeoutException", _) | (_, 408) => {
            Fault { wait: answer.wait, ..timed_out(Some(&said), asked) }
        }
        ("BadDigest" | "XAmzContentSHA256Mismatch" | "InvalidDigest" | "XAmzContentChecksumMismatch", _) => fault(
            FaultKind::Checksum,
            format!("what arrived at {endpoint} is not what was sent{said}"),
            "something on the way changes requests; if it stays, put `checksums=when_required` into the store's URL",
        ),
        ("IncompleteBody", _) => fault(
            FaultKind::Interrupted,
            format!("only a part of the request arrived at {endpoint}{said}"),
            "check the network between here and there",
        ),
        ("NotImplemented" | "MethodNotAllowed" | "XNotImplemented", _) | (_, 501 | 405) => fault(
            FaultKind::Unsupported,
            format!("{endpoint} does not offer what was asked{said}"),
            "put `checksums=when_required` into the store's URL; if it stays, the server is none that can be a store",
        ),
        ("AccessDenied" | "AllAccessDisabled" | "AccountProblem" | "UnauthorizedAccess" | "Forbidden", _)
        | (_, 401 | 403) => denied(answer, permission, asked),
        (_, 500..) => fault(
            FaultKind::Server,
            format!("{endpoint} failed{said}"),
            "look at the server's log; try again once it is well",
        ),
        _ => fault(
            FaultKind::Other,
            format!("{endpoint} refuses the request{said}"),
            "correct what the server names; `gym doctor --store URL` tries each operation",
        ),
    }
}

fn denied(answer: &Answer, permission: &'static str, asked: Asked<'_>) -> Fault {
    let Asked { profile, endpoint, .. } = asked;
    let bucket = &profile.bucket;
    let absent = match permission {
        "s3:GetObject" => " (S3 also says so of an object that is not there, to whom may not list the bucket)",
        _ => "",
    };
    let place = match permission {
        "s3:ListBucket" => format!("arn:aws:s3:::{bucket}"),
        _ => format!("arn:aws:s3:::{bucket}/{}", profile.key("*")),
    };
    Fault::new(
        FaultKind::Denied,
        format!("{endpoint} denies access: the credentials may not `{permission}`{absent}{}", said(answer)),
        format!(
            "allow `{permission}` on {place}; a store needs s3:GetObject, s3:PutObject, s3:DeleteObject, \
             s3:AbortMultipartUpload and s3:ListBucket"
        ),
    )
}

fn wrong_region(answer: &Answer, asked: Asked<'_>) -> Fault {
    // "…the region 'us-east-1' is wrong; expecting 'eu-west-1'"
    let named = answer.message.rsplit_once("expecting '").and_then(|(_, rest)| rest.split('\'').next());
    let (bucket, region) = (&asked.profile.bucket, answer.region.as_deref().or(named));
    let remedy = region.map_or_else(
        || "put the bucket's `region=…` into the store's URL".to_owned(),
        |region| format!("put `region={region}` into the store's URL"),
    );
    let place = region.map_or_else(|| "another region".to_owned(), |region| format!("region `{region}`"));
    let sentence = format!("bucket `{bucket}` lives in {place}, not in the one that was asked{}", said(answer));
    Fault::new(FaultKind::WrongRegion, sentence, remedy)
}

fn skewed(ours: SystemTime, theirs: SystemTime, endpoint: &str) -> Fault {
    Fault::new(
        FaultKind::ClockSkew { ours, theirs },
        format!(
            "the clocks differ by {} s: this machine's says {}, that of {endpoint} says {}",
            apart(ours, theirs).as_secs(),
            utc(ours),
            utc(theirs)
        ),
        "set the clock that is wrong (NTP)",
    )
}

/// A request whose time was over.
pub(super) fn timed_out(said: Option<&str>, asked: Asked<'_>) -> Fault {
    Fault::new(
        FaultKind::Timeout,
        format!("{} did not answer in time{}", asked.endpoint, said.unwrap_or_default()),
        "check the network between here and there, and the server's load",
    )
}

/// Sorts a request that got no answer.
fn of_connection(error: &(dyn StdError + 'static), timeout: bool, asked: Asked<'_>) -> Fault {
    let endpoint = asked.endpoint;
    if let Some(error) = find::<CredentialsError>(error) {
        return without_credentials(error);
    }
    let text = words(error);
    let lower = text.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let io = find::<std::io::Error>(error).map(std::io::Error::kind);
    let unreachable = |how: &str, remedy: &str| {
        Fault::new(FaultKind::Unreachable, format!("{endpoint} cannot be reached: {how}"), remedy)
    };
    if has(&["dns error", "failed to lookup address", "name or service not known"]) {
        return unreachable(
            "its name is not known (DNS)",
            "correct `endpoint` in the store's URL, or the machine's DNS",
        );
    }
    if has(&["certificate", "unknownissuer", "tls", "handshake", "invalidcontenttype", "corrupt message"]) {
        return Fault::new(
            FaultKind::Tls,
            format!("no trusted connection to {endpoint}: {text}"),
            "write `http://` for a server without TLS; for a certificate of one's own, name its authority's file in \
             SSL_CERT_FILE",
        );
    }
    if io == Some(ErrorKind::ConnectionRefused) || has(&["connection refused"]) {
        return unreachable("nothing listens there", "start the server, or correct `endpoint` in the store's URL");
    }
    if has(&["no route", "unreachable"]) {
        return unreachable("there is no way to it", "check this machine's network, and `endpoint` in the store's URL");
    }
    if timeout || has(&["connect timeout", "timed out", "timeout"]) {
        if has(&["connect"]) {
            return unreachable(
                "no connection came about in time",
                "check `endpoint` in the store's URL, and firewalls",
            );
        }
        return timed_out(None, asked);
    }
    if has(&["failed to construct request", "invalid uri", "invalid endpoint", "missing region"]) {
        return Fault::new(
            FaultKind::Other,
            format!("no request to {endpoint} could be made: {text}"),
            "correct the store's URL or the AWS_* variables",
        );
    }
    Fault::new(
        FaultKind::Interrupted,
        format!("the connection to {endpoint} broke: {text}"),
        "check the network between here and there",
    )
}

fn without_credentials(error: &CredentialsError) -> Fault {
    let (sentence, remedy) = match error {
        CredentialsError::CredentialsNotLoaded(_) => {
            (format!("no credentials were found; looked at: {WHERE_CREDENTIALS_ARE}"), "set one of them")
        }
        CredentialsError::ProviderTimedOut(_) => (
            "the place that gives credentials did not answer in time".to_owned(),
            "check the machine's or container's role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
        // These may quote a file or an answer of a token service: only their kind is told.
        CredentialsError::InvalidConfiguration(_) => (
            format!("the settings for credentials cannot be used: {}", reason(error)),
            "correct the profile in ~/.aws, or the AWS_* variables",
        ),
        _ => (
            format!("the place that gives credentials refused: {}", reason(error)),
            "check the role's trust and its token file, or log in again (for example `aws sso login`)",
        ),
    };
    Fault::new(FaultKind::NoCredentials, sentence, remedy)
}

/// The innermost words of why credentials failed.
fn reason(error: &CredentialsError) -> String {
    let mut source: &dyn StdError = error;
    while let Some(deeper) = source.source() {
        source = deeper;
    }
    one_line(&source.to_string())
}

/// A body that ended wrongly.
pub(super) fn of_body(error: &(dyn StdError + 'static), asked: Asked<'_>) -> Fault {
    let text = words(error);
    if text.contains("minimum throughput") || text.contains("timed out") {
        return timed_out(Some(": its answer stalled"), asked);
    }
    Fault::new(
        FaultKind::Interrupted,
        format!("the answer of {} broke off: {text}", asked.endpoint),
        "check the network between here and there",
    )
}

fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut current = Some(error);
    while let Some(error) = current {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        current = error.source();
    }
    None
}

/// An error with its sources, each said once.
fn words(error: &(dyn StdError + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut current = Some(error);
    while let Some(error) = current {
        let text = error.to_string();
        if parts.last().is_none_or(|last| !last.contains(&text)) {
            parts.push(text);
        }
        current = error.source();
    }
    one_line(&parts.join(": "))
}

fn one_line(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST_MESSAGE) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The server's own words, in brackets.
fn said(answer: &Answer) -> String {
    let Answer { status, code, message, .. } = answer;
    match (code.is_empty(), message.is_empty()) {
        (true, true) => format!(" (HTTP {status})"),
        (true, false) => format!(" (HTTP {status}: {message})"),
        (false, true) => format!(" (HTTP {status} {code})"),
        (false, false) => format!(" (HTTP {status} {code}: {message})"),
    }
}

fn apart(one: SystemTime, other: SystemTime) -> Duration {
    one.duration_since(other).unwrap_or_else(|error| error.duration())
}

fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let time = DateTime::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    time.fmt(Format::DateTime).unwrap_or_else(|_| format!("{seconds} s after 1970"))
}

#[cfg(test)]
mod tests;
