//! Compares multisets and sets under a given equality, exactly: hashes find candidates, equality decides.

use hashbrown::HashTable;

use crate::budget::{check_limits, equal_bytes, spend};
use crate::memory::{OutOfMemory, check_room_for, grow, unwind_if_oom};
use crate::result::row_hash::hash_one;
use crate::result::table::Table;
use crate::result::value::Value;

/// Returns whether two lists contain the same items equally often.
pub(super) fn same_multiset<T>(
    left: &[T],
    right: &[T],
    hash: impl Fn(&T) -> u64,
    equal: impl Fn(&T, &T) -> bool,
) -> bool {
    let equal = counted(equal);
    if left.len() != right.len() {
        return false;
    }
    let mut counts: HashTable<(usize, u32)> = table_for(left.len());
    for (number, item) in left.iter().enumerate() {
        check_limits(1);
        let same = |(other, _): &(usize, u32)| equal(&left[*other], item);
        let mut entry = counts.entry(hash(item), same, |(other, _)| hash(&left[*other])).or_insert((number, 0));
        entry.get_mut().1 += 1;
    }
    right.iter().inspect(|_| check_limits(1)).all(|item| {
        match counts.find_mut(hash(item), |(other, _)| equal(&left[*other], item)) {
            Some((_, count)) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        }
    })
}

/// Returns whether two lists contain the same distinct items.
pub(super) fn same_set<T>(left: &[T], right: &[T], hash: impl Fn(&T) -> u64, equal: impl Fn(&T, &T) -> bool) -> bool {
    let equal = counted(equal);
    let mut seen: HashTable<(usize, bool)> = table_for(left.len());
    for (number, item) in left.iter().enumerate() {
        check_limits(1);
        let same = |(other, _): &(usize, bool)| equal(&left[*other], item);
        seen.entry(hash(item), same, |(other, _)| hash(&left[*other])).or_insert((number, false));
    }
    let mut n_missing = seen.len();
    for item in right {
        check_limits(1);
        match seen.find_mut(hash(item), |(other, _)| equal(&left[*other], item)) {
            Some((_, is_found)) => n_missing -= usize::from(!std::mem::replace(is_found, true)),
            None => return false,
        }
    }
    n_missing == 0
}

/// Returns a hash table with room for `n` items, or ends the comparison.
pub(super) fn table_for<T>(n: usize) -> HashTable<T> {
    let mut table = HashTable::new();
    unwind_if_oom(check_room_for(2 * n * size_of::<T>()));
    unwind_if_oom(table.try_reserve(n, |_| 0).map_err(|_| OutOfMemory)); // the table is empty, so nothing is hashed
    table
}

/// Charges each comparison: many values may share a hash.
fn counted<T>(equal: impl Fn(&T, &T) -> bool) -> impl Fn(&T, &T) -> bool {
    move |a, b| {
        spend(1);
        equal(a, b)
    }
}

/// Numbers the distinct values of tables.
pub(super) struct Interner<'a> {
    table: HashTable<u32>,
    values: Vec<Value<'a>>,
    same: fn(Value<'_>, Value<'_>) -> bool,
}

impl<'a> Interner<'a> {
    /// Creates an empty interner. `same` must imply Python equality, because values are found by Python's hash.
    pub(super) fn new(same: fn(Value<'_>, Value<'_>) -> bool) -> Self {
        Self { table: HashTable::new(), values: Vec::new(), same }
    }

    /// Returns the number of a value; equal values have the same number.
    pub(super) fn number(&mut self, value: Value<'a>) -> u32 {
        check_limits(4);
        let next = self.values.len() as u32;
        if self.values.len() == self.values.capacity() {
            unwind_if_oom(grow(&mut self.values, 1));
            let hash = |number: &u32| hash_one(self.values[*number as usize]);
            unwind_if_oom(self.table.try_reserve(self.values.len() + 1, hash).map_err(|_| OutOfMemory));
        }
        let values = &self.values;
        let same = |number: &u32| {
            spend(1);
            (self.same)(values[*number as usize], value)
        };
        let number =
            *self.table.entry(hash_one(value), same, |number| hash_one(values[*number as usize])).or_insert(next).get();
        if number == next {
            self.values.push(value);
        }
        number
    }

    /// Returns the cells of a table as numbers, row by row.
    pub(super) fn matrix(&mut self, table: &'a Table) -> Vec<u32> {
        let mut cells = Vec::new();
        unwind_if_oom(grow(&mut cells, table.n_rows() * table.width()));
        cells.extend((0..table.n_rows()).flat_map(|row| table.row(row)).map(|value| self.number(value)));
        cells
    }
}

/// Returns whether two lists of values are equal in order.
pub(super) fn equal_cells(left: &[Value<'_>], right: &[Value<'_>]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(a, b)| equal(*a, *b))
}

/// Compares two values, charging steps for long ones.
#[inline]
pub(super) fn equal(left: Value<'_>, right: Value<'_>) -> bool {
    if let (Value::Text(a), Value::Text(b)) | (Value::Blob(a), Value::Blob(b)) = (left, right) {
        return equal_bytes(a, b);
    }
    left.equals(right)
}
