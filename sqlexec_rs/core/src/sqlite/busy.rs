//! Threads that may be inside SQLite, and what must not happen meanwhile.
//!
//! - In the child of a fork SQLite's own locks are as they were, and the thread that held one is not there. So a pool is not
//!   made in a child that was forked while a thread was busy: it finds the count as it was at the fork.
//! - To close any descriptor of a file takes all locks on that file from this process (POSIX). So a descriptor of ours
//!   stays open until no thread is busy. A connection that reads a log keeps a lock also while its thread rests, and one that
//!   another SQLite of this process writes with has a lock, too: a file with a log or a journal beside it is neither opened
//!   nor closed here. (Who uses a log has a lock that keeps others from taking it away, so it is there to see. Of what another
//!   SQLite reads, or is yet to write, there is nothing to see: one is told not to have two in a process.)

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::error::Fault;
use crate::locks::lock;
use crate::sqlite::hooks;
use crate::sqlite::inode::Inode;
use crate::sqlite::side_files::is_in_use;

/// The most descriptors that wait to be closed.
const MAX_WAITING: usize = 64;

/// Threads of all pools of this process between their first query and their rest.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Database files to close when nobody is busy, and the paths that led to them; whoever closes one holds this.
static WAITING: Mutex<BTreeMap<Inode, (File, PathBuf)>> = Mutex::new(BTreeMap::new());

/// The process that last made a pool; 0 before the first.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Counts its thread as busy while it lives.
pub(crate) struct BusyGuard;

impl BusyGuard {
    pub(crate) fn new() -> Self {
        BUSY.fetch_add(1, Ordering::SeqCst);
        drop(waiting()); // whoever closes files at the moment has done so then
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

/// Reads the first bytes of a database file without taking the locks of running queries; false where that cannot be done
/// now: the file is shorter or in use, or too many wait to be closed.
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

/// Refuses a process that was forked while a thread was busy, with [`Fault::ForkedBusy`].
pub(crate) fn check_fork() -> Result<(), Fault> {
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

fn waiting() -> MutexGuard<'static, BTreeMap<Inode, (File, PathBuf)>> {
    lock(&WAITING)
}
