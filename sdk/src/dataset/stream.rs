//! The rows of one file, one at a time.

use std::path::{Path, PathBuf};

use training_gym_core::sample::Row;

use super::shape::{Shape, pick};
use super::table::{self, Columns};
use super::{Error, Place, files};

/// A file whose columns are known, to be read row by row.
#[derive(Clone, Debug)]
pub(crate) struct RowReader {
    path: PathBuf,
    name: String,
    shape: Shape,
}

impl RowReader {
    /// Opens a file with its columns of question and answer; without names, the first pair of `known` that
    /// its first row has.
    pub(crate) fn open(path: &Path, columns: Option<(&str, &str)>, known: &[(&str, &str)]) -> Result<Self, Error> {
        let name = path.display().to_string();
        if !path.is_file() {
            return Err(Error::NoPlace { place: Place::File(path.to_owned()).to_string() });
        }
        if files::Format::of(&name).is_none() {
            let format = files::extension(&name).unwrap_or_default();
            return Err(Error::Format { file: name, format });
        }
        let first = first(path, &name)?;
        let has = |(input, label): &&(&str, &str)| pick(&first, input).is_some() && pick(&first, label).is_some();
        let chosen = columns.or_else(|| known.iter().find(has).copied()).ok_or_else(|| {
            let known: Vec<String> = known.iter().map(|(input, label)| format!("{input} and {label}")).collect();
            Error::NoColumn {
                setting: "input_key",
                key: known.join("; "),
                row: 0,
                dataset: name.clone(),
                columns: first.keys().cloned().collect(),
            }
        })?;
        let shape = Shape {
            dataset: name.clone(),
            input_key: chosen.0.to_owned(),
            label_key: Some(chosen.1.to_owned()),
            system_prompt: None,
            template: None,
            apply_chat_template: true,
        };
        Ok(Self { path: path.to_owned(), name, shape })
    }

    /// The columns of question and answer.
    pub(crate) fn columns(&self) -> (&str, &str) {
        (&self.shape.input_key, self.shape.label_key.as_deref().unwrap_or("label"))
    }

    /// Visits every row; one that has not what a row needs comes as its error.
    pub(crate) fn each(&self, visit: &mut dyn FnMut(Result<Row, Error>) -> Result<(), Error>) -> Result<(), Error> {
        let mut index = 0;
        table::each(&self.path, &self.name, &mut |columns| {
            let row = self.shape.row(index, columns).map(|shaped| shaped.row);
            index += 1;
            visit(row)
        })
    }
}

/// The first row.
fn first(path: &Path, name: &str) -> Result<Columns, Error> {
    let mut found = None;
    // What stops the reading is no error of the file.
    let stop = || Error::EmptyFile { file: name.to_owned() };
    let read = table::each(path, name, &mut |columns| {
        found = Some(columns);
        Err(stop())
    });
    match (found, read) {
        (Some(columns), _) => Ok(columns),
        (None, Err(error)) => Err(error),
        (None, Ok(())) => Err(stop()),
    }
}
