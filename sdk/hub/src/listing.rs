//! What a repository holds at a revision.

use std::fmt::Write as _;

use serde::Deserialize;

use super::cache::{RepoCache, is_inside, is_plain_name};
use super::http::{Refusal, Trouble};
use super::{Error, Hub, Repo};

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its path in the repository.
    pub path: String,
    /// Its size in bytes, where the hub says so.
    pub size: Option<u64>,
    /// Its blob's name in the cache, where the hub says so: sha256 of a large file, git's id of another.
    pub etag: Option<String>,
    /// sha256 of a large file.
    pub sha256: Option<String>,
}

/// A repository at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The repository.
    pub repo: Repo,
    /// The revision asked for.
    pub revision: String,
    /// The commit it is.
    pub commit: String,
    /// Its files, sorted by path.
    pub files: Vec<RemoteFile>,
}

impl Listing {
    /// The file at `path`.
    pub fn file(&self, path: &str) -> Option<&RemoteFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

#[derive(Deserialize)]
struct Info {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Sibling {
    fn into_file(self) -> RemoteFile {
        let size = self.lfs.as_ref().and_then(|lfs| lfs.size).or(self.size);
        let sha256 = self.lfs.and_then(|lfs| lfs.sha256);
        let etag = sha256.clone().or(self.blob_id).filter(|etag| is_plain_name(etag));
        RemoteFile { path: self.rfilename, size, etag, sha256 }
    }
}

impl Hub {
    /// The commit `revision` (a branch, tag or commit; usually `main`) is, and its files.
    ///
    /// Offline, it is the commit last seen and the files that the cache holds of it.
    ///
    /// # Errors
    /// [`Error::NoRepo`], [`Error::NoRevision`], [`Error::Access`], [`Error::Offline`] and those of
    /// the network.
    pub async fn files(&self, repo: &Repo, revision: &str) -> Result<Listing, Error> {
        if !is_inside(revision) {
            return Err(Error::NoRevision { repo: repo.to_string(), revision: revision.to_owned() });
        }
        let cache = RepoCache::new(&self.options.cache, repo);
        if self.options.offline {
            return self.cached_files(repo, revision, &cache);
        }
        let mut parts = vec!["api", repo.kind().plural()];
        parts.extend(repo.id().split('/'));
        parts.extend(["revision", revision]);
        let mut url = self.client.url(&parts);
        url.set_query(Some("blobs=true"));
        let info: Info = match self.client.json(&url).await {
            Ok(info) => info,
            Err(trouble) => return Err(self.explain(trouble, repo, revision).await),
        };
        let answer = |what: String| Error::Answer { url: super::http::shown(&url), what };
        let commit = info.sha.filter(|sha| is_plain_name(sha)).ok_or_else(|| answer("no commit `sha`".to_owned()))?;
        let mut files: Vec<_> = info.siblings.into_iter().map(Sibling::into_file).collect();
        if let Some(file) = files.iter().find(|file| !is_inside(&file.path)) {
            return Err(answer(format!("a file called `{}`", file.path)));
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        cache.set_commit(revision, &commit)?;
        Ok(Listing { repo: repo.clone(), revision: revision.to_owned(), commit, files })
    }

    fn cached_files(&self, repo: &Repo, revision: &str, cache: &RepoCache) -> Result<Listing, Error> {
        let commit = cache.commit(revision).ok_or_else(|| self.not_cached(repo, &format!("revision `{revision}`")))?;
        let file = |path| RemoteFile { path, size: None, etag: None, sha256: None };
        let files = cache.files(&commit).into_iter().map(file).collect();
        Ok(Listing { repo: repo.clone(), revision: revision.to_owned(), commit, files })
    }

    pub(super) fn not_cached(&self, repo: &Repo, what: &str) -> Error {
        Error::Offline { repo: repo.to_string(), what: what.to_owned(), cache: self.options.cache.clone() }
    }

    /// What a refusal to list a repository means.
    async fn explain(&self, trouble: Trouble, repo: &Repo, revision: &str) -> Error {
        let refusal = match trouble {
            Trouble::Refused(refusal) => refusal,
            Trouble::Passing { error, .. } | Trouble::Fatal(error) => return error,
        };
        if refusal.status.as_u16() == 404 {
            let no_revision = match refusal.code.as_str() {
                "RevisionNotFound" => true,
                "RepoNotFound" => false,
                _ => self.exists(repo).await,
            };
            if no_revision {
                return Error::NoRevision { repo: repo.to_string(), revision: revision.to_owned() };
            }
        }
        self.refused(refusal, repo)
    }

    /// Whether the repository is there at all, for hubs that do not say what they did not find.
    async fn exists(&self, repo: &Repo) -> bool {
        let mut parts = vec!["api", repo.kind().plural()];
        parts.extend(repo.id().split('/'));
        self.client.json::<serde_json::Value>(&self.client.url(&parts)).await.is_ok()
    }

    /// What a refusal means that concerns the whole repository.
    pub(super) fn refused(&self, refusal: Refusal, repo: &Repo) -> Error {
        let status = refusal.status.as_u16();
        match status {
            401 | 403 => Error::Access { repo: repo.to_string(), status, remedy: self.remedy(&refusal, repo) },
            404 => Error::NoRepo {
                kind: repo.kind().noun(),
                repo: repo.to_string(),
                endpoint: self.client.endpoint().to_owned(),
            },
            _ => Error::Status { url: refusal.url, status, advice: "the hub refused the request; check HF_ENDPOINT" },
        }
    }

    fn remedy(&self, refusal: &Refusal, repo: &Repo) -> String {
        let page = format!("{}/{}", self.client.endpoint(), repo.page());
        let mut text = match (refusal.code.as_str(), refusal.status.as_u16()) {
            // The hub does not tell a stranger whether a private repository exists.
            ("RepoNotFound", _) => "it does not exist, or is private: check the name".to_owned(),
            _ => format!("accept its licence at {page}"),
        };
        let account = match (self.client.has_token(), refusal.status.as_u16()) {
            (false, _) => ", and set HF_TOKEN to a token of an account with access",
            (true, 401) => ", and check that HF_TOKEN is valid: the hub does not know this token",
            (true, _) => {
                ", with the account that HF_TOKEN belongs to; a fine-grained token must allow gated repositories"
            }
        };
        // Writing to a String cannot fail.
        let _ = write!(text, "{account}");
        text
    }
}
