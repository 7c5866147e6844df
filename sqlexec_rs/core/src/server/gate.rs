//! Limits which runs share a server at a time, and how long a run waits for an absent server.
//!
//! A text that ends the server ends the sessions of all threads. So a run whose session was lost runs again with no other run
//! of the pool on that server: if the session is lost again, the text is the cause, and no other text is blamed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::locks::lock;

/// How long a server that has answered before may be away until runs fail.
const AWAY_WAIT: Duration = Duration::from_secs(20);

/// How often a waiting thread looks whether its caller has cancelled.
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
    /// One run is alone on the server.
    is_taken: bool,
    /// Runs that wait to be alone; they come before others.
    n_suspects: usize,
    has_answered: bool,
    away_since: Option<Instant>,
    /// When a thread last found the server away.
    last_absence: Option<Instant>,
}

/// A permission to run, until it is dropped.
pub(super) struct Pass<'a> {
    gate: &'a Gate,
    is_alone: bool,
}

impl Gate {
    /// Waits for the permission to run, with no other run on the server if `is_alone`; `None` when the caller cancels.
    pub(super) fn enter(&self, is_alone: bool, cancel: &AtomicBool) -> Option<Pass<'_>> {
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
        Some(Pass { gate: self, is_alone })
    }

    /// Notes that the server has accepted a session.
    pub(super) fn answered(&self) {
        let mut state = lock(&self.state);
        (state.has_answered, state.away_since) = (true, None);
    }

    /// Waits a moment for a server that is away; false when it was never there or has been away for too long.
    pub(super) fn wait_for_return(&self, cancel: &AtomicBool) -> bool {
        let mut state = lock(&self.state);
        let now = Instant::now();
        // Runs that were cancelled during an absence say nothing about a later one.
        if state.last_absence.is_none_or(|time| now - time > AWAY_WAIT) {
            state.away_since = None;
        }
        state.last_absence = Some(now);
        if !state.has_answered || now - *state.away_since.get_or_insert(now) > AWAY_WAIT {
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

impl Drop for Pass<'_> {
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
    fn a_suspect_runs_alone_and_before_others() {
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
    fn only_a_server_that_has_answered_is_waited_for() {
        let (gate, never) = (Gate::default(), AtomicBool::new(false));
        assert!(!gate.wait_for_return(&never));
        gate.answered();
        assert!(gate.wait_for_return(&never));
        lock(&gate.state).away_since = Instant::now().checked_sub(AWAY_WAIT * 2);
        assert!(!gate.wait_for_return(&never));
        gate.answered();
        assert!(gate.wait_for_return(&never));
    }

    #[test]
    fn an_absence_that_nobody_waited_for_does_not_count() {
        let (gate, cancelled) = (Gate::default(), AtomicBool::new(true));
        gate.answered();
        assert!(gate.wait_for_return(&cancelled));
        let long_ago = Instant::now().checked_sub(AWAY_WAIT * 2);
        (lock(&gate.state).away_since, lock(&gate.state).last_absence) = (long_ago, long_ago);
        assert!(gate.wait_for_return(&cancelled), "a new absence");
        lock(&gate.state).away_since = long_ago;
        assert!(!gate.wait_for_return(&cancelled), "the same absence");
    }
}
