//! Rationals of bounded size.

use num_bigint::{BigInt, Sign};
use num_integer::Integer;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::Reason;

/// Bits a numerator or denominator may have.
const MOST_BITS: u64 = 8192;

/// A fraction in lowest terms, its denominator positive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rational {
    numerator: BigInt,
    denominator: BigInt,
}

impl Rational {
    pub(super) fn integer(value: i64) -> Self {
        Self { numerator: value.into(), denominator: One::one() }
    }

    /// A decimal such as `12.50` or `1.5e3`: digits, at most one point, an exponent.
    pub(super) fn decimal(text: &str) -> Result<Self, Reason> {
        let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        if digits.len() as u64 > MOST_BITS / 4 {
            return Err(Reason::TooLarge);
        }
        let exponent: i64 = exponent.parse().map_err(|_| Reason::TooLarge)?;
        if exponent.unsigned_abs() > MOST_BITS / 4 {
            return Err(Reason::TooLarge);
        }
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let numerator = format!("{whole}{fraction}");
        let numerator = BigInt::parse_bytes(numerator.as_bytes(), 10).ok_or(Reason::NotUnderstood)?;
        let shift = exponent - fraction.len() as i64;
        let power = num_traits::pow(BigInt::from(10), shift.unsigned_abs() as usize);
        let value = if shift < 0 { Self::new(numerator, power)? } else { Self::new(numerator * power, One::one())? };
        value.ok_or(Reason::NotUnderstood)
    }

    /// `digits` with `places` behind the point, then the `period` for ever.
    pub(super) fn repeating(digits: &str, (places, period): (usize, &str)) -> Result<Self, Reason> {
        if (places + period.len()) as u64 > MOST_BITS / 8 || period.contains(['.', 'e', 'E']) {
            return Err(Reason::TooLarge);
        }
        // p/(10^n − 1), moved behind the places.
        let ten = |power| num_traits::pow(BigInt::from(10), power);
        let period_value = BigInt::parse_bytes(period.as_bytes(), 10).ok_or(Reason::NotUnderstood)?;
        let tail = Self::new(period_value, (ten(period.len()) - 1) * ten(places))?.ok_or(Reason::NotUnderstood)?;
        Self::decimal(digits)?.add(&tail)
    }

    /// `None` for a denominator of 0.
    fn new(numerator: BigInt, denominator: BigInt) -> Result<Option<Self>, Reason> {
        if numerator.bits() > 4 * MOST_BITS || denominator.bits() > 4 * MOST_BITS {
            return Err(Reason::TooLarge);
        }
        if denominator.is_zero() {
            return Ok(None);
        }
        let common = numerator.gcd(&denominator);
        let (mut numerator, mut denominator) = (numerator / &common, denominator / &common);
        if denominator.sign() == Sign::Minus {
            (numerator, denominator) = (-numerator, -denominator);
        }
        if numerator.bits() > MOST_BITS || denominator.bits() > MOST_BITS {
            return Err(Reason::TooLarge);
        }
        Ok(Some(Self { numerator, denominator }))
    }

    pub(super) fn add(&self, other: &Self) -> Result<Self, Reason> {
        let numerator = &self.numerator * &other.denominator + &other.numerator * &self.denominator;
        Ok(Self::new(numerator, &self.denominator * &other.denominator)?.unwrap_or_else(|| Self::integer(0)))
    }

    pub(super) fn multiply(&self, other: &Self) -> Result<Self, Reason> {
        let product = Self::new(&self.numerator * &other.numerator, &self.denominator * &other.denominator)?;
        Ok(product.unwrap_or_else(|| Self::integer(0)))
    }

    /// `None` for a division by 0.
    pub(super) fn divide(&self, other: &Self) -> Result<Option<Self>, Reason> {
        Self::new(&self.numerator * &other.denominator, &self.denominator * &other.numerator)
    }

    /// A whole power; `None` for another exponent, and for 0 to a negative one.
    pub(super) fn power(&self, exponent: &Self) -> Result<Option<Self>, Reason> {
        if !exponent.denominator.is_one() {
            return Ok(None);
        }
        let size = self.numerator.bits().max(self.denominator.bits());
        let trivial = self.numerator.is_zero() || (self.numerator.magnitude().is_one() && self.denominator.is_one());
        let Some(times) =
            exponent.numerator.abs().to_u64().filter(|times| trivial || times.saturating_mul(size) <= 2 * MOST_BITS)
        else {
            return Err(Reason::TooLarge);
        };
        let times = if trivial && times > 2 { 2 + times % 2 } else { times } as usize;
        let (above, below) =
            (num_traits::pow(self.numerator.clone(), times), num_traits::pow(self.denominator.clone(), times));
        if exponent.numerator.is_negative() { Self::new(below, above) } else { Self::new(above, below) }
    }

    /// The exact root, where there is one.
    pub(super) fn root(&self, degree: u32) -> Option<Self> {
        if degree == 0 || (self.numerator.is_negative() && degree.is_multiple_of(2)) {
            return None;
        }
        let exact = |value: &BigInt| {
            let root = value.nth_root(degree);
            (num_traits::pow(root.clone(), degree as usize) == *value).then_some(root)
        };
        Some(Self { numerator: exact(&self.numerator)?, denominator: exact(&self.denominator)? })
    }

    /// The factorial of a small whole number.
    pub(super) fn factorial(&self) -> Result<Option<Self>, Reason> {
        if !self.denominator.is_one() || self.numerator.is_negative() {
            return Ok(None);
        }
        match self.numerator.to_u64() {
            Some(number @ 0..=800) => {
                let product = (1..=number).fold(BigInt::one(), |product, factor| product * factor);
                Self::new(product, One::one())
            }
            _ => Err(Reason::TooLarge),
        }
    }

    pub(super) fn negate(&self) -> Self {
        Self { numerator: -&self.numerator, denominator: self.denominator.clone() }
    }

    pub(super) fn is_negative(&self) -> bool {
        self.numerator.is_negative()
    }

    pub(super) fn to_f64(&self) -> f64 {
        // Scaled so that neither side overflows.
        let shift = self.numerator.bits().max(self.denominator.bits()).saturating_sub(1000);
        let part = |value: &BigInt| (value >> shift).to_f64().unwrap_or(f64::NAN);
        part(&self.numerator) / part(&self.denominator)
    }

    /// Machine words of its longer side.
    pub(super) fn words(&self) -> u64 {
        self.numerator.bits().max(self.denominator.bits()).div_ceil(64)
    }

    /// The whole number it is, if it is a small one.
    pub(super) fn small(&self) -> Option<u32> {
        self.denominator.is_one().then(|| self.numerator.to_u32()).flatten()
    }
}
