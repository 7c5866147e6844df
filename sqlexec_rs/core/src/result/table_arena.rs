//! The memory of a table, which worker threads reuse. Most results are compared and dropped at once, and fresh pages
//! for the next large one would cost as much as the comparison.

use std::cell::RefCell;

use crate::memory::{self, OutOfMemory};
use crate::result::cell::Cell;

/// Results below this size are copied into an exact allocation; their build memory is kept for reuse.
const SMALL_BYTES: usize = 64 << 10;

/// Maximum bytes that a thread keeps for reuse.
const MAX_KEPT_BYTES: usize = 32 << 20;

/// Cells, and the texts and blobs that they refer to.
#[derive(Debug, Default)]
pub(crate) struct TableArena {
    pub(crate) cells: Vec<Cell>,
    pub(crate) texts: Vec<u8>,
}

thread_local! {
    /// The memory kept by this thread; `None` on a thread that builds no results.
    static SPARE: RefCell<Option<TableArena>> = const { RefCell::new(None) };
}

impl TableArena {
    /// Takes an empty arena from the memory kept by this thread, and marks this thread as one that keeps dropped
    /// arenas.
    pub(crate) fn recycled() -> Self {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().replace(Self::default()));
        spare.ok().flatten().unwrap_or_default()
    }

    /// Reserves room for one more cell and `n_bytes` more bytes.
    #[inline]
    pub(crate) fn make_room(&mut self, n_bytes: usize) -> Result<(), OutOfMemory> {
        let has_room = self.cells.len() < self.cells.capacity() && n_bytes <= self.texts.capacity() - self.texts.len();
        if has_room { Ok(()) } else { self.grow(n_bytes) }
    }

    #[cold]
    fn grow(&mut self, n_bytes: usize) -> Result<(), OutOfMemory> {
        memory::grow(&mut self.cells, 1)?;
        memory::grow(&mut self.texts, n_bytes)
    }

    /// Returns the bytes in use.
    fn bytes(&self) -> usize {
        size_of_val(self.cells.as_slice()) + self.texts.len()
    }

    /// Ends the growth. A short-lived result may keep up to twice the memory it needs; the rest returns to this
    /// thread or is freed.
    pub(crate) fn settle(&mut self, is_for_long: bool) {
        let (needed, capacity) = (self.bytes(), self.capacity());
        if needed <= SMALL_BYTES || (capacity <= MAX_KEPT_BYTES && capacity > 2 * needed) {
            *self = Self { cells: self.cells.as_slice().to_vec(), texts: self.texts.as_slice().to_vec() };
        } else if is_for_long || capacity > 2 * needed {
            self.cells.shrink_to_fit();
            self.texts.shrink_to_fit();
        }
    }

    fn capacity(&self) -> usize {
        self.cells.capacity() * size_of::<Cell>() + self.texts.capacity()
    }
}

impl Drop for TableArena {
    fn drop(&mut self) {
        let capacity = self.capacity();
        if !(256..=MAX_KEPT_BYTES).contains(&capacity) {
            return;
        }
        // A thread that is ending keeps nothing.
        let _ = SPARE.try_with(|spare| {
            if let Ok(mut spare) = spare.try_borrow_mut()
                && let Some(spare) = spare.as_mut().filter(|spare| spare.capacity() < capacity)
            {
                self.cells.clear();
                self.texts.clear();
                std::mem::swap(&mut self.cells, &mut spare.cells);
                std::mem::swap(&mut self.texts, &mut spare.texts);
            }
        });
    }
}

/// Frees the memory kept by this thread.
pub(crate) fn release() {
    let spare = SPARE.try_with(|spare| spare.borrow_mut().as_mut().map(std::mem::take));
    drop(spare.ok().flatten().map(|mut spare| (std::mem::take(&mut spare.cells), std::mem::take(&mut spare.texts))));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::header::Header;
    use crate::result::table::Table;
    use crate::result::value::Value;

    fn built(n_rows: usize) -> Table {
        let mut table = Table::recycled(Header::new(vec!["n".to_owned()]).into());
        for _ in 0..n_rows {
            table.push(Value::Integer(1));
            table.end_row();
        }
        table.settle(false);
        table
    }

    fn spare_bytes() -> usize {
        SPARE.with_borrow(|spare| spare.as_ref().map_or(0, TableArena::capacity))
    }

    #[test]
    fn memory_is_reused_up_to_a_bound_and_released() {
        drop(TableArena { cells: Vec::new(), texts: vec![0; 1_000] });
        assert_eq!(spare_bytes(), 0, "this thread has built nothing");
        let small = built(100);
        assert!(spare_bytes() > 0, "the build memory is kept");
        let large = built(100_000);
        assert_eq!((small.n_rows(), large.n_rows()), (100, 100_000));
        drop(large);
        let held = spare_bytes();
        assert!(held >= 100_000 * 16);
        drop(built(50_000));
        assert_eq!(spare_bytes(), held);
        drop(built(MAX_KEPT_BYTES / 16 + 1));
        assert!(spare_bytes() <= held);
        release();
        assert_eq!(spare_bytes(), 0);
    }
}
