//! The values of a table after a round trip through CSV into a data frame, where each column has one type.
//!
//! A column whose texts are all integers, numbers or truth values gets that type. In any other column, each value is
//! its text in the file. Two effects are not reproduced: a single-column table loses its rows of blank text, and text
//! is split at a carriage return.

use super::number;
use super::pytext::{repr_bytes, repr_float};
use crate::budget::{check_limits, spend_on_bytes};
use crate::memory::{check_room_for, collect, unwind_if_oom};
use crate::result::table::Table;
use crate::result::value::Value;

/// Texts that represent missing values.
const MISSING: [&str; 19] = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
];

/// Maximum number of characters that Python writes for a byte.
const LONGEST_ESCAPE: usize = 4;

/// A value of a data frame.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FrameValue {
    Missing,
    Truth(bool),
    Integer(i128),
    Real(f64),
    Text(Vec<u8>),
}

/// A value in the file, before its column has a type.
enum Field {
    Missing,
    Truth(bool),
    Integer(i128),
    Real,
    Text,
}

#[derive(PartialEq)]
enum FrameType {
    Truth,
    Integer,
    Real,
    Text,
}

/// Returns a column after the round trip.
pub(super) fn column_through_csv(table: &Table, number: usize) -> Vec<FrameValue> {
    let fields: Vec<Field> = collect(table.column(number).map(field));
    let kind = type_of(&fields);
    let cell = |(field, value): (Field, Value<'_>)| match (field, &kind) {
        (Field::Missing, _) => FrameValue::Missing,
        (Field::Truth(truth), FrameType::Truth) => FrameValue::Truth(truth),
        (Field::Integer(i), FrameType::Integer) => FrameValue::Integer(i),
        (_, FrameType::Real) => as_real(value).map_or(FrameValue::Missing, FrameValue::Real),
        _ => FrameValue::Text(text_in_csv(value)),
    };
    collect(fields.into_iter().zip(table.column(number)).map(cell))
}

fn field(value: Value<'_>) -> Field {
    check_limits(4);
    if let Value::Text(bytes) | Value::Blob(bytes) = value {
        spend_on_bytes(bytes.len());
    }
    match value {
        Value::Null => Field::Missing,
        Value::Integer(i) => Field::Integer(i.into()),
        Value::Real(_) => Field::Real,
        Value::Blob(_) => Field::Text,
        Value::Text(text) if MISSING.iter().any(|missing| missing.as_bytes() == text) => Field::Missing,
        Value::Text(text) if text.eq_ignore_ascii_case(b"true") => Field::Truth(true),
        Value::Text(text) if text.eq_ignore_ascii_case(b"false") => Field::Truth(false),
        Value::Text(text) => match (read_integer(text), read_real(text)) {
            (Some(i), _) => Field::Integer(i),
            (None, Some(_)) => Field::Real,
            (None, None) => Field::Text,
        },
    }
}

/// Parses digits with an optional sign; values beyond 128 bits saturate.
fn read_integer(text: &[u8]) -> Option<i128> {
    let text = text.trim_ascii();
    let digits = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let bound = if text.starts_with(b"-") { i128::MIN } else { i128::MAX };
    Some(std::str::from_utf8(text).ok()?.parse().unwrap_or(bound))
}

fn read_real(text: &[u8]) -> Option<f64> {
    let size = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    if size.eq_ignore_ascii_case(b"inf") || size.eq_ignore_ascii_case(b"infinity") {
        return Some(if text.starts_with(b"-") { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    number::parse_number(text).filter(|number| number.is_finite())
}

/// Returns the type that fits all fields. Integers of more than 64 bits remain text, unless a fraction precedes them.
fn type_of(fields: &[Field]) -> FrameType {
    let is_missing = |field: &Field| matches!(field, Field::Missing);
    let present = || fields.iter().filter(|field| !is_missing(field));
    if present().all(|field| matches!(field, Field::Integer(_) | Field::Real)) {
        let is_fraction_or_huge = |field: &&Field| match field {
            Field::Integer(i) => *i > u64::MAX.into(),
            _ => true,
        };
        match present().find(is_fraction_or_huge) {
            Some(Field::Integer(_)) => return FrameType::Text,
            Some(_) => return FrameType::Real,
            None => {}
        }
        let fits = |range: std::ops::RangeInclusive<i128>| {
            present().all(|field| matches!(field, Field::Integer(i) if range.contains(i)))
        };
        let is_whole = !fields.iter().any(is_missing);
        return match (fits(i64::MIN.into()..=i64::MAX.into()), is_whole) {
            (true, true) => FrameType::Integer,
            (true, false) => FrameType::Real,
            (false, true) if fits(0..=u64::MAX.into()) => FrameType::Integer,
            (false, _) => FrameType::Text,
        };
    }
    if present().all(|field| matches!(field, Field::Truth(_))) { FrameType::Truth } else { FrameType::Text }
}

fn as_real(value: Value<'_>) -> Option<f64> {
    match value {
        Value::Integer(i) => Some(i as f64),
        Value::Real(r) => Some(r),
        Value::Text(text) => read_real(text),
        Value::Null | Value::Blob(_) => None,
    }
}

fn text_in_csv(value: Value<'_>) -> Vec<u8> {
    check_limits(4);
    if let Value::Text(bytes) | Value::Blob(bytes) = value {
        spend_on_bytes(bytes.len());
        unwind_if_oom(check_room_for(LONGEST_ESCAPE * bytes.len()));
    }
    match value {
        Value::Null => Vec::new(),
        Value::Integer(i) => i.to_string().into_bytes(),
        Value::Real(r) => repr_float(r).into_bytes(),
        Value::Text(text) => text.to_vec(),
        Value::Blob(bytes) => repr_bytes(bytes).into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::FrameValue::{self, Integer, Missing, Real, Text, Truth};
    use super::column_through_csv;
    use crate::result::table::tests::table;
    use crate::result::value::Value;

    fn read(values: &[Value<'_>]) -> Vec<FrameValue> {
        let rows: Vec<&[Value<'_>]> = values.iter().map(std::slice::from_ref).collect();
        column_through_csv(&table(1, &rows), 0)
    }

    fn read_texts(texts: &[&str]) -> Vec<FrameValue> {
        read(&texts.iter().map(|text| Value::Text(text.as_bytes())).collect::<Vec<_>>())
    }

    fn texts(texts: &[&str]) -> Vec<FrameValue> {
        texts.iter().map(|text| Text(text.as_bytes().to_vec())).collect()
    }

    #[test]
    fn a_column_has_one_type() {
        assert_eq!(read_texts(&["01", " +2\t"]), [Integer(1), Integer(2)]);
        assert_eq!(read_texts(&["01", "a"]), texts(&["01", "a"]));
        assert_eq!(read_texts(&["1", ".5", "1e3"]), [Real(1.0), Real(0.5), Real(1000.0)]);
        assert_eq!(read_texts(&["-Infinity", "INF"]), [Real(f64::NEG_INFINITY), Real(f64::INFINITY)]);
        assert_eq!(read_texts(&["tRUE", "False"]), [Truth(true), Truth(false)]);
        assert_eq!(read_texts(&["True", "1"]), texts(&["True", "1"]));
        assert_eq!(read_texts(&["1_000", "2"]), texts(&["1_000", "2"]));
        assert_eq!(read_texts(&["1e400", "2"]), texts(&["1e400", "2"]));
    }

    #[test]
    fn missing_values_do_not_change_the_type() {
        assert_eq!(read_texts(&["NA", "None", "1"]), [Missing, Missing, Real(1.0)]);
        assert_eq!(read_texts(&["nan", "x"]), [Missing, Text(b"x".to_vec())]);
        assert_eq!(read_texts(&["NAN", "1"]), texts(&["NAN", "1"]));
        assert_eq!(read(&[Value::Null, Value::Text(b"TRUE")]), [Missing, Truth(true)]);
        assert_eq!(read(&[Value::Null, Value::Null]), [Missing, Missing]);
    }

    #[test]
    fn values_in_text_columns_are_formatted_as_in_python() {
        let values = [Value::Integer(1), Value::Real(1.0), Value::Blob(b"it's"), Value::Text(b"x")];
        assert_eq!(read(&values), texts(&["1", "1.0", "b\"it's\"", "x"]));
        assert_eq!(read(&values[..2]), [Real(1.0), Real(1.0)]);
    }

    #[test]
    fn integers_beyond_64_bits_remain_text() {
        let huge = "12345678901234567890123";
        assert_eq!(read_texts(&[huge, "1"]), texts(&[huge, "1"]));
        assert_eq!(read_texts(&[huge, "1.5"]), texts(&[huge, "1.5"]));
        assert_eq!(read_texts(&["1.5", huge]), [Real(1.5), Real(1.234_567_890_123_456_8e22)]);
        assert_eq!(read_texts(&["18446744073709551615", "1"]), [Integer(u64::MAX.into()), Integer(1)]);
        assert_eq!(read_texts(&["18446744073709551615", "-1"]), texts(&["18446744073709551615", "-1"]));
        assert_eq!(read_texts(&[&"9".repeat(60), "1"]), texts(&[&"9".repeat(60), "1"]));
    }
}
