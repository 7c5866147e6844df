//! Converts tables to Arrow data.
//!
//! SQLite types cells but Arrow types columns, so the type of a column follows from the kinds of its non-NULL cells:
//!
//! | cells of the column | Arrow type | value of a cell |
//! |---|---|---|
//! | none | by the declared type, else `null` | |
//! | integers | `int64` | |
//! | reals, or reals and integers that a real can hold | `float64` | `CAST(x AS REAL)` |
//! | text, text and numbers, or reals and other integers | `large_utf8` | `CAST(x AS TEXT)` |
//! | blobs, blobs and others, text that is not UTF-8 | `large_binary` | `CAST(x AS BLOB)` |

use std::sync::Arc;

use arrow_array::{
    ArrayRef, Float64Array, Int64Array, LargeBinaryArray, LargeStringArray, NullArray, RecordBatch, RecordBatchOptions,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, Field, Schema};
use rusqlite::Connection;

use crate::error::PoolError;
use crate::memory::{OutOfMemory, check_room_for};
use crate::result::table::Table;
use crate::result::value::{Value, exact_integer};

/// The kind of a cell. A column has the highest kind among its cells, because a cast to a higher kind loses least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CellKind {
    Null,
    Integer,
    Real,
    Text,
    Bytes,
}

/// Bytes of a cell in Arrow columns, without its text.
const CELL_ROOM: usize = 24;

/// Creates the columns of a table, each with the type determined by its cells.
pub fn to_arrow(table: &Table) -> Result<RecordBatch, PoolError> {
    // Checks room for all columns at once: validity, offsets, and the larger of a number and its text.
    check_room_for(table.n_rows().saturating_mul(table.width()).saturating_mul(CELL_ROOM) + 2 * table.bytes())
        .map_err(|OutOfMemory| PoolError::OutOfMemory)?;
    let mut scratch = None;
    let columns = (0..table.width()).map(|column| column_of(table, column, &mut scratch));
    let columns: Vec<ArrayRef> = columns.collect::<Result<_, PoolError>>()?;
    let field = |(name, column): (&String, &ArrayRef)| Field::new(name, column.data_type().clone(), true);
    let schema = Schema::new(table.columns().iter().zip(&columns).map(field).collect::<Vec<_>>());
    let options = RecordBatchOptions::new().with_row_count(Some(table.n_rows()));
    RecordBatch::try_new_with_options(Arc::new(schema), columns, &options).map_err(|error| no_arrow(&error))
}

fn column_of(table: &Table, column: usize, scratch: &mut Option<Connection>) -> Result<ArrayRef, PoolError> {
    let values = || table.column(column);
    let (mut highest, mut n_nulls, mut has_large) = (CellKind::Null, 0, false);
    for value in values() {
        highest = highest.max(kind(value));
        n_nulls += usize::from(matches!(value, Value::Null));
        has_large |= is_beyond_reals(value);
    }
    let nulls = (n_nulls > 0).then(|| values().map(|value| !matches!(value, Value::Null)).collect::<NullBuffer>());
    if highest == CellKind::Null {
        highest = table.column_type(column).map_or(CellKind::Null, kind_of_declared);
    } else if highest == CellKind::Real && has_large {
        highest = CellKind::Text;
    }
    Ok(match highest {
        CellKind::Null => Arc::new(NullArray::new(table.n_rows())),
        CellKind::Integer => Arc::new(Int64Array::new(values().map(integer).collect(), nulls)),
        CellKind::Real => Arc::new(Float64Array::new(values().map(real).collect(), nulls)),
        CellKind::Text => {
            let (offsets, bytes) = bytes(values(), scratch)?;
            Arc::new(LargeStringArray::try_new(offsets, bytes.into(), nulls).map_err(|error| no_arrow(&error))?)
        }
        CellKind::Bytes => {
            let (offsets, bytes) = bytes(values(), scratch)?;
            Arc::new(LargeBinaryArray::try_new(offsets, bytes.into(), nulls).map_err(|error| no_arrow(&error))?)
        }
    })
}

fn no_arrow(_error: &ArrowError) -> PoolError {
    PoolError::Internal("a result's columns are not valid Arrow data")
}

fn kind(value: Value<'_>) -> CellKind {
    match value {
        Value::Null => CellKind::Null,
        Value::Integer(_) => CellKind::Integer,
        Value::Real(_) => CellKind::Real,
        Value::Text(text) if std::str::from_utf8(text).is_ok() => CellKind::Text,
        Value::Text(_) | Value::Blob(_) => CellKind::Bytes,
    }
}

/// Returns the kind of a declared type, by SQLite's affinity rules; for numeric affinity, by the meaning of the word.
fn kind_of_declared(name: &str) -> CellKind {
    const KINDS: [(&str, CellKind); 14] = [
        ("INT", CellKind::Integer),
        ("CHAR", CellKind::Text),
        ("CLOB", CellKind::Text),
        ("TEXT", CellKind::Text),
        ("BLOB", CellKind::Bytes),
        ("REAL", CellKind::Real),
        ("FLOA", CellKind::Real),
        ("DOUB", CellKind::Real),
        ("BOOL", CellKind::Integer),
        ("DATE", CellKind::Text),
        ("TIME", CellKind::Text),
        ("STRING", CellKind::Text),
        ("DEC", CellKind::Real),
        ("NUM", CellKind::Real),
    ];
    let name = name.to_ascii_uppercase();
    KINDS.iter().find(|(part, _)| name.contains(part)).map_or(CellKind::Null, |(_, kind)| *kind)
}

/// Returns whether a value is an integer that a real cannot represent exactly.
fn is_beyond_reals(value: Value<'_>) -> bool {
    matches!(value, Value::Integer(i) if exact_integer(i as f64) != Some(i))
}

fn integer(value: Value<'_>) -> i64 {
    if let Value::Integer(i) = value { i } else { 0 }
}

fn real(value: Value<'_>) -> f64 {
    match value {
        Value::Real(r) => r,
        Value::Integer(i) => i as f64,
        _ => 0.0,
    }
}

/// Returns concatenated values of varying length, and their offsets.
fn bytes<'a>(
    values: impl Iterator<Item = Value<'a>>,
    scratch: &mut Option<Connection>,
) -> Result<(OffsetBuffer<i64>, Vec<u8>), PoolError> {
    let (n, _) = values.size_hint();
    let (mut offsets, mut bytes) = (Vec::with_capacity(n + 1), Vec::with_capacity(8 * n));
    offsets.push(0);
    for value in values {
        match value {
            Value::Null => {}
            Value::Text(bytes_of_value) | Value::Blob(bytes_of_value) => bytes.extend_from_slice(bytes_of_value),
            Value::Integer(i) => bytes.extend_from_slice(i.to_string().as_bytes()),
            Value::Real(r) => bytes.extend_from_slice(real_text(r, scratch).map_err(cannot_cast)?.as_bytes()),
        }
        offsets.push(bytes.len() as i64);
    }
    Ok((OffsetBuffer::new(offsets.into()), bytes))
}

/// Lets SQLite format a float, because its number of digits has changed between versions.
fn real_text(real: f64, scratch: &mut Option<Connection>) -> rusqlite::Result<String> {
    let connection = match scratch {
        Some(connection) => connection,
        none => none.insert(Connection::open_in_memory()?),
    };
    connection.query_row("SELECT CAST(?1 AS TEXT)", [real], |row| row.get(0))
}

fn cannot_cast(_error: rusqlite::Error) -> PoolError {
    PoolError::Internal("SQLite did not format a float as text")
}

#[cfg(test)]
mod tests {
    use arrow_array::{Array, cast::AsArray};
    use arrow_schema::DataType;

    use super::*;
    use crate::result::table::tests::table;

    fn single_column(values: &[Value<'_>]) -> ArrayRef {
        let rows: Vec<[Value<'_>; 1]> = values.iter().map(|value| [*value]).collect();
        let rows: Vec<&[Value<'_>]> = rows.iter().map(<[_; 1]>::as_slice).collect();
        Arc::clone(to_arrow(&table(1, &rows)).unwrap().column(0))
    }

    #[test]
    fn column_type_follows_from_the_cells() {
        let (int, real, text) = (Value::Integer(3), Value::Real(0.5), Value::Text(b"a"));
        let cases: [(&[Value<'_>], DataType); 9] = [
            (&[], DataType::Null),
            (&[Value::Null, Value::Null], DataType::Null),
            (&[Value::Null, int], DataType::Int64),
            (&[int, real], DataType::Float64),
            (&[int, text, real], DataType::LargeUtf8),
            (&[text, Value::Null], DataType::LargeUtf8),
            (&[text, Value::Blob(b"b")], DataType::LargeBinary),
            (&[int, Value::Blob(b"b")], DataType::LargeBinary),
            (&[Value::Text(b"\xff")], DataType::LargeBinary),
        ];
        for (values, data_type) in cases {
            assert_eq!(*single_column(values).data_type(), data_type, "{values:?}");
        }
    }

    #[test]
    fn declared_types_decide_for_columns_without_values() {
        let of = |name: &str| {
            let empty = table(1, &[]).with_types(vec![Some(name.to_owned())]);
            to_arrow(&empty).unwrap().column(0).data_type().clone()
        };
        let cases = [
            ("BIGINT", DataType::Int64),
            ("varchar(20)", DataType::LargeUtf8),
            ("DOUBLE PRECISION", DataType::Float64),
            ("BLOB", DataType::LargeBinary),
            ("NUMERIC(10, 2)", DataType::Float64),
            ("boolean", DataType::Int64),
            ("DATETIME", DataType::LargeUtf8),
            ("thing", DataType::Null),
        ];
        for (name, data_type) in cases {
            assert_eq!(of(name), data_type, "{name}");
        }
        let null = table(1, &[&[Value::Null]]).with_types(vec![Some("REAL".to_owned())]);
        assert_eq!(*to_arrow(&null).unwrap().column(0).data_type(), DataType::Float64);
    }

    #[test]
    fn integers_beyond_reals_stay_exact_in_columns_with_reals() {
        let large = (1_i64 << 53) + 1;
        let column = single_column(&[Value::Integer(large), Value::Real(0.5)]);
        assert_eq!(column.as_string::<i64>().value(0), large.to_string());
        assert_eq!(*single_column(&[Value::Integer(large - 1), Value::Real(0.5)]).data_type(), DataType::Float64);
        assert_eq!(*single_column(&[Value::Integer(large)]).data_type(), DataType::Int64);
    }

    #[test]
    fn nulls_are_bits() {
        let mut values = [Value::Integer(7); 11];
        (values[0], values[9]) = (Value::Null, Value::Null);
        let column = single_column(&values);
        let nulls = column.nulls().unwrap();
        assert_eq!((nulls.null_count(), nulls.validity()), (2, [0b1111_1110, 0b101].as_slice()));
        assert!(single_column(&[Value::Integer(1)]).nulls().is_none());
        assert_eq!(single_column(&[Value::Null]).logical_null_count(), 1);
    }

    #[test]
    fn mixed_cells_are_cast_as_in_sqlite() {
        let values =
            [Value::Integer(-1), Value::Real(10.0), Value::Real(0.1), Value::Null, Value::Text("é".as_bytes())];
        let texts = [Some("-1"), Some("10.0"), Some("0.1"), None, Some("é")];
        assert_eq!(single_column(&values).as_string::<i64>().iter().collect::<Vec<_>>(), texts);
        let values = [Value::Real(1e300), Value::Blob(b"\x00")];
        let blobs = [Some(b"1.0e+300".as_slice()), Some(b"\x00")];
        assert_eq!(single_column(&values).as_binary::<i64>().iter().collect::<Vec<_>>(), blobs);
    }

    #[test]
    fn table_without_columns_keeps_its_rows() {
        assert_eq!(to_arrow(&table(0, &[&[], &[]])).unwrap().num_rows(), 2);
    }
}
