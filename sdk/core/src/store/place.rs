//! Keys of a store as URLs that say where they lie, and back.

use std::path::Path;

use super::{Store, check_key, url};

/// The URL of what lies under `key` in `store`; that of a folder is a store of its own for [`super::open`].
///
/// ```
/// # use training_gym_core::store::{MemoryStore, key_of, url_of};
/// let store = MemoryStore::new();
/// assert_eq!(url_of(&store, "runs/r 1/"), "memory://runs/r%201");
/// assert_eq!(key_of(&store, "memory://runs/r%201").as_deref(), Some("runs/r 1"));
/// ```
pub fn url_of(store: &dyn Store, key: &str) -> String {
    let whole = store.url();
    let ((place, settings), key) = (split(&whole), key.trim_end_matches('/'));
    let slash = if key.is_empty() || place.ends_with('/') { "" } else { "/" };
    format!("{place}{slash}{}{settings}", url::encode(key.as_bytes(), b"/"))
}

/// The `file://` URL of a folder.
pub fn url_of_folder(folder: &Path) -> String {
    url::of_file(folder)
}

/// The key that a URL names in `store`, without a `/` at its end and empty for the whole store; `None` where the
/// URL names another place, or the same with other settings.
pub fn key_of(store: &dyn Store, text: &str) -> Option<String> {
    let (ours, given) = (store.url(), canonical(text));
    let ((ours, settings), (given, asked)) = (split(&ours), split(&given));
    if settings != asked {
        return None;
    }
    let below = given.strip_prefix(ours)?;
    let below = if below.is_empty() || ours.ends_with('/') { below } else { below.strip_prefix('/')? };
    let key = String::from_utf8(url::decode(below.trim_end_matches('/'))?).ok()?;
    (key.is_empty() || check_key(&key).is_ok()).then_some(key)
}

/// What a folder's URL calls it: its last part.
pub fn last_part(text: &str) -> String {
    let (place, _) = split(text);
    let last = place.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let last = url::decode(last).map_or_else(|| last.to_owned(), |bytes| String::from_utf8_lossy(&bytes).into_owned());
    let last = last.replace(['/', '\0'], "_");
    if check_key(&last).is_ok() { last } else { "model".to_owned() }
}

/// A URL before its settings, and those with their `?`.
fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find('?').unwrap_or(text.len()))
}

/// The URL as its store would write it.
fn canonical(text: &str) -> String {
    #[cfg(feature = "s3")]
    if text.starts_with("s3://")
        && let Ok(store) = super::S3Store::open(text)
    {
        return store.url();
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::FileStore;

    #[test]
    fn a_folder_of_a_store_is_a_url_and_back() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::open(folder.path()).unwrap();
        for key in ["a", "runs/r/checkpoints/step-1", "é/a b?c#d%", ""] {
            assert_eq!(key_of(&store, &url_of(&store, key)).unwrap(), key);
        }
        assert_eq!(url_of(&store, "a/"), url_of_folder(&folder.path().join("a")));
        for other in ["file:///elsewhere/a", "memory://a", &format!("{}-b/a", store.url()), "gs://b/a"] {
            assert_eq!(key_of(&store, other), None, "{other}");
        }
        for outside in ["/../x", "/a//b", "/%00"] {
            assert_eq!(key_of(&store, &format!("{}{outside}", store.url())), None, "{outside}");
        }
    }

    #[cfg(feature = "s3")]
    #[test]
    fn the_settings_of_a_bucket_stay_at_the_end() {
        use crate::store::open;

        let store = open("s3://bucket/my%20gym?region=eu-west-1&endpoint=http://h:1").unwrap();
        let url = url_of(store.as_ref(), "runs/r/checkpoints/step-1/");
        assert_eq!(url, "s3://bucket/my%20gym/runs/r/checkpoints/step-1?endpoint=http://h:1&region=eu-west-1");
        assert_eq!(open(&url).unwrap().url(), url);
        assert_eq!(key_of(store.as_ref(), &url).unwrap(), "runs/r/checkpoints/step-1");
        let other_order = "s3://bucket/my%20gym/x/?region=eu-west-1&endpoint=http://h:1";
        assert_eq!(key_of(store.as_ref(), other_order).unwrap(), "x");
        assert_eq!(key_of(store.as_ref(), "s3://bucket/my%20gym/x"), None);
        assert_eq!(key_of(store.as_ref(), "s3://bucket/my%20gymnasium?endpoint=http://h:1&region=eu-west-1"), None);
    }

    #[test]
    fn a_folder_is_called_by_its_last_part() {
        for (url, name) in [
            ("s3://bucket/models/My%20Model/?endpoint=http://h:1/x", "My Model"),
            ("s3://bucket", "bucket"),
            ("memory://", "memory:"),
            ("s3://bucket/a%2Fb", "a_b"),
            ("s3://bucket/..", "model"),
        ] {
            assert_eq!(last_part(url), name, "{url}");
        }
    }
}
