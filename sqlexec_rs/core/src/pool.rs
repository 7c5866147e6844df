//! The executor: a pool of threads, each with its own connections, over one queue and one cache.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::cache::{Cache, Flight, Found, Key, Waiter};
use crate::compare::Rule;
use crate::connections::Connections;
use crate::dbfile::FileIdentity;
use crate::deadline::Control;
use crate::error::Fault;
use crate::job::JobState;
use crate::outcome::{Outcome, Status};
use crate::plan::{Plan, PlannedRun, plan_execute, plan_score};
use crate::queue::{Queue, Task};
use crate::request::Limits;
use crate::score::{Score, ScoreItem};
use crate::stats::{Reading, Stats};
use crate::{exec, hooks};

/// A worker's stack: SQLite's parser and code generator recurse with the depth of an expression.
const STACK_BYTES: usize = 8 << 20;

/// How an executor is built.
#[derive(Clone, Debug)]
pub struct Config {
    /// Worker threads; `None` is one a core.
    pub threads: Option<usize>,
    /// Connections that stay open, over all threads.
    pub max_open: usize,
    /// Bytes of candidate results to keep (golds are kept beside them).
    pub cache_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { threads: None, max_open: 512, cache_bytes: 256 << 20 }
    }
}

/// Runs SQL on databases in parallel, read-only and under limits.
///
/// Dropping it cancels what is queued and lets the threads end by themselves; `close` waits for them.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    n_threads: usize,
}

struct Shared {
    queue: Queue,
    cache: Mutex<Cache>,
    stats: Arc<Stats>,
    process: u32,
}

/// A batch that was submitted. Dropping it does not cancel it: its outcomes may be wanted in the cache.
pub struct Job {
    state: Arc<JobState>,
    shared: Arc<Shared>,
}

impl Pool {
    /// Starts the threads.
    pub fn new(config: &Config) -> Result<Self, Fault> {
        hooks::install()?;
        let n_threads = match config.threads {
            Some(n) => n.max(1),
            None => thread::available_parallelism().map_or(1, std::num::NonZero::get),
        };
        let shared = Arc::new(Shared {
            queue: Queue::default(),
            cache: Mutex::new(Cache::new(config.cache_bytes)),
            stats: Arc::default(),
            process: std::process::id(),
        });
        let cap = (config.max_open / n_threads).max(1);
        let pool = Self { shared: Arc::clone(&shared), threads: Mutex::default(), n_threads };
        for number in 0..n_threads {
            let shared = Arc::clone(&shared);
            let builder = thread::Builder::new().name(format!("sqlexec-{number}")).stack_size(STACK_BYTES);
            let handle = builder.spawn(move || work(&shared, cap)).map_err(|e| Fault::CannotStart(e.to_string()))?;
            lock(&pool.threads).push(handle);
        }
        Ok(pool)
    }

    /// Returns the number of worker threads.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Queues (database, SQL) pairs and returns at once.
    pub fn submit(&self, pairs: &[(Arc<Path>, Arc<str>)], limits: &Arc<Limits>) -> Result<Job, Fault> {
        self.shared.check_process()?;
        self.launch(plan_execute(pairs), limits, false)
    }

    /// Queues score items and returns at once.
    pub fn submit_score(&self, items: &[ScoreItem], rules: &[Rule], limits: &Arc<Limits>) -> Result<Job, Fault> {
        self.shared.check_process()?;
        self.launch(plan_score(items, rules), limits, true)
    }

    /// Reads the counters, with what the caches and the queue hold now.
    pub fn stats(&self) -> Result<Reading, Fault> {
        self.shared.check_process()?;
        let (cache_bytes, gold_bytes) = self.shared.cache().bytes();
        let mut reading = self.shared.stats.read();
        reading.extend([
            ("cache_bytes", cache_bytes as u64),
            ("gold_bytes", gold_bytes as u64),
            ("queued", self.shared.queue.len() as u64),
            ("threads", self.n_threads as u64),
        ]);
        Ok(reading)
    }

    /// Cancels everything and refuses new work; `is_closed` tells when the threads have ended.
    pub fn begin_close(&self) -> Result<(), Fault> {
        self.shared.check_process()?;
        self.shared.shut();
        Ok(())
    }

    /// Waits for the threads to end after `begin_close`, at most `timeout`; true when they have.
    pub fn is_closed(&self, timeout: Duration) -> Result<bool, Fault> {
        self.shared.check_process()?;
        let deadline = Instant::now() + timeout;
        let mut threads = lock(&self.threads);
        loop {
            threads.retain(|thread| !thread.is_finished());
            if threads.is_empty() {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn launch(&self, plan: Plan, limits: &Arc<Limits>, is_score: bool) -> Result<Job, Fault> {
        let shared = &self.shared;
        let Plan { databases, runs, work, n_pairs } = plan;
        shared.stats.requested(n_pairs as u64);
        shared.stats.deduplicated((n_pairs - runs.len()) as u64);
        let identities: Vec<_> = databases.iter().map(|path| FileIdentity::of(path)).collect();
        let state = Arc::new(JobState::new(runs.len(), work, Arc::clone(&shared.stats)));
        let requested = shared.request(&state, &databases, &identities, runs, limits);
        state.set_keys(requested.keys);
        let mut tasks = requested.tasks;
        for (slot, outcome) in requested.here {
            if is_score {
                tasks.push_back(Task::Deliver(Arc::clone(&state), slot, outcome));
            } else {
                state.deliver(slot, Ok(outcome));
            }
        }
        let job = Job { state, shared: Arc::clone(shared) };
        if shared.queue.add(tasks) {
            Ok(job)
        } else {
            job.cancel()?;
            Err(Fault::Closed)
        }
    }
}

/// What the runs of a job became.
#[derive(Default)]
struct Requested {
    /// Outcomes that are here already.
    here: Vec<(u32, Arc<Outcome>)>,
    /// New flights, to be queued.
    tasks: VecDeque<Task>,
    /// Flights, new or joined, that the job waits for.
    keys: Vec<Key>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.shared.check_process().is_ok() {
            self.shared.shut();
        }
    }
}

impl Shared {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        lock(&self.cache)
    }

    /// After a fork the threads are gone and a lock may be held for ever, so nothing may be touched.
    fn check_process(&self) -> Result<(), Fault> {
        if self.process == std::process::id() { Ok(()) } else { Err(Fault::Forked) }
    }

    /// Finds, joins or starts every run of a job.
    fn request(
        &self,
        state: &Arc<JobState>,
        databases: &[Arc<Path>],
        identities: &[Result<FileIdentity, Box<Outcome>>],
        runs: Vec<PlannedRun>,
        limits: &Arc<Limits>,
    ) -> Requested {
        let mut requested = Requested::default();
        let mut cache = self.cache();
        let limits_number = cache.number_limits(limits);
        let numbered = identities.iter().map(|id| id.as_ref().map(|id| (cache.number_database(id), id.inode())));
        let numbered: Vec<_> = numbered.collect();
        for (slot, run) in (0..).zip(runs) {
            let (db, inode) = match &numbered[run.database as usize] {
                Ok(numbers) => *numbers,
                Err(outcome) => {
                    requested.here.push((slot, Arc::new(outcome.as_ref().clone())));
                    continue;
                }
            };
            let key = Key { db, limits: limits_number, sql: run.sql };
            let waiter = Waiter { job: Arc::clone(state), slot };
            let make_flight = |key| Flight {
                key,
                path: Arc::clone(&databases[run.database as usize]),
                inode,
                limits: Arc::clone(limits),
                cancel: Arc::default(),
            };
            match cache.request(key.clone(), run.is_gold, waiter, make_flight) {
                Found::Kept(outcome) => {
                    self.stats.hit(run.is_gold);
                    requested.here.push((slot, outcome));
                    continue;
                }
                Found::Joined => self.stats.joined(),
                Found::New(flight) => requested.tasks.push_back(Task::Run(flight)),
            }
            requested.keys.push(key);
        }
        requested
    }

    fn shut(&self) {
        let left = self.queue.close();
        let waiters = self.cache().cancel_all();
        let cancelled = Arc::new(Outcome::cancelled());
        for waiter in waiters {
            waiter.job.deliver(waiter.slot, Ok(Arc::clone(&cancelled)));
        }
        for task in left {
            if let Task::Deliver(job, slot, _) = task {
                job.deliver(slot, Ok(Arc::clone(&cancelled)));
            }
        }
    }
}

impl Job {
    /// Tells whether every item is done.
    pub fn is_done(&self) -> Result<bool, Fault> {
        self.shared.check_process()?;
        Ok(self.state.is_done())
    }

    /// Returns how many distinct items are done, and how many there are.
    pub fn progress(&self) -> Result<(usize, usize), Fault> {
        self.shared.check_process()?;
        Ok(self.state.progress())
    }

    /// Waits until the job is done, at most `timeout`; true when it is.
    pub fn wait(&self, timeout: Duration) -> Result<bool, Fault> {
        self.shared.check_process()?;
        Ok(self.state.wait(timeout))
    }

    /// Cancels what has not ended: those items get the status `cancelled`, and runs that nobody else waits for stop.
    pub fn cancel(&self) -> Result<(), Fault> {
        self.shared.check_process()?;
        self.shared.cache().abandon(&self.state, self.state.keys());
        let cancelled = Arc::new(Outcome::cancelled());
        for slot in 0..self.state.n_slots() {
            self.state.deliver(slot as u32, Ok(Arc::clone(&cancelled)));
        }
        Ok(())
    }

    /// Returns the outcomes of a finished execute job, in the order of its items.
    pub fn outcomes(&self) -> Result<Vec<Arc<Outcome>>, Fault> {
        self.shared.check_process()?;
        self.state.outcomes()
    }

    /// Returns the scores of a finished score job, in the order of its items.
    pub fn scores(&self) -> Result<Vec<&Score>, Fault> {
        self.shared.check_process()?;
        self.state.scores()
    }
}

/// The life of a worker thread.
fn work(shared: &Arc<Shared>, cap: usize) {
    let control = Arc::new(Control::default());
    let mut connections = Connections::new(cap, Arc::clone(&control), Arc::clone(&shared.stats));
    while let Some(task) = shared.queue.take() {
        match task {
            Task::Deliver(job, slot, outcome) => job.deliver(slot, Ok(outcome)),
            Task::Run(flight) if flight.cancel.load(Ordering::Relaxed) => {}
            Task::Run(flight) => {
                let result = catch_unwind(AssertUnwindSafe(|| fly(&mut connections, &control, &flight)));
                let result = match result {
                    Ok(outcome) => Ok(Arc::new(outcome)),
                    Err(panic) => {
                        connections.clear();
                        control.disarm();
                        Err(Fault::of_panic(panic.as_ref()))
                    }
                };
                if let Ok(outcome) = &result {
                    shared.stats.ran(outcome.status);
                }
                let waiters = shared.cache().land(&flight, result.as_ref().ok());
                for waiter in waiters {
                    waiter.job.deliver(waiter.slot, result.clone());
                }
            }
        }
    }
}

fn fly(connections: &mut Connections, control: &Control, flight: &Flight) -> Outcome {
    let sandbox = match connections.get(&flight.path, flight.inode) {
        Ok(sandbox) => sandbox,
        Err(outcome) => return *outcome,
    };
    let outcome = exec::run(sandbox, control, &flight.key.sql, &flight.limits, Some(Arc::clone(&flight.cancel)));
    if outcome.status == Status::DbError {
        connections.forget(&flight.path);
    }
    outcome
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
