//! Which file belongs to which split: the card's `configs`, then name patterns, else all is `train`.
//!
//! The patterns and their order are those of Hugging Face `datasets` (`data_files.py`): shards
//! `data/<split>-00000-of-00001.*`, then folders, then file names that hold a split's word between
//! separators. Words such as `dev` or `eval` count as their split.

use regex::Regex;

use super::card::{self, CardConfig};
use super::{Error, split};

/// Files that describe a dataset and hold no rows.
const IGNORED: [&str; 6] =
    ["README.md", "config.json", "dataset_info.json", "dataset_infos.json", "dummy_data.zip", "dataset_dict.json"];

/// The words of each split.
const WORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Extensions of other formats `datasets` reads: one of them in the majority is refused, not passed over.
const OTHER_FORMATS: [&str; 14] =
    ["csv", "tsv", "txt", "arrow", "gz", "zst", "bz2", "xz", "lz4", "zip", "tar", "xml", "h5", "hdf5"];

/// A format of data files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Format {
    Parquet,
    Json,
}

impl Format {
    pub(super) fn of(path: &str) -> Option<Self> {
        match extension(path)?.as_str() {
            "parquet" => Some(Self::Parquet),
            "jsonl" | "json" | "ndjson" => Some(Self::Json),
            _ => None,
        }
    }
}

/// The extension in lower case.
pub(super) fn extension(path: &str) -> Option<String> {
    let name = path.rsplit('/').next()?;
    name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase())
}

/// Files by split.
pub(super) type SplitFiles = Vec<(String, Vec<String>)>;

/// Sorts the files of a repository or folder into splits.
///
/// `files` are all paths in it, sorted; `card` is the text of its README.md; `config` the
/// configuration asked for.
pub(super) fn plan(
    dataset: &str,
    files: &[String],
    card: Option<&str>,
    config: Option<&str>,
) -> Result<SplitFiles, Error> {
    let problem = |(line, problem)| Error::Card { dataset: dataset.to_owned(), line, problem };
    let configs = card.map_or(Ok(Vec::new()), card::configs).map_err(problem)?;
    let splits = match choose(dataset, configs, config)? {
        Some(CardConfig { files: Some(patterns), folder, .. }) => {
            let mut splits = Vec::new();
            for (name, patterns) in patterns {
                let patterns: Vec<_> = patterns.iter().map(|pattern| under(&folder, pattern)).collect();
                let found = matching(files, &patterns);
                if found.is_empty() {
                    let wanted = format!("that matches {}", patterns.join(", "));
                    return Err(Error::NoFiles { dataset: dataset.to_owned(), wanted });
                }
                splits.push((name, found));
            }
            splits
        }
        Some(CardConfig { folder, .. }) => by_name(files, &folder),
        None => by_name(files, ""),
    };
    one_format(dataset, splits)
}

/// The configuration asked for, or the default one; `None` where the card lists none.
fn choose(dataset: &str, configs: Vec<CardConfig>, asked: Option<&str>) -> Result<Option<CardConfig>, Error> {
    let known: Vec<_> = configs.iter().map(|config| config.name.clone()).collect();
    let wanted = asked.unwrap_or("default").to_owned();
    if configs.is_empty() {
        return match asked {
            None | Some("default") => Ok(None),
            Some(_) => Err(Error::UnknownConfig {
                dataset: dataset.to_owned(),
                config: wanted,
                known: vec!["default".to_owned()],
            }),
        };
    }
    let place = match asked {
        Some(name) => configs.iter().position(|config| config.name == name),
        None if configs.len() == 1 => Some(0),
        None => configs
            .iter()
            .position(|config| config.is_default)
            .or_else(|| configs.iter().position(|config| config.name == "default")),
    };
    let place = place.ok_or_else(|| Error::UnknownConfig { dataset: dataset.to_owned(), config: wanted, known })?;
    Ok(configs.into_iter().nth(place))
}

fn under(folder: &str, pattern: &str) -> String {
    let pattern = pattern.trim_start_matches("./");
    if folder.is_empty() { pattern.to_owned() } else { format!("{folder}/{pattern}") }
}

/// By the patterns of names, in `folder`.
fn by_name(files: &[String], folder: &str) -> SplitFiles {
    if let Some(splits) = shards(files, folder) {
        return splits;
    }
    const SEPARATORS: &str = "[-._ 0-9]";
    let in_folder = |word: &str| {
        let s = SEPARATORS;
        ["{w}/**", "{w}{s}*/**", "*{s}{w}/**", "*{s}{w}{s}*/**"]
            .map(|form| format!("**/{}", form.replace("{w}", word).replace("{s}", s)))
    };
    let in_file = |word: &str| [format!("**/{word}{SEPARATORS}*"), format!("**/*{SEPARATORS}{word}{SEPARATORS}*")];
    let by_words = |patterns: &dyn Fn(&str) -> Vec<String>| -> SplitFiles {
        let found = WORDS.iter().map(|(split, words)| {
            let patterns: Vec<_> = words.iter().flat_map(|word| patterns(word)).collect();
            let patterns: Vec<_> = patterns.iter().map(|pattern| under(folder, pattern)).collect();
            ((*split).to_owned(), matching(files, &patterns))
        });
        found.filter(|(_, files)| !files.is_empty()).collect()
    };
    let folders = by_words(&|word| in_folder(word).to_vec());
    if !folders.is_empty() {
        return folders;
    }
    let names = by_words(&|word| in_file(word).to_vec());
    if !names.is_empty() {
        return names;
    }
    vec![("train".to_owned(), matching(files, &[under(folder, "**")]))]
}

/// `data/<split>-00000-of-00001*.*`, where there are such files.
fn shards(files: &[String], folder: &str) -> Option<SplitFiles> {
    let shard = Regex::new(r"^data/([^/]*)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*$").ok()?;
    let mut splits: SplitFiles = Vec::new();
    for path in files.iter().filter(|path| is_wanted(path, "data/*")) {
        let inside = if folder.is_empty() { path } else { path.strip_prefix(folder)?.strip_prefix('/')? };
        let Some(name) = shard.captures(inside).map(|found| found[1].to_owned()) else { continue };
        if !split::is_name(&name) {
            continue;
        }
        match splits.iter_mut().find(|split| split.0 == name) {
            Some(split) => split.1.push(path.clone()),
            None => splits.push((name, vec![path.clone()])),
        }
    }
    let rank = |name: &str| WORDS.iter().position(|word| word.0 == name).unwrap_or(WORDS.len());
    splits.sort_by(|a, b| rank(&a.0).cmp(&rank(&b.0)).then_with(|| a.0.cmp(&b.0)));
    (!splits.is_empty()).then_some(splits)
}

/// The files that match any of the patterns, in the patterns' order, each once.
fn matching(files: &[String], patterns: &[String]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for pattern in patterns {
        let Some(regex) = glob(pattern) else { continue };
        for path in files.iter().filter(|path| regex.is_match(path) && is_wanted(path, pattern)) {
            if !found.contains(path) {
                found.push(path.clone());
            }
        }
    }
    found
}

/// Whether a matching path is meant: descriptions, hidden files and `__special__` folders must be
/// named by the pattern itself.
fn is_wanted(path: &str, pattern: &str) -> bool {
    let name = |text: &str| text.rsplit('/').next().unwrap_or_default().to_owned();
    if IGNORED.contains(&name(path).as_str()) && name(path) != name(pattern) {
        return false;
    }
    let hidden = |text: &str| text.split('/').filter(|part| part.starts_with('.')).count();
    let special = |text: &str| {
        let parents = text.rsplit_once('/').map_or("", |parts| parts.0);
        parents.split('/').filter(|part| part.starts_with("__")).count()
    };
    hidden(path) == hidden(pattern) && special(path) == special(pattern)
}

/// A glob as a regular expression: `**` is any folders, `*` and `?` stop at `/`.
fn glob(pattern: &str) -> Option<Regex> {
    let mut regex = String::from("^");
    let parts: Vec<_> = pattern.split('/').collect();
    for (index, part) in parts.iter().enumerate() {
        let last = index + 1 == parts.len();
        if *part == "**" {
            regex.push_str(if last { ".+" } else { "(?:.+/)?" });
            continue;
        }
        segment(part, &mut regex);
        if !last {
            regex.push('/');
        }
    }
    regex.push('$');
    Regex::new(&regex).ok()
}

fn segment(part: &str, regex: &mut String) {
    let mut rest = part;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        match c {
            '*' => regex.push_str("[^/]*"),
            '?' => regex.push_str("[^/]"),
            '[' => {
                // A `]` right behind the opening is a member, as in `fnmatch`.
                let skip = after.len() - after.trim_start_matches(['!', '^']).len();
                let end = after.char_indices().skip(skip + 1).find(|(_, c)| *c == ']').map(|(at, _)| at);
                let Some(end) = end else {
                    regex.push_str("\\[");
                    rest = after;
                    continue;
                };
                let (inner, negated) = (&after[skip..end], skip > 0);
                regex.push_str(if negated { "[^/" } else { "[" });
                for c in inner.chars() {
                    if matches!(c, '[' | ']' | '\\' | '^' | '&' | '~') {
                        regex.push('\\');
                    }
                    regex.push(c);
                }
                regex.push(']');
                rest = &after[end + 1..];
                continue;
            }
            _ => regex.push_str(&regex::escape(&c.to_string())),
        }
        rest = after;
    }
}

/// Keeps the files of the format most of them have.
fn one_format(dataset: &str, splits: SplitFiles) -> Result<SplitFiles, Error> {
    let all: Vec<_> = splits.iter().flat_map(|(_, files)| files).collect();
    let count = |format| all.iter().filter(|path| Format::of(path) == Some(format)).count();
    let other = |path: &str| extension(path).filter(|extension| OTHER_FORMATS.contains(&extension.as_str()));
    let others: Vec<_> = all.iter().filter_map(|path| Some(((*path).clone(), other(path)?))).collect();
    let (parquet, json) = (count(Format::Parquet), count(Format::Json));
    if let Some((file, format)) = others.first().filter(|_| others.len() > parquet.max(json)) {
        return Err(Error::Format { file: file.clone(), format: format.clone() });
    }
    if parquet.max(json) == 0 {
        return Err(Error::NoFiles { dataset: dataset.to_owned(), wanted: "with rows".to_owned() });
    }
    let format = if parquet >= json { Format::Parquet } else { Format::Json };
    let keep = |files: Vec<String>| files.into_iter().filter(|path| Format::of(path) == Some(format)).collect();
    let kept = splits.into_iter().map(|(split, files)| (split, keep(files)));
    Ok(kept.filter(|(_, files): &(String, Vec<String>)| !files.is_empty()).collect())
}
