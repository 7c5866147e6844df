//! Memory that the machine may not give. Rust ends the process where it gets none, so code whose memory grows with a result checks here
//! first, and the run or the comparison ends as `too_large`.
//!
//! Small pieces are taken without a question. There is room for those while there is room for [`HEADROOM`].

use std::hint::black_box;
use std::panic::{self, AssertUnwindSafe, catch_unwind};

/// Bytes that may be allocated between two checks. (The system's allocator keeps its thresholds when it frees more than 32 MiB.)
const HEADROOM: usize = 40 << 20;

/// Growth below this leaves the headroom as it is.
const LARGE: usize = 1 << 20;

/// There is no memory for a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is not enough memory for the result")]
pub struct OutOfMemory;

impl From<OutOfMemory> for std::io::Error {
    fn from(_: OutOfMemory) -> Self {
        std::io::ErrorKind::OutOfMemory.into()
    }
}

/// Checks that so many bytes could be taken, and small pieces after them.
pub fn check_room(bytes: usize) -> Result<(), OutOfMemory> {
    let mut probe = Vec::<u8>::new();
    let reserved = probe.try_reserve_exact(bytes.saturating_add(HEADROOM));
    black_box(&probe); // or the compiler leaves it out
    reserved.map_err(|_| OutOfMemory)
}

/// Checks the same where so many bytes are no small piece.
pub(crate) fn check_room_for(bytes: usize) -> Result<(), OutOfMemory> {
    if bytes >= LARGE { check_room(bytes) } else { Ok(()) }
}

/// Makes room for so many more items.
pub(crate) fn grow<T>(list: &mut Vec<T>, n_more: usize) -> Result<(), OutOfMemory> {
    let before = list.capacity();
    list.try_reserve(n_more).map_err(|_| OutOfMemory)?;
    let has_grown = list.capacity() > before && list.capacity().saturating_mul(size_of::<T>()) >= LARGE;
    if has_grown { check_room(0) } else { Ok(()) }
}

/// Ends the comparison under way, or what [`catch`] does.
pub(crate) fn or_end<T>(result: Result<T, OutOfMemory>) -> T {
    result.unwrap_or_else(|error| panic::resume_unwind(Box::new(error)))
}

/// Collects items; ends where they find no room.
pub(crate) fn collect<T>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut list = Vec::new();
    or_end(grow(&mut list, items.size_hint().0));
    for item in items {
        if list.len() == list.capacity() {
            or_end(grow(&mut list, 1));
        }
        list.push(item);
    }
    list
}

/// Repeats an item; ends where there is no room.
pub(crate) fn repeat<T: Clone>(item: T, n: usize) -> Vec<T> {
    or_end(check_room_for(n.saturating_mul(size_of::<T>())));
    vec![item; n]
}

/// Runs `work`, and returns an error if it ended for want of memory.
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
    fn what_finds_no_room_ends_and_nothing_else() {
        assert_eq!(check_room(isize::MAX as usize), Err(OutOfMemory));
        assert_eq!(check_room(1 << 20), Ok(()));
        assert_eq!(grow(&mut vec![0_u64], usize::MAX / 16), Err(OutOfMemory));
        assert_eq!(catch(|| repeat(0_u64, usize::MAX / 16).len()), Err(OutOfMemory));
        assert_eq!(catch(|| collect(0..100_000).len()), Ok(100_000));
        assert_eq!(catch(|| collect((0..10).filter(|n| n % 2 == 0))), Ok(vec![0, 2, 4, 6, 8]));
        assert!(catch_unwind(|| catch(|| panic::resume_unwind(Box::new("a fault")))).is_err());
    }
}
