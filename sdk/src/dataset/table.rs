//! The rows of one split, over all its files: counted first, read where wanted.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::files::Format;
use super::{Error, parquet_file};

/// Bytes of one line of JSON.
const LONGEST_LINE: u64 = 64 << 20;

/// A row as the file has it.
pub(super) type Columns = Map<String, Value>;

/// One data file and where its rows are.
#[derive(Debug)]
pub(super) struct Table {
    path: PathBuf,
    /// How messages call it.
    name: String,
    rows: Rows,
}

#[derive(Debug)]
enum Rows {
    /// Where each line that is not blank begins, and its number from 1.
    Lines(Vec<(u64, u64)>),
    /// A JSON array, read whole.
    Array(Vec<Columns>),
    Parquet(u64),
}

impl Table {
    /// Counts the rows of a file. It has at least one.
    ///
    /// # Errors
    /// When it cannot be read, is empty, or is of another format.
    pub(super) fn open(path: PathBuf, name: &str) -> Result<Self, Error> {
        let format = Format::of(name).ok_or_else(|| Error::Format {
            file: name.to_owned(),
            format: super::files::extension(name).unwrap_or_default(),
        })?;
        let rows = match format {
            Format::Parquet => Rows::Parquet(parquet_file::count(&path, name)?),
            Format::Json => scan(&path, name)?,
        };
        let table = Self { path, name: name.to_owned(), rows };
        if table.len() == 0 {
            return Err(Error::EmptyFile { file: table.name });
        }
        Ok(table)
    }

    pub(super) fn len(&self) -> u64 {
        match &self.rows {
            Rows::Lines(lines) => lines.len() as u64,
            Rows::Array(rows) => rows.len() as u64,
            Rows::Parquet(rows) => *rows,
        }
    }

    /// Reads the rows of `range`, which lies within the file.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Vec<Columns>, Error> {
        match &self.rows {
            Rows::Lines(lines) => self.lines(&lines[range.start as usize..range.end as usize]),
            Rows::Array(rows) => Ok(rows[range.start as usize..range.end as usize].to_vec()),
            Rows::Parquet(_) => parquet_file::read(&self.path, &self.name, range),
        }
    }

    fn lines(&self, lines: &[(u64, u64)]) -> Result<Vec<Columns>, Error> {
        let Some(&(start, _)) = lines.first() else { return Ok(Vec::new()) };
        let failed = |source| Error::io("read", &self.path)(source);
        let mut reader = BufReader::new(File::open(&self.path).map_err(failed)?);
        reader.seek(SeekFrom::Start(start)).map_err(failed)?;
        let (mut at, mut buffer) = (start, Vec::new());
        let mut rows = Vec::with_capacity(lines.len());
        for &(offset, number) in lines {
            while at <= offset {
                buffer.clear();
                at += reader.read_until(b'\n', &mut buffer).map_err(failed)? as u64;
                if buffer.is_empty() {
                    let problem = "the file became shorter while it was read".to_owned();
                    return Err(Error::Malformed { file: self.name.clone(), line: number, problem });
                }
            }
            rows.push(parse_line(&buffer, &self.name, number)?);
        }
        Ok(rows)
    }
}

pub(super) fn parse_line(line: &[u8], file: &str, number: u64) -> Result<Columns, Error> {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    let malformed = |problem| Error::Malformed { file: file.to_owned(), line: number, problem };
    match serde_json::from_slice(line) {
        Ok(Value::Object(columns)) => Ok(columns),
        Ok(other) => Err(malformed(format!("a row is a JSON object, and this is {}", kind(&other)))),
        // serde counts lines within the text it was given, which is always one.
        Err(error) => Err(malformed(format!("not valid JSON at column {}: {}", error.column(), reason(&error)))),
    }
}

/// Visits every row of a file in order, holding one at a time; a file of one JSON array is read whole.
pub(super) fn each(path: &Path, name: &str, visit: &mut dyn FnMut(Columns) -> Result<(), Error>) -> Result<(), Error> {
    let format = Format::of(name).ok_or_else(|| Error::Format {
        file: name.to_owned(),
        format: super::files::extension(name).unwrap_or_default(),
    })?;
    if format == Format::Parquet {
        return parquet_file::each(path, name, visit);
    }
    let failed = |source| Error::io("read", path)(source);
    let mut reader = BufReader::with_capacity(1 << 16, File::open(path).map_err(failed)?);
    let (mut number, mut rows, mut buffer) = (0, 0_u64, Vec::new());
    loop {
        buffer.clear();
        number += 1;
        let count = reader.by_ref().take(LONGEST_LINE + 1).read_until(b'\n', &mut buffer).map_err(failed)? as u64;
        if count > LONGEST_LINE {
            let problem = format!("the line has more than {} MiB, and a row is one line", LONGEST_LINE >> 20);
            return Err(Error::Malformed { file: name.to_owned(), line: number, problem });
        }
        if count == 0 {
            return Ok(());
        }
        let text = buffer.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&buffer);
        let first = text.iter().find(|c| !c.is_ascii_whitespace());
        if rows == 0 && first == Some(&b'[') {
            let Rows::Array(all) = array(path, name)? else { return Ok(()) };
            return all.into_iter().try_for_each(visit);
        }
        if first.is_some() {
            rows += 1;
            visit(parse_line(&buffer, name, number)?)?;
        }
    }
}

/// Finds the lines of a file of JSON lines, or reads the array of a file of one array.
fn scan(path: &Path, name: &str) -> Result<Rows, Error> {
    let failed = |source| Error::io("read", path)(source);
    let mut reader = BufReader::with_capacity(1 << 16, File::open(path).map_err(failed)?);
    let (mut offset, mut number) = (0, 0);
    let (mut lines, mut buffer) = (Vec::new(), Vec::new());
    loop {
        buffer.clear();
        let count = reader.read_until(b'\n', &mut buffer).map_err(failed)? as u64;
        if count == 0 {
            return Ok(Rows::Lines(lines));
        }
        number += 1;
        let text = buffer.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&buffer);
        let first = text.iter().find(|c| !c.is_ascii_whitespace());
        if lines.is_empty() && first == Some(&b'[') {
            return array(path, name);
        }
        if first.is_some() {
            lines.push((offset, number));
        }
        offset += count;
    }
}

fn array(path: &Path, name: &str) -> Result<Rows, Error> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let malformed = |line, problem| Error::Malformed { file: name.to_owned(), line, problem };
    let values: Vec<Value> = serde_json::from_slice(bytes).map_err(|error| {
        let problem = format!("not valid JSON at column {}: {}", error.column(), reason(&error));
        malformed(error.line() as u64, problem)
    })?;
    let mut rows = Vec::with_capacity(values.len());
    for (index, value) in values.into_iter().enumerate() {
        let Value::Object(columns) = value else {
            let problem = format!("element {index} of the array is {}, and a row is a JSON object", kind(&value));
            return Err(malformed(1, problem));
        };
        rows.push(columns);
    }
    Ok(Rows::Array(rows))
}

/// A JSON error without its own position, which counts from elsewhere.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |parts| parts.0.to_owned())
}

/// What a value is, in words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
