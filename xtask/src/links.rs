//! Links between the documents: each leads to a file, and to a heading where it names one.
//!
//! The book is made of `docs/` alone, so a page in it links to nothing outside, and every page is in
//! `SUMMARY.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell::root;

/// Documents beside the book.
const BESIDE: [&str; 3] = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// Fails with every broken link.
pub(crate) fn check() -> Result<()> {
    let (count, broken) = broken(root())?;
    if broken.is_empty() {
        println!("links: {count} links between documents, all lead somewhere");
        return Ok(());
    }
    bail!("{}", broken.join("\n"))
}

/// How many links there are, and what is wrong with some.
fn broken(root: &Path) -> Result<(usize, Vec<String>)> {
    let book = root.join("docs");
    let mut pages = markdown(&book)?;
    pages.sort();
    let listed: BTreeSet<PathBuf> =
        links(&read(&book.join("SUMMARY.md"))?).iter().map(|link| plain(&book.join(link))).collect();
    let mut broken = Vec::new();
    for page in pages.iter().filter(|page| !page.ends_with("SUMMARY.md") && !listed.contains(*page)) {
        broken.push(format!("{} is not in docs/SUMMARY.md", page.display()));
    }
    let mut count = 0;
    for page in pages.into_iter().chain(BESIDE.map(|name| root.join(name))) {
        for link in links(&read(&page)?) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            count += 1;
            if let Some(fault) = fault(&book, &page, &link)? {
                broken.push(format!("{}: `{link}` {fault}", page.display()));
            }
        }
    }
    Ok((count, broken))
}

fn fault(book: &Path, page: &Path, link: &str) -> Result<Option<String>> {
    let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
    let target = if file.is_empty() { page.to_owned() } else { plain(&page.with_file_name(file)) };
    if page.starts_with(book) && !target.starts_with(book) {
        return Ok(Some("leaves docs/, where the book ends".to_owned()));
    }
    if !target.exists() {
        return Ok(Some("leads nowhere".to_owned()));
    }
    match heading {
        Some(heading) if !headings(&read(&target)?).contains(heading) => {
            Ok(Some(format!("names no heading of {}", target.display())))
        }
        _ => Ok(None),
    }
}

/// The path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// Targets of `[text](target)` and `[text]: target`, outside of code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        // What stands between back-ticks is code.
        let line: String = line.split('`').step_by(2).collect();
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            found.extend(rest.split([')', ' ']).next().map(str::to_owned));
        }
        if let Some((label, target)) = line.split_once("]: ")
            && label.starts_with('[')
        {
            found.push(target.trim().to_owned());
        }
    }
    found.retain(|link| !link.is_empty());
    found
}

/// Headings as they are named in a link: lower case, words joined by `-`, nothing but letters and digits.
fn headings(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            words
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

/// The lines outside of fenced code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

fn markdown(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(markdown(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(found)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_documents_have_no_broken_link() {
        let (count, broken) = broken(root()).unwrap();
        assert!(count > 20, "only {count} links: is the scan broken?");
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    #[test]
    fn each_way_to_be_broken_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("README.md", "[a](docs/a.md#first-things) `[code](nowhere)`\n```\n[code](nowhere)\n```\n[x](nowhere.md)");
        write("CONTRIBUTING.md", "[b](docs/guides/b.md#none) <https://example.org>");
        write("CHANGELOG.md", "[c](https://example.org/x)");
        write("docs/SUMMARY.md", "- [A](a.md)\n- [B](guides/b.md)");
        write(
            "docs/a.md",
            "# First, things\n[b](guides/b.md) [r](../README.md) [self](#first-things)\n[ref]: guides/b.md",
        );
        write("docs/guides/b.md", "[a](../a.md)");
        write("docs/lost.md", "");
        let (_, broken) = broken(folder.path()).unwrap();
        let expected = [
            "lost.md is not in",
            "`../README.md` leaves docs/",
            "`nowhere.md` leads nowhere",
            "#none` names no heading",
        ];
        assert_eq!(broken.len(), expected.len(), "{broken:#?}");
        for (line, words) in broken.iter().zip(expected) {
            assert!(line.contains(words), "{line}: {words}");
        }
    }
}
