//! `spider2`: every gold column that counts matches some predicted column (Spider 2.0).

use super::csv::{FrameValue, column_through_csv};
use super::number::is_close;
use super::pytext::repr_float;
use crate::budget::{self, check_limits, equal_bytes, spend};
use crate::memory::{check_room_for, unwind_if_oom};
use crate::result::table::Table;

/// Absolute tolerance, and tolerance relative to the larger number.
const TOLERANCE: f64 = 0.01;
const SHARE: f64 = 1e-9;

/// Steps to format a value.
const TEXT_STEPS: usize = 8;

/// Returns whether each gold column (or each of `condition_cols`) matches a predicted column, which may be used
/// repeatedly.
pub(super) fn columns_found(predicted: &Table, gold: &Table, condition_cols: &[usize], ignore_order: bool) -> bool {
    let all: Vec<usize> = (0..gold.width()).collect();
    let gold_numbers = if condition_cols.is_empty() { &all } else { condition_cols };
    if predicted.n_rows() != gold.n_rows() {
        return gold_numbers.is_empty();
    }
    if gold_numbers.iter().any(|number| *number >= gold.width()) {
        return false; // the option names a missing column, which matches nothing
    }
    let gold_columns = columns(gold, gold_numbers, ignore_order);
    let predicted_columns = columns(predicted, &(0..predicted.width()).collect::<Vec<_>>(), ignore_order);
    gold_columns.iter().all(|gold| predicted_columns.iter().any(|other| same(gold, other)))
}

/// Returns some columns of a table after a round trip through CSV, each sorted as text if order is ignored.
fn columns(table: &Table, numbers: &[usize], ignore_order: bool) -> Vec<Vec<FrameValue>> {
    let mut columns: Vec<Vec<FrameValue>> = numbers.iter().map(|number| column_through_csv(table, *number)).collect();
    if ignore_order {
        // pandas selects the columns together: if all are numeric and one has a fraction, integers get one too.
        let contains =
            |is_kind: fn(&FrameValue) -> bool| columns.iter().flatten().inspect(|_| check_limits(1)).any(is_kind);
        let are_widened = contains(|cell| matches!(cell, FrameValue::Real(_) | FrameValue::Missing))
            && !contains(|cell| matches!(cell, FrameValue::Text(_) | FrameValue::Truth(_)));
        for column in &mut columns {
            budget::sort_by_cached_key(column, |cell| {
                check_limits(TEXT_STEPS);
                frame_sort_key(cell, are_widened)
            });
        }
    }
    columns
}

/// Returns Python's text of a value, and whether it is a number. Missing values have become the integer 0.
fn frame_sort_key(cell: &FrameValue, is_widened: bool) -> (Vec<u8>, bool) {
    let text = match cell {
        FrameValue::Text(text) => {
            unwind_if_oom(check_room_for(text.len()));
            return (text.clone(), false);
        }
        FrameValue::Missing => "0".to_owned(),
        FrameValue::Truth(truth) => if *truth { "True" } else { "False" }.to_owned(),
        FrameValue::Integer(i) if is_widened => repr_float(*i as f64),
        FrameValue::Integer(i) => i.to_string(),
        FrameValue::Real(r) => repr_float(*r),
    };
    (text.into_bytes(), true)
}

fn same(left: &[FrameValue], right: &[FrameValue]) -> bool {
    left.iter().zip(right).inspect(|_| spend(1)).all(|(a, b)| match (number(a), number(b)) {
        (Some(a), Some(b)) => is_close(a, b, TOLERANCE, SHARE),
        _ => match (a, b) {
            (FrameValue::Text(a), FrameValue::Text(b)) => equal_bytes(a, b),
            _ => a == b,
        },
    })
}

fn number(cell: &FrameValue) -> Option<f64> {
    match cell {
        FrameValue::Missing => Some(0.0),
        FrameValue::Truth(truth) => Some(f64::from(*truth)),
        FrameValue::Integer(i) => Some(*i as f64),
        FrameValue::Real(r) => Some(*r),
        FrameValue::Text(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::columns_found;
    use crate::result::table::tests::table;
    use crate::result::value::Value::{Integer, Null, Real, Text};

    #[test]
    fn columns_match_at_any_position_without_aligned_rows() {
        let gold = table(2, &[&[Integer(1), Text(b"a")], &[Integer(2), Text(b"b")]]);
        let predicted = table(3, &[&[Text(b"b"), Null, Text(b"1")], &[Text(b"a"), Null, Real(2.009)]]);
        assert!(columns_found(&predicted, &gold, &[], true));
        assert!(!columns_found(&predicted, &gold, &[], false));
        assert!(columns_found(&predicted, &gold, &[0], false));
        assert!(!columns_found(&predicted, &gold, &[7], true));
    }

    #[test]
    fn null_is_zero_and_empty() {
        let single_column = |value| table(1, &[&[value]]);
        for text in [&b""[..], b"NA", b"None", b"nan"] {
            assert!(columns_found(&single_column(Null), &single_column(Text(text)), &[], true));
        }
        assert!(columns_found(&single_column(Null), &single_column(Integer(0)), &[], true));
        assert!(!columns_found(&single_column(Integer(0)), &single_column(Text(b"x")), &[], true));
        assert!(!columns_found(&single_column(Real(2.02)), &single_column(Integer(2)), &[], true));
        assert!(!columns_found(&table(1, &[]), &single_column(Null), &[], true));
    }

    #[test]
    fn large_numbers_are_equal_within_a_relative_tolerance() {
        let single_column = |value| table(1, &[&[value]]);
        assert!(columns_found(
            &single_column(Real(5_000_000_000.4)),
            &single_column(Integer(5_000_000_000)),
            &[],
            true
        ));
        assert!(!columns_found(&single_column(Real(500_000_000.8)), &single_column(Integer(500_000_000)), &[], true));
        assert!(columns_found(&single_column(Real(f64::INFINITY)), &single_column(Text(b"inf")), &[], true));
        assert!(!columns_found(&single_column(Real(f64::INFINITY)), &single_column(Real(1e300)), &[], true));
    }

    #[test]
    fn type_is_that_of_the_column() {
        let single_column = |text| table(1, &[&[Text(text)], &[Text(b"a")]]);
        assert!(!columns_found(&single_column(b"1"), &single_column(b"01"), &[], true));
        assert!(columns_found(&table(1, &[&[Text(b"1")]]), &table(1, &[&[Text(b"01")]]), &[], true));
        assert!(columns_found(&table(1, &[&[Text(b"True")]]), &table(1, &[&[Integer(1)]]), &[], true));
    }
}
