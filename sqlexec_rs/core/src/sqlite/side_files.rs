//! The files that SQLite keeps next to a database.

use std::fs;
use std::path::{Path, PathBuf};

/// Suffix of SQLite's write-ahead log.
pub(crate) const WAL: &str = "-wal";

/// Suffixes of the files that hold changes to a database: the log and the journal.
const CHANGES: [&str; 2] = [WAL, "-journal"];

/// Returns whether a database has neither a log nor a journal, so that its file is complete.
pub(crate) fn is_alone(path: &Path) -> bool {
    CHANGES.iter().all(|suffix| fs::metadata(side_file(path, suffix)).map_or(true, |file| file.len() == 0))
}

/// Returns whether a database has a log or a journal, and so may be in use.
pub(crate) fn is_in_use(path: &Path) -> bool {
    CHANGES.iter().any(|suffix| fs::symlink_metadata(side_file(path, suffix)).is_ok())
}

/// Returns the path of a file that SQLite keeps next to a database. Links are resolved first.
pub(crate) fn side_file(path: &Path, suffix: &str) -> PathBuf {
    let target = fs::read_link(path).and_then(|_| fs::canonicalize(path));
    let mut name = target.map_or_else(|_| path.as_os_str().to_owned(), PathBuf::into_os_string);
    name.push(suffix);
    PathBuf::from(name)
}
