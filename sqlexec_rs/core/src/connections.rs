//! The connections of one worker thread: one or two a database, kept open up to a cap.
//!
//! Where more databases are visited than may be open, which one is closed decides the speed. To close one that has lain for
//! long takes longer than to open it, as nothing of it is in the processor's caches, and where databases are visited at
//! random it is as likely to be wanted as any other. So one of those opened lately is closed, if nobody came back to it.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::copies::Copies;
use crate::dbfile::Inode;
use crate::deadline::Control;
use crate::outcome::{Outcome, Status};
use crate::request::Caps;
use crate::sandbox::Sandbox;
use crate::scan::Patterns;
use crate::stats::Stats;

/// How many that were opened last are given the time to be visited again.
const PASSING: usize = 8;

/// Each time of so many, the least recently used is closed after all: what is no longer visited leaves in the end.
const AGING_PERIOD: u64 = 16;

/// Kept connections, by path.
pub(crate) struct Connections {
    open: HashMap<PathBuf, Kept>,
    cap: usize,
    /// Files that the connections have open.
    n_files: Arc<AtomicUsize>,
    clock: u64,
    /// The databases opened last, the newest at the end.
    passing: VecDeque<PathBuf>,
    n_closed_for_room: u64,
    copies: Arc<Copies>,
    control: Arc<Control>,
    stats: Arc<Stats>,
}

struct Kept {
    sandbox: Sandbox,
    inode: Inode,
    n_runs: u64,
    last_used: u64,
}

impl Connections {
    /// Starts without a connection; `cap` is the most databases, and the most files, that stay open (but one and two may).
    pub(crate) fn new(cap: usize, copies: Arc<Copies>, control: Arc<Control>, stats: Arc<Stats>) -> Self {
        Self {
            open: HashMap::new(),
            cap: cap.max(1),
            n_files: Arc::default(),
            clock: 0,
            passing: VecDeque::new(),
            n_closed_for_room: 0,
            copies,
            control,
            stats,
        }
    }

    /// Tells whether there is a connection to the file that the path leads to now.
    pub(crate) fn holds(&self, path: &Path, inode: Inode) -> bool {
        self.open.get(path).is_some_and(|kept| kept.inode == inode && !kept.sandbox.is_stale())
    }

    /// Returns the connection to a file for a run, opening it first if there is none or the path leads to another file now.
    pub(crate) fn get(&mut self, path: &Path, inode: Inode) -> Result<&Sandbox, Box<Outcome>> {
        self.open(path, inode);
        self.clock += 1;
        let gone = || Box::new(Outcome::failed(Status::DbError, "the connection is gone"));
        let kept = self.open.get_mut(path).ok_or_else(gone)?;
        kept.last_used = self.clock;
        kept.n_runs += 1;
        let most_more = kept.sandbox.n_files_unopened();
        while self.n_files.load(Ordering::Relaxed) + most_more > self.cap && self.close_for_room(path) {}
        self.open.get(path).map(|kept| &kept.sandbox).ok_or_else(gone)
    }

    /// Opens the connection to a file, if there is none.
    pub(crate) fn open(&mut self, path: &Path, inode: Inode) {
        if self.holds(path, inode) {
            return;
        }
        self.forget(path);
        while self.open.len() >= self.cap && self.close_for_room(path) {}
        self.stats.opened(1);
        let sandbox = self.connect(path);
        self.open.insert(path.to_owned(), Kept { sandbox, inode, n_runs: 0, last_used: self.clock });
        if self.passing.len() > PASSING {
            self.passing.pop_front();
        }
        self.passing.push_back(path.to_owned());
    }

    /// Closes the connection to a path, if there is one: after a database error it may hold a stale state.
    pub(crate) fn forget(&mut self, path: &Path) {
        if self.open.remove(path).is_some() {
            self.stats.closed(1);
        }
    }

    /// Closes all: after a panic nothing is known about any of them.
    pub(crate) fn clear(&mut self) {
        self.stats.closed(self.open.len() as u64);
        self.open.clear();
    }

    /// Prepares for a database: for a copy of it in memory, or for its file, which the first run opens.
    fn connect(&mut self, path: &Path) -> Sandbox {
        let store = Arc::clone(&self.copies);
        let access = store.access();
        let file = Sandbox::new(path, access.immutable, &self.control, &self.n_files);
        if access.copy_up_to_bytes == 0 {
            return file;
        }
        let connect = || file.connection(Patterns::Short, &Caps::default());
        match store.get(path, connect, || self.close_oldest(Sandbox::is_copy)) {
            Some(copied) => Sandbox::of_copy(path, copied, &self.control, &self.n_files),
            None => file,
        }
    }

    /// Closes a database, but not the one at `path`; false when there is no other.
    fn close_for_room(&mut self, path: &Path) -> bool {
        self.n_closed_for_room += 1;
        let oldest_passing = if self.passing.len() > PASSING { self.passing.pop_front() } else { None };
        let is_passing = |other: &PathBuf| self.open.get(other).is_some_and(|kept| kept.n_runs <= 1);
        match oldest_passing.filter(|other| other != path && is_passing(other)) {
            Some(other) if !self.n_closed_for_room.is_multiple_of(AGING_PERIOD) => {
                self.forget(&other);
                true
            }
            _ => self.close_oldest(|sandbox| sandbox.path() != path),
        }
    }

    /// Closes the least recently used of such databases; false when there is none.
    fn close_oldest(&mut self, is_such: impl Fn(&Sandbox) -> bool) -> bool {
        let such = self.open.iter().filter(|(_, kept)| is_such(&kept.sandbox));
        let oldest = such.min_by_key(|(_, kept)| kept.last_used).map(|(path, _)| path.clone());
        oldest.inspect(|path| self.forget(path)).is_some()
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.clear();
    }
}
