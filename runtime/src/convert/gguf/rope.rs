//! The rotary embedding's base and scaling.
//!
//! llama.cpp bakes Llama 3's scaling into a tensor of divisors, `rope_freqs.weight`; `config.json`
//! wants the parameters they came from (Llama 3.1's `rope_scaling`; the formula is that of
//! transformers' `_compute_llama3_parameters`). They are recovered from the divisors, and accepted
//! only if they give the same divisors again.

use std::f64::consts::TAU;

use serde_json::{Value, json};

use super::Gguf;
use crate::convert::error::{Problem, damaged, unsupported};

/// Divisors are stored in float32, computed from float32 frequencies.
const TOLERANCE: f64 = 2e-4;
/// Where the divisors leave the scale open, Llama's own.
const LOW_FREQ_FACTOR: f64 = 1.0;
const HIGH_FREQ_FACTOR: f64 = 4.0;
const ORIGINAL_CONTEXT: f64 = 8192.0;

/// Base and scaling.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rope {
    theta: f64,
    scaling: Scaling,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scaling {
    None,
    Linear { factor: f64 },
    Yarn { factor: f64, original: Option<u64> },
    Llama3(Llama3),
}

/// Llama 3.1's scaling.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Llama3 {
    factor: f64,
    low: f64,
    high: f64,
    original: f64,
}

impl Llama3 {
    /// What the frequency of `wavelength` is divided by.
    fn divisor(&self, wavelength: f64) -> f64 {
        if wavelength < self.original / self.high {
            1.0
        } else if wavelength > self.original / self.low {
            self.factor
        } else {
            let smooth = (self.original / wavelength - self.low) / (self.high - self.low);
            1.0 / ((1.0 - smooth) / self.factor + smooth)
        }
    }
}

impl Rope {
    /// Reads what metadata and `rope_freqs.weight` say of the family `key`.
    ///
    /// # Errors
    /// For a scaling that has no name, or divisors that are not Llama 3's.
    pub(super) fn read(file: &Gguf<'_>, key: &str, head_dim: usize, context: usize) -> Result<Self, Problem> {
        let number = |name: &str| file.number(&format!("{key}.rope.{name}"));
        let theta = number("freq_base")?.unwrap_or(10_000.0);
        if theta <= 0.0 {
            return damaged(format!("metadata `{key}.rope.freq_base` = {theta}: must be positive"));
        }
        let kind = file.text(&format!("{key}.rope.scaling.type"))?;
        let factor = number("scaling.factor")?.or(number("scale_linear")?).filter(|factor| *factor > 0.0);
        let named = match (kind, factor) {
            (None, None) | (Some("none"), _) => Scaling::None,
            (None, Some(1.0)) | (Some("linear"), Some(1.0) | None) => Scaling::None,
            (None | Some("linear"), Some(factor)) => Scaling::Linear { factor },
            (Some("yarn"), Some(factor)) => {
                let original = file.count(&format!("{key}.rope.scaling.original_context_length"))?;
                Scaling::Yarn { factor, original }
            }
            (Some(kind), _) => {
                return unsupported(format!(
                    "metadata `{key}.rope.scaling.type` = `{kind}`; supported: none, linear, yarn with a factor"
                ));
            }
        };
        let scaling = match file.tensors.get("rope_freqs.weight") {
            None => named,
            Some(_) if named != Scaling::None => {
                return unsupported("both `rope_freqs.weight` and a rotary scaling by name");
            }
            Some(tensor) => {
                if tensor.shape != [head_dim / 2] {
                    let expected = head_dim / 2;
                    return damaged(format!("`rope_freqs.weight` has shape {:?}, not [{expected}]", tensor.shape));
                }
                let mut divisors = Vec::new();
                tensor.encoding.decode(tensor.bytes, &mut divisors);
                recover(&divisors, theta, context as f64)?.map_or(Scaling::None, Scaling::Llama3)
            }
        };
        Ok(Self { theta, scaling })
    }

    /// `rope_theta`.
    pub(super) fn theta(&self) -> f64 {
        self.theta
    }

    /// `rope_scaling`.
    pub(super) fn scaling(&self) -> Value {
        match self.scaling {
            Scaling::None => Value::Null,
            Scaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
            Scaling::Yarn { factor, original: None } => json!({"rope_type": "yarn", "factor": factor}),
            Scaling::Yarn { factor, original: Some(original) } => {
                json!({"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original})
            }
            Scaling::Llama3(Llama3 { factor, low, high, original }) => json!({
                "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                "original_max_position_embeddings": whole(original),
            }),
        }
    }

    /// What a person should know.
    pub(super) fn note(&self) -> Option<String> {
        let name = match self.scaling {
            Scaling::None | Scaling::Llama3(_) => return None,
            Scaling::Linear { .. } => "linear",
            Scaling::Yarn { .. } => "yarn",
        };
        Some(format!("the model has rope type `{name}`, which other tools compute and this runtime does not"))
    }
}

/// A whole number without its point.
fn whole(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { json!(number as u64) } else { json!(number) }
}

/// Llama 3's parameters from their divisors, `None` where all are 1.
///
/// With `s` the blend at a wavelength `w`: `1/divisor = (1-s)/factor + s` and
/// `s = (original/w - low) / (high - low)`, a line in `1/w`. `low` is free (all three may be
/// multiplied by one number) and taken as 1.
fn recover(divisors: &[f32], theta: f64, context: f64) -> Result<Option<Llama3>, Problem> {
    let divisors: Vec<f64> = divisors.iter().map(|&divisor| f64::from(divisor)).collect();
    if divisors.iter().any(|divisor| !divisor.is_finite() || *divisor < 1.0 - TOLERANCE) {
        return unsupported("`rope_freqs.weight` holds divisors below 1; supported are those of rope type `llama3`");
    }
    let head_dim = 2.0 * divisors.len() as f64;
    let wavelengths: Vec<f64> =
        (0..divisors.len()).map(|index| TAU * theta.powf(2.0 * index as f64 / head_dim)).collect();
    let factor = divisors.iter().copied().fold(1.0, f64::max);
    if factor < 1.0 + TOLERANCE {
        return Ok(None);
    }
    let pairs = || wavelengths.iter().copied().zip(divisors.iter().copied());
    let blended: Vec<(f64, f64)> = pairs()
        .filter(|(_, divisor)| (1.0 + TOLERANCE..factor * (1.0 - TOLERANCE)).contains(divisor))
        .map(|(wavelength, divisor)| (1.0 / wavelength, (1.0 / divisor - 1.0 / factor) / (1.0 - 1.0 / factor)))
        .collect();

    let rounded = factor.round();
    let factor = if (factor - rounded).abs() < TOLERANCE * factor { rounded } else { factor };
    let mut candidates = vec![ORIGINAL_CONTEXT, context / factor, context];
    let standard = |original| Llama3 { factor, low: LOW_FREQ_FACTOR, high: HIGH_FREQ_FACTOR, original };
    let mut tried: Vec<Llama3> = candidates.drain(..).map(standard).collect();
    if let (Some(&(x1, s1)), Some(&(x2, s2))) = (blended.first(), blended.last())
        && x1 != x2
    {
        // s = a·x − b; with low = 1: high = 1 + 1/b, original = a/b.
        let a = (s1 - s2) / (x1 - x2);
        let b = a * x1 - s1;
        for (high, original) in [((1.0 + 1.0 / b).round(), (a / b).round()), (1.0 + 1.0 / b, a / b)] {
            tried.push(Llama3 { factor, low: LOW_FREQ_FACTOR, high, original });
        }
    } else if let Some(&(x, s)) = blended.first() {
        let original = (LOW_FREQ_FACTOR + s * (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)) / x;
        tried.extend([standard(original.round()), standard(original)]);
    } else {
        // A step: anything between the last kept and the first stretched wavelength.
        let kept = pairs().filter(|pair| pair.1 < 1.0 + TOLERANCE).map(|pair| pair.0).fold(TAU / 2.0, f64::max);
        let stretched = pairs().filter(|pair| pair.1 > 1.0 + TOLERANCE).map(|pair| pair.0).fold(f64::MAX, f64::min);
        let original = (kept * stretched).sqrt();
        let high = 1.0 + (original / kept - 1.0) / 2.0;
        tried.push(Llama3 { factor, low: LOW_FREQ_FACTOR, high, original });
    }
    let fits = |scaling: &Llama3| {
        scaling.high > scaling.low
            && scaling.original > 0.0
            && pairs().all(|(wavelength, divisor)| (scaling.divisor(wavelength) / divisor - 1.0).abs() < TOLERANCE)
    };
    tried.iter().copied().find(fits).map_or_else(
        || unsupported("`rope_freqs.weight` does not hold the divisors of rope type `llama3`, the one supported"),
        |found| Ok(Some(found)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divisors(scaling: Llama3, theta: f64, head_dim: usize) -> Vec<f32> {
        let wavelength = |index: usize| TAU * theta.powf(2.0 * index as f64 / head_dim as f64);
        (0..head_dim / 2).map(|index| scaling.divisor(wavelength(index)) as f32).collect()
    }

    #[test]
    fn llama_parameters_come_back_from_their_divisors() {
        let published = Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        for (scaling, theta, head_dim) in [
            (published, 500_000.0, 128),
            (Llama3 { factor: 32.0, ..published }, 500_000.0, 64),
            (Llama3 { original: 32.0, ..published }, 10_000.0, 16),
            (Llama3 { high: 8.0, original: 4096.0, ..published }, 500_000.0, 128),
        ] {
            let found = recover(&divisors(scaling, theta, head_dim), theta, 131_072.0).unwrap().unwrap();
            let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
            assert!(near(found.factor, scaling.factor) && near(found.high, scaling.high), "{found:?} for {scaling:?}");
            assert!(near(found.original, scaling.original), "{found:?} for {scaling:?}");
        }
    }

    #[test]
    fn a_common_multiple_of_low_high_and_original_is_the_same_scaling() {
        let doubled = Llama3 { factor: 8.0, low: 2.0, high: 8.0, original: 16384.0 };
        let found = recover(&divisors(doubled, 5e5, 128), 5e5, 131_072.0).unwrap().unwrap();
        assert_eq!(found, Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 });
    }

    #[test]
    fn other_divisors_are_refused_and_ones_are_none() {
        assert_eq!(recover(&[1.0; 32], 1e4, 8192.0), Ok(None));
        let long: Vec<f32> = (0..32).map(|index| 1.0 + index as f32 * 0.3).collect();
        assert!(recover(&long, 1e4, 8192.0).unwrap_err().to_string().contains("llama3"));
        assert!(recover(&[f32::NAN], 1e4, 8192.0).is_err());
    }

    #[test]
    fn a_step_without_a_blend_is_reproduced() {
        let steps = [1.0, 1.0, 8.0, 8.0];
        let found = recover(&steps, 1e6, 64.0).unwrap().unwrap();
        assert_eq!(divisors(found, 1e6, 8), steps);
    }
}
