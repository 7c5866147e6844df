//! Limits which runs share a server, and how long a run waits for an unavailable server.
//!
//! A query that crashes the server ends the sessions of all threads. So a run whose session was lost is repeated with
//! no other run of the pool on that server. If the session is lost again, that query is the cause, and no other query
//! is blamed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::locks::lock;

/// How long a server that has answered before may be unavailable before runs fail.
const MAX_OUTAGE: Duration = Duration::from_secs(20);

/// Interval at which a waiting thread checks for cancellation.
const PERIOD: Duration = Duration::from_millis(10);

/// The gates of a pool, by server.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<HashMap<String, Arc<Gate>>>);

impl Gates {
    /// Returns the gate of a server.
    pub(super) fn of(&self, server: String) -> Arc<Gate> {
        Arc::clone(lock(&self.0).entry(server).or_default())
    }
}

/// The runs of a pool on one server.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    n_running: usize,
    /// Whether one run has exclusive use of the server.
    is_taken: bool,
    /// Runs that wait for exclusive use; they take precedence.
    n_suspects: usize,
    has_answered: bool,
    away_since: Option<Instant>,
    /// Time at which a thread last found the server unavailable.
    last_outage: Option<Instant>,
}

/// A permission to run; released when dropped.
pub(super) struct ServerPermit<'a> {
    gate: &'a Gate,
    is_alone: bool,
}

impl Gate {
    /// Waits for the permission to run, exclusively if `is_alone`. Returns `None` if the caller cancels.
    pub(super) fn enter(&self, is_alone: bool, cancel: &AtomicBool) -> Option<ServerPermit<'_>> {
        let mut state = lock(&self.state);
        state.n_suspects += usize::from(is_alone);
        while state.is_taken || if is_alone { state.n_running > 0 } else { state.n_suspects > 0 } {
            if cancel.load(Ordering::Relaxed) {
                state.n_suspects -= usize::from(is_alone);
                self.changed.notify_all();
                return None;
            }
            state = self.changed.wait_timeout(state, PERIOD).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.n_suspects -= usize::from(is_alone);
        state.is_taken = is_alone;
        state.n_running += 1;
        Some(ServerPermit { gate: self, is_alone })
    }

    /// Records that the server has accepted a session.
    pub(super) fn record_session(&self) {
        let mut state = lock(&self.state);
        (state.has_answered, state.away_since) = (true, None);
    }

    /// Waits briefly for an unavailable server. Returns false if it never answered or has been unavailable for too
    /// long.
    pub(super) fn wait_for_return(&self, cancel: &AtomicBool) -> bool {
        let mut state = lock(&self.state);
        let now = Instant::now();
        // Runs that were cancelled during an outage say nothing about a later one.
        if state.last_outage.is_none_or(|time| now - time > MAX_OUTAGE) {
            state.away_since = None;
        }
        state.last_outage = Some(now);
        if !state.has_answered || now - *state.away_since.get_or_insert(now) > MAX_OUTAGE {
            return false;
        }
        drop(state);
        for _ in 0..5 {
            if !cancel.load(Ordering::Relaxed) {
                std::thread::sleep(PERIOD);
            }
        }
        true
    }
}

impl Drop for ServerPermit<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.gate.state);
        state.n_running -= 1;
        if self.is_alone {
            state.is_taken = false;
        }
        if self.is_alone || state.n_suspects > 0 {
            self.gate.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspect_runs_exclusively_and_first() {
        let (gate, never, cancelled) = (Gate::default(), AtomicBool::new(false), AtomicBool::new(true));
        let first = gate.enter(false, &never).unwrap();
        let second = gate.enter(false, &never).unwrap();
        assert!(gate.enter(true, &cancelled).is_none(), "others run");
        drop(first);
        drop(second);
        let alone = gate.enter(true, &never).unwrap();
        assert!(gate.enter(false, &cancelled).is_none() && gate.enter(true, &cancelled).is_none(), "a suspect runs");
        drop(alone);
        std::thread::scope(|scope| {
            let running = gate.enter(false, &never).unwrap();
            let suspect = scope.spawn(|| drop(gate.enter(true, &never)));
            while lock(&gate.state).n_suspects == 0 {
                std::thread::yield_now();
            }
            assert!(gate.enter(false, &cancelled).is_none(), "a suspect waits");
            drop(running);
            suspect.join().unwrap();
        });
        assert!(gate.enter(false, &never).is_some());
    }

    #[test]
    fn waits_only_for_servers_that_have_answered() {
        let (gate, never) = (Gate::default(), AtomicBool::new(false));
        assert!(!gate.wait_for_return(&never));
        gate.record_session();
        assert!(gate.wait_for_return(&never));
        lock(&gate.state).away_since = Instant::now().checked_sub(MAX_OUTAGE * 2);
        assert!(!gate.wait_for_return(&never));
        gate.record_session();
        assert!(gate.wait_for_return(&never));
    }

    #[test]
    fn outages_without_waiters_do_not_count() {
        let (gate, cancelled) = (Gate::default(), AtomicBool::new(true));
        gate.record_session();
        assert!(gate.wait_for_return(&cancelled));
        let long_ago = Instant::now().checked_sub(MAX_OUTAGE * 2);
        (lock(&gate.state).away_since, lock(&gate.state).last_outage) = (long_ago, long_ago);
        assert!(gate.wait_for_return(&cancelled), "a new outage");
        lock(&gate.state).away_since = long_ago;
        assert!(!gate.wait_for_return(&cancelled), "the same outage");
    }
}
