//! Python's formatting of values, which rules use to sort and compare, and its parsing of floats.

use std::borrow::Cow;

use crate::result::value::Value;

/// Returns the UTF-8 bytes of Python's text of a value followed by its type; their order is the order of the texts.
pub(super) fn python_sort_key(value: Value<'_>) -> Vec<u8> {
    let (mut text, kind) = match value {
        Value::Null => (b"None".to_vec(), "NoneType"),
        Value::Integer(i) => (i.to_string().into_bytes(), "int"),
        Value::Real(r) => (repr_float(r).into_bytes(), "float"),
        Value::Text(bytes) => (bytes.to_vec(), "str"),
        Value::Blob(bytes) => (repr_bytes(bytes).into_bytes(), "bytes"),
    };
    text.extend_from_slice(format!("<class '{kind}'>").as_bytes());
    text
}

/// Returns Python's `repr` of a float: the shortest digits that round-trip, with an exponent below 1e-4 and from
/// 1e16.
pub(super) fn repr_float(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "inf".to_owned() } else { "-inf".to_owned() };
    }
    if value.is_nan() {
        return "nan".to_owned();
    }
    let scientific = format!("{value:e}"); // shortest digits, as d.ddde-dd
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = value.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// Returns Python's `repr` of bytes.
pub(super) fn repr_bytes(bytes: &[u8]) -> String {
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { '"' } else { '\'' };
    let mut text = format!("b{quote}");
    for byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b'\t' => text.push_str("\\t"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            0x20..=0x7e => {
                if char::from(*byte) == quote {
                    text.push('\\');
                }
                text.push(char::from(*byte));
            }
            _ => text.extend(["\\x".to_owned(), format!("{byte:02x}")]),
        }
    }
    text.push(quote);
    text
}

/// Returns text without invalid UTF-8 bytes, like Python's decoding with errors ignored.
pub(super) fn drop_undecodable(text: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(text) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(text.utf8_chunks().map(|chunk| chunk.valid()).collect()),
    }
}

/// Parses text like Python's `float`: surrounding spaces, single underscores between digits, `inf` and `nan` in any
/// case; ASCII digits only.
pub(super) fn parse_float(text: &[u8]) -> Option<f64> {
    let is_space = |c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c);
    let text = std::str::from_utf8(text).ok()?.trim_matches(is_space);
    let digit = |index: Option<usize>| index.and_then(|i| text.as_bytes().get(i)).is_some_and(u8::is_ascii_digit);
    let is_between = |index: usize| digit(index.checked_sub(1)) && digit(Some(index + 1));
    if !text.match_indices('_').all(|(index, _)| is_between(index)) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_formatted_as_in_python() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (10.0, "10.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1.797_693_134_862_315_7e308, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "inf"),
        ];
        for (value, text) in cases {
            assert_eq!(repr_float(value), text);
        }
    }

    #[test]
    fn floats_are_parsed_as_in_python() {
        for (text, number) in [("1_0.5_0", 10.5), (" 1e5\n", 1e5), ("+.5", 0.5), ("1.", 1.0), ("iNf", f64::INFINITY)] {
            assert_eq!(parse_float(text.as_bytes()), Some(number), "{text}");
        }
        for text in ["", "_1", "1_", "1__0", "1_.5", "0x1", "1 2", "e5", ".", "infin", "None"] {
            assert_eq!(parse_float(text.as_bytes()), None, "{text}");
        }
        assert!(parse_float(b"-NAN").is_some_and(f64::is_nan));
    }

    #[test]
    fn bytes_are_formatted_as_in_python() {
        assert_eq!(repr_bytes(b"a\x00\xff\n\\"), "b'a\\x00\\xff\\n\\\\'");
        assert_eq!(repr_bytes(b"it's"), "b\"it's\"");
        assert_eq!(repr_bytes(b"'\""), "b'\\'\"'");
        assert_eq!(python_sort_key(Value::Integer(10)), b"10<class 'int'>");
        assert_eq!(python_sort_key(Value::Null), b"None<class 'NoneType'>");
    }
}
