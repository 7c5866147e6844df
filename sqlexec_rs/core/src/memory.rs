//! Memory checks. Rust aborts the process when an allocation fails. Code whose memory grows with a result checks here
//! first, so that the run or the comparison ends as `too_large` instead.
//!
//! Small allocations are not checked: they fit while [`HEADROOM`] is available.

use std::hint::black_box;
use std::panic::{self, AssertUnwindSafe, catch_unwind};

/// Bytes that may be allocated between two checks. (The system's allocator keeps its thresholds when it frees more
/// than 32 MiB.)
const HEADROOM: usize = 40 << 20;

/// Growth below this size leaves enough headroom.
const LARGE: usize = 1 << 20;

/// Not enough memory for a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is not enough memory for the result")]
pub struct OutOfMemory;

impl From<OutOfMemory> for std::io::Error {
    fn from(_: OutOfMemory) -> Self {
        std::io::ErrorKind::OutOfMemory.into()
    }
}

/// Checks that `bytes` bytes can be allocated, plus the headroom for small allocations.
pub fn check_room(bytes: usize) -> Result<(), OutOfMemory> {
    let mut probe = Vec::<u8>::new();
    let reserved = probe.try_reserve_exact(bytes.saturating_add(HEADROOM));
    black_box(&probe); // keeps the compiler from removing the probe
    reserved.map_err(|_| OutOfMemory)
}

/// Calls [`check_room`] unless `bytes` is small.
pub(crate) fn check_room_for(bytes: usize) -> Result<(), OutOfMemory> {
    if bytes >= LARGE { check_room(bytes) } else { Ok(()) }
}

/// Reserves room for `n_more` more items.
pub(crate) fn grow<T>(list: &mut Vec<T>, n_more: usize) -> Result<(), OutOfMemory> {
    let before = list.capacity();
    list.try_reserve(n_more).map_err(|_| OutOfMemory)?;
    let has_grown = list.capacity() > before && list.capacity().saturating_mul(size_of::<T>()) >= LARGE;
    if has_grown { check_room(0) } else { Ok(()) }
}

/// Unwinds from the current comparison or from [`catch`] if memory is short.
pub(crate) fn unwind_if_oom<T>(result: Result<T, OutOfMemory>) -> T {
    result.unwrap_or_else(|error| panic::resume_unwind(Box::new(error)))
}

/// Collects items; unwinds if memory is short.
pub(crate) fn collect<T>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut list = Vec::new();
    unwind_if_oom(grow(&mut list, items.size_hint().0));
    for item in items {
        if list.len() == list.capacity() {
            unwind_if_oom(grow(&mut list, 1));
        }
        list.push(item);
    }
    list
}

/// Repeats an item; unwinds if memory is short.
pub(crate) fn repeat<T: Clone>(item: T, n: usize) -> Vec<T> {
    unwind_if_oom(check_room_for(n.saturating_mul(size_of::<T>())));
    vec![item; n]
}

/// Runs `work`; returns an error if it ran out of memory.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, OutOfMemory> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| match panic.downcast::<OutOfMemory>() {
        Ok(error) => *error,
        Err(panic) => panic::resume_unwind(panic),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_allocations_end_and_small_ones_succeed() {
        assert_eq!(check_room(isize::MAX as usize), Err(OutOfMemory));
        assert_eq!(check_room(1 << 20), Ok(()));
        assert_eq!(grow(&mut vec![0_u64], usize::MAX / 16), Err(OutOfMemory));
        assert_eq!(catch(|| repeat(0_u64, usize::MAX / 16).len()), Err(OutOfMemory));
        assert_eq!(catch(|| collect(0..100_000).len()), Ok(100_000));
        assert_eq!(catch(|| collect((0..10).filter(|n| n % 2 == 0))), Ok(vec![0, 2, 4, 6, 8]));
        assert!(catch_unwind(|| catch(|| panic::resume_unwind(Box::new("a fault")))).is_err());
    }
}
