//! Weights of a Hugging Face folder, whatever its architecture, read as a model's are.

use std::path::Path;

use super::error::Error;
use super::plan::{self, Planned};
use crate::model::{Checkpoint, FileTensor};
use crate::settings::Number;

/// Opens a folder's weights, every header checked.
///
/// # Errors
/// For files that are damaged, outside the folder or not those its index names, and where there is
/// no tensor at all.
pub(crate) fn open(folder: &Path) -> Result<Checkpoint, Error> {
    let checkpoint = Checkpoint::open(folder)?;
    if checkpoint.tensors().is_empty() {
        return Err(Error::Unsupported { path: folder.to_owned(), problem: "its files hold no tensor".to_owned() });
    }
    Ok(checkpoint)
}

/// Everything, under its own name; floats in the type asked for, if one is.
pub(crate) fn plan(checkpoint: &Checkpoint, number: Option<Number>) -> Vec<Planned<'static>> {
    let planned = |tensor: FileTensor| Planned {
        name: tensor.name.clone(),
        shape: tensor.shape().to_vec(),
        dtype: plan::target(tensor.dtype(), number),
        content: plan::in_file(tensor),
    };
    checkpoint.tensors().into_iter().map(planned).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::super::shards;
    use super::*;

    #[test]
    fn a_file_that_is_cut_while_it_is_read_is_an_error() {
        let (folder, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = folder.path().join("model.safetensors");
        let view = TensorView::new(Dtype::F32, vec![1000], &[0; 4000]).unwrap();
        fs::write(&path, safetensors::serialize([("a", view)], None).unwrap()).unwrap();
        let checkpoint = open(folder.path()).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
        for number in [None, Some(Number::Bf16)] {
            let tensors = plan(&checkpoint, number);
            let error = shards::write(&tensors, out.path(), 1 << 20, folder.path()).unwrap_err();
            assert!(matches!(&error, Error::Read { path: read, .. } if *read == path), "{error}");
            assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
        }
    }
}
