//! Where a dataset's files are, and how its rows get from there to here.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use training_gym_core::ids::ContentHash;
use training_gym_core::sample::Row;
use training_gym_core::spec::HubRef;

use super::files::{self, SplitFiles};
use super::shape::Shape;
use super::table::Table;
use super::{Error, HuggingFaceDataset, Split};
use crate::hub::{Hub, Listing, Repo, walk};

/// What a person named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A hub id or a folder.
    Named(String),
    File(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => out.write_str(name),
            Self::File(path) => write!(out, "{}", path.display()),
        }
    }
}

/// A dataset found, nothing of it read yet.
pub(super) enum Source {
    File(PathBuf),
    Folder(PathBuf),
    Hub(Hub, Box<Listing>),
}

/// Rows, and what a person should know about them.
pub(super) struct Loaded {
    pub(super) rows: Vec<Row>,
    pub(super) notes: Vec<String>,
}

/// Files of the wanted splits, on this machine: (split, [(path, name)]).
type LocalFiles = Vec<(String, Vec<(PathBuf, String)>)>;

impl Source {
    /// What it is, for messages and notes.
    fn describe(&self, dataset: &HuggingFaceDataset) -> String {
        match self {
            Self::Hub(_, listing) => format!("`{}` at commit {}", listing.repo, listing.commit),
            Self::File(_) | Self::Folder(_) => format!("`{}`", dataset.name()),
        }
    }
}

impl HuggingFaceDataset {
    /// Finds the file, the folder, or the commit on the hub.
    pub(super) async fn locate(&self) -> Result<Source, Error> {
        let (name, path) = match &self.place {
            Place::File(path) => (path.display().to_string(), path.as_path()),
            Place::Named(name) => (name.clone(), Path::new(name)),
        };
        let (file, folder) = (path.is_file(), path.is_dir() && matches!(self.place, Place::Named(_)));
        if let Some(given) = self.revision.clone().filter(|_| file || folder) {
            let rule = "what lies on disk has no revisions; leave it out";
            return Err(Error::Setting { setting: "revision", given, rule });
        }
        if let Some(given) = self.config.clone().filter(|_| file) {
            return Err(Error::Setting { setting: "config", given, rule: "a single file has none; leave it out" });
        }
        if file || folder {
            let path = path.to_path_buf();
            return Ok(if file { Source::File(path) } else { Source::Folder(path) });
        }
        if matches!(self.place, Place::File(_)) {
            return Err(Error::NoPlace { place: name });
        }
        let repo = Repo::dataset(&name);
        let path_like = name.starts_with(['.', '/', '~']) || (repo.is_err() && name.contains('/'));
        if path_like || files::Format::of(&name).is_some() {
            return Err(Error::NoPlace { place: name });
        }
        let hub = self.hub.clone().map_or_else(Hub::from_env, Ok)?;
        let pin = self.pin.as_ref().filter(|pin| pin.repo == name && pin.revision == self.asked_revision());
        let revision = pin.map_or(self.asked_revision(), |pin| &pin.commit);
        let listing = hub.files(&repo?, revision).await?;
        Ok(Source::Hub(hub, Box::new(listing)))
    }

    fn asked_revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// The repository and its commit, where the rows come from a hub.
    pub(super) fn hub_ref(&self, source: &Source) -> Option<HubRef> {
        let Source::Hub(_, listing) = source else { return None };
        Some(HubRef {
            repo: listing.repo.to_string(),
            revision: self.asked_revision().to_owned(),
            commit: listing.commit.clone(),
        })
    }

    /// The files of the splits that are wanted, fetched where they are remote.
    pub(super) async fn fetch(&self, source: &Source) -> Result<LocalFiles, Error> {
        match source {
            Source::File(path) => {
                self.wanted(&[("train".to_owned(), Vec::new())])?;
                Ok(vec![("train".to_owned(), vec![(path.clone(), self.name())])])
            }
            Source::Folder(folder) => {
                let card = read_card(&folder.join("README.md"))?;
                let plan = files::plan(&self.name(), &walk(folder), card.as_deref(), self.config.as_deref())?;
                self.local(plan, folder)
            }
            Source::Hub(hub, listing) => {
                let paths: Vec<_> = listing.files.iter().map(|file| file.path.clone()).collect();
                let readme = "README.md".to_owned();
                let card = if paths.contains(&readme) {
                    read_card(&hub.download(listing, std::slice::from_ref(&readme)).await?.join(readme))?
                } else {
                    None
                };
                let plan = files::plan(&self.name(), &paths, card.as_deref(), self.config.as_deref())?;
                let names = self.wanted(&plan)?;
                let needed: Vec<_> =
                    plan.iter().filter(|split| names.contains(&split.0)).flat_map(|split| split.1.clone()).collect();
                let folder = hub.download(listing, &needed).await?;
                self.local(plan, &folder)
            }
        }
    }

    /// The wanted splits of a plan, with their paths under `folder`.
    fn local(&self, plan: SplitFiles, folder: &Path) -> Result<LocalFiles, Error> {
        let names = self.wanted(&plan)?;
        let place = self.name();
        let locate = |file: String| (folder.join(&file), format!("{}/{file}", place.trim_end_matches('/')));
        let wanted = plan.into_iter().filter(|split| names.contains(&split.0));
        Ok(wanted.map(|(split, files)| (split, files.into_iter().map(locate).collect())).collect())
    }

    /// The names of the splits the expression needs, all of which the plan has.
    fn wanted(&self, plan: &[(String, Vec<String>)]) -> Result<Vec<String>, Error> {
        let known: Vec<_> = plan.iter().map(|split| split.0.clone()).collect();
        if self.split.is_all() {
            return Ok(known);
        }
        let names = self.split.names();
        if let Some(missing) = names.iter().find(|name| !known.iter().any(|known| known == *name)) {
            return Err(Error::UnknownSplit { dataset: self.name(), split: (*missing).to_owned(), known });
        }
        Ok(names.into_iter().map(str::to_owned).collect())
    }

    /// Reads the rows.
    pub(super) async fn read(&self, source: &Source) -> Result<Loaded, Error> {
        let shape = self.shape()?;
        let files = self.fetch(source).await?;
        let from = source.describe(self);
        let (split, limit) = (self.split.clone(), self.limit);
        blocking(move || read_files(&files, &split, limit, &shape, &from)).await
    }

    /// A name for exactly these rows: the source's content and every setting that shapes a row.
    pub(super) async fn fingerprint(&self, source: &Source) -> Result<ContentHash, Error> {
        let content = match source {
            Source::Hub(_, listing) => vec![(listing.repo.to_string(), listing.commit.clone())],
            Source::File(_) | Source::Folder(_) => {
                let files = self.fetch(source).await?;
                blocking(move || {
                    let all = files
                        .into_iter()
                        .flat_map(|(split, files)| files.into_iter().map(move |file| (split.clone(), file)));
                    all.map(|(split, (path, _))| {
                        let hash = ContentHash::of_file(&path).map_err(Error::io("read", &path))?;
                        Ok((split, hash.to_string()))
                    })
                    .collect()
                })
                .await?
            }
        };
        let settings = serde_json::json!({
            "layout": 1, "content": content, "config": self.config, "split": self.split.to_string(),
            "input_key": self.input_key, "label_key": self.label_key, "limit": self.limit,
            "apply_chat_template": self.apply_chat_template, "system_prompt": self.system_prompt,
            "prompt_template": self.prompt_template, "name": self.name(),
            "parquet": self.output_format == super::OutputFormat::Parquet,
        });
        Ok(ContentHash::of(settings.to_string().as_bytes()))
    }
}

/// Runs file work where it may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    // The parquet library panics on some broken files; that is an error of the file, not of ours.
    done.unwrap_or_else(|panic| Err(Error::Io { action: "read", path: "a data file".into(), source: panic.into() }))
}

fn read_card(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

fn read_files(
    files: &LocalFiles,
    split: &Split,
    limit: Option<u64>,
    shape: &Shape,
    from: &str,
) -> Result<Loaded, Error> {
    let mut tables: Vec<(&str, Vec<Table>)> = Vec::new();
    for (name, paths) in files {
        let opened: Result<Vec<_>, _> = paths.iter().map(|(path, file)| Table::open(path.clone(), file)).collect();
        tables.push((name, opened?));
    }
    let count = |name: &str| {
        let found = tables.iter().find(|table| table.0 == name);
        found.map_or(0, |(_, tables)| tables.iter().map(Table::len).sum())
    };
    let ranges: Vec<(&str, Range<u64>)> = match split.is_all() {
        true => tables.iter().map(|(name, _)| (*name, 0..count(name))).collect(),
        false => split.ranges(count)?,
    };
    let total: u64 = tables.iter().map(|(name, _)| count(name)).sum();
    let mut rows = Vec::new();
    let mut replaced = 0;
    for (name, range) in ranges {
        let left = limit.map_or(u64::MAX, |limit| limit - rows.len() as u64);
        let mut range = range.start..range.end.min(range.start.saturating_add(left));
        for table in tables.iter().filter(|table| table.0 == name).flat_map(|table| &table.1) {
            let length = table.len();
            let here = range.start.min(length)..range.end.min(length);
            let first = here.start;
            for (offset, columns) in table.read(here)?.into_iter().enumerate() {
                let shaped = shape.row(first + offset as u64, columns)?;
                replaced += u64::from(shaped.system_replaced);
                rows.push(shaped.row);
            }
            range = range.start.saturating_sub(length)..range.end.saturating_sub(length);
        }
    }
    let mut notes = vec![format!("{} rows: `{split}` of the {total} rows of {from}", rows.len())];
    if replaced > 0 {
        notes.push(format!("`system_prompt` took the place of the system message that {replaced} rows had"));
    }
    Ok(Loaded { rows, notes })
}
