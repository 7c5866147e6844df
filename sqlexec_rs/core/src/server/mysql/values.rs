//! Converts values of MariaDB and MySQL from the server's texts, and parameters to literals.

use mysql_common::constants::{ColumnFlags, ColumnType};
use mysql_common::packets::Column;

use crate::request::ParameterValue;
use crate::result::value::Value;
use crate::server::rows::{DecodedValue, decimal, read_number};

/// The number of the binary character set.
const BINARY: u16 = 63;

/// How the texts of a column are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Integer,
    Real,
    Decimal,
    Bytes,
    Text,
}

/// Returns how the values of a column are decoded, and the name of its type.
pub(super) fn kind_of(column: &Column) -> (Kind, Option<&'static str>) {
    let is_binary = column.character_set() == BINARY;
    let is_listed = column.flags().intersects(ColumnFlags::ENUM_FLAG | ColumnFlags::SET_FLAG);
    let text = |name| if is_binary && !is_listed { (Kind::Bytes, Some("blob")) } else { (Kind::Text, Some(name)) };
    match column.column_type() {
        ColumnType::MYSQL_TYPE_TINY => (Kind::Integer, Some("tinyint")),
        ColumnType::MYSQL_TYPE_SHORT => (Kind::Integer, Some("smallint")),
        ColumnType::MYSQL_TYPE_INT24 => (Kind::Integer, Some("mediumint")),
        ColumnType::MYSQL_TYPE_LONG => (Kind::Integer, Some("int")),
        ColumnType::MYSQL_TYPE_LONGLONG => (Kind::Integer, Some("bigint")),
        ColumnType::MYSQL_TYPE_YEAR => (Kind::Integer, Some("year")),
        ColumnType::MYSQL_TYPE_FLOAT => (Kind::Real, Some("float")),
        ColumnType::MYSQL_TYPE_DOUBLE => (Kind::Real, Some("double")),
        ColumnType::MYSQL_TYPE_DECIMAL | ColumnType::MYSQL_TYPE_NEWDECIMAL => (Kind::Decimal, Some("decimal")),
        ColumnType::MYSQL_TYPE_BIT => (Kind::Bytes, Some("bit")),
        ColumnType::MYSQL_TYPE_GEOMETRY => (Kind::Bytes, Some("geometry")),
        ColumnType::MYSQL_TYPE_DATE | ColumnType::MYSQL_TYPE_NEWDATE => (Kind::Text, Some("date")),
        ColumnType::MYSQL_TYPE_TIME => (Kind::Text, Some("time")),
        ColumnType::MYSQL_TYPE_DATETIME => (Kind::Text, Some("datetime")),
        ColumnType::MYSQL_TYPE_TIMESTAMP => (Kind::Text, Some("timestamp")),
        ColumnType::MYSQL_TYPE_JSON => (Kind::Text, Some("json")),
        ColumnType::MYSQL_TYPE_NULL => (Kind::Text, None),
        ColumnType::MYSQL_TYPE_STRING => text("char"),
        ColumnType::MYSQL_TYPE_BLOB
        | ColumnType::MYSQL_TYPE_TINY_BLOB
        | ColumnType::MYSQL_TYPE_MEDIUM_BLOB
        | ColumnType::MYSQL_TYPE_LONG_BLOB => text("text"),
        _ => text("varchar"),
    }
}

/// Decodes a value. A text that does not fit its type stays a text.
pub(super) fn read(kind: Kind, text: &[u8]) -> DecodedValue<'_> {
    let value = match kind {
        Kind::Text => None,
        // An unsigned value may exceed 64-bit signed integers.
        Kind::Integer | Kind::Decimal => decimal(text),
        Kind::Real => read_number(text).map(Value::Real),
        Kind::Bytes => Some(Value::Blob(text)),
    };
    DecodedValue::Value(value.unwrap_or(Value::Text(text)))
}

/// Returns the statement that runs a text with values for its parameters. Only hex digits are quoted, so that no
/// setting affects them.
pub(super) fn with_parameters(sql: &str, values: &[ParameterValue]) -> String {
    let literals: Vec<String> = values.iter().map(literal).collect();
    format!("EXECUTE IMMEDIATE {} USING {}", text(sql.as_bytes()), literals.join(", "))
}

fn literal(value: &ParameterValue) -> String {
    match value {
        ParameterValue::Null => "NULL".to_owned(),
        ParameterValue::Integer(i) => i.to_string(),
        ParameterValue::Real(bits) => format!("{:e}", f64::from_bits(*bits)),
        ParameterValue::Text(bytes) => text(bytes),
        ParameterValue::Blob(bytes) => hex(bytes),
    }
}

fn text(bytes: &[u8]) -> String {
    format!("_utf8mb4 {}", hex(bytes))
}

fn hex(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(digit_of).collect();
    format!("x'{digits}'")
}

fn digit_of(digit: u8) -> char {
    char::from(b"0123456789abcdef"[usize::from(digit)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_decoded_by_type() {
        let is = |kind, text: &str, value: Value<'_>| {
            let read = read(kind, text.as_bytes());
            assert!(read.value().is_identical(value), "{kind:?} {text}: {read:?}");
        };
        is(Kind::Integer, "-9223372036854775808", Value::Integer(i64::MIN));
        is(Kind::Integer, "18446744073709551615", Value::Real(18_446_744_073_709_551_615.0));
        is(Kind::Real, "1e-07", Value::Real(1e-7));
        is(Kind::Decimal, "-5.00", Value::Integer(-5));
        is(Kind::Decimal, "0.10", Value::Real(0.1));
        is(Kind::Bytes, "\0", Value::Blob(b"\0"));
        is(Kind::Text, "2020-01-01", Value::Text(b"2020-01-01"));
    }

    #[test]
    fn values_are_bound_as_setting_independent_literals() {
        let values = [
            ParameterValue::Null,
            ParameterValue::Integer(-7),
            ParameterValue::Real(0.25_f64.to_bits()),
            ParameterValue::Text(b"'\\".into()),
            ParameterValue::Blob(b"\x00\xff".into()),
        ];
        assert_eq!(
            with_parameters("?", &values),
            "EXECUTE IMMEDIATE _utf8mb4 x'3f' USING NULL, -7, 2.5e-1, _utf8mb4 x'275c', x'00ff'"
        );
    }
}
