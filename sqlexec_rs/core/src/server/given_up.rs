//! Sessions that were given up and may still run on their server.
//!
//! Some functions of a server do not look at its clock or at a request to cancel while they work. Their runs are answered in
//! time, and the server continues. Each such session is kept here until it has ended on the server. At [`MOST`] of them a
//! server gets no new run, as they would take all its processors and memory.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::url::Url;
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
pub(super) trait Remains: Send {
    /// Returns whether the session has ended on the server, without waiting for it.
    fn has_ended(&mut self) -> bool;
}

/// A server's host and port.
type Server = (String, Option<u16>);

/// The sessions of a pool that were given up and have not ended on their servers.
#[derive(Default)]
pub(crate) struct GivenUp {
    sessions: Mutex<Sessions>,
    /// Their number, which a run reads without the lock.
    n_sessions: AtomicUsize,
}

#[derive(Default)]
struct Sessions {
    all: Vec<(Server, Box<dyn Remains>)>,
    looked_at: Option<Instant>,
}

impl Sessions {
    /// Forgets the sessions that have ended, unless the last look was just now.
    fn look(&mut self) {
        if self.looked_at.is_none_or(|time| time.elapsed() >= PERIOD) {
            self.all.retain_mut(|(_, remains)| !remains.has_ended());
            self.looked_at = Some(Instant::now());
        }
    }
}

impl GivenUp {
    /// Keeps a session until it has ended.
    pub(super) fn add(&self, url: &Url, remains: Box<dyn Remains>) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.all.push((server_of(url), remains));
        self.n_sessions.store(sessions.all.len(), Ordering::Relaxed);
    }

    /// Returns how many have not ended.
    pub(crate) fn count(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.look();
        self.n_sessions.store(sessions.all.len(), Ordering::Relaxed);
        sessions.all.len() as u64
    }

    /// Returns whether there is no such session, as nearly always.
    pub(super) fn is_empty(&self) -> bool {
        self.n_sessions.load(Ordering::Relaxed) == 0
    }

    /// Waits until a server may get a new run. `Err` is the outcome of a run that is cancelled, or was held too long.
    pub(super) fn wait(&self, url: &Url, cancel: &AtomicBool) -> Result<(), Box<Outcome>> {
        let server = server_of(url);
        let end = Instant::now() + HOLD;
        loop {
            let n_running = match self.sessions.try_lock() {
                Ok(mut sessions) => {
                    sessions.look();
                    self.n_sessions.store(sessions.all.len(), Ordering::Relaxed);
                    Some(sessions.all.iter().filter(|(other, _)| *other == server).count())
                }
                // Another thread looks.
                Err(TryLockError::WouldBlock) => None,
                Err(TryLockError::Poisoned(_)) => Some(0),
            };
            if n_running.is_some_and(|n| n < MOST) {
                return Ok(());
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(Box::new(Outcome::cancelled()));
            }
            if Instant::now() >= end {
                let error = format!(
                    "{url}: at least {MOST} queries that were given up still run on the server after {} s: wait for their \
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

fn server_of(url: &Url) -> Server {
    (url.host.clone(), url.port)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    /// A session whose end the test decides.
    struct Controlled(Arc<AtomicBool>);

    impl Remains for Controlled {
        fn has_ended(&mut self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn url(text: &str) -> Url {
        Url::parse(Path::new(text)).unwrap()
    }

    #[test]
    fn a_server_at_the_bound_gets_no_run_until_a_session_has_ended() {
        let given_up = GivenUp::default();
        let (full, other) = (url("mysql://u@h:1/d"), url("mysql://u@h:2/d"));
        let ends: Vec<_> = (0..MOST).map(|_| Arc::new(AtomicBool::new(false))).collect();
        for end in &ends {
            assert!(given_up.wait(&full, &AtomicBool::new(false)).is_ok());
            given_up.add(&full, Box::new(Controlled(Arc::clone(end))));
        }
        assert_eq!(given_up.count(), MOST as u64);
        assert!(given_up.wait(&other, &AtomicBool::new(false)).is_ok());
        let cancelled = given_up.wait(&full, &AtomicBool::new(true)).unwrap_err();
        assert_eq!(cancelled.status, Status::Cancelled);
        let (is_waiting, never) = (AtomicBool::new(true), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let result = given_up.wait(&full, &never);
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
