//! Runs queries on the current thread with its own connections. Used by pool threads and by worker processes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use crate::outcome::{Outcome, Status};
use crate::request::ExecRequest;
use crate::sqlite::classify::waits_for_index;
use crate::sqlite::connections::Connections;
use crate::sqlite::deadline::RunGuard;
use crate::sqlite::exec;
use crate::sqlite::hidden::HiddenColumn;
use crate::sqlite::in_memory_dbs::InMemoryDbs;
use crate::stats::Stats;

/// Stack size of threads that run SQL: SQLite's parser and code generator recurse with the depth of an expression.
pub(crate) const STACK_BYTES: usize = 8 << 20;

/// Maximum time that a database lock is kept between runs; a writer may wait this long.
const LONGEST_HOLD: Duration = Duration::from_millis(5);

/// Bytes of result above which no lock is kept, because comparing the result may take long.
const LARGE_BYTES: usize = 64 << 10;

/// Maximum number of restarts of a run because of concurrent writes. One is usually enough: then the writer's log is
/// read.
const MAX_ATTEMPTS: usize = 10;

/// Time that a writer gets to initialize its log's index.
const INDEX_WAIT: Duration = Duration::from_millis(5);

/// The connections of a thread, and the guard that stops runs on them.
pub(crate) struct LocalRunner {
    connections: Connections,
    guard: Arc<RunGuard>,
    held: Option<HeldTransaction>,
}

/// A read transaction that is kept between runs.
///
/// Locking a file, looking for journals and checking for changes takes half the time of a lookup by key. Runs that
/// were requested for the same state of the file may share a transaction.
struct HeldTransaction {
    path: Box<Path>,
    /// The number of the file's state.
    state: u32,
    since: Instant,
}

impl LocalRunner {
    /// Creates a runner without connections; `cap` limits the open ones.
    pub(crate) fn new(cap: usize, copies: &Arc<InMemoryDbs>, hidden: &Arc<[HiddenColumn]>, stats: &Arc<Stats>) -> Self {
        let guard = Arc::new(RunGuard::default());
        let (copies, hidden) = (Arc::clone(copies), Arc::clone(hidden));
        let connections = Connections::new(cap, copies, hidden, Arc::clone(&guard), Arc::clone(stats));
        Self { connections, guard, held: None }
    }

    /// Returns whether the database is open in the state with this number.
    pub(crate) fn holds(&self, path: &Path, state: u32) -> bool {
        self.connections.holds(path, state)
    }

    /// Opens the database if it is not open.
    pub(crate) fn open(&mut self, path: &Path, state: u32) {
        self.connections.open(path, state);
    }

    /// Runs one SQL text, reusing the transaction of the previous run if that saw the same state of the same file.
    /// `has_successors` means that keeping the transaction is worthwhile.
    pub(crate) fn run_in_burst(
        &mut self,
        path: &Path,
        state: u32,
        request: &ExecRequest<'_>,
        cancel: Option<&Arc<AtomicBool>>,
        has_successors: bool,
    ) -> Outcome {
        let now = Instant::now();
        let is_right =
            |held: &HeldTransaction| held.state == state && *held.path == *path && now - held.since < LONGEST_HOLD;
        if !self.held.as_ref().is_some_and(is_right) {
            self.release();
            if has_successors {
                self.held = Some(HeldTransaction { path: path.into(), state, since: now });
            }
        }
        let outcome = self.run(path, state, request, cancel);
        let is_large = outcome.table.as_ref().is_some_and(|table| table.bytes() > LARGE_BYTES);
        if is_large || outcome.status != Status::Ok || outcome.elapsed >= LONGEST_HOLD {
            self.release();
        }
        outcome
    }

    /// Returns how long the kept transaction may stay open, if there is one.
    pub(crate) fn hold_left(&self) -> Option<Duration> {
        self.held.as_ref().map(|held| LONGEST_HOLD.saturating_sub(held.since.elapsed()))
    }

    /// Ends the kept transaction, if there is one.
    pub(crate) fn release(&mut self) {
        if let Some(held) = self.held.take()
            && !self.connections.end_transactions(&held.path)
        {
            self.connections.forget(&held.path);
        }
    }

    fn run(&mut self, path: &Path, state: u32, request: &ExecRequest<'_>, cancel: Option<&Arc<AtomicBool>>) -> Outcome {
        let start_time = Instant::now();
        for n_tries in 1.. {
            let sandbox = match self.connections.get(path, state) {
                Ok(sandbox) => sandbox,
                Err(outcome) => return *outcome,
            };
            let keeps_lock = self.held.is_some();
            let outcome = exec::run(sandbox, request, cancel.cloned(), start_time, keeps_lock);
            let is_over = matches!(outcome.status, Status::Timeout | Status::Cancelled);
            let is_one_state = is_over || sandbox.has_read_one_state(outcome.status != Status::Ok);
            let has_ended = keeps_lock || sandbox.end_transactions().is_ok();
            if outcome.status == Status::DbError || !is_one_state || !has_ended {
                self.connections.forget(path);
            }
            if n_tries < MAX_ATTEMPTS && waits_for_index(&outcome) {
                thread::sleep(INDEX_WAIT);
                continue;
            }
            if is_one_state || (n_tries == MAX_ATTEMPTS && outcome.status != Status::Ok) {
                return outcome;
            }
            if n_tries == MAX_ATTEMPTS {
                break;
            }
        }
        Outcome::failed(Status::DbError, format!("{}: changed during each attempt to read it", path.display()))
    }

    /// Resets everything after a panic.
    pub(crate) fn recover(&mut self) {
        self.held = None;
        self.connections.clear();
        self.guard.disarm();
    }
}
