//! `refined`: equal row counts, and equal multisets of rows once the cells of each row are sorted, so the column
//! order is free per row (Think2SQL's evaluation).

use std::cmp::Ordering;

use super::multiset::{equal_cells, same_multiset};
use crate::budget::{charge_sort, check_limits};
use crate::memory::{collect, grow, unwind_if_oom};
use crate::result::row_hash::hash_one;
use crate::result::table::Table;
use crate::result::value::Value;

/// Returns whether the tables have equal multisets of rows, ignoring the order of cells in a row.
pub(super) fn equal_rows_of_sorted_cells(predicted: &Table, gold: &Table) -> bool {
    if predicted.n_rows() != gold.n_rows() {
        return false;
    }
    if predicted.is_empty() || std::ptr::eq(predicted, gold) {
        return true;
    }
    if predicted.width() != gold.width() {
        return false;
    }
    if predicted.equal_in_order(gold) || predicted.width() == 0 {
        return true;
    }
    let (left, right) = (sorted_cells(predicted), sorted_cells(gold));
    let rows = |cells| -> Vec<&[Value<'_>]> { collect(<[Value<'_>]>::chunks(cells, predicted.width())) };
    let hash = |row: &&[Value<'_>]| {
        check_limits(row.len());
        hash_one(row)
    };
    same_multiset(&rows(&left), &rows(&right), hash, |a, b| equal_cells(a, b))
}

/// Returns all cells, row by row, sorted within each row.
fn sorted_cells(table: &Table) -> Vec<Value<'_>> {
    let mut cells: Vec<Value<'_>> = Vec::new();
    unwind_if_oom(grow(&mut cells, table.n_rows() * table.width()));
    cells.extend((0..table.n_rows()).inspect(|_| check_limits(table.width())).flat_map(|row| table.row(row)));
    for row in cells.chunks_mut(table.width()) {
        charge_sort(row.len());
        row.sort_by(|a, b| order(*a, *b));
    }
    cells
}

/// Orders NULL < numbers < text < bytes; numbers by value, so that equal values are adjacent whatever their type.
pub(super) fn order(left: Value<'_>, right: Value<'_>) -> Ordering {
    match (left, right) {
        (Value::Integer(a), Value::Integer(b)) => a.cmp(&b),
        (Value::Real(a), Value::Real(b)) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
        (Value::Integer(a), Value::Real(b)) => order_integer_real(a, b),
        (Value::Real(a), Value::Integer(b)) => order_integer_real(b, a).reverse(),
        (Value::Text(a), Value::Text(b)) | (Value::Blob(a), Value::Blob(b)) => a.cmp(b),
        _ => class(left).cmp(&class(right)),
    }
}

fn class(value: Value<'_>) -> u8 {
    match value {
        Value::Null => 0,
        Value::Integer(_) | Value::Real(_) => 1,
        Value::Text(_) => 2,
        Value::Blob(_) => 3,
    }
}

/// Compares exactly, without rounding the integer to a float.
fn order_integer_real(integer: i64, real: f64) -> Ordering {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0; // 2^63
    if real >= LIMIT {
        Ordering::Less
    } else if real < -LIMIT {
        Ordering::Greater
    } else {
        let whole = real.trunc();
        integer.cmp(&(whole as i64)).then_with(|| whole.partial_cmp(&real).unwrap_or(Ordering::Equal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::table::tests::table;
    use crate::result::value::Value::{Integer, Null, Real, Text};

    #[test]
    fn cell_order_is_free_per_row_and_duplicates_count() {
        let gold = table(2, &[&[Integer(1), Text(b"a")], &[Integer(2), Null]]);
        assert!(equal_rows_of_sorted_cells(&table(2, &[&[Null, Real(2.0)], &[Integer(1), Text(b"a")]]), &gold));
        assert!(!equal_rows_of_sorted_cells(&table(2, &[&[Null, Real(2.0)], &[Null, Real(2.0)]]), &gold));
        assert!(!equal_rows_of_sorted_cells(&table(2, &[&[Null, Real(2.0)]]), &gold));
        assert!(equal_rows_of_sorted_cells(&table(2, &[]), &table(1, &[])));
    }

    #[test]
    fn numbers_are_ordered_exactly() {
        let big = (1_i64 << 53) + 1;
        assert_eq!(order(Integer(big), Real(big as f64)), Ordering::Greater);
        assert_eq!(order(Real(-0.5), Integer(0)), Ordering::Less);
        assert_eq!(order(Integer(-1), Real(-1.5)), Ordering::Greater);
        assert_eq!(order(Integer(i64::MAX), Real(1e300)), Ordering::Less);
        assert_eq!(order(Null, Integer(0)), Ordering::Less);
    }
}
