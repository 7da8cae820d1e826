//! The optimizer on disk: `optimizer.safetensors`, three float32 tensors a parameter
//! (`master.NAME`, `exp_avg.NAME`, `exp_avg_sq.NAME`) and the step count in its metadata.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError, View};
use tch::{Device, Kind, Tensor, no_grad};

use super::adamw::{AdamW, Slot};
use super::error::Error;

const FILE: &str = "optimizer.safetensors";
/// The only entry of the metadata: names the format, and holds the step count. (One entry, since
/// the order of several is not fixed.)
const STEPS: &str = "training-gym-adamw-1.steps";
/// No header of ours comes near; a damaged length must not become an allocation.
const HEADER_LIMIT: u64 = 100 << 20;

/// A float32 tensor, copied to bytes only while it is written.
struct Stored {
    tensor: Tensor,
    shape: Vec<usize>,
}

impl View for Stored {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(bytes(&self.tensor))
    }
    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * 4
    }
}

fn tensors(slot: &Slot) -> [(String, &Tensor); 3] {
    [
        (format!("master.{}", slot.name), &slot.master),
        (format!("exp_avg.{}", slot.name), &slot.exp_avg),
        (format!("exp_avg_sq.{}", slot.name), &slot.exp_avg_sq),
    ]
}

fn bytes(tensor: &Tensor) -> Vec<u8> {
    let tensor = tensor.to_device(Device::Cpu).contiguous();
    let mut bytes = vec![0; tensor.numel() * 4];
    tensor.copy_data_u8(&mut bytes, tensor.numel());
    bytes
}

/// See [`super::Updater::for_each_master_weight`].
pub(super) fn for_each_master_weight(optimizer: &AdamW, mut visit: impl FnMut(&str, &[u8])) {
    for slot in &optimizer.slots {
        visit(&slot.name, &bytes(&slot.master));
    }
}

fn shape(tensor: &Tensor) -> Vec<usize> {
    tensor.size().iter().map(|&size| size as usize).collect()
}

/// Writes the state beside its place, then moves it there.
pub(super) fn save(optimizer: &AdamW, folder: &Path) -> Result<(), Error> {
    let path = folder.join(FILE);
    let failed = |source| Error::Write { path: path.clone(), source };
    let data: Vec<(String, Stored)> = optimizer
        .slots
        .iter()
        .flat_map(tensors)
        .map(|(name, tensor)| (name, Stored { shape: shape(tensor), tensor: tensor.detach() }))
        .collect();
    let metadata = HashMap::from([(STEPS.to_owned(), optimizer.steps.to_string())]);
    let part = tempfile::Builder::new().prefix(".optimizer-").tempfile_in(folder).map_err(failed)?;
    safetensors::serialize_to_file(data, Some(metadata), part.path()).map_err(|error| {
        failed(match error {
            SafeTensorError::IoError(source) => source,
            other => std::io::Error::other(other),
        })
    })?;
    // The writer may have opened the path anew: sync what lies there.
    File::open(part.path()).and_then(|file| file.sync_all()).map_err(failed)?;
    part.persist(&path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Checks the whole header against the optimizer, then reads tensor by tensor.
pub(super) fn load(optimizer: &mut AdamW, folder: &Path) -> Result<(), Error> {
    let path = folder.join(FILE);
    let unreadable = |source| Error::Read { path: path.clone(), source };
    let damaged = |what: String| Error::Damaged { path: path.clone(), what };
    let mut file = File::open(&path).map_err(unreadable)?;
    let (data_start, metadata) = header(&mut file).map_err(unreadable)?.map_err(damaged)?;
    let size = file.metadata().map_err(unreadable)?.len();
    if size != data_start + metadata.data_len() as u64 {
        return Err(damaged(format!(
            "it has {size} bytes, not the {} it announces",
            data_start + metadata.data_len() as u64
        )));
    }
    let steps = metadata.metadata().as_ref().and_then(|map| map.get(STEPS)?.parse().ok());
    let steps = steps.ok_or_else(|| damaged(format!("its `{STEPS}` is missing")))?;

    let other = |what: String| Error::OtherModel { path: path.clone(), what };
    let stored = metadata.tensors();
    let mut expected = 0;
    for (name, tensor) in optimizer.slots.iter().flat_map(tensors) {
        let info = stored.get(&name).ok_or_else(|| other(format!("it has no `{name}`")))?;
        if info.dtype != Dtype::F32 || info.shape != shape(tensor) {
            return Err(other(format!("`{name}` has shape {:?}, not {:?}", info.shape, tensor.size())));
        }
        expected += 1;
    }
    if stored.len() != expected {
        return Err(other(format!("it has {} tensors, not {expected}", stored.len())));
    }
    for slot in &mut optimizer.slots {
        for (name, tensor) in tensors(slot) {
            let (start, end) = stored[&name].data_offsets;
            let mut bytes = vec![0; end - start];
            file.seek(SeekFrom::Start(data_start + start as u64)).map_err(unreadable)?;
            file.read_exact(&mut bytes).map_err(unreadable)?;
            let read = Tensor::from_data_size(&bytes, &tensor.size(), Kind::Float);
            no_grad(|| tensor.shallow_clone().copy_(&read));
        }
        no_grad(|| slot.publish());
    }
    optimizer.steps = steps;
    Ok(())
}

/// Where the tensors begin, and what the header says of them.
fn header(file: &mut File) -> std::io::Result<Result<(u64, Metadata), String>> {
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_LIMIT {
        return Ok(Err(format!("its header claims {length} bytes")));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text).map(|metadata| (8 + length, metadata)).map_err(|error| error.to_string()))
}
