//! The connections of one worker thread: one or two per database, kept open up to a limit.
//!
//! When more databases are visited than may be open, the choice of the one to close decides the speed. Closing a
//! connection that has been idle for long is slower than opening one, because its data has left the processor's
//! caches. With random visits it is also as likely to be needed as any other. So a recently opened connection that
//! was not revisited is closed.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::outcome::{Outcome, Status};
use crate::request::StatementLimits;
use crate::scan::Patterns;
use crate::sqlite::deadline::RunGuard;
use crate::sqlite::hidden::HiddenColumn;
use crate::sqlite::in_memory_dbs::InMemoryDbs;
use crate::sqlite::sandbox::Sandbox;
use crate::stats::Stats;

/// Number of most recently opened databases that are protected from closing, so that they can be revisited.
const PROTECTED: usize = 8;

/// Every this many closings, the least recently used connection is closed instead, so unvisited databases leave
/// eventually.
const AGING_PERIOD: u64 = 16;

/// Open connections, by path.
pub(crate) struct Connections {
    /// The most recently used connection, which the next run probably uses too.
    current: Option<(Arc<Path>, OpenSandbox)>,
    others: HashMap<Arc<Path>, OpenSandbox>,
    cap: usize,
    /// Number of files that the connections have open.
    n_files: Arc<AtomicUsize>,
    clock: u64,
    /// The most recently opened databases, oldest first.
    recent: VecDeque<Arc<Path>>,
    n_closed_for_room: u64,
    copies: Arc<InMemoryDbs>,
    hidden: Arc<[HiddenColumn]>,
    guard: Arc<RunGuard>,
    stats: Arc<Stats>,
}

struct OpenSandbox {
    sandbox: Sandbox,
    /// The number of the file state for which it was opened. SQLite validates its page cache by a counter in the
    /// file, which does not detect that another file's bytes were written into this file.
    state: u32,
    n_runs: u64,
    last_used: u64,
}

impl Connections {
    /// Creates an empty set. `cap` limits the open databases and the open files (except that one database may use two
    /// files).
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
            recent: VecDeque::new(),
            n_closed_for_room: 0,
            copies,
            hidden,
            guard,
            stats,
        }
    }

    /// Returns whether there is a connection to the file in the state with this number.
    pub(crate) fn holds(&self, path: &Path, state: u32) -> bool {
        self.find(path).is_some_and(|open_sandbox| open_sandbox.has_state(state))
    }

    /// Returns the connection to a file for a run, opening it if needed for the state with this number.
    pub(crate) fn get(&mut self, path: &Path, state: u32) -> Result<&Sandbox, Box<Outcome>> {
        self.open(path, state);
        self.clock += 1;
        let no_connection = || Box::new(Outcome::failed(Status::DbError, "the connection is gone"));
        let (_, open_sandbox) = self.current.as_mut().ok_or_else(no_connection)?;
        open_sandbox.last_used = self.clock;
        open_sandbox.n_runs += 1;
        let n_more = open_sandbox.sandbox.n_files_unopened();
        while self.n_files.load(Ordering::Relaxed) + n_more > self.cap && self.close_for_room() {}
        self.current.as_ref().map(|(_, open_sandbox)| &open_sandbox.sandbox).ok_or_else(no_connection)
    }

    /// Opens the connection to a file if missing for this state, and makes it the current one.
    pub(crate) fn open(&mut self, path: &Path, state: u32) {
        if self.current.as_ref().is_none_or(|(current, _)| **current != *path) {
            self.others.extend(self.current.take());
            self.current = self.others.remove_entry(path);
        }
        if self.current.as_ref().is_some_and(|(_, open_sandbox)| open_sandbox.has_state(state)) {
            return;
        }
        self.forget(path);
        while self.others.len() >= self.cap && self.close_for_room() {}
        self.stats.count_opened(1);
        let sandbox = self.connect(path);
        let path: Arc<Path> = path.into();
        self.current = Some((Arc::clone(&path), OpenSandbox { sandbox, state, n_runs: 0, last_used: self.clock }));
        if self.recent.len() > PROTECTED {
            self.recent.pop_front();
        }
        self.recent.push_back(path);
    }

    /// Ends the transactions that runs left open on a file. Returns false on failure.
    pub(crate) fn end_transactions(&self, path: &Path) -> bool {
        self.find(path).is_none_or(|open_sandbox| open_sandbox.sandbox.end_transactions().is_ok())
    }

    /// Closes the connection to a path, if any. After a database error it may hold stale state.
    pub(crate) fn forget(&mut self, path: &Path) {
        let current = self.current.take_if(|(current, _)| **current == *path);
        if current.is_some() || self.others.remove(path).is_some() {
            self.stats.count_closed(1);
        }
    }

    /// Closes all connections. After a panic, the state of none is known.
    pub(crate) fn clear(&mut self) {
        self.others.extend(self.current.take());
        self.stats.count_closed(self.others.len() as u64);
        self.others.clear();
    }

    /// Prepares access to a database: a copy in memory, or the file, which the first run opens.
    fn connect(&mut self, path: &Path) -> Sandbox {
        let copies = Arc::clone(&self.copies);
        let access = copies.access();
        let prepare = |ours: &Self, copy| Sandbox::new(path, copy, access, &ours.hidden, &ours.guard, &ours.n_files);
        let file = prepare(self, None);
        if access.copy_up_to_bytes == 0 {
            return file;
        }
        let connect = || file.connection(Patterns::Short, &StatementLimits::default());
        if let Some(copy) = copies.get(path, connect, || self.close_oldest(Sandbox::is_copy)) {
            return prepare(self, Some(copy));
        }
        let _ = file.end_transactions(); // if it fails, nothing is written to the file meanwhile
        file
    }

    fn find(&self, path: &Path) -> Option<&OpenSandbox> {
        match &self.current {
            Some((current, open_sandbox)) if **current == *path => Some(open_sandbox),
            _ => self.others.get(path),
        }
    }

    /// Closes a database other than the current one. Returns false if there is no other.
    fn close_for_room(&mut self) -> bool {
        self.n_closed_for_room += 1;
        let oldest_recent = if self.recent.len() > PROTECTED { self.recent.pop_front() } else { None };
        let was_not_revisited =
            |other: &Arc<Path>| self.others.get(other).is_some_and(|open_sandbox| open_sandbox.n_runs <= 1);
        match oldest_recent.filter(was_not_revisited) {
            Some(other) if !self.n_closed_for_room.is_multiple_of(AGING_PERIOD) => {
                self.forget(&other);
                true
            }
            _ => self.close_oldest(|_| true),
        }
    }

    /// Closes the least recently used database that satisfies `is_such`, except the current one. Returns false if
    /// there is no other.
    fn close_oldest(&mut self, is_such: impl Fn(&Sandbox) -> bool) -> bool {
        let candidates = self.others.iter().filter(|(_, open_sandbox)| is_such(&open_sandbox.sandbox));
        let oldest =
            candidates.min_by_key(|(_, open_sandbox)| open_sandbox.last_used).map(|(path, _)| Arc::clone(path));
        oldest.inspect(|path| self.forget(path)).is_some()
    }
}

impl OpenSandbox {
    /// Returns whether the connection is for this state of its file.
    fn has_state(&self, state: u32) -> bool {
        self.state == state && !self.sandbox.is_stale()
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.clear();
    }
}
