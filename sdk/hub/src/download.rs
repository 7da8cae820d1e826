//! Files into the cache: resumed, checked, and there whole or not at all.

use std::path::{Path, PathBuf};

use futures::{StreamExt, TryStreamExt};
use reqwest::{Method, StatusCode, Url};
use tokio::io::AsyncWriteExt;
use training_gym_core::ids::ContentHash;

use super::cache::{RepoCache, is_plain_name};
use super::http::{Answer, Refusal, Trouble, network};
use super::{Error, Hub, Listing, Progress, RemoteFile};

/// Bytes between two calls of the progress watcher, and what counts as progress worth new patience.
const STRIDE: u64 = 1 << 20;

/// One file on its way.
struct Download<'a> {
    hub: &'a Hub,
    listing: &'a Listing,
    cache: RepoCache,
    path: &'a str,
    url: Url,
    size: Option<u64>,
    etag: String,
    sha256: Option<String>,
}

impl Hub {
    /// Brings the files `paths` of a listing into the cache, several at once; returns the
    /// snapshot's folder. What is there already is not asked for again.
    ///
    /// # Errors
    /// [`Error::NoFile`], [`Error::Access`], [`Error::Integrity`], [`Error::Offline`], and those of
    /// the network and the disk. Files that came in before stay; a cut one is resumed next time.
    pub async fn download(&self, listing: &Listing, paths: &[String]) -> Result<PathBuf, Error> {
        let cache = RepoCache::new(&self.options.cache, &listing.repo);
        let mut wanted = Vec::new();
        for path in paths {
            let file = listing.file(path).ok_or_else(|| self.lacks(listing, path))?;
            if cache.holds(&listing.commit, path, file.size) {
                continue;
            }
            if self.options.offline {
                return Err(self.not_cached(&listing.repo, &format!("`{path}`")));
            }
            wanted.push(file);
        }
        // Made before they are streamed: a closure in the stream would keep the future from being `Send`.
        let fetches: Vec<_> = wanted.into_iter().map(|file| self.fetch(listing, file, &cache)).collect();
        futures::stream::iter(fetches).buffer_unordered(self.options.parallel.max(1)).try_collect::<()>().await?;
        Ok(cache.snapshot(&listing.commit))
    }

    fn lacks(&self, listing: &Listing, path: &str) -> Error {
        if self.options.offline {
            return self.not_cached(&listing.repo, &format!("`{path}`"));
        }
        let (repo, revision) = (listing.repo.to_string(), listing.revision.clone());
        Error::NoFile { repo, revision, file: path.to_owned() }
    }

    async fn fetch(&self, listing: &Listing, file: &RemoteFile, cache: &RepoCache) -> Result<(), Error> {
        let page = listing.repo.page();
        let mut parts: Vec<_> = page.split('/').collect();
        parts.extend(["resolve", listing.commit.as_str()]);
        parts.extend(file.path.split('/'));
        let mut download = Download {
            hub: self,
            listing,
            cache: cache.clone(),
            path: &file.path,
            url: self.client.url(&parts),
            size: file.size,
            etag: file.etag.clone().unwrap_or_default(),
            sha256: file.sha256.clone(),
        };
        if download.etag.is_empty() {
            download.ask_etag().await?;
        }
        download.run().await
    }
}

impl Download<'_> {
    /// Asks the hub for what its listing left out.
    async fn ask_etag(&mut self) -> Result<(), Error> {
        let mut failures = 0;
        let answer = loop {
            match self.hub.client.send(Method::HEAD, &self.url, 0).await {
                Ok(answer) => break answer,
                Err(trouble) => {
                    failures += 1;
                    let paused = self.hub.client.pause(trouble, failures, &self.url).await;
                    paused.map_err(|trouble| self.explain(trouble))?;
                }
            }
        };
        self.size = self.size.or(answer.size);
        let etag = answer.etag.filter(|etag| is_plain_name(etag));
        if let Some(sha256) =
            etag.as_ref().filter(|etag| etag.len() == 64 && etag.bytes().all(|c| c.is_ascii_hexdigit()))
        {
            // The etag of a large file is its sha256.
            self.sha256 = Some(sha256.clone());
        }
        self.etag = etag.unwrap_or_else(|| {
            // A hub without etags: the commit and the path name the content as well.
            ContentHash::of(format!("{}/{}", self.listing.commit, self.path).as_bytes()).to_string()
        });
        Ok(())
    }

    async fn run(&self) -> Result<(), Error> {
        // Held to the end; a process that dies gives it back.
        let _lock = self.cache.lock(&self.etag).await?;
        let (blob, part) = (self.cache.blob(&self.etag), self.cache.incomplete(&self.etag));
        let there = std::fs::metadata(&blob).is_ok_and(|meta| self.size.is_none_or(|size| size == meta.len()));
        if !there {
            tracing::info!(repo = %self.listing.repo, file = self.path, bytes = self.size, "downloading");
            self.receive(&part).await?;
            std::fs::rename(&part, &blob).map_err(Error::cache("write", &blob))?;
        }
        self.cache.link(&self.listing.commit, self.path, &self.etag)
    }

    /// Tries until the incomplete file is complete and right.
    async fn receive(&self, part: &Path) -> Result<(), Error> {
        if let Some(folder) = part.parent() {
            std::fs::create_dir_all(folder).map_err(Error::cache("create", folder))?;
        }
        let mut failures = 0;
        let mut best = 0;
        loop {
            let trouble = match self.receive_once(part).await {
                Ok(()) => return Ok(()),
                Err(trouble) => trouble,
            };
            let have = length(part);
            // Enough new bytes buy new patience: a long file over a bad line still arrives.
            failures = if have >= best + STRIDE { 1 } else { failures + 1 };
            best = best.max(have);
            let paused = self.hub.client.pause(trouble, failures, &self.url).await;
            paused.map_err(|trouble| self.explain(trouble))?;
        }
    }

    async fn receive_once(&self, part: &Path) -> Result<(), Trouble> {
        let disk = |action| move |source| Trouble::Fatal(Error::cache(action, part)(source));
        let mut have = length(part);
        if self.size.is_some_and(|size| have > size) {
            have = 0;
        }
        if self.size != Some(have) || have == 0 {
            let answer = self.hub.client.send(Method::GET, &self.url, have).await?;
            have = self.starting_point(&answer, have)?;
            let options = tokio::fs::File::options().create(true).write(true).truncate(false).open(part).await;
            let mut file = options.map_err(disk("open"))?;
            file.set_len(have).await.map_err(disk("write"))?;
            tokio::io::AsyncSeekExt::seek(&mut file, std::io::SeekFrom::Start(have)).await.map_err(disk("write"))?;
            let received = self.stream(answer, &mut file, &mut have).await;
            // What came is kept also when the rest did not.
            file.flush().await.map_err(disk("write"))?;
            file.sync_all().await.map_err(disk("write"))?;
            received.map_err(|trouble| trouble.unwrap_or_else(|source| disk("write")(source)))?;
        }
        self.verify(part, have).await
    }

    /// From which byte on the answer is, given that we asked for `have` on.
    fn starting_point(&self, answer: &Answer, have: u64) -> Result<u64, Trouble> {
        // Ids of the same kind (git's, or a sha256) must be the same id; a mirror's own kind says nothing.
        let is_id = |text: &str| text.bytes().all(|c| c.is_ascii_hexdigit());
        let comparable = |etag: &&String| is_id(etag) && is_id(&self.etag) && etag.len() == self.etag.len();
        if let Some(etag) = answer.etag.as_ref().filter(comparable).filter(|etag| **etag != self.etag) {
            return Err(Trouble::Fatal(self.wrong("etag", etag.clone(), self.etag.clone())));
        }
        let headers = answer.response.headers();
        let range = headers.get("content-range").and_then(|value| value.to_str().ok());
        match answer.response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let start = range.and_then(|text| text.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
                if start == Some(have) {
                    return Ok(have);
                }
                let got = range.unwrap_or("no range").to_owned();
                Err(Trouble::Fatal(self.wrong("range", got, format!("bytes {have}-"))))
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                // The incomplete file is no beginning of this one: from the start, next try.
                let cut = std::fs::File::create(self.cache.incomplete(&self.etag));
                cut.map_err(|source| Trouble::Fatal(Error::cache("write", self.cache.incomplete(&self.etag))(source)))?;
                let error = self.wrong("size", have.to_string(), "more".to_owned());
                Err(Trouble::Passing { error, wait: Some(std::time::Duration::ZERO) })
            }
            _ => Ok(0),
        }
    }

    /// Copies the body to the file. The inner error is the disk's.
    async fn stream(
        &self,
        answer: Answer,
        file: &mut tokio::fs::File,
        have: &mut u64,
    ) -> Result<(), Result<Trouble, std::io::Error>> {
        let mut body = answer.response.bytes_stream();
        let mut told = *have;
        self.tell(told);
        while let Some(chunk) = body.next().await {
            let chunk =
                chunk.map_err(|source| Ok(Trouble::Passing { error: network(&self.url, source), wait: None }))?;
            file.write_all(&chunk).await.map_err(Err)?;
            *have += chunk.len() as u64;
            if *have >= told + STRIDE {
                told = *have;
                self.tell(*have);
            }
        }
        self.tell(*have);
        Ok(())
    }

    async fn verify(&self, part: &Path, have: u64) -> Result<(), Trouble> {
        if let Some(size) = self.size.filter(|size| *size != have) {
            let error = self.wrong("size", have.to_string(), size.to_string());
            if have > size {
                self.discard(part)?;
            }
            return Err(Trouble::Passing { error, wait: None });
        }
        let Some(promised) = self.sha256.clone() else { return Ok(()) };
        let path = part.to_path_buf();
        let hashed = tokio::task::spawn_blocking(move || ContentHash::of_file(&path)).await;
        let hashed = hashed.map_err(std::io::Error::other).and_then(|hash| hash);
        let got = hashed.map_err(|source| Trouble::Fatal(Error::cache("read", part)(source)))?;
        if got.as_str() != promised {
            self.discard(part)?;
            return Err(Trouble::Passing { error: self.wrong("sha256", got.to_string(), promised), wait: None });
        }
        Ok(())
    }

    fn discard(&self, part: &Path) -> Result<(), Trouble> {
        std::fs::remove_file(part).map_err(|source| Trouble::Fatal(Error::cache("remove", part)(source)))
    }

    fn tell(&self, received: u64) {
        if let Some(watcher) = &self.hub.watcher {
            watcher(&Progress {
                repo: self.listing.repo.to_string(),
                file: self.path.to_owned(),
                received,
                total: self.size,
            });
        }
    }

    fn wrong(&self, what: &'static str, got: String, promised: String) -> Error {
        Error::Integrity { file: format!("{}/{}", self.listing.repo, self.path), what, got, promised }
    }

    fn explain(&self, trouble: Trouble) -> Error {
        match trouble {
            Trouble::Refused(Refusal { status: StatusCode::NOT_FOUND, .. }) => self.hub.lacks(self.listing, self.path),
            Trouble::Refused(refusal) => self.hub.refused(refusal, &self.listing.repo),
            Trouble::Passing { error, .. } | Trouble::Fatal(error) => error,
        }
    }
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |meta| meta.len())
}
