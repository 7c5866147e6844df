//! Runs queries in this thread, on connections of its own: what a thread of the pool does, and what a worker process does.

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

/// The stack of what runs SQL: SQLite's parser and code generator recurse with the depth of an expression.
pub(crate) const STACK_BYTES: usize = 8 << 20;

/// The longest that a database's lock is kept from one run to the next: a writer may wait as long.
const LONGEST_HOLD: Duration = Duration::from_millis(5);

/// A result of more bytes may take long to compare, and a lock is not kept meanwhile.
const LARGE_BYTES: usize = 64 << 10;

/// How often a run begins anew because somebody wrote meanwhile. One more is enough: the writer's log is then read.
const MAX_TRIES: usize = 10;

/// How long a writer is given to make its log's index ready.
const INDEX_WAIT: Duration = Duration::from_millis(5);

/// A thread's connections, and what stops a run on them.
pub(crate) struct LocalRunner {
    connections: Connections,
    guard: Arc<RunGuard>,
    held: Option<HeldTransaction>,
}

/// A read transaction that is kept from run to run.
///
/// Locking a file, looking for the journals beside it and for changes in it is half of the time of a look-up by key. Runs
/// that were asked for when the file was in one state may see it in one transaction.
struct HeldTransaction {
    path: Box<Path>,
    /// The number of the file's state.
    state: u32,
    since: Instant,
}

impl LocalRunner {
    /// Starts without a connection; `cap` is the most that stay open.
    pub(crate) fn new(cap: usize, copies: &Arc<InMemoryDbs>, hidden: &Arc<[HiddenColumn]>, stats: &Arc<Stats>) -> Self {
        let guard = Arc::new(RunGuard::default());
        let (copies, hidden) = (Arc::clone(copies), Arc::clone(hidden));
        let connections = Connections::new(cap, copies, hidden, Arc::clone(&guard), Arc::clone(stats));
        Self { connections, guard, held: None }
    }

    /// Tells whether the database is open, in the state with this number.
    pub(crate) fn holds(&self, path: &Path, state: u32) -> bool {
        self.connections.holds(path, state)
    }

    /// Opens the database, if it is not open.
    pub(crate) fn open(&mut self, path: &Path, state: u32) {
        self.connections.open(path, state);
    }

    /// Runs one SQL text, in the transaction of the one before it where that saw the same state of the same file;
    /// `more_wait` tells that it is worth to keep one.
    pub(crate) fn run_in_burst(
        &mut self,
        path: &Path,
        state: u32,
        request: &ExecRequest<'_>,
        cancel: Option<&Arc<AtomicBool>>,
        more_wait: bool,
    ) -> Outcome {
        let now = Instant::now();
        let is_right =
            |held: &HeldTransaction| held.state == state && *held.path == *path && now - held.since < LONGEST_HOLD;
        if !self.held.as_ref().is_some_and(is_right) {
            self.release();
            if more_wait {
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

    /// Returns how long the transaction that is kept may still be, if there is one.
    pub(crate) fn hold_left(&self) -> Option<Duration> {
        self.held.as_ref().map(|held| LONGEST_HOLD.saturating_sub(held.since.elapsed()))
    }

    /// Ends the transaction that is kept, if there is one.
    pub(crate) fn release(&mut self) {
        if let Some(held) = self.held.take()
            && !self.connections.end_transactions(&held.path)
        {
            self.connections.forget(&held.path);
        }
    }

    fn run(&mut self, path: &Path, state: u32, request: &ExecRequest<'_>, cancel: Option<&Arc<AtomicBool>>) -> Outcome {
        let begun = Instant::now();
        for n_tries in 1.. {
            let sandbox = match self.connections.get(path, state) {
                Ok(sandbox) => sandbox,
                Err(outcome) => return *outcome,
            };
            let keeps_lock = self.held.is_some();
            let outcome = exec::run(sandbox, request, cancel.cloned(), begun, keeps_lock);
            let is_over = matches!(outcome.status, Status::Timeout | Status::Cancelled);
            let is_one_state = is_over || sandbox.has_read_one_state(outcome.status != Status::Ok);
            let has_ended = keeps_lock || sandbox.end_transactions().is_ok();
            if outcome.status == Status::DbError || !is_one_state || !has_ended {
                self.connections.forget(path);
            }
            if n_tries < MAX_TRIES && waits_for_index(&outcome) {
                thread::sleep(INDEX_WAIT);
                continue;
            }
            if is_one_state || (n_tries == MAX_TRIES && outcome.status != Status::Ok) {
                return outcome;
            }
            if n_tries == MAX_TRIES {
                break;
            }
        }
        Outcome::failed(Status::DbError, format!("{}: written to each time that it was read", path.display()))
    }

    /// Starts anew after a panic.
    pub(crate) fn recover(&mut self) {
        self.held = None;
        self.connections.clear();
        self.guard.disarm();
    }
}
