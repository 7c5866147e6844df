//! A session on a server, independent of the engine.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::abandoned_sessions::AbandonedSession;
use crate::outcome::{Outcome, Status, Stop};
use crate::request::{ExecRequest, Limits};
use crate::server::deadline::RunDeadline;
use crate::server::stream::StreamError;

/// Maximum time to connect; it does not count towards the run's own time.
pub(super) const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// How long the list of hidden callers (views, policies, functions) is valid; owners may add one at any time.
pub(super) const RECHECK: Duration = Duration::from_secs(1);

/// A connection to a database of a server.
pub(super) trait Session: Send {
    /// Refreshes the list of hidden callers if it is old. `Err` holds the reason for a lost connection. Does not
    /// count towards the run's own time.
    fn refresh(&mut self, cancel: &AtomicBool) -> Result<(), String>;

    /// Runs one text. `Err` holds the reason for a lost connection; the outcome is then unknown.
    fn run(&mut self, request: &ExecRequest<'_>, deadline: &RunDeadline<'_>) -> Result<Outcome, String>;

    /// Returns whether the next run may use this connection.
    fn is_usable(&self) -> bool;

    /// Turns an unusable session into a handle that checks whether it has ended on the server; `None` if nothing of
    /// it runs there.
    fn into_abandoned(self: Box<Self>) -> Option<Box<dyn AbandonedSession>>;
}

/// A connection that runs the executor's own queries.
pub(super) trait InternalQueries {
    /// Returns the rows of an internal query, as texts.
    fn query_rows(&mut self, sql: &str, deadline: &RunDeadline<'_>) -> Result<Vec<Vec<String>>, StreamError>;
}

/// Returns the outcome of a run that was stopped.
pub(super) fn stop_outcome(stop: Stop, limits: &Limits) -> Outcome {
    if stop == Stop::Cancelled {
        return Outcome::cancelled();
    }
    let error = format!("over the time limit of {} ms", limits.timeout.unwrap_or_default().as_millis());
    Outcome { stopped_by: Some(stop), ..Outcome::failed(Status::Timeout, error) }
}
