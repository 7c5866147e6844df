//! The connections of one worker thread: one or two a database, kept open, the least recently used closed at the cap.

use std::collections::HashMap;
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

/// Kept connections, by path.
pub(crate) struct Connections {
    open: HashMap<PathBuf, Kept>,
    cap: usize,
    /// Files that the connections have open.
    n_files: Arc<AtomicUsize>,
    clock: u64,
    copies: Arc<Copies>,
    control: Arc<Control>,
    stats: Arc<Stats>,
}

struct Kept {
    sandbox: Sandbox,
    inode: Inode,
    last_used: u64,
}

impl Connections {
    /// Starts without a connection; `cap` is the most databases, and the most files, that stay open (but one and two may).
    pub(crate) fn new(cap: usize, copies: Arc<Copies>, control: Arc<Control>, stats: Arc<Stats>) -> Self {
        Self { open: HashMap::new(), cap: cap.max(1), n_files: Arc::default(), clock: 0, copies, control, stats }
    }

    /// Tells whether there is a connection to the file that the path leads to now.
    pub(crate) fn holds(&self, path: &Path, inode: Inode) -> bool {
        self.open.get(path).is_some_and(|kept| kept.inode == inode && !kept.sandbox.is_stale())
    }

    /// Returns the connection to a file, opening it first if there is none or the path leads to another file now.
    pub(crate) fn get(&mut self, path: &Path, inode: Inode) -> Result<&Sandbox, Box<Outcome>> {
        self.clock += 1;
        if !self.holds(path, inode) {
            self.forget(path);
            while self.open.len() >= self.cap && self.close_oldest(|_| true) {}
            self.stats.opened(1);
            let sandbox = self.connect(path);
            self.open.insert(path.to_owned(), Kept { sandbox, inode, last_used: 0 });
        }
        let gone = || Box::new(Outcome::failed(Status::DbError, "the connection is gone"));
        let kept = self.open.get_mut(path).ok_or_else(gone)?;
        kept.last_used = self.clock;
        let most_more = kept.sandbox.n_files_unopened();
        if self.n_files.load(Ordering::Relaxed) + most_more > self.cap {
            self.leave_room_for(path, most_more);
        }
        self.open.get(path).map(|kept| &kept.sandbox).ok_or_else(gone)
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

    /// Closes others until a run on this database can open the files that it may need.
    #[cold]
    fn leave_room_for(&mut self, path: &Path, n_files: usize) {
        let is_other = |sandbox: &Sandbox| sandbox.path() != path && sandbox.n_files() > 0;
        while self.n_files.load(Ordering::Relaxed) + n_files > self.cap && self.close_oldest(is_other) {}
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
