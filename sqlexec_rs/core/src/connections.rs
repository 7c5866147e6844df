//! The connections of one worker thread: one a database, kept open, the least recently used closed at the cap.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dbfile::Inode;
use crate::deadline::Control;
use crate::outcome::{Outcome, Status};
use crate::sandbox::Sandbox;
use crate::stats::Stats;

/// Kept connections, by path.
pub(crate) struct Connections {
    open: HashMap<PathBuf, Kept>,
    cap: usize,
    clock: u64,
    control: Arc<Control>,
    stats: Arc<Stats>,
}

struct Kept {
    sandbox: Sandbox,
    inode: Inode,
    last_used: u64,
}

impl Connections {
    /// Starts without a connection; `cap` is the most that stay open (at least one).
    pub(crate) fn new(cap: usize, control: Arc<Control>, stats: Arc<Stats>) -> Self {
        Self { open: HashMap::new(), cap: cap.max(1), clock: 0, control, stats }
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
            self.make_room();
            self.stats.opened(1);
            let sandbox = Sandbox::new(path, &self.control);
            self.open.insert(path.to_owned(), Kept { sandbox, inode, last_used: 0 });
        }
        match self.open.get_mut(path) {
            Some(kept) => {
                kept.last_used = self.clock;
                Ok(&kept.sandbox)
            }
            None => Err(Box::new(Outcome::failed(Status::DbError, "the connection is gone"))),
        }
    }

    /// Ends the transactions on a file that runs have left open; false when that fails.
    pub(crate) fn end_transactions(&self, path: &Path) -> bool {
        self.open.get(path).is_none_or(|kept| kept.sandbox.end_transactions().is_ok())
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

    fn make_room(&mut self) {
        while self.open.len() >= self.cap {
            let oldest = self.open.iter().min_by_key(|(_, kept)| kept.last_used).map(|(path, _)| path.clone());
            match oldest {
                Some(path) => self.forget(&path),
                None => break,
            }
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.clear();
    }
}
