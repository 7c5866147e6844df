//! `test_suite`: a single column permutation for all rows makes the row lists equal (Spider; SQL-R1).

use super::multiset::{equal_cells, same_set};
use super::permute::some_permutation_agrees;
use super::pytext::{drop_undecodable, python_sort_key};
use crate::budget::{charge_sort, check_limits, check_limits_on_bytes, spend_on_bytes};
use crate::memory::{check_room_for, collect, unwind_if_oom};
use crate::result::row_hash::hash_one;
use crate::result::table::Table;
use crate::result::value::{Value, exact_integer};

/// Steps to format a value.
const TEXT_STEPS: usize = 8;

/// Maximum number of characters that Python writes for a byte.
const LONGEST_ESCAPE: usize = 4;

/// Returns whether the tables agree. `is_ordered` means that the gold asks for an order.
#[allow(clippy::redundant_closure_for_method_calls, reason = "a method of `Value` is bound to one lifetime")]
pub(super) fn equal_up_to_columns(predicted: &Table, gold: &Table, is_ordered: bool) -> bool {
    if predicted.is_empty() && gold.is_empty() {
        return true;
    }
    if predicted.n_rows() != gold.n_rows() || predicted.width() != gold.width() {
        return false;
    }
    if std::ptr::eq(predicted, gold) {
        return true;
    }
    let (clean_predicted, clean_gold) = (without_undecodable(predicted), without_undecodable(gold));
    let (predicted, gold) = (clean_predicted.as_ref().unwrap_or(predicted), clean_gold.as_ref().unwrap_or(gold));
    if some_permutation_agrees(predicted, gold, is_ordered, |a, b| a.is_identical(b)) {
        return true; // identical cells sort identically, so the rejection below cannot apply
    }
    (has_integral_float(predicted) || has_integral_float(gold))
        && some_permutation_agrees(predicted, gold, is_ordered, |a, b| a.equals(b))
        && passes_quick_rejection(predicted, gold, is_ordered)
}

/// The reference rejects early, comparing each row's cells sorted by their Python text. For tables that a permutation
/// makes equal, this changes the verdict only if a float equals an integer (or 0.0 equals -0.0), so it is checked
/// only then.
fn passes_quick_rejection(predicted: &Table, gold: &Table, is_ordered: bool) -> bool {
    let (left, right) = (rows_by_text(predicted), rows_by_text(gold));
    if is_ordered {
        left.iter().zip(&right).all(|(a, b)| equal_cells(a, b))
    } else {
        same_set(&left, &right, |row| hash_one(row), |a, b| equal_cells(a, b))
    }
}

fn has_integral_float(table: &Table) -> bool {
    let is_one = |value: Value<'_>| matches!(value, Value::Real(r) if exact_integer(r).is_some());
    (0..table.n_rows()).inspect(|_| check_limits(table.width())).any(|row| table.row(row).any(is_one))
}

fn rows_by_text(table: &Table) -> Vec<Vec<Value<'_>>> {
    let sort = |row| {
        let mut cells: Vec<Value<'_>> = table.row(row).collect();
        charge_sort(cells.len());
        check_limits(TEXT_STEPS * cells.len());
        cells.sort_by_cached_key(|value| {
            if let Value::Text(bytes) | Value::Blob(bytes) = value {
                spend_on_bytes(bytes.len());
                unwind_if_oom(check_room_for(LONGEST_ESCAPE * bytes.len()));
            }
            python_sort_key(*value)
        });
        cells
    };
    collect((0..table.n_rows()).map(sort))
}

/// Drops invalid UTF-8 bytes from texts, like the reference when it reads; `None` without any.
fn without_undecodable(table: &Table) -> Option<Table> {
    let is_broken = |value: Value<'_>| {
        matches!(value, Value::Text(bytes) if {
            check_limits_on_bytes(bytes.len());
            std::str::from_utf8(bytes).is_err()
        })
    };
    if !(0..table.n_rows()).inspect(|_| check_limits(table.width())).any(|row| table.row(row).any(is_broken)) {
        return None;
    }
    let mut clean = Table::new(table.columns().to_vec());
    for row in 0..table.n_rows() {
        for value in table.row(row) {
            check_limits(1);
            let Value::Text(bytes) = value else {
                unwind_if_oom(clean.try_push(value));
                continue;
            };
            spend_on_bytes(bytes.len());
            unwind_if_oom(check_room_for(bytes.len()));
            unwind_if_oom(clean.try_push(Value::Text(drop_undecodable(bytes).as_bytes())));
        }
        clean.end_row();
    }
    Some(clean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::table::tests::table;
    use crate::result::value::Value::{Integer, Real, Text};

    #[test]
    fn same_permutation_applies_to_all_rows() {
        let gold = table(2, &[&[Integer(1), Integer(2)], &[Integer(3), Integer(4)]]);
        assert!(equal_up_to_columns(&table(2, &[&[Integer(4), Integer(3)], &[Integer(2), Integer(1)]]), &gold, false));
        assert!(!equal_up_to_columns(&table(2, &[&[Integer(4), Integer(3)], &[Integer(2), Integer(1)]]), &gold, true));
        assert!(equal_up_to_columns(&table(2, &[&[Integer(2), Integer(1)], &[Integer(4), Integer(3)]]), &gold, true));
        assert!(!equal_up_to_columns(&table(2, &[&[Integer(2), Integer(1)], &[Integer(3), Integer(4)]]), &gold, false));
        assert!(equal_up_to_columns(&table(1, &[]), &table(3, &[]), true));
    }

    #[test]
    fn cells_that_sort_differently_as_text_are_rejected() {
        let row = |cells: &[Value<'_>]| table(cells.len(), &[cells]);
        assert!(equal_up_to_columns(&row(&[Real(2.0)]), &row(&[Integer(2)]), false));
        // As text, "10<class" < "1<class", but "1.0<class" < "10.0<class".
        assert!(!equal_up_to_columns(&row(&[Real(1.0), Real(10.0)]), &row(&[Integer(1), Integer(10)]), false));
    }

    #[test]
    fn undecodable_bytes_are_dropped() {
        let row = |cell: &[u8]| table(1, &[&[Text(cell)]]);
        assert!(equal_up_to_columns(&row(b"a\xffb"), &row(b"ab"), false));
        assert!(!equal_up_to_columns(&row(b"a\xffb"), &row(b"a"), false));
    }
}
