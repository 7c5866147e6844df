//! Sessions that the pool has given up and that may still run on their server.
//!
//! Some functions of a server do not look at its clock or at a request to cancel while they work. Their runs are answered in
//! time, and the server continues. Each such session is kept here until it has ended on the server. At [`MOST`] of them a
//! server gets no new run, as they would take all its processors and memory.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::locks::lock;
use crate::outcome::{Outcome, Status};

/// The most sessions of a server that were given up and have not ended, with which it gets a new run.
pub(crate) const MOST: usize = 4;

/// The longest that a run is held.
const HOLD: Duration = Duration::from_secs(60);

/// The time between two looks at the sessions.
const PERIOD: Duration = Duration::from_millis(100);

/// The time between two looks at the caller's wish to cancel.
const PAUSE: Duration = Duration::from_millis(10);

/// The remains of a session that was given up.
pub(crate) trait AbandonedSession: Send {
    /// Returns whether the session has ended on the server, without waiting for it.
    fn has_ended(&mut self) -> bool;
}

/// A server, and the remains of a session there, which a thread looks at without the lock of all.
type ServerSession = (String, Arc<Mutex<Box<dyn AbandonedSession>>>);

/// The sessions of a pool that were given up and have not ended on their servers.
#[derive(Default)]
pub(crate) struct GivenUp {
    sessions: Mutex<Vec<ServerSession>>,
    /// When a thread has last looked at them; the lock of the thread that looks.
    looked_at: Mutex<Option<Instant>>,
    /// Their number, which a run reads without the lock.
    n_sessions: AtomicUsize,
}

impl GivenUp {
    /// Keeps a session until it has ended.
    pub(crate) fn add(&self, server: String, remains: Box<dyn AbandonedSession>) {
        let mut sessions = lock(&self.sessions);
        sessions.push((server, Arc::new(Mutex::new(remains))));
        self.n_sessions.store(sessions.len(), Ordering::Relaxed);
    }

    /// Forgets the sessions that have ended, unless the last look was just now or another thread looks. A look may connect
    /// to a server, and holds up no other thread meanwhile.
    fn look(&self) {
        let Ok(mut looked_at) = self.looked_at.try_lock() else { return };
        if looked_at.is_some_and(|time| time.elapsed() < PERIOD) {
            return;
        }
        let all: Vec<_> = lock(&self.sessions).iter().map(|(_, remains)| Arc::clone(remains)).collect();
        let ended: Vec<_> = all.into_iter().filter(|remains| lock(remains).has_ended()).collect();
        let mut sessions = lock(&self.sessions);
        sessions.retain(|(_, remains)| !ended.iter().any(|other| Arc::ptr_eq(remains, other)));
        self.n_sessions.store(sessions.len(), Ordering::Relaxed);
        *looked_at = Some(Instant::now());
    }

    /// Returns how many have not ended.
    pub(crate) fn count(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.look();
        lock(&self.sessions).len() as u64
    }

    /// Returns whether there is no such session, as nearly always.
    pub(crate) fn is_empty(&self) -> bool {
        self.n_sessions.load(Ordering::Relaxed) == 0
    }

    /// Waits until a server may get a new run. `Err` is the outcome of a run that is cancelled, or was held too long.
    pub(crate) fn wait(&self, server: &str, cancel: &AtomicBool) -> Result<(), Box<Outcome>> {
        let end = Instant::now() + HOLD;
        loop {
            self.look();
            if lock(&self.sessions).iter().filter(|(other, _)| *other == server).count() < MOST {
                return Ok(());
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(Box::new(Outcome::cancelled()));
            }
            if Instant::now() >= end {
                let error = format!(
                    "{server}: at least {MOST} queries that were given up still run on the server after {} s: wait for their \
                     end, or restart the server",
                    HOLD.as_secs()
                );
                return Err(Box::new(Outcome::failed(Status::DbError, error)));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl fmt::Debug for GivenUp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "GivenUp({})", self.n_sessions.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    /// A session whose end the test decides.
    struct Controlled(Arc<AtomicBool>);

    impl AbandonedSession for Controlled {
        fn has_ended(&mut self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    /// A session at which a look begins and ends when the test does so.
    struct Slow(Arc<Barrier>);

    impl AbandonedSession for Slow {
        fn has_ended(&mut self) -> bool {
            self.0.wait();
            self.0.wait();
            true
        }
    }

    #[test]
    fn a_look_holds_up_no_other_run() {
        let given_up = GivenUp::default();
        let (server, cancelled) = ("h:1", AtomicBool::new(true));
        let barrier = Arc::new(Barrier::new(2));
        given_up.add(server.to_owned(), Box::new(Slow(Arc::clone(&barrier))));
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| given_up.count());
            barrier.wait();
            let results = [given_up.wait(server, &cancelled), given_up.wait("i:1", &cancelled)];
            barrier.wait();
            assert!(results.iter().all(Result::is_ok), "they do not wait for the look");
            assert_eq!(looking.join().unwrap(), 0);
        });
    }

    #[test]
    fn a_server_at_the_bound_gets_no_run_until_a_session_has_ended() {
        let given_up = GivenUp::default();
        let (full, other) = ("h:1", "h:2");
        let ends: Vec<_> = (0..MOST).map(|_| Arc::new(AtomicBool::new(false))).collect();
        for end in &ends {
            assert!(given_up.wait(full, &AtomicBool::new(false)).is_ok());
            given_up.add(full.to_owned(), Box::new(Controlled(Arc::clone(end))));
        }
        assert_eq!(given_up.count(), MOST as u64);
        assert!(given_up.wait(other, &AtomicBool::new(false)).is_ok());
        let cancelled = given_up.wait(full, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(cancelled.status, Status::Cancelled);
        let (is_waiting, never) = (AtomicBool::new(true), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let result = given_up.wait(full, &never);
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
        assert_eq!((given_up.count(), given_up.is_empty()), (0, true));
    }
}
