//! Bounds of a comparison: machine-independent steps, time, memory and cancellation.
//!
//! A rule announces its work by calling [`spend`] at any depth. If a bound is exceeded, the comparison unwinds to
//! [`within`], so rules stay plain functions of two tables.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as Atomic};
use std::time::Instant;

use crate::memory::{self, OutOfMemory};

/// Steps between two checks of the clock and the memory: about 100 µs, or 10 ms if each step formats a text.
const CHECK_PERIOD: u64 = 1 << 16;

/// Maximum number of items whose sort needs little memory and at most 30 ms.
pub(crate) const SMALL_SORT: usize = 1 << 15;

/// Bytes of text that are hashed, compared or copied per step.
const BYTES_PER_STEP: usize = 64;

/// The bounds of a comparison.
#[derive(Clone, Debug)]
pub(crate) struct ComparisonBounds {
    /// Maximum number of cells that may be hashed, compared or moved.
    pub(crate) steps: u64,
    pub(crate) deadline: Option<Instant>,
    /// Flags that cancel the comparison; either is enough.
    pub(crate) cancels: [Arc<AtomicBool>; 2],
}

/// The bound that a comparison exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExceededBound {
    Steps,
    Wall,
    Cancelled,
    /// Not enough memory for the comparison.
    Memory,
}

thread_local! {
    /// The bounds of the current comparison, if any.
    static BOUNDS: RefCell<Option<ComparisonBounds>> = const { RefCell::new(None) };
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    static STEPS_UNTIL_CHECK: Cell<u64> = const { Cell::new(u64::MAX) };
    /// Whether the next check is the first. Most comparisons need no second check and little memory.
    static IS_FIRST_CHECK: Cell<bool> = const { Cell::new(true) };
}

/// Runs a comparison under bounds; returns the exceeded bound as an error.
pub(crate) fn within<T>(bounds: &ComparisonBounds, compare: impl FnOnce() -> T) -> Result<T, ExceededBound> {
    BOUNDS.set(Some(bounds.clone()));
    LEFT.set(bounds.steps);
    STEPS_UNTIL_CHECK.set(0); // check at the first step
    IS_FIRST_CHECK.set(true);
    let result = catch_unwind(AssertUnwindSafe(compare));
    BOUNDS.set(None);
    LEFT.set(u64::MAX);
    STEPS_UNTIL_CHECK.set(u64::MAX);
    result.map_err(|panic| match panic.downcast::<ExceededBound>() {
        Ok(overrun) => *overrun,
        Err(panic) if panic.is::<OutOfMemory>() => ExceededBound::Memory,
        Err(panic) => panic::resume_unwind(panic),
    })
}

/// Charges `steps` to the current comparison and unwinds if a bound is exceeded. Does nothing without bounds.
#[inline]
pub(crate) fn spend(steps: usize) {
    let steps = steps as u64;
    let steps_left = STEPS_UNTIL_CHECK.get();
    if steps < steps_left {
        STEPS_UNTIL_CHECK.set(steps_left - steps);
        LEFT.set(LEFT.get().saturating_sub(steps));
    } else {
        check_bounds(steps);
    }
}

/// Checks clock, cancellation and memory without charging the budget. For work that is already charged, or that is
/// small per cell.
#[inline]
pub(crate) fn check_limits(steps: usize) {
    let steps_left = STEPS_UNTIL_CHECK.get();
    if (steps as u64) < steps_left { STEPS_UNTIL_CHECK.set(steps_left - steps as u64) } else { check_bounds(0) }
}

/// Calls [`check_limits`] for work on `n` bytes.
#[inline]
pub(crate) fn check_limits_on_bytes(n: usize) {
    if n >= BYTES_PER_STEP {
        check_limits(n / BYTES_PER_STEP);
    }
}

/// Charges the steps for work on `n` bytes.
#[inline]
pub(crate) fn spend_on_bytes(n: usize) {
    if n >= BYTES_PER_STEP {
        spend(n / BYTES_PER_STEP);
    }
}

/// Compares two texts or blobs, charging steps for long ones.
#[inline]
pub(crate) fn equal_bytes(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && {
        spend_on_bytes(left.len());
        left == right
    }
}

/// Sorts items; each comparison counts as a step for the clock.
pub(crate) fn sort_by<T>(items: &mut [T], order: impl Fn(&T, &T) -> Ordering) {
    charge_sort(items.len());
    if items.len() < SMALL_SORT {
        return items.sort_by(order);
    }
    memory::unwind_if_oom(memory::check_room(size_of_val(items) / 2)); // a stable sort allocates this much
    items.sort_by(|a, b| {
        check_limits(1);
        order(a, b)
    });
}

/// Sorts items by keys that are computed once, under the same bounds.
pub(crate) fn sort_by_cached_key<T, K: Ord>(items: &mut Vec<T>, key: impl Fn(&T) -> K) {
    if items.len() < SMALL_SORT {
        charge_sort(items.len());
        return items.sort_by_cached_key(key);
    }
    let mut keyed = memory::collect(std::mem::take(items).into_iter().map(|item| (key(&item), item)));
    sort_by(&mut keyed, |a, b| a.0.cmp(&b.0));
    *items = memory::collect(keyed.into_iter().map(|(_, item)| item));
}

/// Sorts numbers under the same bounds.
pub(crate) fn sort_numbers(numbers: &mut [u64]) {
    if numbers.len() < SMALL_SORT {
        return numbers.sort_unstable();
    }
    numbers.sort_unstable_by(|a, b| {
        check_limits(1);
        a.cmp(b)
    });
}

/// Charges the steps of sorting `n` items.
pub(crate) fn charge_sort(n: usize) {
    spend(n.saturating_mul(n.max(2).ilog2() as usize));
}

#[cold]
fn check_bounds(steps: u64) {
    let overrun = BOUNDS.with_borrow(|bounds| {
        let bounds = bounds.as_ref()?;
        let is_set = |cancel: &Arc<AtomicBool>| cancel.load(Atomic::Relaxed);
        if bounds.cancels.iter().any(is_set) {
            return Some(ExceededBound::Cancelled);
        }
        let Some(left) = LEFT.get().checked_sub(steps) else { return Some(ExceededBound::Steps) };
        if bounds.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Some(ExceededBound::Wall);
        }
        if !IS_FIRST_CHECK.replace(false) && memory::check_room(0).is_err() {
            return Some(ExceededBound::Memory);
        }
        LEFT.set(left);
        STEPS_UNTIL_CHECK.set(CHECK_PERIOD.min(left.saturating_add(1)));
        None
    });
    if let Some(overrun) = overrun {
        panic::resume_unwind(Box::new(overrun)); // calls no panic hook and prints nothing
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn bounds() -> ComparisonBounds {
        ComparisonBounds { steps: 1_000_000, deadline: None, cancels: Default::default() }
    }

    #[test]
    fn budget_is_exact_for_any_split_of_steps() {
        for portion in [1, 7, 1_000, 500_000, 1_000_000] {
            let n = 1_000_000_usize.div_ceil(portion);
            let spend_all = |more: usize| {
                (0..n).for_each(|i| spend(portion.min(1_000_000 - i * portion)));
                spend(more);
            };
            assert_eq!(within(&bounds(), || spend_all(0)), Ok(()), "{portion}");
            assert_eq!(within(&bounds(), || spend_all(1)), Err(ExceededBound::Steps), "{portion}");
        }
        spend(usize::MAX); // no bounds apply outside `within`
        assert_eq!(within(&bounds(), || spend(usize::MAX)), Err(ExceededBound::Steps));
    }

    #[test]
    fn clock_and_cancellation_end_a_comparison_and_panics_propagate() {
        let forever = || loop {
            spend(1);
        };
        let unbounded = ComparisonBounds { steps: u64::MAX, ..bounds() };
        let deadline = Some(Instant::now() + Duration::from_millis(20));
        assert_eq!(
            within(&ComparisonBounds { deadline, ..unbounded.clone() }, forever),
            Err::<(), _>(ExceededBound::Wall)
        );
        std::thread::scope(|scope| {
            scope.spawn(|| unbounded.cancels[1].store(true, Atomic::Relaxed));
            assert_eq!(within(&unbounded, forever), Err::<(), _>(ExceededBound::Cancelled));
        });
        let panics = || within(&bounds(), || panic::resume_unwind(Box::new("a fault")));
        assert!(catch_unwind(panics).is_err_and(|panic| panic.is::<&str>()));
    }
}
