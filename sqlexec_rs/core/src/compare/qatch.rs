//! `qatch`: the mean of cell precision, cell recall and tuple cardinality (Think2SQL's dense reward).

use super::budget::spend_on_sort;
use super::multiset::Interner;
use crate::result::table::Table;

/// Returns (CP + CR + TC) / 3, unrounded; both empty is 1, one empty 0.
#[allow(clippy::redundant_closure_for_method_calls, reason = "a method of `Value` is bound to one lifetime")]
pub(super) fn cell_overlap(predicted: &Table, gold: &Table) -> f64 {
    if predicted.is_empty() || gold.is_empty() {
        return f64::from(predicted.is_empty() && gold.is_empty());
    }
    let mut interner = Interner::new(|a, b| a.equals(b));
    let of_gold = distinct(interner.matrix(gold));
    let n_gold = interner.len();
    let of_predicted = distinct(interner.matrix(predicted));
    debug_assert_eq!(of_gold.len(), n_gold);
    let n_shared = of_predicted.iter().filter(|number| (**number as usize) < n_gold).count();
    let (fewer, more) = (predicted.n_rows().min(gold.n_rows()), predicted.n_rows().max(gold.n_rows()));
    (share(n_shared, of_predicted.len()) + share(n_shared, n_gold) + share(fewer, more)) / 3.0
}

fn distinct(mut numbers: Vec<u32>) -> Vec<u32> {
    spend_on_sort(numbers.len());
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// A share of nothing (tables without columns) is none.
fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::cell_overlap;
    use crate::result::table::tests::table;
    use crate::result::value::Value::{Integer, Real, Text};

    #[test]
    fn counts_sets_of_cells() {
        // Cells {1, "a", 2} against {1, "b"}: shared 1, CP 1/3, CR 1/2, TC 1/2.
        let predicted = table(2, &[&[Integer(1), Text(b"a")], &[Integer(2), Text(b"a")]]);
        let gold = table(2, &[&[Real(1.0), Text(b"b")]]);
        assert!((cell_overlap(&predicted, &gold) - (1.0 / 3.0 + 0.5 + 0.5) / 3.0).abs() < 1e-15);
        assert_eq!(cell_overlap(&gold, &gold), 1.0);
        assert_eq!(cell_overlap(&table(1, &[]), &gold), 0.0);
        assert_eq!(cell_overlap(&table(1, &[]), &table(2, &[])), 1.0);
    }
}
