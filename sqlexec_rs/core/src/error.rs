//! Errors of the executor itself. A failing query is not an error (see [`Status`](crate::Status)).

use std::any::Any;

/// An executor error, as opposed to bad SQL.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PoolError {
    /// A worker thread panicked; holds the panic message.
    #[error("a worker panicked: {0}")]
    Panicked(String),
    /// The operating system refused to create a thread when the pool started.
    #[error("cannot start worker threads: {0}")]
    CannotStart(String),
    /// SQLite was compiled with options other than those the verdicts were tested with.
    #[error("SQLite was compiled with unexpected options: {0}")]
    OtherOptions(String),
    /// A worker process could not be started, or exited before it was ready.
    #[error("cannot start a worker process: {0}")]
    NoWorker(String),
    /// A limit was set that the engine of a database cannot enforce.
    #[error("{0} cannot enforce {1}: it supports only timeout_ms, max_rows, max_bytes and max_sql_length")]
    NotHonoured(&'static str, String),
    /// Columns are hidden, but the engine of a database has no authorizer to refuse them.
    #[error("{0} cannot hide columns: restrict the role instead, GRANT SELECT (a, b) ON …")]
    CannotHide(&'static str),
    /// Work was submitted after `close`.
    #[error("the executor is closed")]
    Closed,
    /// A callback tried to close the executor that runs it.
    #[error("a callback cannot close the executor that calls it: it would deadlock")]
    ClosedByCallback,
    /// The caller was interrupted while its batch waited for room in the queue.
    #[error("interrupted while the batch waited for room in the queue")]
    Interrupted,
    /// The executor is used in a child process; threads do not survive a fork.
    #[error("the executor was created in another process; create a new one after a fork")]
    Forked,
    /// An executor is created in a child that was forked while a query ran. SQLite's locks may be held forever there.
    #[error("SQLite is unusable in this process because it was forked while a query ran: fork before any query")]
    ForkedBusy,
    /// Not enough memory for the result.
    #[error("there is not enough memory for the result")]
    OutOfMemory,
    /// An internal invariant is broken.
    #[error("internal fault: {0}")]
    Internal(&'static str),
}

impl PoolError {
    /// Creates an error from the payload that `catch_unwind` returned.
    pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> Self {
        Self::Panicked(panic_message(panic))
    }
}

/// Returns the message of a panic payload.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
