//! The names a checkpoint's pickle may mention, and what each stands for.

use safetensors::Dtype;

/// What a name stands for. None is ever called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Global {
    /// `collections.OrderedDict`.
    OrderedDict,
    /// A tensor over a storage, from a tuple of seven (`_rebuild_tensor_v2`) or more.
    RebuildTensor,
    /// The same with a type of its own (`_rebuild_tensor_v3`).
    RebuildTensorTyped,
    /// A tensor as a module's parameter.
    RebuildParameter,
    /// A tensor of a subclass with a state.
    RebuildFromType,
    /// A tensor of a subclass that holds others.
    RebuildWrapper,
    /// A storage of numbers.
    Storage(Dtype),
    /// A storage of bytes; the tensor says of which numbers.
    UntypedStorage,
    /// A number type.
    Type(Dtype),
    /// A distributed tensor: a local part and where it belongs.
    DTensor,
    /// Its placements.
    DTensorSpec,
    /// Shape and type of the whole.
    TensorMeta,
    /// Ranks in a grid.
    DeviceMesh,
    /// Shape and strides of the grid.
    MeshLayout,
    /// Split along a dimension.
    Shard,
    /// The same everywhere.
    Replicate,
    /// Split or summed in a way that is not merged here.
    OtherPlacement,
    /// What is read and not needed: devices, layouts, orders.
    Ignored,
    /// `torch.Size`.
    Size,
}

const DISTRIBUTED: [&str; 2] = ["torch.distributed.tensor", "torch.distributed._tensor"];

impl Global {
    /// What `module.name` stands for; `None` for everything that is not on the list.
    pub(crate) fn of(module: &str, name: &str) -> Option<Self> {
        let distributed = DISTRIBUTED.iter().find_map(|prefix| module.strip_prefix(prefix));
        if let Some(below) = distributed {
            return match (below, name) {
                ("" | ".api" | "._api", "DTensor") => Some(Self::DTensor),
                ("._dtensor_spec" | ".placement_types", "DTensorSpec") => Some(Self::DTensorSpec),
                ("._dtensor_spec" | ".placement_types", "TensorMeta") => Some(Self::TensorMeta),
                ("._dtensor_spec", "ShardOrderEntry") => Some(Self::Ignored),
                ("" | ".placement_types", "Shard") => Some(Self::Shard),
                ("" | ".placement_types", "Replicate") => Some(Self::Replicate),
                ("" | ".placement_types", "Partial" | "_Partial" | "_StridedShard" | "_MaskPartial") => {
                    Some(Self::OtherPlacement)
                }
                _ => None,
            };
        }
        match (module, name) {
            ("collections", "OrderedDict") => Some(Self::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Some(Self::RebuildTensor),
            ("torch._utils", "_rebuild_tensor_v3") => Some(Self::RebuildTensorTyped),
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => Some(Self::RebuildParameter),
            ("torch._tensor", "_rebuild_from_type_v2") => Some(Self::RebuildFromType),
            ("torch._utils", "_rebuild_wrapper_subclass") => Some(Self::RebuildWrapper),
            ("torch.distributed.device_mesh" | "torch.distributed._tensor.device_mesh", "DeviceMesh") => {
                Some(Self::DeviceMesh)
            }
            ("torch.distributed._mesh_layout", "_MeshLayout" | "_FlatLayout") => Some(Self::MeshLayout),
            ("torch", "Size") => Some(Self::Size),
            ("torch", "device") | ("torch.serialization", "_get_layout") => Some(Self::Ignored),
            ("torch.storage", "UntypedStorage") | ("torch", "UntypedStorage") => Some(Self::UntypedStorage),
            ("torch", storage) if storage.ends_with("Storage") => dtype_of_storage(storage).map(Self::Storage),
            ("torch", dtype) => dtype_of(dtype).map(Self::Type),
            _ => None,
        }
    }

    /// Whether a pickle may call it.
    pub(crate) fn is_callable(self) -> bool {
        matches!(
            self,
            Self::OrderedDict
                | Self::RebuildTensor
                | Self::RebuildTensorTyped
                | Self::RebuildParameter
                | Self::RebuildFromType
                | Self::RebuildWrapper
                | Self::Size
                | Self::Ignored
        )
    }

    /// Whether a pickle may make an object of it.
    pub(crate) fn is_class(self) -> bool {
        matches!(
            self,
            Self::DTensorSpec
                | Self::TensorMeta
                | Self::DeviceMesh
                | Self::MeshLayout
                | Self::Shard
                | Self::Replicate
                | Self::OtherPlacement
                | Self::Ignored
        )
    }
}

fn dtype_of_storage(name: &str) -> Option<Dtype> {
    Some(match name {
        "FloatStorage" => Dtype::F32,
        "BFloat16Storage" => Dtype::BF16,
        "HalfStorage" => Dtype::F16,
        "DoubleStorage" => Dtype::F64,
        "LongStorage" => Dtype::I64,
        "IntStorage" => Dtype::I32,
        "ShortStorage" => Dtype::I16,
        "CharStorage" => Dtype::I8,
        "ByteStorage" => Dtype::U8,
        "BoolStorage" => Dtype::BOOL,
        _ => return None,
    })
}

fn dtype_of(name: &str) -> Option<Dtype> {
    Some(match name {
        "float32" => Dtype::F32,
        "bfloat16" => Dtype::BF16,
        "float16" => Dtype::F16,
        "float64" => Dtype::F64,
        "int64" => Dtype::I64,
        "int32" => Dtype::I32,
        "int16" => Dtype::I16,
        "int8" => Dtype::I8,
        "uint8" => Dtype::U8,
        "bool" => Dtype::BOOL,
        _ => return None,
    })
}
