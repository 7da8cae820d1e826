//! One request: redirects followed by hand, failures sorted into "again" and "never".
//!
//! Redirects are ours to follow because the hub's own answer (with the file's etag and size) is the
//! redirect itself, and because the token must not travel to another host.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::header::{ACCEPT_ENCODING, HeaderMap, LOCATION, RANGE, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode, Url};

use super::{Error, HubOptions, Patience, Token};

const MAX_REDIRECTS: usize = 10;

/// A refusal that asking again does not change.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    /// The hub's own word for it, such as `GatedRepo` or `RevisionNotFound`.
    pub(super) code: String,
    pub(super) url: String,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The hub says no; the caller knows what it asked for.
    Refused(Refusal),
    /// It may work in a while: in `wait`, if the hub said so.
    Passing { error: Error, wait: Option<Duration> },
    /// It will not work.
    Fatal(Error),
}

/// A successful answer and what the hub itself said of the file before redirecting.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) response: Response,
    pub(super) etag: Option<String>,
    pub(super) size: Option<u64>,
}

#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    endpoint: Url,
    token: Option<Token>,
    patience: Patience,
}

impl Client {
    pub(super) fn new(options: &HubOptions) -> Result<Self, Error> {
        let bad = |rule| Error::Setting { name: "HF_ENDPOINT", given: options.endpoint.clone(), rule };
        let endpoint = Url::parse(options.endpoint.trim_end_matches('/'))
            .map_err(|_| bad("write a URL such as https://huggingface.co"))?;
        if !matches!(endpoint.scheme(), "http" | "https") || endpoint.host_str().is_none() {
            return Err(bad("write an http or https URL such as https://huggingface.co"));
        }
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("training-gym/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(10).min(options.patience.silence))
            .read_timeout(options.patience.silence);
        if matches!(endpoint.host_str(), Some("127.0.0.1" | "localhost" | "[::1]")) {
            // No proxy leads to this machine.
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|source| network(&endpoint, source))?;
        Ok(Self { http, endpoint, token: options.token.clone(), patience: options.patience })
    }

    /// The endpoint as text, without a slash behind it.
    pub(super) fn endpoint(&self) -> &str {
        self.endpoint.as_str().trim_end_matches('/')
    }

    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The URL of `parts` under the endpoint, each part percent-encoded whole.
    pub(super) fn url(&self, parts: &[&str]) -> Url {
        let mut url = self.endpoint.clone();
        // An http URL always takes path segments.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(parts);
        }
        url
    }

    /// Asks for JSON, with patience.
    pub(super) async fn json<T: serde::de::DeserializeOwned>(&self, url: &Url) -> Result<T, Trouble> {
        let mut failures = 0;
        loop {
            let trouble = match self.json_once(url).await {
                Ok(value) => return Ok(value),
                Err(trouble) => trouble,
            };
            failures += 1;
            self.pause(trouble, failures, url).await?;
        }
    }

    async fn json_once<T: serde::de::DeserializeOwned>(&self, url: &Url) -> Result<T, Trouble> {
        let answer = self.send(Method::GET, url, 0).await?;
        let body = answer
            .response
            .bytes()
            .await
            .map_err(|source| Trouble::Passing { error: network(url, source), wait: None })?;
        serde_json::from_slice(&body)
            .map_err(|error| Trouble::Fatal(Error::Answer { url: shown(url), what: error.to_string() }))
    }

    /// Waits before the next try, or hands the trouble back where there shall be none.
    pub(super) async fn pause(&self, trouble: Trouble, failures: u32, url: &Url) -> Result<(), Trouble> {
        let Trouble::Passing { error, wait } = trouble else { return Err(trouble) };
        let Some(backoff) = self.patience.wait(failures) else { return Err(Trouble::Fatal(error)) };
        let limit = self.patience.longest_wait;
        if let Some(asked) = wait.filter(|asked| *asked > limit) {
            let (seconds, limit) = (asked.as_secs(), limit.as_secs());
            return Err(Trouble::Fatal(Error::RateLimited { url: shown(url), seconds, limit }));
        }
        let pause = wait.unwrap_or(backoff);
        tracing::info!(url = shown(url), seconds = pause.as_secs_f64(), "{error}; trying again");
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// One try. `from` > 0 asks for the bytes from there on.
    pub(super) async fn send(&self, method: Method, url: &Url, from: u64) -> Result<Answer, Trouble> {
        let mut at = url.clone();
        let (mut etag, mut size) = (None, None);
        for _ in 0..=MAX_REDIRECTS {
            let ours = at.origin() == self.endpoint.origin();
            let mut request = self.http.request(method.clone(), at.clone()).header(ACCEPT_ENCODING, "identity");
            if let (true, Some(token)) = (ours, &self.token) {
                request = request.bearer_auth(token.reveal());
            }
            if from > 0 {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            let response = request.send().await.map_err(|source| sort(&at, source))?;
            let (status, headers) = (response.status(), response.headers());
            if ours {
                let whole = status == StatusCode::OK && method == Method::HEAD;
                etag = etag.or_else(|| header(headers, "x-linked-etag"));
                size = size.or_else(|| header(headers, "x-linked-size").and_then(|text| text.parse().ok()));
                if status.is_success() {
                    etag = etag.or_else(|| header(headers, "etag"));
                    let length = header(headers, "content-length").filter(|_| whole);
                    size = size.or_else(|| length.and_then(|text| text.parse().ok()));
                }
            }
            if !status.is_redirection() {
                return judge(response, &at, ours).map(|response| Answer {
                    response,
                    etag: etag.map(plain_etag),
                    size,
                });
            }
            let target = headers.get(LOCATION).and_then(|value| value.to_str().ok());
            let next = target.and_then(|target| at.join(target).ok());
            let next = next.filter(|next| matches!(next.scheme(), "http" | "https"));
            let lost = || Error::Answer { url: shown(&at), what: format!("{status} without a usable location") };
            let next = next.ok_or_else(|| Trouble::Fatal(lost()))?;
            if method == Method::HEAD && ours && next.origin() != self.endpoint.origin() && etag.is_some() {
                // Everything a HEAD is for has been said.
                return Ok(Answer { response, etag: etag.map(plain_etag), size });
            }
            at = next;
        }
        Err(Trouble::Fatal(Error::Answer { url: shown(url), what: format!("more than {MAX_REDIRECTS} redirects") }))
    }
}

/// Sorts a status that is no redirect.
fn judge(response: Response, url: &Url, ours: bool) -> Result<Response, Trouble> {
    let status = response.status();
    if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE {
        return Ok(response);
    }
    let failed = |advice| Error::Status { url: shown(url), status: status.as_u16(), advice };
    if status == StatusCode::TOO_MANY_REQUESTS {
        let advice = "the rate limit is reached; wait, or set HF_TOKEN for a higher one";
        return Err(Trouble::Passing { error: failed(advice), wait: retry_after(response.headers()) });
    }
    if status.is_server_error() || status == StatusCode::REQUEST_TIMEOUT {
        let error = failed("the hub is in trouble; try again later");
        return Err(Trouble::Passing { error, wait: retry_after(response.headers()) });
    }
    if !ours {
        // A signed URL of a storage host that ran out: the hub gives a fresh one.
        return Err(Trouble::Passing { error: failed("the storage behind the hub refused"), wait: None });
    }
    let code = header(response.headers(), "x-error-code").unwrap_or_default();
    Err(Trouble::Refused(Refusal { status, code, url: shown(url) }))
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// An etag without its quotes and its weakness.
fn plain_etag(text: String) -> String {
    text.trim_start_matches("W/").trim_matches('"').to_owned()
}

/// How long the hub asks to wait: `Retry-After` in seconds or as a date, else the `t` of `RateLimit`.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    if let Some(text) = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()) {
        let text = text.trim();
        if let Ok(seconds) = text.parse::<u64>() {
            return Some(Duration::from_secs(seconds));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        return http_date(text).map(|at| Duration::from_secs(at.saturating_sub(now)));
    }
    let limit = header(headers, "ratelimit")?;
    let seconds = limit.split(';').find_map(|part| part.trim().strip_prefix("t="))?;
    seconds.parse().ok().map(Duration::from_secs)
}

/// Unix seconds of an RFC 9110 date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(text: &str) -> Option<u64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let mut words = text.split_once(", ")?.1.split([' ', ':']);
    let day: u64 = words.next()?.parse().ok()?;
    let month = words.next().filter(|name| name.len() == 3).and_then(|name| MONTHS.find(name))? as u64 / 3 + 1;
    let year: u64 = words.next()?.parse().ok()?;
    let mut number = || words.next()?.parse::<u64>().ok();
    let (hour, minute, second) = (number()?, number()?, number()?);
    if !(1970..=9999).contains(&year) || !(1..=31).contains(&day) {
        return None;
    }
    // Days from a civil date (Howard Hinnant), the year beginning in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    Some((days - 719_468) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// A URL for people: without the query, which may be a signature, and without a user's name.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    // Fails only for URLs that have no user part to begin with.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string()
}

pub(super) fn network(url: &Url, source: reqwest::Error) -> Error {
    Error::Network { url: shown(url), source: Box::new(source.without_url()) }
}

fn sort(url: &Url, source: reqwest::Error) -> Trouble {
    if source.is_builder() {
        return Trouble::Fatal(network(url, source));
    }
    Trouble::Passing { error: network(url, source), wait: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_in_all_three_forms() {
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(http_date("soon"), None);
        let mut headers = HeaderMap::new();
        assert_eq!(retry_after(&headers), None);
        headers.insert("ratelimit", "\"api\";r=0;t=55".parse().unwrap());
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(55)));
        headers.insert(RETRY_AFTER, "7".parse().unwrap());
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(7)));
        headers.insert(RETRY_AFTER, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
        assert_eq!(retry_after(&headers), Some(Duration::ZERO));
    }

    #[test]
    fn urls_are_shown_without_secrets_and_built_by_parts() {
        let url = Url::parse("https://me:pw@host/a/b?X-Amz-Signature=abc").unwrap();
        assert_eq!(shown(&url), "https://host/a/b");
        let mut options = HubOptions::new("/nowhere");
        options.endpoint = "http://127.0.0.1:1/mirror/".to_owned();
        let client = Client::new(&options).unwrap();
        let url = client.url(&["api", "models", "a", "revision", "refs/pr/1"]);
        assert_eq!(url.as_str(), "http://127.0.0.1:1/mirror/api/models/a/revision/refs%2Fpr%2F1");
        options.endpoint = "huggingface.co".to_owned();
        assert!(Client::new(&options).is_err());
    }
}
