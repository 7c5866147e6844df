//! Runs the queries of a pool thread: SQLite in the thread or in its worker process, DuckDB in another worker
//! process, and others on their servers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::PoolError;
use crate::outcome::{Outcome, Status};
use crate::pool::crashed_queries::CrashedQueries;
use crate::pool::{Config, MAX_SESSIONS};
use crate::process::{NoSource, RemoteRunner, Source};
use crate::request::{ExecRequest, InFlightQuery};
use crate::result::table_arena;
use crate::server::{self, Gates, Servers};
use crate::sqlite::in_memory_dbs::InMemoryDbs;
use crate::sqlite::local::LocalRunner;
use crate::stats::Stats;
use crate::target::Engine;

/// Error message for a DuckDB database if DuckDB is unavailable.
const NO_DUCKDB: &str = "DuckDB is not installed, or there is no python program to run it: \
     pip install \"duckdb>=2.0\" pytz, or the extra `duckdb` of sqlexec-rs";

/// State about failing queries and servers that threads share.
#[derive(Debug, Default)]
pub(crate) struct FailureState {
    pub(crate) crashed_queries: CrashedQueries,
    gates: Arc<Gates>,
}

/// Runs a thread's queries.
pub(crate) struct Runner {
    sqlite: Sqlite,
    duckdb: Option<RemoteRunner>,
    servers: Servers,
    failures: Arc<FailureState>,
    /// Whether DuckDB files are guaranteed not to change.
    is_unchanging: bool,
}

/// How SQLite runs: in this thread or in a worker process.
#[allow(clippy::large_enum_variant, reason = "there is one per thread and it is never moved")]
enum Sqlite {
    Thread(LocalRunner),
    Process(RemoteRunner),
}

impl Runner {
    /// Creates the runner of a thread. A worker process starts with its first query.
    pub(crate) fn new(
        config: &Config,
        number: usize,
        n_threads: usize,
        copies: &Arc<InMemoryDbs>,
        stats: &Arc<Stats>,
        failures: &Arc<FailureState>,
    ) -> Result<Self, PoolError> {
        let share = |max: usize| (max / n_threads).max(1);
        let cap = share(config.max_open);
        // If columns are hidden, queries on other engines are refused earlier.
        let (hidden, none) = (&config.hidden, Arc::default());
        let remote = |worker, hidden| RemoteRunner::new(worker, cap, copies.access(), hidden, stats);
        let sqlite = match &config.worker {
            None => Sqlite::Thread(LocalRunner::new(cap, copies, hidden, stats)),
            Some(worker) => Sqlite::Process(remote(worker, hidden)?),
        };
        let is_unchanging = copies.access().immutable;
        let duckdb = config.duckdb.as_ref().map(|worker| remote(worker, &none)).transpose()?;
        Ok(Self {
            sqlite,
            duckdb,
            // A thread has a session for golds and one for other queries.
            servers: Servers::new(number, cap.min(share(MAX_SESSIONS).max(2)), is_unchanging, stats, &failures.gates),
            failures: Arc::clone(failures),
            is_unchanging,
        })
    }

    /// Returns the next query that was taken ahead of time, and whether a worker process already has it.
    pub(crate) fn next(&mut self) -> Option<(Arc<InFlightQuery>, bool)> {
        match &mut self.sqlite {
            Sqlite::Thread(_) => None,
            Sqlite::Process(remote) => remote.next(),
        }
    }

    /// Runs a query, which a worker process may already have. If `has_successors`, others follow and may be taken
    /// from the source. A panic becomes an error, after which all connections are reopened.
    pub(crate) fn run(
        &mut self,
        query: &InFlightQuery,
        is_sent: bool,
        has_successors: bool,
        source: &mut dyn Source,
    ) -> Result<Outcome, PoolError> {
        if !is_sent && let Some(outcome) = self.failures.crashed_queries.refusal(query) {
            return Ok(outcome);
        }
        let run = || match (&query.engine, &mut self.sqlite) {
            (Engine::Sqlite, Sqlite::Thread(local)) => Ok(run_here(local, query, has_successors)),
            (Engine::Sqlite, Sqlite::Process(remote)) => remote.run(query, is_sent, has_successors, source),
            (Engine::Duckdb, _) => run_duckdb(self.duckdb.as_mut(), query, self.is_unchanging),
            (Engine::Postgresql | Engine::Mysql, _) => Ok(self.servers.run(query)),
        };
        let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            match &mut self.sqlite {
                Sqlite::Thread(local) => local.recover(),
                Sqlite::Process(remote) => remote.recover(),
            }
            if let Some(remote) = &mut self.duckdb {
                remote.recover();
            }
            self.servers.clear();
            Err(PoolError::of_panic(panic.as_ref()))
        });
        if let Ok(outcome) = &result
            && outcome.status == Status::Crashed
            && outcome.stopped_by.is_none()
        {
            // A session is lost twice before the query is blamed.
            self.failures.crashed_queries.add(query, if query.engine.is_server() { 2 } else { 1 });
        }
        result
    }

    /// Releases resources kept between queries, because no query is waiting.
    pub(crate) fn park(&mut self) {
        match &mut self.sqlite {
            Sqlite::Thread(local) => {
                local.release();
                table_arena::release();
            }
            Sqlite::Process(remote) => remote.park(),
        }
    }

    /// Does the work that can wait until the outcome is delivered.
    pub(crate) fn prune(&mut self, engine: Engine) {
        let remote = match (engine, &mut self.sqlite) {
            (Engine::Sqlite, Sqlite::Process(remote)) => Some(remote),
            (Engine::Duckdb, _) => self.duckdb.as_mut(),
            _ => None,
        };
        if let Some(remote) = remote {
            remote.prune();
        }
    }
}

/// Runs a query in the worker process for DuckDB.
fn run_duckdb(
    remote: Option<&mut RemoteRunner>,
    query: &InFlightQuery,
    is_unchanging: bool,
) -> Result<Outcome, PoolError> {
    if let Some(outcome) = server::outcome_without_engine(query) {
        return Ok(outcome);
    }
    let Some(remote) = remote else { return Ok(Outcome::failed(Status::DbError, NO_DUCKDB)) };
    let mut outcome = remote.run(query, false, false, &mut NoSource)?;
    // A view may read volatile data that the query's text does not show, so a result is cached only if the caller
    // guarantees unchanging databases.
    outcome.is_volatile = !is_unchanging || server::asks_for_chance_or_time(&query.key.sql.text);
    Ok(outcome)
}

fn run_here(local: &mut LocalRunner, query: &InFlightQuery, has_successors: bool) -> Outcome {
    let InFlightQuery { key, limits, .. } = query;
    let request = ExecRequest { sql: &key.sql.text, parameters: key.parameters.as_deref(), output: key.output, limits };
    let mut outcome = local.run_in_burst(&query.path, key.db, &request, Some(&query.cancel), has_successors);
    if let Some(table) = outcome.table.as_mut().and_then(Arc::get_mut) {
        table.settle(query.is_for_cache);
    }
    outcome
}
