//! Two answers, each in all the ways it can be read.

use super::clean::{clean, ungrouped, without_currency, without_unit, words};
use super::effort::Effort;
use super::parse::{Answer, Expr, parse};
use super::value::{Formula, Sign, equal, proportional};
use super::{Reason, Verdict};

/// Units that have several names; two different ones are different answers.
const UNITS: [&[&str]; 18] = [
    &["mm", "millimeter", "millimetre"],
    &["cm", "centimeter", "centimetre"],
    &["m", "meter", "metre"],
    &["km", "kilometer", "kilometre"],
    &["in", "inch", "inches"],
    &["ft", "foot", "feet"],
    &["mi", "mile"],
    &["s", "sec", "second"],
    &["min", "minute"],
    &["h", "hr", "hour"],
    &["g", "gram"],
    &["kg", "kilogram"],
    &["circ", "degree", "deg"],
    &["circc", "celsius"],
    &["circf", "fahrenheit"],
    &["%", "percent"],
    &["cent"],
    &["dollar"],
];

/// The verdict on two texts that are not equal as they are.
pub(super) fn compare(answer: &str, label: &str) -> Verdict {
    let (answer, label) = (clean(answer), clean(label));
    if answer == label {
        return Verdict::Right;
    }
    if let (Some(answer), Some(label)) = (words(&answer), words(&label))
        && answer == label
    {
        return Verdict::Right;
    }
    let units = [&answer, &label].map(|text| without_unit(text).and_then(|(_, unit)| known(&unit)));
    if let [Some(left), Some(right)] = units
        && left != right
    {
        return Verdict::Wrong;
    }
    let percent = known("%");
    let read = |text: &str, scaled: bool| readings(text, scaled);
    let answers = read(&answer, units[0] == percent && units[1] != percent);
    let labels = read(&label, units[1] == percent && units[0] != percent);
    let effort = &Effort::new();
    let mut decided = false;
    let mut limit = None;
    for left in &answers {
        for right in &labels {
            let same = match (left, right) {
                (Ok(left), Ok(right)) => same(left, right, effort),
                (Err(reason), _) | (_, Err(reason)) => Err(*reason),
            };
            match same {
                Ok(true) => return Verdict::Right,
                Ok(false) => decided = true,
                Err(Reason::NotUnderstood) => {}
                Err(reason) => limit = Some(reason),
            }
        }
    }
    let plain = |text: &str| !text.contains('\\');
    match limit {
        Some(reason) => Verdict::Ungradable(reason),
        None if decided => Verdict::Wrong,
        // Two different texts without mathematics in them, or none that could be the label's value.
        None if plain(&answer) && plain(&label) && !answer.contains(&label) => Verdict::Wrong,
        None => Verdict::Ungradable(Reason::NotUnderstood),
    }
}

/// Which of [`UNITS`] it is, and to which power.
fn known(unit: &str) -> Option<(usize, u8)> {
    let powers = [("squared", 2), ("square", 2), ("cubic", 3), ("2", 2), ("3", 3)];
    let raised = powers.iter().find_map(|(word, power)| {
        let base = unit.strip_suffix(word).or_else(|| unit.strip_prefix(word))?;
        (!base.is_empty()).then_some((base, *power))
    });
    let (base, power) = raised.unwrap_or((unit, 1));
    let singular = base.trim_end_matches('s');
    let place = UNITS.iter().position(|names| names.iter().any(|name| *name == base || *name == singular))?;
    Some((place, power))
}

type Reading = Result<Answer, Reason>;

/// The text as it is, without its unit or currency, without its thousands separators.
fn readings(text: &str, percent: bool) -> Vec<Reading> {
    let mut texts = vec![text.to_owned()];
    texts.extend(without_currency(text));
    for at in 0..texts.len() {
        if let Some((value, unit)) = without_unit(&texts[at])
            && (known(&unit).is_some() || unit.chars().count() > 3)
        {
            if percent {
                texts.push(format!("({value})/100"));
            }
            texts.push(value);
        }
    }
    for at in 0..texts.len() {
        texts.extend(ungrouped(&texts[at]));
    }
    texts.iter().map(|text| parse(text)).collect()
}

fn same(left: &Answer, right: &Answer, effort: &Effort) -> Result<bool, Reason> {
    match (left, right) {
        (Answer::Value(left), Answer::Value(right)) => same_value(left, right, effort),
        (Answer::Relation(relations, sides), Answer::Relation(others, other_sides)) => {
            let (left, right) = (forwards(relations, sides), forwards(others, other_sides));
            same_relation((&left.0, &left.1), (&right.0, &right.1), effort)
        }
        // `x = 5` answers 5, and `1 < x < 2` is an interval.
        (Answer::Relation(relations, sides), other) | (other, Answer::Relation(relations, sides)) => {
            match (relations.iter().all(|relation| relation == "="), sides.last(), interval(relations, sides)) {
                (true, Some(value), _) => same(&Answer::Value(value.clone()), other, effort),
                (_, _, Some(interval)) => same(&interval, other, effort),
                _ => Ok(false),
            }
        }
        (Answer::Group(open, close, left), Answer::Group(other_open, other_close, right)) => {
            Ok((open, close) == (other_open, other_close) && in_order(left, right, effort)?)
        }
        (Answer::Set(left), Answer::Set(right)) => any_order(&signs_apart(left), &signs_apart(right), effort),
        // Brackets forgotten around a point.
        (Answer::Group('(', ')', group), Answer::Set(set)) | (Answer::Set(set), Answer::Group('(', ')', group)) => {
            in_order(group, set, effort)
        }
        (Answer::Set(set), value @ Answer::Value(_)) | (value @ Answer::Value(_), Answer::Set(set)) => {
            any_order(&signs_apart(set), &signs_apart(std::slice::from_ref(value)), effort)
        }
        (Answer::Union(left), Answer::Union(right)) => any_order(left, right, effort),
        (Answer::Matrix(left), Answer::Matrix(right)) => {
            if left.len() != right.len() || left.iter().zip(right).any(|(left, right)| left.len() != right.len()) {
                return Ok(false);
            }
            all(left.iter().flatten().zip(right.iter().flatten()).map(|(left, right)| same_value(left, right, effort)))
        }
        _ => Ok(false),
    }
}

fn all(equal: impl Iterator<Item = Result<bool, Reason>>) -> Result<bool, Reason> {
    for equal in equal {
        if !equal? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// With both signs of `\pm`, which must agree as two values do.
fn same_value(left: &Expr, right: &Expr, effort: &Effort) -> Result<bool, Reason> {
    let with = |expr, sign| Formula { expr, sign, effort };
    let straight = all([Sign::Plus, Sign::Minus].map(|sign| equal(with(left, sign), with(right, sign))).into_iter())?;
    if straight || !(has_both_signs(left) && has_both_signs(right)) {
        return Ok(straight);
    }
    let crossed = [(Sign::Plus, Sign::Minus), (Sign::Minus, Sign::Plus)];
    all(crossed.map(|(one, other)| equal(with(left, one), with(right, other))).into_iter())
}

fn has_both_signs(expr: &Expr) -> bool {
    match expr {
        Expr::PlusMinus(..) => true,
        Expr::Number(_) | Expr::Name(_) | Expr::Infinity => false,
        Expr::Negate(inner) | Expr::Factorial(inner) | Expr::Call(_, inner) => has_both_signs(inner),
        Expr::Add(left, right)
        | Expr::Multiply(left, right)
        | Expr::Divide(left, right)
        | Expr::Power(left, right)
        | Expr::Root(left, right)
        | Expr::Binomial(left, right) => has_both_signs(left) || has_both_signs(right),
    }
}

/// `±a` among several answers is two of them.
fn signs_apart(items: &[Answer]) -> Vec<Answer> {
    let mut apart = Vec::new();
    for item in items {
        match item {
            Answer::Value(expr) if has_both_signs(expr) => {
                apart.extend([Sign::Plus, Sign::Minus].map(|sign| Answer::Value(signed(expr, sign))));
            }
            other => apart.push(other.clone()),
        }
    }
    apart
}

fn signed(expr: &Expr, sign: Sign) -> Expr {
    let of = |expr: &Expr| Box::new(signed(expr, sign));
    match expr {
        Expr::PlusMinus(left, right) => {
            let right = of(right);
            Expr::Add(of(left), if sign == Sign::Plus { right } else { Expr::Negate(right).into() })
        }
        Expr::Number(_) | Expr::Name(_) | Expr::Infinity => expr.clone(),
        Expr::Negate(inner) => Expr::Negate(of(inner)),
        Expr::Factorial(inner) => Expr::Factorial(of(inner)),
        Expr::Call(name, inner) => Expr::Call(name.clone(), of(inner)),
        Expr::Add(left, right) => Expr::Add(of(left), of(right)),
        Expr::Multiply(left, right) => Expr::Multiply(of(left), of(right)),
        Expr::Divide(left, right) => Expr::Divide(of(left), of(right)),
        Expr::Power(left, right) => Expr::Power(of(left), of(right)),
        Expr::Root(left, right) => Expr::Root(of(left), of(right)),
        Expr::Binomial(left, right) => Expr::Binomial(of(left), of(right)),
    }
}

fn in_order(left: &[Answer], right: &[Answer], effort: &Effort) -> Result<bool, Reason> {
    Ok(left.len() == right.len() && all(left.iter().zip(right).map(|(left, right)| same(left, right, effort)))?)
}

/// Each of the one is one of the other.
fn any_order(left: &[Answer], right: &[Answer], effort: &Effort) -> Result<bool, Reason> {
    if left.len() != right.len() {
        return Ok(false);
    }
    let mut free: Vec<&Answer> = right.iter().collect();
    for item in left {
        let mut found = None;
        for (at, other) in free.iter().enumerate() {
            if same(item, other, effort)? {
                found = Some(at);
                break;
            }
        }
        match found {
            Some(at) => drop(free.swap_remove(at)),
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// With `>` turned to `<`.
fn forwards(relations: &[String], sides: &[Expr]) -> (Vec<String>, Vec<Expr>) {
    if relations.iter().any(|relation| relation.starts_with('>')) {
        let turned = relations.iter().rev().map(|relation| relation.replace('>', "<")).collect();
        return (turned, sides.iter().rev().cloned().collect());
    }
    (relations.to_vec(), sides.to_vec())
}

type Relation<'a> = (&'a [String], &'a [Expr]);

fn same_relation(left: Relation<'_>, right: Relation<'_>, effort: &Effort) -> Result<bool, Reason> {
    if left.0 != right.0 {
        return Ok(false);
    }
    if all(left.1.iter().zip(right.1).map(|(left, right)| same_value(left, right, effort)))? {
        return Ok(true);
    }
    match (left.1, right.1) {
        ([left_one, left_other], [right_one, right_other]) if left.0 == ["="] => {
            let of = |expr| Formula { expr, sign: Sign::Plus, effort };
            proportional([of(left_one), of(left_other)], [of(right_one), of(right_other)])
        }
        _ => Ok(false),
    }
}

/// `a < x <= b` as `(a, b]`, and `x < b` as `(-∞, b)`.
fn interval(relations: &[String], sides: &[Expr]) -> Option<Answer> {
    let (relations, sides) = forwards(relations, sides);
    let ends = |open: char, close: char, from: &Expr, to: &Expr| {
        Some(Answer::Group(open, close, vec![Answer::Value(from.clone()), Answer::Value(to.clone())]))
    };
    let bracket = |relation: &str, strict: char, with: char| if relation == "<" { strict } else { with };
    match (relations.as_slice(), sides.as_slice()) {
        ([first, second], [from, Expr::Name(_), to]) => {
            ends(bracket(first, '(', '['), bracket(second, ')', ']'), from, to)
        }
        ([only], [Expr::Name(_), to]) => ends('(', bracket(only, ')', ']'), &Expr::Negate(Expr::Infinity.into()), to),
        ([only], [from, Expr::Name(_)]) => ends(bracket(only, '(', '['), ')', from, &Expr::Infinity),
        _ => None,
    }
}
