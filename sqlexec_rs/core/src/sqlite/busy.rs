//! Counts the threads that may be inside SQLite, and delays operations that are unsafe meanwhile.
//!
//! - After a fork, the child inherits SQLite's locks in the state they had, without the thread that held them. So a
//!   pool cannot be created in a child that was forked while a thread was busy; the child sees the count as of the
//!   fork.
//! - Closing any descriptor of a file releases all POSIX locks of this process on that file. So our descriptors stay
//!   open until no thread is busy. A connection that reads a log keeps a lock even while its thread is idle, and so
//!   does another SQLite in this process that writes. Files with a log or a journal are therefore neither opened nor
//!   closed here; a user of a log holds a lock that prevents its removal, so the log is visible. What another SQLite
//!   in the process only reads is not visible: the documentation advises against two of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::error::PoolError;
use crate::locks::lock;
use crate::sqlite::hooks;
use crate::sqlite::inode::Inode;
use crate::sqlite::side_files::is_in_use;

/// Maximum number of descriptors that wait to be closed.
const MAX_WAITING: usize = 64;

/// Number of threads, in all pools of this process, that have run a query and are not idle yet.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Database files to close once no thread is busy, with the paths that led to them. The closing thread holds this
/// lock.
static WAITING: Mutex<BTreeMap<Inode, (File, PathBuf)>> = Mutex::new(BTreeMap::new());

/// Id of the process that last created a pool; 0 before the first.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Counts the current thread as busy until dropped.
pub(crate) struct BusyGuard;

impl BusyGuard {
    pub(crate) fn new() -> Self {
        BUSY.fetch_add(1, Ordering::SeqCst);
        drop(waiting()); // waits for a thread that is closing files
        Self
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        let mut waiting = waiting();
        if BUSY.load(Ordering::SeqCst) == 1 {
            waiting.retain(|_, (_, path)| is_in_use(path));
        }
        BUSY.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Reads the first bytes of a database file without releasing the locks of running queries. Returns false if that is
/// impossible now: the file is shorter or in use, or too many descriptors wait to be closed.
pub(crate) fn read_head(path: &Path, inode: Inode, head: &mut [u8]) -> bool {
    let _busy = BusyGuard::new();
    let mut waiting = waiting();
    if is_in_use(path) {
        return false;
    }
    if let Some((file, _)) = waiting.get(&inode) {
        return file.read_exact_at(head, 0).is_ok();
    }
    if waiting.len() >= MAX_WAITING {
        return false;
    }
    let Some(file) = hooks::open_file(path) else { return false };
    let is_read = file.read_exact_at(head, 0).is_ok();
    if BUSY.load(Ordering::SeqCst) > 1 || is_in_use(path) {
        waiting.insert(inode, (file, path.to_owned()));
    }
    is_read
}

/// Refuses a process that was forked while a thread was busy, with [`PoolError::ForkedBusy`].
pub(crate) fn check_fork() -> Result<(), PoolError> {
    let pid = process::id();
    let pool_pid = PROCESS.load(Ordering::SeqCst);
    if pool_pid != pid {
        if pool_pid != 0 && BUSY.load(Ordering::SeqCst) != 0 {
            return Err(PoolError::ForkedBusy);
        }
        PROCESS.store(pid, Ordering::SeqCst);
    }
    Ok(())
}

fn waiting() -> MutexGuard<'static, BTreeMap<Inode, (File, PathBuf)>> {
    lock(&WAITING)
}
