//! What an expression is worth.

use std::f64::consts;

use super::Reason;
use super::effort::Effort;
use super::number::Rational;
use super::parse::Expr;

/// Points at which names are given values.
const POINTS: u64 = 4;
/// Numbers this close, relative to the larger or 1, are equal.
const TOLERANCE: f64 = 1e-9;

/// A number.
#[derive(Clone, Debug)]
enum Value {
    Exact(Rational),
    Approximate(f64),
}

impl Value {
    fn number(&self) -> f64 {
        match self {
            Self::Exact(exact) => exact.to_f64(),
            Self::Approximate(number) => *number,
        }
    }
}

/// Which sign `\pm` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Plus,
    Minus,
}

/// An expression with its signs chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Formula<'a> {
    pub(super) expr: &'a Expr,
    pub(super) sign: Sign,
    /// What may still be spent on it.
    pub(super) effort: &'a Effort,
}

/// Whether two formulas have the same value wherever they have one.
pub(super) fn equal(left: Formula<'_>, right: Formula<'_>) -> Result<bool, Reason> {
    let mut compared = false;
    for point in 0..POINTS {
        let (left, right) = (left.at(point)?, right.at(point)?);
        if let (Value::Exact(left), Value::Exact(right)) = (&left, &right) {
            return Ok(left == right);
        }
        let (left, right) = (left.number(), right.number());
        if left.is_nan() || right.is_nan() {
            continue;
        }
        if !close(left, right) {
            return Ok(false);
        }
        compared = true;
    }
    if compared { Ok(true) } else { Err(Reason::NotUnderstood) }
}

/// Whether `left = 0` and `right = 0` say the same: one is a constant multiple of the other.
pub(super) fn proportional(left: [Formula<'_>; 2], right: [Formula<'_>; 2]) -> Result<bool, Reason> {
    let mut ratio: Option<f64> = None;
    for point in 0..POINTS {
        let difference = |sides: [Formula<'_>; 2]| Ok(sides[0].at(point)?.number() - sides[1].at(point)?.number());
        let here = difference(left)? / difference(right)?;
        if !here.is_finite() || here == 0.0 {
            return Ok(false);
        }
        if ratio.is_some_and(|ratio| !close(ratio, here)) {
            return Ok(false);
        }
        ratio = Some(here);
    }
    Ok(ratio.is_some())
}

fn close(left: f64, right: f64) -> bool {
    left == right || (left - right).abs() <= TOLERANCE * left.abs().max(right.abs()).max(1.0)
}

impl Formula<'_> {
    fn at(self, point: u64) -> Result<Value, Reason> {
        let value = match self.expr {
            Expr::Number(number) => Value::Exact(number.clone()),
            Expr::Name(name) => Value::Approximate(named(name, point)),
            Expr::Infinity => Value::Approximate(f64::INFINITY),
            operation => evaluate(operation, self, point)?,
        };
        self.effort.spend(match &value {
            Value::Exact(exact) => exact.words(),
            Value::Approximate(_) => 1,
        })?;
        Ok(value)
    }
}

/// The value of an operation.
fn evaluate(expr: &Expr, formula: Formula<'_>, point: u64) -> Result<Value, Reason> {
    let sign = formula.sign;
    let of = |expr: &Expr| Formula { expr, ..formula }.at(point);
    Ok(match expr {
        Expr::Number(_) | Expr::Name(_) | Expr::Infinity => return Err(Reason::NotUnderstood),
        Expr::Negate(inner) => negate(&of(inner)?),
        Expr::Add(left, right) => add(&of(left)?, &of(right)?)?,
        Expr::PlusMinus(left, right) => {
            let second = of(right)?;
            add(&of(left)?, &if sign == Sign::Plus { second } else { negate(&second) })?
        }
        Expr::Multiply(left, right) => multiply(&of(left)?, &of(right)?)?,
        Expr::Divide(left, right) => divide(&of(left)?, &of(right)?)?,
        Expr::Power(base, exponent) => power(&of(base)?, &of(exponent)?)?,
        Expr::Root(inner, degree) => root(&of(inner)?, &of(degree)?),
        Expr::Call(name, inner) => call(name, &of(inner)?),
        Expr::Factorial(inner) => match of(inner)? {
            Value::Exact(exact) => exact.factorial()?.map_or(Value::Approximate(f64::NAN), Value::Exact),
            Value::Approximate(_) => return Err(Reason::NotUnderstood),
        },
        Expr::Binomial(above, below) => binomial(&of(above)?, &of(below)?, formula.effort)?,
    })
}

fn negate(value: &Value) -> Value {
    match value {
        Value::Exact(exact) => Value::Exact(exact.negate()),
        Value::Approximate(number) => Value::Approximate(-number),
    }
}

fn add(left: &Value, right: &Value) -> Result<Value, Reason> {
    Ok(match (left, right) {
        (Value::Exact(left), Value::Exact(right)) => Value::Exact(left.add(right)?),
        _ => Value::Approximate(left.number() + right.number()),
    })
}

fn multiply(left: &Value, right: &Value) -> Result<Value, Reason> {
    Ok(match (left, right) {
        (Value::Exact(left), Value::Exact(right)) => Value::Exact(left.multiply(right)?),
        _ => Value::Approximate(left.number() * right.number()),
    })
}

fn divide(left: &Value, right: &Value) -> Result<Value, Reason> {
    Ok(match (left, right) {
        (Value::Exact(left), Value::Exact(right)) => {
            left.divide(right)?.map_or(Value::Approximate(f64::NAN), Value::Exact)
        }
        _ => Value::Approximate(left.number() / right.number()),
    })
}

fn power(base: &Value, exponent: &Value) -> Result<Value, Reason> {
    if let (Value::Exact(base), Value::Exact(exponent)) = (base, exponent)
        && let Some(exact) = base.power(exponent)?
    {
        return Ok(Value::Exact(exact));
    }
    let (base, exponent) = (base.number(), exponent.number());
    let number = base.powf(exponent);
    // A tower of approximate numbers is as large as one of exact ones.
    if number.is_infinite() && base.is_finite() { Err(Reason::TooLarge) } else { Ok(Value::Approximate(number)) }
}

fn root(inner: &Value, degree: &Value) -> Value {
    let small = match degree {
        Value::Exact(degree) => degree.small(),
        Value::Approximate(_) => None,
    };
    if let (Value::Exact(inner), Some(degree)) = (inner, small)
        && let Some(exact) = inner.root(degree)
    {
        return Value::Exact(exact);
    }
    let (inner, degree) = (inner.number(), degree.number());
    let odd = small.is_some_and(|degree| degree % 2 == 1);
    Value::Approximate(if inner < 0.0 && odd { -(-inner).powf(1.0 / degree) } else { inner.powf(1.0 / degree) })
}

fn call(name: &str, inner: &Value) -> Value {
    if name == "abs"
        && let Value::Exact(exact) = inner
    {
        return Value::Exact(if exact.is_negative() { exact.negate() } else { exact.clone() });
    }
    let x = inner.number();
    Value::Approximate(match name {
        "abs" => x.abs(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tan" => x.tan(),
        "cot" => x.tan().recip(),
        "sec" => x.cos().recip(),
        "csc" => x.sin().recip(),
        "arcsin" => x.asin(),
        "arccos" => x.acos(),
        "arctan" => x.atan(),
        "exp" => x.exp(),
        "ln" | "log" => x.ln(),
        _ => f64::NAN,
    })
}

fn binomial(above: &Value, below: &Value, effort: &Effort) -> Result<Value, Reason> {
    let (Value::Exact(above), Value::Exact(below)) = (above, below) else { return Err(Reason::NotUnderstood) };
    let (Some(n), Some(k)) = (above.small(), below.small()) else { return Err(Reason::NotUnderstood) };
    if k > n {
        return Ok(Value::Exact(Rational::integer(0)));
    }
    let mut product = Rational::integer(1);
    for step in 1..=k.min(n - k) {
        let factor = Rational::integer(i64::from(n - k.min(n - k) + step));
        product =
            product.multiply(&factor)?.divide(&Rational::integer(i64::from(step)))?.ok_or(Reason::NotUnderstood)?;
        effort.spend(product.words())?;
    }
    Ok(Value::Exact(product))
}

/// A constant, or a fixed number in (0.3, 2.7) that depends on the name and the point.
fn named(name: &str, point: u64) -> f64 {
    match name {
        "pi" => consts::PI,
        "e" => consts::E,
        _ => {
            // FNV-1a, then a finaliser: near names get far numbers.
            let hash = name
                .bytes()
                .chain(point.to_le_bytes())
                .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
            let mixed = (hash ^ (hash >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            0.3 + 2.4 * ((mixed >> 11) as f64 / (1_u64 << 53) as f64)
        }
    }
}
