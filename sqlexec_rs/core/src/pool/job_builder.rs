//! Builds a job batch by batch: each run is found in the cache, joined in flight, or queued. Threads run the
//! added items while the caller prepares the next batch.

use std::path::Path;
use std::sync::Arc;

use crate::compare::score::ScoreItem;
use crate::error::PoolError;
use crate::outcome::Outcome;
use crate::pool::cache::{JobHandle, Lookup, Waiter};
use crate::pool::csr_groups::CsrGroups;
use crate::pool::job::{ComparisonControl, JobState};
use crate::pool::plan::{Plan, n_pairs};
use crate::pool::queue::Task;
use crate::pool::{Job, Shared};
use crate::request::{InFlightQuery, Limits, Query, RunKey};
use crate::sqlite::dbfile::FileIdentity;
use crate::target::Engine;

/// Number of runs that are looked up and queued together, so that threads start early.
const CHUNK: usize = 256;

/// A job to which items are still being added. Dropping it cancels the added items.
pub struct JobBuilder {
    shared: Arc<Shared>,
    limits: Arc<Limits>,
    plan: Plan,
    /// Number of (database, SQL) pairs still to be added, as counted by the caller.
    n_remaining: usize,
    databases: Vec<Database>,
    started: Option<StartedJob>,
}

/// The part of a job that exists after the first batch.
struct StartedJob {
    state: Arc<JobState>,
    limits_number: u32,
    ticket: u64,
    /// Number of tasks for which the queue has reserved room.
    n_reserved: usize,
    queries: Vec<Arc<InFlightQuery>>,
    is_open: bool,
}

struct Database {
    path: Arc<Path>,
    /// Its engine and state number, or the outcome for an unreadable database.
    state: Result<(Engine, u32), Arc<Outcome>>,
}

/// Identifies the state of a database.
enum Identity {
    File(Engine, FileIdentity),
    /// A server, whose state has no identity.
    None(Engine),
}

impl Identity {
    fn of(path: &Path) -> Result<Self, Box<Outcome>> {
        match Engine::of(path)? {
            engine @ Engine::Sqlite => FileIdentity::of(path).map(|file| Self::File(engine, file)),
            engine @ Engine::Duckdb => {
                FileIdentity::of_other(engine.file(path), ".wal").map(|file| Self::File(engine, file))
            }
            engine @ (Engine::Postgresql | Engine::Mysql) => Ok(Self::None(engine)),
        }
    }
}

impl JobBuilder {
    /// Creates a builder. `n_pairs` is the number of (database, SQL) pairs of all items, including duplicates.
    pub(crate) fn new(shared: &Arc<Shared>, plan: Plan, limits: &Arc<Limits>, n_pairs: usize) -> Self {
        Self {
            shared: Arc::clone(shared),
            limits: Arc::clone(limits),
            plan,
            n_remaining: n_pairs,
            databases: Vec::new(),
            started: None,
        }
    }

    /// Adds items under their numbers. The first batch waits until the queue has room for all of them. Meanwhile
    /// `keep_waiting` is called; if it returns false, the call fails with [`PoolError::Interrupted`].
    pub fn add(
        &mut self,
        items: impl IntoIterator<Item = (u32, ScoreItem)>,
        keep_waiting: &mut dyn FnMut() -> bool,
    ) -> Result<(), PoolError> {
        let n_old = self.plan.runs.len();
        let mut n_requested = 0;
        for (number, item) in items {
            n_requested += n_pairs(&item);
            self.plan.add_item(number, item, n_old);
        }
        self.request_from(n_old, n_requested, keep_waiting)
    }

    /// Adds the queries with these numbers; waits like `add`.
    pub(crate) fn add_queries(
        &mut self,
        numbers: &[u32],
        queries: &[Query],
        keep_waiting: &mut dyn FnMut() -> bool,
    ) -> Result<(), PoolError> {
        let n_old = self.plan.runs.len();
        for number in numbers {
            self.plan.add_query(*number, &queries[*number as usize]);
        }
        self.request_from(n_old, numbers.len(), keep_waiting)
    }

    /// Finishes and returns the job.
    pub fn finish(mut self) -> Result<Job, PoolError> {
        if self.started.is_none() {
            self.request_from(0, 0, &mut || true)?; // an empty job
        }
        let started = self.started.as_mut().ok_or(PoolError::Internal("the job has not started"))?;
        let state = Arc::clone(&started.state);
        let mut tasks = Vec::new();
        for (slot, outcome) in state.plan(self.plan.runs.len(), self.plan.take_work()) {
            match outcome {
                Ok(outcome) => tasks.push(Task::Deliver(Arc::clone(&state), slot, outcome)),
                error => state.deliver(slot, error),
            }
        }
        let is_open = self.shared.queue.add(started.ticket, tasks.into_iter(), started.n_reserved) && started.is_open;
        started.n_reserved = 0;
        state.set_queries(std::mem::take(&mut started.queries));
        let job = Job { state, shared: Arc::clone(&self.shared) };
        self.started = None;
        if is_open {
            Ok(job)
        } else {
            job.cancel()?;
            Err(PoolError::Closed)
        }
    }

    /// Requests the runs that were planned from number `n_old` on, for `n_requested` pairs.
    fn request_from(
        &mut self,
        n_old: usize,
        n_requested: usize,
        keep_waiting: &mut dyn FnMut() -> bool,
    ) -> Result<(), PoolError> {
        let n_new = self.plan.runs.len() - n_old;
        self.n_remaining = self.n_remaining.saturating_sub(n_requested);
        if self.started.is_none() {
            self.started = Some(self.begin(n_new + self.n_remaining, keep_waiting)?);
        }
        let stats = &self.shared.stats;
        stats.count_requests(n_requested as u64);
        stats.count_deduplicated((n_requested - n_new) as u64);
        self.number_databases()?;
        let Some(started) = self.started.as_mut() else { return Ok(()) };
        mark_golds(&self.shared, &self.plan, &self.databases, started.limits_number);
        // Ordered by database, so that a thread keeps using a connection and its caches.
        let runs = &self.plan.runs;
        let order =
            CsrGroups::new(self.databases.len(), runs[n_old..].iter().map(|run| run.database).zip(n_old as u32..));
        for chunk in order.all().chunks(CHUNK) {
            let tasks = started.request(&self.shared, &self.limits, &self.databases, &self.plan, chunk);
            started.n_reserved -= chunk.len();
            started.is_open &= self.shared.queue.add(started.ticket, tasks.into_iter(), chunk.len());
        }
        self.plan.end_batch();
        Ok(())
    }

    /// Waits for room before any run is created. Otherwise others could join a run that this call abandons before
    /// queueing it.
    fn begin(&self, max_runs: usize, keep_waiting: &mut dyn FnMut() -> bool) -> Result<StartedJob, PoolError> {
        let ticket = self.shared.queue.reserve(max_runs, keep_waiting)?;
        let is_closed = Arc::clone(&self.shared.is_closed);
        let control = ComparisonControl { limits: Arc::clone(&self.limits), is_cancelled: Arc::default(), is_closed };
        Ok(StartedJob {
            state: Arc::new(JobState::new(max_runs, control, Arc::clone(&self.shared.stats))),
            limits_number: self.shared.cache().number_limits(&self.limits),
            ticket,
            n_reserved: max_runs,
            queries: Vec::with_capacity(max_runs),
            is_open: true,
        })
    }

    /// Identifies the databases that are new to the job. Refuses limits that their engines cannot enforce.
    fn number_databases(&mut self) -> Result<(), PoolError> {
        let new = &self.plan.databases[self.databases.len()..];
        let identities: Vec<_> = new.iter().map(|path| Identity::of(path)).collect();
        let mut cache = self.shared.cache();
        for (path, identity) in new.iter().zip(identities) {
            let state = match identity {
                Ok(Identity::File(engine, identity)) => Ok((engine, cache.number_database(identity))),
                Ok(Identity::None(engine)) => {
                    Ok((engine, cache.number_server(path, self.shared.servers_are_unchanging)))
                }
                Err(outcome) => Err(Arc::from(outcome)),
            };
            if let Ok((engine, _)) = state {
                if self.shared.hides_columns && engine != Engine::Sqlite {
                    return Err(PoolError::CannotHide(engine.name()));
                }
                let limits = self.limits.on(engine).not_honoured_by(engine);
                if !limits.is_empty() {
                    return Err(PoolError::NotHonoured(engine.name(), limits.join(" and ")));
                }
            }
            self.databases.push(Database { path: Arc::clone(path), state });
        }
        Ok(())
    }
}

impl Drop for JobBuilder {
    fn drop(&mut self) {
        if let Some(started) = self.started.take().filter(|_| self.shared.check_process().is_ok()) {
            self.shared.queue.add(started.ticket, std::iter::empty(), started.n_reserved);
            self.shared.cache().abandon(&started.state, &started.queries);
        }
    }
}

/// Marks runs that turned out to be golds' as exempt from eviction.
fn mark_golds(shared: &Shared, plan: &Plan, databases: &[Database], limits: u32) {
    if plan.late_golds.is_empty() {
        return;
    }
    let mut cache = shared.cache();
    for run in plan.late_golds.iter().map(|slot| &plan.runs[*slot as usize]) {
        if let Ok((_, db)) = databases[run.database as usize].state {
            cache.mark_gold(&RunKey { db, limits, sql: run.sql.clone(), parameters: None, output: plan.output });
        }
    }
}

impl StartedJob {
    /// Finds, joins or starts some of a job's runs. Returns the tasks to queue.
    fn request(
        &mut self,
        shared: &Shared,
        limits: &Arc<Limits>,
        databases: &[Database],
        plan: &Plan,
        chunk: &[u32],
    ) -> Vec<Task> {
        let handle = Arc::new(JobHandle(Arc::clone(&self.state)));
        let mut tasks = Vec::with_capacity(chunk.len());
        let mut ready = Vec::new();
        let mut cache = shared.cache();
        let keeps_candidates = cache.keeps_candidates();
        for slot in chunk {
            let run = &plan.runs[*slot as usize];
            let database = &databases[run.database as usize];
            let (engine, db) = match &database.state {
                Ok(state) => *state,
                Err(outcome) => {
                    ready.push((*slot, Arc::clone(outcome)));
                    continue;
                }
            };
            let (sql, parameters) = (run.sql.clone(), run.parameters.clone());
            let key = RunKey { db, limits: self.limits_number, sql, parameters, output: plan.output };
            let waiter = Waiter { job: Arc::clone(&handle), slot: *slot };
            let make_query = |key| InFlightQuery {
                key,
                engine,
                path: Arc::clone(&database.path),
                limits: Arc::clone(limits.on(engine)),
                cancel: Arc::default(),
                is_for_cache: run.is_gold || keeps_candidates,
                is_gold: run.is_gold,
            };
            match cache.request(key, run.is_gold, waiter, make_query) {
                Lookup::Cached(outcome) => {
                    shared.stats.count_hit(run.is_gold);
                    ready.push((*slot, outcome));
                }
                Lookup::Joined(query) => {
                    shared.stats.count_join();
                    self.queries.push(query);
                }
                Lookup::New(query) => {
                    self.queries.push(Arc::clone(&query));
                    tasks.push(Task::Run(query));
                }
            }
        }
        drop(cache);
        for (slot, outcome) in ready {
            self.state.deliver(slot, Ok(outcome));
        }
        tasks
    }
}
