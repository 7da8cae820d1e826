//! Number types of weights: sizes, and from one to another.

use half::{bf16, f16};
use safetensors::Dtype;

use super::error::{Problem, unsupported};
use crate::settings::Number;

/// As safetensors call it.
pub(crate) fn stored(number: Number) -> Dtype {
    match number {
        Number::F32 => Dtype::F32,
        Number::Bf16 => Dtype::BF16,
        Number::F16 => Dtype::F16,
    }
}

/// The number type of a stored one, where weights may be computed in it.
pub(crate) fn number(dtype: Dtype) -> Option<Number> {
    match dtype {
        Dtype::F32 => Some(Number::F32),
        Dtype::BF16 => Some(Number::Bf16),
        Dtype::F16 => Some(Number::F16),
        _ => None,
    }
}

/// What `config.json` calls it.
pub(crate) fn config_name(number: Number) -> &'static str {
    match number {
        Number::F32 => "float32",
        Number::Bf16 => "bfloat16",
        Number::F16 => "float16",
    }
}

/// Bytes of one number; `None` for types whose numbers share bytes.
pub(crate) fn size_of(dtype: Dtype) -> Option<usize> {
    let bits = dtype.bitsize();
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Whether [`widen`] reads it.
pub(crate) fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16 | Dtype::F64)
}

/// Appends the numbers of `bytes` as float32. float64 is rounded.
///
/// # Panics
/// When `dtype` is no float, or `bytes` ends inside a number.
pub(crate) fn widen(dtype: Dtype, bytes: &[u8], to: &mut Vec<f32>) {
    let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
    assert!(size_of(dtype).is_some_and(|size| bytes.len().is_multiple_of(size)), "whole numbers");
    match dtype {
        Dtype::F32 => {
            to.extend(bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])))
        }
        Dtype::BF16 => to.extend(pairs().map(|pair| bf16::from_le_bytes(pair).to_f32())),
        Dtype::F16 => to.extend(pairs().map(|pair| f16::from_le_bytes(pair).to_f32())),
        Dtype::F64 => to.extend(
            bytes.chunks_exact(8).map(|eight| f64::from_le_bytes(eight.try_into().expect("eight bytes")) as f32),
        ),
        other => panic!("{other:?} is not read as a float"),
    }
}

/// Appends `values` in type `to`, rounded to nearest even; true where any of them changed.
///
/// # Errors
/// When a finite number is beyond float16's range: infinities would follow from it.
pub(crate) fn narrow(values: &[f32], to: Number, bytes: &mut Vec<u8>) -> Result<bool, Problem> {
    let mut rounded = false;
    match to {
        Number::F32 => values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes())),
        Number::Bf16 => {
            for value in values {
                let narrow = bf16::from_f32(*value);
                rounded |= narrow.to_f32() != *value && !value.is_nan();
                bytes.extend_from_slice(&narrow.to_le_bytes());
            }
        }
        Number::F16 => {
            for value in values {
                let narrow = f16::from_f32(*value);
                if narrow.is_infinite() && value.is_finite() {
                    return unsupported(format!("it holds {value}, beyond float16's range; use --dtype bf16 or f32"));
                }
                rounded |= narrow.to_f32() != *value && !value.is_nan();
                bytes.extend_from_slice(&narrow.to_le_bytes());
            }
        }
    }
    Ok(rounded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_there_and_back() {
        let values = [0.0, -1.5, 3.0e-5, 0.1];
        for (number, exact) in [(Number::F32, true), (Number::Bf16, false), (Number::F16, false)] {
            let mut bytes = Vec::new();
            assert_eq!(narrow(&values[..2], number, &mut bytes), Ok(false), "{number:?}");
            assert_eq!(narrow(&values[2..], number, &mut bytes), Ok(!exact), "{number:?}");
            let mut back = Vec::new();
            widen(stored(number), &bytes, &mut back);
            for (value, back) in values.iter().zip(&back) {
                assert!((value - back).abs() <= value.abs() * 0.004, "{number:?}: {value} became {back}");
            }
        }
    }

    #[test]
    fn float16_overflow_is_refused_not_made_infinite() {
        let mut bytes = Vec::new();
        assert!(narrow(&[70_000.0], Number::F16, &mut bytes).unwrap_err().to_string().contains("70000"));
        assert_eq!(narrow(&[f32::INFINITY], Number::F16, &mut bytes), Ok(false), "an infinity stays one");
    }
}
