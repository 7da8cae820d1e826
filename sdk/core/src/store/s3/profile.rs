//! `s3://bucket/prefix?endpoint=…`: where a store is, and how its server wants to be spoken to.

use aws_sdk_s3::types::ChecksumAlgorithm;

use crate::store::url::{decode, encode, shown};
use crate::store::{Error, check_key};

/// A store's URL, taken apart. It is written into specs and command lines, so it holds no credential.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) bucket: String,
    /// Empty, or parts joined by `/`.
    pub(super) prefix: String,
    /// `http://host:port`; unset: AWS, or what the environment or profile names.
    pub(super) endpoint: Option<String>,
    /// Unset: what the environment or profile names.
    pub(super) region: Option<String>,
    /// `http://host/bucket/key` instead of `http://bucket.host/key`; unset: with an endpoint of one's own.
    pub(super) path_style: Option<bool>,
    /// Whether requests carry S3's additional checksums wherever they may; unset: not, since our own sha256
    /// covers what they would, and servers that know none refuse them.
    pub(super) checksums: Option<Checksums>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksums {
    WhenSupported,
    WhenRequired,
}

const SETTINGS: &str = "`endpoint`, `region`, `path_style` and `checksums`";
const NO_CREDENTIAL: &str = "a store's URL is written into specs and command lines, so it holds no credential; \
     set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";

impl Profile {
    /// # Errors
    /// [`Error::Invalid`] with the rule that is broken; what could be a secret is not repeated.
    pub(super) fn parse(url: &str) -> Result<Self, Error> {
        let invalid = |rule: &str| Error::Invalid { what: "store URL", given: shown(url), rule: rule.to_owned() };
        let rest = url.strip_prefix("s3://").ok_or_else(|| invalid("it begins with `s3://`"))?;
        if rest.contains('#') {
            return Err(invalid("write `#` as %23"));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        if bucket.contains('@') {
            return Err(invalid(NO_CREDENTIAL));
        }
        if !is_bucket(bucket) {
            let rule = "after `s3://` comes a bucket's name (3 to 63 of `a-z`, `0-9`, `.`, `-`), then `/prefix`";
            return Err(invalid(rule));
        }
        let text = |coded: &str| decode(coded).and_then(|bytes| String::from_utf8(bytes).ok());
        let encoded = || invalid("special characters are written as %XX of UTF-8");
        let prefix = text(prefix).ok_or_else(encoded)?.trim_end_matches('/').to_owned();
        if !prefix.is_empty() && (check_key(&prefix).is_err() || prefix.chars().any(char::is_control)) {
            return Err(invalid("the prefix is of non-empty parts joined by `/`, none of them `.` or `..`"));
        }
        let mut profile = Self { bucket: bucket.to_owned(), prefix, ..Self::default() };
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            let value = text(value).ok_or_else(encoded)?;
            profile.set(name, value).map_err(|rule| invalid(&rule))?;
        }
        Ok(profile)
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), String> {
        let twice = match name {
            "endpoint" => self.endpoint.replace(endpoint(&value)?).is_some(),
            "region" => {
                let well_formed = |c: char| c.is_ascii_alphanumeric() || c == '-';
                if value.is_empty() || !value.chars().all(well_formed) {
                    return Err("`region` is a name such as `eu-west-1`".to_owned());
                }
                self.region.replace(value).is_some()
            }
            "path_style" => {
                let value = value.parse().map_err(|_| "`path_style` is `true` or `false`".to_owned())?;
                self.path_style.replace(value).is_some()
            }
            "checksums" => {
                let value = match value.as_str() {
                    "when_supported" => Checksums::WhenSupported,
                    "when_required" => Checksums::WhenRequired,
                    _ => return Err("`checksums` is `when_supported` or `when_required`".to_owned()),
                };
                self.checksums.replace(value).is_some()
            }
            _ if looks_like_a_credential(name) => return Err(NO_CREDENTIAL.to_owned()),
            _ => return Err(format!("it has a setting that is none of {SETTINGS}")),
        };
        if twice { Err(format!("`{name}` is there twice")) } else { Ok(()) }
    }

    /// The URL that [`Profile::parse`] takes apart into this.
    pub(super) fn url(&self) -> String {
        let mut url = format!("s3://{}", self.bucket);
        if !self.prefix.is_empty() {
            url.push('/');
            url.push_str(&encode(self.prefix.as_bytes(), b"/"));
        }
        let settings = [
            ("endpoint", self.endpoint.clone()),
            ("region", self.region.clone()),
            ("path_style", self.path_style.map(|yes| yes.to_string())),
            ("checksums", self.checksums.map(|mode| mode.name().to_owned())),
        ];
        let mut mark = '?';
        for (name, value) in settings {
            if let Some(value) = value {
                url.push_str(&format!("{mark}{name}={}", encode(value.as_bytes(), b"/:[]")));
                mark = '&';
            }
        }
        url
    }

    /// The object's key in the bucket.
    pub(super) fn key(&self, key: &str) -> String {
        if self.prefix.is_empty() { key.to_owned() } else { format!("{}/{key}", self.prefix) }
    }
}

impl Profile {
    /// What a multipart upload names at its beginning, and each of its parts then carries: S3 refuses, at the
    /// end of an upload that named none, parts that have one (`InvalidPart`). The SDK adds it to parts by
    /// itself, and to the beginning it does not.
    pub(super) fn checksum_of_parts(&self) -> Option<ChecksumAlgorithm> {
        (self.checksums == Some(Checksums::WhenSupported)).then_some(ChecksumAlgorithm::Crc32)
    }
}

impl Checksums {
    fn name(self) -> &'static str {
        match self {
            Self::WhenSupported => "when_supported",
            Self::WhenRequired => "when_required",
        }
    }
}

fn is_bucket(name: &str) -> bool {
    // Old buckets of AWS may have upper-case letters and `_`, too.
    (3..=63).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
        && name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

fn endpoint(value: &str) -> Result<String, String> {
    let host = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://")).unwrap_or_default();
    if host.contains('@') {
        return Err(NO_CREDENTIAL.to_owned());
    }
    let odd = |c: char| c.is_whitespace() || c.is_control() || "?#\\<>\"{}|^`".contains(c);
    if host.is_empty() || host.starts_with(['/', ':']) || host.chars().any(odd) || !host.is_ascii() {
        return Err("`endpoint` is written `http://host:port` or `https://host`".to_owned());
    }
    Ok(value.trim_end_matches('/').to_owned())
}

fn looks_like_a_credential(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["key", "secret", "token", "pass", "cred", "sign", "auth", "user"].iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_survive_the_round_trip() {
        for url in [
            "s3://bucket",
            "s3://bucket/prefix",
            "s3://my.bucket-1/a/b%20c/%C3%A9%2B%25",
            "s3://bucket/p?endpoint=http://127.0.0.1:8333&region=us-east-1&path_style=true&checksums=when_required",
            "s3://bucket?endpoint=https://[::1]:9000/s3&path_style=false&checksums=when_supported",
        ] {
            let profile = Profile::parse(url).unwrap();
            assert_eq!(profile.url(), url);
            assert_eq!(Profile::parse(&profile.url()).unwrap(), profile);
        }
        let profile = Profile::parse("s3://bucket/a/b%20c//?endpoint=http%3A%2F%2Fh%3A1/&").unwrap();
        assert_eq!((profile.prefix.as_str(), profile.endpoint.as_deref()), ("a/b c", Some("http://h:1")));
        assert_eq!(profile.key("k/é"), "a/b c/k/é");
        assert_eq!(Profile::parse("s3://bucket/").unwrap().key("k"), "k");
    }

    #[test]
    fn bad_urls_are_refused_with_the_rule() {
        for (url, rule) in [
            ("s3://", "bucket's name"),
            ("s3://b", "bucket's name"),
            ("s3://buc ket/x", "bucket's name"),
            ("s3://bucket/a//b", "non-empty parts"),
            ("s3://bucket/../b", "non-empty parts"),
            ("s3://bucket/%2E%2E/b", "non-empty parts"),
            ("s3://bucket/a%0Ab", "non-empty parts"),
            ("s3://bucket/a%zz", "%XX"),
            ("s3://bucket/%ff", "%XX"),
            ("s3://bucket/a#b", "%23"),
            ("s3://bucket?region=", "eu-west-1"),
            ("s3://bucket?region=a&region=b", "twice"),
            ("s3://bucket?path_style=yes", "`true` or `false`"),
            ("s3://bucket?checksums=never", "`when_supported` or `when_required`"),
            ("s3://bucket?endpoint=host:1", "http://host:port"),
            ("s3://bucket?endpoint=http://", "http://host:port"),
            ("s3://bucket?colour=red", "none of `endpoint`"),
        ] {
            let error = Profile::parse(url).unwrap_err().to_string();
            assert!(error.contains(rule), "{url}: {error}");
        }
    }

    #[test]
    fn credentials_are_refused_and_not_repeated() {
        for url in [
            "s3://AKIAHIDDEN:hidden@bucket/x",
            "s3://bucket/x?secret_access_key=hidden",
            "s3://bucket/x?AWSAccessKeyId=AKIAHIDDEN&Signature=hidden",
            "s3://bucket/x?session_token=hidden",
            "s3://bucket/x?password=hidden",
            "s3://bucket/x?endpoint=http://user:hidden@host:1",
        ] {
            let error = Profile::parse(url).unwrap_err().to_string();
            assert!(error.contains("holds no credential") && !error.to_lowercase().contains("hidden"), "{error}");
        }
    }
}
