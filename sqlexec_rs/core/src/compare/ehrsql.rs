//! `ehrsql`: the first hundred rows, as sorted lists of texts, are equal (shared task of EHRSQL, 2024).
//!
//! `ehrsql_2022`: the first hundred rows, in result order and as Python formats them, are equal as multisets (Lee et
//! al. 2022).

use std::collections::BinaryHeap;

use super::multiset::Interner;
use super::pytext::{drop_undecodable, parse_float, repr_bytes, repr_float};
use crate::budget::{equal_bytes, spend, spend_on_bytes};
use crate::memory::{check_room_for, unwind_if_oom};
use crate::result::table::Table;
use crate::result::value::Value;

/// Steps to round, format and parse a value.
const TEXT_STEPS: usize = 8;

/// Number of passes over a long text: itself, without underscores, and as the bytes that Python writes.
const PASSES: usize = 6;

/// Number of rows that are compared.
const N_ROWS: usize = 100;

/// Numbers from this size have no fractional digits.
const WHOLE: f64 = 4_503_599_627_370_496.0; // 2^52

/// Returns whether the first hundred sorted rows are equal. Columns must be in the gold's order.
pub(super) fn equal_as_text(predicted: &Table, gold: &Table) -> bool {
    first_rows(predicted) == first_rows(gold)
}

/// Returns whether the first rows of both results are equal in any order, with equal types: 1 is not 1.0.
pub(super) fn equal_as_written(predicted: &Table, gold: &Table) -> bool {
    let mut numbers = Interner::new(written_alike);
    let [predicted, gold] = [predicted, gold].map(|table| {
        let mut rows: Vec<Vec<u32>> = (0..table.n_rows().min(N_ROWS))
            .map(|number| table.row(number).map(|value| numbers.number(value)).collect())
            .collect();
        rows.sort_unstable();
        rows
    });
    predicted == gold
}

/// Returns whether Python formats two values identically.
fn written_alike(left: Value<'_>, right: Value<'_>) -> bool {
    match (left, right) {
        (Value::Null, Value::Null) => true,
        (Value::Integer(a), Value::Integer(b)) => a == b,
        (Value::Real(a), Value::Real(b)) => a.to_bits() == b.to_bits(),
        (Value::Text(a), Value::Text(b)) | (Value::Blob(a), Value::Blob(b)) => equal_bytes(a, b),
        _ => false,
    }
}

/// Returns the first rows in sorted order. Keeps no more at a time, because a text takes far more memory than a
/// number.
fn first_rows(table: &Table) -> Vec<Vec<Vec<u8>>> {
    let mut first = BinaryHeap::with_capacity(N_ROWS + 1);
    for number in 0..table.n_rows() {
        let row: Vec<Vec<u8>> = table.row(number).map(sorted_text).collect();
        if first.len() == N_ROWS {
            let Some(mut last) = first.peek_mut() else { break };
            spend(1);
            if row < *last {
                *last = row;
            }
        } else {
            first.push(row);
        }
    }
    first.into_sorted_vec()
}

/// Returns the text of a value: a float rounded to three digits if Python's `float` accepts it, otherwise the text
/// itself.
fn sorted_text(value: Value<'_>) -> Vec<u8> {
    spend(TEXT_STEPS);
    if let Value::Text(bytes) | Value::Blob(bytes) = value {
        spend_on_bytes(PASSES * bytes.len());
        unwind_if_oom(check_room_for(PASSES * bytes.len()));
    }
    let number = match value {
        Value::Null => None,
        Value::Integer(i) => Some(i as f64),
        Value::Real(r) => Some(r),
        Value::Text(text) => parse_float(drop_undecodable(text).as_bytes()),
        Value::Blob(bytes) => parse_float(bytes),
    };
    match (number, value) {
        (Some(number), _) => repr_float(round_as_python(number)).into_bytes(),
        (None, Value::Text(text)) => drop_undecodable(text).into_owned().into_bytes(),
        (None, Value::Blob(bytes)) => repr_bytes(bytes).into_bytes(),
        (None, _) => b"None".to_vec(),
    }
}

/// Rounds like Python: by the exact value, ties to even.
fn round_as_python(number: f64) -> f64 {
    if number.abs() < WHOLE { format!("{number:.3}").parse().unwrap_or(number) } else { number }
}

#[cfg(test)]
mod tests {
    use super::{equal_as_text, equal_as_written, sorted_text};
    use crate::result::table::tests::table;
    use crate::result::value::Value::{self, Blob, Integer, Null, Real, Text};

    #[test]
    fn values_are_formatted_as_rounded_floats_or_texts() {
        let cases: [(Value<'_>, &str); 16] = [
            (Null, "None"),
            (Integer(2), "2.0"),
            (Integer(i64::MAX), "9.223372036854776e+18"),
            (Real(0.0625), "0.062"),
            (Real(0.1875), "0.188"),
            (Real(1.0005), "1.0"),
            (Real(-0.0004), "-0.0"),
            (Text(b" 2.5004 "), "2.5"),
            (Text(b"1_000"), "1000.0"),
            (Text(b"1__0"), "1__0"),
            (Text(b"NaN"), "nan"),
            (Text(b"-Infinity"), "-inf"),
            (Text(b"1\xff2"), "12.0"),
            (Text(b"a\xff "), "a "),
            (Blob(b"7"), "7.0"),
            (Blob(b"a"), "b'a'"),
        ];
        for (value, text) in cases {
            assert_eq!(sorted_text(value), text.as_bytes(), "{value:?}");
        }
    }

    #[test]
    fn row_order_is_ignored_but_duplicates_count() {
        let gold = table(2, &[&[Integer(1), Text(b"a")], &[Integer(1), Text(b"a")], &[Null, Real(0.5)]]);
        let same = table(2, &[&[Null, Text(b"0.5001")], &[Real(1.0), Text(b"a")], &[Text(b"1"), Text(b"a")]]);
        assert!(equal_as_text(&same, &gold));
        assert!(
            !equal_as_text(&table(2, &[&[Null, Real(0.5)], &[Integer(1), Text(b"a")]]), &gold),
            "a row is repeated"
        );
        assert!(!equal_as_text(&table(2, &[&[Text(b"a"), Integer(1)]]), &table(2, &[&[Integer(1), Text(b"a")]])));
        assert!(equal_as_text(&table(1, &[&[Text(b"None")]]), &table(1, &[&[Null]])));
        assert!(equal_as_text(&table(1, &[]), &table(3, &[])));
        assert!(!equal_as_text(&table(1, &[]), &table(1, &[&[Null]])));
    }

    #[test]
    fn first_hundred_sorted_rows_count() {
        let column_of = |numbers: &mut dyn Iterator<Item = i64>| {
            let rows: Vec<[Value<'_>; 1]> = numbers.map(|n| [Integer(n)]).collect();
            table(1, &rows.iter().map(<[Value<'_>; 1]>::as_slice).collect::<Vec<_>>())
        };
        let gold = column_of(&mut (100..250));
        assert!(equal_as_text(&column_of(&mut (100..200).rev()), &gold));
        assert!(equal_as_text(&column_of(&mut (100..200).chain(400..999)), &gold));
        assert!(!equal_as_text(&column_of(&mut (100..199)), &gold));
        assert!(!equal_as_text(&column_of(&mut (100..250).chain(10..11)), &gold), "a different row is among the first");
    }

    #[test]
    fn formatted_rows_have_types_and_no_order() {
        let gold = table(2, &[&[Integer(1), Text(b"a")], &[Integer(1), Text(b"a")], &[Null, Real(0.5)]]);
        assert!(equal_as_written(
            &table(2, &[&[Null, Real(0.5)], &[Integer(1), Text(b"a")], &[Integer(1), Text(b"a")]]),
            &gold
        ));
        for other in [
            table(2, &[&[Null, Real(0.5)], &[Integer(1), Text(b"a")]]),
            table(2, &[&[Null, Real(0.5001)], &[Integer(1), Text(b"a")], &[Integer(1), Text(b"a")]]),
            table(2, &[&[Null, Real(0.5)], &[Real(1.0), Text(b"a")], &[Integer(1), Text(b"a")]]),
            table(2, &[&[Null, Real(0.5)], &[Text(b"1"), Text(b"a")], &[Integer(1), Text(b"a")]]),
            table(2, &[&[Real(0.5), Null], &[Integer(1), Text(b"a")], &[Integer(1), Text(b"a")]]),
        ] {
            assert!(!equal_as_written(&other, &gold));
        }
        assert!(!equal_as_written(&table(1, &[&[Real(0.0)]]), &table(1, &[&[Real(-0.0)]])));
        assert!(equal_as_written(&table(1, &[]), &table(3, &[])));
        assert!(!equal_as_written(&table(1, &[&[Integer(1)]]), &table(2, &[&[Integer(1), Integer(1)]])));
    }

    #[test]
    fn first_hundred_rows_count_in_result_order() {
        let column_of = |numbers: &mut dyn Iterator<Item = i64>| {
            let rows: Vec<[Value<'_>; 1]> = numbers.map(|n| [Integer(n)]).collect();
            table(1, &rows.iter().map(<[Value<'_>; 1]>::as_slice).collect::<Vec<_>>())
        };
        let gold = column_of(&mut (0..150));
        assert!(equal_as_written(&column_of(&mut (0..100).rev().chain(900..950)), &gold));
        assert!(!equal_as_written(&column_of(&mut (0..150).rev()), &gold), "different rows come first");
        assert!(!equal_as_written(&column_of(&mut (0..99)), &gold));
    }
}
