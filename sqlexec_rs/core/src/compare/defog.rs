//! `defog`: the tables are equal as data frames, or the gold's columns occur among the predicted ones (Defog's
//! sql-eval).
//!
//! The scorer has three steps. First it compares cells like NumPy: a side with one row or one column is broadcast to
//! the other's size, so an empty result matches a gold with one row. Then it compares frames with columns sorted by
//! name and without duplicate rows. Last, it looks for each gold column among the predicted ones. Rows are sorted in
//! each step, unless the question asks for an order. Where pandas raises (mixed types in a sorted column, repeated
//! names), the prediction is wrong. Column types and tolerance follow pandas 2.2 and 2.3.

use std::cmp::Ordering;

use hashbrown::HashTable;

use super::multiset::{equal, equal_cells, table_for};
use super::number::is_close;
use super::options::QueryResult;
use super::refined::order;
use crate::budget::{self, check_limits, spend};
use crate::memory::{collect, grow, unwind_if_oom};
use crate::result::row_hash::hash_one;
use crate::result::table::Table;
use crate::result::value::Value;

/// Absolute tolerance, and tolerance relative to the larger number, if neither column holds integers.
const TOLERANCE: f64 = 1e-8;
const SHARE: f64 = 1e-5;
/// The value that replaces NULL before frames are compared.
const NULL: Value<'_> = Value::Integer(-99_999);

/// A case in which pandas raises.
struct PandasError;

/// Returns whether the scorer accepts a prediction. `asks_for_order` is its reading of the question.
pub(super) fn is_correct(predicted: QueryResult<'_>, gold: QueryResult<'_>, asks_for_order: bool) -> bool {
    let rows = |sql| if asks_for_order { RowOrder::By(order_by(sql)) } else { RowOrder::Sorted };
    let by_name = || equal_by_name((gold.table, rows(gold.sql)), (predicted.table, rows(predicted.sql)));
    let has_columns = || has_columns(predicted.table, gold.table, asks_for_order);
    equal_when_repeated(gold.table, predicted.table)
        || by_name().and_then(|is_equal| if is_equal { Ok(true) } else { has_columns() }).unwrap_or(false)
}

/// Compares cell by cell, broadcasting a side with one row or one column.
fn equal_when_repeated(gold: &Table, predicted: &Table) -> bool {
    let common = |a: usize, b: usize| match (a, b) {
        _ if a == b || b == 1 => Some(a),
        _ if a == 1 => Some(b),
        _ => None,
    };
    let (Some(n_rows), Some(width)) =
        (common(gold.n_rows(), predicted.n_rows()), common(gold.width(), predicted.width()))
    else {
        return false;
    };
    let cell = |table: &Table, row: usize, column: usize| (row.min(table.n_rows() - 1), column.min(table.width() - 1));
    let (gold_is_numeric, predicted_is_numeric) = (are_numeric(gold), are_numeric(predicted));
    (0..n_rows).all(|row| {
        (0..width).all(|column| {
            spend(1);
            let ((r, c), (other_r, other_c)) = (cell(gold, row, column), cell(predicted, row, column));
            match (gold.value(r, c), predicted.value(other_r, other_c)) {
                // In a column of numbers NULL is NaN, which is equal to nothing.
                (Value::Null, Value::Null) => !gold_is_numeric[c] && !predicted_is_numeric[other_c],
                (a, b) => equal(a, b),
            }
        })
    })
}

/// Returns which columns contain only numbers and NULL.
fn are_numeric(table: &Table) -> Vec<bool> {
    let is_numeric = |column| {
        let mut kinds =
            table.column(column).inspect(|_| check_limits(1)).map(kind_number).filter(|kind| *kind != NULLS).peekable();
        kinds.peek().is_some() && kinds.all(|kind| kind == NUMBERS)
    };
    (0..table.width()).map(is_numeric).collect()
}

/// How the rows of a frame are ordered.
enum RowOrder {
    /// By all columns.
    Sorted,
    /// By the first key of the SQL's ORDER BY, then by all other columns; in result order without a key.
    By(Option<OrderBy>),
}

/// The words of the first key of the first ORDER BY in a text.
struct OrderBy {
    words: Vec<String>,
    is_ascending: bool,
}

/// Parses the first key like the scorer's regular expressions: up to a comma, a semicolon or a closing parenthesis.
fn order_by(sql: Option<&str>) -> Option<OrderBy> {
    const KEY: &str = "order by";
    let sql = sql?;
    let lower = sql.to_ascii_lowercase();
    let starts = lower.match_indices(KEY).map(|(start, _)| &sql[start + KEY.len()..]);
    let mut texts = starts.map(|rest| (rest.find([';', ',', ')', '\n']), rest)).peekable();
    texts.peek()?;
    let ends = |(end, rest): (Option<usize>, &'_ str)| match end {
        Some(end) if rest.as_bytes()[end] == b'\n' && end + 1 < rest.len() => None, // a key ends with its line
        Some(end) => Some(rest[..end].to_owned()),
        None => Some(rest.to_owned()),
    };
    let key = texts.find_map(ends).unwrap_or_default();
    let key_words: Vec<&str> = key.split_whitespace().map(|word| word.rsplit('.').next().unwrap_or(word)).collect();
    let has_keyword = |keyword: &str| key_words.iter().any(|word| word.eq_ignore_ascii_case(keyword));
    let is_ascending = !has_keyword("desc") && has_keyword("asc");
    let names = key_words.iter().map(|word| word.replace('(', ""));
    let is_keyword = |word: &String| {
        ["desc", "asc", "nulls", "last", "first", "limit"].iter().any(|keyword| word.eq_ignore_ascii_case(keyword))
    };
    Some(OrderBy { words: names.filter(|word| !is_keyword(word)).collect(), is_ascending })
}

/// A selection of columns and rows of a table, by number.
struct Frame<'a> {
    table: &'a Table,
    columns: Vec<usize>,
    rows: Vec<usize>,
}

impl<'a> Frame<'a> {
    /// Drops duplicate rows and sorts columns by name and rows by `order`.
    fn normalise(table: &'a Table, named: &[(&str, usize)], order: &RowOrder) -> Result<Self, PandasError> {
        let numbers: Vec<usize> = named.iter().map(|(_, number)| *number).collect();
        let mut named = named.to_vec();
        let is_sorted = named.is_sorted_by_key(|(name, _)| *name);
        named.sort_by_key(|(name, _)| *name);
        let is_unique = named.windows(2).all(|pair| pair[0].0 != pair[1].0);
        let mut columns: Vec<usize> = named.iter().map(|(_, number)| *number).collect();
        let mut rows = drop_duplicates(table, &numbers);
        let sort: Option<(Vec<usize>, bool)> = match order {
            RowOrder::Sorted => Some((columns.clone(), true)),
            RowOrder::By(None) => None,
            RowOrder::By(Some(clause)) => {
                let number = |word: &String| named.iter().find(|(name, _)| name == word).map(|(_, number)| *number);
                let keys: Vec<usize> = clause.words.iter().filter_map(number).collect();
                let others: Vec<usize> = columns.iter().copied().filter(|column| !keys.contains(column)).collect();
                columns = [others.as_slice(), &keys].concat();
                Some(([keys, others].concat(), clause.is_ascending))
            }
        };
        if !is_unique && (sort.is_some() || !is_sorted) {
            return Err(PandasError);
        }
        if let Some((by, is_ascending)) = sort {
            sort_rows(table, &mut rows, &by, is_ascending)?;
        }
        Ok(Self { table, columns, rows })
    }

    fn column(&self, index: usize) -> Vec<Value<'a>> {
        collect(self.rows.iter().inspect(|_| check_limits(1)).map(|row| self.table.value(*row, self.columns[index])))
    }
}

/// Compares two frames exactly.
fn equal_by_name(gold: (&Table, RowOrder), predicted: (&Table, RowOrder)) -> Result<bool, PandasError> {
    let frame = |(table, rows): (_, RowOrder)| Frame::normalise(table, &number_columns(table), &rows);
    let (gold, predicted) = (frame(gold)?, frame(predicted)?);
    if (gold.rows.len(), gold.columns.len()) != (predicted.rows.len(), predicted.columns.len()) {
        return Ok(false);
    }
    let filled = |value: Value<'_>| matches!(value, Value::Null);
    Ok((0..gold.columns.len()).all(|index| {
        spend(gold.rows.len());
        gold.column(index).into_iter().zip(predicted.column(index)).all(|(a, b)| match (filled(a), filled(b)) {
            (true, true) => true,
            (true, false) => NULL.equals(b),
            (false, true) => NULL.equals(a),
            (false, false) => equal(a, b),
        })
    }))
}

/// Returns whether each sorted gold column occurs among the predicted ones, and these columns form the gold's rows.
fn has_columns(predicted: &Table, gold: &Table, asks_for_order: bool) -> Result<bool, PandasError> {
    if gold.is_empty() || gold.width() == 0 {
        return Ok(false);
    }
    let mut candidates: Vec<(usize, Option<Vec<Value<'_>>>)> = (0..predicted.width()).map(|c| (c, None)).collect();
    let mut matched = Vec::new();
    for column in 0..gold.width() {
        if candidates.is_empty() {
            return Ok(false);
        }
        let gold_column = sorted_column(gold, column)?;
        let mut matching = None;
        for (index, (number, sorted)) in candidates.iter_mut().enumerate() {
            let sorted = match sorted {
                Some(sorted) => sorted,
                None => sorted.insert(sorted_column(predicted, *number)?),
            };
            if same_series(&gold_column, sorted) {
                matching = Some(index);
                break;
            }
        }
        let Some(index) = matching else { return Ok(false) };
        matched.push(candidates.remove(index).0);
    }
    // The reference renames repeated names, which the predicted table then lacks.
    let names = predicted.columns();
    if matched.iter().any(|number| names.iter().filter(|name| **name == names[*number]).count() > 1) {
        return Err(PandasError);
    }
    let unique = unique_names(gold.columns());
    let gold_names: Vec<(&str, usize)> =
        unique.iter().enumerate().map(|(number, name)| (name.as_str(), number)).collect();
    let predicted_names: Vec<(&str, usize)> = unique.iter().map(String::as_str).zip(matched).collect();
    let rows = if asks_for_order { RowOrder::By(None) } else { RowOrder::Sorted };
    let left = Frame::normalise(gold, &gold_names, &rows)?;
    let right = Frame::normalise(predicted, &predicted_names, &rows)?;
    let is_same = |index| same_series(&left.column(index), &right.column(index));
    Ok(left.rows.len() == right.rows.len() && (0..left.columns.len()).all(is_same))
}

/// Compares columns like `assert_series_equal`: exactly if either holds integers, otherwise with a tolerance.
fn same_series(left: &[Value<'_>], right: &[Value<'_>]) -> bool {
    let is_integer = |values: &[Value<'_>]| {
        values.iter().inspect(|_| check_limits(1)).all(|value| matches!(value, Value::Integer(_)))
    };
    if left.len() != right.len() {
        return false;
    }
    spend(left.len());
    let is_exact = is_integer(left) || is_integer(right);
    left.iter().zip(right).all(|(a, b)| match (as_float(*a), as_float(*b)) {
        (Some(a), Some(b)) if !is_exact => is_close(a, b, TOLERANCE, SHARE),
        _ => equal(*a, *b),
    })
}

fn as_float(value: Value<'_>) -> Option<f64> {
    match value {
        Value::Integer(i) => Some(i as f64),
        Value::Real(r) => Some(r),
        _ => None,
    }
}

/// Sorts a single column, NULL last. Fails if it has values of two kinds.
fn sorted_column(table: &Table, column: usize) -> Result<Vec<Value<'_>>, PandasError> {
    let mut rows: Vec<usize> = collect(0..table.n_rows());
    sort_rows(table, &mut rows, &[column], true)?;
    Ok(collect(rows.into_iter().inspect(|_| check_limits(1)).map(|row| table.value(row, column))))
}

/// Sorts rows by some columns, NULL last in both directions. A single column must have values of one kind. Among
/// several columns, texts sort after other values, and bytes cannot be compared with numbers.
fn sort_rows(table: &Table, rows: &mut [usize], by: &[usize], is_ascending: bool) -> Result<(), PandasError> {
    for column in by {
        let mut has = [false; 4];
        for row in rows.iter() {
            check_limits(1);
            has[kind_number(table.value(*row, *column))] = true;
        }
        let (has_numbers, has_bytes, has_texts) = (has[NUMBERS], has[BYTES], has[TEXTS]);
        if has_numbers && has_bytes || by.len() == 1 && has_texts && (has_numbers || has_bytes) {
            return Err(PandasError);
        }
    }
    budget::charge_sort(rows.len().saturating_mul(by.len().saturating_sub(1)));
    budget::sort_by(rows, |a, b| {
        let compare_column = |column: &usize| {
            let (a, b) = (table.value(*a, *column), table.value(*b, *column));
            let by_kind = kind_number(a).cmp(&kind_number(b));
            let ordering = if by_kind == Ordering::Equal { order(a, b) } else { by_kind };
            let has_null = matches!(a, Value::Null) || matches!(b, Value::Null);
            if is_ascending || has_null { ordering } else { ordering.reverse() }
        };
        by.iter().map(compare_column).find(|ordering| *ordering != Ordering::Equal).unwrap_or(Ordering::Equal)
    });
    Ok(())
}

// Kinds of values, in sort order.
const NUMBERS: usize = 0;
const BYTES: usize = 1;
const TEXTS: usize = 2;
const NULLS: usize = 3;

fn kind_number(value: Value<'_>) -> usize {
    match value {
        Value::Integer(_) | Value::Real(_) => NUMBERS,
        Value::Blob(_) => BYTES,
        Value::Text(_) => TEXTS,
        Value::Null => NULLS,
    }
}

/// Returns the first row of each group that is equal in some columns.
fn drop_duplicates(table: &Table, columns: &[usize]) -> Vec<usize> {
    let width = columns.len();
    let mut cells: Vec<Value<'_>> = Vec::new();
    unwind_if_oom(grow(&mut cells, table.n_rows() * width));
    for row in 0..table.n_rows() {
        check_limits(width);
        cells.extend(columns.iter().map(|column| table.value(row, *column)));
    }
    let cells_of_row = |row: usize| &cells[row * width..(row + 1) * width];
    let mut seen: HashTable<usize> = table_for(table.n_rows());
    let is_new = |row: &usize| {
        check_limits(width);
        let same = |other: &usize| {
            spend(1);
            equal_cells(cells_of_row(*other), cells_of_row(*row))
        };
        let entry = seen.entry(hash_one(cells_of_row(*row)), same, |other| hash_one(cells_of_row(*other)));
        let is_vacant = matches!(entry, hashbrown::hash_table::Entry::Vacant(_));
        entry.or_insert(*row);
        is_vacant
    };
    collect((0..table.n_rows()).filter(is_new))
}

fn number_columns(table: &Table) -> Vec<(&str, usize)> {
    table.columns().iter().enumerate().map(|(number, name)| (name.as_str(), number)).collect()
}

/// Appends the position to each repeated name.
fn unique_names(names: &[String]) -> Vec<String> {
    let count = |name: &String| names.iter().filter(|other| *other == name).count();
    let unique_name =
        |(position, name): (usize, &String)| if count(name) > 1 { format!("{name}_{position}") } else { name.clone() };
    names.iter().enumerate().map(unique_name).collect()
}
