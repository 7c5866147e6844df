//! Copies of small databases in memory: read once, shared by the threads of a pool, and refreshed when their files
//! change.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use rusqlite::Connection;

use crate::locks::lock;
use crate::sqlite::dbfile::FileIdentity;
use crate::sqlite::hooks;
use crate::sqlite::inode::Inode;
use crate::sqlite::side_files::is_alone;
use crate::stats::Stats;

/// How database files are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The caller guarantees that no file changes while the executor lives. SQLite takes no locks and checks for no
    /// changes.
    pub immutable: bool,
    /// Maximum bytes of a database that is copied to memory; 0 disables copies.
    pub copy_up_to_bytes: u64,
    /// Maximum bytes of all copies together.
    pub copies_bytes: u64,
    /// Whether LIKE and GLOB match blobs, which is SQLite's default behaviour.
    pub like_blobs: bool,
    /// Whether each page is checked for malformed cells when it is read; for untrusted files.
    pub checks_cells: bool,
    /// The minor version of SQLite 3 that decides which functions and syntax are allowed; `u32::MAX` for the bundled
    /// version.
    pub sqlite_version: u32,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            immutable: false,
            copy_up_to_bytes: 0,
            copies_bytes: 256 << 20,
            like_blobs: true,
            checks_cells: false,
            sqlite_version: u32::MAX,
        }
    }
}

/// The copies in use by any thread.
pub(crate) struct InMemoryDbs {
    access: Access,
    in_use: Mutex<HashMap<Inode, Weak<InMemoryDb>>>,
    stats: Arc<Stats>,
}

/// A database in memory. It occupies its share of the budget until the last connection to it closes.
#[derive(Debug)]
pub(crate) struct InMemoryDb {
    identity: FileIdentity,
    bytes: Vec<u8>,
    /// Released together with the bytes.
    _room: BudgetShare,
}

/// Bytes reserved from the budget.
#[derive(Debug)]
struct BudgetShare {
    bytes: u64,
    stats: Arc<Stats>,
}

impl InMemoryDbs {
    pub(crate) fn new(access: Access, stats: &Arc<Stats>) -> Self {
        Self { access, in_use: Mutex::default(), stats: Arc::clone(stats) }
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Returns the copy of the database at `path`, creating it through `connect` if missing for the current
    /// state.
    ///
    /// While the budget is exhausted, `make_room` is called; it returns false if it has nothing to free. Returns
    /// `None` if the file must be read directly: it is too large, has a log or a hot journal, or cannot be read,
    /// which the run on the file then reports.
    pub(crate) fn get<'a>(
        &self,
        path: &Path,
        connect: impl FnOnce() -> rusqlite::Result<&'a Connection>,
        mut make_room: impl FnMut() -> bool,
    ) -> Option<Arc<InMemoryDb>> {
        let identity = FileIdentity::of(path).ok()?;
        let size = identity.size_of_whole()?;
        if size > self.access.copy_up_to_bytes.min(self.access.copies_bytes) {
            return None;
        }
        if let Some(copied) = self.lock().get(&identity.inode()).and_then(Weak::upgrade)
            && copied.identity == identity
        {
            return Some(copied);
        }
        let room = loop {
            match BudgetShare::take(size, self.access.copies_bytes, &self.stats) {
                Some(room) => break room,
                None if make_room() => {}
                None => return None,
            }
        };
        let copied = Arc::new(InMemoryDb { bytes: read_copy(connect().ok()?, size).ok()??, identity, _room: room });
        if !is_alone(path) || !copied.is_current(path) {
            return None; // the bytes may mix two states
        }
        let mut in_use = self.lock();
        in_use.retain(|_, copied| copied.strong_count() > 0);
        in_use.insert(copied.identity.inode(), Arc::downgrade(&copied));
        self.stats.count_copy();
        Some(copied)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Inode, Weak<InMemoryDb>>> {
        lock(&self.in_use)
    }
}

impl InMemoryDb {
    /// Returns whether the file at `path` is the one that was copied, unchanged.
    pub(crate) fn is_current(&self, path: &Path) -> bool {
        FileIdentity::of(path).is_ok_and(|now| now == self.identity)
    }
}

/// Reads the file of a connection in a read transaction, so that the bytes are one state of the database.
fn read_copy(connection: &Connection, max_bytes: u64) -> rusqlite::Result<Option<Vec<u8>>> {
    let mut statement = connection.prepare("SELECT count(*) FROM sqlite_schema")?;
    let mut transaction = statement.raw_query(); // open until dropped
    transaction.next()?;
    let mut bytes = hooks::read_main_file(connection, max_bytes)?;
    // The copy has no log, so its header must not announce one.
    let versions = bytes.iter_mut().flatten().skip(18).take(2);
    versions.filter(|version| **version == 2).for_each(|version| *version = 1);
    Ok(bytes)
}

impl AsRef<[u8]> for InMemoryDb {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl BudgetShare {
    fn take(bytes: u64, budget: u64, stats: &Arc<Stats>) -> Option<Self> {
        stats.reserve_copy_bytes(bytes, budget).then(|| Self { bytes, stats: Arc::clone(stats) })
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.stats.release_copy_bytes(self.bytes);
    }
}
