//! Opens a database so that nothing but reading is possible.
//!
//! Four walls, each enough alone against most attacks: the file is opened read-only; an authorizer allows reading,
//! functions, recursion and a list of schema PRAGMAs and denies the rest (the list is of what is allowed, so what a later
//! SQLite adds is denied); defensive mode is on and the schema is not trusted; SQLite's own limits are set.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};

use crate::deadline::{Control, STEP_PERIOD};
use crate::hint;

/// PRAGMAs that describe a schema; their argument names a table or an index.
const SCHEMA_PRAGMAS: [&str; 8] = [
    "table_info",
    "table_xinfo",
    "table_list",
    "foreign_key_list",
    "index_list",
    "index_info",
    "index_xinfo",
    "collation_list",
];

/// PRAGMAs that may be read, and that an argument would set.
const READABLE_PRAGMAS: [&str; 7] =
    ["encoding", "user_version", "application_id", "schema_version", "page_count", "page_size", "freelist_count"];

/// Functions that reach beyond the database, here or in builds with more extensions.
const DENIED_FUNCTIONS: [&str; 8] = [
    "load_extension",
    "readfile",
    "writefile",
    "edit",
    "fts3_tokenizer",
    "sqlite_attach",
    "sqlite_detach",
    "sqlite_log",
];

/// Functions whose value differs from call to call.
const VOLATILE_FUNCTIONS: [&str; 6] =
    ["random", "randomblob", "current_date", "current_time", "current_timestamp", "sqlite_offset"];

/// Functions that read the clock when they are given `now` or no argument.
const CLOCK_FUNCTIONS: [&str; 7] = ["date", "time", "datetime", "julianday", "unixepoch", "strftime", "timediff"];

/// How long a query waits for a writer's lock before it is a `db_error`.
const BUSY_WAIT: Duration = Duration::from_millis(500);

/// SQLite's own limits. A result over one of them is `too_large`, not wrong.
const LIMITS: [(Limit, i32); 9] = [
    (Limit::SQLITE_LIMIT_LENGTH, 16 << 20),
    (Limit::SQLITE_LIMIT_SQL_LENGTH, 1 << 20),
    (Limit::SQLITE_LIMIT_EXPR_DEPTH, 500),
    (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 200),
    (Limit::SQLITE_LIMIT_VDBE_OP, 1_000_000),
    (Limit::SQLITE_LIMIT_ATTACHED, 0),
    (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000),
    (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 10),
    (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
];

/// What the authorizer saw of the statement being prepared.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    is_volatile: AtomicBool,
    reads_clock: AtomicBool,
    has_denied: AtomicBool,
}

impl Seen {
    /// Forgets the previous statement.
    pub(crate) fn reset(&self) {
        self.is_volatile.store(false, Ordering::Relaxed);
        self.reads_clock.store(false, Ordering::Relaxed);
        self.has_denied.store(false, Ordering::Relaxed);
    }

    /// Tells whether the authorizer denied something. If it did not and SQLite says so, it was not asked: a name in the
    /// schema is no UTF-8, which rusqlite cannot hand over.
    pub(crate) fn has_denied(&self) -> bool {
        self.has_denied.load(Ordering::Relaxed)
    }

    /// Tells whether the statement may give another result when it is run again on the same file.
    pub(crate) fn is_volatile(&self, sql: &str) -> bool {
        self.is_volatile.load(Ordering::Relaxed) || (self.reads_clock.load(Ordering::Relaxed) && may_read_clock(sql))
    }
}

/// A clock function reads the clock when an argument is 'now' (in any case, perhaps computed) or there is no argument.
fn may_read_clock(sql: &str) -> bool {
    let squeezed: String = sql.chars().filter(|c| !c.is_whitespace()).collect::<String>().to_ascii_lowercase();
    squeezed.contains("now") || squeezed.contains("()") || squeezed.contains("||") || squeezed.contains("/*")
}

/// A connection that can only read, with what its authorizer saw.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) connection: Connection,
    pub(crate) seen: Arc<Seen>,
    pub(crate) names: hint::Kept,
}

/// Opens the database file at `path` and loads its schema.
///
/// The progress handler asks `control`; the schema is loaded here so that a run's cost does not depend on being the first.
pub(crate) fn open(path: &Path, control: &Arc<Control>) -> rusqlite::Result<Sandbox> {
    // Without the URI flag no character of a path has a meaning, and neither has ":memory:".
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_WAIT)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER, false)?;
    for (limit, value) in LIMITS {
        connection.set_limit(limit, value)?;
    }
    connection.prepare("SELECT 1 FROM sqlite_schema LIMIT 0")?.raw_query().next()?;
    let seen = Arc::new(Seen::default());
    let watcher = Arc::clone(&seen);
    connection.authorizer(Some(move |context: AuthContext<'_>| authorize(context.action, &watcher)))?;
    let control = Arc::clone(control);
    connection.progress_handler(STEP_PERIOD as i32, Some(move || control.must_stop()))?;
    Ok(Sandbox { connection, seen, names: hint::Kept::default() })
}

fn authorize(action: AuthAction<'_>, seen: &Seen) -> Authorization {
    let verdict = judge(action, seen);
    if verdict != Authorization::Allow {
        seen.has_denied.store(true, Ordering::Relaxed);
    }
    verdict
}

fn judge(action: AuthAction<'_>, seen: &Seen) -> Authorization {
    match action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Function { function_name } => authorize_function(function_name, seen),
        AuthAction::Pragma { pragma_name, pragma_value } => authorize_pragma(pragma_name, pragma_value),
        _ => Authorization::Deny,
    }
}

fn authorize_function(name: &str, seen: &Seen) -> Authorization {
    let is_in = |names: &[&str]| names.iter().any(|n| n.eq_ignore_ascii_case(name));
    if is_in(&DENIED_FUNCTIONS) {
        return Authorization::Deny;
    }
    if is_in(&VOLATILE_FUNCTIONS) {
        seen.is_volatile.store(true, Ordering::Relaxed);
    } else if is_in(&CLOCK_FUNCTIONS) {
        seen.reads_clock.store(true, Ordering::Relaxed);
    }
    Authorization::Allow
}

fn authorize_pragma(name: &str, value: Option<&str>) -> Authorization {
    let is_in = |names: &[&str]| names.iter().any(|n| n.eq_ignore_ascii_case(name));
    if is_in(&SCHEMA_PRAGMAS) || (value.is_none() && is_in(&READABLE_PRAGMAS)) {
        Authorization::Allow
    } else {
        Authorization::Deny
    }
}
