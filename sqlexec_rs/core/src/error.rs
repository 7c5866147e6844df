//! Faults of ours. A query that fails is not one of them (see [`Status`](crate::Status)).

use std::any::Any;

/// A broken executor, as opposed to bad SQL.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fault {
    /// A worker panicked; the message is the panic's own.
    #[error("a worker panicked: {0}")]
    Panicked(String),
    /// The operating system gave no thread; raised when the pool starts.
    #[error("cannot start worker threads: {0}")]
    CannotStart(String),
    /// SQLite was compiled with other options than those that verdicts were tested with.
    #[error("SQLite was compiled with other options than this package's: {0}")]
    OtherOptions(String),
    /// A worker process could not be started, or ended before it was ready.
    #[error("cannot start a worker process: {0}")]
    NoWorker(String),
    /// A limit was set that the engine of a database cannot honour.
    #[error(
        "{0} cannot honour {1}: a run there is bounded by timeout_ms, max_rows, max_bytes and max_sql_length alone"
    )]
    NotHonoured(&'static str, String),
    /// Columns are hidden, and the engine of a database has no authorizer that refuses them.
    #[error("{0} cannot hide columns as SQLite can: grant its role the other columns alone, GRANT SELECT (a, b) ON …")]
    CannotHide(&'static str),
    /// Work was handed in after `close`.
    #[error("the executor is closed")]
    Closed,
    /// A callback, which runs on a thread of the executor, would wait for the end of that thread.
    #[error("a callback cannot close the executor that calls it: it would wait for itself")]
    ClosedByCallback,
    /// The caller gave up while its batch waited for room in the queue.
    #[error("interrupted while the batch waited for room in the queue")]
    Interrupted,
    /// The executor is used in a child process: threads do not survive a fork.
    #[error("the executor was made in another process; make a new one after a fork")]
    Forked,
    /// An executor is made in a child process that was forked while a query ran: SQLite's locks may be held for ever there.
    #[error("a query ran when this process was forked, so SQLite is unusable in it: fork before any query")]
    ForkedBusy,
    /// There is no memory for the answer.
    #[error("there is not enough memory for the result")]
    OutOfMemory,
    /// Our own bookkeeping is wrong.
    #[error("internal fault: {0}")]
    Internal(&'static str),
}

impl Fault {
    /// Makes a fault of what `catch_unwind` caught.
    pub(crate) fn of_panic(panic: &(dyn Any + Send)) -> Self {
        Self::Panicked(panic_message(panic))
    }
}

/// Returns the message of what `catch_unwind` caught.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
