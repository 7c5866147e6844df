//! A session with a server, whatever its engine.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::given_up::AbandonedSession;
use crate::outcome::{Outcome, Status, Stop};
use crate::request::{ExecRequest, Limits};
use crate::server::stream::StreamError;
use crate::server::watch::Watch;

/// The longest that connecting takes, which a run's own time does not count.
pub(super) const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// How long the list of hidden callers (views, policies, functions) is valid: an owner may add one at any time.
pub(super) const RECHECK: Duration = Duration::from_secs(1);

/// A connection to a database of a server.
pub(super) trait Session: Send {
    /// Reads the list of hidden callers again if it is old. `Err` says why the
    /// connection was lost. A run's own time does not count it.
    fn refresh(&mut self, cancel: &AtomicBool) -> Result<(), String>;

    /// Runs one text. `Err` says why the connection was lost; what becomes of the run is then not known.
    fn run(&mut self, request: &ExecRequest<'_>, watch: &Watch<'_>) -> Result<Outcome, String>;

    /// Tells whether the next run may have this connection.
    fn is_usable(&self) -> bool;

    /// Turns a session that is not usable into its remains, which know whether it has ended on the server; `None` where
    /// nothing of it runs there.
    fn into_abandoned(self: Box<Self>) -> Option<Box<dyn AbandonedSession>>;
}

/// A connection that answers the executor's own questions.
pub(super) trait OwnQueries {
    /// Returns the rows of a query of the executor's, as texts.
    fn ask(&mut self, sql: &str, watch: &Watch<'_>) -> Result<Vec<Vec<String>>, StreamError>;
}

/// Returns the outcome of a run that was stopped.
pub(super) fn stop_outcome(stop: Stop, limits: &Limits) -> Outcome {
    if stop == Stop::Cancelled {
        return Outcome::cancelled();
    }
    let error = format!("over the time limit of {} ms", limits.timeout.unwrap_or_default().as_millis());
    Outcome { stopped_by: Some(stop), ..Outcome::failed(Status::Timeout, error) }
}
