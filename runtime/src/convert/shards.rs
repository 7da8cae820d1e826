//! What was planned, written as safetensors; with a line now and then.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use safetensors::Dtype;

use super::error::Error;
use super::plan::{Failure, Planned};
use crate::model::{self, Put, Writable};

const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Files of weights.
    pub(crate) files: usize,
    /// Bytes of all tensors.
    pub(crate) bytes: u64,
    /// Numbers of all tensors.
    pub(crate) parameters: u64,
    /// Tensors of which a number was rounded.
    pub(crate) rounded: usize,
}

/// A planned tensor, with the file that errors of its content are about.
struct Emitted<'p, 'a> {
    planned: &'p Planned<'a>,
    source: &'p Path,
    rounded: Cell<bool>,
}

impl Writable for Emitted<'_, '_> {
    type Error = Error;

    fn name(&self) -> &str {
        &self.planned.name
    }

    fn dtype(&self) -> Dtype {
        self.planned.dtype
    }

    fn shape(&self) -> Vec<usize> {
        self.planned.shape.clone()
    }

    fn emit(&self, put: &mut Put<'_>) -> Result<(), Error> {
        match self.planned.emit(put) {
            Ok(rounded) => {
                self.rounded.set(rounded);
                Ok(())
            }
            Err(Failure::Problem(problem)) => Err(problem.of(self.source)),
            Err(Failure::Error(error)) => Err(error),
        }
    }
}

/// Writes `tensors` into `folder`, at most `shard_bytes` a file (a larger tensor is one by itself),
/// one tensor at a time. `source` is the file that errors of the content are about.
///
/// # Errors
/// [`Error::Write`], and what the content finds wrong with its source.
pub(crate) fn write(tensors: &[Planned<'_>], folder: &Path, shard_bytes: u64, source: &Path) -> Result<Written, Error> {
    let emitted = |planned| Emitted { planned, source, rounded: Cell::new(false) };
    let emitted: Vec<Emitted<'_, '_>> = tensors.iter().map(emitted).collect();
    let mut written = Written::default();
    let (mut done, mut said) = (0, Instant::now());
    let files = model::write(&emitted, folder, shard_bytes, &mut |tensor| {
        written.rounded += usize::from(tensor.rounded.get());
        written.bytes += tensor.bytes();
        written.parameters += tensor.planned.numbers();
        done += 1;
        if said.elapsed() >= PROGRESS_EVERY {
            said = Instant::now();
            eprintln!("convert: {done} of {} tensors, {} MB", tensors.len(), written.bytes / 1_000_000);
        }
    })?;
    Ok(Written { files, ..written })
}
