//! `paverl`: PaVeRL-SQL's accuracy, the fraction of the gold's cells in the prediction, column by column.

use std::borrow::Cow;
use std::collections::HashSet;

use super::number::{parse_integer, parse_number};
use super::options::Options;
use super::pytext::repr_float;
use crate::budget::{SMALL_SORT, charge_sort, check_limits, equal_bytes, spend, spend_on_bytes};
use crate::memory::{check_room_for, collect, unwind_if_oom};
use crate::result::table::Table;
use crate::result::value::Value;

/// The value of NULL in a numeric column, and its text in a text column.
const NULL_NUMBER: f64 = -1e10;
const NULL_TEXT: &[u8] = b"-10000000000";

/// Number of rows between two checks of the clock.
const BLOCK: usize = 1 << 12;

/// Tolerance between floats, after rounding to three digits for column matching.
const TOLERANCE: f64 = 0.005;

/// A normalised column. Texts are borrowed from the table.
#[derive(Clone, Debug, PartialEq)]
enum NormalColumn<'a> {
    Text(Vec<Cow<'a, [u8]>>),
    Real(Vec<f64>),
    Integer(Vec<i64>),
}

/// Returns the accuracy in [0, 1]; 0 if the row counts differ by more than `row_slack`.
pub(super) fn accuracy(predicted: &Table, gold: &Table, options: &Options) -> f64 {
    let (n_found, n_wanted) = count_matched_cells(predicted, gold, options);
    if n_wanted == 0 { 0.0 } else { n_found as f64 / n_wanted as f64 }
}

/// Returns whether all rows and columns are found (`EX_b`), with fewer extra columns than `surplus_columns`.
pub(super) fn is_whole(predicted: &Table, gold: &Table, options: &Options) -> bool {
    let (n_found, n_wanted) = count_matched_cells(predicted, gold, options);
    let surplus = predicted.width().saturating_sub(gold.width());
    n_wanted > 0 && n_found == n_wanted && options.surplus_columns.is_none_or(|n| surplus < n)
}

/// Returns the number of matched gold cells and the number of gold cells; for a gold without rows, its columns count.
fn count_matched_cells(predicted: &Table, gold: &Table, options: &Options) -> (usize, usize) {
    let (n_predicted, n_gold) = (predicted.n_rows(), gold.n_rows());
    if gold.width() == 0 || n_predicted.abs_diff(n_gold) > options.row_slack || (n_gold == 0) != (n_predicted == 0) {
        return (0, n_gold.max(1) * gold.width());
    }
    let (predicted_columns, gold_columns) = (normalise(predicted), normalise(gold));
    if n_gold == 0 {
        return (count_matched_columns(&gold_columns, &predicted_columns), gold.width());
    }
    let n_columns = if n_predicted == n_gold {
        count_matched_columns(&gold_columns, &predicted_columns)
    } else if n_predicted > n_gold {
        filter_by_key(&gold_columns, &predicted_columns, options.drop_duplicates)
            .map_or(0, |selected| count_matched_columns(&gold_columns, &selected))
    } else if gold_columns.len() == 1
        && key(&predicted_columns).is_some_and(|key| is_sub_multiset(key, &gold_columns[0]))
    {
        predicted_columns.len() // the prediction itself is the reference
    } else {
        filter_by_key(&predicted_columns, &gold_columns, false)
            .map_or(0, |selected| count_matched_columns(&selected, &predicted_columns))
    };
    let n_rows = n_predicted.min(n_gold);
    (n_rows * n_columns.min(gold.width()), n_gold * gold.width())
}

fn normalise(table: &Table) -> Vec<NormalColumn<'_>> {
    (0..table.width()).map(|number| normalise_column(table, number)).collect()
}

/// Normalises a column: numeric if it holds numbers, text consisting of numbers, or only NULLs; otherwise text.
fn normalise_column(table: &Table, number: usize) -> NormalColumn<'_> {
    spend(table.n_rows());
    let values = || {
        (0..table.n_rows()).map(|row| {
            if row.is_multiple_of(BLOCK) {
                check_limits(2 * BLOCK);
            }
            charge_value(table.value(row, number))
        })
    };
    let is_null = |value: Value<'_>| matches!(value, Value::Null | Value::Text(b""));
    let is_number = |value: Value<'_>| match value {
        Value::Integer(_) | Value::Real(_) => true,
        Value::Text(text) => parse_number(text).is_some(),
        _ => is_null(value),
    };
    if !values().all(|value| is_null(value) || is_number(value)) {
        return NormalColumn::Text(collect(values().map(normal_text)));
    }
    let is_integer = |value: Value<'_>| match value {
        Value::Integer(_) => true,
        Value::Text(text) => parse_integer(text).is_some(),
        _ => false,
    };
    let integer = |value: Value<'_>| match value {
        Value::Integer(i) => i,
        Value::Text(text) => parse_integer(text).unwrap_or_default(),
        _ => 0,
    };
    if !table.is_empty() && values().all(is_integer) {
        return NormalColumn::Integer(collect(values().map(integer)));
    }
    NormalColumn::Real(collect(values().map(normal_number)))
}

/// Charges the steps to read a long value.
fn charge_value(value: Value<'_>) -> Value<'_> {
    if let Value::Text(bytes) | Value::Blob(bytes) = value {
        spend_on_bytes(bytes.len());
    }
    value
}

fn normal_number(value: Value<'_>) -> f64 {
    match value {
        Value::Integer(i) => i as f64,
        Value::Real(r) => r,
        Value::Text(text) => parse_number(text).unwrap_or(NULL_NUMBER),
        Value::Null | Value::Blob(_) => NULL_NUMBER,
    }
}

fn normal_text(value: Value<'_>) -> Cow<'_, [u8]> {
    match value {
        Value::Null => Cow::Borrowed(NULL_TEXT),
        Value::Integer(i) => Cow::Owned(i.to_string().into_bytes()),
        Value::Real(r) => Cow::Owned(repr_float(r).into_bytes()),
        Value::Text(text) => Cow::Borrowed(text),
        Value::Blob(bytes) => {
            unwind_if_oom(check_room_for(bytes.len()));
            Cow::Owned([b"b'", bytes, b"'"].concat())
        }
    }
}

/// Returns the first text column, else the first column of floats, else the first of integers.
fn key<'c, 'a>(columns: &'c [NormalColumn<'a>]) -> Option<&'c NormalColumn<'a>> {
    let first = |is_kind: fn(&NormalColumn<'_>) -> bool| columns.iter().find(|column| is_kind(column));
    first(|column| matches!(column, NormalColumn::Text(_)))
        .or_else(|| first(|column| matches!(column, NormalColumn::Real(_))))
        .or_else(|| first(|column| matches!(column, NormalColumn::Integer(_))))
}

/// Selects the rows of the larger table whose key occurs in the smaller one's key column; `None` if their number is
/// wrong. If there are too many, repeated rows may be dropped first.
fn filter_by_key<'a>(
    smaller: &[NormalColumn<'_>],
    larger: &[NormalColumn<'a>],
    drop_duplicates: bool,
) -> Option<Vec<NormalColumn<'a>>> {
    let key = key(smaller)?;
    let count = |rows: &[bool]| rows.iter().filter(|is_kept| **is_kept).count();
    let is_key = |rows: &Vec<bool>| count(rows) >= key.n_distinct();
    let mut rows = larger.iter().filter_map(|column| column.rows_in(key)).find(is_key)?;
    if drop_duplicates && count(&rows) > key.len() {
        keep_first_of_equal(larger, &mut rows);
    }
    (count(&rows) == key.len()).then(|| larger.iter().map(|column| column.select_rows(&rows)).collect())
}

/// Deselects every selected row that repeats an earlier one.
fn keep_first_of_equal(columns: &[NormalColumn<'_>], rows: &mut [bool]) {
    spend(rows.len() * columns.len());
    let mut seen = HashSet::new();
    for (row, is_kept) in rows.iter_mut().enumerate().filter(|(_, is_kept)| **is_kept) {
        check_limits(8 * columns.len());
        if seen.len() == seen.capacity() {
            unwind_if_oom(check_room_for(4 * seen.len() * size_of::<Vec<Value<'_>>>()));
        }
        *is_kept = seen.insert(columns.iter().map(|column| column.value(row)).collect::<Vec<_>>());
    }
}

/// Returns whether `whole` contains each value of `part` at least as often, with the tolerance for floats.
fn is_sub_multiset(part: &NormalColumn<'_>, whole: &NormalColumn<'_>) -> bool {
    match (part, whole) {
        (NormalColumn::Text(part), NormalColumn::Text(whole)) => {
            is_sublist(&sorted(part), &sorted(whole), |a, b| a == b, |a, b| a > b)
        }
        (NormalColumn::Integer(part), NormalColumn::Integer(whole)) => {
            is_sublist(&sorted(part), &sorted(whole), |a, b| a == b, |a, b| a > b)
        }
        (NormalColumn::Real(part), NormalColumn::Real(whole)) => {
            is_sublist(&sorted_reals(part), &sorted_reals(whole), |a, b| is_near(*a, *b), |a, b| a > b)
        }
        _ => false,
    }
}

/// Merges two sorted lists: each item of `part` consumes the next equal item of `whole`.
fn is_sublist<T>(part: &[T], whole: &[T], same: impl Fn(&T, &T) -> bool, is_after: impl Fn(&T, &T) -> bool) -> bool {
    let mut rest = whole.iter().inspect(|_| check_limits(1));
    part.iter().all(|item| {
        rest.by_ref().find(|other| same(item, other) || !is_after(item, other)).is_some_and(|other| same(item, other))
    })
}

/// Counts the reference columns that match an unused column with the same sorted values.
fn count_matched_columns(reference: &[NormalColumn<'_>], others: &[NormalColumn<'_>]) -> usize {
    let mut unused: Vec<NormalColumn<'_>> = others.iter().map(NormalColumn::sorted).collect();
    let mut n = 0;
    for column in reference.iter().map(NormalColumn::sorted) {
        if let Some(index) = unused.iter().position(|other| column.matches(other)) {
            unused.remove(index);
            n += 1;
        }
    }
    n
}

impl<'a> NormalColumn<'a> {
    /// Returns the sorted values, with floats rounded to three digits.
    fn sorted(&self) -> Self {
        match self {
            NormalColumn::Text(values) => NormalColumn::Text(sorted(values)),
            NormalColumn::Integer(values) => NormalColumn::Integer(sorted(values)),
            NormalColumn::Real(values) => NormalColumn::Real(sorted_reals(&collect(
                values.iter().inspect(|_| check_limits(1)).map(|v| round_as_numpy(*v)),
            ))),
        }
    }

    /// Returns whether two sorted columns hold the same values.
    fn matches(&self, other: &NormalColumn<'_>) -> bool {
        spend(self.len());
        let close = |a: &[f64], b: &[f64]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_near(*a, *b));
        // Integers have no tolerance, even against floats: a count is right or wrong.
        let same = |a: &[i64], b: &[f64]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Value::Integer(*a).equals(Value::Real(*b)))
        };
        match (self, other) {
            (NormalColumn::Text(a), NormalColumn::Text(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal_bytes(a, b))
            }
            (NormalColumn::Integer(a), NormalColumn::Integer(b)) => a == b,
            (NormalColumn::Real(a), NormalColumn::Real(b)) => close(a, b),
            (NormalColumn::Integer(a), NormalColumn::Real(b)) | (NormalColumn::Real(b), NormalColumn::Integer(a)) => {
                same(a, b)
            }
            (NormalColumn::Text(a), b) | (b, NormalColumn::Text(a)) => a.is_empty() && b.len() == 0,
        }
    }

    fn len(&self) -> usize {
        match self {
            NormalColumn::Text(values) => values.len(),
            NormalColumn::Real(values) => values.len(),
            NormalColumn::Integer(values) => values.len(),
        }
    }

    /// Returns a value as bytes that are equal for equal values.
    fn value(&self, row: usize) -> Cow<'_, [u8]> {
        match self {
            NormalColumn::Text(values) => Cow::Borrowed(&values[row]),
            NormalColumn::Real(values) => Cow::Owned((values[row] + 0.0).to_bits().to_le_bytes().to_vec()),
            NormalColumn::Integer(values) => Cow::Owned(values[row].to_le_bytes().to_vec()),
        }
    }

    fn n_distinct(&self) -> usize {
        match self {
            NormalColumn::Text(values) => n_distinct(&sorted(values)),
            NormalColumn::Integer(values) => n_distinct(&sorted(values)),
            NormalColumn::Real(values) => n_distinct(&sorted_reals(values)),
        }
    }

    /// Returns for each row whether its value is among the key's; `None` if the types differ.
    fn rows_in(&self, key: &NormalColumn<'_>) -> Option<Vec<bool>> {
        charge_sort(self.len()); // one binary search per row
        match (self, key) {
            (NormalColumn::Text(values), NormalColumn::Text(key)) => {
                let key = sorted(key);
                Some(collect(values.iter().inspect(|_| check_limits(4)).map(|value| key.binary_search(value).is_ok())))
            }
            (NormalColumn::Integer(values), NormalColumn::Integer(key)) => {
                let key = sorted(key);
                Some(collect(values.iter().inspect(|_| check_limits(4)).map(|value| key.binary_search(value).is_ok())))
            }
            (NormalColumn::Real(values), NormalColumn::Real(key)) => {
                let key = sorted_reals(key);
                // Only the last value below and the first value not below can be the closest.
                let is_in = |value: &f64| {
                    let above = key.partition_point(|other| other.total_cmp(value).is_lt());
                    key[above.saturating_sub(1)..].iter().take(2).any(|other| is_near(*value, *other))
                };
                Some(collect(values.iter().inspect(|_| check_limits(4)).map(is_in)))
            }
            _ => None,
        }
    }

    fn select_rows(&self, rows: &[bool]) -> NormalColumn<'a> {
        match self {
            NormalColumn::Text(values) => NormalColumn::Text(select(values, rows)),
            NormalColumn::Real(values) => NormalColumn::Real(select(values, rows)),
            NormalColumn::Integer(values) => NormalColumn::Integer(select(values, rows)),
        }
    }
}

fn select<T: Clone>(values: &[T], rows: &[bool]) -> Vec<T> {
    let is_kept = |(_, is_kept): &(&T, &bool)| **is_kept;
    collect(values.iter().zip(rows).inspect(|_| check_limits(1)).filter(is_kept).map(|(value, _)| value.clone()))
}

fn sorted<T: Ord + Clone>(values: &[T]) -> Vec<T> {
    charge_sort(values.len());
    let mut values = collect(values.iter().cloned());
    if values.len() < SMALL_SORT {
        values.sort_unstable();
        return values;
    }
    values.sort_unstable_by(|a, b| {
        check_limits(1);
        a.cmp(b)
    });
    values
}

fn sorted_reals(values: &[f64]) -> Vec<f64> {
    charge_sort(values.len());
    let mut values = collect(values.iter().copied());
    if values.len() < SMALL_SORT {
        values.sort_unstable_by(f64::total_cmp);
        return values;
    }
    values.sort_unstable_by(|a, b| {
        check_limits(1);
        a.total_cmp(b)
    });
    values
}

fn n_distinct<T: PartialEq>(sorted: &[T]) -> usize {
    sorted.iter().zip(sorted.iter().skip(1)).filter(|(a, b)| a != b).count() + usize::from(!sorted.is_empty())
}

fn is_near(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= TOLERANCE
}

fn round_as_numpy(value: f64) -> f64 {
    let rounded = (value * 1e3).round_ties_even() / 1e3;
    if rounded.is_finite() { rounded } else { value }
}

#[cfg(test)]
mod tests {
    use super::{NormalColumn, Options, TOLERANCE, Table, accuracy, is_near, is_whole};
    use crate::result::table::tests::table;
    use crate::result::value::Value::{Integer, Null, Real, Text};

    fn within(row_slack: usize) -> Options {
        Options { row_slack, ..Options::default() }
    }

    fn whole(predicted: &Table, gold: &Table, row_slack: usize, surplus_columns: Option<usize>) -> bool {
        is_whole(predicted, gold, &Options { surplus_columns, ..within(row_slack) })
    }

    #[test]
    fn binary_search_in_the_key_matches_linear_search() {
        let step = TOLERANCE / 2.0;
        let mut values: Vec<f64> = (-40..40).map(|n| f64::from(n * n * n) * step / 3.0).collect();
        values.extend([f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e300, -1e300, TOLERANCE]);
        for key in [&values[..], &values[30..50], &values[80..], &values[..1], &[]] {
            let walked: Vec<bool> = values.iter().map(|value| key.iter().any(|k| is_near(*value, *k))).collect();
            assert_eq!(NormalColumn::Real(values.clone()).rows_in(&NormalColumn::Real(key.to_vec())), Some(walked));
        }
    }

    #[test]
    fn is_whole_requires_all_rows_and_limits_extra_columns() {
        let gold = table(1, &[&[Text(b"a")], &[Text(b"b")]]);
        let wider = table(2, &[&[Integer(1), Text(b"b")], &[Integer(2), Text(b"a")]]);
        assert!(whole(&gold, &gold, 0, Some(1)));
        assert!(whole(&wider, &gold, 0, None) && whole(&wider, &gold, 0, Some(2)));
        assert!(!whole(&wider, &gold, 0, Some(1)), "an extra column");
        assert!(!whole(&gold, &wider, 0, None), "a column is missing");
        assert_eq!(accuracy(&gold, &wider, &within(0)), 0.5);
        let longer = table(1, &[&[Text(b"b")], &[Text(b"c")], &[Text(b"a")]]);
        assert!(whole(&longer, &gold, 1, None), "the gold's rows are found by their key");
        assert!(!whole(&longer, &gold, 0, None) && !whole(&gold, &longer, 1, None));
        assert!(whole(&table(1, &[]), &table(1, &[]), 0, None) && !whole(&table(0, &[]), &table(0, &[]), 0, None));
    }

    #[test]
    fn integers_are_exact_against_floats() {
        let (gold, near) = (table(1, &[&[Integer(5)]]), |by| table(1, &[&[Real(5.0 + by)]]));
        assert_eq!(accuracy(&near(0.001), &gold, &within(0)), 0.0);
        assert_eq!(accuracy(&near(0.0), &gold, &within(0)), 1.0);
        assert_eq!(accuracy(&near(0.0004), &gold, &within(0)), 1.0, "floats are rounded to three digits");
        assert_eq!(accuracy(&near(0.001), &near(0.0), &within(0)), 1.0);
        let with_null = |value| table(1, &[&[value], &[Null]]);
        assert_eq!(accuracy(&with_null(Real(5.001)), &with_null(Integer(5)), &within(0)), 1.0, "a column of floats");
    }

    #[test]
    fn missing_distinct_is_accepted_if_duplicates_are_dropped() {
        let gold = table(2, &[&[Text(b"a"), Integer(1)], &[Text(b"b"), Integer(2)]]);
        let rows = |last: &[_; 2]| table(2, &[&[Text(b"b"), Integer(2)], &[Text(b"a"), Integer(1)], last]);
        let dropping = Options { drop_duplicates: true, ..within(5) };
        assert!(is_whole(&rows(&[Text(b"a"), Integer(1)]), &gold, &dropping));
        assert!(!is_whole(&rows(&[Text(b"a"), Integer(1)]), &gold, &within(5)));
        assert!(!is_whole(&rows(&[Text(b"a"), Integer(3)]), &gold, &dropping), "another row");
        assert!(!is_whole(&gold, &rows(&[Text(b"a"), Integer(1)]), &dropping), "the gold keeps its duplicates");
    }
}
