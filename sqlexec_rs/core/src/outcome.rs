//! What comes back: a status with its own meaning, and a table when there is one.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::memory::OutOfMemory;
use crate::result::table::Table;

/// How a run ended. Bad SQL is data, so each of these is an answer and none an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Status {
    /// It ran to the end within every limit.
    Ok = 0,
    /// There was no statement: empty text, or comments only.
    NoSql,
    /// The text is not a statement that SQLite accepts.
    SyntaxError,
    /// It names a table, column or function that is not there, or an ambiguous column.
    SchemaError,
    /// It failed while it ran.
    RuntimeError,
    /// It met a deadline: wall clock, CPU time or VM steps.
    Timeout,
    /// Its result, a value in it, or the statement itself exceeds a cap.
    TooLarge,
    /// It would do something other than read, or holds several statements.
    Forbidden,
    /// The database is missing, corrupt, locked or not a database.
    DbError,
    /// The worker process that ran it died, or the session with its server was lost twice; see [`Stop::Killed`].
    Crashed,
    /// The caller cancelled it.
    Cancelled,
}

impl Status {
    /// Every status, in the order of its number.
    pub const ALL: &[Status] = Status::VARIANTS;

    /// Returns the name that users see.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Which bound stopped a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
#[repr(u8)]
pub enum Stop {
    /// The caller cancelled the run.
    Cancelled = 1,
    /// The wall clock: depends on the machine's load.
    Wall,
    /// The thread's CPU time.
    Cpu,
    /// The budget of VM steps: the same on every machine.
    VmSteps,
    /// Somebody else killed the worker process twice, or cut a file short that it read: it says nothing of the query.
    Killed,
    /// There was no memory for the result or its comparison: it says nothing of the query.
    Memory,
}

impl Stop {
    /// Every bound, in the order of its number, which begins at 1.
    pub const ALL: &[Stop] = Stop::VARIANTS;

    /// Returns the name that users see.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// What one run gave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// The rows, when the status is `ok`; a worker process sends them apart.
    #[serde(skip)]
    pub table: Option<Arc<Table>>,
    /// What went wrong, in SQLite's words where it has some.
    pub error: Option<String>,
    /// Byte offset in the SQL text that the error points at, when SQLite gives one.
    pub error_offset: Option<u32>,
    /// What a name that is not there may have been meant to be.
    pub hint: Option<String>,
    /// The rows are the first of more than the limits allow.
    pub is_cut: bool,
    /// Which bound stopped it, when one did.
    pub stopped_by: Option<Stop>,
    /// Wall time of prepare and execution.
    pub elapsed: Duration,
    /// Instructions of the virtual machine that it took (0 when it never ran).
    pub vm_steps: u64,
    /// It asked for random numbers or the clock, so it must not be answered from a cache.
    pub is_volatile: bool,
}

impl Outcome {
    /// Makes the outcome of a run that ended well.
    pub fn ok(table: Table) -> Self {
        Self { status: Status::Ok, table: Some(Arc::new(table)), error: None, ..Self::failed(Status::Ok, "") }
    }

    /// Makes an outcome without rows.
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

    /// Makes the outcome of a run that the caller cancelled.
    pub fn cancelled() -> Self {
        Self { stopped_by: Some(Stop::Cancelled), ..Self::failed(Status::Cancelled, "cancelled") }
    }

    /// Makes what became of the same run after all: a failure.
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

    /// Makes the outcome of a run for whose result there was no memory.
    pub(crate) fn out_of_memory() -> Self {
        Self { stopped_by: Some(Stop::Memory), ..Self::failed(Status::TooLarge, OutOfMemory.to_string()) }
    }

    /// Tells whether a later equal request may be given this outcome: the same file, text and limits would give it again.
    pub fn is_repeatable(&self) -> bool {
        !self.is_volatile
            && self.stopped_by != Some(Stop::Memory)
            && !matches!(self.status, Status::Timeout | Status::DbError | Status::Crashed | Status::Cancelled)
    }
}
