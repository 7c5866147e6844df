//! Opens a database so that it can only be read.
//!
//! Five layers of defence: the file is opened read-only; an authorizer allows reading, functions, recursion and
//! listed schema PRAGMAs and denies everything else, including future additions; defensive mode is on and the schema
//! is untrusted; SQLite's own limits are set; functions that could run without end in one call are replaced or
//! removed.

use std::cell::{Cell, OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, ErrorCode, OpenFlags, Statement};

use crate::hint;
use crate::request::StatementLimits;
use crate::result::header::Header;
use crate::scan::Patterns;
use crate::sqlite::dbfile::UnusedWal;
use crate::sqlite::deadline::{HANDLER_PERIOD, RunGuard};
use crate::sqlite::functions;
use crate::sqlite::hidden::HiddenColumn;
use crate::sqlite::hooks::{self, WalState};
use crate::sqlite::in_memory_dbs::{Access, InMemoryDb};
use crate::sqlite::meter;
use crate::sqlite::side_files::is_alone;
use crate::sqlite::statement_record::StatementRecord;

/// How long a query without a wall-clock limit waits for a writer's lock before it is a `db_error`, and the time
/// between two attempts.
const BUSY_WAIT: Duration = Duration::from_millis(500);
const BUSY_PERIOD: Duration = Duration::from_millis(5);

/// Maximum number of attempts to open a file whose writers come and go.
const MAX_ATTEMPTS: usize = 10;

/// SQLite limits that are not configurable. The number of arguments bounds how often one call of a JSON function
/// walks through its text.
const LIMITS: [(Limit, i32); 4] = [
    (Limit::SQLITE_LIMIT_FUNCTION_ARG, 127),
    (Limit::SQLITE_LIMIT_ATTACHED, 0),
    (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 10),
    (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
];

/// A database that can only be read, with the record of its authorizer.
#[derive(Debug)]
pub(crate) struct Sandbox {
    path: PathBuf,
    origin: Origin,
    /// Whether LIKE and GLOB match blobs. SQLite's own functions do, so they are not used where blobs must not match.
    like_blobs: bool,
    checks_cells: bool,
    hidden: Arc<[HiddenColumn]>,
    guard: Arc<RunGuard>,
    record: Arc<StatementRecord>,
    /// Connection with our LIKE and GLOB, which check the bounds.
    guarded: LazyConnection,
    /// Connection with SQLite's LIKE and GLOB, which can use an index but check no bounds; for statements with cheap
    /// patterns.
    indexed: LazyConnection,
    /// The state of the files if the database is in WAL mode and had no log, or a log without an index, which SQLite
    /// would create even to read. Such files are read in a transaction whose lock prevents the removal of a writer's
    /// log and index. If neither exists at the end, nobody wrote.
    unused: Cell<Option<UnusedWal>>,
    /// The names used for hints.
    names: hint::NameCache,
    /// Number of files that the sandboxes of this thread have open.
    n_files: Arc<AtomicUsize>,
    /// The header of the last result, reused if the next one is equal.
    header: RefCell<Arc<Header>>,
}

/// The source that a database is read from.
#[derive(Debug)]
enum Origin {
    File,
    /// A file that is guaranteed not to change.
    Immutable,
    Copy(Arc<InMemoryDb>),
}

/// A connection that the first run that needs it opens.
#[derive(Debug, Default)]
struct LazyConnection {
    connection: OnceCell<Connection>,
    caps: Cell<Option<StatementLimits>>,
}

impl Sandbox {
    /// Prepares access to the database file at `path`, or to a copy of it; the first run opens it.
    pub(crate) fn new(
        path: &Path,
        copy: Option<Arc<InMemoryDb>>,
        access: Access,
        hidden: &Arc<[HiddenColumn]>,
        guard: &Arc<RunGuard>,
        n_files: &Arc<AtomicUsize>,
    ) -> Self {
        let origin = match copy {
            Some(copy) => Origin::Copy(copy),
            None if access.immutable => Origin::Immutable,
            None => Origin::File,
        };
        Self {
            path: path.to_owned(),
            origin,
            like_blobs: access.like_blobs,
            checks_cells: access.checks_cells,
            hidden: Arc::clone(hidden),
            guard: Arc::clone(guard),
            record: Arc::new(StatementRecord::new(access.sqlite_version)),
            guarded: LazyConnection::default(),
            indexed: LazyConnection::default(),
            unused: Cell::new(None),
            names: hint::NameCache::default(),
            n_files: Arc::clone(n_files),
            header: RefCell::default(),
        }
    }

    /// Returns a connection that a run has opened, with the names that were read through it.
    pub(crate) fn open_connection(&self) -> Option<(&Connection, &hint::NameCache)> {
        let connection = self.guarded.connection.get().or_else(|| self.indexed.connection.get())?;
        Some((connection, &self.names))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn guard(&self) -> &Arc<RunGuard> {
        &self.guard
    }

    pub(crate) fn record(&self) -> &StatementRecord {
        &self.record
    }

    /// Returns whether this is a copy in memory.
    pub(crate) fn is_copy(&self) -> bool {
        matches!(self.origin, Origin::Copy(_))
    }

    /// Returns how many files the sandbox has open.
    pub(crate) fn n_files(&self) -> usize {
        let is_open = |lazy: &LazyConnection| usize::from(!self.is_copy() && lazy.connection.get().is_some());
        is_open(&self.guarded) + is_open(&self.indexed)
    }

    /// Returns how many more files a run may open.
    pub(crate) fn n_files_unopened(&self) -> usize {
        if self.is_copy() { 0 } else { 2 - self.n_files() }
    }

    /// Returns the header of a statement's result, shared with the last result if they are equal; `None` if it cannot
    /// be read.
    pub(crate) fn header(&self, statement: &Statement<'_>) -> Option<Arc<Header>> {
        let mut last = self.header.borrow_mut();
        if !last.matches_statement(statement) {
            *last = Arc::new(Header::of(statement)?);
        }
        Some(Arc::clone(&last))
    }

    /// Returns whether the connections may show an old state of the file.
    pub(crate) fn is_stale(&self) -> bool {
        if let Origin::Copy(copied) = &self.origin {
            return !copied.is_current(&self.path);
        }
        let shows_all = |then: UnusedWal| (then.is_settled() || self.has_transaction()) && then.still_holds(&self.path);
        self.unused.get().is_some_and(|then| !shows_all(then))
    }

    /// Returns whether everything read since `begin` is one state of the database. `has_failed` means that an error
    /// may have ended the transaction. Only files that are read without SQLite's locks need the check.
    pub(crate) fn has_read_one_state(&self, has_failed: bool) -> bool {
        let is_locked = has_failed || self.has_transaction();
        self.unused.get().is_none_or(|then| is_locked && then.still_holds(&self.path))
    }

    /// Returns whether the database is read as if nobody else used it, so that every run needs a transaction.
    pub(crate) fn is_read_alone(&self) -> bool {
        self.unused.get().is_some()
    }

    fn has_transaction(&self) -> bool {
        let is_open =
            |lazy: &LazyConnection| lazy.connection.get().is_some_and(|connection| !connection.is_autocommit());
        is_open(&self.guarded) || is_open(&self.indexed)
    }

    /// Returns the connection for a statement with such patterns, with its schema loaded and its limits set.
    ///
    /// The schema is loaded before the limits apply because it may need more than a statement may use.
    pub(crate) fn connection(&self, patterns: Patterns, caps: &StatementLimits) -> rusqlite::Result<&Connection> {
        let is_short = patterns == Patterns::Short && self.like_blobs;
        let lazy = if is_short { &self.indexed } else { &self.guarded };
        let connection = if let Some(connection) = lazy.connection.get() {
            connection
        } else {
            let connection = self.connect(!is_short)?;
            self.n_files.fetch_add(usize::from(!self.is_copy()), Ordering::Relaxed);
            lazy.connection.get_or_init(|| connection)
        };
        if lazy.caps.get() != Some(*caps) {
            for (limit, value) in caps.as_limits() {
                connection.set_limit(limit, value)?;
            }
            lazy.caps.set(Some(*caps));
        }
        Ok(connection)
    }

    /// Begins a transaction unless one is open: the next statement locks the file until `end_transactions`. On an
    /// error, each statement gets its own transaction.
    pub(crate) fn begin(&self, connection: &Connection) {
        if connection.is_autocommit() {
            let _ = self.run_own(connection, "BEGIN");
        }
    }

    /// Ends every transaction that `begin` started and no error has ended.
    pub(crate) fn end_transactions(&self) -> rusqlite::Result<()> {
        for lazy in [&self.guarded, &self.indexed] {
            if let Some(connection) = lazy.connection.get().filter(|connection| !connection.is_autocommit()) {
                self.run_own(connection, "COMMIT")?;
            }
        }
        Ok(())
    }

    fn run_own(&self, connection: &Connection, sql: &str) -> rusqlite::Result<()> {
        self.record.allow_transactions(true);
        let prepared = connection.prepare(sql);
        self.record.allow_transactions(false);
        prepared?.raw_query().next().map(|_| ())
    }

    fn connect(&self, guards_patterns: bool) -> rusqlite::Result<Connection> {
        if self.unused.get().is_none() && !self.is_copy() {
            self.unused.set(UnusedWal::with_log(&self.path));
        }
        let connect = || -> rusqlite::Result<Connection> {
            let mut connection = self.open()?;
            connection.pragma_update(None, "cell_size_check", self.checks_cells)?;
            restrict(&mut connection, &self.guard, &self.record)?;
            if guards_patterns {
                functions::register_patterns(&connection, &self.guard, self.like_blobs)?;
            }
            if self.is_read_alone() {
                self.begin(&connection); // the schema is read in the transaction of the first run, so in the same state
            }
            connection.prepare("SELECT 1 FROM sqlite_schema LIMIT 0")?.raw_query().next()?;
            self.record.hiding().detect(&connection, &self.hidden)?;
            Ok(connection)
        };
        for _ in 1..MAX_ATTEMPTS {
            match connect() {
                // This happens if a log is missing, because nothing may be created. If there is a log now, a writer
                // has opened the database since.
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::CannotOpen) && !self.is_read_alone() => {
                    self.unused.set(UnusedWal::of(&self.path));
                }
                result => return result,
            }
        }
        connect()
    }

    /// Opens a read-only connection. The immutable guarantee for a file does not cover a log or a journal next to it.
    fn open(&self) -> rusqlite::Result<Connection> {
        let vfs = hooks::vfs(match self.unused.get() {
            None => WalState::Possible,
            Some(unused) if unused.has_log() => WalState::WithoutIndex,
            Some(_) => WalState::Missing,
        })?;
        // Without the URI flag, no character of a path is special, and neither is ":memory:".
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // An absolute path starts with a slash, so that SQLite does not read a name with "file:" as a URI.
        let path = &std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        match &self.origin {
            Origin::Copy(copied) => {
                let connection = Connection::open_in_memory_with_flags_and_vfs(flags, vfs)?;
                hooks::open_bytes(&connection, copied)?;
                Ok(connection)
            }
            Origin::Immutable if is_alone(path) => {
                let flags = flags | OpenFlags::SQLITE_OPEN_URI;
                Connection::open_with_flags_and_vfs(immutable_uri(path), flags, vfs)
            }
            _ => Connection::open_with_flags_and_vfs(path, flags, vfs),
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.n_files.fetch_sub(self.n_files(), Ordering::Relaxed);
    }
}

/// Applies every restriction to a connection.
fn restrict(connection: &mut Connection, guard: &Arc<RunGuard>, record: &Arc<StatementRecord>) -> rusqlite::Result<()> {
    connection.busy_handler(Some(wait_for_lock))?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER, false)?;
    for (limit, value) in LIMITS {
        connection.set_limit(limit, value)?;
    }
    hooks::set_authorizer(connection, record)?;
    hooks::remove_module(connection, c"dbstat")?;
    functions::register_text(connection, guard)?;
    let guard = Arc::clone(guard);
    connection.progress_handler(HANDLER_PERIOD as i32, Some(move || guard.must_stop()))
}

/// Returns the URI that opens a file as immutable, so that SQLite neither locks it nor creates a log.
fn immutable_uri(path: &Path) -> String {
    let scheme = if path.is_absolute() { "file://" } else { "file:" };
    let encoded = path.as_os_str().as_encoded_bytes().iter().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => char::from(*byte).to_string(),
        _ => format!("%{byte:02x}"),
    });
    format!("{scheme}{}?immutable=1", encoded.collect::<String>())
}

/// Waits briefly for a writer's lock. Returns false after the run's deadline or, without one, after [`BUSY_WAIT`].
fn wait_for_lock(n_waits: i32) -> bool {
    let waited = BUSY_PERIOD * u32::try_from(n_waits).unwrap_or(0);
    let may_continue = (waited < BUSY_WAIT || meter::has_deadline()) && meter::may_wait();
    if may_continue {
        std::thread::sleep(BUSY_PERIOD);
    }
    may_continue
}
