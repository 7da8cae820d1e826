//! Entries of a zip file by offset, as PyTorch writes them: stored, not compressed.
//!
//! The format: PKWARE's APPNOTE, sections 4.3.7 (local header), 4.3.12 (central directory), 4.3.14
//! and 4.3.15 (zip64), 4.3.16 (its end).

use std::collections::HashMap;

use crate::convert::bytes::Cursor;
use crate::convert::error::{Problem, damaged, unsupported};

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: &[u8] = b"PK\x05\x06";
const END_LENGTH: usize = 22;
const LONGEST_COMMENT: usize = 0xffff;
const END64: u32 = 0x0606_4b50;
const LOCATOR64: u32 = 0x0706_4b50;
const LOCATOR64_LENGTH: usize = 20;
const ZIP64_FIELD: u16 = 1;
/// Bytes of a central entry, at least.
const SHORTEST_ENTRY: u64 = 46;

/// The entries of a file, by name.
#[derive(Debug)]
pub(crate) struct Archive<'a> {
    entries: HashMap<&'a str, &'a [u8]>,
}

/// The pickle of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pickle<'a> {
    /// What the names of all its entries begin with.
    pub(crate) root: &'a str,
    /// Its opcodes.
    pub(crate) bytes: &'a [u8],
}

struct Central<'a> {
    name: &'a str,
    compressed: u64,
    size: u64,
    offset: u64,
}

impl<'a> Archive<'a> {
    /// Reads the directory and places every entry.
    ///
    /// # Errors
    /// For a file that is no zip, or an entry that is compressed, encrypted, double or outside it.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, Problem> {
        let (count, size, offset) = directory(bytes)?;
        let start = usize::try_from(offset).ok().filter(|start| *start <= bytes.len());
        let Some(start) = start else { return damaged(format!("its directory begins at {offset}, beyond its end")) };
        if count > size / SHORTEST_ENTRY || size > (bytes.len() - start) as u64 {
            return damaged(format!("its directory claims {count} entries in {size} bytes"));
        }
        let mut cursor = Cursor::from(bytes, start);
        let mut entries = HashMap::new();
        let mut ranges = Vec::new();
        for _ in 0..count {
            let entry = Central::read(&mut cursor)?;
            let content = entry.content(bytes)?;
            ranges.push((entry.offset, content));
            if entries.insert(entry.name, content).is_some() {
                return damaged(format!("entry `{}` is there twice", entry.name));
            }
        }
        // Entries on the same bytes would let a small file say much.
        ranges.sort_unstable_by_key(|range| range.0);
        let end = |content: &[u8]| content.as_ptr() as usize - bytes.as_ptr() as usize + content.len();
        if ranges.windows(2).any(|pair| end(pair[0].1) as u64 > pair[1].0) {
            return damaged("its entries overlap");
        }
        Ok(Self { entries })
    }

    /// The content of an entry.
    pub(crate) fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.entries.get(name).copied()
    }

    /// The pickle that says what the file holds: the one entry `data.pkl` or `NAME/data.pkl`.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub(crate) fn pickle(&self) -> Result<Pickle<'a>, Problem> {
        let root = |name: &&'a str| {
            let root = name.strip_suffix("data.pkl")?;
            (root.is_empty() || root.ends_with('/')).then_some(root)
        };
        let mut roots: Vec<&'a str> = self.entries.keys().filter_map(root).collect();
        roots.sort_unstable();
        match roots.as_slice() {
            [] => damaged("it has no entry `data.pkl`; torch.save writes one"),
            &[root] => {
                let bytes = self.get(&format!("{root}data.pkl")).unwrap_or_default();
                Ok(Pickle { root, bytes })
            }
            [first, second, ..] => damaged(format!(
                "it has several pickles, `{first}data.pkl` and `{second}data.pkl`; torch.save writes one"
            )),
        }
    }
}

impl<'a> Central<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Self, Problem> {
        let what = "a directory entry";
        if cursor.u32(what)? != CENTRAL {
            return damaged(format!("no directory entry before byte {}", cursor.position()));
        }
        cursor.take(4, what)?;
        let (flags, method) = (cursor.u16(what)?, cursor.u16(what)?);
        cursor.take(8, what)?;
        let (compressed, size) = (cursor.u32(what)?, cursor.u32(what)?);
        let (name, extra, comment) = (cursor.u16(what)?, cursor.u16(what)?, cursor.u16(what)?);
        cursor.take(8, what)?;
        let offset = cursor.u32(what)?;
        let name = cursor.take(name.into(), "an entry's name")?;
        let Ok(name) = std::str::from_utf8(name) else { return damaged("an entry's name is not UTF-8") };
        let mut extra = Cursor::new(cursor.take(extra.into(), "an entry's extra field")?);
        cursor.take(comment.into(), "an entry's comment")?;
        if flags & 1 != 0 {
            return unsupported(format!("entry `{name}` is encrypted"));
        }
        if method != 0 {
            return unsupported(format!("entry `{name}` is compressed (method {method}); torch.save stores"));
        }
        let mut entry = Self { name, compressed: compressed.into(), size: size.into(), offset: offset.into() };
        while extra.left() >= 4 {
            let (id, length) = (extra.u16(what)?, extra.u16(what)?);
            let mut field = Cursor::new(extra.take(length.into(), "an extra field")?);
            if id == ZIP64_FIELD {
                for value in [&mut entry.size, &mut entry.compressed, &mut entry.offset] {
                    if *value == u64::from(u32::MAX) {
                        *value = field.u64("a zip64 field")?;
                    }
                }
            }
        }
        Ok(entry)
    }

    fn content(&self, bytes: &'a [u8]) -> Result<&'a [u8], Problem> {
        if self.compressed != self.size {
            return damaged(format!(
                "entry `{}` is stored, yet of {} and {} bytes",
                self.name, self.size, self.compressed
            ));
        }
        let start = usize::try_from(self.offset).ok().filter(|start| *start < bytes.len());
        let Some(start) = start else { return damaged(format!("entry `{}` begins beyond the file's end", self.name)) };
        let mut cursor = Cursor::from(bytes, start);
        let what = "a local header";
        if cursor.u32(what)? != LOCAL {
            return damaged(format!("entry `{}` has no header at byte {start}", self.name));
        }
        cursor.take(22, what)?;
        let (name, extra) = (cursor.u16(what)?, cursor.u16(what)?);
        if cursor.take(name.into(), what)? != self.name.as_bytes() {
            return damaged(format!("entry `{}` has another name in its own header", self.name));
        }
        cursor.take(extra.into(), what)?;
        cursor.take(self.size, "an entry")
    }
}

/// Entries, bytes and offset of the central directory.
fn directory(bytes: &[u8]) -> Result<(u64, u64, u64), Problem> {
    let from = bytes.len().saturating_sub(END_LENGTH + LONGEST_COMMENT);
    let tail = &bytes[from..];
    let end = tail.windows(END.len()).rposition(|window| window == END);
    let Some(end) = end.map(|at| from + at) else {
        return damaged("it is no zip file (torch.save writes one since PyTorch 1.6), or it is truncated");
    };
    let what = "the end of the directory";
    let mut cursor = Cursor::from(bytes, end + END.len());
    cursor.take(6, what)?;
    let count = cursor.u16(what)?;
    let (size, offset) = (cursor.u32(what)?, cursor.u32(what)?);
    let comment = cursor.u16(what)?;
    cursor.take(comment.into(), "the archive's comment")?;
    let large = count == u16::MAX || size == u32::MAX || offset == u32::MAX;
    let locator = end.checked_sub(LOCATOR64_LENGTH).filter(|_| large);
    let Some(locator) = locator else { return Ok((count.into(), size.into(), offset.into())) };
    let what = "the zip64 end of the directory";
    let mut cursor = Cursor::from(bytes, locator);
    if cursor.u32(what)? != LOCATOR64 {
        return Ok((count.into(), size.into(), offset.into()));
    }
    cursor.take(4, what)?;
    let at = cursor.u64(what)?;
    let Some(at) = usize::try_from(at).ok().filter(|at| *at < bytes.len()) else {
        return damaged("its zip64 end lies beyond its end");
    };
    let mut cursor = Cursor::from(bytes, at);
    if cursor.u32(what)? != END64 {
        return damaged(format!("no zip64 end of the directory at byte {at}"));
    }
    cursor.take(28, what)?;
    Ok((cursor.u64(what)?, cursor.u64(what)?, cursor.u64(what)?))
}

#[cfg(test)]
mod tests {
    use super::super::sample::zip;
    use super::*;

    #[test]
    fn entries_are_found_and_their_headers_checked() {
        let file = zip(&[("a/data.pkl", b"pickle"), ("a/data/0", b"\x01\x02\x03")]);
        let archive = Archive::read(&file).unwrap();
        assert_eq!(archive.get("a/data/0"), Some(b"\x01\x02\x03".as_slice()));
        assert_eq!(archive.get("a/data/1"), None);
        assert_eq!(archive.entries.len(), 2);
        let pickle = archive.pickle().unwrap();
        assert_eq!((pickle.root, pickle.bytes), ("a/", b"pickle".as_slice()));
        for cut in 0..file.len() {
            assert!(Archive::read(&file[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn there_is_one_pickle_or_an_error() {
        let pickle = |names: &[&str]| {
            let entries: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, name.as_bytes())).collect();
            let file = zip(&entries);
            Archive::read(&file)
                .unwrap()
                .pickle()
                .map(|pickle| pickle.root.to_owned())
                .map_err(|error| error.to_string())
        };
        assert_eq!(pickle(&["data.pkl", "data/0"]), Ok(String::new()));
        assert_eq!(pickle(&["m/data.pkl", "m/old-data.pkl", "data.pkl.bak"]), Ok("m/".to_owned()));
        for names in [&["m/old-data.pkl"][..], &["x"]] {
            assert!(pickle(names).unwrap_err().contains("no entry `data.pkl`"));
        }
        // Whatever the order of the hash map is this time.
        for _ in 0..20 {
            let error = pickle(&["b/data.pkl", "a/data.pkl", "data/0"]).unwrap_err();
            assert!(error.contains("`a/data.pkl` and `b/data.pkl`"), "{error}");
        }
    }

    #[test]
    fn compressed_and_lying_entries_are_refused() {
        let plain = zip(&[("x", b"0123456789")]);
        let directory = plain.windows(4).position(|window| window == CENTRAL.to_le_bytes()).unwrap();
        for (at, value, word) in [
            (directory + 10, 8_u32, "compressed"),
            (directory + 8, 1, "encrypted"),
            (directory + 42, 5, "no header"),
            (directory + 42, 1 << 30, "beyond"),
        ] {
            let mut file = plain.clone();
            if at == directory + 42 {
                file[at..at + 4].copy_from_slice(&value.to_le_bytes());
            } else {
                file[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
            }
            let error = Archive::read(&file).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
