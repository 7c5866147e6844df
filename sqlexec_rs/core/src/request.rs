//! What is asked: a database, a SQL text, and the limits it runs under.

use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::ToSql;
use rusqlite::limits::Limit;
use rusqlite::types::{ToSqlOutput, ValueRef};
use serde::{Deserialize, Serialize};

use crate::result::hashed_str::Hashed;
use crate::result::value::Value;
use crate::target::Engine;

/// The bounds of one run. `None` means no bound of that kind.
///
/// The VM-step budget counts in units of [`STEP_PERIOD`](crate::sqlite::deadline::STEP_PERIOD): it is rounded up, and it is the same on every machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// Wall time of prepare and execution, queueing excluded.
    pub timeout: Option<Duration>,
    /// CPU time of the worker's thread during prepare and execution.
    pub cpu: Option<Duration>,
    /// Instructions of SQLite's virtual machine during execution.
    pub vm_steps: Option<u64>,
    /// Rows that a result may hold.
    pub max_rows: u64,
    /// Bytes that a result may hold: 16 a cell, plus its text and blobs.
    pub max_bytes: u64,
    /// Bytes of memory that SQLite may hold for the run, its page cache included.
    pub heap_bytes: u64,
    /// Bytes of temporary files that the run may hold, for sorts and intermediate tables.
    pub temp_bytes: u64,
    /// Cells that one rule may hash, compare or move to score a result: the same on every machine. The wall time holds for
    /// the comparisons, too, from when they begin.
    pub compare_steps: u64,
    /// A result over `max_rows` or `max_bytes` is cut to its first rows; otherwise it is refused.
    pub cuts: bool,
    /// SQLite's own limits.
    pub caps: Caps,
    /// The bounds on engines other than SQLite, where they are not these.
    #[serde(skip)]
    pub other_engines: Option<Arc<Limits>>,
}

/// A statement to run.
#[derive(Clone, Debug)]
pub struct Query {
    /// The path of the database's file, or its URL on a server.
    pub database: Arc<Path>,
    /// The SQL text.
    pub sql: Arc<str>,
    /// What is bound to its parameters.
    pub parameters: Option<Arc<Parameters>>,
}

/// What is wanted of a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputKind {
    /// Its result.
    #[default]
    Rows,
    /// The engine's plan for it, which is not run.
    Plan,
}

/// What is bound to the parameters of a statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Parameters {
    /// The values' names, without the `:`, `@` or `$` before them; none where they are bound by position.
    pub names: Vec<String>,
    /// The values.
    pub values: Vec<Bound>,
}

/// A value that is bound to a parameter; two are equal that are the same value of the same type.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Bound {
    /// SQL NULL.
    Null,
    /// An integer.
    Integer(i64),
    /// The bits of a double.
    Real(u64),
    /// The bytes of a text.
    Text(Vec<u8>),
    /// A blob.
    Blob(Vec<u8>),
}

impl From<Value<'_>> for Bound {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Integer(i) => Self::Integer(i),
            Value::Real(r) => Self::Real(r.to_bits()),
            Value::Text(bytes) => Self::Text(bytes.into()),
            Value::Blob(bytes) => Self::Blob(bytes.into()),
        }
    }
}

impl ToSql for Bound {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(i) => ValueRef::Integer(*i),
            Self::Real(bits) => ValueRef::Real(f64::from_bits(*bits)),
            Self::Text(bytes) => ValueRef::Text(bytes),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// SQLite's own limits on a statement and its values (`SQLITE_LIMIT_*`). A number above the highest that SQLite was
/// compiled for means that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caps {
    /// Bytes of a text, a blob or a row.
    pub max_length: u32,
    /// Bytes of a SQL text.
    pub max_sql_length: u32,
    /// Bytes of a pattern of LIKE or GLOB.
    pub max_like_pattern: u32,
    /// Levels of an expression, and of subqueries and views in one another.
    pub max_expr_depth: u32,
    /// Terms of a compound SELECT.
    pub max_compound: u32,
    /// Instructions of a prepared statement.
    pub max_vdbe_ops: u32,
    /// Columns of a result, an ORDER BY, a GROUP BY, or a table that the file gains while it is open.
    pub max_columns: u32,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            max_length: 4 << 20,
            max_sql_length: 1 << 20,
            max_like_pattern: 1_000,
            max_expr_depth: 500,
            max_compound: 200,
            max_vdbe_ops: 1_000_000,
            max_columns: 2_000,
        }
    }
}

impl Caps {
    pub(crate) fn as_limits(&self) -> [(Limit, i32); 7] {
        let number = |cap: u32| i32::try_from(cap).unwrap_or(i32::MAX);
        [
            (Limit::SQLITE_LIMIT_LENGTH, number(self.max_length)),
            (Limit::SQLITE_LIMIT_SQL_LENGTH, number(self.max_sql_length)),
            (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, number(self.max_like_pattern)),
            (Limit::SQLITE_LIMIT_EXPR_DEPTH, number(self.max_expr_depth)),
            (Limit::SQLITE_LIMIT_COMPOUND_SELECT, number(self.max_compound)),
            (Limit::SQLITE_LIMIT_VDBE_OP, number(self.max_vdbe_ops)),
            (Limit::SQLITE_LIMIT_COLUMN, number(self.max_columns)),
        ]
    }
}

impl Limits {
    /// Returns the bounds that hold on an engine.
    pub(crate) fn on(self: &Arc<Self>, engine: Engine) -> &Arc<Self> {
        self.other_engines.as_ref().filter(|_| engine != Engine::Sqlite).unwrap_or(self)
    }

    /// Returns the limits, by their names in Python, that were asked for and that an engine cannot honour.
    pub(crate) fn not_honoured_by(&self, engine: Engine) -> Vec<&'static str> {
        if engine == Engine::Sqlite {
            return Vec::new();
        }
        let usual = Self::default();
        let caps = |caps: &Caps| Caps { max_sql_length: 0, ..*caps };
        let bounds = [
            ("cpu_ms", self.cpu.is_some()),
            ("vm_steps", self.vm_steps.is_some()),
            ("heap_bytes", self.heap_bytes != usual.heap_bytes),
            ("temp_bytes", self.temp_bytes != usual.temp_bytes),
            ("SQLite's own limits", caps(&self.caps) != caps(&usual.caps)),
        ];
        bounds.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| *name).collect()
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Some(Duration::from_secs(30)),
            cpu: None,
            vm_steps: None,
            max_rows: 1_000_000,
            max_bytes: 256 << 20,
            heap_bytes: 256 << 20,
            temp_bytes: 1 << 30,
            compare_steps: 2_000_000_000,
            cuts: false,
            caps: Caps::default(),
            other_engines: None,
        }
    }
}

/// A statement to run on an open database, and the bounds of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExecRequest<'a> {
    pub(crate) sql: &'a str,
    pub(crate) parameters: Option<&'a Parameters>,
    pub(crate) wanted: OutputKind,
    pub(crate) limits: &'a Limits,
}

/// What an outcome depends on, with identity and limits as numbers of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunKey {
    pub(crate) db: u32,
    pub(crate) limits: u32,
    pub(crate) sql: Hashed<Arc<str>>,
    pub(crate) parameters: Option<Arc<Parameters>>,
    pub(crate) wanted: OutputKind,
}

impl Hash for RunKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.db, self.limits, &self.sql).hash(state);
        // Hardly any is of a plan, or has parameters.
        if self.wanted != OutputKind::Rows {
            self.wanted.hash(state);
        }
        if let Some(parameters) = &self.parameters {
            parameters.hash(state);
        }
    }
}

/// A run that is queued or under way.
#[derive(Debug)]
pub(crate) struct InFlightQuery {
    pub(crate) key: RunKey,
    pub(crate) engine: Engine,
    pub(crate) path: Arc<Path>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) cancel: Arc<AtomicBool>,
    /// Its outcome is likely to be kept.
    pub(crate) is_for_cache: bool,
    /// It was first asked for as a gold.
    pub(crate) is_gold: bool,
}

impl InFlightQuery {
    /// Tells whether nobody wants its outcome any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes a query on a state of SQLite's database `/a`.
    pub(crate) fn query(sql: &str, db: u32) -> InFlightQuery {
        let sql = Hashed::new(sql.into());
        InFlightQuery {
            key: RunKey { db, limits: 0, sql, parameters: None, wanted: OutputKind::Rows },
            engine: Engine::Sqlite,
            path: Path::new("/a").into(),
            limits: Arc::default(),
            cancel: Arc::default(),
            is_for_cache: false,
            is_gold: false,
        }
    }

    #[test]
    fn limits_that_no_server_honours_are_named() {
        let second = Some(Duration::from_secs(1));
        let usual =
            Limits { timeout: second, max_rows: 5, max_bytes: 9, compare_steps: 9, cuts: true, ..Limits::default() };
        assert!(usual.not_honoured_by(Engine::Postgresql).is_empty());
        let caps = Caps { max_sql_length: 7, ..Caps::default() };
        assert!(Limits { caps, ..usual.clone() }.not_honoured_by(Engine::Postgresql).is_empty());
        let caps = Caps { max_compound: 7, ..Caps::default() };
        let other = Limits { vm_steps: Some(5), cpu: second, heap_bytes: 1, temp_bytes: 1, caps, ..usual };
        assert_eq!(other.not_honoured_by(Engine::Postgresql).len(), 5);
        assert!(other.not_honoured_by(Engine::Sqlite).is_empty());
    }

    #[test]
    fn other_engines_have_bounds_of_their_own_where_they_are_given() {
        let theirs = Arc::new(Limits { max_rows: 5, ..Limits::default() });
        let one = Arc::new(Limits { vm_steps: Some(9), ..Limits::default() });
        let both = Arc::new(Limits { other_engines: Some(Arc::clone(&theirs)), ..Limits::clone(&one) });
        assert_eq!(both.on(Engine::Sqlite), &both);
        assert_eq!(both.on(Engine::Duckdb), &theirs);
        assert_eq!(one.on(Engine::Mysql), &one);
    }
}
