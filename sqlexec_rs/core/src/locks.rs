//! Locks whose holders may have panicked: each keeps its data in order at every point where a panic is possible.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, whether or not a holder has panicked.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
