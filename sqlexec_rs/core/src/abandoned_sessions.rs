//! Sessions that the pool abandoned and that may still run on their server.
//!
//! Some server functions check neither the clock nor cancellation while they work. Their runs return in time, but the
//! server continues. Each such session is tracked here until it has ended on the server. A server with [`MAX_ABANDONED`]
//! of them gets no new run, because they would take all its processors and memory.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::locks::lock;
use crate::outcome::{Outcome, Status};

/// Number of unfinished abandoned sessions at which a server gets no new run.
pub(crate) const MAX_ABANDONED: usize = 4;

/// Maximum time that a run waits here.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Time between two checks of the sessions.
const PERIOD: Duration = Duration::from_millis(100);

/// Time between two checks for cancellation by the caller.
const PAUSE: Duration = Duration::from_millis(10);

/// A handle to a session that was abandoned.
pub(crate) trait AbandonedSession: Send {
    /// Returns whether the session has ended on the server. Does not block.
    fn has_ended(&mut self) -> bool;
}

/// A server and an abandoned session on it. The session has its own lock, so checking it does not block other
/// threads.
type ServerSession = (String, Arc<Mutex<Box<dyn AbandonedSession>>>);

/// The abandoned sessions of a pool that have not ended on their servers.
#[derive(Default)]
pub(crate) struct AbandonedSessions {
    sessions: Mutex<Vec<ServerSession>>,
    /// Time of the last check; also the lock of the checking thread.
    checked_at: Mutex<Option<Instant>>,
    /// Number of sessions, readable without the lock.
    n_sessions: AtomicUsize,
}

impl AbandonedSessions {
    /// Tracks a session until it has ended.
    pub(crate) fn add(&self, server: String, session: Box<dyn AbandonedSession>) {
        let mut sessions = lock(&self.sessions);
        sessions.push((server, Arc::new(Mutex::new(session))));
        self.n_sessions.store(sessions.len(), Ordering::Relaxed);
    }

    /// Drops the sessions that have ended, unless they were just checked or another thread is checking. A check may
    /// connect to a server and blocks no other thread.
    fn check_sessions(&self) {
        let Ok(mut checked_at) = self.checked_at.try_lock() else { return };
        if checked_at.is_some_and(|time| time.elapsed() < PERIOD) {
            return;
        }
        let all: Vec<_> = lock(&self.sessions).iter().map(|(_, session)| Arc::clone(session)).collect();
        let ended: Vec<_> = all.into_iter().filter(|session| lock(session).has_ended()).collect();
        let mut sessions = lock(&self.sessions);
        sessions.retain(|(_, session)| !ended.iter().any(|other| Arc::ptr_eq(session, other)));
        self.n_sessions.store(sessions.len(), Ordering::Relaxed);
        *checked_at = Some(Instant::now());
    }

    /// Returns the number of sessions that have not ended.
    pub(crate) fn count(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.check_sessions();
        lock(&self.sessions).len() as u64
    }

    /// Returns whether the list is empty, which is the usual case.
    pub(crate) fn is_empty(&self) -> bool {
        self.n_sessions.load(Ordering::Relaxed) == 0
    }

    /// Waits until a server may get a new run. `Err` holds the outcome of a run that is cancelled or waited too long.
    pub(crate) fn wait(&self, server: &str, cancel: &AtomicBool) -> Result<(), Box<Outcome>> {
        let end = Instant::now() + MAX_WAIT;
        loop {
            self.check_sessions();
            if lock(&self.sessions).iter().filter(|(other, _)| *other == server).count() < MAX_ABANDONED {
                return Ok(());
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(Box::new(Outcome::cancelled()));
            }
            if Instant::now() >= end {
                let error = format!(
                    "{server}: at least {MAX_ABANDONED} abandoned queries still run on the server after {} s: wait for \
                     them to end, or restart the server",
                    MAX_WAIT.as_secs()
                );
                return Err(Box::new(Outcome::failed(Status::DbError, error)));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl fmt::Debug for AbandonedSessions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "AbandonedSessions({})", self.n_sessions.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    /// A session whose end the test controls.
    struct Controlled(Arc<AtomicBool>);

    impl AbandonedSession for Controlled {
        fn has_ended(&mut self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    /// A session whose check starts and ends when the test says so.
    struct Slow(Arc<Barrier>);

    impl AbandonedSession for Slow {
        fn has_ended(&mut self) -> bool {
            self.0.wait();
            self.0.wait();
            true
        }
    }

    #[test]
    fn checking_sessions_blocks_no_other_run() {
        let abandoned_sessions = AbandonedSessions::default();
        let (server, cancelled) = ("h:1", AtomicBool::new(true));
        let barrier = Arc::new(Barrier::new(2));
        abandoned_sessions.add(server.to_owned(), Box::new(Slow(Arc::clone(&barrier))));
        std::thread::scope(|scope| {
            let checking = scope.spawn(|| abandoned_sessions.count());
            barrier.wait();
            let results = [abandoned_sessions.wait(server, &cancelled), abandoned_sessions.wait("i:1", &cancelled)];
            barrier.wait();
            assert!(results.iter().all(Result::is_ok), "runs must not wait for the check");
            assert_eq!(checking.join().unwrap(), 0);
        });
    }

    #[test]
    fn server_at_the_bound_gets_no_run_until_a_session_ends() {
        let abandoned_sessions = AbandonedSessions::default();
        let (full, other) = ("h:1", "h:2");
        let ends: Vec<_> = (0..MAX_ABANDONED).map(|_| Arc::new(AtomicBool::new(false))).collect();
        for end in &ends {
            assert!(abandoned_sessions.wait(full, &AtomicBool::new(false)).is_ok());
            abandoned_sessions.add(full.to_owned(), Box::new(Controlled(Arc::clone(end))));
        }
        assert_eq!(abandoned_sessions.count(), MAX_ABANDONED as u64);
        assert!(abandoned_sessions.wait(other, &AtomicBool::new(false)).is_ok());
        let cancelled = abandoned_sessions.wait(full, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(cancelled.status, Status::Cancelled);
        let (is_waiting, never) = (AtomicBool::new(true), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let result = abandoned_sessions.wait(full, &never);
                is_waiting.store(false, Ordering::Relaxed);
                result
            });
            std::thread::sleep(3 * PERIOD);
            assert!(is_waiting.load(Ordering::Relaxed));
            ends[0].store(true, Ordering::Relaxed);
            assert!(waiting.join().unwrap().is_ok());
        });
        for end in &ends {
            end.store(true, Ordering::Relaxed);
        }
        std::thread::sleep(PERIOD);
        assert_eq!((abandoned_sessions.count(), abandoned_sessions.is_empty()), (0, true));
    }
}
