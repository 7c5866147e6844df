//! What a run may take of the machine beside time: memory and temporary files, counted on the run's own thread.
//!
//! SQLite asks [`hooks`](crate::sqlite::hooks) for each piece of memory, each page of a file and each write to a temporary file,
//! and the hooks ask here. A statement runs on one thread, so the counters need no lock and hold nobody else's memory.
//!
//! Each question is an occasion to look at the clocks, too. SQLite asks the progress handler between instructions of its
//! virtual machine, but preparing a statement, counting a table's pages and merging a sort's runs each go on for long
//! without one. All of them need memory or pages. What is refused once the time is over looks to SQLite like a machine
//! without memory, which it handles everywhere.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::request::Limits;
use crate::sqlite::deadline::RunGuard;

/// Pieces of memory that a prepare may ask for. A count, so that the verdict is the same on every machine. Golds of Spider and
/// of BIRD's superhero take at most 533.
pub(crate) const PREPARE_ALLOCATIONS: i64 = 400_000;

/// Work between two looks at the clocks, in the units of the costs below: 64 pieces of memory, or 64 KiB, or 256 pages.
const CREDIT: i64 = 64 << 10;
const ALLOCATION_COST: i64 = 1 << 10;
const PAGE_COST: i64 = 256;

/// A piece of memory of this size means large values, whose instructions may take long. It is charged to the step budget, so
/// that what is done with such values counts.
const LARGE: usize = 32 << 10;

/// FTS5 keeps the matches in a row in an array that begins with so many entries and doubles. (So it does in the SQLite that is
/// compiled in; a test shows that it is still so.)
const FIRST_MATCHES: usize = 32;
const MATCH_BYTES: usize = 12;

/// Pairs of matches that the calls of `snippet` may go through in a row: 1,024 matches in one call take some 20 ms.
const MAX_SNIPPET_PAIRS: u64 = 1 << 20;

/// What was refused to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Memory beyond the run's limit.
    Heap,
    /// Memory for a statement that takes too much work to prepare.
    Prepare,
    /// Room for the matches in a row that `snippet` would compare with each other.
    Snippet,
    /// Bytes of temporary files beyond the run's limit.
    TempFiles,
    /// Anything, because a deadline was met.
    Time,
}

struct Meter {
    is_armed: Cell<bool>,
    /// Memory is counted and never refused: SQLite's values are being read, where rusqlite takes a refusal for a bug.
    is_lenient: Cell<bool>,
    heap_left: Cell<i64>,
    temp_left: Cell<i64>,
    prepare_left: Cell<i64>,
    credit: Cell<i64>,
    has_large: Cell<bool>,
    /// How often a large value is charged for: once, and for each time that a JSON function may go through it.
    times_charged: Cell<u64>,
    /// Calls of `snippet` in the statement.
    n_snippets: Cell<u32>,
    /// The page cache is asked, which other runs have filled: what it takes is not charged.
    is_in_page_cache: Cell<bool>,
    refusal: Cell<Option<Refusal>>,
}

thread_local! {
    static METER: Meter = const {
        Meter {
            is_armed: Cell::new(false),
            is_lenient: Cell::new(false),
            heap_left: Cell::new(0),
            temp_left: Cell::new(0),
            prepare_left: Cell::new(0),
            credit: Cell::new(0),
            has_large: Cell::new(false),
            times_charged: Cell::new(1),
            n_snippets: Cell::new(0),
            is_in_page_cache: Cell::new(false),
            refusal: Cell::new(None),
        }
    };
    /// Apart from the counters, because it needs a destructor, which makes each access dearer.
    static GUARD: RefCell<Option<Arc<RunGuard>>> = const { RefCell::new(None) };
}

/// Starts to count for a run on this thread, whose clocks are those of `guard`, of a statement with so many JSON paths.
pub(crate) fn arm(guard: &Arc<RunGuard>, limits: &Limits, n_json_paths: usize) {
    GUARD.with_borrow_mut(|current| {
        if !current.as_ref().is_some_and(|current| Arc::ptr_eq(current, guard)) {
            *current = Some(Arc::clone(guard));
        }
    });
    METER.with(|meter| {
        meter.heap_left.set(saturating(limits.heap_bytes));
        meter.temp_left.set(saturating(limits.temp_bytes));
        meter.prepare_left.set(i64::MAX);
        meter.credit.set(CREDIT);
        meter.has_large.set(false);
        meter.times_charged.set(n_json_paths as u64 + 1);
        meter.n_snippets.set(0);
        meter.refusal.set(None);
        meter.is_lenient.set(false);
        meter.is_armed.set(true);
    });
}

/// Marks the beginning of prepare: what was there before is the schema's, which may be large.
pub(crate) fn start_preparing() {
    METER.with(|meter| meter.prepare_left.set(PREPARE_ALLOCATIONS));
}

/// Marks the end of prepare, of a statement that calls `snippet` so often.
pub(crate) fn start_executing(n_snippets: u32) {
    METER.with(|meter| {
        meter.prepare_left.set(i64::MAX);
        meter.n_snippets.set(n_snippets);
    });
}

/// Stops counting and returns what was refused first, if something was.
pub(crate) fn disarm() -> Option<Refusal> {
    METER.with(|meter| {
        meter.is_armed.set(false);
        meter.refusal.take()
    })
}

/// Refuses nothing until it is called with false.
#[inline]
pub(crate) fn set_lenient(is_lenient: bool) {
    METER.with(|meter| meter.is_lenient.set(is_lenient));
}

/// Answers SQLite's wish for a piece of memory.
#[inline]
pub(crate) fn may_allocate(bytes: usize) -> bool {
    METER.with(|meter| !meter.is_armed.get() || meter.may_allocate(bytes))
}

/// Answers SQLite's wish for a piece of memory to grow from one size to another.
#[inline]
pub(crate) fn may_grow(old: usize, new: usize) -> bool {
    METER.with(|meter| !meter.is_armed.get() || (meter.may_have_matches(new) && meter.may_allocate(new - old)))
}

/// Takes back a piece of memory.
#[inline]
pub(crate) fn freed(bytes: usize) {
    METER.with(|meter| {
        if meter.is_armed.get() {
            meter.heap_left.set(meter.heap_left.get() + bytes as i64);
        }
    });
}

/// Answers SQLite's wish for a page of a file, which `fetch` fetches; `None` refuses it.
#[inline]
pub(crate) fn fetch_page<T>(fetch: impl FnOnce() -> T) -> Option<T> {
    METER.with(|meter| {
        if meter.is_armed.get() && !meter.has_time(PAGE_COST) {
            return None;
        }
        meter.is_in_page_cache.set(true);
        let page = fetch();
        meter.is_in_page_cache.set(false);
        Some(page)
    })
}

/// Tells whether the run has an end by the wall clock.
pub(crate) fn has_deadline() -> bool {
    METER.with(|meter| meter.is_armed.get()) && with_guard(RunGuard::has_deadline).unwrap_or(false)
}

/// Answers the wish to wait for somebody else.
pub(crate) fn may_wait() -> bool {
    METER.with(|meter| !meter.is_armed.get() || meter.look_at_clocks())
}

/// Answers SQLite's wish to write some bytes to a temporary file, which grows it by `growth` bytes.
pub(crate) fn may_write_temp(bytes: i64, growth: i64) -> bool {
    METER.with(|meter| {
        if !meter.is_armed.get() {
            return true;
        }
        let left = meter.temp_left.get() - growth;
        if left < 0 {
            return meter.refuse(Refusal::TempFiles);
        }
        meter.temp_left.set(left);
        meter.has_time(bytes)
    })
}

/// Takes back the space of a temporary file.
pub(crate) fn removed_temp(bytes: i64) {
    METER.with(|meter| meter.temp_left.set(meter.temp_left.get() + bytes));
}

impl Meter {
    fn may_allocate(&self, bytes: usize) -> bool {
        let left = self.heap_left.get() - bytes as i64;
        if !self.is_lenient.get() {
            if left < 0 {
                return self.refuse(Refusal::Heap);
            }
            let prepare_left = self.prepare_left.get();
            if prepare_left == 0 {
                return self.refuse(Refusal::Prepare);
            }
            if !self.has_time(ALLOCATION_COST + bytes as i64) {
                return false;
            }
            self.prepare_left.set(prepare_left - 1);
        }
        self.heap_left.set(left);
        bytes < LARGE || self.may_take_large(bytes)
    }

    /// Charges a large piece; false, with the piece given back, when that is over the budget.
    #[cold]
    fn may_take_large(&self, bytes: usize) -> bool {
        if !self.has_large.replace(true) {
            with_guard(RunGuard::note_large_values);
        }
        let charge = (bytes as u64).saturating_mul(self.times_charged.get());
        if self.is_in_page_cache.get() || !with_guard(|guard| guard.charge(charge)).unwrap_or(false) {
            return true;
        }
        if self.is_lenient.get() {
            return true; // the guard remembers
        }
        self.heap_left.set(self.heap_left.get() + bytes as i64);
        self.refuse(Refusal::Time)
    }

    /// Tells whether an array of so many bytes, if it is one of matches, is not too much for `snippet`.
    fn may_have_matches(&self, bytes: usize) -> bool {
        if self.n_snippets.get() == 0 || !bytes.is_multiple_of(FIRST_MATCHES * MATCH_BYTES) {
            return true;
        }
        let n_matches = (bytes / MATCH_BYTES) as u64;
        let n_pairs = n_matches.saturating_mul(n_matches / 4).saturating_mul(u64::from(self.n_snippets.get()));
        !n_matches.is_power_of_two() || n_pairs <= MAX_SNIPPET_PAIRS || self.refuse(Refusal::Snippet)
    }

    /// Spends work and looks at the clocks when the credit is used up; once the time is over, it stays over.
    #[inline]
    fn has_time(&self, cost: i64) -> bool {
        let credit = self.credit.get() - cost;
        self.credit.set(credit);
        credit > 0 || self.look_at_clocks()
    }

    #[cold]
    fn look_at_clocks(&self) -> bool {
        let must_stop = with_guard(RunGuard::must_stop_between_rows).unwrap_or(false);
        if must_stop && !self.is_lenient.get() {
            return self.refuse(Refusal::Time);
        }
        self.credit.set(CREDIT);
        true
    }

    #[cold]
    fn refuse(&self, refusal: Refusal) -> bool {
        if self.refusal.get().is_none() {
            self.refusal.set(Some(refusal));
        }
        false
    }
}

/// Asks the run's guard; `None` when the thread is ending, and nothing runs on it.
#[cold]
fn with_guard<T>(ask: impl FnOnce(&RunGuard) -> T) -> Option<T> {
    GUARD.try_with(|guard| guard.borrow().as_ref().map(|guard| ask(guard))).ok().flatten()
}

fn saturating(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn limits() -> Limits {
        Limits { timeout: None, heap_bytes: 1_000, temp_bytes: 50, ..Limits::default() }
    }

    #[test]
    fn memory_is_what_is_held_and_not_what_was_asked_for() {
        arm(&Arc::default(), &limits(), 0);
        for _ in 0..100 {
            assert!(may_allocate(900));
            freed(900);
        }
        assert!(may_allocate(900));
        assert!(!may_allocate(101));
        assert!(may_allocate(100));
        set_lenient(true);
        assert!(may_allocate(500));
        set_lenient(false);
        assert!(!may_allocate(1), "what was read leniently is held all the same");
        assert_eq!(disarm(), Some(Refusal::Heap));
        assert!(may_allocate(5_000), "outside a run nothing is refused");
        assert_eq!(disarm(), None);
    }

    #[test]
    fn a_prepare_has_a_number_of_pieces_and_an_execution_has_not() {
        arm(&Arc::default(), &limits(), 0);
        let take = || {
            may_allocate(8) && {
                freed(8);
                true
            }
        };
        assert!((0..PREPARE_ALLOCATIONS * 2).all(|_| take()));
        start_preparing();
        assert!((0..PREPARE_ALLOCATIONS).all(|_| take()));
        assert!(!take());
        start_executing(0);
        assert!((0..PREPARE_ALLOCATIONS * 2).all(|_| take()));
        assert_eq!(disarm(), Some(Refusal::Prepare));
    }

    #[test]
    fn temporary_files_have_a_limit_of_their_own() {
        arm(&Arc::default(), &limits(), 0);
        assert!(may_write_temp(50, 50) && may_write_temp(50, 0) && !may_write_temp(1, 1) && may_allocate(1_000));
        removed_temp(50);
        assert!(may_write_temp(50, 50));
        assert_eq!(disarm(), Some(Refusal::TempFiles));
    }

    #[test]
    fn when_the_time_is_over_everything_is_refused() {
        let guard = Arc::new(RunGuard::default());
        let limits = Limits { timeout: Some(Duration::ZERO), heap_bytes: u64::MAX, temp_bytes: u64::MAX, ..limits() };
        guard.arm(&limits, None, Instant::now());
        let asks: [fn() -> bool; 3] = [|| may_allocate(1), || fetch_page(|| ()).is_some(), || may_write_temp(1, 1)];
        for ask in asks {
            arm(&guard, &limits, 0);
            assert!((0..=CREDIT).any(|_| !ask()));
            assert!(asks.iter().all(|ask| !ask()));
            assert_eq!(disarm(), Some(Refusal::Time));
        }
    }
}
