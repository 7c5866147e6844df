//! The authorizer: decides which actions a statement may take, and records them.

use crate::locks::lock;
use crate::scan::is_among;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sqlite::hidden::HiddenColumnCheck;
use crate::sqlite::hooks::{Action, Authorizer};
use crate::sqlite::versions;

/// PRAGMAs that describe a schema; their argument is the name of a table or an index.
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

/// PRAGMAs that may be read but not set. (Full-text tables query the data version and the page size.)
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

/// Functions that reach beyond the database, here or in builds with more extensions, and JSON merge, whose time is
/// the product of its arguments' lengths.
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

/// Functions whose value changes from call to call. Functions that read the clock are detected at run time.
const VOLATILE_FUNCTIONS: [&str; 3] = ["random", "randomblob", "sqlite_offset"];

/// Name suffixes of the tables that store an r-tree.
const RTREE_TABLES: [&str; 3] = ["_node", "_parent", "_rowid"];

/// The authorizer's record of the statement being prepared.
#[derive(Debug, Default)]
pub(crate) struct StatementRecord {
    is_volatile: AtomicBool,
    has_patterns_in_view: AtomicBool,
    /// Calls of FTS5's `snippet`, whose cost is quadratic in the matches of a row.
    n_snippets: AtomicU32,
    /// Whether the statement is the sandbox's own, which may begin and end transactions.
    is_ours: AtomicBool,
    /// The minor version of SQLite 3 whose functions are allowed.
    version: u32,
    /// A function of a later version that the statement calls.
    newer: Mutex<Option<(&'static str, u32)>>,
    hiding: HiddenColumnCheck,
}

impl StatementRecord {
    pub(crate) fn new(version: u32) -> Self {
        Self { version, ..Self::default() }
    }

    /// Returns the hidden columns.
    pub(crate) fn hiding(&self) -> &HiddenColumnCheck {
        &self.hiding
    }

    /// Allows or forbids statements that begin and end transactions, as the sandbox's own do.
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

    /// Returns the refused function of a later version, and that version.
    pub(crate) fn take_newer(&self) -> Option<(&'static str, u32)> {
        if self.version == u32::MAX {
            return None;
        }
        lock(&self.newer).take()
    }

    /// Returns the minor version of SQLite 3 whose functions and syntax are allowed.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Returns how often the statement calls `snippet`.
    pub(crate) fn n_snippets(&self) -> u32 {
        self.n_snippets.load(Ordering::Relaxed)
    }

    /// Returns whether a view uses patterns that are not visible in the statement's text.
    pub(crate) fn has_patterns_in_view(&self) -> bool {
        self.has_patterns_in_view.load(Ordering::Relaxed)
    }

    /// Returns whether the statement calls a function whose value changes from call to call.
    pub(crate) fn is_volatile(&self) -> bool {
        self.is_volatile.load(Ordering::Relaxed)
    }
}

impl Authorizer for StatementRecord {
    fn allows(&self, action: Action<'_>, is_in_view: bool) -> bool {
        match action {
            Action::Read => true,
            Action::Column(table, column) => self.hiding.allows(|covered| covered.refusal(table, column)),
            // An r-tree prepares writes to its tables before it is read. Any other statement that prepares such a
            // write is refused later, because it is not read-only.
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
