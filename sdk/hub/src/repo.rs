//! Which repository.

use std::fmt;

use super::Error;

/// What a repository holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RepoKind {
    /// Weights.
    Model,
    /// Rows.
    Dataset,
}

impl RepoKind {
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Dataset => "dataset",
        }
    }

    /// `models` or `datasets`: the API's path and the cache's folder name.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }
}

/// A repository of a hub.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Repo {
    kind: RepoKind,
    id: String,
}

impl Repo {
    /// A model by its id.
    ///
    /// # Errors
    /// When `id` cannot be one.
    pub fn model(id: &str) -> Result<Self, Error> {
        Self::new(RepoKind::Model, id)
    }

    /// A dataset by its id.
    ///
    /// # Errors
    /// When `id` cannot be one.
    pub fn dataset(id: &str) -> Result<Self, Error> {
        Self::new(RepoKind::Dataset, id)
    }

    fn new(kind: RepoKind, id: &str) -> Result<Self, Error> {
        let part_fits = |part: &str| {
            (1..=96).contains(&part.len())
                && part.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
                && part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        };
        // `--` separates the parts in the cache's folder names, so the hub allows it nowhere.
        let fits = id.split('/').count() <= 2 && id.split('/').all(part_fits);
        if !fits || id.contains("--") || id.contains("..") {
            return Err(Error::RepoId { given: id.to_owned() });
        }
        Ok(Self { kind, id: id.to_owned() })
    }

    /// What it holds.
    pub fn kind(&self) -> RepoKind {
        self.kind
    }

    /// Its id, such as `Qwen/Qwen3-0.6B`.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its folder in the cache, such as `models--Qwen--Qwen3-0.6B`.
    pub(super) fn folder_name(&self) -> String {
        format!("{}--{}", self.kind.plural(), self.id.replace('/', "--"))
    }

    /// Its page and the root of its files, relative to the endpoint.
    pub(super) fn page(&self) -> String {
        match self.kind {
            RepoKind::Model => self.id.clone(),
            RepoKind::Dataset => format!("datasets/{}", self.id),
        }
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_checked() {
        for good in ["gpt2", "Qwen/Qwen3-0.6B", "zhuzilin/dapo-math-17k", "a_b/c.d"] {
            assert!(Repo::model(good).is_ok(), "{good}");
        }
        for bad in ["", "/", "a/", "/a", "a/b/c", "a b", "../a", "./a", "a--b", "a/..", "~/a", "a?b"] {
            assert!(Repo::dataset(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Repo::dataset("a/b").unwrap().folder_name(), "datasets--a--b");
    }
}
