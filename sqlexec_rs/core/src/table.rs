//! A result table: typed cells in one flat array, text and blobs in one arena.
//!
//! Sixteen bytes a cell keep a million rows cheap to build and to compare: a row is a slice, a column a stride, and
//! nothing is boxed. Row hashes and the index over distinct rows are made on first use and kept, because a gold table is
//! compared with many predictions.

use std::sync::{Arc, OnceLock};

use hashbrown::HashTable;

use crate::header::Header;
use crate::store::Store;
use crate::value::{Value, combine, mix};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Null,
    Integer,
    Real,
    Text,
    Blob,
}

/// A cell: its kind, and either its 64 bits or a slice of the arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    kind: Kind,
    len: u32,
    bits: u64,
}

/// Bytes that one cell takes; what `max_bytes` counts beside the text and blobs themselves.
pub const CELL_BYTES: usize = size_of::<Cell>();

/// Distinct rows of a table, found by hash and verified by equality.
#[derive(Debug)]
pub(crate) struct RowIndex {
    rows: HashTable<u32>,
}

/// A typed result table.
#[derive(Debug, Default)]
pub struct Table {
    header: Arc<Header>,
    width: usize,
    n_rows: usize,
    store: Store,
    row_hashes: OnceLock<Vec<u64>>,
    index: OnceLock<RowIndex>,
}

impl Table {
    /// Starts an empty table with the given column names.
    pub fn new(columns: Vec<String>) -> Self {
        Self { width: columns.len(), header: Arc::new(Header::new(columns)), ..Self::default() }
    }

    /// Starts one in memory that this thread has at hand.
    pub(crate) fn recycled(header: Arc<Header>) -> Self {
        Self { width: header.names().len(), header, store: Store::recycled(), ..Self::default() }
    }

    /// Returns the column names, as SQLite gives them.
    pub fn columns(&self) -> &[String] {
        self.header.names()
    }

    /// Sets the columns' declared types.
    #[must_use]
    pub fn with_types(mut self, types: Vec<Option<String>>) -> Self {
        let header = Arc::make_mut(&mut self.header);
        for name in types {
            header.push_type(name.as_deref());
        }
        self
    }

    /// Returns the type that a column was declared with, as it stands in the schema; an expression has none.
    pub fn column_type(&self, column: usize) -> Option<&str> {
        self.header.column_type(column)
    }

    /// Returns the number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Tells whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.n_rows == 0
    }

    /// Returns the bytes that the result takes: cells, text and blobs.
    pub fn bytes(&self) -> usize {
        self.store.bytes()
    }

    /// Makes room for so many cells, if there is memory; a table grows without, only slower.
    pub(crate) fn reserve(&mut self, n_cells: usize) {
        let _ = self.store.cells.try_reserve_exact(n_cells);
    }

    /// Appends a value to the row under construction; `end_row` closes it.
    #[inline]
    pub fn push(&mut self, value: Value<'_>) {
        let cell = match value {
            Value::Null => Cell { kind: Kind::Null, len: 0, bits: 0 },
            Value::Integer(i) => Cell { kind: Kind::Integer, len: 0, bits: i as u64 },
            Value::Real(r) => Cell { kind: Kind::Real, len: 0, bits: r.to_bits() },
            Value::Text(bytes) => self.store(Kind::Text, bytes),
            Value::Blob(bytes) => self.store(Kind::Blob, bytes),
        };
        self.store.cells.push(cell);
    }

    #[inline]
    fn store(&mut self, kind: Kind, bytes: &[u8]) -> Cell {
        let bits = self.store.arena.len() as u64;
        self.store.arena.extend_from_slice(bytes);
        Cell { kind, len: bytes.len() as u32, bits }
    }

    /// Closes the row under construction, which must hold one value a column.
    #[inline]
    pub fn end_row(&mut self) {
        self.n_rows += 1;
        debug_assert_eq!(self.store.cells.len(), self.n_rows * self.width);
    }

    /// Gives back memory that growth reserved and the result does not need; a result that is kept for long keeps no more
    /// than it needs.
    pub(crate) fn settle(&mut self, is_for_long: bool) {
        self.store.settle(is_for_long);
    }

    /// Returns the value at a row and a column.
    #[inline]
    pub fn value(&self, row: usize, column: usize) -> Value<'_> {
        self.open(self.store.cells[row * self.width + column])
    }

    /// Iterates over the values of a row.
    #[inline]
    pub fn row(&self, row: usize) -> impl ExactSizeIterator<Item = Value<'_>> + Clone {
        self.store.cells[row * self.width..(row + 1) * self.width].iter().map(|cell| self.open(*cell))
    }

    /// Iterates over the values of a column.
    pub fn column(&self, column: usize) -> impl ExactSizeIterator<Item = Value<'_>> + Clone {
        (0..self.n_rows).map(move |row| self.value(row, column))
    }

    #[inline]
    fn open(&self, cell: Cell) -> Value<'_> {
        let slice = || &self.store.arena[cell.bits as usize..cell.bits as usize + cell.len as usize];
        match cell.kind {
            Kind::Null => Value::Null,
            Kind::Integer => Value::Integer(cell.bits as i64),
            Kind::Real => Value::Real(f64::from_bits(cell.bits)),
            Kind::Text => Value::Text(slice()),
            Kind::Blob => Value::Blob(slice()),
        }
    }

    /// Hashes a row so that rows equal in Python hash alike.
    #[inline]
    pub fn row_hash(&self, row: usize) -> u64 {
        self.row(row).fold(0x1234_5678_9abc_def1, |running, value| combine(running, value.hash()))
    }

    /// Returns the hash of every row, computed once.
    pub fn row_hashes(&self) -> &[u64] {
        self.row_hashes.get_or_init(|| (0..self.n_rows).map(|row| self.row_hash(row)).collect())
    }

    /// Tells whether a row equals a row of another table of the same width.
    #[inline]
    pub fn rows_equal(&self, row: usize, other: &Table, other_row: usize) -> bool {
        self.row(row).zip(other.row(other_row)).all(|(a, b)| a.equals(b))
    }

    /// Tells whether two tables are equal row by row: most right answers are, and no hashing is needed to see it.
    pub fn equal_in_order(&self, other: &Table) -> bool {
        self.n_rows == other.n_rows
            && self.width == other.width
            && if self.store.arena == other.store.arena {
                self.store.cells.iter().zip(&other.store.cells).all(|(a, b)| {
                    // With one arena between them, cells that are alike refer to the same bytes.
                    let is_alike = (a.kind, a.len, a.bits) == (b.kind, b.len, b.bits) && a.kind != Kind::Real;
                    is_alike || self.open(*a).equals(other.open(*b))
                })
            } else {
                (0..self.n_rows).all(|row| self.rows_equal(row, other, row))
            }
    }

    /// Returns the index over distinct rows, built once.
    pub(crate) fn index(&self) -> &RowIndex {
        self.index.get_or_init(|| {
            let hashes = self.row_hashes();
            let mut rows = HashTable::with_capacity(self.n_rows.min(1024));
            for (row, hash) in hashes.iter().enumerate() {
                rows.entry(*hash, |r| self.rows_equal(*r as usize, self, row), |r| hashes[*r as usize])
                    .or_insert(row as u32);
            }
            RowIndex { rows }
        })
    }

    /// Returns a 64-bit digest of the rows in order; equal for tables that are equal row by row.
    pub fn ordered_digest(&self) -> u64 {
        self.row_hashes().iter().fold(self.digest_seed(), |running, hash| combine(running, *hash))
    }

    /// Returns a 64-bit digest of the set of rows: row order and duplicates do not matter.
    pub fn set_digest(&self) -> u64 {
        let hashes = self.row_hashes();
        let rows = &self.index().rows;
        let sum = rows.iter().fold(0_u64, |sum, row| sum.wrapping_add(mix(hashes[*row as usize])));
        combine(self.digest_seed(), combine(sum, rows.len() as u64))
    }

    /// Empty tables are equal whatever their columns, as Python's empty sets are.
    fn digest_seed(&self) -> u64 {
        if self.is_empty() { 0 } else { mix(self.width as u64) }
    }
}

impl RowIndex {
    /// Returns the number of distinct rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Finds the first row of `table` (whose index this is) equal to a row of `other`.
    #[inline]
    pub(crate) fn find(&self, table: &Table, other: &Table, other_row: usize, hash: u64) -> Option<u32> {
        self.rows.find(hash, |row| table.rows_equal(*row as usize, other, other_row)).copied()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn table(width: usize, rows: &[&[Value<'_>]]) -> Table {
        let mut table = Table::new((0..width).map(|i| format!("c{i}")).collect());
        for row in rows {
            row.iter().for_each(|value| table.push(*value));
            table.end_row();
        }
        table
    }

    #[test]
    fn cells_come_back_as_they_went_in() {
        let row = [Value::Null, Value::Integer(-3), Value::Real(0.5), Value::Text(b"h\xff\x00i"), Value::Blob(b"")];
        let t = table(5, &[&row, &row]);
        assert_eq!((t.n_rows(), t.width(), t.bytes()), (2, 5, 10 * CELL_BYTES + 8));
        for r in 0..2 {
            assert!(t.row(r).zip(row).all(|(a, b)| a.equals(b)));
        }
        assert!(matches!(t.value(1, 3), Value::Text(b"h\xff\x00i")));
    }

    #[test]
    fn columns_keep_their_types() {
        let types = [None, Some("VARCHAR(20)"), None, Some("INT"), None];
        let t = table(5, &[]).with_types(types.map(|name| name.map(str::to_owned)).into());
        assert_eq!((0..6).map(|column| t.column_type(column)).collect::<Vec<_>>(), [&types[..], &[None]].concat());
        assert_eq!(table(2, &[]).with_types(vec![None, None]).column_type(0), None);
    }

    #[test]
    fn digests_follow_their_equalities() {
        let (one, two) = ([Value::Integer(1)], [Value::Real(2.0)]);
        let a = table(1, &[&one, &two, &two]);
        let b = table(1, &[&two, &[Value::Real(1.0)]]);
        assert_eq!(a.set_digest(), b.set_digest());
        assert_ne!(a.ordered_digest(), b.ordered_digest());
        assert_eq!(table(1, &[]).set_digest(), table(4, &[]).set_digest());
        assert_ne!(table(1, &[&one]).set_digest(), table(1, &[&two]).set_digest());
    }
}
