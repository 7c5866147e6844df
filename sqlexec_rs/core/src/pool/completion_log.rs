//! The order in which a job's units finish, and those waiting for them: for the next unit, for all, or for a
//! callback.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::locks::lock;

/// A function that is called once, when the last unit has finished.
pub(crate) type Callback = Box<dyn FnOnce() + Send>;

/// The unit that finished after those that a reader has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextUnit {
    /// The next finished unit.
    Unit(u32),
    /// No unit has finished yet.
    Nothing,
    /// Every unit has been seen.
    End,
}

/// The completions of a job.
pub(crate) struct CompletionLog {
    state: Mutex<LogState>,
    one_more: Condvar,
    all_here: Condvar,
}

struct LogState {
    order: Vec<u32>,
    /// `None` until it is known.
    n_units: Option<usize>,
    /// Number of readers that wait for the next unit; usually zero, which saves waking anyone.
    n_listening: usize,
    callbacks: Vec<Callback>,
}

impl CompletionLog {
    /// Creates a log without completions.
    pub(crate) fn new() -> Self {
        let state = LogState { order: Vec::new(), n_units: None, n_listening: 0, callbacks: Vec::new() };
        Self { state: Mutex::new(state), one_more: Condvar::new(), all_here: Condvar::new() }
    }

    /// Sets the number of units, before the first one finishes and before any reader asks.
    pub(crate) fn expect(&self, n_units: usize) {
        let mut state = self.lock();
        state.n_units = Some(n_units);
        state.order.reserve_exact(n_units);
    }

    /// Records that a unit has finished, once per unit. The last one wakes all waiters and runs the callbacks.
    pub(crate) fn complete(&self, unit: u32) {
        let mut state = self.lock();
        state.order.push(unit);
        let is_last = state.is_complete();
        let has_listener = state.n_listening > 0;
        let callbacks = if is_last { std::mem::take(&mut state.callbacks) } else { Vec::new() };
        drop(state);
        if has_listener {
            self.one_more.notify_all();
        }
        if is_last {
            self.all_here.notify_all();
        }
        callbacks.into_iter().for_each(call); // without the lock: a callback may query the job
    }

    /// Returns the number of finished units and the number of units.
    pub(crate) fn progress(&self) -> (usize, usize) {
        let state = self.lock();
        (state.order.len(), state.n_units.unwrap_or(0))
    }

    /// Calls `callback` when the last unit has finished: on the thread that finishes it, or immediately if it already
    /// has.
    pub(crate) fn when_all(&self, callback: Callback) {
        let mut state = self.lock();
        if state.is_complete() {
            drop(state);
            call(callback);
        } else {
            state.callbacks.push(callback);
        }
    }

    /// Waits at most `timeout` for all units; returns whether they have finished.
    pub(crate) fn wait_for_all(&self, timeout: Duration) -> bool {
        let waited = self.all_here.wait_timeout_while(self.lock(), timeout, |state| !state.is_complete());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_complete()
    }

    /// Waits at most `timeout` for the unit after the first `n_seen`.
    pub(crate) fn wait_for_next(&self, n_seen: usize, timeout: Duration) -> NextUnit {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            if let Some(unit) = state.order.get(n_seen) {
                return NextUnit::Unit(*unit);
            }
            if state.n_units.is_some_and(|n_units| n_seen >= n_units) {
                return NextUnit::End;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return NextUnit::Nothing;
            }
            state.n_listening += 1;
            state = self.one_more.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.n_listening -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, LogState> {
        lock(&self.state)
    }
}

impl LogState {
    fn is_complete(&self) -> bool {
        self.n_units.is_some_and(|n_units| self.order.len() >= n_units)
    }
}

/// Runs a callback. Its panic must not end the worker thread; the panic message has been printed.
fn call(callback: Callback) {
    let _ = catch_unwind(AssertUnwindSafe(callback));
}

impl fmt::Debug for CompletionLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (n_done, all) = self.progress();
        write!(formatter, "CompletionLog({n_done} of {all})")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn readers_see_the_completion_order_and_the_end() {
        let completions = CompletionLog::new();
        completions.expect(3);
        assert_eq!(completions.wait_for_next(0, Duration::ZERO), NextUnit::Nothing);
        thread::scope(|scope| {
            let reader = scope.spawn(|| (0..4).map(|seen| completions.wait_for_next(seen, LONG)).collect::<Vec<_>>());
            assert!(!completions.wait_for_all(Duration::ZERO));
            for unit in [2, 0, 1] {
                completions.complete(unit);
            }
            assert_eq!(
                reader.join().unwrap(),
                [NextUnit::Unit(2), NextUnit::Unit(0), NextUnit::Unit(1), NextUnit::End]
            );
        });
        assert!(completions.wait_for_all(Duration::ZERO));
        assert_eq!(completions.progress(), (3, 3));
    }

    #[test]
    fn callbacks_run_once_on_the_last_unit_or_immediately() {
        let completions = CompletionLog::new();
        completions.expect(2);
        let calls = Arc::new(AtomicUsize::new(0));
        let count = |n: usize| {
            let calls = Arc::clone(&calls);
            move || {
                calls.fetch_add(n, Ordering::Relaxed);
            }
        };
        completions.when_all(Box::new(count(1)));
        completions.when_all(Box::new(|| panic!("a callback's own")));
        completions.when_all(Box::new(count(10)));
        completions.complete(1);
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        completions.complete(0);
        assert_eq!(calls.load(Ordering::Relaxed), 11);
        completions.when_all(Box::new(count(100)));
        assert_eq!(calls.load(Ordering::Relaxed), 111);
    }
}
