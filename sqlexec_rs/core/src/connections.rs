//! The connections of one worker thread: one a database, kept open, the least recently used closed at the cap.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::dbfile::Inode;
use crate::deadline::Control;
use crate::outcome::{Outcome, Status};
use crate::sandbox::Sandbox;
use crate::stats::Stats;

/// Kept connections, by path.
pub(crate) struct Connections {
    /// The one used last, which the next run is likely to use, too.
    current: Option<(Arc<Path>, Kept)>,
    others: HashMap<Arc<Path>, Kept>,
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
        Self { current: None, others: HashMap::new(), cap: cap.max(1), clock: 0, control, stats }
    }

    /// Tells whether there is a connection to the file that the path leads to now.
    pub(crate) fn holds(&self, path: &Path, inode: Inode) -> bool {
        self.find(path).is_some_and(|kept| kept.is_of(inode))
    }

    /// Returns the connection to a file, opening it first if there is none or the path leads to another file now.
    pub(crate) fn get(&mut self, path: &Path, inode: Inode) -> Result<&Sandbox, Box<Outcome>> {
        self.clock += 1;
        if self.current.as_ref().is_none_or(|(current, _)| **current != *path) {
            self.others.extend(self.current.take());
            self.current = self.others.remove_entry(path);
        }
        if self.current.as_ref().is_none_or(|(_, kept)| !kept.is_of(inode)) {
            self.forget(path);
            self.make_room();
            self.stats.opened(1);
            let sandbox = Sandbox::new(path, &self.control);
            self.current = Some((path.into(), Kept { sandbox, inode, last_used: 0 }));
        }
        match &mut self.current {
            Some((_, kept)) => {
                kept.last_used = self.clock;
                Ok(&kept.sandbox)
            }
            None => Err(Box::new(Outcome::failed(Status::DbError, "the connection is gone"))),
        }
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

    fn find(&self, path: &Path) -> Option<&Kept> {
        match &self.current {
            Some((current, kept)) if **current == *path => Some(kept),
            _ => self.others.get(path),
        }
    }

    fn make_room(&mut self) {
        while self.others.len() >= self.cap {
            let oldest = self.others.iter().min_by_key(|(_, kept)| kept.last_used).map(|(path, _)| Arc::clone(path));
            match oldest {
                Some(path) => self.forget(&path),
                None => break,
            }
        }
    }
}

impl Kept {
    /// Tells whether it leads to that file, in its present state.
    fn is_of(&self, inode: Inode) -> bool {
        self.inode == inode && !self.sandbox.is_stale()
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.clear();
    }
}
