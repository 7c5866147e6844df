//! Whether SQLite can be used in this process: not in the child of a fork at whose moment a query ran.
//!
//! SQLite's own locks are in the copied memory as they were, and the thread that held one is not in the child. So threads
//! of a pool count as busy from their first query to their rest; the child finds the count as it was at the fork.

use std::process;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::error::Fault;

/// Threads of all pools of this process that may be inside SQLite.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// The process that last made a pool; 0 before the first.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Counts its thread as busy while it lives.
pub(crate) struct Busy;

impl Busy {
    pub(crate) fn new() -> Self {
        BUSY.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Refuses a process that was forked while a thread was busy, with [`Fault::ForkedBusy`].
pub(crate) fn check() -> Result<(), Fault> {
    let here = process::id();
    let made_in = PROCESS.load(Ordering::SeqCst);
    if made_in != here {
        if made_in != 0 && BUSY.load(Ordering::SeqCst) != 0 {
            return Err(Fault::ForkedBusy);
        }
        PROCESS.store(here, Ordering::SeqCst);
    }
    Ok(())
}
