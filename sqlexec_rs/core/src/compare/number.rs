//! Text that is a number, for the two rules whose values went through CSV or a data frame.

/// Reads text as a number: optional sign, digits with at most one point, optional exponent; nothing else (no `inf`, no `NA`).
pub(super) fn parse(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let is_plain = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
    if is_plain { text.parse().ok() } else { None }
}

/// Reads text as an integer of 64 bits.
pub(super) fn parse_integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_and_nothing_else() {
        for (text, number) in [("2", 2.0), (" 00501 ", 501.0), ("-1.5e3", -1500.0), (".5", 0.5), ("+7", 7.0)] {
            assert_eq!(parse(text.as_bytes()), Some(number), "{text}");
        }
        for text in ["", " ", "inf", "nan", "NA", "1_000", "0x10", "1,5", "e", "-", "2024-01-01", "1 2"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!((parse_integer(b"007"), parse_integer(b"7.0")), (Some(7), None));
    }
}
