//! `spider2`: every gold column that counts matches some predicted column (Spider 2.0).

use super::budget::{spend, spend_on_sort};
use super::number::parse;
use super::pytext::repr_float;
use crate::table::Table;
use crate::value::Value;

/// Numbers this close are equal.
const TOLERANCE: f64 = 0.01;

/// A value after CSV: a number, or text that is none. NULL and '' are the number 0.
#[derive(Clone, Debug, PartialEq)]
enum Cell {
    Number(f64),
    Text(Vec<u8>),
}

/// Tells whether each gold column (or those of `condition_cols`) matches a predicted one; a predicted column may serve twice.
pub(super) fn columns_found(
    predicted: &Table,
    gold: &Table,
    condition_cols: Option<&[usize]>,
    ignore_order: bool,
) -> bool {
    let all: Vec<usize> = (0..gold.width()).collect();
    let wanted = condition_cols.filter(|columns| !columns.is_empty()).unwrap_or(&all);
    if predicted.n_rows() != gold.n_rows() {
        return wanted.is_empty();
    }
    let columns =
        |table: &Table| -> Vec<Vec<Cell>> { (0..table.width()).map(|c| column(table, c, ignore_order)).collect() };
    let (of_predicted, of_gold) = (columns(predicted), columns(gold));
    wanted.iter().all(|number| {
        // A number beyond the gold's columns asks for a column that is not there, which nothing matches.
        of_gold.get(*number).is_some_and(|gold| of_predicted.iter().any(|other| same(gold, other)))
    })
}

fn column(table: &Table, number: usize, ignore_order: bool) -> Vec<Cell> {
    let mut cells: Vec<Cell> = table.column(number).map(through_csv).collect();
    if ignore_order {
        spend_on_sort(cells.len());
        cells.sort_by_cached_key(as_text);
    }
    cells
}

fn through_csv(value: Value<'_>) -> Cell {
    match value {
        Value::Null | Value::Text(b"") => Cell::Number(0.0),
        Value::Integer(i) => Cell::Number(i as f64),
        Value::Real(r) => Cell::Number(r),
        Value::Text(text) => parse(text).map_or_else(|| Cell::Text(text.to_vec()), Cell::Number),
        Value::Blob(bytes) => Cell::Text([b"b'", bytes, b"'"].concat()),
    }
}

/// 2, 2.0 and '2' are one number after CSV, so they sort as one text.
fn as_text(cell: &Cell) -> Vec<u8> {
    match cell {
        Cell::Number(number) => repr_float(*number + 0.0).into_bytes(),
        Cell::Text(text) => text.clone(),
    }
}

fn same(left: &[Cell], right: &[Cell]) -> bool {
    left.iter().zip(right).inspect(|_| spend(1)).all(|(a, b)| match (a, b) {
        (Cell::Number(a), Cell::Number(b)) => a == b || (a - b).abs() <= TOLERANCE,
        (Cell::Text(a), Cell::Text(b)) => a == b,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::columns_found;
    use crate::table::tests::table;
    use crate::value::Value::{Integer, Null, Real, Text};

    #[test]
    fn columns_match_anywhere_and_rows_are_not_aligned() {
        let gold = table(2, &[&[Integer(1), Text(b"a")], &[Integer(2), Text(b"b")]]);
        let predicted = table(3, &[&[Text(b"b"), Null, Text(b"1")], &[Text(b"a"), Null, Real(2.009)]]);
        assert!(columns_found(&predicted, &gold, None, true));
        assert!(!columns_found(&predicted, &gold, None, false));
        assert!(columns_found(&predicted, &gold, Some(&[0]), false));
        assert!(!columns_found(&predicted, &gold, Some(&[7]), true));
    }

    #[test]
    fn null_is_zero_and_empty() {
        let of = |value| table(1, &[&[value]]);
        assert!(columns_found(&of(Null), &of(Integer(0)), None, true));
        assert!(columns_found(&of(Null), &of(Text(b"")), None, true));
        assert!(!columns_found(&of(Integer(0)), &of(Text(b"x")), None, true));
        assert!(!columns_found(&of(Real(2.02)), &of(Integer(2)), None, true));
        assert!(!columns_found(&table(1, &[]), &of(Null), None, true));
    }
}
