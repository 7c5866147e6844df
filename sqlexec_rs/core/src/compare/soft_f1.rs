//! `soft_f1`: after dropping duplicates, compares rows by position and returns micro F1 over their values (BIRD
//! mini-dev).

use hashbrown::HashTable;

use super::multiset::{equal, table_for};
use super::number::ratio;
use crate::budget::{check_limits, spend};
use crate::memory::{grow, unwind_if_oom};
use crate::result::table::Table;
use crate::result::value::Value;

/// Returns the F1 score; 1 if both tables are empty.
pub(super) fn soft_f1(predicted: &Table, gold: &Table) -> f64 {
    if predicted.is_empty() && gold.is_empty() {
        return 1.0;
    }
    let (left, right) = (distinct_rows(predicted), distinct_rows(gold));
    let n_paired = left.len().min(right.len());
    let (mut both, mut only_predicted, mut only_gold) = (0.0, 0.0, 0.0);
    let n_columns = gold.width().max(1) as f64;
    for (row, gold_row) in left.iter().zip(&right) {
        spend(2 * predicted.width() * gold.width());
        let is_in_gold = |value: &Value<'_>| gold.row(*gold_row).any(|other| equal(*value, other));
        let is_in_predicted = |value: &Value<'_>| predicted.row(*row).any(|other| equal(*value, other));
        // Matches are counted on the prediction's side, so in rows with repeated values they differ from the gold's
        // count.
        let n_found = predicted.row(*row).filter(is_in_gold).count();
        let n_missing = gold.row(*gold_row).filter(|value| !is_in_predicted(value)).count();
        both += n_found as f64 / n_columns;
        only_predicted += (predicted.width() - n_found) as f64 / n_columns;
        only_gold += n_missing as f64 / n_columns;
    }
    only_predicted += (left.len() - n_paired) as f64;
    only_gold += (right.len() - n_paired) as f64;
    let (precision, recall) = (ratio(both, both + only_predicted), ratio(both, both + only_gold));
    ratio(2.0 * precision * recall, precision + recall)
}

/// Returns the first row of each group of equal rows, in order.
fn distinct_rows(table: &Table) -> Vec<usize> {
    let hashes = table.row_hashes();
    let mut seen: HashTable<usize> = table_for(table.n_rows());
    let mut rows = Vec::new();
    unwind_if_oom(grow(&mut rows, table.n_rows()));
    for (row, hash) in hashes.iter().enumerate() {
        check_limits(table.width());
        if seen.find(*hash, |other| table.rows_equal(*other, table, row)).is_none() {
            seen.insert_unique(*hash, row, |other| hashes[*other]);
            rows.push(row);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::soft_f1;
    use crate::result::table::tests::table;
    use crate::result::value::Value::{Integer, Text};

    #[test]
    fn values_count_at_any_position_in_their_row() {
        let gold = table(2, &[&[Integer(1), Text(b"a")], &[Integer(2), Text(b"b")]]);
        assert_eq!(soft_f1(&table(2, &[&[Text(b"a"), Integer(1)], &[Text(b"b"), Integer(2)]]), &gold), 1.0);
        // Row 1: one match and one extra value; row 2 is missing: precision 0.5 / 1, recall 0.5 / 2.
        let predicted = table(2, &[&[Integer(1), Text(b"x")], &[Integer(1), Text(b"x")]]);
        assert!((soft_f1(&predicted, &gold) - 2.0 * 0.5 * 0.25 / 0.75).abs() < 1e-15);
        let row = |left, right| table(2, &[&[Integer(left), Integer(right)]]);
        assert!((soft_f1(&row(1, 1), &row(1, 2)) - 0.8).abs() < 1e-15, "two predicted values match");
        assert!((soft_f1(&row(1, 2), &row(1, 1)) - 2.0 / 3.0).abs() < 1e-15, "one value matches and one is extra");
        assert_eq!(soft_f1(&table(1, &[]), &gold), 0.0);
        assert_eq!(soft_f1(&table(1, &[]), &table(2, &[])), 1.0);
    }
}
