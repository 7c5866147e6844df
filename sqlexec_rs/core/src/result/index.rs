//! The distinct rows of a table, found by hash and verified by equality.

use crate::memory::repeat;

/// Rows that are hashed, then looked for, then verified: the reads of each step do not wait for one another.
const BATCH: usize = 64;

const TAG: u64 = !(u32::MAX as u64);

/// A table of slots with open addressing: the first slot is said by a hash's low bits.
#[derive(Debug)]
pub(crate) struct RowIndex {
    /// The high half of a row's hash and the row's number plus one, or 0; at least half of the slots are empty.
    slots: Vec<u64>,
    n_rows: usize,
}

impl RowIndex {
    /// Indexes the distinct ones of `n_rows` rows, by their hashes and by which are equal.
    pub(crate) fn new(n_rows: usize, mut hash: impl FnMut(usize) -> u64, equal: impl Fn(usize, usize) -> bool) -> Self {
        let mut index = Self { slots: repeat(0, (2 * n_rows.max(1)).next_power_of_two()), n_rows: 0 };
        let mut hashes = [0; BATCH];
        for start in (0..n_rows).step_by(BATCH) {
            let rows = start..n_rows.min(start + BATCH);
            for (place, row) in hashes.iter_mut().zip(rows.clone()) {
                *place = hash(row);
            }
            for (hash, row) in hashes.iter().zip(rows) {
                if let Err(empty) = index.find(*hash, |known| equal(known, row)) {
                    index.slots[empty] = (hash & TAG) | (row as u64 + 1);
                    index.n_rows += 1;
                }
            }
        }
        index
    }

    /// Finds a row with (half of) this hash that `is_it` takes; else the empty slot where it would be.
    #[inline]
    fn find(&self, hash: u64, mut is_it: impl FnMut(usize) -> bool) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return Err(at);
            }
            let row = (slot & !TAG) as usize - 1;
            if (slot ^ hash) & TAG == 0 && is_it(row) {
                return Ok(row);
            }
            at = (at + 1) & mask;
        }
    }

    /// Iterates over the first of each group of equal rows, in no order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = usize> + '_ {
        self.slots.iter().filter(|slot| **slot != 0).map(|slot| (slot & !TAG) as usize - 1)
    }

    /// Returns the number of distinct rows.
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Tells whether one of the first rows of a table is not here, which is quickly seen of most that are other sets.
    pub(crate) fn lacks_a_first_row(&self, n_rows: usize, mut hash: impl FnMut(usize) -> u64) -> bool {
        (0..n_rows.min(BATCH)).any(|row| self.find(hash(row), |_| true).is_err())
    }

    /// Tells whether the `n_rows` rows of another table are the same set; `equal` compares a row of the table whose index
    /// this is with one of the other.
    pub(crate) fn is_of_same_set(
        &self,
        n_rows: usize,
        mut hash: impl FnMut(usize) -> u64,
        equal: impl Fn(usize, usize) -> bool,
    ) -> bool {
        let mut is_found = repeat(false, self.slots.len() / 2);
        let mut n_found = 0;
        let (mut hashes, mut twins) = ([0; BATCH], [0; BATCH]);
        for start in (0..n_rows).step_by(BATCH) {
            let rows = start..n_rows.min(start + BATCH);
            for (place, row) in hashes.iter_mut().zip(rows.clone()) {
                *place = hash(row);
            }
            for (twin, hash) in twins.iter_mut().zip(&hashes[..rows.len()]) {
                let Ok(found) = self.find(*hash, |_| true) else { return false };
                *twin = found;
            }
            for ((twin, hash), row) in twins.iter_mut().zip(&hashes).zip(rows) {
                let is_it = |known| equal(known, row);
                if !is_it(*twin) {
                    // Half of the hash is that of a row before the one that is wanted, if that one is here.
                    let Ok(found) = self.find(*hash, is_it) else { return false };
                    *twin = found;
                }
                n_found += usize::from(!std::mem::replace(&mut is_found[*twin], true));
            }
        }
        n_found == self.n_rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::table::Table;
    use crate::result::table::tests::table;
    use crate::result::value::Value::{Integer, Null, Real, Text};

    #[test]
    fn rows_whose_hashes_agree_are_told_apart() {
        let long = b"longer than a cell, and of one value".as_slice();
        let rows: [&[_]; 3] = [&[Integer(1), Text(b"a")], &[Null, Text(long)], &[Real(0.5), Text(b"b")]];
        let gold = table(2, &rows);
        let hash = gold.row_hasher()(2);
        let mut index = RowIndex { slots: vec![0; 8], n_rows: 3 };
        // Every row's tag becomes the last one's, behind one another: only equality can tell.
        let all = [0, 1, 2].map(|row| (hash & TAG) | (row + 1));
        let home = hash as usize & 7;
        for (place, slot) in all.into_iter().enumerate() {
            index.slots[(home + place) & 7] = slot;
        }
        assert_eq!(index.find(hash, |row| gold.rows_equal(row, &gold, 2)), Ok(2));
        let twice = table(2, &[rows[2], rows[2]]);
        let is_same_set = |index: &RowIndex| {
            index.is_of_same_set(2, twice.row_hasher(), |known, row| gold.rows_equal(known, &twice, row))
        };
        assert!(!is_same_set(&index), "two rows are missing");
        assert!(is_same_set(&RowIndex { n_rows: 1, ..index }), "found behind two others");
    }

    #[test]
    fn sets_of_many_rows_are_equal_in_any_order_and_unequal_by_one_cell() {
        let build = |numbers: &mut dyn Iterator<Item = i64>, odd: i64| {
            let mut table = Table::new(vec!["a".to_owned(), "b".to_owned()]);
            for n in numbers {
                let text = format!("{} {n}", if n % 3 == 0 { "text" } else { "a longer text" });
                table.push(Integer(n / 2));
                table.push(Text(text.as_bytes()));
                table.end_row();
            }
            table.push(Real(0.5));
            table.push(Integer(odd));
            table.end_row();
            table
        };
        let gold = build(&mut (0..1_000), 1);
        assert!(gold.is_same_set(&build(&mut (0..1_000).rev(), 1)));
        assert!(gold.is_same_set(&build(&mut (0..1_500).map(|n| n % 1_000), 1)), "some rows twice");
        assert!(!gold.is_same_set(&build(&mut (0..1_000).rev(), 2)));
        assert!(!gold.is_same_set(&build(&mut (1..1_000), 1)));
    }
}
