//! The connections of one worker thread: one or two a database, kept open up to a cap.
//!
//! Where more databases are visited than may be open, which one is closed decides the speed. To close one that has lain for
//! long takes longer than to open it, as nothing of it is in the processor's caches, and where databases are visited at
//! random it is as likely to be wanted as any other. So one of those opened lately is closed, if nobody came back to it.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::outcome::{Outcome, Status};
use crate::request::Caps;
use crate::scan::Patterns;
use crate::sqlite::deadline::RunGuard;
use crate::sqlite::hidden::HiddenColumn;
use crate::sqlite::in_memory_dbs::InMemoryDbs;
use crate::sqlite::sandbox::Sandbox;
use crate::stats::Stats;

/// How many that were opened last are given the time to be visited again.
const PASSING: usize = 8;

/// Each time of so many, the least recently used is closed after all: what is no longer visited leaves in the end.
const AGING_PERIOD: u64 = 16;

/// Kept connections, by path.
pub(crate) struct Connections {
    /// The one used last, which the next run is likely to use, too.
    current: Option<(Arc<Path>, OpenSandbox)>,
    others: HashMap<Arc<Path>, OpenSandbox>,
    cap: usize,
    /// Files that the connections have open.
    n_files: Arc<AtomicUsize>,
    clock: u64,
    /// The databases opened last, the newest at the end.
    passing: VecDeque<Arc<Path>>,
    n_closed_for_room: u64,
    copies: Arc<InMemoryDbs>,
    hidden: Arc<[HiddenColumn]>,
    guard: Arc<RunGuard>,
    stats: Arc<Stats>,
}

struct OpenSandbox {
    sandbox: Sandbox,
    /// The number of the file's state for which it was opened. What SQLite keeps of a file it checks by a counter in the
    /// file, which says nothing where another file's bytes were written into this one.
    state: u32,
    n_runs: u64,
    last_used: u64,
}

impl Connections {
    /// Starts without a connection; `cap` is the most databases, and the most files, that stay open (but one and two may).
    pub(crate) fn new(
        cap: usize,
        copies: Arc<InMemoryDbs>,
        hidden: Arc<[HiddenColumn]>,
        guard: Arc<RunGuard>,
        stats: Arc<Stats>,
    ) -> Self {
        Self {
            current: None,
            others: HashMap::new(),
            cap: cap.max(1),
            n_files: Arc::default(),
            clock: 0,
            passing: VecDeque::new(),
            n_closed_for_room: 0,
            copies,
            hidden,
            guard,
            stats,
        }
    }

    /// Tells whether there is a connection to the file in the state with this number.
    pub(crate) fn holds(&self, path: &Path, state: u32) -> bool {
        self.find(path).is_some_and(|kept| kept.is_of(state))
    }

    /// Returns the connection to a file for a run, opening it first if there is none to the state with this number.
    pub(crate) fn get(&mut self, path: &Path, state: u32) -> Result<&Sandbox, Box<Outcome>> {
        self.open(path, state);
        self.clock += 1;
        let gone = || Box::new(Outcome::failed(Status::DbError, "the connection is gone"));
        let (_, kept) = self.current.as_mut().ok_or_else(gone)?;
        kept.last_used = self.clock;
        kept.n_runs += 1;
        let most_more = kept.sandbox.n_files_unopened();
        while self.n_files.load(Ordering::Relaxed) + most_more > self.cap && self.close_for_room() {}
        self.current.as_ref().map(|(_, kept)| &kept.sandbox).ok_or_else(gone)
    }

    /// Opens the connection to a file, if there is none to this state, and makes it the current one.
    pub(crate) fn open(&mut self, path: &Path, state: u32) {
        if self.current.as_ref().is_none_or(|(current, _)| **current != *path) {
            self.others.extend(self.current.take());
            self.current = self.others.remove_entry(path);
        }
        if self.current.as_ref().is_some_and(|(_, kept)| kept.is_of(state)) {
            return;
        }
        self.forget(path);
        while self.others.len() >= self.cap && self.close_for_room() {}
        self.stats.opened(1);
        let sandbox = self.connect(path);
        let path: Arc<Path> = path.into();
        self.current = Some((Arc::clone(&path), OpenSandbox { sandbox, state, n_runs: 0, last_used: self.clock }));
        if self.passing.len() > PASSING {
            self.passing.pop_front();
        }
        self.passing.push_back(path);
    }

    /// Ends the transactions on a file that runs have left open; false when that fails.
    pub(crate) fn end_transactions(&self, path: &Path) -> bool {
        self.find(path).is_none_or(|kept| kept.sandbox.end_transactions().is_ok())
    }

    /// Closes the connection to a path, if there is one: after a database error it may hold a stale state.
    pub(crate) fn forget(&mut self, path: &Path) {
        let current = self.current.take_if(|(current, _)| **current == *path);
        if current.is_some() || self.others.remove(path).is_some() {
            self.stats.closed(1);
        }
    }

    /// Closes all: after a panic nothing is known about any of them.
    pub(crate) fn clear(&mut self) {
        self.others.extend(self.current.take());
        self.stats.closed(self.others.len() as u64);
        self.others.clear();
    }

    /// Prepares for a database: for a copy of it in memory, or for its file, which the first run opens.
    fn connect(&mut self, path: &Path) -> Sandbox {
        let copies = Arc::clone(&self.copies);
        let access = copies.access();
        let prepare = |ours: &Self, copy| Sandbox::new(path, copy, access, &ours.hidden, &ours.guard, &ours.n_files);
        let file = prepare(self, None);
        if access.copy_up_to_bytes == 0 {
            return file;
        }
        let connect = || file.connection(Patterns::Short, &Caps::default());
        if let Some(copy) = copies.get(path, connect, || self.close_oldest(Sandbox::is_copy)) {
            return prepare(self, Some(copy));
        }
        let _ = file.end_transactions(); // where one does not end, nothing is written to the file meanwhile
        file
    }

    fn find(&self, path: &Path) -> Option<&OpenSandbox> {
        match &self.current {
            Some((current, kept)) if **current == *path => Some(kept),
            _ => self.others.get(path),
        }
    }

    /// Closes a database, but not the current one; false when there is no other.
    fn close_for_room(&mut self) -> bool {
        self.n_closed_for_room += 1;
        let oldest_passing = if self.passing.len() > PASSING { self.passing.pop_front() } else { None };
        let is_passing = |other: &Arc<Path>| self.others.get(other).is_some_and(|kept| kept.n_runs <= 1);
        match oldest_passing.filter(is_passing) {
            Some(other) if !self.n_closed_for_room.is_multiple_of(AGING_PERIOD) => {
                self.forget(&other);
                true
            }
            _ => self.close_oldest(|_| true),
        }
    }

    /// Closes the least recently used of such databases, the current one left out; false when there is none.
    fn close_oldest(&mut self, is_such: impl Fn(&Sandbox) -> bool) -> bool {
        let such = self.others.iter().filter(|(_, kept)| is_such(&kept.sandbox));
        let oldest = such.min_by_key(|(_, kept)| kept.last_used).map(|(path, _)| Arc::clone(path));
        oldest.inspect(|path| self.forget(path)).is_some()
    }
}

impl OpenSandbox {
    /// Tells whether it leads to that file, in its present state.
    fn is_of(&self, state: u32) -> bool {
        self.state == state && !self.sandbox.is_stale()
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.clear();
    }
}
