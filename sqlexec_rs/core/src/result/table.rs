//! A result table: typed cells in a flat array, long texts and blobs in an arena.
//!
//! Sixteen bytes per cell make a million rows cheap to build and to compare: a row is a slice, a column a stride, and
//! nothing is boxed. Row hashes, the digest of all rows and the index of distinct rows are computed on first use and
//! cached, because a gold table is compared with many predictions.

use std::sync::{Arc, OnceLock};

use crate::budget::{check_limits, check_limits_on_bytes};
use crate::memory::{OutOfMemory, collect, grow, unwind_if_oom};
use crate::result::cell::{Arenas, Cell, cells_equal, has_nan_in, many_cells_equal};
use crate::result::header::Header;
use crate::result::index::RowIndex;
use crate::result::row_hash::hash_bytes;
use crate::result::table_arena::TableArena;
use crate::result::value::Value;

/// Bytes of a cell, as counted by `max_bytes` in addition to texts and blobs.
pub const CELL_BYTES: usize = size_of::<Cell>();

/// Number of cells that are compared between two checks of the clock.
const MANY_CELLS: usize = 1 << 16;

/// Number of rows that are read before they are mixed.
const BLOCK_ROWS: usize = 64;

/// A typed result table.
#[derive(Debug, Default)]
pub struct Table {
    header: Arc<Header>,
    width: usize,
    n_rows: usize,
    arena: TableArena,
    /// Bytes of texts and blobs, inline or in the arena.
    text_bytes: usize,
    row_hashes: OnceLock<Vec<u64>>,
    digest: OnceLock<Option<u128>>,
    index: OnceLock<RowIndex>,
}

impl Table {
    /// Creates an empty table with the given column names.
    pub fn new(columns: Vec<String>) -> Self {
        Self { width: columns.len(), header: Arc::new(Header::new(columns)), ..Self::default() }
    }

    /// Creates a table in memory that this thread has kept for reuse.
    pub(crate) fn recycled(header: Arc<Header>) -> Self {
        Self { width: header.names().len(), header, arena: TableArena::recycled(), ..Self::default() }
    }

    /// Returns the column names as reported by SQLite.
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

    /// Returns the declared type of a column as written in the schema; `None` for an expression.
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

    /// Returns whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.n_rows == 0
    }

    /// Returns the bytes of the result: cells, texts and blobs.
    pub fn bytes(&self) -> usize {
        size_of_val(self.arena.cells.as_slice()) + self.text_bytes
    }

    /// Reserves room for `n_cells` cells if there is memory; otherwise the table grows step by step.
    pub(crate) fn reserve(&mut self, n_cells: usize) {
        let _ = self.arena.cells.try_reserve_exact(n_cells);
    }

    /// Appends a value to the current row if there is memory for it; `end_row` completes the row.
    #[inline]
    pub fn try_push(&mut self, value: Value<'_>) -> Result<(), OutOfMemory> {
        let n_bytes = if let Value::Text(bytes) | Value::Blob(bytes) = value { bytes.len() } else { 0 };
        self.arena.make_room(n_bytes)?;
        self.push(value);
        Ok(())
    }

    /// Appends a value to a small table; aborts without memory.
    #[inline]
    pub fn push(&mut self, value: Value<'_>) {
        if let Value::Text(bytes) | Value::Blob(bytes) = value {
            self.text_bytes += bytes.len();
        }
        self.arena.cells.push(Cell::new(value, &mut self.arena.texts));
    }

    /// Completes the current row, which must hold one value per column.
    #[inline]
    pub fn end_row(&mut self) {
        self.n_rows += 1;
        debug_assert_eq!(self.arena.cells.len(), self.n_rows * self.width);
    }

    /// Iterates over the values of the current row.
    pub fn open_row(&self) -> impl ExactSizeIterator<Item = Value<'_>> {
        self.arena.cells[self.n_rows * self.width..].iter().map(|cell| cell.open(&self.arena.texts))
    }

    /// Removes the values of the current row.
    pub(crate) fn abandon_row(&mut self) {
        for cell in self.arena.cells.drain(self.n_rows * self.width..) {
            if let Value::Text(bytes) | Value::Blob(bytes) = cell.open(&self.arena.texts) {
                self.text_bytes -= bytes.len();
            }
        }
    }

    /// Releases memory that growth reserved in excess; a long-lived result keeps only the memory that it needs.
    pub(crate) fn settle(&mut self, is_for_long: bool) {
        self.arena.settle(is_for_long);
    }

    /// Returns the value at a row and a column.
    #[inline]
    pub fn value(&self, row: usize, column: usize) -> Value<'_> {
        self.arena.cells[row * self.width + column].open(&self.arena.texts)
    }

    /// Iterates over the values of a row.
    #[inline]
    pub fn row(&self, row: usize) -> impl ExactSizeIterator<Item = Value<'_>> + Clone {
        self.cells(row).iter().map(|cell| cell.open(&self.arena.texts))
    }

    #[inline]
    fn cells(&self, row: usize) -> &[Cell] {
        &self.arena.cells[row * self.width..(row + 1) * self.width]
    }

    /// Iterates over the values of a column.
    pub fn column(&self, column: usize) -> impl ExactSizeIterator<Item = Value<'_>> + Clone {
        (0..self.n_rows).map(move |row| self.value(row, column))
    }

    /// Returns a function that hashes rows so that rows equal in Python have equal hashes.
    pub(crate) fn row_hasher(&self) -> impl FnMut(usize) -> u64 + '_ {
        let mut key = Vec::new();
        move |row| {
            check_limits(self.width);
            self.hash_cells(self.cells(row), &mut key) as u64
        }
    }

    /// Hashes the cells of a row, using `key` as a buffer.
    #[inline]
    fn hash_cells(&self, cells: &[Cell], key: &mut Vec<u8>) -> u128 {
        key.resize(size_of_val(cells), 0);
        let mut is_long = false;
        for (bytes, cell) in key.as_chunks_mut().0.iter_mut().zip(cells) {
            *bytes = cell.key();
            is_long |= cell.is_long();
        }
        if is_long {
            for bytes in cells.iter().filter_map(|cell| cell.long(&self.arena.texts)) {
                check_limits_on_bytes(bytes.len());
                unwind_if_oom(grow(key, bytes.len()));
                key.extend_from_slice(bytes);
            }
        }
        hash_bytes(key)
    }

    /// Returns the digest of all rows, including duplicates but ignoring order; computed once. Tables have equal
    /// digests if their multisets of rows are equal, and otherwise only by a hash collision. Returns `None` for a
    /// table with NaN, which equals nothing.
    pub(crate) fn digest(&self) -> Option<u128> {
        *self.digest.get_or_init(|| {
            let (mut key, mut sum, mut has_nan) = (Vec::new(), 0_u128, false);
            // Without columns all rows are equal, and the caller compares their number.
            let width = self.width.max(1);
            // Reading a block first is fast and loads it into the processor's nearest cache.
            for block in self.arena.cells.chunks(width * BLOCK_ROWS) {
                check_limits(block.len());
                has_nan |= has_nan_in(block);
                for cells in block.chunks_exact(width) {
                    sum = sum.wrapping_add(self.hash_cells(cells, &mut key));
                }
            }
            (!has_nan).then_some(sum)
        })
    }

    /// Returns the digest of the set of rows, ignoring duplicates and order. It is equal for tables that `bird`
    /// considers equal, and otherwise only by a hash collision. It is meaningless in other processes. Returns `None`
    /// for a table with NaN, which equals nothing.
    pub fn set_digest(&self) -> Option<u128> {
        if self.is_distinct() {
            return self.digest();
        }
        let mut key = Vec::new();
        let rows = self.index().rows().map(|row| self.hash_cells(self.cells(row), &mut key));
        self.digest().map(|_| rows.fold(0, u128::wrapping_add))
    }

    /// Returns the hash of every row, computed once.
    pub fn row_hashes(&self) -> &[u64] {
        self.row_hashes.get_or_init(|| collect((0..self.n_rows).map(self.row_hasher())))
    }

    /// Returns whether a row equals a row of another table of the same width.
    #[inline]
    pub fn rows_equal(&self, row: usize, other: &Table, other_row: usize) -> bool {
        let (left, right) = (&self.arena.texts, &other.arena.texts);
        cells_equal((self.cells(row), left), (other.cells(other_row), right), Arenas::Apart)
    }

    /// Returns whether two tables are equal row by row. Most correct answers are, so they need no hashing.
    pub fn equal_in_order(&self, other: &Table) -> bool {
        if self.n_rows != other.n_rows || self.width != other.width {
            return false;
        }
        let arenas = if self.arena.texts == other.arena.texts { Arenas::Same } else { Arenas::Apart };
        let (left, right) = (&self.arena, &other.arena);
        let blocks = left.cells.chunks(MANY_CELLS).zip(right.cells.chunks(MANY_CELLS));
        blocks.into_iter().all(|(a, b)| {
            check_limits(a.len());
            many_cells_equal((a, &left.texts), (b, &right.texts), arenas)
        })
    }

    /// Returns whether no two rows are equal. Immediate if a column has increasing integers, as keys do.
    pub(crate) fn is_distinct(&self) -> bool {
        let rises = |column| {
            let integer = |row| match self.value(row, column) {
                Value::Integer(i) => Some(i),
                _ => None,
            };
            let is_after = |row: usize| {
                if row.is_multiple_of(MANY_CELLS) {
                    check_limits(MANY_CELLS);
                }
                integer(row - 1) < integer(row)
            };
            integer(0).is_some() && (1..self.n_rows).all(is_after)
        };
        self.n_rows < 2 || (0..self.width).any(rises) || self.index().n_rows() == self.n_rows
    }

    /// Returns whether this table and another one of the same width hold the same set of rows.
    pub(crate) fn is_same_set(&self, other: &Table) -> bool {
        let equal = |row, other_row| self.rows_equal(row, other, other_row);
        self.index().is_of_same_set(other.n_rows, other.row_hasher(), equal)
    }

    /// Returns whether the index, if built, shows that this table lacks one of the first rows of another.
    pub(crate) fn lacks_a_first_row(&self, other: &Table) -> bool {
        self.index.get().is_some_and(|index| index.lacks_a_first_row(other.n_rows, other.row_hasher()))
    }

    /// Returns the index of distinct rows, built once.
    fn index(&self) -> &RowIndex {
        let equal = |row, other_row| self.rows_equal(row, self, other_row);
        self.index.get_or_init(|| RowIndex::new(self.n_rows, self.row_hasher(), equal))
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
    fn cells_round_trip() {
        let row = [Value::Null, Value::Integer(-3), Value::Real(0.5), Value::Text(b"h\xff\x00i"), Value::Blob(b"")];
        let t = table(5, &[&row, &row]);
        assert_eq!((t.n_rows(), t.width(), t.bytes()), (2, 5, 10 * CELL_BYTES + 8));
        for r in 0..2 {
            assert!(t.row(r).zip(row).all(|(a, b)| a.equals(b)));
        }
        assert!(matches!(t.value(1, 3), Value::Text(b"h\xff\x00i")));
    }

    #[test]
    fn distinct_rows_are_detected() {
        use Value::{Integer, Null, Real};
        assert!(table(1, &[]).is_distinct() && table(1, &[&[Null]]).is_distinct());
        assert!(table(2, &[&[Null, Integer(1)], &[Null, Integer(2)], &[Null, Integer(3)]]).is_distinct());
        assert!(table(1, &[&[Integer(2)], &[Integer(1)]]).is_distinct());
        assert!(table(1, &[&[Real(1.0)], &[Real(2.0)]]).is_distinct());
        assert!(!table(1, &[&[Integer(1)], &[Integer(2)], &[Integer(2)]]).is_distinct());
        assert!(!table(1, &[&[Integer(1)], &[Real(2.0)], &[Integer(1)]]).is_distinct());
        assert!(!table(1, &[&[Null], &[Null]]).is_distinct());
        assert!(!table(0, &[&[], &[]]).is_distinct());
    }

    #[test]
    fn set_digests_ignore_order_and_duplicates() {
        use Value::{Integer, Null, Real, Text};
        let set = |rows: &[&[Value<'_>]]| table(rows.first().map_or(1, |row| row.len()), rows).set_digest();
        let (a, b): ([_; 2], [_; 2]) = ([Integer(1), Text(b"a")], [Null, Real(0.5)]);
        assert_eq!(set(&[&a, &b]), set(&[&b, &a, &a, &b]));
        assert_eq!(set(&[&[Integer(1)]]), set(&[&[Real(1.0)], &[Integer(1)]]));
        assert_ne!(set(&[&a, &b]), set(&[&a]));
        assert_ne!(set(&[&a, &a, &b]), set(&[&a, &a, &a]));
        assert_ne!(set(&[&[Text(b"a"), Integer(1)]]), set(&[&a]));
        assert_eq!(table(1, &[]).set_digest(), table(3, &[]).set_digest());
        assert_ne!(set(&[&[Null]]), table(1, &[]).set_digest());
        assert_eq!(set(&[&[Real(f64::NAN)]]), None);
    }

    #[test]
    fn digests_distinguish_similar_tables() {
        use Value::{Blob, Integer, Null, Real, Text};
        let digest = |rows: &[&[Value<'_>]]| table(rows.first().map_or(1, |row| row.len()), rows).digest().unwrap();
        for n in 0..1_000 {
            let sum = |a, b| digest(&[&[Integer(a)], &[Integer(b)]]);
            assert_ne!(sum(n, n ^ 3), sum(n ^ 1, n ^ 2));
            assert_ne!(sum(n, n + 3), sum(n + 1, n + 2));
        }
        let long: Vec<u8> = (0..100).collect();
        let mut seen = std::collections::HashSet::new();
        for n in 15..100 {
            for changed in 0..n {
                let mut bytes = long[..n].to_vec();
                bytes[changed] = 255;
                assert!(seen.insert(digest(&[&[Text(&bytes), Null]])), "byte {changed} of {n}");
            }
            assert!(
                seen.insert(digest(&[&[Blob(&long[..n]), Null]])) && seen.insert(digest(&[&[Null, Text(&long[..n])]]))
            );
            assert!(seen.insert(digest(&[&[Text(&long[..n]), Text(&long[n..])]])), "cut at {n}");
        }
        let (integer, real_row) = ([Text(&long), Integer(1)], [Text(&long), Real(1.0)]);
        assert_eq!(digest(&[&integer, &integer]), digest(&[&integer, &real_row]));
    }

    #[test]
    fn columns_keep_their_types() {
        let types = [None, Some("VARCHAR(20)"), None, Some("INT"), None];
        let t = table(5, &[]).with_types(types.map(|name| name.map(str::to_owned)).into());
        assert_eq!((0..6).map(|column| t.column_type(column)).collect::<Vec<_>>(), [&types[..], &[None]].concat());
        assert_eq!(table(2, &[]).with_types(vec![None, None]).column_type(0), None);
    }
}
