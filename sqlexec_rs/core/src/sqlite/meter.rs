//! Counts the memory and temporary files of a run, on the run's own thread.
//!
//! SQLite requests each allocation, each file page and each write to a temporary file from
//! [`hooks`](crate::sqlite::hooks), which ask this module. A statement runs on one thread, so the counters need no
//! lock and count no other run.
//!
//! Each request also checks the clocks. SQLite calls the progress handler only between instructions of its virtual
//! machine; preparing a statement, counting a table's pages and merging sorted runs take long without it, but all of
//! them need memory or pages. A request after the deadline fails as if memory were exhausted, which SQLite handles
//! everywhere.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::request::Limits;
use crate::sqlite::deadline::RunGuard;

/// Maximum number of allocations of a prepare. A count gives the same verdict on every machine. Golds of Spider and of
/// BIRD's superhero take at most 533.
pub(crate) const PREPARE_ALLOCATIONS: i64 = 400_000;

/// Work between two checks of the clocks, in the units of the costs below: 64 allocations, 64 KiB, or 256 pages.
const CREDIT: i64 = 64 << 10;
const ALLOCATION_COST: i64 = 1 << 10;
const PAGE_COST: i64 = 256;

/// An allocation of this size means large values, whose instructions may take long. It is charged to the step budget,
/// so that work on such values counts.
const LARGE: usize = 32 << 10;

/// Initial capacity of the array in which FTS5 keeps the matches of a row; it doubles. A test checks that the bundled
/// SQLite still does this.
const FIRST_MATCHES: usize = 32;
const MATCH_BYTES: usize = 12;

/// Maximum number of match pairs that the calls of `snippet` may visit per row. 1,024 matches in one call take about
/// 20 ms.
const MAX_SNIPPET_PAIRS: u64 = 1 << 20;

/// The resource that a run was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Memory beyond the run's limit.
    Heap,
    /// Memory for a statement that takes too much work to prepare.
    Prepare,
    /// Memory for the matches of a row that `snippet` would compare with each other.
    Snippet,
    /// Temporary file bytes beyond the run's limit.
    TempFiles,
    /// Any resource after a deadline.
    Time,
}

struct Meter {
    is_armed: Cell<bool>,
    /// Whether allocations are counted but never refused: while SQLite's values are read, rusqlite treats a refusal
    /// as a bug.
    is_lenient: Cell<bool>,
    heap_left: Cell<i64>,
    temp_left: Cell<i64>,
    prepare_left: Cell<i64>,
    credit: Cell<i64>,
    has_large: Cell<bool>,
    /// How often a large value is charged: once, plus once per pass that a JSON function may make over it.
    times_charged: Cell<u64>,
    /// Calls of `snippet` in the statement.
    n_snippets: Cell<u32>,
    /// Whether the page cache is being accessed, whose allocations are shared with other runs and not charged.
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
    /// Separate from the counters because it needs a destructor, which makes each access slower.
    static GUARD: RefCell<Option<Arc<RunGuard>>> = const { RefCell::new(None) };
}

/// Starts counting for a run on this thread. `guard` holds its clocks; the statement has `n_json_paths` JSON paths.
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

/// Marks the start of prepare: earlier allocations belong to the schema, which may be large.
pub(crate) fn start_preparing() {
    METER.with(|meter| meter.prepare_left.set(PREPARE_ALLOCATIONS));
}

/// Marks the end of prepare, for a statement with `n_snippets` calls of `snippet`.
pub(crate) fn start_executing(n_snippets: u32) {
    METER.with(|meter| {
        meter.prepare_left.set(i64::MAX);
        meter.n_snippets.set(n_snippets);
    });
}

/// Stops counting and returns the first refused resource, if any.
pub(crate) fn disarm() -> Option<Refusal> {
    METER.with(|meter| {
        meter.is_armed.set(false);
        meter.refusal.take()
    })
}

/// Disables or enables refusals.
#[inline]
pub(crate) fn set_lenient(is_lenient: bool) {
    METER.with(|meter| meter.is_lenient.set(is_lenient));
}

/// Returns whether SQLite may allocate `bytes` bytes.
#[inline]
pub(crate) fn may_allocate(bytes: usize) -> bool {
    METER.with(|meter| !meter.is_armed.get() || meter.may_allocate(bytes))
}

/// Returns whether an allocation may grow from `old` to `new` bytes.
#[inline]
pub(crate) fn may_grow(old: usize, new: usize) -> bool {
    METER.with(|meter| !meter.is_armed.get() || (meter.may_have_matches(new) && meter.may_allocate(new - old)))
}

/// Records that an allocation was freed.
#[inline]
pub(crate) fn record_free(bytes: usize) {
    METER.with(|meter| {
        if meter.is_armed.get() {
            meter.heap_left.set(meter.heap_left.get() + bytes as i64);
        }
    });
}

/// Fetches a page of a file for SQLite by calling `fetch`; returns `None` to refuse it.
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

/// Returns whether the run has a wall-clock deadline.
pub(crate) fn has_deadline() -> bool {
    METER.with(|meter| meter.is_armed.get()) && with_guard(RunGuard::has_deadline).unwrap_or(false)
}

/// Returns whether the run may wait for another user of a resource.
pub(crate) fn may_wait() -> bool {
    METER.with(|meter| !meter.is_armed.get() || meter.check_clocks())
}

/// Returns whether SQLite may write `bytes` bytes to a temporary file that grows by `growth` bytes.
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

/// Records that a temporary file was removed.
pub(crate) fn record_temp_removal(bytes: i64) {
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

    /// Charges a large allocation. If it exceeds the budget, frees it again and returns false.
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
            return true; // the guard remembers the stop
        }
        self.heap_left.set(self.heap_left.get() + bytes as i64);
        self.refuse(Refusal::Time)
    }

    /// Returns whether an allocation, if it is an array of matches, is small enough for `snippet`.
    fn may_have_matches(&self, bytes: usize) -> bool {
        if self.n_snippets.get() == 0 || !bytes.is_multiple_of(FIRST_MATCHES * MATCH_BYTES) {
            return true;
        }
        let n_matches = (bytes / MATCH_BYTES) as u64;
        let n_pairs = n_matches.saturating_mul(n_matches / 4).saturating_mul(u64::from(self.n_snippets.get()));
        !n_matches.is_power_of_two() || n_pairs <= MAX_SNIPPET_PAIRS || self.refuse(Refusal::Snippet)
    }

    /// Charges work and checks the clocks when the credit is used up. After the deadline it always returns false.
    #[inline]
    fn has_time(&self, cost: i64) -> bool {
        let credit = self.credit.get() - cost;
        self.credit.set(credit);
        credit > 0 || self.check_clocks()
    }

    #[cold]
    fn check_clocks(&self) -> bool {
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

/// Calls the run's guard; `None` if the thread is exiting, so that nothing runs on it.
#[cold]
fn with_guard<T>(call: impl FnOnce(&RunGuard) -> T) -> Option<T> {
    GUARD.try_with(|guard| guard.borrow().as_ref().map(|guard| call(guard))).ok().flatten()
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
    fn memory_counts_held_bytes_and_not_all_requests() {
        arm(&Arc::default(), &limits(), 0);
        for _ in 0..100 {
            assert!(may_allocate(900));
            record_free(900);
        }
        assert!(may_allocate(900));
        assert!(!may_allocate(101));
        assert!(may_allocate(100));
        set_lenient(true);
        assert!(may_allocate(500));
        set_lenient(false);
        assert!(!may_allocate(1), "memory of lenient reads must count");
        assert_eq!(disarm(), Some(Refusal::Heap));
        assert!(may_allocate(5_000), "outside a run every allocation is allowed");
        assert_eq!(disarm(), None);
    }

    #[test]
    fn allocations_are_limited_in_prepare_only() {
        arm(&Arc::default(), &limits(), 0);
        let take = || {
            may_allocate(8) && {
                record_free(8);
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
    fn temporary_files_have_a_separate_limit() {
        arm(&Arc::default(), &limits(), 0);
        assert!(may_write_temp(50, 50) && may_write_temp(50, 0) && !may_write_temp(1, 1) && may_allocate(1_000));
        record_temp_removal(50);
        assert!(may_write_temp(50, 50));
        assert_eq!(disarm(), Some(Refusal::TempFiles));
    }

    #[test]
    fn after_the_deadline_everything_is_refused() {
        let guard = Arc::new(RunGuard::default());
        let limits = Limits { timeout: Some(Duration::ZERO), heap_bytes: u64::MAX, temp_bytes: u64::MAX, ..limits() };
        guard.arm(&limits, None, Instant::now());
        let requests: [fn() -> bool; 3] = [|| may_allocate(1), || fetch_page(|| ()).is_some(), || may_write_temp(1, 1)];
        for ask in requests {
            arm(&guard, &limits, 0);
            assert!((0..=CREDIT).any(|_| !ask()));
            assert!(requests.iter().all(|ask| !ask()));
            assert_eq!(disarm(), Some(Refusal::Time));
        }
    }
}
