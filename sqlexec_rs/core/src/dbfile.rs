//! The identity of a database file: what must be unchanged for an old result to be still right.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::busy;
use crate::outcome::{Outcome, Status};

/// A file changed within this time of now may change again without its time stamp showing it (clock ticks are coarse),
/// so SQLite's own change counter is read as well.
const RECENT: Duration = Duration::from_secs(2);

/// Which file it is and which state it is in. The inode stands for the canonical path: two paths to one file share results.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    inode: Inode,
    stamp: Stamp,
    content: Content,
    /// The write-ahead log, which takes the changes of a database in WAL mode.
    wal: Option<Stamp>,
}

/// What tells more than a time stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Content {
    /// The time stamp is old enough to be trusted.
    Settled,
    /// SQLite's change counter and schema cookie.
    Counters([u8; 24]),
    /// They could not be read; the number is of this look alone, so that nothing found before counts as this state's.
    Unknown(u64),
}

/// Device and inode: which file a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode(pub(crate) u64, pub(crate) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stamp {
    size: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl FileIdentity {
    /// Looks at a database file; a path that leads to no regular file is the caller's `db_error`.
    pub fn of(path: &Path) -> Result<Self, Box<Outcome>> {
        let refused = |why: &str| Box::new(Outcome::failed(Status::DbError, format!("{}: {why}", path.display())));
        let metadata = fs::metadata(path).map_err(|error| refused(&error.to_string()))?;
        if !metadata.is_file() {
            return Err(refused("not a regular file"));
        }
        let inode = Inode(metadata.dev(), metadata.ino());
        let content = if is_recent(&metadata) { Content::of_recent(path, inode) } else { Content::Settled };
        Ok(Self {
            inode,
            stamp: Stamp::of(&metadata),
            content,
            wal: fs::metadata(wal_path(path)).ok().map(|wal| Stamp::of(&wal)),
        })
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

/// The state of a database without a write-ahead log, so that the file alone holds everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoLog(Stamp);

impl NoLog {
    /// Looks at a database file; `None` where it has a log, or is not there.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let has_log = fs::symlink_metadata(wal_path(path)).is_ok();
        (!has_log).then(|| Self(Stamp::of(&metadata)))
    }
}

/// Tells whether a database has neither a log nor a journal, in which there might be what its file lacks.
pub(crate) fn is_alone(path: &Path) -> bool {
    ["-wal", "-journal"].iter().all(|suffix| fs::metadata(beside(path, suffix)).map_or(true, |file| file.len() == 0))
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self { size: metadata.size(), seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() }
    }
}

impl Content {
    /// Reads bytes 24 to 48 of the header: the change counter, the page counts, the schema cookie.
    fn of_recent(path: &Path, inode: Inode) -> Self {
        static LOOKS: AtomicU64 = AtomicU64::new(0);
        let mut header = [0; 48];
        match (busy::read_head(path, inode, &mut header), header[24..].try_into()) {
            (true, Ok(counters)) => Self::Counters(counters),
            _ => Self::Unknown(LOOKS.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

fn is_recent(metadata: &Metadata) -> bool {
    match metadata.modified().map(|modified| SystemTime::now().duration_since(modified)) {
        Ok(Ok(age)) => age < RECENT,
        _ => true, // a time in the future, or none: not to be trusted either
    }
}

fn wal_path(path: &Path) -> PathBuf {
    beside(path, "-wal")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
