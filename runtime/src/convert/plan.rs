//! What is to be written: tensors by name and shape, their numbers made when they are written.

use std::io::Write;

use safetensors::Dtype;

use super::error::{Error, Problem};
use super::number;
use crate::settings::Number;

/// Makes a tensor's numbers, in row-major order, a piece at a time.
pub(crate) type Content<'a> = Box<dyn Fn(&mut Sink<'_>) -> Result<(), Problem> + 'a>;

/// A tensor of the output.
pub(crate) struct Planned<'a> {
    /// Its name there.
    pub(crate) name: String,
    /// Its shape.
    pub(crate) shape: Vec<usize>,
    /// Its type there.
    pub(crate) dtype: Dtype,
    /// Its numbers.
    pub(crate) content: Content<'a>,
}

impl Planned<'_> {
    /// Numbers in it.
    pub(crate) fn numbers(&self) -> u64 {
        self.shape.iter().map(|&size| size as u64).product()
    }

    /// Bytes it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.numbers() * self.dtype.bitsize() as u64 / 8
    }
}

impl std::fmt::Debug for Planned<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {:?} {:?}", self.name, self.dtype, self.shape)
    }
}

/// Where a tensor's numbers go.
pub(crate) struct Sink<'a> {
    to: &'a mut dyn Write,
    dtype: Dtype,
    scratch: Vec<u8>,
    written: u64,
    rounded: bool,
    failed: Option<std::io::Error>,
}

impl Sink<'_> {
    /// Takes numbers as they are stored, in the output's own type.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        self.written += bytes.len() as u64;
        if self.failed.is_none() {
            self.failed = self.to.write_all(bytes).err();
        }
        // The failure is reported with the file's name by whoever opened it.
        if self.failed.is_some() { Err(Problem::Damaged("it could not be written".to_owned())) } else { Ok(()) }
    }

    /// Takes numbers and brings them to the output's type.
    pub(crate) fn floats(&mut self, values: &[f32]) -> Result<(), Problem> {
        let number = number::number(self.dtype).expect("floats go to float tensors");
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        self.rounded |= number::narrow(values, number, &mut bytes)?;
        let outcome = self.bytes(&bytes);
        self.scratch = bytes;
        outcome
    }
}

/// Writes one tensor; true where a number was rounded. `failed` makes the error of a write.
pub(crate) fn write(
    planned: &Planned<'_>,
    to: &mut dyn Write,
    failed: impl FnOnce(std::io::Error) -> Error,
    refused: impl FnOnce(Problem) -> Error,
) -> Result<bool, Error> {
    let mut sink = Sink { to, dtype: planned.dtype, scratch: Vec::new(), written: 0, rounded: false, failed: None };
    let outcome = (planned.content)(&mut sink);
    if let Some(source) = sink.failed {
        return Err(failed(source));
    }
    outcome.map_err(|problem| {
        refused(match problem {
            Problem::Damaged(text) => Problem::Damaged(format!("tensor `{}`: {text}", planned.name)),
            Problem::Unsupported(text) => Problem::Unsupported(format!("tensor `{}`: {text}", planned.name)),
        })
    })?;
    assert_eq!(sink.written, planned.bytes(), "`{}` is written whole", planned.name);
    Ok(sink.rounded)
}

/// Numbers handled at once where a tensor is converted: 256 KiB of float32.
pub(crate) const PIECE: usize = 1 << 16;

/// The content of numbers that lie stored in a file, as they are or in another type.
pub(crate) fn stored<'a>(bytes: &'a [u8], from: Dtype, to: Dtype) -> Content<'a> {
    Box::new(move |sink| {
        if from == to {
            return sink.bytes(bytes);
        }
        let size = number::size_of(from).expect("only floats are converted");
        let mut values = Vec::with_capacity(PIECE);
        for piece in bytes.chunks(PIECE * size) {
            values.clear();
            number::widen(from, piece, &mut values);
            sink.floats(&values)?;
        }
        Ok(())
    })
}

/// The type a stored tensor gets: the one asked for where it is a float.
pub(crate) fn target(stored: Dtype, asked: Option<Number>) -> Dtype {
    asked.filter(|_| number::is_float(stored)).map_or(stored, number::stored)
}
