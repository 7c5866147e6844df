//! `bird`: the sets of rows are equal; duplicates and row order do not matter, column order does.

use crate::table::Table;

/// Tells whether `set(predicted) == set(gold)` holds in Python.
pub(super) fn equal_sets(predicted: &Table, gold: &Table) -> bool {
    if predicted.is_empty() || gold.is_empty() {
        return predicted.is_empty() && gold.is_empty();
    }
    if predicted.width() != gold.width() {
        return false;
    }
    std::ptr::eq(predicted, gold) || predicted.equal_in_order(gold) || gold.index().is_of_same_set(gold, predicted)
}

#[cfg(test)]
mod tests {
    use super::equal_sets;
    use crate::table::tests::table;
    use crate::value::Value::{Blob, Integer, Null, Real, Text};

    #[test]
    fn follows_pythons_sets() {
        let gold = table(2, &[&[Integer(1), Text(b"a")], &[Null, Real(0.5)], &[Integer(1), Text(b"a")]]);
        assert!(equal_sets(&table(2, &[&[Null, Real(0.5)], &[Real(1.0), Text(b"a")]]), &gold));
        assert!(!equal_sets(&table(2, &[&[Real(1.0), Text(b"a")]]), &gold), "a row of the gold is missing");
        assert!(!equal_sets(&table(2, &[&[Text(b"a"), Integer(1)], &[Real(0.5), Null]]), &gold), "column order");
        assert!(!equal_sets(&table(2, &[&[Null, Real(0.5)], &[Integer(1), Blob(b"a")]]), &gold), "bytes are not text");
        assert!(!equal_sets(&table(1, &[&[Integer(1)]]), &table(1, &[&[Text(b"1")]])));
    }

    #[test]
    fn empty_tables_are_equal_whatever_their_columns() {
        assert!(equal_sets(&table(1, &[]), &table(3, &[])));
        assert!(!equal_sets(&table(1, &[]), &table(1, &[&[Null]])));
        assert!(equal_sets(&table(0, &[&[], &[]]), &table(0, &[&[]])));
    }
}
