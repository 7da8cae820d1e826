//! The MATH benchmark's rule: the last `\boxed{…}` of a response against the label, both stripped
//! of what does not change their value.
//!
//! Hendrycks et al., "Measuring Mathematical Problem Solving With the MATH Dataset" (2021). Where
//! the reference raises an exception inside its normalisation it compares the texts as they are;
//! a normalisation that returns `None` is that exception here.

/// 1 where the last box of the response is equivalent to the label, 0 otherwise.
pub fn score(response: &str, ground_truth: &str) -> f64 {
    let right = last_boxed(response).is_some_and(|answer| is_equiv(answer, ground_truth));
    if right { 1.0 } else { 0.0 }
}

/// Whether two answers are the same in normal form, or, where one of them has none, letter by letter.
pub fn is_equiv(left: &str, right: &str) -> bool {
    match (normal_form(left), normal_form(right)) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

/// What is in the last box: `\boxed{…}`, or `\boxed …` up to the next dollar sign, which is
/// preferred wherever it stands. An `\fbox` is found and then refused, as in the reference.
pub fn last_boxed(text: &str) -> Option<&str> {
    const UNBRACED: &str = r"\boxed ";
    if let Some(at) = text.rfind(UNBRACED) {
        let rest = &text[at + UNBRACED.len()..];
        return rest.split('$').next();
    }
    let boxed = &text[text.rfind(r"\boxed")?..];
    let mut depth = 0_i64;
    for (at, c) in boxed.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return boxed[..at].strip_prefix(r"\boxed{");
                }
            }
            _ => {}
        }
    }
    None
}

/// The benchmark's normal form of an answer.
fn normal_form(answer: &str) -> Option<String> {
    let mut text = answer.to_owned();
    for (from, to) in [
        ("\n", ""),
        (r"\!", ""),
        (r"\\", r"\"),
        ("tfrac", "frac"),
        ("dfrac", "frac"),
        (r"\left", ""),
        (r"\right", ""),
        (r"^{\circ}", ""),
        (r"^\circ", ""),
        (r"\$", ""),
    ] {
        text = text.replace(from, to);
    }
    text = without_right_units(&text)?.to_owned();
    for (from, to) in [(r"\\%", ""), (r"\%", ""), (" .", " 0."), ("{.", "{0.")] {
        text = text.replace(from, to);
    }
    if text.is_empty() {
        return Some(text);
    }
    if text.starts_with('.') {
        text.insert(0, '0');
    }
    if let Some((name, value)) = text.split_once('=')
        && name.chars().count() <= 2
        && !value.contains('=')
    {
        text = value.to_owned();
    }
    text = braced_roots(&text)?.replace(' ', "");
    text = braced_fractions(&text)?;
    if text == "0.5" {
        text = r"\frac{1}{2}".to_owned();
    }
    Some(slash_as_fraction(&text).unwrap_or(text))
}

/// Cuts a unit written as `\text{ …`. Two of them are an exception.
fn without_right_units(text: &str) -> Option<&str> {
    match text.split_once(r"\text{ ") {
        None => Some(text),
        Some((_, unit)) if unit.contains(r"\text{ ") => None,
        Some((value, _)) => Some(value),
    }
}

/// `\sqrt3` becomes `\sqrt{3}`. A root of nothing is an exception.
fn braced_roots(text: &str) -> Option<String> {
    let mut parts = text.split(r"\sqrt");
    let mut braced = parts.next()?.to_owned();
    for part in parts {
        let first = part.chars().next()?;
        braced.push_str(r"\sqrt");
        if first == '{' {
            braced.push_str(part);
        } else {
            braced.push_str(&format!("{{{first}}}{}", &part[first.len_utf8()..]));
        }
    }
    Some(braced)
}

/// `\frac12` becomes `\frac{1}{2}`, `\frac1{72}` becomes `\frac{1}{72}`. A fraction of nothing is an
/// exception; one of a single character leaves the whole text as it was.
fn braced_fractions(text: &str) -> Option<String> {
    let mut parts = text.split(r"\frac");
    let mut braced = parts.next()?.to_owned();
    for part in parts {
        braced.push_str(r"\frac");
        let mut rest = part.chars();
        let first = rest.next()?;
        if first == '{' {
            braced.push_str(part);
            continue;
        }
        let Some(second) = rest.next() else {
            return Some(text.to_owned());
        };
        let rest = rest.as_str();
        if second == '{' {
            braced.push_str(&format!("{{{first}}}{{{rest}"));
        } else {
            braced.push_str(&format!("{{{first}}}{{{second}}}{rest}"));
        }
    }
    Some(braced)
}

/// `a/b` of two integers, written as Python's `str` would write them, becomes `\frac{a}{b}`.
fn slash_as_fraction(text: &str) -> Option<String> {
    // Python refuses to convert longer ones (`sys.int_info.default_max_str_digits`).
    const MOST_DIGITS: usize = 4300;
    let canonical = |number: &str| {
        let digits = number.strip_prefix('-').unwrap_or(number);
        let plain = !digits.is_empty() && digits.len() <= MOST_DIGITS && digits.bytes().all(|c| c.is_ascii_digit());
        plain && (number == "0" || !digits.starts_with('0'))
    };
    let (above, below) = text.split_once('/')?;
    (canonical(above) && canonical(below)).then(|| format!(r"\frac{{{above}}}{{{below}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_forms_are_equal() {
        for (answer, label) in [
            (r"\frac12", r"\frac{1}{2}"),
            ("0.5", r"\frac{1}{2}"),
            (" 1 / 2 ", r"\dfrac{1}{2}"),
            ("k=3", "3"),
            (r"5\text{ cm}", "5"),
            (r"50\%", "50"),
            (r"\left(1, 2\right)", "(1,2)"),
            (r"\sqrt3", r"\sqrt{3}"),
        ] {
            assert!(is_equiv(answer, label), "{answer} and {label}");
        }
        for (answer, label) in [("-0/1", r"\frac{0}{1}"), ("kkk=3", "3"), ("x=y=3", "3"), ("01/2", r"\frac{1}{2}")] {
            assert!(!is_equiv(answer, label), "{answer} and {label}");
        }
    }

    #[test]
    fn texts_without_a_normal_form_are_compared_as_they_are() {
        assert!(normal_form(r"1\frac").is_none() && normal_form(r"\sqrt").is_none());
        assert!(is_equiv(r"\frac", r"\frac") && !is_equiv(r"\frac ", r"\frac"));
        assert_eq!(normal_form(r"\frac12\frac1").as_deref(), Some(r"\frac12\frac1"));
    }

    #[test]
    fn the_last_box_counts() {
        assert_eq!(last_boxed(r"\boxed{4} \boxed{{5}}"), Some("{5}"));
        assert_eq!(last_boxed(r"\boxed{3} then \boxed 5$"), Some("5"));
        for none in [r"\boxed", r"\boxed5", r"\boxed{{5}", r"\fbox{5}", r"\boxed5{6}"] {
            assert_eq!(last_boxed(none), None, "{none}");
        }
    }
}
