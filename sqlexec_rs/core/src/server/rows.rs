//! Converts the texts that servers send to values, and checks the size of results.

use crate::excess::Excess;
use crate::request::Limits;
use crate::result::table::Table;
use crate::result::value::Value;
use crate::server::stream::StreamError;

/// A decoded value.
#[derive(Debug)]
pub(super) enum DecodedValue<'a> {
    Value(Value<'a>),
    Bytes(Vec<u8>),
}

impl DecodedValue<'_> {
    /// Returns the value.
    pub(super) fn value(&self) -> Value<'_> {
        match self {
            Self::Value(value) => *value,
            Self::Bytes(bytes) => Value::Blob(bytes),
        }
    }
}

/// Appends a row of cells, or returns the decoding error. Returns the excess if the table grows too large.
#[inline]
pub(super) fn push_row<'a>(
    table: &mut Table,
    limits: &Limits,
    max_bytes: usize,
    cells: impl Iterator<Item = Result<Option<DecodedValue<'a>>, StreamError>>,
) -> Result<Option<Excess>, StreamError> {
    if table.n_rows() as u64 == limits.max_rows {
        return Ok(Some(Excess::Rows));
    }
    for cell in cells {
        if table.try_push(cell?.as_ref().map_or(Value::Null, DecodedValue::value)).is_err() {
            table.abandon_row();
            return Ok(Some(Excess::Memory));
        }
        if table.bytes() > max_bytes {
            table.abandon_row();
            return Ok(Some(Excess::Bytes));
        }
    }
    table.end_row();
    Ok(None)
}

/// Parses a number.
pub(super) fn read_number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses a decimal number: an integer if its fraction is zero, else a double.
pub(super) fn decimal(text: &[u8]) -> Option<Value<'static>> {
    let point = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let is_whole = text[point..].iter().all(|byte| b".0".contains(byte));
    let whole = if is_whole { read_number(&text[..point]) } else { None };
    whole.map(Value::Integer).or_else(|| read_number(text).map(Value::Real))
}
