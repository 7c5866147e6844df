//! From cells to columns.

use rusqlite::Connection;

use crate::error::Fault;
use crate::result::table::Table;
use crate::result::value::Value;

/// A column of one type.
#[derive(Debug)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its values; at NULL there is a 0 or nothing.
    pub data: Data,
    /// A bit a row, 1 where there is a value; absent when every row has one, and for a column of NULLs alone.
    pub validity: Option<Vec<u8>>,
    /// Rows that are NULL.
    pub n_null: usize,
}

/// The values of a column.
#[derive(Debug)]
pub enum Data {
    /// NULL in every row.
    Null,
    /// 64-bit integers.
    Int64(Vec<i64>),
    /// Doubles.
    Float64(Vec<f64>),
    /// UTF-8 text.
    Utf8(Bytes),
    /// Bytes.
    Binary(Bytes),
}

/// Values of varying length, end to end; that of row `i` is `values[offsets[i]..offsets[i + 1]]`.
#[derive(Debug)]
pub struct Bytes {
    /// One more than there are rows.
    pub offsets: Vec<i64>,
    /// All values.
    pub values: Vec<u8>,
}

impl Bytes {
    /// Returns the value of a row.
    pub fn value(&self, row: usize) -> &[u8] {
        &self.values[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }
}

impl Data {
    /// Returns the Arrow type's name.
    pub fn type_name(&self) -> &'static str {
        match self {
            Data::Null => "null",
            Data::Int64(_) => "int64",
            Data::Float64(_) => "float64",
            Data::Utf8(_) => "large_utf8",
            Data::Binary(_) => "large_binary",
        }
    }
}

impl Column {
    /// Tells whether a row holds a value.
    pub fn is_valid(&self, row: usize) -> bool {
        match &self.validity {
            Some(bits) => bits[row / 8] >> (row % 8) & 1 == 1,
            None => !matches!(self.data, Data::Null),
        }
    }
}

/// The kind of a cell. A column is of the highest kind among its cells, because a cast to a higher one loses least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Null,
    Integer,
    Real,
    Text,
    Bytes,
}

/// Makes a table's columns, each of the type that its cells give it.
pub fn columns(table: &Table) -> Result<Vec<Column>, Fault> {
    let mut scratch = None;
    let make = |column| {
        let values = || table.column(column);
        let (validity, n_null) = validity(values());
        let data = match values().map(kind).max().unwrap_or(Kind::Null) {
            Kind::Null => Data::Null,
            Kind::Integer => Data::Int64(values().map(integer).collect()),
            Kind::Real => Data::Float64(values().map(real).collect()),
            Kind::Text => Data::Utf8(bytes(values(), &mut scratch)?),
            Kind::Bytes => Data::Binary(bytes(values(), &mut scratch)?),
        };
        let validity = if matches!(data, Data::Null) { None } else { validity };
        Ok(Column { name: table.columns()[column].clone(), data, validity, n_null })
    };
    (0..table.width()).map(make).collect()
}

fn kind(value: Value<'_>) -> Kind {
    match value {
        Value::Null => Kind::Null,
        Value::Integer(_) => Kind::Integer,
        Value::Real(_) => Kind::Real,
        Value::Text(text) if std::str::from_utf8(text).is_ok() => Kind::Text,
        Value::Text(_) | Value::Blob(_) => Kind::Bytes,
    }
}

fn validity<'a>(values: impl ExactSizeIterator<Item = Value<'a>>) -> (Option<Vec<u8>>, usize) {
    let mut bits = vec![0_u8; values.len().div_ceil(8)];
    let mut n_null = 0;
    for (row, value) in values.enumerate() {
        if matches!(value, Value::Null) {
            n_null += 1;
        } else {
            bits[row / 8] |= 1 << (row % 8);
        }
    }
    ((n_null > 0).then_some(bits), n_null)
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

fn bytes<'a>(values: impl Iterator<Item = Value<'a>>, scratch: &mut Option<Connection>) -> Result<Bytes, Fault> {
    let mut bytes = Bytes { offsets: vec![0], values: Vec::new() };
    for value in values {
        match value {
            Value::Null => {}
            Value::Text(own) | Value::Blob(own) => bytes.values.extend_from_slice(own),
            Value::Integer(i) => bytes.values.extend_from_slice(i.to_string().as_bytes()),
            Value::Real(r) => bytes.values.extend_from_slice(real_text(r, scratch).map_err(cannot_cast)?.as_bytes()),
        }
        bytes.offsets.push(bytes.values.len() as i64);
    }
    Ok(bytes)
}

/// Lets SQLite itself write a float: how many digits it writes has changed between its versions.
fn real_text(real: f64, scratch: &mut Option<Connection>) -> rusqlite::Result<String> {
    let connection = match scratch {
        Some(connection) => connection,
        none => none.insert(Connection::open_in_memory()?),
    };
    connection.query_row("SELECT CAST(?1 AS TEXT)", [real], |row| row.get(0))
}

fn cannot_cast(_error: rusqlite::Error) -> Fault {
    Fault::Internal("SQLite did not write a float as text")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::table::tests::table;

    fn one(values: &[Value<'_>]) -> Column {
        let rows: Vec<[Value<'_>; 1]> = values.iter().map(|value| [*value]).collect();
        let rows: Vec<&[Value<'_>]> = rows.iter().map(<[_; 1]>::as_slice).collect();
        columns(&table(1, &rows)).unwrap().remove(0)
    }

    fn texts(data: &Data) -> Vec<&[u8]> {
        match data {
            Data::Utf8(bytes) | Data::Binary(bytes) => (0..bytes.offsets.len() - 1).map(|i| bytes.value(i)).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn a_type_follows_from_the_cells() {
        let (int, real, text) = (Value::Integer(3), Value::Real(0.5), Value::Text(b"a"));
        let cases: [(&[Value<'_>], &str); 9] = [
            (&[], "null"),
            (&[Value::Null, Value::Null], "null"),
            (&[Value::Null, int], "int64"),
            (&[int, real], "float64"),
            (&[int, text, real], "large_utf8"),
            (&[text, Value::Null], "large_utf8"),
            (&[text, Value::Blob(b"b")], "large_binary"),
            (&[int, Value::Blob(b"b")], "large_binary"),
            (&[Value::Text(b"\xff")], "large_binary"),
        ];
        for (values, name) in cases {
            assert_eq!(one(values).data.type_name(), name, "{values:?}");
        }
    }

    #[test]
    fn nulls_are_bits() {
        let mut values = [Value::Integer(7); 11];
        (values[0], values[9]) = (Value::Null, Value::Null);
        let column = one(&values);
        assert_eq!((column.n_null, column.validity.as_deref()), (2, Some([0b1111_1110, 0b101].as_slice())));
        assert_eq!((0..11).filter(|row| !column.is_valid(*row)).collect::<Vec<_>>(), [0, 9]);
        assert_eq!(one(&[Value::Integer(1)]).validity, None);
        assert!(!one(&[Value::Null]).is_valid(0));
    }

    #[test]
    fn mixed_cells_are_cast_as_sqlite_casts() {
        let values =
            [Value::Integer(-1), Value::Real(10.0), Value::Real(0.1), Value::Null, Value::Text("é".as_bytes())];
        assert_eq!(texts(&one(&values).data), ["-1".as_bytes(), b"10.0", b"0.1", b"", "é".as_bytes()]);
        let values = [Value::Real(1e300), Value::Blob(b"\x00")];
        assert_eq!(texts(&one(&values).data), [b"1.0e+300".as_slice(), b"\x00"]);
    }
}
