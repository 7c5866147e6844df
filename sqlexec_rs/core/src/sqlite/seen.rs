//! The authorizer: decides what a statement may do, and records what it does.

use crate::locks::lock;
use crate::scan::is_among;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sqlite::hidden::Hiding;
use crate::sqlite::hooks::{Action, Authorizer};
use crate::sqlite::versions;

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

/// PRAGMAs that may be read, and that an argument would set. (Full-text tables ask the data version and the page size.)
const READABLE_PRAGMAS: [&str; 8] = [
    "encoding",
    "user_version",
    "application_id",
    "schema_version",
    "data_version",
    "page_count",
    "page_size",
    "freelist_count",
];

/// Functions that reach beyond the database, here or in builds with more extensions; and JSON's merge, whose time is the
/// product of its arguments' lengths.
const DENIED_FUNCTIONS: [&str; 10] = [
    "json_patch",
    "jsonb_patch",
    "load_extension",
    "readfile",
    "writefile",
    "edit",
    "fts3_tokenizer",
    "sqlite_attach",
    "sqlite_detach",
    "sqlite_log",
];

/// Functions whose value differs from call to call; those that read the clock are seen when they do.
const VOLATILE_FUNCTIONS: [&str; 3] = ["random", "randomblob", "sqlite_offset"];

/// How the names end of the tables in which an r-tree is kept.
const RTREE_TABLES: [&str; 3] = ["_node", "_parent", "_rowid"];

/// The authorizer's record of the statement being prepared.
#[derive(Debug, Default)]
pub(crate) struct StatementRecord {
    is_volatile: AtomicBool,
    has_patterns_in_view: AtomicBool,
    /// Calls of FTS5's `snippet`, whose work is the square of the matches in a row.
    n_snippets: AtomicU32,
    /// It is the sandbox's own, which may begin and end a transaction.
    is_ours: AtomicBool,
    /// The minor version of SQLite 3 whose functions there are.
    version: u32,
    /// A function of a later version that it calls.
    newer: Mutex<Option<(&'static str, u32)>>,
    hiding: Hiding,
}

impl StatementRecord {
    pub(crate) fn new(version: u32) -> Self {
        Self { version, ..Self::default() }
    }

    /// Returns the hidden columns.
    pub(crate) fn hiding(&self) -> &Hiding {
        &self.hiding
    }

    /// Lets statements begin and end transactions, as the sandbox's own do.
    pub(crate) fn allow_transactions(&self, is_ours: bool) {
        self.is_ours.store(is_ours, Ordering::Relaxed);
    }

    /// Forgets the previous statement.
    pub(crate) fn reset(&self) {
        self.is_volatile.store(false, Ordering::Relaxed);
        self.has_patterns_in_view.store(false, Ordering::Relaxed);
        self.n_snippets.store(0, Ordering::Relaxed);
        self.hiding.reset();
        self.take_newer();
    }

    /// Returns the function of a later version that was refused, and that version.
    pub(crate) fn take_newer(&self) -> Option<(&'static str, u32)> {
        if self.version == u32::MAX {
            return None;
        }
        lock(&self.newer).take()
    }

    /// Returns the minor version of SQLite 3 whose functions and syntax there are.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Returns how often the statement calls `snippet`.
    pub(crate) fn n_snippets(&self) -> u32 {
        self.n_snippets.load(Ordering::Relaxed)
    }

    /// Returns whether a view matches patterns that the statement's text does not show.
    pub(crate) fn has_patterns_in_view(&self) -> bool {
        self.has_patterns_in_view.load(Ordering::Relaxed)
    }

    /// Returns whether the statement calls what gives another value each time.
    pub(crate) fn is_volatile(&self) -> bool {
        self.is_volatile.load(Ordering::Relaxed)
    }
}

impl Authorizer for StatementRecord {
    fn allows(&self, action: Action<'_>, is_in_view: bool) -> bool {
        match action {
            Action::Read => true,
            Action::Column(table, column) => self.hiding.allows(|covered| covered.refusal(table, column)),
            // An r-tree prepares what would write to its tables before it is read; who else does is refused when that is
            // prepared, as it does not only read.
            Action::Write(table) => !is_in_view && RTREE_TABLES.iter().any(|end| table.ends_with(end.as_bytes())),
            Action::Function(name) => allows_function(name, is_in_view, self),
            Action::Pragma(name, value) => {
                allows_pragma(name, value.is_some())
                    && self.hiding.allows(|covered| covered.refusal_of_pragma(name, value))
            }
            Action::Transaction => self.is_ours.load(Ordering::Relaxed),
            Action::Other => false,
        }
    }

    fn hides_columns(&self) -> bool {
        self.hiding.is_active()
    }
}

fn allows_function(name: &[u8], is_in_view: bool, record: &StatementRecord) -> bool {
    if is_among(name, &DENIED_FUNCTIONS) {
        return false;
    }
    if record.version != u32::MAX
        && let Some(newer) = versions::newer_function(name, record.version)
    {
        *lock(&record.newer) = Some(newer);
        return false;
    }
    if is_among(name, &VOLATILE_FUNCTIONS) {
        record.is_volatile.store(true, Ordering::Relaxed);
    } else if is_among(name, &["snippet"]) {
        record.n_snippets.fetch_add(1, Ordering::Relaxed);
    } else if is_in_view && is_among(name, &["like", "glob"]) {
        record.has_patterns_in_view.store(true, Ordering::Relaxed);
    }
    true
}

fn allows_pragma(name: &[u8], has_value: bool) -> bool {
    is_among(name, &SCHEMA_PRAGMAS) || (!has_value && is_among(name, &READABLE_PRAGMAS))
}
