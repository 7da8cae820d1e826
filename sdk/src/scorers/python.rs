//! The parts of Python's text handling that the reference scorers lean on.
//!
//! Tables are those of Python 3.11 (Unicode 14), the version the references ran on.

/// Code points of the zeros of all decimal systems; each is followed by its digits 1 to 9.
const ZEROS: [u32; 66] = [
    0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
    0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620,
    0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0,
    0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60,
    0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0,
];

/// Ranges of characters that are digits but not decimal ones: superscripts, circled digits, ….
const OTHER_DIGITS: [(u32, u32); 20] = [
    (0xb2, 0xb3),
    (0xb9, 0xb9),
    (0x1369, 0x1371),
    (0x19da, 0x19da),
    (0x2070, 0x2070),
    (0x2074, 0x2079),
    (0x2080, 0x2089),
    (0x2460, 0x2468),
    (0x2474, 0x247c),
    (0x2488, 0x2490),
    (0x24ea, 0x24ea),
    (0x24f5, 0x24fd),
    (0x24ff, 0x24ff),
    (0x2776, 0x277e),
    (0x2780, 0x2788),
    (0x278a, 0x2792),
    (0x10a40, 0x10a43),
    (0x10e60, 0x10e68),
    (0x11052, 0x1105a),
    (0x1f100, 0x1f10a),
];

/// The value of a decimal digit of any script.
pub(super) fn decimal(c: char) -> Option<u8> {
    let code = c as u32;
    let zero = ZEROS[..ZEROS.partition_point(|&zero| zero <= code)].last()?;
    u8::try_from(code - zero).ok().filter(|value| *value < 10)
}

/// `str.isspace` of one character: Unicode white space and four control characters.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// `str.strip()`.
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `str.isdigit()`: not empty, and every character a digit, superscripts and circled ones included.
pub fn is_digit(text: &str) -> bool {
    let other = |c: char| OTHER_DIGITS.iter().any(|&(first, last)| (first..=last).contains(&(c as u32)));
    !text.is_empty() && text.chars().all(|c| decimal(c).is_some() || other(c))
}

/// `text[-count:]` in code points.
pub fn tail(text: &str, count: usize) -> &str {
    match text.char_indices().rev().nth(count.saturating_sub(1)) {
        Some((start, _)) if count > 0 => &text[start..],
        _ if count > 0 => text,
        _ => "",
    }
}

/// `float(text)`; `None` where Python raises `ValueError`.
///
/// Accepts decimal digits of every script, `_` between digits, `inf`, `infinity` and `nan` in any
/// case, and white space around; a number too large is infinite.
pub fn float(text: &str) -> Option<f64> {
    // Python leaves ASCII text alone, so the control characters it counts as white space elsewhere
    // are stripped here only in company of a non-ASCII character.
    let ascii: String = if text.is_ascii() {
        text.to_owned()
    } else {
        text.chars()
            .map(|c| match decimal(c) {
                Some(value) => char::from(b'0' + value),
                None if !c.is_ascii() && is_space(c) => ' ',
                None => c,
            })
            .collect()
    };
    let number = ascii.trim_matches(|c| matches!(c, ' ' | '\t' | '\n' | '\u{b}' | '\u{c}' | '\r'));
    let bytes = number.as_bytes();
    let between_digits =
        |at: usize| at > 0 && bytes[at - 1].is_ascii_digit() && bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
    if (0..bytes.len()).any(|at| bytes[at] == b'_' && !between_digits(at)) {
        return None;
    }
    number.replace('_', "").parse().ok()
}

/// `str(int(value))`; `None` where Python raises, for infinities and NaN.
///
/// The integer is exact: `1e23` gives `99999999999999991611392`.
pub fn int_text(value: f64) -> Option<String> {
    let whole = value.trunc();
    if !whole.is_finite() {
        return None;
    }
    Some(if whole == 0.0 { "0".to_owned() } else { format!("{whole:.0}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_space_are_pythons() {
        for text in ["0", "٣", "²", "①", "1²", "𝟗", "൬"] {
            assert!(is_digit(text), "{text}");
        }
        for text in ["", "-1", "1.0", "½", "四", "1 ", "/", ":"] {
            assert!(!is_digit(text), "{text}");
        }
        assert_eq!(strip("\u{1f}\u{2003} a\u{b}\u{85}"), "a");
        assert_eq!(strip("\u{200b}a"), "\u{200b}a");
    }

    #[test]
    fn tails_count_code_points() {
        assert_eq!(tail("añb", 2), "ñb");
        assert_eq!(tail("añb", 3), "añb");
        assert_eq!(tail("añb", 9), "añb");
        assert_eq!(tail("añb", 0), "");
        assert_eq!(tail("", 5), "");
    }

    #[test]
    fn floats_are_pythons() {
        for (text, value) in [
            ("1_000", 1000.0),
            ("٣", 3.0),
            ("\u{2003}4\u{a0}", 4.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("+1e3", 1000.0),
            ("1e1_0", 1e10),
            ("1e400", f64::INFINITY),
            ("-InFinity", f64::NEG_INFINITY),
        ] {
            assert_eq!(float(text), Some(value), "{text:?}");
        }
        assert!(float("-nAn").is_some_and(f64::is_nan));
        for text in [
            "", ".", "e5", "1e", "1__0", "_1", "1_", "1_.5", "1._5", "0x10", "1 0", "²", "1,0", "--1", "\u{1f}4",
            "na_n",
        ] {
            assert_eq!(float(text), None, "{text:?}");
        }
    }

    #[test]
    fn integers_are_exact() {
        assert_eq!(int_text(-0.9).as_deref(), Some("0"));
        assert_eq!(int_text(-3.7).as_deref(), Some("-3"));
        assert_eq!(int_text(1e23).as_deref(), Some("99999999999999991611392"));
        assert_eq!(int_text(f64::MAX).map(|text| text.len()), Some(309));
        assert_eq!(int_text(f64::INFINITY), None);
        assert_eq!(int_text(f64::NAN), None);
    }
}
