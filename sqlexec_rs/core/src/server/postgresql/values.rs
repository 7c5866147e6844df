//! Converts PostgreSQL's values from the server's texts.

use std::borrow::Cow;

use postgres_protocol::Oid;

use crate::result::value::Value;
use crate::server::rows::{DecodedValue, decimal, read_number};

/// How the text of a type is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Boolean,
    Integer,
    Real,
    Numeric,
    Bytes,
    Text,
}

/// The types that are not decoded as text, and the names of others, by their ids in `pg_type`, which never change.
const TYPES: [(Oid, &str, Kind); 25] = [
    (16, "boolean", Kind::Boolean),
    (17, "bytea", Kind::Bytes),
    (20, "bigint", Kind::Integer),
    (21, "smallint", Kind::Integer),
    (23, "integer", Kind::Integer),
    (25, "text", Kind::Text),
    (26, "oid", Kind::Integer),
    (114, "json", Kind::Text),
    (700, "real", Kind::Real),
    (701, "double precision", Kind::Real),
    (1042, "character", Kind::Text),
    (1043, "character varying", Kind::Text),
    (1082, "date", Kind::Text),
    (1083, "time", Kind::Text),
    (1114, "timestamp", Kind::Text),
    (1184, "timestamp with time zone", Kind::Text),
    (1186, "interval", Kind::Text),
    (1266, "time with time zone", Kind::Text),
    (1700, "numeric", Kind::Numeric),
    (2950, "uuid", Kind::Text),
    (3802, "jsonb", Kind::Text),
    (1009, "text[]", Kind::Text),
    (1007, "integer[]", Kind::Text),
    (1231, "numeric[]", Kind::Text),
    (705, "text", Kind::Text),
];

/// Returns how the values of a type are decoded.
pub(super) fn kind_of(oid: Oid) -> Kind {
    TYPES.iter().find(|known| known.0 == oid).map_or(Kind::Text, |known| known.2)
}

/// Returns the name of a built-in type; `None` for user-defined types.
pub(super) fn type_name(oid: Oid) -> Option<&'static str> {
    TYPES.iter().find(|known| known.0 == oid).map(|known| known.1)
}

/// Decodes a value. A text that does not fit its type stays a text.
pub(super) fn read(kind: Kind, text: &[u8]) -> DecodedValue<'_> {
    let value = match kind {
        Kind::Text => None,
        Kind::Boolean => match text {
            b"t" => Some(Value::Integer(1)),
            b"f" => Some(Value::Integer(0)),
            _ => None,
        },
        Kind::Integer => read_number(text).map(Value::Integer),
        Kind::Real => read_number(text).map(Value::Real),
        Kind::Numeric => decimal(text),
        Kind::Bytes => return read_bytea(text).map_or(DecodedValue::Value(Value::Text(text)), DecodedValue::Bytes),
    };
    DecodedValue::Value(value.unwrap_or(Value::Text(text)))
}

fn read_bytea(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_prefix(b"\\x")?;
    let digit = |byte: u8| char::from(byte).to_digit(16);
    digits.chunks(2).map(|pair| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8)).collect()
}

/// Returns the text of a parameter, and its type id; zero lets the server infer the type.
pub(super) fn encode_parameter(value: &crate::request::ParameterValue) -> (Option<Cow<'_, [u8]>>, Oid) {
    use crate::request::ParameterValue;
    match value {
        ParameterValue::Null => (None, 0),
        ParameterValue::Integer(i) => (Some(i.to_string().into_bytes().into()), 20),
        ParameterValue::Real(bits) => (Some(f64::from_bits(*bits).to_string().into_bytes().into()), 701),
        ParameterValue::Text(bytes) => (Some(bytes.into()), 0),
        ParameterValue::Blob(bytes) => {
            let digit = |digit: u8| b"0123456789abcdef"[usize::from(digit)];
            let digits = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
            (Some(b"\\x".iter().copied().chain(digits).collect()), 17)
        }
    }
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
        is(Kind::Boolean, "t", Value::Integer(1));
        is(Kind::Boolean, "f", Value::Integer(0));
        is(Kind::Integer, "-9223372036854775808", Value::Integer(i64::MIN));
        is(Kind::Real, "1e-07", Value::Real(1e-7));
        is(Kind::Real, "Infinity", Value::Real(f64::INFINITY));
        is(Kind::Real, "-Infinity", Value::Real(f64::NEG_INFINITY));
        is(Kind::Numeric, "5", Value::Integer(5));
        is(Kind::Numeric, "-5.00", Value::Integer(-5));
        is(Kind::Numeric, "0.10", Value::Real(0.1));
        is(Kind::Numeric, "9007199254740993.00", Value::Integer(9_007_199_254_740_993));
        is(Kind::Numeric, "10000000000000000000", Value::Real(1e19));
        is(Kind::Bytes, "\\x00ff", Value::Blob(b"\x00\xff"));
        is(Kind::Bytes, "\\x0", Value::Text(b"\\x0"));
        is(Kind::Text, "2020-01-01", Value::Text(b"2020-01-01"));
        assert!(matches!(read(Kind::Real, b"NaN").value(), Value::Real(r) if r.is_nan()));
    }
}
