//! The executor: a pool of threads, each with its own connections or worker process, sharing a queue and a cache.

pub mod batches;
pub mod cache;
pub mod completion_log;
mod crashed_queries;
pub mod csr_groups;
pub mod items;
pub mod job;
pub mod job_builder;
pub mod plan;
pub mod queue;
pub mod runner;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::compare::Rule;
use crate::compare::score::{Score, ScoreItem};
use crate::error::PoolError;
use crate::locks::lock;
use crate::outcome::Outcome;
use crate::pool::batches::Batches;
use crate::pool::cache::Cache;
use crate::pool::job::JobState;
use crate::pool::job_builder::JobBuilder;
use crate::pool::plan::{Plan, n_pairs};
use crate::pool::queue::{Queue, Task};
use crate::pool::runner::{FailureState, Runner};
use crate::process::{Source, WorkerConfig};
use crate::request::{InFlightQuery, Limits, OutputKind, Query};
use crate::server;
use crate::sqlite::busy::{self, BusyGuard};
use crate::sqlite::hidden::HiddenColumn;
use crate::sqlite::hooks;
use crate::sqlite::in_memory_dbs::{Access, InMemoryDbs};
use crate::sqlite::local::STACK_BYTES;
use crate::stats::{Stats, StatsSnapshot};

/// Number of runs from which a job is freed by another thread.
const LARGE_JOB: usize = 256;

/// Maximum number of open server sessions over all threads; servers allow about a hundred from all clients by
/// default.
pub(crate) const MAX_SESSIONS: usize = 64;

/// The configuration of an executor.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of worker threads; `None` means one per core.
    pub threads: Option<usize>,
    /// Maximum number of open connections over all threads; at most 64 of them are server sessions.
    pub max_open: usize,
    /// How database files are opened.
    pub access: Access,
    /// Columns that no query may read. If there are any, queries on engines other than SQLite are refused.
    pub hidden: Arc<[HiddenColumn]>,
    /// Bytes of cached results, in addition to those of gold queries.
    pub cache_bytes: usize,
    /// Maximum number of runs that wait for a thread. A batch that would exceed it waits.
    pub max_queued: usize,
    /// Runs each query in one worker process per thread instead of in the thread itself.
    pub worker: Option<WorkerConfig>,
    /// Runs queries on DuckDB files; `None` if DuckDB is not installed.
    pub duckdb: Option<WorkerConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: None,
            max_open: 512,
            access: Access::default(),
            hidden: Arc::default(),
            cache_bytes: 256 << 20,
            max_queued: 1 << 20,
            worker: None,
            duckdb: None,
        }
    }
}

/// Runs SQL on databases in parallel, read-only and under limits.
///
/// Dropping the pool cancels queued work and lets the threads exit; `close` waits for them.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

pub(crate) struct Shared {
    pub(crate) queue: Queue,
    cache: Mutex<Cache>,
    pub(crate) stats: Arc<Stats>,
    failures: Arc<FailureState>,
    pub(crate) is_closed: Arc<AtomicBool>,
    /// Whether server databases are guaranteed not to change, like immutable files.
    pub(crate) servers_are_unchanging: bool,
    /// Whether columns are hidden, which only SQLite's authorizer can enforce.
    pub(crate) hides_columns: bool,
    n_threads: usize,
    observer: Option<Observer>,
    process: u32,
}

/// A callback with the database, the SQL text and the outcome of each run. It is called on the thread that ran the
/// query, before the outcome is delivered. Cached outcomes are not reported.
pub type Observer = Box<dyn Fn(&Path, &str, &Arc<Outcome>) + Send + Sync>;

/// A submitted batch. Dropping it does not cancel it, because its outcomes may be useful in the cache.
pub struct Job {
    pub(crate) state: Arc<JobState>,
    pub(crate) shared: Arc<Shared>,
}

impl Pool {
    /// Starts the threads.
    pub fn new(config: &Config) -> Result<Self, PoolError> {
        Self::observed(config, None)
    }

    /// Starts the threads, reporting each run to the observer.
    pub fn observed(config: &Config, observer: Option<Observer>) -> Result<Self, PoolError> {
        busy::check_fork()?;
        hooks::install()?;
        let n_threads = match config.threads {
            Some(n) => n.max(1),
            None => thread::available_parallelism().map_or(1, std::num::NonZero::get),
        };
        let shared = Arc::new(Shared {
            queue: Queue::new(config.max_queued),
            cache: Mutex::new(Cache::new(config.cache_bytes)),
            stats: Arc::default(),
            failures: Arc::default(),
            is_closed: Arc::default(),
            servers_are_unchanging: config.access.immutable,
            hides_columns: !config.hidden.is_empty(),
            n_threads,
            observer,
            process: std::process::id(),
        });
        // Threads share copies, but each worker process has its own.
        let n_shares = if config.worker.is_some() { n_threads as u64 } else { 1 };
        let access = Access { copies_bytes: config.access.copies_bytes / n_shares, ..config.access };
        let copies = Arc::new(InMemoryDbs::new(access, &shared.stats));
        let pool = Self { shared: Arc::clone(&shared), threads: Mutex::default() };
        for number in 0..n_threads {
            let runner = Runner::new(config, number, n_threads, &copies, &shared.stats, &shared.failures)?;
            let shared = Arc::clone(&shared);
            let builder = thread::Builder::new().name(format!("sqlexec-{number}")).stack_size(STACK_BYTES);
            let handle = builder
                .spawn(move || run_thread(&shared, runner))
                .map_err(|e| PoolError::CannotStart(e.to_string()))?;
            lock(&pool.threads).push(handle);
        }
        Ok(pool)
    }

    /// Returns the number of worker threads.
    pub fn n_threads(&self) -> usize {
        self.shared.n_threads
    }

    /// Queues (database, SQL) pairs and returns as soon as the queue has room for them.
    ///
    /// A batch that exceeds the queue's capacity is admitted when the queue is empty.
    pub fn submit(&self, pairs: &[(Arc<Path>, Arc<str>)], limits: &Arc<Limits>) -> Result<Job, PoolError> {
        let query = |(database, sql): &(Arc<Path>, Arc<str>)| Query {
            database: Arc::clone(database),
            sql: Arc::clone(sql),
            parameters: None,
        };
        self.submit_while(&pairs.iter().map(query).collect::<Vec<_>>(), OutputKind::Rows, limits, &mut || true)
    }

    /// Queues queries like `submit`. While there is no room, `keep_waiting` is called several times per second; if it
    /// returns false, the call fails with [`PoolError::Interrupted`].
    pub fn submit_while(
        &self,
        queries: &[Query],
        output: OutputKind,
        limits: &Arc<Limits>,
        keep_waiting: &mut dyn FnMut() -> bool,
    ) -> Result<Job, PoolError> {
        self.shared.check_process()?;
        let mut builder = JobBuilder::new(&self.shared, Plan::execution(queries.len(), output), limits, queries.len());
        let batches = Batches::new(queries.iter().map(|query| Arc::as_ptr(&query.database).addr()));
        for numbers in batches.iter() {
            builder.add_queries(numbers, queries, keep_waiting)?;
        }
        builder.finish()
    }

    /// Queues score items; waits for room like `submit`.
    pub fn submit_score(&self, items: &[ScoreItem], rules: &[Rule], limits: &Arc<Limits>) -> Result<Job, PoolError> {
        let mut builder = self.score_builder(items.len(), items.iter().map(n_pairs).sum(), rules, limits)?;
        let batches = Batches::new(items.iter().map(|item| item.databases.as_ptr().addr()));
        for numbers in batches.iter() {
            let batch = numbers.iter().map(|number| (*number, items[*number as usize].clone()));
            builder.add(batch, &mut || true)?;
        }
        builder.finish()
    }

    /// Starts scoring `n_items` items with `n_pairs` (database, SQL) pairs, including duplicates.
    pub fn score_builder(
        &self,
        n_items: usize,
        n_pairs: usize,
        rules: &[Rule],
        limits: &Arc<Limits>,
    ) -> Result<JobBuilder, PoolError> {
        self.shared.check_process()?;
        Ok(JobBuilder::new(&self.shared, Plan::scoring(n_items, rules), limits, n_pairs))
    }

    /// Reads the counters, and the current sizes of the caches and the queue.
    pub fn stats(&self) -> Result<StatsSnapshot, PoolError> {
        self.shared.check_process()?;
        let (cache_bytes, gold_bytes) = self.shared.cache().bytes();
        let mut reading = self.shared.stats.read();
        reading.extend([
            ("cache_bytes", cache_bytes as u64),
            ("gold_bytes", gold_bytes as u64),
            ("queued", self.shared.queue.len() as u64),
            ("threads", self.shared.n_threads as u64),
        ]);
        Ok(reading)
    }

    /// Cancels everything and refuses new work; `is_closed` returns whether the threads have ended. Called on one of
    /// these threads, by a callback, it fails with [`PoolError::ClosedByCallback`].
    pub fn begin_close(&self) -> Result<(), PoolError> {
        self.shared.check_process()?;
        let current = thread::current().id();
        if lock(&self.threads).iter().any(|ours| ours.thread().id() == current) {
            return Err(PoolError::ClosedByCallback);
        }
        self.shared.shut();
        Ok(())
    }

    /// Waits at most `timeout` for the threads to end after `begin_close`; returns whether they have.
    pub fn is_closed(&self, timeout: Duration) -> Result<bool, PoolError> {
        self.shared.check_process()?;
        let deadline = Instant::now() + timeout;
        loop {
            let mut threads = lock(&self.threads);
            threads.retain(|thread| !thread.is_finished());
            if threads.is_empty() {
                return Ok(true);
            }
            drop(threads); // a callback may lock the threads meanwhile
            if Instant::now() >= deadline {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.shared.check_process().is_ok() {
            self.shared.shut();
        }
    }
}

impl Shared {
    pub(crate) fn cache(&self) -> MutexGuard<'_, Cache> {
        lock(&self.cache)
    }

    /// Refuses a forked child: its threads are gone and a lock may be held forever, so nothing may be touched.
    pub(crate) fn check_process(&self) -> Result<(), PoolError> {
        if self.process == std::process::id() { Ok(()) } else { Err(PoolError::Forked) }
    }

    fn shut(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let left = self.queue.close();
        let waiters = self.cache().cancel_all();
        let cancelled = Arc::new(Outcome::cancelled());
        for waiter in waiters {
            waiter.job.0.deliver(waiter.slot, Ok(Arc::clone(&cancelled)));
        }
        for task in left {
            if let Task::Deliver(job, slot, _) = task {
                job.deliver(slot, Ok(Arc::clone(&cancelled)));
            }
        }
    }
}

impl Job {
    /// Returns whether every item is finished.
    pub fn is_done(&self) -> Result<bool, PoolError> {
        self.shared.check_process()?;
        let (done, all) = self.state.completions.progress();
        Ok(done == all)
    }

    /// Returns the number of finished distinct items and the number of distinct items.
    pub fn progress(&self) -> Result<(usize, usize), PoolError> {
        self.shared.check_process()?;
        Ok(self.state.completions.progress())
    }

    /// Waits at most `timeout` for the job; returns whether it is finished.
    pub fn wait(&self, timeout: Duration) -> Result<bool, PoolError> {
        self.shared.check_process()?;
        Ok(self.state.completions.wait_for_all(timeout))
    }

    /// Cancels unfinished items: they get the status `cancelled`, and runs without other waiters stop.
    pub fn cancel(&self) -> Result<(), PoolError> {
        self.shared.check_process()?;
        self.state.cancel_comparisons();
        self.shared.cache().abandon(&self.state, self.state.queries());
        let cancelled = Arc::new(Outcome::cancelled());
        for slot in 0..self.state.n_slots() {
            self.state.deliver(slot as u32, Ok(Arc::clone(&cancelled)));
        }
        Ok(())
    }

    /// Returns the outcomes of a finished execute job, in item order.
    pub fn outcomes(&self) -> Result<Vec<Arc<Outcome>>, PoolError> {
        self.shared.check_process()?;
        (0..self.state.n_items()).map(|item| self.state.outcome(item)).collect()
    }

    /// Returns the scores of a finished score job, in item order.
    pub fn scores(&self) -> Result<Vec<&Score>, PoolError> {
        self.shared.check_process()?;
        (0..self.state.n_items()).map(|item| self.state.score(item)).collect()
    }
}

/// Frees a large batch on an idle thread if possible, instead of the caller's.
impl Drop for Job {
    fn drop(&mut self) {
        let is_last = Arc::strong_count(&self.state) == 1;
        if is_last && self.state.n_slots() >= LARGE_JOB && self.shared.check_process().is_ok() {
            self.shared.queue.free(Arc::clone(&self.state));
        }
    }
}

/// The main loop of a worker thread.
fn run_thread(shared: &Arc<Shared>, mut runner: Runner) {
    let mut busy: Option<BusyGuard> = None;
    loop {
        let ahead = runner.next().map(|(query, is_sent)| (Task::Run(query), is_sent, 1));
        let rest = &mut || {
            runner.park();
            busy = None;
        };
        let taken = ahead.or_else(|| shared.queue.take(rest).map(|(task, n_left)| (task, false, n_left)));
        let Some((task, is_sent, n_left)) = taken else {
            drop(runner); // closes its connections while this thread still counts as busy
            return;
        };
        match task {
            Task::Deliver(job, slot, outcome) => job.deliver(slot, Ok(outcome)),
            Task::Free(job) => drop(job),
            Task::Run(query) if query.is_cancelled() && !is_sent => {}
            Task::Run(query) => {
                busy.get_or_insert_with(BusyGuard::new);
                let result = runner.run(&query, is_sent, n_left > 0, &mut SpareQueries { shared }).map(Arc::new);
                if let Ok(outcome) = &result {
                    shared.stats.count_run(outcome.status);
                    if let Some(observe) = &shared.observer {
                        let url = query.engine.is_server().then(|| server::shown(&query.path));
                        let name = url.as_ref().map_or(&*query.path, Path::new);
                        observe(name, &query.key.sql.text, outcome);
                    }
                }
                let waiters = shared.cache().complete(&query, result.as_ref().ok());
                for waiter in waiters {
                    waiter.job.0.deliver(waiter.slot, result.clone());
                }
                runner.prune(query.engine);
            }
        }
    }
}

/// Queries that a thread may take ahead of time, while enough are left for the others.
struct SpareQueries<'a> {
    shared: &'a Shared,
}

impl Source for SpareQueries<'_> {
    fn take(&mut self, db: u32, n_more: usize) -> Option<Arc<InFlightQuery>> {
        let query = self.shared.queue.take_run(db, n_more * self.shared.n_threads)?;
        if self.shared.failures.crashed_queries.refusal(&query).is_some() {
            self.shared.queue.return_queries(std::iter::once(query)); // not sent, so it returns to the queue
            return None;
        }
        Some(query)
    }

    fn return_queries(&mut self, queries: VecDeque<Arc<InFlightQuery>>) {
        self.shared.queue.return_queries(queries.into_iter());
    }
}
