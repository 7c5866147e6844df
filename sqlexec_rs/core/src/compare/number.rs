//! Parsing and comparison of numbers for the data frame rules.

/// Parses a number: optional sign, digits with at most one point, optional exponent. Rejects everything else, such as
/// `inf` or `NA`.
pub(super) fn parse_number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let is_plain = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
    if is_plain { text.parse().ok() } else { None }
}

/// Parses a 64-bit integer.
pub(super) fn parse_integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Returns whether two numbers differ by at most `tolerance`, or by `share` of the larger one, like Python's
/// `math.isclose`.
pub(super) fn is_close(a: f64, b: f64, tolerance: f64, share: f64) -> bool {
    let difference = (a - b).abs();
    a == b || (difference.is_finite() && difference <= tolerance.max(share * a.abs().max(b.abs())))
}

/// Returns `part / whole`, or 0 if `whole` is 0.
pub(super) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_only_numbers() {
        for (text, number) in [("2", 2.0), (" 00501 ", 501.0), ("-1.5e3", -1500.0), (".5", 0.5), ("+7", 7.0)] {
            assert_eq!(parse_number(text.as_bytes()), Some(number), "{text}");
        }
        for text in ["", " ", "inf", "nan", "NA", "1_000", "0x10", "1,5", "e", "-", "2024-01-01", "1 2"] {
            assert_eq!(parse_number(text.as_bytes()), None, "{text}");
        }
        assert_eq!((parse_integer(b"007"), parse_integer(b"7.0")), (Some(7), None));
    }
}
