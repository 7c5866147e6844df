//! What is asked: a database, a SQL text, and the limits it runs under.

use std::time::Duration;

/// The bounds of one run. `None` means no bound of that kind.
///
/// The VM-step budget counts in units of [`STEP_PERIOD`](crate::deadline::STEP_PERIOD): it is rounded up, and it is the same on every machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Some(Duration::from_secs(30)),
            cpu: None,
            vm_steps: None,
            max_rows: 1_000_000,
            max_bytes: 256 << 20,
        }
    }
}
