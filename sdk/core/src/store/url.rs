//! A folder as a `file://` URL and back (RFC 8089, RFC 3986 percent-encoding).

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// `file:///path`, with every byte outside RFC 3986's unreserved set and `/` as `%XX`.
pub(super) fn of_file(path: &Path) -> String {
    let mut url = "file://".to_owned();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            url.push(char::from(byte));
        } else {
            url.push_str(&format!("%{byte:02X}"));
        }
    }
    url
}

/// The path of what follows `file://`, or `None` unless it is absolute and well encoded.
pub(super) fn to_file(rest: &str) -> Option<PathBuf> {
    let rest = rest.strip_prefix("localhost").unwrap_or(rest);
    if !rest.starts_with('/') {
        return None;
    }
    let (mut bytes, mut path) = (rest.bytes(), Vec::with_capacity(rest.len()));
    while let Some(byte) = bytes.next() {
        path.push(if byte == b'%' { hexadecimal(bytes.next()?)? << 4 | hexadecimal(bytes.next()?)? } else { byte });
    }
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
}
