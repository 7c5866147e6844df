//! The result of a run: a status and, if the run succeeded, a table.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::memory::OutOfMemory;
use crate::result::table::Table;

/// How a run ended. Bad SQL is data, so none of these is an error of the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Status {
    /// The run finished within every limit.
    Ok = 0,
    /// The text holds no statement: it is empty or has only comments.
    NoSql,
    /// SQLite does not accept the text as a statement.
    SyntaxError,
    /// The statement names an unknown table, column or function, or an ambiguous column.
    SchemaError,
    /// The statement failed during execution.
    RuntimeError,
    /// The run exceeded a deadline: wall clock, CPU time or VM steps.
    Timeout,
    /// The result, a value in it, or the statement itself exceeds a limit.
    TooLarge,
    /// The statement would do something other than read, or the text holds several statements.
    Forbidden,
    /// The database is missing, corrupt, locked or not a database.
    DbError,
    /// The run's worker process died, or the session with its server was lost twice; see [`Stop::Killed`].
    Crashed,
    /// The caller cancelled the run.
    Cancelled,
}

impl Status {
    /// Every status, in numeric order.
    pub const ALL: &[Status] = Status::VARIANTS;

    /// Returns the name in Python.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The bound that stopped a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Stop {
    /// The caller cancelled the run.
    Cancelled = 1,
    /// The wall clock; depends on the machine's load.
    Wall,
    /// The CPU time of the thread.
    Cpu,
    /// The VM step budget; the same on every machine.
    VmSteps,
    /// Another process killed the worker process twice, or truncated a file while it was read. Says nothing about the
    /// query.
    Killed,
    /// Not enough memory for the result or its comparison. Says nothing about the query.
    Memory,
}

impl Stop {
    /// Every bound, in numeric order from 1.
    pub const ALL: &[Stop] = Stop::VARIANTS;

    /// Returns the name in Python.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The outcome of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// How the run ended.
    pub status: Status,
    /// The rows, if the status is `ok`. A worker process sends them separately.
    #[serde(skip)]
    pub table: Option<Arc<Table>>,
    /// The error message: SQLite's own if it has one.
    pub error: Option<String>,
    /// Byte offset of the error in the SQL text, if SQLite reports it.
    pub error_offset: Option<u32>,
    /// A suggestion for an unknown name.
    pub hint: Option<String>,
    /// Whether the rows are only the first ones because the limits allow no more.
    pub is_cut: bool,
    /// The bound that stopped the run, if any.
    pub stopped_by: Option<Stop>,
    /// Wall time of prepare and execution.
    pub elapsed: Duration,
    /// Instructions of the virtual machine that were executed (0 if it never started).
    pub vm_steps: u64,
    /// Whether the run used random numbers or the clock, so its outcome must not be cached.
    pub is_volatile: bool,
}

impl Outcome {
    /// Creates the outcome of a successful run.
    pub fn ok(table: Table) -> Self {
        Self { status: Status::Ok, table: Some(Arc::new(table)), error: None, ..Self::failed(Status::Ok, "") }
    }

    /// Creates an outcome without rows.
    pub fn failed(status: Status, error: impl Into<String>) -> Self {
        Self {
            status,
            table: None,
            error: Some(error.into()),
            error_offset: None,
            hint: None,
            is_cut: false,
            stopped_by: None,
            elapsed: Duration::ZERO,
            vm_steps: 0,
            is_volatile: false,
        }
    }

    /// Creates the outcome of a run that the caller cancelled.
    pub fn cancelled() -> Self {
        Self { stopped_by: Some(Stop::Cancelled), ..Self::failed(Status::Cancelled, "cancelled") }
    }

    /// Returns the outcome of the same run as a failure.
    pub(crate) fn replaced_by(&self, status: Status, error: String) -> Self {
        Self {
            elapsed: self.elapsed,
            vm_steps: self.vm_steps,
            is_volatile: self.is_volatile,
            ..Self::failed(status, error)
        }
    }

    /// Returns the number of rows, 0 without a table.
    pub fn row_count(&self) -> usize {
        self.table.as_ref().map_or(0, |table| table.n_rows())
    }

    /// Creates the outcome of a run that had not enough memory for its result.
    pub(crate) fn out_of_memory() -> Self {
        Self { stopped_by: Some(Stop::Memory), ..Self::failed(Status::TooLarge, OutOfMemory.to_string()) }
    }

    /// Returns whether a later equal request (same file, text and limits) would have the same outcome, so it may be
    /// cached.
    pub fn is_repeatable(&self) -> bool {
        !self.is_volatile
            && self.stopped_by != Some(Stop::Memory)
            && !matches!(self.status, Status::Timeout | Status::DbError | Status::Crashed | Status::Cancelled)
    }
}
