//! A cell of a table: sixteen bytes that hold a number or a short text, or the position of a longer text.
//!
//! Most texts in results are codes, names and dates. Stored inline, they are compared and hashed like numbers,
//! without reading other memory.

use crate::result::value::{Value, exact_integer};

/// Maximum bytes of an inline text or blob.
const MAX_INLINE: usize = 14;

/// Tags: the first byte of a cell. Bitwise equal cells hold equal values, unless the tag has one of the high bits.
const NULL: u8 = 0;
const INTEGER: u8 = 1;
const REAL: u8 = 2;
const SHORT_TEXT: u8 = 3;
const SHORT_BLOB: u8 = 4;
const LONG_TEXT: u8 = IN_ARENA | 1;
const LONG_BLOB: u8 = IN_ARENA | 2;
/// NaN, which equals nothing. SQLite never returns it, but tables provided by callers may contain it.
const NAN: u8 = 0x20;
/// Bitwise equal cells are equal only if both refer to the same arena.
const IN_ARENA: u8 = 0x10;

/// Number of cells that are compared before checking for a difference.
const BLOCK: usize = 16;

/// The tag, the length of a short text or blob, and fourteen bytes: the short text or blob, or four bytes of length
/// and eight of a number or an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(16))]
pub(crate) struct Cell([u8; 16]);

/// The relation between the arenas of two tables.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arenas {
    /// Unrelated.
    Apart,
    /// Both hold the same bytes.
    Same,
}

impl Arenas {
    /// Returns the tag bits with which bitwise equal cells may hold different values.
    #[inline]
    fn doubtful(self) -> u8 {
        match self {
            Arenas::Apart => IN_ARENA | NAN,
            Arenas::Same => NAN,
        }
    }
}

/// Returns whether the cells of two tables are equal in order, given the tables' arenas.
#[inline]
pub(crate) fn cells_equal(left: (&[Cell], &[u8]), right: (&[Cell], &[u8]), arenas: Arenas) -> bool {
    left.0.iter().zip(right.0).all(|(a, b)| a.is_alike(b, arenas) || equal_at_length(a, left.1, b, right.1))
}

/// Does the same for many cells, most of which are bitwise equal.
pub(crate) fn many_cells_equal(left: (&[Cell], &[u8]), right: (&[Cell], &[u8]), arenas: Arenas) -> bool {
    let (left_blocks, left_rest) = left.0.as_chunks::<BLOCK>();
    let (right_blocks, right_rest) = right.0.as_chunks::<BLOCK>();
    let doubtful = [u64::from(arenas.doubtful()), 0];
    let equal = |(a, b): (&[Cell; BLOCK], &[Cell; BLOCK])| {
        let mut differences = [0; 2];
        for (a, b) in a.iter().zip(b) {
            let (a, b) = (a.halves(), b.halves());
            for half in 0..2 {
                differences[half] |= (a[half] ^ b[half]) | (a[half] & doubtful[half]);
            }
        }
        differences == [0; 2] || cells_equal((a, left.1), (b, right.1), arenas)
    };
    left_blocks.iter().zip(right_blocks).all(equal) && cells_equal((left_rest, left.1), (right_rest, right.1), arenas)
}

/// Returns whether a cell holds NaN; only its tag has that bit.
pub(crate) fn has_nan_in(cells: &[Cell]) -> bool {
    cells.iter().fold(0, |all, cell| all | cell.halves()[0]) & u64::from(NAN) != 0
}

#[cold]
#[inline(never)]
fn equal_at_length(a: &Cell, arena: &[u8], b: &Cell, other_arena: &[u8]) -> bool {
    a.open(arena).equals(b.open(other_arena))
}

impl Cell {
    /// Creates the cell of a value. A text or blob that is too long is appended to the arena.
    #[inline]
    pub(crate) fn new(value: Value<'_>, arena: &mut Vec<u8>) -> Self {
        Self(encode(value, arena).to_le_bytes())
    }

    /// Returns the value; `arena` belongs to the cell's table.
    #[inline]
    pub(crate) fn open<'a>(&'a self, arena: &'a [u8]) -> Value<'a> {
        match self.tag() {
            NULL => Value::Null,
            INTEGER => Value::Integer(self.bits() as i64),
            REAL | NAN => Value::Real(f64::from_bits(self.bits())),
            SHORT_TEXT => Value::Text(self.inline()),
            SHORT_BLOB => Value::Blob(self.inline()),
            LONG_TEXT => Value::Text(self.in_arena(arena)),
            _ => Value::Blob(self.in_arena(arena)),
        }
    }

    #[inline]
    fn tag(&self) -> u8 {
        self.0[0]
    }

    /// Returns the two halves of the cell.
    #[inline]
    fn halves(&self) -> [u64; 2] {
        let whole = u128::from_le_bytes(self.0);
        [whole as u64, (whole >> 64) as u64]
    }

    #[inline]
    fn bits(&self) -> u64 {
        self.halves()[1]
    }

    #[inline]
    fn inline(&self) -> &[u8] {
        &self.0[2..2 + usize::from(self.0[1])]
    }

    #[inline]
    fn in_arena<'a>(&self, arena: &'a [u8]) -> &'a [u8] {
        let [head, start] = self.halves();
        &arena[start as usize..start as usize + (head >> 32) as usize]
    }

    /// Returns whether two cells are known to hold equal values without reading their arenas.
    #[inline]
    pub(crate) fn is_alike(&self, other: &Self, arenas: Arenas) -> bool {
        self == other && self.tag() & arenas.doubtful() == 0
    }

    /// Returns sixteen bytes that are equal for values that are equal in Python. For a text or blob in the arena they
    /// contain only tag and length; its bytes must be appended.
    #[inline]
    pub(crate) fn key(&self) -> [u8; 16] {
        match self.tag() {
            REAL => exact_integer(f64::from_bits(self.bits()))
                .map_or(self.0, |i| encode_number(INTEGER, i as u64).to_le_bytes()),
            LONG_TEXT | LONG_BLOB => u128::from(self.halves()[0]).to_le_bytes(),
            _ => self.0,
        }
    }

    /// Returns whether the cell refers to a text or blob in the arena.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.tag() & IN_ARENA != 0
    }

    /// Returns the bytes of a text or blob in the arena.
    pub(crate) fn long<'a>(&self, arena: &'a [u8]) -> Option<&'a [u8]> {
        self.is_long().then(|| self.in_arena(arena))
    }
}

/// Returns the cell of a value as a number, which stays in registers. Assembling a cell in memory from halves and
/// then copying it would stall the processor.
fn encode(value: Value<'_>, arena: &mut Vec<u8>) -> u128 {
    match value {
        Value::Null => encode_number(NULL, 0),
        Value::Integer(i) => encode_number(INTEGER, i as u64),
        Value::Real(r) => encode_number(if r.is_nan() { NAN } else { REAL }, r.to_bits()),
        Value::Text(bytes) => of_bytes(bytes, SHORT_TEXT, LONG_TEXT, arena),
        Value::Blob(bytes) => of_bytes(bytes, SHORT_BLOB, LONG_BLOB, arena),
    }
}

#[inline]
fn encode_number(tag: u8, bits: u64) -> u128 {
    u128::from(tag) | (u128::from(bits) << 64)
}

#[inline]
fn of_bytes(bytes: &[u8], short: u8, long: u8, arena: &mut Vec<u8>) -> u128 {
    let n = bytes.len();
    if n <= MAX_INLINE {
        return u128::from(short) | ((n as u128) << 8) | (padded(bytes) << 16);
    }
    let start = arena.len();
    arena.extend_from_slice(bytes);
    u128::from(long) | (u128::from(n as u32) << 32) | ((start as u128) << 64)
}

/// Reads up to fourteen bytes as a zero-padded number, by two overlapping reads.
#[inline]
fn padded(bytes: &[u8]) -> u128 {
    let n = bytes.len();
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        return u128::from(u64::from_le_bytes(*first)) | (u128::from(u64::from_le_bytes(*last)) << (8 * (n - 8)));
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        return u128::from(u32::from_le_bytes(*first)) | (u128::from(u32::from_le_bytes(*last)) << (8 * (n - 4)));
    }
    bytes.iter().rev().fold(0, |sum, byte| (sum << 8) | u128::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::row_hash::hash_bytes;

    #[test]
    fn texts_of_every_length_round_trip_and_are_distinct() {
        let all: Vec<u8> = (1..=40).collect();
        let mut arena = Vec::new();
        let cells: Vec<_> = (0..40).map(|n| Cell::new(Value::Text(&all[..n]), &mut arena)).collect();
        let blobs: Vec<_> = (0..40).map(|n| Cell::new(Value::Blob(&all[..n]), &mut arena)).collect();
        for (n, (cell, blob)) in cells.iter().zip(&blobs).enumerate() {
            assert!(matches!(cell.open(&arena), Value::Text(text) if *text == all[..n]));
            assert!(matches!(blob.open(&arena), Value::Blob(bytes) if *bytes == all[..n]));
            for (m, other) in cells.iter().enumerate() {
                assert_eq!(cell.is_alike(other, Arenas::Same), n == m);
                assert_eq!(cell.is_alike(other, Arenas::Apart), n == m && n <= MAX_INLINE);
            }
            assert!(!cell.is_alike(blob, Arenas::Same));
        }
        assert_eq!(arena.len(), 2 * (15..40).sum::<usize>());
        assert_eq!(Cell::new(Value::Text(b"ab"), &mut arena), Cell::new(Value::Text(b"ab"), &mut Vec::new()));
        assert_ne!(Cell::new(Value::Text(b"a\0"), &mut arena), Cell::new(Value::Text(b"a"), &mut arena));
    }

    #[test]
    fn many_cells_equal_agrees_with_value_equality() {
        let long = b"a text that is longer than a cell";
        let build = |last: Value<'_>, at: usize| {
            let mut arena = b"not at the same offset"[..at % 7].to_vec();
            let mut values = [Value::Integer(3), Value::Null, Value::Text(b"short"), Value::Text(long)].repeat(10);
            values[at] = last;
            (values.into_iter().map(|value| Cell::new(value, &mut arena)).collect::<Vec<_>>(), arena)
        };
        let equal = |a: Value<'_>, b: Value<'_>, at| {
            let ((left, left_arena), (right, right_arena)) = (build(a, at), build(b, at));
            let arenas = if left_arena == right_arena { Arenas::Same } else { Arenas::Apart };
            many_cells_equal((&left, &left_arena), (&right, &right_arena), arenas)
        };
        for at in [0, 15, 16, 39] {
            assert!(equal(Value::Integer(1), Value::Real(1.0), at));
            assert!(equal(Value::Real(0.0), Value::Real(-0.0), at));
            assert!(equal(Value::Text(long), Value::Text(long), at));
            assert!(!equal(Value::Text(long), Value::Blob(long), at));
            assert!(!equal(Value::Text(b"a text that is longer than a cexl"), Value::Text(long), at));
            assert!(!equal(Value::Integer(1), Value::Real(1.5), at));
            assert!(!equal(Value::Real(f64::NAN), Value::Real(f64::NAN), at));
        }
        let (left, right) = (build(Value::Null, 1), build(Value::Null, 2));
        assert!(many_cells_equal((&left.0[3..4], &left.1), (&right.0[3..4], &right.1), Arenas::Apart), "two places");
    }

    #[test]
    fn equal_values_have_equal_keys_and_nan_equals_nothing() {
        let long = b"a text that is longer than a cell";
        let mut arena = Vec::new();
        let mut hash = |value| {
            let cell = Cell::new(value, &mut arena);
            hash_bytes(&[&cell.key(), cell.long(&arena).unwrap_or_default()].concat())
        };
        for i in [0, 1, -1, 1 << 53, i64::MIN] {
            assert_eq!(hash(Value::Integer(i)), hash(Value::Real(i as f64)));
        }
        assert_eq!(hash(Value::Real(0.0)), hash(Value::Real(-0.0)));
        assert_eq!(hash(Value::Text(long)), hash(Value::Text(long)), "from two offsets");
        assert_ne!(hash(Value::Text(long)), hash(Value::Blob(long)));
        assert_ne!(hash(Value::Text(b"a")), hash(Value::Blob(b"a")));
        let mut cell = |value| Cell::new(value, &mut arena);
        let nan = cell(Value::Real(f64::NAN));
        assert!(
            has_nan_in(&[cell(Value::Null), nan]) && !has_nan_in(&[cell(Value::Text(b" ")), cell(Value::Real(0.5))])
        );
        assert!(!nan.is_alike(&nan, Arenas::Same));
        assert!(matches!(nan.open(&arena), Value::Real(r) if r.is_nan()));
    }
}
