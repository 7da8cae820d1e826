//! Parquet, read row by row and written for other tools.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::record::Field;
use parquet::schema::parser::parse_message_type;
use serde_json::{Map, Number, Value};
use training_gym_core::sample::{Prompt, Row};

use super::Error;
use super::table::Columns;

fn open(path: &Path, name: &str) -> Result<SerializedFileReader<File>, Error> {
    let file = File::open(path).map_err(Error::io("read", path))?;
    if file.metadata().is_ok_and(|meta| meta.len() == 0) {
        return Err(Error::EmptyFile { file: name.to_owned() });
    }
    SerializedFileReader::new(file).map_err(|source| failed(name, source))
}

fn failed(name: &str, source: ParquetError) -> Error {
    Error::Parquet { file: name.to_owned(), source: Box::new(source) }
}

/// How many rows the file says it has.
pub(super) fn count(path: &Path, name: &str) -> Result<u64, Error> {
    let rows = open(path, name)?.metadata().file_metadata().num_rows();
    Ok(u64::try_from(rows).unwrap_or(0))
}

/// Reads the rows of `range`; row groups outside it are not touched.
pub(super) fn read(path: &Path, name: &str, range: Range<u64>) -> Result<Vec<Columns>, Error> {
    let reader = open(path, name)?;
    let mut rows = Vec::new();
    let mut first = 0;
    for index in 0..reader.num_row_groups() {
        let group = reader.get_row_group(index).map_err(|source| failed(name, source))?;
        let count = u64::try_from(group.metadata().num_rows()).unwrap_or(0);
        let (from, to) = (range.start.max(first), range.end.min(first + count));
        if from < to {
            let all = group.get_row_iter(None).map_err(|source| failed(name, source))?;
            for row in all.skip((from - first) as usize).take((to - from) as usize) {
                let columns = row.map_err(|source| failed(name, source))?.into_columns();
                rows.push(columns.into_iter().map(|(column, field)| (column, value(&field))).collect());
            }
        }
        first += count;
    }
    if rows.len() as u64 != range.end - range.start {
        let problem = format!("{} rows could be read where {} were promised", rows.len(), range.end - range.start);
        return Err(Error::Malformed { file: name.to_owned(), line: rows.len() as u64, problem });
    }
    Ok(rows)
}

/// Visits every row in order, holding one at a time.
pub(super) fn each(path: &Path, name: &str, visit: &mut dyn FnMut(Columns) -> Result<(), Error>) -> Result<(), Error> {
    let reader = open(path, name)?;
    for index in 0..reader.num_row_groups() {
        let group = reader.get_row_group(index).map_err(|source| failed(name, source))?;
        for row in group.get_row_iter(None).map_err(|source| failed(name, source))? {
            let columns = row.map_err(|source| failed(name, source))?.into_columns();
            visit(columns.into_iter().map(|(column, field)| (column, value(&field))).collect())?;
        }
    }
    Ok(())
}

/// A field as JSON. Bytes that are UTF-8 are a text, others and NaN are null; dates are ISO 8601 as
/// the parquet library prints them.
fn value(field: &Field) -> Value {
    let real = |real: f64| Number::from_f64(real).map_or(Value::Null, Value::Number);
    match field {
        Field::Null => Value::Null,
        Field::Bool(truth) => Value::Bool(*truth),
        Field::Byte(whole) => Value::from(*whole),
        Field::Short(whole) => Value::from(*whole),
        Field::Int(whole) => Value::from(*whole),
        Field::Long(whole) => Value::from(*whole),
        Field::UByte(whole) => Value::from(*whole),
        Field::UShort(whole) => Value::from(*whole),
        Field::UInt(whole) => Value::from(*whole),
        Field::ULong(whole) => Value::from(*whole),
        Field::Float16(number) => real(f64::from(*number)),
        Field::Float(number) => real(f64::from(*number)),
        Field::Double(number) => real(*number),
        Field::Str(text) => Value::String(text.clone()),
        Field::Bytes(bytes) => {
            std::str::from_utf8(bytes.data()).map_or(Value::Null, |text| Value::String(text.to_owned()))
        }
        Field::Group(row) => {
            row.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect::<Map<_, _>>().into()
        }
        Field::ListInternal(list) => list.elements().iter().map(value).collect(),
        Field::MapInternal(map) => {
            let pairs = map.entries().iter().map(|(key, entry)| (key_text(key), value(entry)));
            pairs.collect::<Map<_, _>>().into()
        }
        other => Value::String(other.to_string()),
    }
}

fn key_text(field: &Field) -> String {
    match field {
        Field::Str(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Rows as a parquet file: `prompt` (text, or a list of `{role, content}` where every message is
/// such), `label`, `metadata` (JSON text).
///
/// # Errors
/// When the parquet library refuses.
pub(super) fn write(rows: &[Row]) -> Result<Vec<u8>, Error> {
    write_rows(rows).map_err(|source| failed("the parquet output", source))
}

const FLAT: &str = "message rows { REQUIRED BYTE_ARRAY prompt (UTF8); REQUIRED BYTE_ARRAY label (UTF8); REQUIRED BYTE_ARRAY metadata (UTF8); }";
const CHAT: &str = "message rows {
    REQUIRED GROUP prompt (LIST) { REPEATED GROUP list { REQUIRED GROUP element {
        REQUIRED BYTE_ARRAY role (UTF8); REQUIRED BYTE_ARRAY content (UTF8); } } }
    REQUIRED BYTE_ARRAY label (UTF8); REQUIRED BYTE_ARRAY metadata (UTF8); }";

fn write_rows(rows: &[Row]) -> Result<Vec<u8>, ParquetError> {
    let chats: Option<Vec<_>> = rows.iter().map(plain_chat).collect();
    let schema = parse_message_type(if chats.is_some() { CHAT } else { FLAT })?;
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, Arc::new(schema), Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    match chats {
        Some(chats) => {
            // Every value is there (definition 1); a row's first message starts a list (repetition 0).
            let levels: Vec<i16> =
                chats.iter().flat_map(|chat| (0..chat.len()).map(|index| i16::from(index > 0))).collect();
            let roles = chats.iter().flatten().map(|message| message.0);
            let contents = chats.iter().flatten().map(|message| message.1);
            column(&mut group, roles.map(ByteArray::from).collect(), Some(&levels))?;
            column(&mut group, contents.map(ByteArray::from).collect(), Some(&levels))?;
        }
        None => {
            let texts = rows.iter().map(|row| match &row.prompt {
                Prompt::Text(text) => text.clone(),
                Prompt::Messages(messages) => serde_json::json!(messages).to_string(),
            });
            column(&mut group, texts.map(|text| ByteArray::from(text.into_bytes())).collect(), None)?;
        }
    }
    column(&mut group, rows.iter().map(|row| ByteArray::from(row.label.as_str())).collect(), None)?;
    let metadata = rows.iter().map(|row| serde_json::json!(row.metadata).to_string());
    column(&mut group, metadata.map(|text| ByteArray::from(text.into_bytes())).collect(), None)?;
    group.close()?;
    writer.close()?;
    Ok(bytes)
}

fn column(
    group: &mut SerializedRowGroupWriter<'_, &mut Vec<u8>>,
    values: Vec<ByteArray>,
    repetition: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("the schema has too few columns".to_owned()));
    };
    let definition = repetition.map(|levels| vec![1; levels.len()]);
    column.typed::<ByteArrayType>().write_batch(&values, definition.as_deref(), repetition)?;
    column.close()
}

/// A prompt as (role, content) pairs, if that is all it holds.
fn plain_chat(row: &Row) -> Option<Vec<(&str, &str)>> {
    let Prompt::Messages(messages) = &row.prompt else { return None };
    let pair = |message: &'_ training_gym_core::sample::Message| {
        message.extra.is_empty().then_some(()).and(message.content.as_str()).map(|_| ())
    };
    messages.iter().all(|message| pair(message).is_some()).then(|| {
        messages.iter().map(|message| (message.role.as_str(), message.content.as_str().unwrap_or_default())).collect()
    })
}
