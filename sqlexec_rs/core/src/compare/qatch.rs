//! `qatch`: the mean of cell precision, cell recall and tuple cardinality (Think2SQL's dense reward).

use hashbrown::HashTable;

use super::multiset::{equal, table_for};
use super::number::ratio;
use crate::budget::{self, spend, spend_on_bytes};
use crate::result::row_hash::hash_one;
use crate::result::table::Table;
use crate::result::value::Value;

/// Returns (CP + CR + TC) / 3, unrounded; 1 if both tables are empty, 0 if one is.
pub(super) fn cell_overlap(predicted: &Table, gold: &Table) -> f64 {
    if predicted.is_empty() || gold.is_empty() {
        return f64::from(predicted.is_empty() && gold.is_empty());
    }
    let (predicted_cells, gold_cells) = (find_distinct_cells(predicted), find_distinct_cells(gold));
    let is_in_gold = |number: &&u32| {
        budget::check_limits(1);
        let value = cell(predicted, **number);
        gold_cells.find(hash_one(value), |other| is_same(cell(gold, *other), value)).is_some()
    };
    let n_shared = predicted_cells.iter().filter(is_in_gold).count();
    let (fewer, more) = (predicted.n_rows().min(gold.n_rows()), predicted.n_rows().max(gold.n_rows()));
    let share = |part: usize, whole: usize| ratio(part as f64, whole as f64); // a table may have no columns
    (share(n_shared, predicted_cells.len()) + share(n_shared, gold_cells.len()) + share(fewer, more)) / 3.0
}

/// Returns the numbers of the distinct cells. Numbers take less memory than values, of which a large result has many.
fn find_distinct_cells(table: &Table) -> HashTable<u32> {
    let n_cells = table.n_rows() * table.width();
    // Reserves room for all, because growing would hash every cell again.
    let mut seen: HashTable<u32> = table_for(n_cells);
    for number in 0..n_cells as u32 {
        spend(1);
        let value = cell(table, number);
        if let Value::Text(bytes) | Value::Blob(bytes) = value {
            spend_on_bytes(bytes.len());
        }
        let same = |other: &u32| is_same(cell(table, *other), value);
        seen.entry(hash_one(value), same, |other| hash_one(cell(table, *other))).or_insert(number);
    }
    seen
}

fn cell(table: &Table, number: u32) -> Value<'_> {
    let number = number as usize;
    table.value(number / table.width(), number % table.width())
}

/// Compares and charges a step: many values may share a hash.
fn is_same(a: Value<'_>, b: Value<'_>) -> bool {
    spend(1);
    equal(a, b)
}

#[cfg(test)]
mod tests {
    use super::cell_overlap;
    use crate::result::table::tests::table;
    use crate::result::value::Value::{Integer, Real, Text};

    #[test]
    fn counts_distinct_cells() {
        // Cells {1, "a", 2} and {1, "b"}: 1 shared, CP 1/3, CR 1/2, TC 1/2.
        let predicted = table(2, &[&[Integer(1), Text(b"a")], &[Integer(2), Text(b"a")]]);
        let gold = table(2, &[&[Real(1.0), Text(b"b")]]);
        assert!((cell_overlap(&predicted, &gold) - (1.0 / 3.0 + 0.5 + 0.5) / 3.0).abs() < 1e-15);
        assert_eq!(cell_overlap(&gold, &gold), 1.0);
        assert_eq!(cell_overlap(&table(1, &[]), &gold), 0.0);
        assert_eq!(cell_overlap(&table(1, &[]), &table(2, &[])), 1.0);
    }
}
