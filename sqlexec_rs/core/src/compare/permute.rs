//! Decides whether a single column permutation makes two tables equal.
//!
//! Spider's test-suite script tries all permutations. Here, columns are first distinguished by permutation-invariant signatures,
//! refined through the rows and back. Then they are assigned one by one, while the rows are divided into classes that
//! must have equal sizes on both sides. Once every row is alone in its class, the rest is determined. Columns that
//! can be swapped without changing the table are tried once, so identical columns do not cause an exponential search.

use std::collections::HashMap;

use super::multiset::{Interner, same_multiset};
use crate::budget::{check_limits, sort_numbers, spend};
use crate::memory::{OutOfMemory, check_room_for, collect, grow, repeat, unwind_if_oom};
use crate::result::row_hash::{hash_bytes, hash_one};
use crate::result::table::Table;
use crate::result::value::Value;

/// Rounds of refining column signatures by rows and back; later rounds rarely distinguish more.
const ROUNDS: usize = 3;

/// Returns whether a permutation of the predicted columns yields the gold rows, in order or as a multiset.
///
/// Cells are compared by `same`. Both tables have equally many rows and columns.
pub(super) fn some_permutation_agrees(
    predicted: &Table,
    gold: &Table,
    is_ordered: bool,
    same: fn(Value<'_>, Value<'_>) -> bool,
) -> bool {
    if gold.width() == 0 {
        return true;
    }
    let mut interner = Interner::new(same);
    let gold = Matrix { cells: interner.matrix(gold), width: gold.width() };
    let predicted = Matrix { cells: interner.matrix(predicted), width: predicted.width() };
    if is_ordered {
        let all: Vec<usize> = (0..gold.width).collect();
        let rows: Vec<usize> = collect(0..gold.n_rows());
        return columns_agree(&gold, &rows, &all, &predicted, &rows, &all);
    }
    if predicted.same_rows(&gold) {
        return true; // the columns are already in order, the usual case
    }
    Search::new(&predicted, &gold).is_some_and(|mut search| search.assign(0))
}

/// A table of interned values.
struct Matrix {
    cells: Vec<u32>,
    width: usize,
}

impl Matrix {
    fn n_rows(&self) -> usize {
        self.cells.len() / self.width
    }

    fn row(&self, row: usize) -> &[u32] {
        &self.cells[row * self.width..(row + 1) * self.width]
    }

    fn at(&self, row: usize, column: usize) -> u32 {
        self.cells[row * self.width + column]
    }

    fn same_rows(&self, other: &Matrix) -> bool {
        let rows = |matrix: &Matrix| collect(0..matrix.n_rows());
        // One list of row numbers for both; those of `other` follow.
        let n = self.n_rows();
        let row = |number: &usize| if *number < n { self.row(*number) } else { other.row(*number - n) };
        let other_rows: Vec<usize> = collect((0..other.n_rows()).map(|number| number + n));
        let hash = |number: &usize| {
            check_limits(self.width);
            hash_one(row(number))
        };
        same_multiset(&rows(self), &other_rows, hash, |a, b| row(a) == row(b))
    }

    /// Returns signatures of the columns and of the rows, invariant under permutations of either.
    fn signatures(&self) -> (Vec<u64>, Vec<u64>) {
        let mut row_signatures = repeat(1_u64, self.n_rows());
        let mut column_signatures = vec![1_u64; self.width];
        for _ in 0..ROUNDS {
            spend(2 * self.cells.len());
            let mut next = vec![0_u64; self.width];
            for (row, signature) in row_signatures.iter().enumerate() {
                check_limits(self.width);
                for (sum, cell) in next.iter_mut().zip(self.row(row)) {
                    *sum = sum.wrapping_add(hash_one((*signature, *cell)));
                }
            }
            column_signatures = column_signatures.iter().zip(next).map(|(old, new)| hash_one((*old, new))).collect();
            for (row, signature) in row_signatures.iter_mut().enumerate() {
                check_limits(self.width);
                let cells = column_signatures.iter().zip(self.row(row)).map(hash_one);
                *signature = hash_one((*signature, cells.fold(0, u64::wrapping_add)));
            }
        }
        (column_signatures, row_signatures)
    }

    /// Hashes the multiset of rows with two columns swapped.
    fn hash_swapped(&self, a: usize, b: usize) -> u128 {
        spend(self.cells.len());
        let mut cells = Vec::with_capacity(self.width);
        let hash_row = |row| {
            check_limits(self.width);
            cells.clear();
            cells.extend(self.row(row).iter().map(|cell| cell.to_le_bytes()));
            cells.swap(a, b);
            hash_bytes(cells.as_flattened())
        };
        (0..self.n_rows()).map(hash_row).fold(0, u128::wrapping_add)
    }

    /// Assigns the same number to columns that can be swapped without changing the multiset of rows.
    fn swap_classes(&self, signatures: &[u64]) -> Vec<usize> {
        let whole = self.hash_swapped(0, 0);
        let mut classes: Vec<usize> = (0..self.width).collect();
        for column in 1..self.width {
            let twin = (0..column).find(|other| {
                classes[*other] == *other
                    && signatures[*other] == signatures[column]
                    && self.hash_swapped(*other, column) == whole
            });
            if let Some(twin) = twin {
                classes[column] = twin;
            }
        }
        classes
    }
}

/// Returns whether the columns of two lists can be paired so that each pair is equal on aligned rows.
fn columns_agree(
    gold: &Matrix,
    gold_rows: &[usize],
    gold_columns: &[usize],
    predicted: &Matrix,
    predicted_rows: &[usize],
    predicted_columns: &[usize],
) -> bool {
    let mut unused = predicted_columns.to_vec();
    gold_columns.iter().all(|column| {
        let equal = |other: &usize| {
            let mut rows = gold_rows.iter().zip(predicted_rows);
            let differs = rows
                .position(|(row_number, other_row)| gold.at(*row_number, *column) != predicted.at(*other_row, *other));
            spend(differs.unwrap_or(gold_rows.len()) + 1);
            differs.is_none()
        };
        // Column equality is an equivalence relation, so any equal column may be taken.
        unused.iter().position(equal).map(|index| unused.swap_remove(index)).is_some()
    })
}

/// A search for the permutation: assigns a predicted column to each gold column, in a fixed order.
struct Search<'a> {
    predicted: &'a Matrix,
    gold: &'a Matrix,
    /// Gold columns in assignment order, each with its candidates.
    plan: Vec<(usize, Vec<usize>)>,
    swap_classes: Vec<usize>,
    is_used: Vec<bool>,
    /// Classes of the rows under the columns assigned so far; a pair of lists per depth.
    classes: Vec<(Vec<u32>, Vec<u32>)>,
}

impl<'a> Search<'a> {
    /// Prepares a search; `None` if the signatures rule out every permutation.
    fn new(predicted: &'a Matrix, gold: &'a Matrix) -> Option<Self> {
        let (gold_columns, gold_rows) = gold.signatures();
        let (predicted_columns, predicted_rows) = predicted.signatures();
        if sorted(&gold_columns) != sorted(&predicted_columns) || sorted(&gold_rows) != sorted(&predicted_rows) {
            return None;
        }
        let candidates = |column: &u64| -> Vec<usize> {
            predicted_columns
                .iter()
                .enumerate()
                .filter(|(_, other)| *other == column)
                .map(|(number, _)| number)
                .collect()
        };
        let mut plan: Vec<_> = gold_columns.iter().map(candidates).enumerate().collect();
        plan.sort_by_key(|(_, candidates)| candidates.len());
        let n = gold.n_rows();
        Some(Self {
            swap_classes: predicted.swap_classes(&predicted_columns),
            is_used: vec![false; predicted.width],
            classes: vec![(repeat(0, n), repeat(0, n))],
            predicted,
            gold,
            plan,
        })
    }

    /// Assigns the gold column at `depth` of the plan, and those after it.
    fn assign(&mut self, depth: usize) -> bool {
        let Some((column, candidates)) = self.plan.get(depth).cloned() else { return true };
        let mut tried = Vec::new();
        for candidate in candidates {
            let class = self.swap_classes[candidate];
            if self.is_used[candidate] || tried.contains(&class) {
                continue;
            }
            tried.push(class);
            let Some((classes, is_discrete)) = self.refine(column, candidate) else { continue };
            self.is_used[candidate] = true;
            self.classes.push(classes);
            let is_found = if is_discrete { self.decide_rest(depth + 1) } else { self.assign(depth + 1) };
            self.classes.pop();
            if is_found {
                return true;
            }
            self.is_used[candidate] = false;
        }
        false
    }

    /// Splits the row classes by one more column; `None` if a class has different sizes on the two sides.
    #[allow(clippy::type_complexity, reason = "a pair of class lists and a flag, named at the use")]
    fn refine(&self, column: usize, candidate: usize) -> Option<((Vec<u32>, Vec<u32>), bool)> {
        let (gold_classes, predicted_classes) = self.classes.last()?;
        spend(2 * gold_classes.len());
        let mut numbers: HashMap<(u32, u32), u32> = HashMap::new();
        unwind_if_oom(check_room_for(2 * gold_classes.len() * size_of::<((u32, u32), u32)>()));
        unwind_if_oom(numbers.try_reserve(gold_classes.len()).map_err(|_| OutOfMemory));
        let mut sizes: Vec<u32> = Vec::new();
        let mut number_gold = |(row, class): (usize, &u32)| {
            check_limits(4);
            let next = sizes.len() as u32;
            let number = *numbers.entry((*class, self.gold.at(row, column))).or_insert(next);
            if number == next {
                sizes.push(0);
            }
            sizes[number as usize] += 1;
            number
        };
        let gold: Vec<u32> = collect(gold_classes.iter().enumerate().map(&mut number_gold));
        let is_discrete = sizes.len() == gold.len();
        let mut predicted = Vec::new();
        unwind_if_oom(grow(&mut predicted, gold.len()));
        for (row, class) in predicted_classes.iter().enumerate() {
            check_limits(4);
            let number = *numbers.get(&(*class, self.predicted.at(row, candidate)))?;
            sizes[number as usize] = sizes[number as usize].checked_sub(1)?;
            predicted.push(number);
        }
        Some(((gold, predicted), is_discrete))
    }

    /// Decides the remaining columns once each row is alone in its class, so that the rows are aligned.
    fn decide_rest(&self, depth: usize) -> bool {
        let Some((gold, predicted)) = self.classes.last() else { return false };
        let by_class = |classes: &[u32]| {
            let mut rows: Vec<usize> = collect(0..classes.len());
            rows.sort_unstable_by_key(|row| {
                check_limits(1);
                classes[*row]
            });
            rows
        };
        let gold_columns: Vec<usize> = self.plan[depth..].iter().map(|(column, _)| *column).collect();
        let unused: Vec<usize> = (0..self.predicted.width).filter(|column| !self.is_used[*column]).collect();
        columns_agree(self.gold, &by_class(gold), &gold_columns, self.predicted, &by_class(predicted), &unused)
    }
}

fn sorted(values: &[u64]) -> Vec<u64> {
    let mut values = collect(values.iter().copied());
    sort_numbers(&mut values);
    values
}
