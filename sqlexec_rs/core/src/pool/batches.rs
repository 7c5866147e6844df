//! Splits a large job into batches, so that one runs while the next is prepared.

use crate::pool::csr_groups::CsrGroups;

/// Minimum number of items that are worth splitting.
const MIN_ITEMS: usize = 1 << 10;

/// Maximum number of batches; more gain nothing.
const MAX_BATCHES: usize = 16;

/// The item numbers of a job, in batches.
#[derive(Debug)]
pub struct Batches {
    order: Vec<u32>,
    n_items: usize,
}

impl Batches {
    /// Splits items by the address of their databases; items with the same databases stay in one batch.
    pub fn new(databases: impl ExactSizeIterator<Item = usize> + Clone) -> Self {
        let n_all = databases.len();
        if n_all <= MIN_ITEMS {
            return Self { order: (0..n_all as u32).collect(), n_items: MIN_ITEMS };
        }
        let mut numbers = hashbrown::HashMap::<_, _, foldhash::fast::RandomState>::default();
        let number_of = |address| {
            let next = numbers.len() as u32;
            *numbers.entry(address).or_insert(next)
        };
        let groups: Vec<u32> = databases.map(number_of).collect();
        let order = CsrGroups::new(numbers.len(), groups.iter().copied().zip(0..)).into_members();
        Self { order, n_items: MIN_ITEMS.max(n_all.div_ceil(MAX_BATCHES)) }
    }

    /// Iterates over the batches.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        self.order.chunks(self.n_items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_in_one_batch_each_and_databases_stay_together() {
        for n in [0, 1, MIN_ITEMS, MIN_ITEMS + 1, 100_000] {
            let batches = Batches::new((0..n).map(|item| item % 3));
            let all: Vec<u32> = batches.iter().flatten().copied().collect();
            assert!(batches.iter().count() <= MAX_BATCHES);
            if n > MIN_ITEMS {
                assert_eq!(all.chunk_by(|a, b| a % 3 == b % 3).count(), 3);
            }
            let mut sorted = all.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..n as u32).collect::<Vec<_>>());
        }
    }
}
