//! A folder as a `file://` URL and back (RFC 8089), and percent-encoding (RFC 3986).

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// `file:///path`, with every byte outside RFC 3986's unreserved set and `/` as `%XX`.
pub(super) fn of_file(path: &Path) -> String {
    format!("file://{}", encode(path.as_os_str().as_bytes(), b"/"))
}

/// Every byte outside RFC 3986's unreserved set and `kept` as `%XX`.
pub(super) fn encode(bytes: &[u8], kept: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// The bytes that `%XX` stand for; `None` where a `%` is followed by something else.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut decoded) = (text.bytes(), Vec::with_capacity(text.len()));
    while let Some(byte) = bytes.next() {
        decoded.push(if byte == b'%' { hexadecimal(bytes.next()?)? << 4 | hexadecimal(bytes.next()?)? } else { byte });
    }
    Some(decoded)
}

/// A URL as it may be shown: without what could be a secret (user information and the query).
pub(super) fn shown(url: &str) -> String {
    let (before, query) = url.split_once(['?', '#']).map_or((url, ""), |(before, _)| (before, "?…"));
    let place = before.split_once("://").map_or_else(
        || before.to_owned(),
        |(scheme, rest)| {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            format!("{scheme}://{}{path}", authority.rsplit('@').next().unwrap_or_default())
        },
    );
    format!("{place}{query}")
}

/// The path of what follows `file://`, or `None` unless it is absolute and well encoded.
pub(super) fn to_file(rest: &str) -> Option<PathBuf> {
    let rest = rest.strip_prefix("localhost").unwrap_or(rest);
    if !rest.starts_with('/') {
        return None;
    }
    let path = decode(rest)?;
    (!path.contains(&0)).then(|| PathBuf::from(OsString::from_vec(path)))
}

fn hexadecimal(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_survive_the_round_trip() {
        for path in ["/", "/a/b", "/with space/100%/é?#", "/a+b&c=d"] {
            let url = of_file(Path::new(path));
            assert_eq!(to_file(url.strip_prefix("file://").unwrap()).unwrap(), Path::new(path), "{url}");
        }
        let odd = PathBuf::from(OsString::from_vec(b"/\xff\xfe".to_vec()));
        assert_eq!(to_file(&of_file(&odd)[7..]).unwrap(), odd);
        assert_eq!(to_file("localhost/a").unwrap(), Path::new("/a"));
        for bad in ["", "relative", "host/a", "/a%2", "/a%zz", "/a%00"] {
            assert_eq!(to_file(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_could_be_a_secret_is_not_shown() {
        for (url, text) in [
            ("s3://key:secret@bucket/a?token=x", "s3://bucket/a?…"),
            ("s3://bucket/a@b", "s3://bucket/a@b"),
            ("/tmp/x", "/tmp/x"),
            ("", ""),
        ] {
            assert_eq!(shown(url), text);
        }
    }
}
