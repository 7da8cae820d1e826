//! Row-wise steps between the matrix products.

use super::vector::{LANES, Vector, eight, eight_mut};

/// `out = x / rms(x) · weight`, over rows as long as `weight`.
#[inline(always)]
pub(super) fn rms_norm<V: Vector>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        let scale = V::splat(inverse_rms::<V>(x, eps));
        for at in (0..x.len()).step_by(LANES) {
            let normal = V::load(eight(x, at)).mul(scale).mul(V::load(eight(weight, at)));
            normal.store(eight_mut(out, at));
        }
    }
}

#[inline(always)]
fn inverse_rms<V: Vector>(x: &[f32], eps: f32) -> f32 {
    let mut squares = V::splat(0.0);
    for at in (0..x.len()).step_by(LANES) {
        let part = V::load(eight(x, at));
        squares = part.fma(part, squares);
    }
    1.0 / (squares.sum() / x.len() as f32 + eps).sqrt()
}

/// One head in place: `x / rms(x) · weight` where there is a norm, then its first dimensions
/// rotated. `angles` holds cos, then sin with its first half negated, each as long as what is
/// rotated.
#[inline(always)]
pub(super) fn norm_rotate<V: Vector>(x: &mut [f32], norm: Option<(&[f32], f32)>, angles: &[f32]) {
    let (cos, signed_sin) = angles.split_at(angles.len() / 2);
    let half = cos.len() / 2;
    let scale = V::splat(norm.map_or(1.0, |(_, eps)| inverse_rms::<V>(x, eps)));
    if let Some((weight, _)) = norm {
        for at in (cos.len()..x.len()).step_by(LANES) {
            V::load(eight(x, at)).mul(scale).mul(V::load(eight(weight, at))).store(eight_mut(x, at));
        }
    }
    for at in (0..half).step_by(LANES) {
        let mut parts = [V::load(eight(x, at)), V::load(eight(x, at + half))];
        if let Some((weight, _)) = norm {
            parts[0] = parts[0].mul(scale).mul(V::load(eight(weight, at)));
            parts[1] = parts[1].mul(scale).mul(V::load(eight(weight, at + half)));
        }
        for (place, part, other) in [(at, parts[0], parts[1]), (at + half, parts[1], parts[0])] {
            let turned = other.mul(V::load(eight(signed_sin, place)));
            part.fma(V::load(eight(cos, place)), turned).store(eight_mut(x, place));
        }
    }
}

/// `out = silu(gate) · up`, over rows of gate and up side by side.
#[inline(always)]
pub(super) fn silu_mul<V: Vector>(gate_up: &[f32], width: usize, out: &mut [f32]) {
    for (row, out) in gate_up.chunks_exact(2 * width).zip(out.chunks_exact_mut(width)) {
        for at in (0..width).step_by(LANES) {
            let (gate, up) = (V::load(eight(row, at)), V::load(eight(row, at + width)));
            let one = V::splat(1.0);
            let silu = gate.div(one.add(V::splat(0.0).sub(gate).exp()));
            silu.mul(up).store(eight_mut(out, at));
        }
    }
}
