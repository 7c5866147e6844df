//! The identity of a database file: everything that must be unchanged for an earlier result to be valid.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::outcome::{Outcome, Status};
use crate::result::row_hash::hash_bytes;
use crate::sqlite::busy;
use crate::sqlite::inode::Inode;
use crate::sqlite::side_files::{WAL, side_file};

/// A file changed within this duration may change again without a new time stamp, because clock ticks are coarse.
/// Then its bytes count as well. SQLite's own change counter is insufficient: two databases may have the same count.
const RECENT: Duration = Duration::from_secs(2);

/// Maximum size of a recently changed file whose bytes are hashed. For larger ones, each check returns a new state.
const MAX_DIGESTED: u64 = 1 << 20;

/// Identifies a file and its state. The inode replaces the canonical path, so two paths to one file share results.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    inode: Inode,
    stamp: Stamp,
    content: ContentMark,
    /// The write-ahead log, which receives the changes of a database in WAL mode.
    wal: Option<Stamp>,
    /// Suffix of the log's name. An engine with differently named logs reads another database from the same file.
    suffix: &'static str,
}

/// Evidence of the content in addition to the time stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ContentMark {
    /// The time stamps are old enough to be reliable.
    Settled,
    /// A digest of the bytes.
    Digest(u128),
    /// The bytes could not be read. The number is unique to this check, so no earlier result matches.
    Unknown(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stamp {
    size: u64,
    /// Time of the last change of the bytes, which programs may set, and of the inode, which they cannot.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileIdentity {
    /// Identifies a database file. A path to anything but a regular file returns the `db_error` for the caller.
    pub fn of(path: &Path) -> Result<Self, Box<Outcome>> {
        Self::examine(path, WAL, |inode, stamp| ContentMark::of_recent(path, inode, stamp))
    }

    /// Identifies a file of another engine, whose log has its name plus `suffix`.
    ///
    /// The file is never read here: closing it again would release the locks of another user in this process. So each
    /// check of a recently changed file returns a new state.
    pub(crate) fn of_other(path: &Path, suffix: &'static str) -> Result<Self, Box<Outcome>> {
        Self::examine(path, suffix, |_, _| ContentMark::unknown())
    }

    fn examine(
        path: &Path,
        suffix: &'static str,
        read_recent: impl FnOnce(Inode, Stamp) -> ContentMark,
    ) -> Result<Self, Box<Outcome>> {
        let refused =
            |reason: &str| Box::new(Outcome::failed(Status::DbError, format!("{}: {reason}", path.display())));
        let metadata = fs::metadata(path).map_err(|error| refused(&error.to_string()))?;
        if !metadata.is_file() {
            return Err(refused("not a regular file"));
        }
        let inode = Inode::of(&metadata);
        let stamp = Stamp::of(&metadata);
        let wal = fs::metadata(side_file(path, suffix)).ok().map(|wal| Stamp::of(&wal));
        let is_recent = stamp.is_recent() || wal.is_some_and(|wal| wal.is_recent());
        let content = if is_recent { read_recent(inode, stamp) } else { ContentMark::Settled };
        Ok(Self { inode, stamp, content, wal, suffix })
    }

    /// Returns the size of a database that is contained in this file alone; `None` if there is a log.
    pub(crate) fn size_of_whole(&self) -> Option<u64> {
        self.wal.is_none_or(|wal| wal.size == 0).then_some(self.stamp.size)
    }

    /// Returns the inode.
    pub fn inode(&self) -> Inode {
        self.inode
    }
}

/// The state of a database in WAL mode that nobody has open: it has no write-ahead log, so the file contains
/// everything, or it has a log without an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnusedWal {
    inode: Inode,
    stamp: Stamp,
    log: Option<Stamp>,
    /// Whether a later change would show in the time stamps.
    is_settled: bool,
}

impl UnusedWal {
    /// Examines a database file; `None` if it is missing or its log has an index.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let (inode, stamp) = (Inode::of(&metadata), Stamp::of(&metadata));
        let log = fs::symlink_metadata(side_file(path, WAL)).ok().map(|log| Stamp::of(&log));
        let is_settled = !stamp.is_recent() && !log.is_some_and(|log| log.is_recent());
        let is_used = log.is_some() && fs::symlink_metadata(side_file(path, "-shm")).is_ok();
        (!is_used).then_some(Self { inode, stamp, log, is_settled })
    }

    /// Examines a database file; `None` if it has no log either.
    pub(crate) fn with_log(path: &Path) -> Option<Self> {
        fs::symlink_metadata(side_file(path, WAL)).ok()?;
        Self::of(path).filter(Self::has_log)
    }

    /// Returns whether there is a log.
    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Returns whether the files are unchanged since this check and nobody has the database open.
    ///
    /// Under a shared lock held since the check, this proves that nobody wrote: a writer creates a log and an index,
    /// and only the holder of an exclusive lock can remove them.
    pub(crate) fn still_holds(&self, path: &Path) -> bool {
        Self::of(path).is_some_and(|now| (now.inode, now.stamp, now.log) == (self.inode, self.stamp, self.log))
    }

    /// Returns whether every change since this check would be visible.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    fn is_recent(&self) -> bool {
        let (seconds, nanoseconds) = self.modified.max(self.changed);
        let since = |epoch: Duration| epoch.checked_sub(Duration::new(seconds.max(0) as u64, nanoseconds as u32));
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok().and_then(since);
        age.is_none_or(|age| age < RECENT) // time stamps in the future are unreliable too
    }
}

impl ContentMark {
    fn unknown() -> Self {
        static LOOKS: AtomicU64 = AtomicU64::new(0);
        Self::Unknown(LOOKS.fetch_add(1, Ordering::Relaxed))
    }

    /// Reads the database, unless it is in use.
    fn of_recent(path: &Path, inode: Inode, stamp: Stamp) -> Self {
        if stamp.size > MAX_DIGESTED {
            return Self::unknown();
        }
        let mut bytes = vec![0; stamp.size as usize];
        if busy::read_head(path, inode, &mut bytes) { Self::Digest(hash_bytes(&bytes)) } else { Self::unknown() }
    }
}
