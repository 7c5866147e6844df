//! The identity of a database file: what must be unchanged for an old result to be still right.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::outcome::{Outcome, Status};
use crate::result::row_hash::hash_bytes;
use crate::sqlite::busy;
use crate::sqlite::inode::Inode;
use crate::sqlite::side_files::{WAL, beside};

/// A file changed within this time of now may change again without its time stamps showing it (clock ticks are coarse), so
/// its bytes count as well. SQLite's own change counter would not do: two databases may have been changed as often.
const RECENT: Duration = Duration::from_secs(2);

/// Of a file with more bytes that has just changed, each look finds another state.
const MAX_DIGESTED: u64 = 1 << 20;

/// Which file it is and which state it is in. The inode stands for the canonical path: two paths to one file share results.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    inode: Inode,
    stamp: Stamp,
    content: ContentMark,
    /// The write-ahead log, which takes the changes of a database in WAL mode.
    wal: Option<Stamp>,
    /// The end of the log's name: an engine that has logs of other names reads another database in the same file.
    suffix: &'static str,
}

/// What tells more than a time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ContentMark {
    /// The time stamps are old enough to be trusted.
    Settled,
    /// A digest of the bytes.
    Digest(u128),
    /// They could not be read; the number is of this look alone, so that nothing found before counts as this state's.
    Unknown(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stamp {
    size: u64,
    /// When the bytes changed, which a program may set back, and when anything did, which none can.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileIdentity {
    /// Looks at a database file; a path that leads to no regular file is the caller's `db_error`.
    pub fn of(path: &Path) -> Result<Self, Box<Outcome>> {
        Self::look(path, WAL, |inode, stamp| ContentMark::of_recent(path, inode, stamp))
    }

    /// Looks at a file of another engine's, whose log has its name and this suffix.
    ///
    /// It is never read here: to close it again would take the locks of one who has it open in this process. So of a file that
    /// has just changed each look finds another state.
    pub(crate) fn of_other(path: &Path, suffix: &'static str) -> Result<Self, Box<Outcome>> {
        Self::look(path, suffix, |_, _| ContentMark::unknown())
    }

    fn look(
        path: &Path,
        suffix: &'static str,
        read_recent: impl FnOnce(Inode, Stamp) -> ContentMark,
    ) -> Result<Self, Box<Outcome>> {
        let refused = |why: &str| Box::new(Outcome::failed(Status::DbError, format!("{}: {why}", path.display())));
        let metadata = fs::metadata(path).map_err(|error| refused(&error.to_string()))?;
        if !metadata.is_file() {
            return Err(refused("not a regular file"));
        }
        let inode = Inode::of(&metadata);
        let stamp = Stamp::of(&metadata);
        let wal = fs::metadata(beside(path, suffix)).ok().map(|wal| Stamp::of(&wal));
        let is_recent = stamp.is_recent() || wal.is_some_and(|wal| wal.is_recent());
        let content = if is_recent { read_recent(inode, stamp) } else { ContentMark::Settled };
        Ok(Self { inode, stamp, content, wal, suffix })
    }

    /// Returns the size of a database that this file alone holds; `None` where a log takes changes.
    pub(crate) fn size_of_whole(&self) -> Option<u64> {
        self.wal.is_none_or(|wal| wal.size == 0).then_some(self.stamp.size)
    }

    /// Returns which file it is.
    pub fn inode(&self) -> Inode {
        self.inode
    }
}

/// The state of a database in WAL mode that nobody has open: it has no write-ahead log, so that the file alone holds
/// everything, or a log without an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnusedWal {
    inode: Inode,
    stamp: Stamp,
    log: Option<Stamp>,
    /// A later change would show in the stamps.
    is_settled: bool,
}

impl UnusedWal {
    /// Looks at a database file; `None` where its log has an index, or it is not there.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let (inode, stamp) = (Inode::of(&metadata), Stamp::of(&metadata));
        let log = fs::symlink_metadata(beside(path, WAL)).ok().map(|log| Stamp::of(&log));
        let is_settled = !stamp.is_recent() && !log.is_some_and(|log| log.is_recent());
        let is_used = log.is_some() && fs::symlink_metadata(beside(path, "-shm")).is_ok();
        (!is_used).then_some(Self { inode, stamp, log, is_settled })
    }

    /// Looks at a database file; `None` where it has no log, too.
    pub(crate) fn with_log(path: &Path) -> Option<Self> {
        fs::symlink_metadata(beside(path, WAL)).ok()?;
        Self::of(path).filter(Self::has_log)
    }

    /// Tells whether there is a log.
    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Tells whether the files show no change since this look, and nobody has the database open.
    ///
    /// Under a shared lock that has been held since, it tells that nobody wrote: who writes has a log and an index of it, and
    /// only who has an exclusive lock can take them away.
    pub(crate) fn still_holds(&self, path: &Path) -> bool {
        Self::of(path).is_some_and(|now| (now.inode, now.stamp, now.log) == (self.inode, self.stamp, self.log))
    }

    /// Tells whether every change since this look would show.
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
        age.is_none_or(|age| age < RECENT) // a time in the future is not to be trusted either
    }
}

impl ContentMark {
    fn unknown() -> Self {
        static LOOKS: AtomicU64 = AtomicU64::new(0);
        Self::Unknown(LOOKS.fetch_add(1, Ordering::Relaxed))
    }

    /// Reads the database, where it is not in use.
    fn of_recent(path: &Path, inode: Inode, stamp: Stamp) -> Self {
        if stamp.size > MAX_DIGESTED {
            return Self::unknown();
        }
        let mut bytes = vec![0; stamp.size as usize];
        if busy::read_head(path, inode, &mut bytes) { Self::Digest(hash_bytes(&bytes)) } else { Self::unknown() }
    }
}
