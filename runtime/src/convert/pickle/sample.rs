//! PyTorch files for tests: a zip writer, and pickles as `torch.save` writes them.

/// A zip of stored entries.
pub(crate) fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in entries {
        let offset = file.len() as u32;
        let sizes = [content.len() as u32, content.len() as u32].map(u32::to_le_bytes).concat();
        let length = (name.len() as u16).to_le_bytes();
        file.extend([b"PK\x03\x04", &[0; 14][..], &sizes, &length, &[0; 2], name.as_bytes(), content].concat());
        directory.extend([b"PK\x01\x02", &[0; 16][..], &sizes, &length, &[0; 12]].concat());
        directory.extend([&offset.to_le_bytes()[..], name.as_bytes()].concat());
    }
    let (offset, size) = ((file.len() as u32).to_le_bytes(), (directory.len() as u32).to_le_bytes());
    let count = (entries.len() as u16).to_le_bytes();
    file.extend(directory);
    file.extend([b"PK\x05\x06", &[0; 4][..], &count, &count, &size, &offset, &[0; 2]].concat());
    file
}

/// A placement of [`Entry`]: the dimension sharded along, or none.
pub(crate) type Sharded = Option<usize>;

/// An entry of a rank's state dict, of float32.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
    /// Shape of the whole, shape of the mesh (its ranks are 0, 1, …), placements.
    pub(crate) of: Option<(Vec<usize>, Vec<usize>, Vec<Sharded>)>,
}

/// Opcodes, one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pickle(pub(crate) Vec<u8>);

impl Pickle {
    pub(crate) fn new() -> Self {
        Self(vec![0x80, 2])
    }

    pub(crate) fn op(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn global(&mut self, module: &str, name: &str) -> &mut Self {
        self.op(format!("c{module}\n{name}\n").as_bytes())
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.op(b"X").op(&(text.len() as u32).to_le_bytes()).op(text.as_bytes())
    }

    pub(crate) fn whole(&mut self, number: usize) -> &mut Self {
        self.op(b"J").op(&(number as u32).to_le_bytes())
    }

    pub(crate) fn sizes(&mut self, sizes: &[usize]) -> &mut Self {
        self.op(b"(");
        for &size in sizes {
            self.whole(size);
        }
        self.op(b"t")
    }

    /// A tensor over all of storage `key`.
    pub(crate) fn tensor(&mut self, storage: &str, key: &str, shape: &[usize]) -> &mut Self {
        let strides: Vec<usize> = (0..shape.len()).map(|dimension| shape[dimension + 1..].iter().product()).collect();
        let count = shape.iter().product();
        self.global("torch._utils", "_rebuild_tensor_v2").op(b"((").text("storage").global("torch", storage);
        self.text(key).text("cpu").whole(count).op(b"tQ").whole(0).sizes(shape).sizes(&strides).op(b"\x89");
        self.global("collections", "OrderedDict").op(b")RtR")
    }

    /// An object of a class with a state of pairs that `fill` writes.
    pub(crate) fn object(&mut self, module: &str, name: &str, fill: impl FnOnce(&mut Self)) -> &mut Self {
        self.global(module, name).op(b")\x81}(");
        fill(self);
        self.op(b"ub")
    }

    fn distributed(&mut self, entry: &Entry, key: &str, mesh_key: &str) -> &mut Self {
        const TENSOR: &str = "torch.distributed.tensor";
        let Some((whole, mesh, placements)) = &entry.of else { return self.tensor("FloatStorage", key, &entry.shape) };
        self.global("torch._tensor", "_rebuild_from_type_v2")
            .op(b"(")
            .global("torch._utils", "_rebuild_wrapper_subclass");
        self.global(TENSOR, "DTensor").op(b")N}(").text("_local_tensor").tensor("FloatStorage", key, &entry.shape);
        self.text("_spec").object(&format!("{TENSOR}._dtensor_spec"), "DTensorSpec", |spec| {
            spec.text("mesh").object("torch.distributed.device_mesh", "DeviceMesh", |state| {
                state.text("mesh").tensor("IntStorage", mesh_key, mesh);
            });
            spec.text("placements").op(b"(");
            for placement in placements {
                let module = format!("{TENSOR}.placement_types");
                match placement {
                    Some(dimension) => spec.object(&module, "Shard", |state| {
                        state.text("dim").whole(*dimension);
                    }),
                    None => spec.object(&module, "Replicate", |_| {}),
                };
            }
            spec.op(b"t").text("tensor_meta").global(&format!("{TENSOR}._dtensor_spec"), "TensorMeta").op(b"(");
            spec.global("torch", "Size").sizes(whole).op(b"\x85R").sizes(&[]).global("torch", "float32").op(b"t\x81");
        });
        self.op(b"u\x86tR")
    }
}

/// A file of a rank.
pub(crate) fn shard(entries: &[Entry]) -> Vec<u8> {
    let mut pickle = Pickle::new();
    pickle.global("collections", "OrderedDict").op(b")R(");
    let mut storages = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let (key, mesh_key) = (format!("{}", 2 * index), format!("{}", 2 * index + 1));
        pickle.text(entry.name).distributed(entry, &key, &mesh_key);
        let values: Vec<u8> = entry.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        storages.push((format!("s/data/{key}"), values));
        if let Some((_, mesh, _)) = &entry.of {
            let ranks = 0..mesh.iter().product::<usize>() as i32;
            storages.push((format!("s/data/{mesh_key}"), ranks.flat_map(i32::to_le_bytes).collect()));
        }
    }
    pickle.op(b"u.");
    let mut all: Vec<(&str, &[u8])> = vec![("s/data.pkl", &pickle.0), ("s/byteorder", b"little")];
    all.extend(storages.iter().map(|(name, content)| (name.as_str(), content.as_slice())));
    zip(&all)
}
