//! Eight float32 lanes: AVX2 where the CPU has it, arrays elsewhere.

/// Lanes of a [`Vector`].
pub(super) const LANES: usize = 8;

/// Eight numbers worked on together.
pub(super) trait Vector: Copy {
    fn splat(value: f32) -> Self;
    fn load(from: &[f32; LANES]) -> Self;
    fn store(self, to: &mut [f32; LANES]);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    /// `self · factor + term`.
    fn fma(self, factor: Self, term: Self) -> Self;
    /// To the nearest whole numbers.
    fn round(self) -> Self;
    /// 2 to the power of whole numbers from −126 to 127.
    fn power_of_two(self) -> Self;
    /// The sum of each of eight vectors.
    fn sums(vectors: [Self; LANES]) -> Self;

    #[inline(always)]
    fn lanes(self) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        lanes
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let l = self.lanes();
        ((l[0] + l[4]) + (l[1] + l[5])) + ((l[2] + l[6]) + (l[3] + l[7]))
    }

    /// eˣ to about 1e-7 relative, for x in [−87, 88] and cut there: x is split into a whole number
    /// of ln 2 and a remainder, whose power is a polynomial (coefficients of Cephes' `expf`).
    #[inline(always)]
    fn exp(self) -> Self {
        let x = self.max(Self::splat(-87.0)).min(Self::splat(88.0));
        let whole = x.mul(Self::splat(std::f32::consts::LOG2_E)).round();
        let rest = whole.fma(Self::splat(-355.0 / 512.0), x);
        let rest = whole.fma(Self::splat(2.121_944_4e-4), rest);
        let mut power = Self::splat(1.987_569_1e-4);
        for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            power = power.fma(rest, Self::splat(coefficient));
        }
        let power = power.fma(rest.mul(rest), rest.add(Self::splat(1.0)));
        power.mul(whole.power_of_two())
    }
}

/// The eight numbers from `at` on.
#[inline(always)]
pub(super) fn eight(from: &[f32], at: usize) -> &[f32; LANES] {
    from[at..at + LANES].first_chunk().expect("eight numbers")
}

/// The eight numbers from `at` on, to be written.
#[inline(always)]
pub(super) fn eight_mut(from: &mut [f32], at: usize) -> &mut [f32; LANES] {
    from[at..at + LANES].first_chunk_mut().expect("eight numbers")
}

/// Lanes as an array, for CPUs without AVX2.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, of: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| of(self.0[lane], other.0[lane])))
    }
}

impl Vector for Portable {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        Self(*from)
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn fma(self, factor: Self, term: Self) -> Self {
        self.mul(factor).add(term)
    }
    #[inline(always)]
    fn round(self) -> Self {
        Self(self.0.map(f32::round_ties_even))
    }
    #[inline(always)]
    fn power_of_two(self) -> Self {
        Self(self.0.map(|whole| f32::from_bits(((whole as i32 + 127) as u32) << 23)))
    }
    #[inline(always)]
    fn sums(vectors: [Self; LANES]) -> Self {
        Self(vectors.map(Self::sum))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx::Avx;

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector instructions the compiler does not choose by itself")]
mod avx {
    use std::arch::x86_64::*;

    use super::{LANES, Vector};

    /// Lanes of AVX2 with FMA. Only functions compiled for both, and entered after
    /// [`Avx::available`], may use it.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx(__m256);

    impl Avx {
        pub(in super::super) fn available() -> bool {
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
        }
    }

    // SAFETY of every block: the instructions exist (see `Avx`), and loads and stores go through
    // references to arrays of their exact size.
    impl Vector for Avx {
        #[inline(always)]
        fn splat(value: f32) -> Self {
            Self(unsafe { _mm256_set1_ps(value) })
        }
        #[inline(always)]
        fn load(from: &[f32; LANES]) -> Self {
            Self(unsafe { _mm256_loadu_ps(from.as_ptr()) })
        }
        #[inline(always)]
        fn store(self, to: &mut [f32; LANES]) {
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), self.0) }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(unsafe { _mm256_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            Self(unsafe { _mm256_sub_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            Self(unsafe { _mm256_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            Self(unsafe { _mm256_div_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            Self(unsafe { _mm256_max_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            Self(unsafe { _mm256_min_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn fma(self, factor: Self, term: Self) -> Self {
            Self(unsafe { _mm256_fmadd_ps(self.0, factor.0, term.0) })
        }
        #[inline(always)]
        fn round(self) -> Self {
            Self(unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
        }
        #[inline(always)]
        fn power_of_two(self) -> Self {
            unsafe {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
                Self(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
            }
        }
        #[inline(always)]
        fn sums(v: [Self; LANES]) -> Self {
            unsafe {
                let pairs = |a: Self, b: Self, c: Self, d: Self| {
                    _mm256_hadd_ps(_mm256_hadd_ps(a.0, b.0), _mm256_hadd_ps(c.0, d.0))
                };
                let (low, high) = (pairs(v[0], v[1], v[2], v[3]), pairs(v[4], v[5], v[6], v[7]));
                let (lower, upper) =
                    (_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high));
                Self(_mm256_add_ps(lower, upper))
            }
        }
    }
}
