//! `bird`: the sets of rows are equal. Duplicates and row order are ignored; column order matters.
//!
//! The verdict "unequal" is always exact. "Equal" is exact for rows in the same order and for tables of different
//! lengths. Tables with equally many rows in different orders are equal if the sums of their rows' keyed 128-bit
//! hashes are equal.

use crate::result::table::Table;

/// Returns whether `set(predicted) == set(gold)` in Python.
pub(super) fn equal_sets(predicted: &Table, gold: &Table) -> bool {
    if predicted.is_empty() || gold.is_empty() {
        return predicted.is_empty() && gold.is_empty();
    }
    if predicted.width() != gold.width() {
        return false;
    }
    if std::ptr::eq(predicted, gold) || predicted.equal_in_order(gold) {
        return true;
    }
    if gold.lacks_a_first_row(predicted) {
        return false;
    }
    if predicted.n_rows() == gold.n_rows()
        && let (Some(of_predicted), Some(of_gold)) = (predicted.digest(), gold.digest())
    {
        if of_predicted == of_gold {
            return true;
        }
        // The gold has no duplicates and both have equally many rows, so equal sets are equal multisets.
        if gold.is_distinct() {
            return false;
        }
    }
    gold.is_same_set(predicted)
}

#[cfg(test)]
mod tests {
    use super::equal_sets;
    use crate::result::table::tests::table;
    use crate::result::value::Value::{self, Blob, Integer, Null, Real, Text};

    #[test]
    fn matches_python_sets() {
        let gold = table(2, &[&[Integer(1), Text(b"a")], &[Null, Real(0.5)], &[Integer(1), Text(b"a")]]);
        assert!(equal_sets(&table(2, &[&[Null, Real(0.5)], &[Real(1.0), Text(b"a")]]), &gold));
        assert!(!equal_sets(&table(2, &[&[Real(1.0), Text(b"a")]]), &gold), "a gold row is missing");
        assert!(!equal_sets(&table(2, &[&[Text(b"a"), Integer(1)], &[Real(0.5), Null]]), &gold), "column order");
        assert!(!equal_sets(&table(2, &[&[Null, Real(0.5)], &[Integer(1), Blob(b"a")]]), &gold), "bytes are not text");
        assert!(!equal_sets(&table(1, &[&[Integer(1)]]), &table(1, &[&[Text(b"1")]])));
    }

    #[test]
    fn equally_long_tables_are_distinguished_with_and_without_duplicates() {
        let rows = |numbers: [i64; 4]| {
            let rows = numbers.map(|n| [Integer(n), Real(n as f64 / 2.0), Text(b"a text that no cell holds")]);
            table(3, &rows.each_ref().map(<[Value<'_>; 3]>::as_slice))
        };
        for (gold, distinct) in [(rows([1, 2, 3, 4]), true), (rows([1, 2, 2, 3]), false)] {
            for n in 1..3 {
                let is_known = if n == 1 { "no index yet" } else { "with the index of the first round" };
                assert_eq!(equal_sets(&rows([4, 3, 1, 2]), &gold), distinct, "{is_known}");
                assert_eq!(
                    equal_sets(&rows([3, 3, 2, 1]), &gold),
                    !distinct,
                    "different rows are duplicated: {is_known}"
                );
                assert!(!equal_sets(&rows([3, 5, 2, 1]), &gold), "{is_known}");
                assert!(!equal_sets(&rows([2, 2, 1, 1]), &gold), "{is_known}");
            }
        }
    }

    #[test]
    fn nan_is_equal_to_nothing() {
        let (nan, gold) = (&[Real(f64::NAN)], table(1, &[&[Integer(1)], &[Real(f64::NAN)]]));
        assert!(!equal_sets(&table(1, &[nan, &[Integer(1)]]), &gold));
        assert!(!equal_sets(&table(1, &[&[Integer(2)], &[Integer(1)]]), &gold));
    }

    #[test]
    fn empty_tables_are_equal_with_any_columns() {
        assert!(equal_sets(&table(1, &[]), &table(3, &[])));
        assert!(!equal_sets(&table(1, &[]), &table(1, &[&[Null]])));
        assert!(equal_sets(&table(0, &[&[], &[]]), &table(0, &[&[]])));
    }
}
