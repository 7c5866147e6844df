//! Index of the distinct rows of a table, by hash and verified by equality.

use crate::memory::repeat;

/// Number of rows that are hashed, then looked up, then verified together, so that memory reads overlap.
const BATCH: usize = 64;

const TAG: u64 = !(u32::MAX as u64);

/// An open-addressing hash table; the low bits of a hash select the first slot.
#[derive(Debug)]
pub(crate) struct RowIndex {
    /// The high half of a row's hash and the row's number plus one, or 0 for an empty slot. At least half are empty.
    slots: Vec<u64>,
    n_rows: usize,
}

impl RowIndex {
    /// Indexes the distinct rows among `n_rows`, given their hashes and equality.
    pub(crate) fn new(n_rows: usize, mut hash: impl FnMut(usize) -> u64, equal: impl Fn(usize, usize) -> bool) -> Self {
        let mut index = Self { slots: repeat(0, (2 * n_rows.max(1)).next_power_of_two()), n_rows: 0 };
        let mut hashes = [0; BATCH];
        for start in (0..n_rows).step_by(BATCH) {
            let rows = start..n_rows.min(start + BATCH);
            for (row_hash, row) in hashes.iter_mut().zip(rows.clone()) {
                *row_hash = hash(row);
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

    /// Finds a row with (half of) this hash that satisfies `is_match`; otherwise the empty slot for it.
    #[inline]
    fn find(&self, hash: u64, mut is_match: impl FnMut(usize) -> bool) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return Err(at);
            }
            let row = (slot & !TAG) as usize - 1;
            if (slot ^ hash) & TAG == 0 && is_match(row) {
                return Ok(row);
            }
            at = (at + 1) & mask;
        }
    }

    /// Iterates over the first row of each group of equal rows, in no particular order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = usize> + '_ {
        self.slots.iter().filter(|slot| **slot != 0).map(|slot| (slot & !TAG) as usize - 1)
    }

    /// Returns the number of distinct rows.
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns whether one of another table's first rows is missing here, which quickly rejects most different sets.
    pub(crate) fn lacks_a_first_row(&self, n_rows: usize, mut hash: impl FnMut(usize) -> u64) -> bool {
        (0..n_rows.min(BATCH)).any(|row| self.find(hash(row), |_| true).is_err())
    }

    /// Returns whether the `n_rows` rows of another table are the same set. `equal` compares a row of the indexed
    /// table with one of the other.
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
            for (row_hash, row) in hashes.iter_mut().zip(rows.clone()) {
                *row_hash = hash(row);
            }
            for (twin, hash) in twins.iter_mut().zip(&hashes[..rows.len()]) {
                let Ok(known_row) = self.find(*hash, |_| true) else { return false };
                *twin = known_row;
            }
            for ((twin, hash), row) in twins.iter_mut().zip(&hashes).zip(rows) {
                let is_equal = |known| equal(known, row);
                if !is_equal(*twin) {
                    // The lookup may match another row with the same half hash first, if the wanted row is present.
                    let Ok(known_row) = self.find(*hash, is_equal) else { return false };
                    *twin = known_row;
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
    fn rows_with_equal_hashes_are_distinguished() {
        let long = b"longer than a cell, and of one value".as_slice();
        let rows: [&[_]; 3] = [&[Integer(1), Text(b"a")], &[Null, Text(long)], &[Real(0.5), Text(b"b")]];
        let gold = table(2, &rows);
        let hash = gold.row_hasher()(2);
        let mut index = RowIndex { slots: vec![0; 8], n_rows: 3 };
        // Every row gets the tag of the last one, in consecutive slots, so only equality can distinguish them.
        let all = [0, 1, 2].map(|row| (hash & TAG) | (row + 1));
        let home = hash as usize & 7;
        for (offset, slot) in all.into_iter().enumerate() {
            index.slots[(home + offset) & 7] = slot;
        }
        assert_eq!(index.find(hash, |row| gold.rows_equal(row, &gold, 2)), Ok(2));
        let twice = table(2, &[rows[2], rows[2]]);
        let is_same_set = |index: &RowIndex| {
            index.is_of_same_set(2, twice.row_hasher(), |known, row| gold.rows_equal(known, &twice, row))
        };
        assert!(!is_same_set(&index), "two rows are missing");
        assert!(is_same_set(&RowIndex { n_rows: 1, ..index }), "found after two others");
    }

    #[test]
    fn sets_of_many_rows_ignore_order_and_detect_a_different_cell() {
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
        assert!(gold.is_same_set(&build(&mut (0..1_500).map(|n| n % 1_000), 1)), "some rows are repeated");
        assert!(!gold.is_same_set(&build(&mut (0..1_000).rev(), 2)));
        assert!(!gold.is_same_set(&build(&mut (1..1_000), 1)));
    }
}
