//! Counters since the executor started; cheap enough to be always enabled.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abandoned_sessions::AbandonedSessions;
use crate::outcome::Status;

/// Shared counters.
#[derive(Debug, Default)]
pub struct Stats {
    requests: AtomicU64,
    runs: AtomicU64,
    duplicates: AtomicU64,
    joined: AtomicU64,
    cache_hits: AtomicU64,
    gold_hits: AtomicU64,
    comparisons: AtomicU64,
    connections_opened: AtomicU64,
    connections_open: AtomicU64,
    connections_lost: AtomicU64,
    /// Abandoned server sessions that have not ended.
    pub(crate) abandoned_sessions: AbandonedSessions,
    databases_copied: AtomicU64,
    copied_bytes: AtomicU64,
    workers_started: AtomicU64,
    workers_killed: AtomicU64,
    workers_late: AtomicU64,
    workers_crashed: AtomicU64,
    by_status: [AtomicU64; Status::ALL.len()],
}

/// A reading of the counters, by name.
pub type StatsSnapshot = Vec<(&'static str, u64)>;

impl Stats {
    pub(crate) fn count_requests(&self, n: u64) {
        self.requests.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn count_run(&self, status: Status) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.by_status[status as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_deduplicated(&self, n: u64) {
        self.duplicates.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn count_join(&self) {
        self.joined.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_hit(&self, is_gold: bool) {
        let counter = if is_gold { &self.gold_hits } else { &self.cache_hits };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_comparison(&self) {
        self.comparisons.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_opened(&self, n: u64) {
        self.connections_opened.fetch_add(n, Ordering::Relaxed);
        self.connections_open.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn count_closed(&self, n: u64) {
        self.connections_open.fetch_sub(n, Ordering::Relaxed);
    }

    /// Counts a server connection that was lost during a run; the run restarts.
    pub(crate) fn count_lost(&self) {
        self.connections_lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many connections were opened and how many are open.
    pub(crate) fn connections(&self) -> (u64, u64) {
        (self.connections_opened.load(Ordering::Relaxed), self.connections_open.load(Ordering::Relaxed))
    }

    /// Counts a database that was copied to memory.
    pub(crate) fn count_copy(&self) {
        self.databases_copied.fetch_add(1, Ordering::Relaxed);
    }

    /// Reserves bytes for a copy if they fit the budget.
    pub(crate) fn reserve_copy_bytes(&self, bytes: u64, budget: u64) -> bool {
        let add = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= budget);
        self.copied_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Releases the bytes of a copy.
    pub(crate) fn release_copy_bytes(&self, bytes: u64) {
        self.copied_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns how many databases were copied, and the bytes of the current copies.
    pub(crate) fn copies(&self) -> (u64, u64) {
        (self.databases_copied.load(Ordering::Relaxed), self.copied_bytes.load(Ordering::Relaxed))
    }

    /// Adds the difference between a worker process's previous and current copy counts.
    pub(crate) fn add_worker_copies(&self, before: (u64, u64), now: (u64, u64)) {
        self.databases_copied.fetch_add(now.0.saturating_sub(before.0), Ordering::Relaxed);
        self.copied_bytes.fetch_add(now.1, Ordering::Relaxed);
        self.copied_bytes.fetch_sub(before.1, Ordering::Relaxed);
    }

    pub(crate) fn count_worker_start(&self) {
        self.workers_started.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a worker process that we killed because its run was late or cancelled.
    pub(crate) fn count_worker_kill(&self) {
        self.workers_killed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a worker process that we killed because it was late to return queued queries; no run is lost.
    pub(crate) fn count_late_worker(&self) {
        self.workers_late.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a worker process that crashed.
    pub(crate) fn count_worker_crash(&self) {
        self.workers_crashed.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads every counter.
    pub(crate) fn read(&self) -> StatsSnapshot {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut reading = vec![
            ("requests", load(&self.requests)),
            ("runs", load(&self.runs)),
            ("duplicates", load(&self.duplicates)),
            ("joined", load(&self.joined)),
            ("cache_hits", load(&self.cache_hits)),
            ("gold_hits", load(&self.gold_hits)),
            ("comparisons", load(&self.comparisons)),
            ("connections_opened", load(&self.connections_opened)),
            ("connections_open", load(&self.connections_open)),
            ("connections_lost", load(&self.connections_lost)),
            ("sessions_given_up", self.abandoned_sessions.count()),
            ("databases_copied", load(&self.databases_copied)),
            ("copied_bytes", load(&self.copied_bytes)),
            ("workers_started", load(&self.workers_started)),
            ("workers_killed", load(&self.workers_killed)),
            ("workers_late", load(&self.workers_late)),
            ("workers_crashed", load(&self.workers_crashed)),
        ];
        reading.extend(Status::ALL.iter().map(|status| (status.name(), load(&self.by_status[*status as usize]))));
        reading
    }
}
