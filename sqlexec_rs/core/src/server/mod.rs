//! Runs queries on servers: a session a database for each thread of the pool, under the limits that a client can hold.
//!
//! An engine is a [`Session`]: it connects, runs one text under a [`Watch`], and is closed by being dropped. The SQL runs in
//! the server, so there is nothing here to be isolated from, and worker processes are for SQLite alone.

#![cfg_attr(
    not(all(feature = "postgresql", feature = "mysql")),
    allow(dead_code, unused_imports, unused_variables, reason = "both servers' modules use it between them")
)]

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgresql")]
mod postgresql;
mod rows;
mod stream;
mod url;
mod watch;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::outcome::{Outcome, Status, Stop};
use crate::request::{InFlightQuery, Key, Limits, Parameters, Wanted};
use crate::scan::{Scan, nul_error, scan};
use crate::stats::Stats;
use crate::target::Engine;
use url::Url;
pub(crate) use url::shown;
use watch::Watch;

/// The longest that connecting takes, which a run's own time does not count.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// What a session is asked.
struct Asked<'a> {
    sql: &'a str,
    parameters: Option<&'a Parameters>,
    wanted: Wanted,
    limits: &'a Limits,
}

/// A connection to a database of a server.
trait Session: Send {
    /// Runs one text. `Err` says why the connection was lost; what becomes of the run is then not known.
    fn run(&mut self, asked: &Asked<'_>, watch: &Watch<'_>) -> Result<Outcome, String>;

    /// Tells whether the next run may have this connection.
    fn is_usable(&self) -> bool;
}

/// The sessions of one thread, by URL.
pub(crate) struct Servers {
    sessions: Vec<Kept>,
    /// The number of the thread, by which a URL of several roles says its own.
    thread: usize,
    cap: usize,
    /// What the servers hold is said not to change.
    is_unchanging: bool,
    clock: u64,
    stats: Arc<Stats>,
}

struct Kept {
    path: Arc<Path>,
    session: Box<dyn Session>,
    last_used: u64,
}

impl Servers {
    /// Starts without a session; `cap` is the most that stay open.
    pub(crate) fn new(thread: usize, cap: usize, is_unchanging: bool, stats: &Arc<Stats>) -> Self {
        Self { sessions: Vec::new(), thread, cap: cap.max(1), is_unchanging, clock: 0, stats: Arc::clone(stats) }
    }

    /// Runs a query. A session that was lost costs one silent retry: a server that was restarted has closed all of them.
    pub(crate) fn run(&mut self, query: &InFlightQuery) -> Outcome {
        let sql: &str = &query.key.sql.text;
        if let Some(outcome) = refusal(query) {
            return outcome;
        }
        let Key { parameters, wanted, .. } = &query.key;
        let asked = Asked { sql, parameters: parameters.as_deref(), wanted: *wanted, limits: &query.limits };
        let mut begun = Instant::now();
        let mut is_retry = false;
        let mut outcome = loop {
            let mut session = match self.take(query) {
                Ok(found) => found,
                Err(outcome) => return *outcome,
            };
            if !is_retry {
                begun = Instant::now();
            }
            let watch = Watch::new(begun, query.limits.timeout, &query.cancel);
            match session.run(&asked, &watch) {
                Ok(outcome) => {
                    self.give_back(query, session);
                    break outcome;
                }
                Err(why) => {
                    self.stats.closed(1);
                    if is_retry || watch.stop().is_some() {
                        break stopped(&watch, query).unwrap_or_else(|| lost(query, &why));
                    }
                    self.stats.lost();
                    is_retry = true;
                }
            }
        };
        if let Some(table) = outcome.table.as_mut().and_then(Arc::get_mut) {
            table.settle(query.is_for_cache);
        }
        outcome.elapsed = begun.elapsed();
        outcome.is_volatile = !self.is_unchanging || asks_for_chance_or_time(sql);
        outcome
    }

    /// Closes all: after a panic nothing is known about any of them.
    pub(crate) fn clear(&mut self) {
        self.stats.closed(self.sessions.len() as u64);
        self.sessions.clear();
    }

    fn take(&mut self, query: &InFlightQuery) -> Result<Box<dyn Session>, Box<Outcome>> {
        // Within a batch the path is the very same.
        let is_of =
            |kept: &Kept| Arc::ptr_eq(&kept.path, &query.path) || kept.path.as_os_str() == query.path.as_os_str();
        if let Some(place) = self.sessions.iter().position(is_of) {
            return Ok(self.sessions.swap_remove(place).session);
        }
        let url = Url::parse(&query.path).and_then(|url| url.of_thread(self.thread));
        let url = url.map_err(|why| Box::new(Outcome::failed(Status::DbError, why)))?;
        let watch = Watch::new(Instant::now(), Some(CONNECT_WAIT), &query.cancel);
        match connect(query.engine, &url, &watch) {
            Ok(session) => {
                self.stats.opened(1);
                Ok(session)
            }
            Err(_) if watch.stop() == Some(Stop::Cancelled) => Err(Box::new(Outcome::cancelled())),
            Err(why) => Err(Box::new(Outcome::failed(Status::DbError, format!("{url}: {why}")))),
        }
    }

    fn give_back(&mut self, query: &InFlightQuery, session: Box<dyn Session>) {
        if !session.is_usable() {
            self.stats.closed(1);
            return;
        }
        if self.sessions.len() >= self.cap {
            let oldest = (0..self.sessions.len()).min_by_key(|place| self.sessions[*place].last_used);
            if let Some(place) = oldest {
                self.sessions.swap_remove(place);
                self.stats.closed(1);
            }
        }
        self.clock += 1;
        self.sessions.push(Kept { path: Arc::clone(&query.path), session, last_used: self.clock });
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns the outcome of a run that met its end by the clock or by its caller.
fn stopped(watch: &Watch<'_>, query: &InFlightQuery) -> Option<Outcome> {
    watch.stop().map(|stop| stop_outcome(stop, &query.limits))
}

/// Returns the outcome of a run that was stopped.
fn stop_outcome(stop: Stop, limits: &Limits) -> Outcome {
    if stop == Stop::Cancelled {
        return Outcome::cancelled();
    }
    let error = format!("over the time limit of {} ms", limits.timeout.unwrap_or_default().as_millis());
    Outcome { stopped_by: Some(stop), ..Outcome::failed(Status::Timeout, error) }
}

/// Returns the outcome of a text that no engine need see.
pub(crate) fn refusal(query: &InFlightQuery) -> Option<Outcome> {
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

/// Tells whether a text names a function whose values change by themselves.
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

fn lost(query: &InFlightQuery, why: &str) -> Outcome {
    Outcome::failed(Status::DbError, format!("{}: the connection was lost twice: {why}", shown(&query.path)))
}

/// Opens a session on a server, where this build has its engine.
fn connect(engine: Engine, url: &Url, watch: &Watch<'_>) -> Result<Box<dyn Session>, String> {
    match engine {
        #[cfg(feature = "postgresql")]
        Engine::Postgresql => Ok(Box::new(postgresql::Postgresql::connect(url, watch)?)),
        #[cfg(feature = "mysql")]
        Engine::Mysql => Ok(Box::new(mysql::Mysql::connect(url, watch)?)),
        Engine::Sqlite | Engine::Duckdb => Err("it has no servers".to_owned()),
        #[cfg(not(all(feature = "postgresql", feature = "mysql")))]
        _ => Err("this build has no such engine: build it with the features postgresql and mysql".to_owned()),
    }
}
