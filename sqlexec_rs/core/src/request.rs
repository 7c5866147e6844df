//! Requests: a database, a SQL text, and the limits of the run.

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
/// The VM step budget is rounded up to units of [`STEP_PERIOD`](crate::sqlite::deadline::STEP_PERIOD). It is the same
/// on every machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// Wall time of prepare and execution, queueing excluded.
    pub timeout: Option<Duration>,
    /// CPU time of the worker's thread during prepare and execution.
    pub cpu: Option<Duration>,
    /// Instructions of SQLite's virtual machine during execution.
    pub vm_steps: Option<u64>,
    /// Maximum number of rows in a result.
    pub max_rows: u64,
    /// Maximum bytes of a result: 16 per cell, plus its texts and blobs.
    pub max_bytes: u64,
    /// Maximum bytes of memory that SQLite may hold for the run, including its page cache.
    pub heap_bytes: u64,
    /// Maximum bytes of temporary files of the run, for sorts and intermediate tables.
    pub temp_bytes: u64,
    /// Maximum number of cells that one rule may hash, compare or move to score a result; the same on every machine.
    /// The wall time also bounds the comparisons, counted from their start.
    pub compare_steps: u64,
    /// Whether a result over `max_rows` or `max_bytes` is cut to its first rows instead of refused.
    pub cuts: bool,
    /// SQLite's own limits.
    pub caps: StatementLimits,
    /// The limits for engines other than SQLite, if they differ.
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
    /// Values for its parameters.
    pub parameters: Option<Arc<Parameters>>,
}

/// The requested output of a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputKind {
    /// Its result.
    #[default]
    Rows,
    /// The query plan of the engine; the statement is not run.
    Plan,
}

/// The values for the parameters of a statement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Parameters {
    /// Parameter names without the leading `:`, `@` or `$`; empty if values are bound by position.
    pub names: Vec<String>,
    /// The values.
    pub values: Vec<ParameterValue>,
}

/// A value for a parameter. Two are equal if type and value are the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ParameterValue {
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

impl From<Value<'_>> for ParameterValue {
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

impl ToSql for ParameterValue {
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

/// SQLite's own limits on a statement and its values (`SQLITE_LIMIT_*`). A number above the compiled maximum means
/// that maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StatementLimits {
    /// Maximum bytes of a text, a blob or a row.
    pub max_length: u32,
    /// Maximum bytes of a SQL text.
    pub max_sql_length: u32,
    /// Maximum bytes of a LIKE or GLOB pattern.
    pub max_like_pattern: u32,
    /// Maximum depth of an expression, and of nested subqueries and views.
    pub max_expr_depth: u32,
    /// Maximum number of terms of a compound SELECT.
    pub max_compound: u32,
    /// Maximum number of instructions of a prepared statement.
    pub max_vdbe_ops: u32,
    /// Maximum number of columns of a result, an ORDER BY, a GROUP BY, or a table created while the file is open.
    pub max_columns: u32,
}

impl Default for StatementLimits {
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

impl StatementLimits {
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
    /// Returns the limits for an engine.
    pub(crate) fn on(self: &Arc<Self>, engine: Engine) -> &Arc<Self> {
        self.other_engines.as_ref().filter(|_| engine != Engine::Sqlite).unwrap_or(self)
    }

    /// Returns the Python names of the requested limits that an engine cannot enforce.
    pub(crate) fn not_honoured_by(&self, engine: Engine) -> Vec<&'static str> {
        if engine == Engine::Sqlite {
            return Vec::new();
        }
        let usual = Self::default();
        let caps = |caps: &StatementLimits| StatementLimits { max_sql_length: 0, ..*caps };
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
            caps: StatementLimits::default(),
            other_engines: None,
        }
    }
}

/// A statement to run on an open database, and its limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExecRequest<'a> {
    pub(crate) sql: &'a str,
    pub(crate) parameters: Option<&'a Parameters>,
    pub(crate) output: OutputKind,
    pub(crate) limits: &'a Limits,
}

/// The cache key of a run: everything its outcome depends on, with identity and limits as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunKey {
    pub(crate) db: u32,
    pub(crate) limits: u32,
    pub(crate) sql: Hashed<Arc<str>>,
    pub(crate) parameters: Option<Arc<Parameters>>,
    pub(crate) output: OutputKind,
}

impl Hash for RunKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.db, self.limits, &self.sql).hash(state);
        // Few requests are for plans or have parameters.
        if self.output != OutputKind::Rows {
            self.output.hash(state);
        }
        if let Some(parameters) = &self.parameters {
            parameters.hash(state);
        }
    }
}

/// A run that is queued or in progress.
#[derive(Debug)]
pub(crate) struct InFlightQuery {
    pub(crate) key: RunKey,
    pub(crate) engine: Engine,
    pub(crate) path: Arc<Path>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) cancel: Arc<AtomicBool>,
    /// Whether its outcome is likely to be cached.
    pub(crate) is_for_cache: bool,
    /// Whether it was first requested as a gold query.
    pub(crate) is_gold: bool,
}

impl InFlightQuery {
    /// Returns whether every requester has cancelled it.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Creates a query on a state of the SQLite database `/a`.
    pub(crate) fn query(sql: &str, db: u32) -> InFlightQuery {
        let sql = Hashed::new(sql.into());
        InFlightQuery {
            key: RunKey { db, limits: 0, sql, parameters: None, output: OutputKind::Rows },
            engine: Engine::Sqlite,
            path: Path::new("/a").into(),
            limits: Arc::default(),
            cancel: Arc::default(),
            is_for_cache: false,
            is_gold: false,
        }
    }

    #[test]
    fn limits_that_servers_cannot_enforce_are_named() {
        let second = Some(Duration::from_secs(1));
        let usual =
            Limits { timeout: second, max_rows: 5, max_bytes: 9, compare_steps: 9, cuts: true, ..Limits::default() };
        assert!(usual.not_honoured_by(Engine::Postgresql).is_empty());
        let caps = StatementLimits { max_sql_length: 7, ..StatementLimits::default() };
        assert!(Limits { caps, ..usual.clone() }.not_honoured_by(Engine::Postgresql).is_empty());
        let caps = StatementLimits { max_compound: 7, ..StatementLimits::default() };
        let other = Limits { vm_steps: Some(5), cpu: second, heap_bytes: 1, temp_bytes: 1, caps, ..usual };
        assert_eq!(other.not_honoured_by(Engine::Postgresql).len(), 5);
        assert!(other.not_honoured_by(Engine::Sqlite).is_empty());
    }

    #[test]
    fn other_engines_may_have_separate_limits() {
        let others = Arc::new(Limits { max_rows: 5, ..Limits::default() });
        let outer = Arc::new(Limits { vm_steps: Some(9), ..Limits::default() });
        let both = Arc::new(Limits { other_engines: Some(Arc::clone(&others)), ..Limits::clone(&outer) });
        assert_eq!(both.on(Engine::Sqlite), &both);
        assert_eq!(both.on(Engine::Duckdb), &others);
        assert_eq!(outer.on(Engine::Mysql), &outer);
    }
}
