//! What is to be written: tensors by name and shape, their numbers made when they are written.

use safetensors::Dtype;

use super::error::{Error, Problem};
use super::number;
use crate::model::{self, FileTensor, Put};
use crate::settings::Number;

/// Why a tensor's numbers were not made or written.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The source is at fault; its name is not known here.
    Problem(Problem),
    /// A file is, by name.
    Error(Error),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<model::Error> for Failure {
    fn from(error: model::Error) -> Self {
        Self::Error(error.into())
    }
}

/// Makes a tensor's numbers, in row-major order, a piece at a time.
pub(crate) type Content<'a> = Box<dyn Fn(&mut Sink<'_>) -> Result<(), Failure> + 'a>;

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

    /// Hands over the numbers; true where one was rounded.
    ///
    /// # Errors
    /// What the content finds wrong with its source, with the tensor's name; what `put` says.
    pub(crate) fn emit(&self, put: &mut Put<'_>) -> Result<bool, Failure> {
        let mut sink = Sink { put, dtype: self.dtype, values: Vec::new(), narrowed: Vec::new(), rounded: false };
        match (self.content)(&mut sink) {
            Ok(()) => Ok(sink.rounded),
            Err(Failure::Problem(problem)) => Err(problem.within(&self.name).into()),
            Err(error) => Err(error),
        }
    }
}

impl std::fmt::Debug for Planned<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {:?} {:?}", self.name, self.dtype, self.shape)
    }
}

/// Where a tensor's numbers go.
pub(crate) struct Sink<'a> {
    put: &'a mut Put<'a>,
    dtype: Dtype,
    values: Vec<f32>,
    narrowed: Vec<u8>,
    rounded: bool,
}

impl Sink<'_> {
    /// Takes numbers as they are stored, in the output's own type.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok((self.put)(bytes)?)
    }

    /// Takes numbers and brings them to the output's type.
    pub(crate) fn floats(&mut self, values: &[f32]) -> Result<(), Failure> {
        let number = number::number(self.dtype).expect("floats go to float tensors");
        self.narrowed.clear();
        self.rounded |= number::narrow(values, number, &mut self.narrowed)?;
        Ok((self.put)(&self.narrowed)?)
    }

    /// Takes whole numbers stored in type `from` and brings them to the output's.
    pub(crate) fn stored(&mut self, bytes: &[u8], from: Dtype) -> Result<(), Failure> {
        if from == self.dtype {
            return self.bytes(bytes);
        }
        let mut values = std::mem::take(&mut self.values);
        values.clear();
        number::widen(from, bytes, &mut values);
        let outcome = self.floats(&values);
        self.values = values;
        outcome
    }
}

/// Numbers handled at once where a tensor is converted: 256 KiB of float32.
pub(crate) const PIECE: usize = 1 << 16;

/// Bytes of a piece. Numbers that share bytes are never converted, so any will do.
fn piece(dtype: Dtype) -> usize {
    PIECE * number::size_of(dtype).unwrap_or(1)
}

/// The content of numbers that lie stored in type `from`.
pub(crate) fn stored<'a>(bytes: &'a [u8], from: Dtype) -> Content<'a> {
    Box::new(move |sink| bytes.chunks(piece(from)).try_for_each(|piece| sink.stored(piece, from)))
}

/// The content of a tensor of a folder. Nothing is mapped: a file that is cut meanwhile is an error.
pub(crate) fn in_file(tensor: FileTensor) -> Content<'static> {
    Box::new(move |sink| tensor.pieces(piece(tensor.dtype()), |piece| sink.stored(piece, tensor.dtype())))
}

/// The type a stored tensor gets: the one asked for where it is a float.
pub(crate) fn target(stored: Dtype, asked: Option<Number>) -> Dtype {
    asked.filter(|_| number::is_float(stored)).map_or(stored, number::stored)
}
