//! Runs queries on servers: one session per database and pool thread, under the limits that a client can enforce.
//!
//! An engine implements [`Session`]: it connects, runs one text under a [`RunDeadline`], and closes when dropped. The
//! SQL runs in the server, so it needs no isolation here; worker processes are for SQLite and DuckDB only.

#![cfg_attr(
    not(all(feature = "postgresql", feature = "mysql")),
    allow(dead_code, unused_imports, unused_variables, reason = "the modules of both servers together use everything")
)]

mod deadline;
mod gate;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgresql")]
mod postgresql;
mod rows;
mod session;
mod stream;
mod url;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use crate::outcome::{Outcome, Status, Stop};
use crate::request::{ExecRequest, InFlightQuery, RunKey};
use crate::scan::{Scan, nul_error, scan};
use crate::stats::Stats;
use crate::target::Engine;
use deadline::RunDeadline;
use gate::Gate;
pub(crate) use gate::Gates;
use session::{CONNECT_WAIT, Session, stop_outcome};
use stream::CLOSED;
pub use url::Url;
pub(crate) use url::shown;

/// Maximum number of databases whose gates a thread remembers by URL.
const MAX_GATES: usize = 256;

/// The sessions of one thread, by URL.
pub(crate) struct Servers {
    sessions: Vec<OpenSession>,
    gates: Arc<Gates>,
    /// The gates of the databases used so far.
    known_gates: Vec<(Arc<Path>, Arc<Gate>)>,
    /// The thread's number in the pool, which selects its role if the URL has several.
    thread: usize,
    cap: usize,
    /// Whether the caller guarantees that the databases do not change.
    is_unchanging: bool,
    clock: u64,
    stats: Arc<Stats>,
}

struct OpenSession {
    path: Arc<Path>,
    /// Whether its role runs gold queries or other texts; `None` if it runs both.
    is_for_golds: Option<bool>,
    session: Box<dyn Session>,
    last_used: u64,
}

impl Servers {
    /// Creates a set without sessions; at most `cap` stay open.
    pub(crate) fn new(thread: usize, cap: usize, is_unchanging: bool, stats: &Arc<Stats>, gates: &Arc<Gates>) -> Self {
        Self {
            sessions: Vec::new(),
            gates: Arc::clone(gates),
            known_gates: Vec::new(),
            thread,
            cap: cap.max(1),
            is_unchanging,
            clock: 0,
            stats: Arc::clone(stats),
        }
    }

    /// Runs a query. If the session is lost, the query is repeated with no other run of the pool on that server,
    /// because a restarted server has closed all sessions. A query that loses its session again has crashed it.
    pub(crate) fn run(&mut self, query: &InFlightQuery) -> Outcome {
        let sql: &str = &query.key.sql.text;
        if let Some(outcome) = outcome_without_engine(query) {
            return outcome;
        }
        if let Some(outcome) = self.wait_for_abandoned(query) {
            return outcome;
        }
        let RunKey { parameters, output, .. } = &query.key;
        let request = ExecRequest { sql, parameters: parameters.as_deref(), output: *output, limits: &query.limits };
        let gate = match self.gate(query) {
            Ok(gate) => gate,
            Err(reason) => return Outcome::failed(Status::DbError, reason),
        };
        let mut is_retry = false;
        let (mut outcome, start_time) = loop {
            let Some(_pass) = gate.enter(is_retry, &query.cancel) else { return Outcome::cancelled() };
            let mut open = match self.take(query, &gate) {
                Ok(open) => open,
                Err(outcome) => return *outcome,
            };
            let refreshed = open.session.refresh(&query.cancel);
            // Time spent at the gate or waiting for the server to return does not count, for retries as for first
            // runs.
            let start_time = Instant::now();
            let deadline = RunDeadline::new(start_time, query.limits.timeout, &query.cancel);
            match refreshed.and_then(|()| open.session.run(&request, &deadline)) {
                Ok(outcome) => {
                    self.return_session(query, open);
                    break (outcome, start_time);
                }
                Err(reason) => {
                    self.stats.count_closed(1);
                    if is_retry || deadline.stop().is_some() {
                        break (
                            stopped(&deadline, query).unwrap_or_else(|| self.outcome_of_lost_session(query, &reason)),
                            start_time,
                        );
                    }
                    self.stats.count_lost();
                    is_retry = true;
                }
            }
        };
        if let Some(table) = outcome.table.as_mut().and_then(Arc::get_mut) {
            table.settle(query.is_for_cache);
        }
        outcome.elapsed = start_time.elapsed();
        outcome.is_volatile = !self.is_unchanging || asks_for_chance_or_time(sql);
        outcome
    }

    /// Closes all sessions. After a panic, the state of none is known.
    pub(crate) fn clear(&mut self) {
        self.stats.count_closed(self.sessions.len() as u64);
        self.sessions.clear();
    }

    /// Waits while too many abandoned sessions still run on the query's server. Returns an outcome if the wait fails.
    fn wait_for_abandoned(&self, query: &InFlightQuery) -> Option<Outcome> {
        if self.stats.abandoned_sessions.is_empty() {
            return None;
        }
        let url = Url::parse(&query.path).ok()?;
        self.stats.abandoned_sessions.wait(&url.server(), &query.cancel).err().map(|outcome| *outcome)
    }

    /// Returns the gate of a query's server, or the error in the URL.
    fn gate(&mut self, query: &InFlightQuery) -> Result<Arc<Gate>, String> {
        let matches = |path: &Arc<Path>| Arc::ptr_eq(path, &query.path) || path.as_os_str() == query.path.as_os_str();
        if let Some((_, gate)) = self.known_gates.iter().find(|(path, _)| matches(path)) {
            return Ok(Arc::clone(gate));
        }
        let url = Url::parse(&query.path)?;
        let gate = self.gates.of(url.server());
        if self.known_gates.len() >= MAX_GATES {
            self.known_gates.clear();
        }
        self.known_gates.push((Arc::clone(&query.path), Arc::clone(&gate)));
        Ok(gate)
    }

    /// Takes a session of the query's role, or opens one.
    fn take(&mut self, query: &InFlightQuery, gate: &Gate) -> Result<OpenSession, Box<Outcome>> {
        // Within a batch, equal paths share one allocation.
        let matches = |session: &OpenSession| {
            session.is_for_golds.is_none_or(|is_for_golds| is_for_golds == query.is_gold)
                && (Arc::ptr_eq(&session.path, &query.path) || session.path.as_os_str() == query.path.as_os_str())
        };
        if let Some(index) = self.sessions.iter().position(matches) {
            return Ok(self.sessions.swap_remove(index));
        }
        let url = Url::parse(&query.path).and_then(|url| url.of_thread(self.thread, query.is_gold));
        let url = url.map_err(|reason| Box::new(Outcome::failed(Status::DbError, reason)))?;
        let is_for_golds = url.has_role_of_golds().then_some(query.is_gold);
        loop {
            let deadline = RunDeadline::new(Instant::now(), Some(CONNECT_WAIT), &query.cancel);
            match connect(query.engine, &url, &deadline) {
                Ok(session) => {
                    self.stats.count_opened(1);
                    gate.record_session();
                    return Ok(OpenSession { path: Arc::clone(&query.path), is_for_golds, session, last_used: 0 });
                }
                Err(_) if deadline.stop() == Some(Stop::Cancelled) => return Err(Box::new(Outcome::cancelled())),
                Err(reason) if is_outage(&reason) && gate.wait_for_return(&query.cancel) => {}
                Err(reason) => return Err(Box::new(Outcome::failed(Status::DbError, format!("{url}: {reason}")))),
            }
        }
    }

    /// Returns the outcome of a run whose session was lost twice, the second time in exclusive use of the server.
    ///
    /// The query crashed the session unless someone ended it: a PostgreSQL process serves a single session, and
    /// MariaDB is unavailable after a crash.
    fn outcome_of_lost_session(&self, query: &InFlightQuery, reason: &str) -> Outcome {
        let is_crash = match query.engine {
            Engine::Postgresql => {
                is_abrupt(reason) || query.key.sql.text.to_lowercase().contains("pg_terminate_backend")
            }
            _ => is_abrupt(reason) && self.is_unavailable(query),
        };
        let status = if is_crash { Status::Crashed } else { Status::DbError };
        Outcome::failed(status, format!("{}: the connection was lost twice: {reason}", shown(&query.path)))
    }

    fn is_unavailable(&self, query: &InFlightQuery) -> bool {
        let Ok(url) = Url::parse(&query.path).and_then(|url| url.of_thread(self.thread, query.is_gold)) else {
            return false;
        };
        let deadline = RunDeadline::new(Instant::now(), Some(CONNECT_WAIT), &query.cancel);
        connect(query.engine, &url, &deadline).is_err_and(|reason| is_outage(&reason))
    }

    fn return_session(&mut self, query: &InFlightQuery, open: OpenSession) {
        if !open.session.is_usable() {
            self.stats.count_closed(1);
            if let (Some(abandoned), Ok(url)) = (open.session.into_abandoned(), Url::parse(&query.path)) {
                self.stats.abandoned_sessions.add(url.server(), abandoned);
            }
            return;
        }
        if self.sessions.len() >= self.cap {
            let oldest = (0..self.sessions.len()).min_by_key(|index| self.sessions[*index].last_used);
            if let Some(index) = oldest {
                self.sessions.swap_remove(index);
                self.stats.count_closed(1);
            }
        }
        self.clock += 1;
        self.sessions.push(OpenSession { path: Arc::clone(&query.path), last_used: self.clock, ..open });
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns the outcome of a run that reached its deadline or was cancelled.
fn stopped(deadline: &RunDeadline<'_>, query: &InFlightQuery) -> Option<Outcome> {
    deadline.stop().map(|stop| stop_outcome(stop, &query.limits))
}

/// Returns the outcome of a text that needs no engine.
pub(crate) fn outcome_without_engine(query: &InFlightQuery) -> Option<Outcome> {
    let sql = &query.key.sql.text;
    let max_sql = query.limits.caps.max_sql_length as usize;
    match scan(sql) {
        Scan::Nothing => Some(Outcome::failed(Status::NoSql, "the text holds no SQL statement")),
        Scan::Nul => Some(Outcome::failed(Status::SyntaxError, nul_error(sql))),
        _ if sql.len() > max_sql => {
            Some(Outcome::failed(Status::TooLarge, format!("the text has more than {max_sql} bytes")))
        }
        _ => None,
    }
}

/// Returns whether a text names a function whose value changes between calls.
pub(crate) fn asks_for_chance_or_time(sql: &str) -> bool {
    const NAMES: [&str; 19] = [
        "today",
        "get_current",
        "age(",
        "random",
        "now",
        "timestamp",
        "timeofday",
        "current_",
        "localtime",
        "setseed",
        "uuid",
        "rand(",
        "sysdate",
        "curdate",
        "curtime",
        "utc_",
        "connection_id",
        "found_rows",
        "last_insert_id",
    ];
    let sql = sql.to_ascii_lowercase();
    NAMES.iter().any(|name| sql.contains(name))
}

/// Returns whether a connection ended without a message from the server, as after a crash.
fn is_abrupt(reason: &str) -> bool {
    [Errno::CONNRESET, Errno::PIPE]
        .iter()
        .any(|error| reason.ends_with(&format!("(os error {})", error.raw_os_error())))
        || reason == CLOSED
}

/// Returns whether an unreachable server may come back by itself: it refuses or closes connections, or reports that
/// it is starting or stopping (SQLSTATE 57P01 to 57P03 in PostgreSQL).
fn is_outage(reason: &str) -> bool {
    let io = [Errno::CONNREFUSED, Errno::CONNRESET, Errno::PIPE, Errno::NOENT];
    io.iter().any(|error| reason.ends_with(&format!("(os error {})", error.raw_os_error())) && !reason.contains('='))
        || [CLOSED, "no answer in time"].contains(&reason)
        || reason.ends_with("(57P01)")
        || reason.ends_with("(57P02)")
        || reason.ends_with("(57P03)")
}

/// Opens a session on a server, if this build has its engine.
fn connect(engine: Engine, url: &Url, deadline: &RunDeadline<'_>) -> Result<Box<dyn Session>, String> {
    match engine {
        #[cfg(feature = "postgresql")]
        Engine::Postgresql => Ok(Box::new(postgresql::Postgresql::connect(url, deadline)?)),
        #[cfg(feature = "mysql")]
        Engine::Mysql => Ok(Box::new(mysql::Mysql::connect(url, deadline)?)),
        Engine::Sqlite | Engine::Duckdb => Err("this engine has no servers".to_owned()),
        #[cfg(not(all(feature = "postgresql", feature = "mysql")))]
        _ => Err("this build lacks the engine: build it with the features postgresql and mysql".to_owned()),
    }
}
