//! Names a cluster takes: RFC 1123 labels, short enough for every suffix that is put behind them.

use sha2::{Digest, Sha256};

/// Longest name of ours. A Job's pods add six characters, a Deployment's up to seventeen, our own
/// Secrets six; all must stay within 63, since names become values of labels.
const LONGEST: usize = 46;
/// Characters of the hash that tells two names apart which look alike once they are slugs.
const HASH: usize = 8;

/// The name for `text`: itself where that is a name already, else its nearest letters, digits and
/// `-`, and a hash of the whole. Different texts have different slugs.
pub(crate) fn slug(text: &str) -> String {
    let kept = |character: char| match character {
        'a'..='z' | '0'..='9' | '-' => character,
        'A'..='Z' => character.to_ascii_lowercase(),
        _ => '-',
    };
    let slug: String = text.chars().map(kept).collect();
    let begins = slug.starts_with(|first: char| first.is_ascii_lowercase());
    if slug == text && begins && !slug.ends_with('-') && slug.len() <= LONGEST {
        return slug;
    }
    let slug = slug.trim_matches('-');
    let slug: String = slug.chars().take(LONGEST - HASH - 1).collect();
    let slug = slug.trim_end_matches('-');
    // A Service's name may not begin with a digit.
    let slug = if slug.starts_with(|first: char| first.is_ascii_lowercase()) { slug } else { "x" };
    let hash = Sha256::digest(text.as_bytes());
    let hash: String = hash.iter().take(HASH / 2).map(|byte| format!("{byte:02x}")).collect();
    format!("{slug}-{hash}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_name_stays_and_anything_else_gets_a_hash() {
        assert_eq!(slug("train-run-20261130-abcdef01"), "train-run-20261130-abcdef01");
        assert_eq!(
            slug("serve-qwen3.5-9b-teacher"),
            format!("serve-qwen3-5-9b-teacher-{}", hash("serve-qwen3.5-9b-teacher"))
        );
        assert_ne!(slug("serve-a.b"), slug("serve-a-b"));
    }

    fn hash(text: &str) -> String {
        Sha256::digest(text.as_bytes()).iter().take(4).map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn every_text_becomes_a_name_of_its_own() {
        let long = "r".repeat(63);
        let texts = [
            "",
            "-",
            ".",
            "a",
            "A",
            "a.",
            "a-",
            "-a",
            "9",
            "9a",
            "ä",
            "日本",
            "a_b",
            "a b",
            "a.b",
            "a-b",
            "a..b",
            "x",
            &long,
            &format!("{long}a"),
            &format!("train-{long}"),
            &"-".repeat(80),
            "a\u{0}b",
            "a/b",
            "serve-x.",
            "serve-x",
        ];
        let slugs: BTreeSet<String> = texts.iter().map(|text| slug(text)).collect();
        assert_eq!(slugs.len(), texts.len());
        for slug in slugs {
            let bytes = slug.as_bytes();
            assert!((1..=LONGEST).contains(&bytes.len()), "{slug}");
            assert!(bytes[0].is_ascii_lowercase() && bytes[bytes.len() - 1] != b'-', "{slug}");
            assert!(
                bytes.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-'),
                "{slug}"
            );
        }
    }
}
